"""Placement of the functions and arrays of a run on devices and processes."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from rollax.acting.evaluation import Episodes
from rollax.algorithm import Algorithm, Metrics
from rollax.distributed import processes, sharding
from rollax.errors import UsageError
from rollax.training.spec import Spec
from rollax.types import PyTree, State


class RunFunctions(NamedTuple):
    """Functions of a run and their initial arguments.

    For a population of P members, keys, config, states and episodes have a leading axis [P].

    Attributes:
        algorithm: Algorithm of the run.
        evaluate: Evaluation function. It maps `(state, key)` to episodes.
        config: Settings of the algorithm.
        run_key: Key for training. For an evolving population, `(training keys, offspring keys)`.
        eval_key: Key for evaluation.
        abstract_state: Shapes and types of the state.
    """

    algorithm: Algorithm
    evaluate: Callable[[Any, jax.Array], Episodes]
    config: Any
    run_key: Any
    eval_key: jax.Array
    abstract_state: Any


class JittedFunctions(NamedTuple):
    """Jitted functions of a run and the placement of its arrays.

    Attributes:
        init: Function that creates the initial state.
        run: Function that runs a segment of updates.
        evaluate: Evaluation function. It maps `(state, key)` to episodes.
        abstract_state: Shapes, types and shardings of the state.
        state_sharding: Sharding of each leaf of the state, or None for the default device.
        replicated_sharding: Sharding of arrays that every process receives, or None for one
            process.
        mesh: Device mesh, or None for one device of one process.
        mesh_context_fn: Function that returns a context manager for tracing.
        replicate: Function that replicates a process's arrays over all processes.
    """

    init: Any
    run: Any
    evaluate: Any
    abstract_state: Any
    state_sharding: Any
    replicated_sharding: Any
    mesh: jax.sharding.Mesh | None
    mesh_context_fn: Callable[[], Any]
    replicate: Callable[[Any], Any]


def jit_functions(
    spec: Spec, functions: RunFunctions, run: Callable[..., tuple[State, Metrics]]
) -> JittedFunctions:
    """Jit the functions of a run with shardings for its arrays.

    Args:
        spec: Specification of the run.
        functions: Functions of the run and their initial arguments.
        run: Function that runs a segment of updates.

    Returns:
        The jitted functions and the placement.
    """
    is_population = spec.num_members > 1
    evaluate = functions.evaluate
    mesh = make_device_mesh(spec, is_population)
    state = with_shardings(functions.algorithm, functions.abstract_state, mesh, is_population)
    if mesh is not None and is_population:
        run = sharding.shard_map_over_members(run, mesh, (0, None), (0, 1))
        evaluate = sharding.shard_map_over_members(evaluate, mesh, (0, 0), 0)
    state_sharding = jax.tree.map(lambda leaf: leaf.sharding, state) if mesh is not None else None
    # With several processes, all of them receive metrics and episodes, but no process ever holds
    # another process's part of the state.
    process_mesh = mesh if processes.num_processes() > 1 else None
    replicated_sharding = None
    if process_mesh is not None:
        replicated_sharding = jax.sharding.NamedSharding(process_mesh, jax.sharding.PartitionSpec())

    def replicate(tree: PyTree) -> PyTree:
        return tree if process_mesh is None else processes.replicate(tree, process_mesh)

    return JittedFunctions(
        init=jax.jit(
            functions.algorithm.init, out_shardings=None if process_mesh is None else state_sharding
        ),
        run=jax.jit(
            run,
            donate_argnums=0,
            out_shardings=None if state_sharding is None else (state_sharding, replicated_sharding),
        ),
        evaluate=jax.jit(evaluate, out_shardings=replicated_sharding),
        abstract_state=state,
        state_sharding=state_sharding,
        replicated_sharding=replicated_sharding,
        mesh=mesh,
        mesh_context_fn=mesh_context_fn(mesh, is_population),
        replicate=replicate,
    )


def mesh_context_fn(
    mesh: jax.sharding.Mesh | None, is_population: bool
) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Return a function that creates a context manager for tracing the functions of a run.

    Args:
        mesh: Device mesh, or None.
        is_population: Whether the run is a population. Its functions are traced without a mesh.

    Returns:
        Function without arguments. Its context manager sets the mesh. Without a mesh and for a
        population, it does nothing.
    """
    if mesh is None or is_population:
        return contextlib.nullcontext
    return functools.partial(jax.set_mesh, mesh)


def make_device_mesh(spec: Spec, is_population: bool) -> jax.sharding.Mesh | None:
    """Return the mesh of the devices of a run, or None for one device of one process.

    Args:
        spec: Specification of the run.
        is_population: Whether the run is a population.

    Raises:
        UsageError: If the number of members or of environments is not a multiple of the number of
            devices.
    """
    number = int(spec.options.devices)
    if number == 1 and processes.num_processes() == 1:
        return None
    if is_population and spec.num_members % number:
        raise UsageError(
            f"The number of members must be a multiple of devices ({number}), got "
            f"{spec.num_members}. Change the number of seeds or of devices."
        )
    mesh = sharding.make_mesh(number, "members" if is_population else "environments")
    num_envs = spec.derived_settings.num_envs
    if not is_population and num_envs % number:
        raise UsageError(
            f"num_envs must be a multiple of devices ({number}), got {num_envs}. Change one of "
            "them."
        )
    return mesh


def with_shardings(
    algorithm: Algorithm, state: State, mesh: jax.sharding.Mesh | None, is_population: bool
) -> State:
    """Return the shapes of a state with a sharding for each leaf.

    Args:
        algorithm: Algorithm of the run.
        state: Shapes and types of the state.
        mesh: Device mesh, or None to return `state` unchanged.
        is_population: Whether the leaves have a leading axis of members.

    Returns:
        Shapes, types and shardings of the state.
    """
    if mesh is None:
        return state
    if is_population:
        member_sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("members"))
        shardings = jax.tree.map(lambda _: member_sharding, state)
    else:
        shardings = sharding.make_run_shardings(state, algorithm.placement(state), mesh)
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings
    )
