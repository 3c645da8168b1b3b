"""From a specification to compiled functions: the only place that knows of members, devices and donation."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax import environments
from rollax.acting.evaluate import Episodes, evaluator
from rollax.acting.info import checked_reductions
from rollax.algorithm import Algorithm, Metrics
from rollax.checks.environment import check_contract, check_spaces
from rollax.environments.core import Environment, is_on_host
from rollax.environments.once import Kept
from rollax.environments.registry import is_of_suite
from rollax.environments.views import AgentId
from rollax.errors import UsageError
from rollax.host import compilation_cache, keys, sizes
from rollax.host.placing import Uncompiled, jitted, mesh, placed
from rollax.host.segments import segment
from rollax.host.settings import Spec, check_sizes, entry, fitted_to_host, naming_imports
from rollax.host.simulated import Simulated, check_rollouts, check_workers
from rollax.host.training import Training, in_phases
from rollax.populations import population
from rollax.populations.evolution import Generation, evolve, evolving
from rollax.scale import processes

LARGEST_CAPACITY = 256
CACHE_SECONDS = 1.0  # within which programs that the compilation cache has are there

_kept = Kept()  # by specification


class Program(NamedTuple):
    """What the host's loop calls. A population's states, metrics and episodes lead with (or, metrics, follow with) `[P]`."""

    algorithm: Algorithm  # of the state: of a single run, of a population, of one that evolves
    environment: Environment  # of evaluations
    num_members: int | None  # None: a single run, without the axis
    abstract_state: Any  # shapes, types and placement of the state
    init: Callable[[], Any]
    advance: Callable[[Any, int], tuple[Any, Metrics]]  # (state, updates) -> (state, metrics by update, of NumPy arrays)
    evaluate: Callable[[Any, int], Episodes]  # (state, updates done) -> episodes
    evolve: Callable[[Any], tuple[Any, Generation]] | None  # of a population that does
    capacity: int  # most updates in one call of advance
    training: Training  # the programs behind advance and evolve
    mesh: jax.sharding.Mesh | None
    simulated: Simulated | None = None  # the simulators of an environment on the host


def assemble(spec: Spec, environment: Any = None, make_network: Any = None) -> tuple[Algorithm, Environment]:
    """The algorithm in its environment. A run that used objects of the user's own needs them again.

    For the same objects they are the same: what checks have traced of them is not traced again to be compiled.

    Raises UsageError when they are missing or do not fit together.
    """
    given = environment, make_network  # held with what is made, so that their numbers stay their own
    made = lambda: (_assemble(spec, *given), given)  # noqa: E731
    return _kept.of(spec, ("assembled", id(environment), id(make_network)), made)[0]


def _assemble(spec: Spec, environment: Any, make_network: Any) -> tuple[Algorithm, Environment]:
    kinds = entry(spec.algorithm)
    if environment is None:
        if spec.own_environment:
            raise UsageError(f"this run used an environment of its own ({spec.environment}): pass it again as environment=...")
        environment = environment_of(spec)
    environment = _seen(spec, environment)
    if make_network is None:
        if not dataclasses.is_dataclass(spec.network):
            raise UsageError("this run used a network of its own: pass it again as network=...")
        make_network = functools.partial(kinds.make_network, environment, spec.network)
    algorithm = kinds.make(environment, make_network)
    init, step = (jax.jit(function, inline=True) for function in (algorithm.init, algorithm.step))  # to be traced once
    return algorithm._replace(init=init, step=step), environment


def fitted(spec: Spec, environment: Any = None) -> Spec:
    """The specification with what follows from where its environment runs. Raises UsageError where that cannot be made."""
    made = environment_of(spec) if environment is None else environment
    return fitted_to_host(spec) if is_on_host(made) else spec


def environment_of(spec: Spec, evaluated: bool = False) -> Environment:
    """The environment that a specification names, or that of its evaluations, made once. Raises UsageError where it cannot."""
    arguments = spec.arguments | (spec.eval_arguments if evaluated else {})
    return _kept.of(spec, ("environment", evaluated), lambda: _made(spec, arguments))


def _made(spec: Spec, arguments: dict[str, Any]) -> Environment:
    with naming_imports(spec.imports):
        try:
            return environments.make(spec.environment, **arguments)
        except (UsageError, ImportError):
            raise
        except Exception as error:  # a user's factory may raise anything
            given = f" with {arguments}" if arguments else ""
            raise UsageError(f"making {spec.environment}{given} fails with {type(error).__name__}: {error}") from error


def _seen(spec: Spec, environment: Environment) -> Environment:
    """The environment as the run's networks see it."""
    return AgentId(environment) if getattr(spec.network, "agent_id", False) else environment


def _evaluated(spec: Spec) -> Environment:
    return _kept.of(spec, "evaluated", lambda: _seen(spec, environment_of(spec, evaluated=bool(spec.eval_arguments))))


def evaluation_environment(spec: Spec, environment: Environment | None) -> Environment:
    """The environment of evaluations: with arguments of its own where the run has them, else that of the run.

    Raises UsageError when it cannot be made, or when its observations or actions are others.
    """
    if environment is not None and not spec.eval_arguments:
        return environment
    try:
        other = _evaluated(spec)
    except UsageError as error:
        raise UsageError(f"in evaluations, with eval_arguments {spec.eval_arguments}: {error}") from error
    if environment is not None:
        for what in ("observation_space", "action_space", "num_agents"):
            if getattr(other, what) != getattr(environment, what):
                raise UsageError(f"eval_arguments {spec.eval_arguments} change the {what}: leave those out that do")
    return other


def abstract(spec: Spec, algorithm: Algorithm) -> Any:
    """Shapes and types of one member's state. Raises UsageError for sizes that do not divide, before anything is compiled."""
    try:
        return jax.eval_shape(algorithm.init, jax.eval_shape(lambda: jax.random.key(0)), spec.config)
    except (ValueError, OverflowError, NotImplementedError) as error:  # the latter two of sizes beyond what can be indexed
        if isinstance(error, UsageError):
            raise
        raise UsageError(str(error)) from error


def check_environment(spec: Spec, environment: Environment | None) -> None:
    """Raises UsageError when the run's environment, or its own that is given, breaks the contract of environments."""
    made = environment_of(spec) if environment is None else environment
    if is_on_host(made):
        return check_spaces(made)  # it was looked at when it was made, and keeps gymnasium's contract
    with compilation_cache.used():
        is_tested = environment is None and is_of_suite(spec.environment)
        check_contract(made, is_tested)


def check(spec: Spec, environment: Any = None, make_network: Any = None) -> None:
    """Raises UsageError when the parts of a run, its sizes or its devices do not fit together. Compiles nothing large."""
    check_sizes(spec)
    own = environment is not None or make_network is not None
    is_population = spec.num_members > 1
    over = mesh(spec, is_population)
    in_mesh = jax.set_mesh(over) if over is not None and not is_population else contextlib.nullcontext()
    with compilation_cache.used(), sizes.tracing(own, "the network and the first state"), in_mesh:
        algorithm, environment = assemble(spec, environment, make_network)
        shown = evaluation_environment(spec, environment)
        check_workers(environment, spec.options.env_workers)
        if processes.count() > 1:
            _check_processes(spec, is_on_host(environment))
        if is_on_host(environment):
            check_rollouts(spec.algorithm, algorithm, environment, int(spec.options.devices))
            checked_reductions(shown, spec.options.info)  # of those that compile, their evaluation says so
        one = abstract(spec, algorithm)
    sizes.check_state(spec, one, algorithm)
    if is_on_host(environment):
        return
    if not is_population:
        placed(algorithm, one, over, is_population)
    sizes.check_update(spec, algorithm, one, environment, own)
    sizes.check_evaluation(_evaluator(spec, algorithm, shown), one, shown, spec.options.eval_episodes, spec.num_members, own)


def _check_processes(spec: Spec, is_on_host: bool) -> None:
    """Raises UsageError for what several processes cannot do together."""
    if is_on_host:
        raise UsageError(f"{spec.environment} is a simulator on the host: --distributed is for environments that are compiled")
    if spec.opponents:
        raise UsageError("--opponents and --distributed do not go together: train against opponents in one process")
    if spec.options.devices != jax.device_count():
        raise UsageError(
            f"devices ({spec.options.devices}) must be all that the {processes.count()} processes have ({jax.device_count()}): "
            "leave --devices out"
        )


def compile_program(
    spec: Spec, environment: Any = None, make_network: Any = None, *, begins: bool = True, evaluates: bool = True
) -> Program:
    """Traces and compiles what a run needs, the large programs side by side; `begins`: also that of its first state;
    `evaluates`: also that of evaluations.

    Where the compilation cache has those of the first evaluation, that of an update is left for later (`Training`).
    """
    compilation_cache.use()
    algorithm, environment = assemble(spec, environment, make_network)
    shown = evaluation_environment(spec, environment)
    is_population = spec.num_members > 1
    parts = _of_population(spec, algorithm, shown) if is_population else _of_one(spec, algorithm, shown)
    longest = max(spec.updates_per_line, LARGEST_CAPACITY // spec.updates_per_line * spec.updates_per_line)
    capacity = min(longest, max(1, spec.total_updates))
    if is_on_host(environment):
        return _on_host(spec, algorithm, parts, (environment, shown), capacity)
    compiled = jitted(spec, parts, segment(parts.algorithm, capacity))
    state, where, all_have, shared = compiled.placed, compiled.where, compiled.all_have, compiled.shared
    started, run_key, config = time.monotonic(), shared(parts.run_key), shared(parts.config)

    def compile_run() -> tuple[Any, dict[str, float]]:
        with compiled.in_mesh():
            return in_phases(compiled.run, state, np.int32(0))

    training = Training(compile_run, lambda: _compile_evolve(spec, population(algorithm), state, where, all_have))
    wanted = {"begin": (compiled.begin, run_key, config)} if begins else {}
    wanted |= {"evaluate": (compiled.evaluate, state, shared(parts.eval_key))} if evaluates else {}
    lowered = {name: function.lower(*arguments) for name, (function, *arguments) in wanted.items()}
    made: dict[str, Any] = _compiled(lowered, training)
    begin, evaluate = made.get("begin", compiled.begin), made.get("evaluate", compiled.evaluate)
    training.compile_seconds = time.monotonic() - started

    def init() -> Any:
        state = begin(run_key, config)
        return state if where is None or all_have is not None else jax.device_put(state, where)

    def advance(state: Any, num_updates: int) -> tuple[Any, Metrics]:
        training.make()
        state, metrics = training.run(state, np.int32(num_updates))
        return state, jax.tree.map(lambda rows: np.asarray(rows)[:num_updates], metrics)

    def evaluate_at(state: Any, updates: int) -> Episodes:
        return jax.device_get(evaluate(state, shared(_eval_key(spec, parts.eval_key, updates))))

    def evolved(state: Any) -> tuple[Any, Generation]:
        training.make()
        return training.evolve(state)

    num_members = spec.num_members if is_population else None
    functions = init, advance, evaluate_at, evolved if spec.updates_per_generation else None
    return Program(parts.algorithm, shown, num_members, compiled.placed, *functions, capacity, training, compiled.over)


def _on_host(
    spec: Spec, algorithm: Algorithm, parts: "Uncompiled", places: tuple[Environment, Environment], capacity: int
) -> Program:
    """What a run needs whose environments are simulators on the host."""
    acts = Simulated(spec, algorithm, parts.algorithm, places, parts.abstract)
    many = spec.num_members > 1
    begin = jax.jit(parts.algorithm.init)
    evolving_members = _compile_evolve(spec, population(algorithm), parts.abstract, None, None)
    training = Training(lambda: (acts.compile(capacity), {}), lambda: evolving_members)

    def evaluate(state: Any, updates: int) -> Episodes:
        key = _eval_key(spec, parts.eval_key, updates)
        return acts.evaluate(state, list(key) if many else [key])

    def advance(state: Any, num_updates: int) -> tuple[Any, Metrics]:
        training.make()
        return acts.advance(state, num_updates)

    functions = functools.partial(begin, parts.run_key, parts.config), advance, evaluate, evolving_members
    what = parts.algorithm, places[1], spec.num_members if many else None, parts.abstract
    return Program(*what, *functions, capacity, training, None, acts)


def _eval_key(spec: Spec, key: jax.Array, updates: int) -> jax.Array:
    """The key of an evaluation, of a population `[P]`: the same each time unless evaluations have fresh starts."""
    if not spec.options.eval_fresh:
        return key
    return (jax.vmap(jax.random.fold_in, (0, None)) if spec.num_members > 1 else jax.random.fold_in)(key, updates)


def _compiled(lowered: dict[str, jax.stages.Lowered], training: Training) -> dict[str, jax.stages.Compiled]:
    """These programs, compiled side by side, and beside those of training if the compilation cache does not have them."""
    with ThreadPoolExecutor(max(1, len(lowered))) as threads:
        compiling = {name: threads.submit(program.compile) for name, program in lowered.items()}
        if wait(compiling.values(), CACHE_SECONDS).not_done:
            training.make()
        return {name: program.result() for name, program in compiling.items()}


def _evaluator(spec: Spec, algorithm: Algorithm, shown: Environment) -> Callable[[Any, jax.Array], Episodes]:
    options = spec.options
    steps, greedy = eval_steps(shown, spec), not options.eval_stochastic
    return evaluator(shown, algorithm, options.eval_episodes, steps, greedy, info=options.info)


def _of_one(spec: Spec, algorithm: Algorithm, shown: Environment) -> Uncompiled:
    (member,) = spec.members()
    seed, evaluate = int(member["seed"]), _evaluator(spec, algorithm, shown)
    run_key, eval_key = keys.training(seed), keys.evaluations(seed)
    return Uncompiled(algorithm, evaluate, _config_of(spec, member), run_key, eval_key, abstract(spec, algorithm))


def _of_population(spec: Spec, algorithm: Algorithm, shown: Environment) -> Uncompiled:
    abstract(spec, algorithm)  # says which sizes do not divide
    members = spec.members()
    seeds = [int(member["seed"]) for member in members]
    running, evaluate = population(algorithm), jax.vmap(_evaluator(spec, algorithm, shown))
    config = jax.tree.map(lambda *leaves: jnp.asarray(leaves), *(_config_of(spec, member) for member in members))
    run_key, eval_key = _of_each(keys.training, seeds), _of_each(keys.evaluations, seeds)
    if spec.evolve:
        running, evaluate = evolving(running, spec.evolve), _of_members(evaluate)
        run_key = run_key, _of_each(keys.children, seeds)
    shapes = jax.tree.map(lambda key: jax.ShapeDtypeStruct(key.shape, key.dtype), run_key)
    return Uncompiled(running, evaluate, config, run_key, eval_key, jax.eval_shape(running.init, shapes, config))


def _of_each(key: Callable[[int], jax.Array], seeds: list[int]) -> jax.Array:
    """The keys of several seeds. To stack keys themselves counts as using them up, by JAX's `jax_debug_key_reuse`."""
    return jax.random.wrap_key_data(jnp.stack([jax.random.key_data(key(seed)) for seed in seeds]))


def _of_members(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a population's state as one of a population that evolves."""
    return lambda state, *arguments: function(state.members, *arguments)


def _compile_evolve(
    spec: Spec, members: Algorithm, placed: Any, where: Any, all_have: Any
) -> Callable[[Any], tuple[Any, Generation]] | None:
    """One generation of a population that evolves. Across devices, members come from wherever their parents are."""
    if not spec.updates_per_generation:
        return None
    places = None if where is None else (where, all_have)
    jitted = jax.jit(lambda state: evolve(members, state, spec.evolve, spec.method), donate_argnums=0, out_shardings=places)
    compiled = jitted.lower(placed).compile()

    def run(state: Any) -> tuple[Any, Generation]:
        state, generation = compiled(state)
        return state, jax.device_get(generation)

    return run


def abstract_population(spec: Spec, algorithm: Algorithm) -> Any:
    """Shapes and types of a population's state."""
    count, key = spec.num_members, jax.eval_shape(jax.random.key, 0)
    keys = jax.ShapeDtypeStruct((count,), key.dtype)
    config = jax.tree.map(lambda _: jax.ShapeDtypeStruct((count,), jnp.float32), spec.config)
    running = population(algorithm)
    if spec.evolve:
        return jax.eval_shape(evolving(running, spec.evolve).init, (keys, keys), config)
    return jax.eval_shape(running.init, keys, config)


def eval_steps(environment: Environment, spec: Spec) -> int:
    """The most steps an evaluated episode may take: the environment's own limit where it has one."""
    limit = getattr(environment, "time_limit", None)
    return spec.options.eval_max_steps if limit is None else limit


def _config_of(spec: Spec, member: dict[str, float]) -> Any:
    swept = {name: value for name, value in member.items() if name != "seed"}
    return dataclasses.replace(spec.config, total_updates=float(spec.total_updates), **swept)
