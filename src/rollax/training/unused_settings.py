"""Detection of settings that have no effect in a run, before anything is compiled.

A setting is checked if its value differs from the default and from the preset, or if it is swept
or evolves. Its effect is determined from traced programs (jaxprs):

- A traced setting has an effect if an output of a function of the algorithm depends on it.
- A static setting has an effect if the default value results in a different program.
- A network setting has an effect if the default value results in a different network.
"""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import numpy as np

from rollax.algorithm import Algorithm, Carry, Config, Metrics, State
from rollax.config import DataclassInstance, UserFunction, traced_field_names
from rollax.environments.capabilities import is_on_host
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.spaces import Box, Space, list_parts, make_zeros
from rollax.training.compile import cache, memory_estimate
from rollax.training.compile import program as programs
from rollax.training.options import RunOptions
from rollax.training.simulators.recording import make_rollout_act_fn
from rollax.training.simulators.runner import SimulatorRunner
from rollax.training.spec import Spec, get_algorithm_entry, list_changed_settings
from rollax.types import NetworkFn, PyTree
from rollax.user_input.coercion import format_value

# Static settings that always change the program. No second program is traced for them.
ALWAYS_EFFECTIVE_SETTINGS = (
    "num_envs",
    "num_steps",
    "num_minibatches",
    "num_epochs",
    "sequence_length",
    "batch_size",
    "num_iterations",
    "capacity",
)
REMEDIES = {
    "critic_learning_rate": (
        "The network has no separate critic (a field `critic`). Remove the setting or add a critic"
    ),
    "value_clip": "Remove it or set config.clip_values to true",
    "clip": "Remove it or set config.objective to clipped",
    "temperature_learning_rate": "Remove it or set config.learn_temperature to true",
    "target_entropy": "Remove it or set config.learn_temperature to true",
    "discrete_target_entropy": "It applies to actions with discrete parts. Remove the setting",
    "learning_rate_kl": "Remove it or set config.learning_rate_schedule to kl",
    "frozen_fraction": "Remove it or set config.frozen",
    "adam_epsilon": "The optimizers lion and sgd have no epsilon. Remove the setting",
    "sharing": "Agents of one type share their parameters either way. Remove the setting",
    "max_steps": "The environment has a time limit. Remove the setting",
    "grid": "Remove it or set config.cvt_cells to 0",
    "agent_id": "The environment has only one agent. Remove the setting",
    "squash": "It applies to continuous actions with bounds. Remove the setting",
    "initial_std": "It applies to continuous actions. Remove the setting",
    "std": "It applies to continuous actions. Remove the setting",
    "sde_sample_freq": "Remove it or set network.std to gsde",
    "attention": "It applies to observations with a grid. Remove the setting",
    "filters": "It applies to pictures and grids. Remove the setting",
    "embedding": "It applies to grids of symbols. Remove the setting",
}
REMEDIES |= {"critic_epochs": REMEDIES["critic_learning_rate"]}
REMEDIES |= dict.fromkeys(
    ("priority_exponent", "importance_exponent", "priority_epsilon"),
    "Remove it or set config.prioritized to true",
)
REMEDIES |= dict.fromkeys(
    ("core_size", "core_layers"), "Remove it or choose a memory with network.core"
)
REMEDIES |= dict.fromkeys(("core_heads", "core_memory"), "Remove it or set network.core to gtrxl")
REMEDIES |= {
    "core_output": (
        "Remove it or choose a memory with network.core and network.core_layers 2 or more"
    )
}
NOT_READ = "No update reads it. Remove it"

_is_check_enabled = contextvars.ContextVar("is_checked", default=True)


def check_unused_settings(
    spec: Spec, environment: Environment | None, make_network: NetworkFn | None
) -> None:
    """Check that every setting that the user passed has an effect in this run.

    Args:
        spec: Specification of a new run.
        environment: Environment object with opponents, or None if the environment is made from its
            id.
        make_network: Function that maps a random key to a network, or None if settings describe the
            network.

    Raises:
        UsageError: If a setting has no effect.
    """
    if not _is_check_enabled.get():
        return
    has_custom_object = environment is not None or make_network is not None
    with (
        cache.enable_for_checks(),
        memory_estimate.explain_tracing_errors(has_custom_object, "the effect of settings"),
    ):
        algorithm, run_environment = programs.build_algorithm_and_environment(
            spec, environment, make_network
        )
        evaluated = programs.evaluation_environment(spec, run_environment)
        _check_options(spec, run_environment, evaluated)
        if dataclasses.is_dataclass(spec.network):
            _check_network_settings(spec, environment)
            _check_entropy_settings(spec, run_environment)
        _check_static_settings(spec, algorithm, run_environment)
        _check_traced_settings(spec, algorithm, run_environment)


def check_changed_settings(
    spec: Spec, environment: Environment | None, make_network: NetworkFn | None
) -> None:
    """Check that the settings that the last phase of a resumed run changes have an effect.

    Traced settings of the algorithm and settings of the network are checked.

    Args:
        spec: Specification of the resumed run.
        environment: Environment object with opponents, or None if it is made from its id.
        make_network: Network function, or None.

    Raises:
        UsageError: If a setting has no effect, for example because only the initial state
            depends on it.
    """
    changed, traced = spec.phases[-1].config_names, traced_field_names(type(spec.config))
    # A change of `learning_rate` scales the other learning rates, which may be unused.
    scaled = [n for n in changed if n.endswith("_learning_rate") and "learning_rate" in changed]
    names = [name for name in changed if name in traced and name not in scaled]
    network_names = [
        path.removeprefix("network.")
        for path in spec.phases[-1].changes
        if path.startswith("network.")
    ]
    if network_names:
        with cache.enable_for_checks():
            _check_network_settings(spec, environment, network_names)
    if not names:
        return
    has_custom_object = environment is not None or make_network is not None
    with (
        cache.enable_for_checks(),
        memory_estimate.explain_tracing_errors(has_custom_object, "the effect of settings"),
    ):
        algorithm, run_environment = programs.build_algorithm_and_environment(
            spec, environment, make_network
        )
        update = _make_update(spec, algorithm, run_environment)
        step = _trace_function(update.function, *update.arguments)
        trace_others = _make_other_tracer(algorithm, run_environment, update.arguments[0])
        for name in names:
            if not _is_read_in_training(name, algorithm, step, trace_others):
                _raise_no_effect(
                    f"config.{name}", getattr(spec.config, name), REMEDIES.get(name, NOT_READ)
                )


def _is_read_in_training(
    name: str,
    algorithm: Algorithm,
    step: "TracedFunction",
    trace_others: Callable[[], list["TracedFunction"]],
) -> bool:
    """Return whether an update, or another function of the algorithm, depends on a setting."""
    return _has_effect(
        step, getattr(algorithm.config(step.inputs[0]), name), algorithm.config(step.outputs[0])
    ) or any(_has_effect(x, getattr(algorithm.config(x.inputs[0]), name)) for x in trace_others())


@contextlib.contextmanager
def allow_unused_settings() -> Iterator[None]:
    """Return a context manager that disables `check_unused_settings`.

    Hyperparameter searches use it, because a sampled setting can disable another setting.
    """
    token = _is_check_enabled.set(False)
    try:
        yield
    finally:
        _is_check_enabled.reset(token)


def _raise_no_effect(name: str, value: object, remedy: str = "Remove it") -> None:
    raise UsageError(f"{name} ({format_value(value)}) has no effect in this run. {remedy}.")


def _check_options(spec: Spec, environment: Environment, eval_environment: Environment) -> None:
    options, default = spec.options, RunOptions()
    if options.env_timeout != default.env_timeout and not is_on_host(environment):
        _raise_no_effect(
            "env_timeout",
            options.env_timeout,
            f"It applies to simulators, and {environment.name} is compiled. Remove it",
        )
    if options.eval_max_steps != default.eval_max_steps and eval_environment.time_limit is not None:
        limit = f"{eval_environment.name} has a time limit of {eval_environment.time_limit} steps"
        _raise_no_effect("eval_max_steps", options.eval_max_steps, f"{limit}. Remove it")


class ChangedSetting(NamedTuple):
    """Setting that the user passed: name, value and default value."""

    name: str
    value: Any
    default: Any


def _list_changed_settings(spec: Spec, group: str) -> list[ChangedSetting]:
    """Return the settings in the group "config" or "network" that the user passed."""
    settings = {"config": spec.config, "network": spec.network}[group]
    values, defaults = vars(settings), vars(type(settings)())
    return [
        ChangedSetting(name, values[name], defaults[name])
        for name in list_changed_settings(spec, group)
    ]


def _check_network_settings(
    spec: Spec, environment: Environment | None, names: Collection[str] | None = None
) -> None:
    """Raise UsageError if a network setting and its default result in the same network.

    Only the settings in `names` are checked, or all that the user passed if it is None.
    """
    made = programs.make_environment(spec) if environment is None else environment
    make_network = get_algorithm_entry(spec.algorithm).make_network

    def trace_network(config: DataclassInstance) -> tuple[Space, ProgramSignature]:
        observed = programs.wrap_for_networks(dataclasses.replace(spec, network=config), made)
        return observed.observation_space, _program_signature(
            functools.partial(make_network, observed, config), jax.random.key(0)
        )

    trace_passed = functools.cache(functools.partial(trace_network, spec.network))
    for name, value, default in _list_changed_settings(spec, "network"):
        if names is not None and name not in names:
            continue
        # The default None means that the value follows from the space. Passing a value with the
        # same result is not an error.
        others = [default, *([()] if default is None and value else [])]
        networks = [dataclasses.replace(spec.network, **{name: other}) for other in others]
        if all(
            _is_same_result(trace_passed, functools.partial(trace_network, other))
            for other in networks
        ):
            _raise_no_effect(f"network.{name}", value, REMEDIES.get(name, "Remove it"))


def _check_entropy_settings(spec: Spec, environment: Environment) -> None:
    """Raise UsageError for the weight of an entropy that is constant.

    The loss, a metric, depends on the weight, so traced programs do not show that it has no effect
    on the policy.
    """
    network = vars(spec.network)
    if network.get("std") != "fixed" or network.get("squash", True):
        return
    if not _is_box(environment.action_space):
        return
    passed = {setting.name: setting.value for setting in _list_changed_settings(spec, "config")}
    for name, value in (passed | spec.sweep | spec.evolve).items():
        if name in ("entropy_coefficient", "entropy_final_fraction"):
            _raise_no_effect(
                f"config.{name}",
                value,
                "The entropy of actions with network.std fixed is constant. Remove the setting",
            )


def _is_box(space: Space) -> bool:
    """Return whether all parts of an action space are `Box`es."""
    parts = list_parts(space).values()
    return all(map(_is_box, parts)) if parts else isinstance(space, Box)


def _check_static_settings(spec: Spec, algorithm: Algorithm, environment: Environment) -> None:
    """Raise UsageError if a static setting and its default result in the same program."""
    traced = traced_field_names(type(spec.config))

    def trace_programs(config: Config) -> list[tuple[str, list[np.ndarray]]]:
        update = _make_update(dataclasses.replace(spec, config=config), algorithm, environment)
        signatures = (
            _program_signature(algorithm.init, jax.random.key(0), config),
            _program_signature(update.function, *update.arguments),
        )
        return [(signature.text, signature.constants) for signature in signatures]

    trace_passed = functools.cache(functools.partial(trace_programs, spec.config))
    for name, value, default in _list_changed_settings(spec, "config"):
        other = dataclasses.replace(spec.config, **{name: default})
        if (
            name in traced
            or isinstance(value, UserFunction)
            or name in ALWAYS_EFFECTIVE_SETTINGS
            or other.steps_per_update != spec.config.steps_per_update
        ):
            continue
        if _is_same_result(trace_passed, functools.partial(trace_programs, other)):
            _raise_no_effect(f"config.{name}", value, REMEDIES.get(name, "Remove it"))


def _check_traced_settings(spec: Spec, algorithm: Algorithm, environment: Environment) -> None:
    """Raise UsageError if no output of the algorithm depends on a traced setting."""
    traced = traced_field_names(type(spec.config))
    passed = {
        name: value
        for name, value, _ in _list_changed_settings(spec, "config")
        if name in traced and name != "total_updates"
    }
    passed |= spec.sweep | spec.evolve
    if not passed:
        return
    update = _make_update(spec, algorithm, environment)
    state = update.arguments[0]
    step, init = (
        _trace_function(update.function, *update.arguments),
        _trace_function(algorithm.init, jax.random.key(0), spec.config),
    )
    in_step, in_init = algorithm.config(step.inputs[0]), init.inputs[1]
    after_step, after_init = algorithm.config(step.outputs[0]), algorithm.config(init.outputs)
    trace_others = _make_other_tracer(algorithm, environment, state)
    for name, value in passed.items():
        if name in spec.evolve:
            acting_parts = _trace_simulator_acting(algorithm, environment, state)
            shapes_acting = any(
                _has_effect(x, getattr(algorithm.config(x.inputs[0]), name)) for x in acting_parts
            )
            if not shapes_acting and not _has_effect(
                step, getattr(in_step, name), (step.outputs[1], after_step)
            ):
                _raise_no_effect(
                    f"evolve {name}",
                    value,
                    "No update reads it, or only reported metrics depend on it. Remove it",
                )
        elif not (
            _has_effect(init, getattr(in_init, name), after_init)
            or _is_read_in_training(name, algorithm, step, trace_others)
        ):
            _raise_no_effect(f"config.{name}", value, REMEDIES.get(name, "Remove it"))


def _make_other_tracer(
    algorithm: Algorithm, environment: Environment, state: State
) -> Callable[[], list["TracedFunction"]]:
    """Return a function that traces the functions other than `init` and `step` at most once."""
    return functools.cache(lambda: list(_trace_other_functions(algorithm, environment, state)))


def _trace_other_functions(
    algorithm: Algorithm, environment: Environment, state: State
) -> Iterator["TracedFunction"]:
    """Yield traces of functions other than `init` and `step`: acting and state metrics."""
    key = jax.random.key(0)
    obs = (
        make_zeros(environment.observation_space, environment.num_agents)
        if is_on_host(environment)
        else jax.eval_shape(environment.reset, key)[1]
    )
    carry = jax.eval_shape(
        lambda state: algorithm.initial_carry(algorithm.acting_state(state)), state
    )

    def act(state: State, obs: PyTree, carry: Carry, key: jax.Array) -> tuple[PyTree, Carry]:
        return algorithm.act(algorithm.acting_state(state), obs, carry, key, False)

    yield _trace_function(act, state, obs, carry, key)
    yield _trace_function(algorithm.state_metrics, state)
    yield from _trace_simulator_acting(algorithm, environment, state)


def _trace_simulator_acting(
    algorithm: Algorithm, environment: Environment, state: State
) -> Iterator["TracedFunction"]:
    """Yield a trace of the acting function for host simulators, if the environment uses them."""
    rollouts = algorithm.rollouts
    if rollouts is None or not is_on_host(environment):
        return

    def explore(state: State, time: jax.Array) -> PyTree:
        actor = rollouts(state).actor
        return make_rollout_act_fn(algorithm)(state, actor.obs, actor.carry, actor.reset, time)

    yield _trace_function(explore, state, jax.ShapeDtypeStruct((), np.int32))


class Update(NamedTuple):
    """Update function of one member, and shapes of its arguments.

    Attributes:
        function: Function that performs one update.
        arguments: Shapes and types of the function's arguments, beginning with the state.
    """

    function: Callable[..., tuple[State, Metrics]]
    arguments: tuple[PyTree, ...]


def _make_update(spec: Spec, algorithm: Algorithm, environment: Environment) -> Update:
    """Return the update function of one member. In host simulators, it learns from a recording."""
    state = programs.abstract_member_state(spec, algorithm)
    if not (is_on_host(environment) and spec.acts_in_training):
        return Update(algorithm.step, (state,))
    single = dataclasses.replace(
        spec, sweep={}, evolve={}, options=dataclasses.replace(spec.options, seeds=1)
    )
    runner = SimulatorRunner(single, algorithm, algorithm, (environment, environment), state)
    return Update(runner.learn, (state, runner.abstract_recording))


class ProgramSignature(NamedTuple):
    """Signature of a traced function. Functions with equal signatures compute the same results.

    Attributes:
        text: Text of the jaxpr.
        structure: Pytree structure of the result.
        constants: Values of the constants in the jaxpr.
    """

    text: str
    structure: Any
    constants: list[np.ndarray]


def _program_signature(function: Callable[..., PyTree], *arguments: PyTree) -> ProgramSignature:
    """Trace a function and return its signature."""
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return ProgramSignature(
        text=str(program.jaxpr),
        structure=jax.tree.structure(shapes),
        constants=list(map(_constant_to_array, _iterate_constants(program))),
    )


def _iterate_constants(program: object) -> Iterator[np.ndarray | jax.Array]:
    """Yield the constants of a traced program and of the programs that it calls."""
    if isinstance(program, jex.ClosedJaxpr):
        yield from program.consts
        yield from _iterate_constants(program.jaxpr)
    elif isinstance(program, jex.Jaxpr):
        for equation in program.eqns:
            yield from _iterate_constants(list(equation.params.values()))
    elif isinstance(program, list | tuple):
        for part in program:
            yield from _iterate_constants(part)


def _constant_to_array(constant: np.ndarray | jax.Array | float) -> np.ndarray:
    is_key = isinstance(constant, jax.Array) and jax.dtypes.issubdtype(
        constant.dtype, jax.dtypes.prng_key
    )
    return np.asarray(jax.random.key_data(constant) if is_key else constant)


def _is_same_result(first: Callable[[], object], second: Callable[[], object]) -> bool:
    """Return whether two functions return equal values. False if one of them raises an exception.

    A function raises an exception, for example, if sizes are not divisible.
    """
    try:
        results = first(), second()
    except Exception:  # a user's function may raise anything
        return False
    leaves, others = (
        jax.tree.leaves(each, is_leaf=lambda x: not isinstance(x, tuple | list)) for each in results
    )
    return len(leaves) == len(others) and all(map(_is_equal, leaves, others))


def _is_equal(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray):
        return (
            isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and np.array_equal(left, right)
        )
    return bool(left == right)


class TracedFunction(NamedTuple):
    """Jaxpr of a function, with variables arranged like its arguments and result.

    Attributes:
        equations: Equations of the jaxpr.
        inputs: Arguments, with a jaxpr variable in place of each leaf.
        outputs: Result, with a jaxpr variable in place of each leaf.
    """

    equations: list[Any]
    inputs: PyTree
    outputs: PyTree


def _trace_function(function: Callable[..., PyTree], *arguments: PyTree) -> TracedFunction:
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    inputs = jax.tree.unflatten(jax.tree.structure(arguments), program.jaxpr.invars)
    # Literals are replaced by integers, because they are not hashable.
    outputs = [
        index if isinstance(x, jex.Literal) else x for index, x in enumerate(program.jaxpr.outvars)
    ]
    return TracedFunction(
        program.jaxpr.eqns, inputs, jax.tree.unflatten(jax.tree.structure(shapes), outputs)
    )


def _has_effect(
    traced: TracedFunction, setting_inputs: PyTree, ignored_outputs: PyTree = ()
) -> bool:
    """Return whether an output of a function depends on a setting.

    `setting_inputs` are the jaxpr variables of the setting. Outputs in `ignored_outputs` do not
    count.

    Every output of an equation is assumed to depend on all of its inputs. The result may therefore
    be a false positive, but never a false negative.
    """
    tainted = set(jax.tree.leaves(setting_inputs))
    for equation in traced.equations:
        if any(not isinstance(x, jex.Literal) and x in tainted for x in equation.invars):
            tainted.update(equation.outvars)
    outputs = list(jax.tree.leaves(traced.outputs))
    for x in jax.tree.leaves(ignored_outputs):
        outputs.pop(next(index for index, other in enumerate(outputs) if other is x))
    return any(x in tainted for x in outputs)
