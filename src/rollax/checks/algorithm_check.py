"""Check that an algorithm implements the `Algorithm` interface correctly and learns."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from rollax import environments
from rollax.acting.evaluation import make_evaluator
from rollax.algorithm import Algorithm, Metrics
from rollax.algorithms.registry import AlgorithmEntry, find_algorithm
from rollax.checks.environment_check import quick_compilation
from rollax.checks.known_environments import KnownReturnEnvironment, TimeLimitEnvironment
from rollax.config import DataclassInstance, traced_field_names
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.populations import population
from rollax.runtime.numerics import standard_numerics
from rollax.types import PyTree, State
from rollax.user_input.settings_validation import resolve_settings

NUM_UPDATES = 3  # number of updates in structural checks
MAX_FRAMES = 200_000  # maximum number of frames to learn a probe


class FaultyAlgorithmError(UsageError):
    """Error for an algorithm that violates the `Algorithm` interface or does not learn.

    The attribute `faults` is a list with one message per problem.
    """

    def __init__(self, name: str, faults: list[str]) -> None:
        lines = [f"{i}. {fault}" for i, fault in enumerate(faults, start=1)]
        ValueError.__init__(self, "\n".join([f"{name} breaks the contract of algorithms:", *lines]))
        self.faults = faults


class AlgorithmReport(NamedTuple):
    """Report of a passed check.

    Attributes:
        name: Name of the algorithm.
        notes: Messages about behavior that is allowed but may be unintended.
    """

    name: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(
            [f"{self.name} keeps the contract and learns.", *(f"- {note}" for note in self.notes)]
        )


class _CheckedAlgorithm(NamedTuple):
    """Checked algorithm: factory, settings, and id of a probe environment that it supports."""

    make: Callable[[Any], Algorithm]
    config: Any
    probe_environment: str


@standard_numerics()
def check_algorithm(
    algorithm: "AlgorithmEntry | str",
    config: DataclassInstance | None = None,
    network: DataclassInstance | None = None,
) -> AlgorithmReport:
    """Check that an algorithm implements the `Algorithm` interface and learns in small tasks.

    The check takes about a minute on a laptop. Small settings, such as 8 environments and 16 steps,
    make it fast.

    Args:
        algorithm: Name or entry of the algorithm.
        config: Settings of the algorithm. None uses the defaults of the settings class.
        network: Settings of the network. None uses the defaults of the settings class.

    Returns:
        Report of the passed check.

    Raises:
        FaultyAlgorithmError: If the check finds a problem. The error lists all problems.
        UsageError: If the algorithm is unknown, or the settings are not valid.
    """
    name, entry = find_algorithm(algorithm)
    settings = resolve_settings("config", entry.config, {}, config)
    if entry.network_config is not None:
        network = resolve_settings("network", entry.network_config, {}, network)
    subject = _make_checked_algorithm(name, entry, settings, network)
    # The checks run the same state twice on purpose, to compare the results.
    with quick_compilation(), jax.debug_key_reuse(False):
        return _run_checks(name, subject)


def _make_checked_algorithm(
    name: str,
    entry: AlgorithmEntry,
    config: DataclassInstance,
    network: DataclassInstance | None,
) -> _CheckedAlgorithm:
    """Pair the algorithm with the first probe environment that it supports.

    Raise FaultyAlgorithmError if it supports none.
    """

    def make(environment: Environment) -> Algorithm:
        return entry.make(environment, functools.partial(entry.make_network, environment, network))

    refusals = []
    for probe in ("probe/action-observation", "probe/continuous"):
        try:
            jax.eval_shape(make(environments.make(probe)).init, jax.random.key(0), config)
        except UsageError as error:
            refusals.append(str(error))
            continue
        return _CheckedAlgorithm(make, config, probe)
    raise FaultyAlgorithmError(
        name,
        [f"it supports neither discrete nor continuous actions: {'; '.join(refusals)}"],
    )


def _run_checks(name: str, subject: _CheckedAlgorithm) -> AlgorithmReport:
    """Run all checks and return the report. Raise FaultyAlgorithmError with all problems."""
    algorithm = subject.make(
        KnownReturnEnvironment(environments.make(subject.probe_environment).action_space)
    )
    faults = _find_interface_faults(algorithm, subject.config)
    if faults:  # Without the right structure, the algorithm cannot run in the other checks.
        raise FaultyAlgorithmError(name, faults)
    init, step = jax.jit(algorithm.init), jax.jit(algorithm.step)
    runs = functools.partial(_run_updates, init, step)
    faults += _randomness_faults(runs, subject.config)
    faults += _population_faults(algorithm, runs, subject.config)
    unused = _find_unused_settings(runs, subject.config)
    faults += _acting_faults(algorithm, runs, subject)
    faults += _metrics_faults(subject)
    faults += _learning_faults(subject)
    if faults:
        raise FaultyAlgorithmError(name, faults)
    notes = (
        (f"these settings had no effect in combination with the others: {', '.join(unused)}.",)
        if unused
        else ()
    )
    return AlgorithmReport(name, notes)


def _run_updates(
    init: Callable[..., State],
    step: Callable[[State], tuple[State, Metrics]],
    seed: int,
    config: DataclassInstance,
    updates: int = NUM_UPDATES,
) -> tuple[Any, Metrics]:
    state, metrics = init(jax.random.key(seed), config), Metrics({})
    for _ in range(updates):
        state, metrics = step(state)
    return state, metrics


def _find_interface_faults(algorithm: Algorithm, config: DataclassInstance) -> list[str]:
    """Return error messages about the structure of state, metrics and config, and host calls."""
    state = jax.eval_shape(algorithm.init, jax.random.key(0), config)
    try:
        step = jax.jit(algorithm.step).trace(state)
    except Exception as error:  # User code may raise any error.
        return [f"step fails with {type(error).__name__}: {str(error).strip().splitlines()[0]}"]
    result = step.out_info
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Metrics)):
        return ["step must return (state, rollax.Metrics(values, episodes, finite))."]
    faults = [
        f"metrics.values[{n!r}] must be a scalar, got shape {v.shape}. Report scalars only."
        for n, v in result[1].values.items()
        if v.shape
    ]
    if jax.tree.structure(state) != jax.tree.structure(result[0]):
        return [
            *faults,
            "step changes the structure of the state. Return a state with the same fields.",
        ]
    for (path, leaf), new_leaf in zip(
        jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(result[0]), strict=True
    ):
        if (leaf.shape, leaf.dtype) != (new_leaf.shape, new_leaf.dtype):
            leaf_name = jax.tree_util.keystr(path)
            faults.append(
                f"step changes state{leaf_name} from {leaf.dtype}{list(leaf.shape)} to "
                f"{new_leaf.dtype}{list(new_leaf.shape)}. Keep shape and dtype."
            )
    calls = {
        name
        for name in _iterate_primitives(step.jaxpr.jaxpr)
        if any(substring in name for substring in ("callback", "print", "feed"))
    }
    if calls:
        faults.append(
            f"step calls the host ({', '.join(sorted(calls))}). Return the values as metrics "
            "instead."
        )
    if not hasattr(algorithm.config(state), "total_updates"):
        faults.append(
            "The config must have the field total_updates, which runs set. Add total_updates: "
            "float = traced_field(math.inf, low=1)."
        )
    return faults


def _iterate_primitives(jaxpr: Jaxpr) -> Iterator[str]:
    """Yield the names of all primitives in a jaxpr and its nested jaxprs."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jax.tree.leaves(
            list(equation.params.values()),
            is_leaf=lambda x: isinstance(x, Jaxpr | ClosedJaxpr),
        ):
            if isinstance(inner, Jaxpr | ClosedJaxpr):
                yield from _iterate_primitives(inner if isinstance(inner, Jaxpr) else inner.jaxpr)


def _to_numpy_leaves(tree: PyTree) -> list[np.ndarray]:
    def is_key(leaf):
        return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)

    return [
        np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)
        for leaf in jax.tree.leaves(tree)
    ]


def _is_equal(left: PyTree, right: PyTree, tolerance: float = 0.0) -> bool:
    pairs = zip(_to_numpy_leaves(left), _to_numpy_leaves(right), strict=True)
    return all(np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True) for a, b in pairs)


def _randomness_faults(
    runs: Callable[..., tuple[State, Metrics]], config: DataclassInstance
) -> list[str]:
    """Return error messages about ignored or reused keys and other sources of randomness."""
    faults = []
    state, metrics = runs(0, config)
    if not _is_equal((state, metrics), runs(0, config)):
        faults.append(
            "Two runs with the same key differ. Keep all state in the state, and draw random "
            "numbers only from its key."
        )
    if _is_equal(metrics.values, runs(1, config)[1].values):
        faults.append(
            "Two keys give the same run. Draw parameters, environments and minibatches from the "
            "key of init."
        )

    def leaves(tree):
        return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]

    keys = leaves(state)
    if keys and all(
        _is_equal(a, b)
        for a, b in zip(keys, leaves(runs(0, config, NUM_UPDATES - 1)[0]), strict=True)
    ):
        faults.append(
            "No key in the state changes, so every update draws the same random numbers. Split "
            "state.key in step."
        )
    return faults


def _population_faults(
    algorithm: Algorithm, runs: Callable[..., tuple[State, Metrics]], config: DataclassInstance
) -> list[str]:
    """Return error messages if a population fails, or if a member differs from a single run."""
    many = population(algorithm)
    configs = jax.tree.map(lambda x: jnp.full(2, x, jnp.float32), config)
    try:
        state = jax.jit(many.init)(jnp.stack([jax.random.key(0), jax.random.key(1)]), configs)
        state, _ = jax.jit(many.step)(state)
    except Exception as error:
        text = str(error).strip().splitlines()[0]
        remedy = "Use jnp.where or lax.cond instead of `if` on settings."
        return [f"A population of it fails with {type(error).__name__}: {text}. {remedy}"]
    alone = runs(1, config, 1)[0]
    member = jax.tree.map(lambda x: x[1], state)
    if _is_equal(many.acting_state(state), many.acting_state(state)) and not _is_equal(
        member, alone, 1e-3
    ):
        return [
            "A member of a population differs from the same run without a population. Look for "
            "sums over a wrong axis, or values outside the state."
        ]
    return []


def _find_unused_settings(
    runs: Callable[..., tuple[State, Metrics]], config: DataclassInstance
) -> list[str]:
    """Return the names of traced settings that do not affect the state after some updates."""
    metrics, unused = _to_numpy_leaves(runs(0, config)[1].values), []
    for name in traced_field_names(type(config)):
        if name == "total_updates":
            continue
        value = float(getattr(config, name))
        field = next(field for field in dataclasses.fields(config) if field.name == name)
        low, high = field.metadata.get("low", -math.inf), field.metadata.get("high", math.inf)
        other = 1e-3 if math.isinf(value) else min(max(0.5 * value + 0.3, low), high)
        changed = dataclasses.replace(config, **{name: other}, total_updates=2.0 * NUM_UPDATES)
        base = dataclasses.replace(config, total_updates=2.0 * NUM_UPDATES)
        pairs = [_leaves_except_config(runs(0, c)[0]) for c in (base, changed)]
        if _is_equal(*pairs):
            unused.append(name)
    return unused if metrics else []


def _leaves_except_config(state: State) -> Any:
    """Return the leaves of a state, excluding the leaves of its config."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return [leaf for path, leaf in leaves if not any("config" in str(part) for part in path[:1])]


def _acting_faults(
    algorithm: Algorithm, runs: Callable[..., tuple[State, Metrics]], subject: _CheckedAlgorithm
) -> list[str]:
    """Return error messages about `act`: actions outside of the space, and wrong dependencies.

    Greedy actions must not depend on the key or on state outside of `acting_state`.
    """
    environment = KnownReturnEnvironment(environments.make(subject.probe_environment).action_space)
    state = runs(0, subject.config, 1)[0]
    _, obs = environment.reset(jax.random.key(5))
    act = jax.jit(algorithm.act, static_argnums=4)
    try:
        carry = algorithm.initial_carry(state)
        result, *other_results = (
            act(state, obs, carry, jax.random.key(seed), True) for seed in range(1, 17)
        )
        acting_state_result = act(
            algorithm.acting_state(state), obs, carry, jax.random.key(1), True
        )
    except Exception as error:
        text = str(error).strip().splitlines()[0]
        return [
            "act(state, obs, carry, key, greedy) -> (action, carry) fails with "
            f"{type(error).__name__}: {text}"
        ]
    faults = []
    if not bool(environment.action_space.contains(result[0])):
        faults.append(f"act must return an action in {environment.action_space}, got {result[0]}.")
    if not all(_is_equal(result, other) for other in other_results):
        faults.append("act with greedy=True depends on its key. Return the mode of the policy.")
    if not _is_equal(result, acting_state_result):
        faults.append(
            "act returns another action with acting_state(state). Keep everything that act reads."
        )
    return faults


def _metrics_faults(subject: _CheckedAlgorithm) -> list[str]:
    """Return error messages about wrong episode statistics and unreported NaN."""
    space = environments.make(subject.probe_environment).action_space
    faults = []
    algorithm = subject.make(KnownReturnEnvironment(space))
    _, metrics = _run_updates(jax.jit(algorithm.init), jax.jit(algorithm.step), 0, subject.config)
    num_episodes, total, length = (float(x) for x in metrics.episodes[:3])
    if num_episodes == 0:
        faults.append(
            f"metrics.episodes.number must be positive after {NUM_UPDATES} updates of episodes "
            "with 3 steps, got 0. Count the episodes that end."
        )
    elif (
        abs(total / num_episodes - KnownReturnEnvironment.total) > 1e-3
        or abs(length / num_episodes - 3) > 1e-3
    ):
        mean = f"{total / num_episodes:.3g} and {length / num_episodes:.3g}"
        faults.append(
            f"Episodes of return {KnownReturnEnvironment.total} and length 3 are reported as "
            f"{mean}. Use the sums that unroll returns."
        )
    faulty_algorithm = subject.make(KnownReturnEnvironment(space, has_nan_reward=True))
    _, metrics = _run_updates(
        jax.jit(faulty_algorithm.init), jax.jit(faulty_algorithm.step), 0, subject.config
    )
    if bool(jnp.all(jnp.stack([jnp.asarray(x) for x in metrics.finite]))):
        faults.append(
            "A NaN reward leaves every field of metrics.finite True. Report it "
            "(rollax.algorithm.check_finite)."
        )
    return faults


def _learning_faults(subject: _CheckedAlgorithm) -> list[str]:
    """Return a list with one error message if training fails, otherwise an empty list.

    Training fails if the policy does not find the best action of the probe environment, or if the
    algorithm treats truncation as termination.
    """
    best = {"probe/action-observation": (0.9, "the action that matches the observation")}
    required_return, best_action = best.get(
        subject.probe_environment, (-0.05, "the action that equals the observation")
    )
    mean_return = _train_and_evaluate(
        subject, environments.make(subject.probe_environment), required_return
    )
    if mean_return < required_return:
        outcome = f"a mean return of {mean_return:.2f}, required {required_return}"
        return [
            f"it does not learn {best_action} ({subject.probe_environment}): {outcome}. Check the "
            "sign of the loss."
        ]
    environment = TimeLimitEnvironment(environments.make(subject.probe_environment).action_space)
    time_limit_return = _train_and_evaluate(subject, environment, 1.5, stops_below=True)
    if time_limit_return > 1.5:
        return [
            "A time limit counts as termination: the policy stops for a reward of 2, although "
            "continuing pays 1 per step without end. Bootstrap with the value of next_obs where "
            "truncated and not terminated."
        ]
    return []


def _train_and_evaluate(
    subject: _CheckedAlgorithm,
    environment: Environment,
    threshold: float,
    stops_below: bool = False,
) -> float:
    """Train the algorithm, and return the mean return of greedy episodes.

    Training stops after `MAX_FRAMES` frames, or earlier when the mean return reaches `threshold`.
    If `stops_below` is True, it stops when the mean return is below `threshold`.
    """
    algorithm, per_update = subject.make(environment), subject.config.steps_per_update
    state = jax.jit(algorithm.init)(jax.random.key(0), subject.config)
    step, evaluate = (
        jax.jit(algorithm.step),
        jax.jit(make_evaluator(environment, algorithm, 64, 16, True)),
    )
    total = max(MAX_FRAMES // per_update, 20)
    mean_return = math.nan
    for update in range(1, total + 1):
        state, _ = step(state)
        if update % max(total // 20, 1) == 0:
            mean_return = float(jnp.mean(evaluate(state, jax.random.key(update)).returns))
            if (mean_return < threshold) if stops_below else (mean_return >= threshold):
                break
    return mean_return
