"""Checks that an algorithm keeps its contract and learns, and says for every fault what is wrong and how to mend it."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax import environments
from rollax.acting.evaluate import evaluator
from rollax.algorithm import Algorithm, Metrics
from rollax.algorithms.registry import AlgorithmEntry, find
from rollax.checks.worlds import Paid, StopOrGo
from rollax.config import traced_fields
from rollax.errors import UsageError
from rollax.populations import population

UPDATES = 3  # of the checks of form
FRAMES = 200_000  # that a probe is learnt from at most


class FaultyAlgorithmError(UsageError):
    """An algorithm breaks its contract, or does not learn. `faults` lists how; the message numbers them."""

    def __init__(self, name: str, faults: list[str]) -> None:
        lines = [f"{i}. {fault}" for i, fault in enumerate(faults, start=1)]
        ValueError.__init__(self, "\n".join([f"{name} breaks the contract of algorithms:", *lines]))
        self.faults = faults


class AlgorithmReport(NamedTuple):
    """What a passed check found."""

    name: str
    notes: tuple[str, ...]  # allowed, but perhaps not meant

    def __str__(self) -> str:
        return "\n".join([f"{self.name} keeps the contract and learns.", *(f"- {note}" for note in self.notes)])


class _Subject(NamedTuple):
    """What is checked: the algorithm in an environment of one's choice, with these settings."""

    make: Callable[[Any], Algorithm]
    config: Any
    probe: str  # an environment whose actions it takes


def check_algorithm(algorithm: "AlgorithmEntry | str", config: Any = None, network: Any = None) -> AlgorithmReport:
    """Runs the laws of algorithms on small environments, in about a minute on a laptop.

    `config`, `network`: settings; by default those of the entry. Small sizes (8 environments, 16 steps) make the check quick.

    Raises: FaultyAlgorithmError, one error that lists every fault found.
    """
    name, entry = find(algorithm)
    config = entry.config() if config is None else config
    subject = _subject(name, entry, config, entry.network_config() if network is None and entry.network_config else network)
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)  # many programs that run for a moment
    try:
        # Running one state twice, to see whether the results agree, is meant here.
        with jax.debug_key_reuse(False):
            return _check(name, subject)
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def _subject(name: str, entry: AlgorithmEntry, config: Any, network: Any) -> _Subject:
    def make(environment: Any) -> Algorithm:
        return entry.make(environment, functools.partial(entry.make_network, environment, network))

    refusals = []
    for probe in ("probe/action-observation", "probe/continuous"):
        try:
            jax.eval_shape(make(environments.make(probe)).init, jax.random.key(0), config)
        except UsageError as error:
            refusals.append(str(error))
            continue
        return _Subject(make, config, probe)
    raise FaultyAlgorithmError(name, [f"it takes neither discrete nor continuous actions: {'; '.join(refusals)}"])


def _check(name: str, subject: _Subject) -> AlgorithmReport:
    algorithm = subject.make(Paid(environments.make(subject.probe).action_space))
    faults = _form(algorithm, subject.config)
    if faults:  # what is not of the right form cannot be run further
        raise FaultyAlgorithmError(name, faults)
    init, step = jax.jit(algorithm.init), jax.jit(algorithm.step)
    runs = functools.partial(_run, init, step)
    faults += _randomness(runs, subject.config)
    faults += _members(algorithm, runs, subject.config)
    dead = _dead_settings(runs, subject.config)
    faults += _acting(algorithm, runs, subject)
    faults += _books(subject)
    faults += _learning(subject)
    if faults:
        raise FaultyAlgorithmError(name, faults)
    notes = (f"these settings changed nothing with the others as they are: {', '.join(dead)}.",) if dead else ()
    return AlgorithmReport(name, notes)


def _run(init: Any, step: Any, seed: int, config: Any, updates: int = UPDATES) -> tuple[Any, Metrics]:
    state, metrics = init(jax.random.key(seed), config), Metrics({})
    for _ in range(updates):
        state, metrics = step(state)
    return state, metrics


def _form(algorithm: Algorithm, config: Any) -> list[str]:
    """Faults that tracing shows: of the state's form, of metrics, and callbacks to the host."""
    state = jax.eval_shape(algorithm.init, jax.random.key(0), config)
    try:
        step = jax.jit(algorithm.step).trace(state)
    except Exception as error:  # a user's code may raise anything
        return [f"step fails with {type(error).__name__}: {str(error).strip().splitlines()[0]}"]
    after = step.out_info
    if not (isinstance(after, tuple) and len(after) == 2 and isinstance(after[1], Metrics)):
        return ["step must return (state, rollax.Metrics(values, episodes, finite))"]
    faults = [f"metrics.values[{n!r}] has the shape {v.shape}: report scalars" for n, v in after[1].values.items() if v.shape]
    if jax.tree.structure(state) != jax.tree.structure(after[0]):
        return [
            *faults,
            "step changes the structure of the state: return one of the same fields",
        ]
    for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(after[0]), strict=True):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            where = jax.tree_util.keystr(path)
            faults.append(
                f"step turns state{where} from {old.dtype}{list(old.shape)} into {new.dtype}{list(new.shape)}: keep both"
            )
    calls = {name for name in _primitives(step.jaxpr.jaxpr) if any(word in name for word in ("callback", "print", "feed"))}
    if calls:
        faults.append(f"step calls the host ({', '.join(sorted(calls))}): return what is to be seen as metrics instead")
    if not hasattr(algorithm.config(state), "total_updates"):
        faults.append("the config has no total_updates, which a run sets: add total_updates: float = number(math.inf, low=1)")
    return faults


def _primitives(jaxpr: Any) -> Iterator[str]:
    """The names of all primitives, of inner programs too."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from _primitives(inner if hasattr(inner, "eqns") else inner.jaxpr)


def _plain(tree: Any) -> list[np.ndarray]:
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf) for leaf in jax.tree.leaves(tree)]


def _same(left: Any, right: Any, tolerance: float = 0.0) -> bool:
    pairs = zip(_plain(left), _plain(right), strict=True)
    return all(np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True) for a, b in pairs)


def _randomness(runs: Callable[..., Any], config: Any) -> list[str]:
    """Faults of random numbers: other results from the same key, the same from another, keys that are used again."""
    faults = []
    state, metrics = runs(0, config)
    if not _same((state, metrics), runs(0, config)):
        faults.append("two runs of one key differ: keep nothing outside the state, and draw random numbers from its key only")
    if _same(metrics.values, runs(1, config)[1].values):
        faults.append("two keys give the same run: draw parameters, environments and minibatches from the key of init")
    leaves = lambda tree: [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]  # noqa: E731
    keys = leaves(state)
    if keys and all(_same(a, b) for a, b in zip(keys, leaves(runs(0, config, UPDATES - 1)[0]), strict=True)):
        faults.append("no key in the state changes, so every update draws the same random numbers: split state.key in step")
    return faults


def _members(algorithm: Algorithm, runs: Callable[..., Any], config: Any) -> list[str]:
    """Faults where a member of a population is not the same run alone."""
    many = population(algorithm)
    configs = jax.tree.map(lambda x: jnp.full(2, x, jnp.float32), config)
    try:
        state = jax.jit(many.init)(jnp.stack([jax.random.key(0), jax.random.key(1)]), configs)
        state, _ = jax.jit(many.step)(state)
    except Exception as error:
        text = str(error).strip().splitlines()[0]
        remedy = "use jnp.where or lax.cond instead of `if` on settings"
        return [f"a population of it fails with {type(error).__name__}: {text}; {remedy}"]
    alone = runs(1, config, 1)[0]
    member = jax.tree.map(lambda x: x[1], state)
    if _same(many.acting_state(state), many.acting_state(state)) and not _same(member, alone, 1e-3):
        return ["a member of a population differs from the same run alone: look for sums over a wrong axis, or state outside"]
    return []


def _dead_settings(runs: Callable[..., Any], config: Any) -> list[str]:
    """Traced settings that change neither the state nor metrics."""
    metrics, dead = _plain(runs(0, config)[1].values), []
    for name in traced_fields(type(config)):
        if name == "total_updates":
            continue
        value = float(getattr(config, name))
        field = next(field for field in dataclasses.fields(config) if field.name == name)
        low, high = field.metadata.get("low", -math.inf), field.metadata.get("high", math.inf)
        other = 1e-3 if math.isinf(value) else min(max(0.5 * value + 0.3, low), high)
        changed = dataclasses.replace(config, **{name: other}, total_updates=2.0 * UPDATES)
        base = dataclasses.replace(config, total_updates=2.0 * UPDATES)
        pairs = [_without_config(runs(0, c)[0]) for c in (base, changed)]
        if _same(*pairs):
            dead.append(name)
    return dead if metrics else []


def _without_config(state: Any) -> Any:
    """The leaves of a state but those of its config."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return [leaf for path, leaf in leaves if not any("config" in str(part) for part in path[:1])]


def _acting(algorithm: Algorithm, runs: Callable[..., Any], subject: _Subject) -> list[str]:
    """Faults of `act`: outside the space, greedy and yet random, or in need of more than `acting_state` leaves."""
    environment = Paid(environments.make(subject.probe).action_space)
    state = runs(0, subject.config, 1)[0]
    _, obs = environment.reset(jax.random.key(5))
    act = jax.jit(algorithm.act, static_argnums=4)
    try:
        carry = algorithm.initial_carry(state)
        one, *others = (act(state, obs, carry, jax.random.key(seed), True) for seed in range(1, 17))
        kept = act(algorithm.acting_state(state), obs, carry, jax.random.key(1), True)
    except Exception as error:
        text = str(error).strip().splitlines()[0]
        return [f"act(state, obs, carry, key, greedy) -> (action, carry) fails with {type(error).__name__}: {text}"]
    faults = []
    if not bool(environment.action_space.contains(one[0])):
        faults.append(f"act gives {one[0]}, which is not in {environment.action_space}")
    if not all(_same(one, other) for other in others):
        faults.append("act with greedy=True depends on its key: give the mode of the policy")
    if not _same(one, kept):
        faults.append("act gives another action by acting_state(state): leave in it all that act reads")
    return faults


def _books(subject: _Subject) -> list[str]:
    """Faults in what is reported: sums over episodes whose return and length are known, and NaN that is not reported."""
    space = environments.make(subject.probe).action_space
    faults = []
    algorithm = subject.make(Paid(space))
    _, metrics = _run(jax.jit(algorithm.init), jax.jit(algorithm.step), 0, subject.config)
    number, total, length = (float(x) for x in metrics.episodes[:3])
    if number == 0:
        faults.append(f"metrics.episodes.number is 0 after {UPDATES} updates of episodes of 3 steps: count those that end")
    elif abs(total / number - Paid.total) > 1e-3 or abs(length / number - 3) > 1e-3:
        mean = f"{total / number:.3g} and {length / number:.3g}"
        faults.append(f"episodes of return {Paid.total} and length 3 are reported as {mean}: use the sums that unroll returns")
    bad = subject.make(Paid(space, bad=True))
    _, metrics = _run(jax.jit(bad.init), jax.jit(bad.step), 0, subject.config)
    if bool(jnp.all(jnp.stack([jnp.asarray(x) for x in metrics.finite]))):
        faults.append("a NaN reward leaves every field of metrics.finite True: report it (learning.losses.report)")
    return faults


def _learning(subject: _Subject) -> list[str]:
    """Faults in learning: the probe's best action is not found, or a time limit counts as an end of the task."""
    best = {"probe/action-observation": (0.9, "the action that matches the observation")}
    required, what = best.get(subject.probe, (-0.05, "the action that equals the observation"))
    reached = _mean_return(subject, environments.make(subject.probe), required)
    if reached < required:
        found = f"a mean return of {reached:.2f}, where {required} is asked"
        return [f"it does not learn {what} ({subject.probe}): {found}; look at the sign of the loss"]
    world = StopOrGo(environments.make(subject.probe).action_space)
    went = _mean_return(subject, world, 1.5, below=True)
    if went > 1.5:
        return [
            "a time limit counts as an end of the task: it stops for a reward of 2 where going on pays 1 a step for ever. "
            "Bootstrap with the value of next_obs where truncated and not terminated"
        ]
    return []


def _mean_return(subject: _Subject, environment: Any, wanted: float, below: bool = False) -> float:
    """The mean return of greedy episodes, trained until it is as wanted or the frames are used up."""
    algorithm, per_update = subject.make(environment), subject.config.steps_per_update
    state = jax.jit(algorithm.init)(jax.random.key(0), subject.config)
    step, evaluate = jax.jit(algorithm.step), jax.jit(evaluator(environment, algorithm, 64, 16, True))
    total = max(FRAMES // per_update, 20)
    reached = math.nan
    for update in range(1, total + 1):
        state, _ = step(state)
        if update % max(total // 20, 1) == 0:
            reached = float(jnp.mean(evaluate(state, jax.random.key(update)).returns))
            if (reached < wanted) if below else (reached >= wanted):
                break
    return reached
