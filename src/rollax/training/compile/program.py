"""Compilation of a specification into the functions that the training loop calls.

Only this package handles populations, devices and buffer donation.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any, NamedTuple

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np

from rollax.acting.evaluation import Episodes
from rollax.acting.opponent_pool import PoolRuns
from rollax.algorithm import Algorithm, Metrics
from rollax.config import CUSTOM
from rollax.environments import registry
from rollax.environments.capabilities import is_on_host
from rollax.environments.environment import Environment
from rollax.environments.trace_cache import ObjectCache
from rollax.environments.wrappers import AgentId, FrameStack
from rollax.errors import UsageError, describe_error
from rollax.populations import population
from rollax.populations.evolution import Generation, evolve, evolving
from rollax.populations.self_play import self_play
from rollax.training.checkpoints import fingerprints
from rollax.training.compile import background, cache, keys
from rollax.training.compile.evaluators import make_run_evaluator
from rollax.training.compile.placement import (
    JittedFunctions,
    RunFunctions,
    jit_functions,
)
from rollax.training.compile.segments import segment
from rollax.training.compile.update_program import TrainingPrograms, compile_with_timing
from rollax.training.compile.varied_parameters import (
    check_traced_parameters,
    fixed_environment,
    follow_curriculum,
    randomize_episodes,
    with_last_parameters,
)
from rollax.training.simulators.runner import SimulatorRunner
from rollax.training.spec import Spec, adapt_to_host, explain_missing_imports, get_algorithm_entry
from rollax.types import NetworkFn, PyTree, SettingValues, State

MAX_SEGMENT_CAPACITY = 256
CACHE_READ_SECONDS = 1.0  # time in which programs can be read from the compilation cache

_objects_by_spec = ObjectCache()


class Program(NamedTuple):
    """Compiled functions of a run, and the algorithm and environment that they use.

    For a population of P members, states and episodes have a leading axis [P], and metrics have
    shape [updates, P].

    Attributes:
        algorithm: Algorithm, vectorized over members for a population.
        environment: Environment of evaluations.
        num_members: Number of members P, or None for a single run.
        abstract_state: Shapes, types and shardings of the state.
        init: Function that returns the initial state.
        advance: Training function. It maps `(state, number of updates)` to the next state and the
            metrics of each update as NumPy arrays.
        evaluate: Evaluation function. It maps `(state, number of completed updates)` to episodes.
        evolve: Function that maps a state to `(next state, generation)`, or None if the run does
            not evolve.
        capacity: Maximum number of updates per call of `advance`.
        training: Compiled programs that `advance` and `evolve` call.
        mesh: Device mesh, or None for one device of one process.
        simulators: Simulators on the host, or None for a compiled environment.
    """

    algorithm: Algorithm
    environment: Environment
    num_members: int | None
    abstract_state: Any
    init: Callable[[], Any]
    advance: Callable[[Any, int], tuple[Any, Metrics]]
    evaluate: Callable[[Any, int], Episodes]
    evolve: Callable[[Any], tuple[Any, Generation]] | None
    capacity: int
    training: TrainingPrograms
    mesh: jax.sharding.Mesh | None
    simulators: SimulatorRunner | None = None


def build_algorithm_and_environment(
    spec: Spec, environment: Environment | None = None, make_network: NetworkFn | None = None
) -> tuple[Algorithm, Environment]:
    """Build the algorithm and the environment of a run.

    The result is cached for the same objects, so functions that checks have traced are not traced
    again for compilation.

    Args:
        spec: Specification of the run.
        environment: Environment object, or None if the environment is made from its id.
        make_network: Function that maps a random key to a network, or None if settings describe the
            network.

    Returns:
        The algorithm, and the environment after `wrap_for_networks`.

    Raises:
        UsageError: If the run needs a custom environment or network that is not passed, or if the
            algorithm, environment and network are incompatible.
    """
    # The cache holds the objects too, so that their ids are not reused.
    objects = (environment, make_network)

    def build():
        return (_build_algorithm_and_environment(spec, *objects), objects)

    return _objects_by_spec.get_or_make(
        spec, ("assembled", id(environment), id(make_network)), build
    )[0]


def _build_algorithm_and_environment(
    spec: Spec, environment: Environment | None, make_network: NetworkFn | None
) -> tuple[Algorithm, Environment]:
    entry = get_algorithm_entry(spec.algorithm)
    if environment is None:
        if spec.own_environment:
            raise UsageError(
                f"This run used a custom environment ({spec.environment}). Pass it again as "
                "environment=..."
            )
        environment = make_environment(spec)
    pool_runs = environment if isinstance(environment, PoolRuns) else None
    plain = environment if pool_runs is None else pool_runs.env
    environment = wrap_for_networks(spec, randomize_episodes(spec, plain))
    if make_network is None:
        if not dataclasses.is_dataclass(spec.network):
            raise UsageError("This run used a custom network. Pass it again as network=...")
        make_network = functools.partial(entry.make_network, environment, spec.network)
    network_fn, data = make_network, spec.demonstrations.data
    keywords = {} if data is None else {"demonstrations": data}

    def make(environment: Environment) -> Algorithm:
        return entry.make(environment, network_fn, **keywords)

    if spec.options.opponent_pool:
        make = functools.partial(self_play, make, config=spec.pool_config, other_runs=pool_runs)
    algorithm = follow_curriculum(spec, make, environment)
    # Jitted functions are traced only once.
    init, step = (jax.jit(function, inline=True) for function in (algorithm.init, algorithm.step))
    algorithm = algorithm._replace(init=init, step=step)
    if spec.curriculum:
        check_traced_parameters(spec, algorithm, abstract_member_state(spec, algorithm))
    return algorithm, environment


def adapt_to_environment(spec: Spec, environment: Environment | None = None) -> Spec:
    """Adapt a specification if its environment is a simulator on the host.

    Args:
        spec: Specification of the run.
        environment: Environment object, or None if the environment is made from its id.

    Returns:
        The adapted specification, or `spec` itself for a compiled environment.

    Raises:
        UsageError: If the environment cannot be made.
    """
    made = make_environment(spec) if environment is None else environment
    return adapt_to_host(spec) if is_on_host(made) else spec


def make_environment(spec: Spec, is_evaluation: bool = False) -> Environment:
    """Return the environment of a specification. It is made once and then cached.

    Args:
        spec: Specification of the run.
        is_evaluation: Whether to apply the arguments for evaluations (`eval_arguments`).

    Raises:
        UsageError: If the environment cannot be made.
    """
    arguments = spec.arguments | (spec.eval_arguments if is_evaluation else {})
    return _objects_by_spec.get_or_make(
        spec, ("environment", is_evaluation), lambda: _make_known_environment(spec, arguments)
    )


def _make_known_environment(spec: Spec, arguments: SettingValues) -> Environment:
    with explain_missing_imports(spec.imports):
        try:
            return registry.make_without_import(spec.environment, arguments)
        except (UsageError, ImportError):
            raise
        except Exception as error:  # a user's factory may raise anything
            given = f" with {arguments}" if arguments else ""
            raise UsageError(
                f"Making {spec.environment}{given} failed with {describe_error(error)}"
            ) from error


def with_custom_objects(
    spec: Spec, environment: Environment | None, network: NetworkFn | None
) -> Spec:
    """Return the specification with the passed environment and network marked as custom."""
    if environment is not None:
        spec = dataclasses.replace(spec, own_environment=True, arguments={}, eval_arguments={})
    return spec if network is None else dataclasses.replace(spec, network=CUSTOM)


def environment_fingerprint(spec: Spec, environment: Environment | None = None) -> dict[str, Any]:
    """Return the fingerprint of the environment of a run.

    Args:
        spec: Specification of the run.
        environment: Environment object, or None if the environment is made from its id.
    """
    is_object = environment is not None
    return fingerprints.fingerprint(environment if is_object else make_environment(spec), is_object)


def wrap_for_networks(spec: Spec, environment: Environment) -> Environment:
    """Return the environment, with stacked frames and agent ids if the run uses them.

    Raises:
        UsageError: If frames are stacked or agent ids are added in a simulator on the host.
    """
    if spec.options.frame_stack > 1:
        if is_on_host(environment):
            raise UsageError(
                f"frame_stack ({spec.options.frame_stack}) must be 1 in {environment.name}, which "
                "runs on the host. Stack frames in the simulator, for example with --env.stack."
            )
        environment = FrameStack(environment, spec.options.frame_stack)
    if not getattr(spec.network, "agent_id", False):
        return environment
    if is_on_host(environment):
        raise UsageError(
            f"network.agent_id must be off in {environment.name}, which runs on the host. Add the "
            "index of each agent to its observation in the environment, or use --config.sharing "
            "none."
        )
    return AgentId(environment)


def _make_evaluation_environment(spec: Spec) -> Environment:
    return _objects_by_spec.get_or_make(
        spec,
        "evaluated",
        lambda: with_last_parameters(
            spec,
            wrap_for_networks(
                spec, make_environment(spec, is_evaluation=bool(spec.eval_arguments))
            ),
            except_names=spec.eval_arguments,
        ),
    )


def evaluation_environment(spec: Spec, environment: Environment | None) -> Environment:
    """Return the environment of evaluations.

    Args:
        spec: Specification of the run.
        environment: Environment from `build_algorithm_and_environment`, or None if it is made from
            its id.

    Returns:
        The environment made with `eval_arguments`. If `eval_arguments` is empty, `environment` with
        fixed parameters.

    Raises:
        UsageError: If the environment of evaluations cannot be made, or its spaces or number of
            agents differ from those of `environment`.
    """
    if environment is not None:
        environment = fixed_environment(spec, environment)
        if not spec.eval_arguments:
            return environment
    try:
        other = _make_evaluation_environment(spec)
    except UsageError as error:
        raise UsageError(
            f"In evaluations, with eval_arguments {spec.eval_arguments}: {error}"
        ) from error
    if environment is not None:
        for what in ("observation_space", "action_space", "num_agents"):
            if getattr(other, what) != getattr(environment, what):
                raise UsageError(
                    f"eval_arguments must not change the {what}, got {spec.eval_arguments}. Remove "
                    "those that do."
                )
    return other


def abstract_member_state(spec: Spec, algorithm: Algorithm) -> Any:
    """Return the shapes and types of one member's state, without compilation.

    Args:
        spec: Specification of the run.
        algorithm: Algorithm of the run.

    Raises:
        UsageError: If sizes in the settings are not divisible or are too large.
    """
    try:
        return jax.eval_shape(
            algorithm.init, jax.eval_shape(lambda: jax.random.key(0)), spec.config
        )
    # Arrays that are too large to be indexed raise the last two.
    except (ValueError, OverflowError, NotImplementedError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(str(error)) from error


def compile_program(
    spec: Spec,
    environment: Environment | None = None,
    make_network: NetworkFn | None = None,
    *,
    should_initialize: bool = True,
    should_evaluate: bool = True,
) -> Program:
    """Trace and compile the programs of a run in parallel.

    If the programs for the initial state and evaluations are in the compilation cache, the training
    programs are compiled later (see `TrainingPrograms`).

    Args:
        spec: Specification of the run.
        environment: Environment object, or None if the environment is made from its id.
        make_network: Function that maps a random key to a network, or None if settings describe the
            network.
        should_initialize: Whether to compile the program for the initial state.
        should_evaluate: Whether to compile the program for evaluations.

    Returns:
        The program.

    Raises:
        UsageError: If the algorithm, environment, network or settings are incompatible.
    """
    cache.enable()
    algorithm, environment = build_algorithm_and_environment(spec, environment, make_network)
    shown = evaluation_environment(spec, environment)
    is_population = spec.num_members > 1
    make_functions = population_functions if is_population else _single_run_functions
    functions = make_functions(spec, algorithm, shown)
    capacity = _segment_capacity(spec)
    if is_on_host(environment):
        return _compile_host_program(spec, algorithm, functions, (environment, shown), capacity)
    compiled = jit_functions(spec, functions, segment(functions.algorithm, capacity))
    state, replicate = compiled.abstract_state, compiled.replicate
    training = _make_training_programs(spec, algorithm, compiled)
    started = time.monotonic()
    run_key, config = replicate(functions.run_key), replicate(functions.config)
    lowered = {}
    if should_initialize:
        lowered["init"] = compiled.init.lower(run_key, config)
    if should_evaluate:
        lowered["evaluate"] = compiled.evaluate.lower(state, replicate(functions.eval_key))
    ready = _compile_lowered(lowered, training)
    begin = ready["init"] if should_initialize else compiled.init
    evaluate_state = ready["evaluate"] if should_evaluate else compiled.evaluate
    training.compile_seconds = time.monotonic() - started

    def init() -> Any:
        state = background.execute(begin, run_key, config)
        is_placed = compiled.state_sharding is None or compiled.replicated_sharding is not None
        return state if is_placed else jax.device_put(state, compiled.state_sharding)

    def advance(state: State, num_updates: int) -> tuple[State, Metrics]:
        training.make()
        state, metrics = background.execute(training.run, state, np.int32(num_updates))
        return state, _first_rows(metrics, num_updates)

    def evaluate(state: State, updates: int) -> Episodes:
        key = replicate(_evaluation_key(spec, functions, updates))
        return jax.device_get(background.execute(evaluate_state, state, key))

    def evolve_members(state: State) -> tuple[State, Generation]:
        training.make()
        return training.evolve(state)

    return Program(
        algorithm=functions.algorithm,
        environment=shown,
        num_members=spec.num_members if is_population else None,
        abstract_state=state,
        init=init,
        advance=advance,
        evaluate=evaluate,
        evolve=evolve_members if spec.updates_per_generation else None,
        capacity=capacity,
        training=training,
        mesh=compiled.mesh,
    )


def _first_rows(metrics: Metrics, num_updates: int) -> Metrics:
    """Return the metrics of the first updates as NumPy arrays.

    All arrays are requested from the device before the first one is awaited.
    """
    return jax.tree.map(lambda rows: rows[:num_updates], jax.device_get(metrics))


def _segment_capacity(spec: Spec) -> int:
    """Return the maximum number of updates per call.

    It is a multiple of the updates per metric line, or the length of a shorter run.
    """
    line = spec.updates_per_line
    longest = max(line, MAX_SEGMENT_CAPACITY // line * line)
    return min(longest, max(1, spec.total_updates))


def _make_training_programs(
    spec: Spec, algorithm: Algorithm, compiled: JittedFunctions
) -> TrainingPrograms:
    """Return the programs for updates and for generations. Nothing is compiled yet."""

    def compile_run() -> tuple[Any, dict[str, float]]:
        with compiled.mesh_context_fn():
            return compile_with_timing(compiled.run, compiled.abstract_state, np.int32(0))

    def compile_evolve() -> Any:
        return _compile_evolve(
            spec,
            population(algorithm),
            compiled.abstract_state,
            compiled.state_sharding,
            compiled.replicated_sharding,
        )

    return TrainingPrograms(compile_run, compile_evolve)


def _compile_host_program(
    spec: Spec,
    algorithm: Algorithm,
    functions: RunFunctions,
    environments: tuple[Environment, Environment],
    capacity: int,
) -> Program:
    """Compile the functions of a run with simulators on the host.

    `environments` are those of training and evaluation, and `capacity` is the maximum number of
    updates per call.
    """
    runner = SimulatorRunner(
        spec, algorithm, functions.algorithm, environments, functions.abstract_state
    )
    has_members = spec.num_members > 1
    begin = jax.jit(functions.algorithm.init)
    evolving_members = _compile_evolve(
        spec, population(algorithm), functions.abstract_state, None, None
    )
    segments = jax.jit(segment(functions.algorithm, capacity), donate_argnums=0)

    def compile_run() -> tuple[Any, dict[str, float]]:
        if spec.acts_in_training:
            return runner.compile(capacity), {}
        return compile_with_timing(segments, functions.abstract_state, np.int32(0))

    training = TrainingPrograms(compile_run, lambda: evolving_members)

    def evaluate(state: State, updates: int) -> Episodes:
        key = _evaluation_key(spec, functions, updates)
        return runner.evaluate(state, list(key) if has_members else [key])

    def advance(state: State, num_updates: int) -> tuple[State, Metrics]:
        training.make()
        if spec.acts_in_training:
            return runner.advance(state, num_updates)
        state, metrics = background.execute(training.run, state, np.int32(num_updates))
        return state, _first_rows(metrics, num_updates)

    init = functools.partial(background.execute, begin, functions.run_key, functions.config)
    return Program(
        algorithm=functions.algorithm,
        environment=environments[1],
        num_members=spec.num_members if has_members else None,
        abstract_state=functions.abstract_state,
        init=init,
        advance=advance,
        evaluate=evaluate,
        evolve=evolving_members,
        capacity=capacity,
        training=training,
        mesh=None,
        simulators=runner,
    )


def _evaluation_key(spec: Spec, functions: RunFunctions, updates: int) -> jax.Array:
    """Return the key of an evaluation after some updates, or keys `[P]` for a population."""
    return keys.key_of_evaluation(functions.eval_key, updates, spec.options.eval_fresh)


def _compile_lowered(
    lowered: dict[str, jax.stages.Lowered], training: TrainingPrograms
) -> dict[str, jax.stages.Compiled]:
    """Compile programs in parallel. If they are not cached, also compile the training programs."""
    compiling = {name: background.submit(program.compile) for name, program in lowered.items()}
    if wait(compiling.values(), CACHE_READ_SECONDS).not_done:
        training.make()
    return {name: program.result() for name, program in compiling.items()}


def _single_run_functions(
    spec: Spec, algorithm: Algorithm, eval_environment: Environment
) -> RunFunctions:
    (member,) = spec.members()
    seed = int(member["seed"])
    return RunFunctions(
        algorithm=algorithm,
        evaluate=make_run_evaluator(spec, algorithm, eval_environment),
        config=_member_config(spec, member),
        run_key=keys.training_key(seed),
        eval_key=keys.evaluation_key(_evaluation_seed(spec, seed)),
        abstract_state=abstract_member_state(spec, algorithm),
    )


def population_functions(
    spec: Spec, algorithm: Algorithm, eval_environment: Environment
) -> RunFunctions:
    """Return the functions of a population, vectorized over its members.

    Args:
        spec: Specification of the run.
        algorithm: Algorithm of one member.
        eval_environment: Environment of evaluations.

    Raises:
        UsageError: If sizes in the settings are not divisible or are too large.
    """
    abstract_member_state(spec, algorithm)
    members = spec.members()
    seeds = [int(member["seed"]) for member in members]
    running = population(algorithm)
    evaluate = jax.vmap(make_run_evaluator(spec, algorithm, eval_environment))
    config = jax.tree.map(
        lambda *leaves: jnp.asarray(leaves), *(_member_config(spec, member) for member in members)
    )
    run_key: Any = keys.stack_keys(keys.training_key, seeds)
    if spec.evolve:
        running = evolving(running, spec.evolve, spec.evolve_metric)
        evaluate = _apply_to_members(evaluate)
        run_key = run_key, keys.stack_keys(keys.offspring_key, seeds)
    shapes = jax.tree.map(lambda key: jax.ShapeDtypeStruct(key.shape, key.dtype), run_key)
    return RunFunctions(
        algorithm=running,
        evaluate=evaluate,
        config=config,
        run_key=run_key,
        eval_key=keys.stack_keys(keys.evaluation_key, [_evaluation_seed(spec, s) for s in seeds]),
        abstract_state=jax.eval_shape(running.init, shapes, config),
    )


def _evaluation_seed(spec: Spec, seed: int) -> int:
    """Return the seed of the evaluations of a member, whose seed is `seed`."""
    return seed if spec.options.eval_seed is None else spec.options.eval_seed


def _apply_to_members(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Return `function` applied to `state.members` of an evolving population's state."""
    return lambda state, *arguments: function(state.members, *arguments)


def _compile_evolve(
    spec: Spec,
    algorithm: Algorithm,
    abstract_state: State,
    state_sharding: PyTree,
    replicated_sharding: jax.sharding.Sharding | None,
) -> Callable[[State], tuple[State, Generation]] | None:
    """Compile one generation of an evolving population, or return None if the run does not evolve.

    With several devices, a replaced member is copied from the device of its parent.
    """
    if not spec.updates_per_generation:
        return None
    out_shardings = None if state_sharding is None else (state_sharding, replicated_sharding)
    jitted = jax.jit(
        lambda state: evolve(algorithm, state, spec.evolve, spec.method),
        donate_argnums=0,
        out_shardings=out_shardings,
    )
    compiled = background.compile_for_arguments(jitted, abstract_state)

    def run(state: State) -> tuple[State, Generation]:
        state, generation = background.execute(compiled, state)
        return state, jax.device_get(generation)

    return run


def abstract_population_state(spec: Spec, algorithm: Algorithm) -> Any:
    """Return the shapes and types of a population's state, without compilation.

    Args:
        spec: Specification of the run.
        algorithm: Algorithm of one member.
    """
    count = spec.num_members
    keys = jax.ShapeDtypeStruct((count,), jax.eval_shape(jax.random.key, 0).dtype)
    config = jax.tree.map(lambda _: jax.ShapeDtypeStruct((count,), jnp.float32), spec.config)
    running = population(algorithm)
    if not spec.evolve:
        return jax.eval_shape(running.init, keys, config)
    running = evolving(running, spec.evolve, spec.evolve_metric)
    return jax.eval_shape(running.init, (keys, keys), config)


def _member_config(spec: Spec, member: dict[str, float]) -> Any:
    swept = {name: value for name, value in member.items() if name != "seed"}
    return dataclasses.replace(spec.config, total_updates=float(spec.total_updates), **swept)
