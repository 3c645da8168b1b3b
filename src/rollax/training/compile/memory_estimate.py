"""Checks of estimated memory before anything is compiled or allocated."""

import contextlib
from collections.abc import Callable, Iterator

import jax

from rollax import spaces
from rollax.algorithm import Algorithm
from rollax.distributed import processes
from rollax.environments.environment import Environment
from rollax.errors import UsageError, describe_error
from rollax.training.compile import device_memory
from rollax.training.spec import Spec
from rollax.types import PyTree, State

# Bytes per cell of the metrics grid of archives without cells, as XLA allocates them.
BYTES_PER_CELL = 16


def check_state_memory(spec: Spec, member_state: State, algorithm: Algorithm) -> None:
    """Check that the states of all members fit into the memory of the devices.

    Args:
        spec: Specification of the run.
        member_state: State of one member, or its abstract shapes.
        algorithm: Algorithm of the run.

    Raises:
        UsageError: If the states do not fit.
    """
    number = spec.num_members
    size = number * (
        device_memory.tree_bytes(member_state)
        + BYTES_PER_CELL * num_unstored_cells(algorithm, member_state)
    )
    # During evolution, two generations exist at the same time.
    needed = 2 * size if spec.evolve else size
    capacity = spec.derived_settings.replay_capacity or None
    what = f"the state of {number} members" if number > 1 else "the state"
    what += f" (capacity {capacity})" if capacity else ""
    is_archive = algorithm.archived is not None
    remedy = (
        "Use fewer cells or seeds, or smaller solutions"
        if is_archive
        else device_memory.MEMORY_REMEDY
    )
    device_memory.check_memory(
        needed / device_memory.num_memories(int(spec.options.devices)),
        None if is_archive else capacity,
        what,
        remedy,
    )


def num_unstored_cells(algorithm: Algorithm, member_state: State) -> int:
    """Return the number of cells of the metrics grid that are not part of the archive's state.

    Archives without cells compute metrics on a separate grid.

    Args:
        algorithm: Algorithm of the run.
        member_state: State of one member, or its abstract shapes.

    Returns:
        The number of cells. 0 if the algorithm has no archive.
    """
    archived, found = algorithm.archived, [0]
    if archived is None:
        return 0

    def look(state: State) -> None:
        archive, _ = archived.archive(state)
        found.append(archive.num_cells - archive.size)

    jax.eval_shape(look, member_state)
    return max(found)


def check_update_memory(
    spec: Spec,
    algorithm: Algorithm,
    member_state: State,
    environment: Environment,
    has_user_objects: bool,
) -> None:
    """Check that an update can be traced and fits into memory.

    Args:
        spec: Specification of the run.
        algorithm: Algorithm of the run.
        member_state: State of one member, or its abstract shapes.
        environment: Environment of the run.
        has_user_objects: Whether the user passed the environment or the network as an object.

    Raises:
        UsageError: If the update does not fit, or the user's objects cannot be traced.
    """
    config = spec.config
    sizes = ", ".join(f"{name} {size}" for name, size in spec.derived_settings.sizes.items())
    counts = [value for value in vars(config).values() if isinstance(value, int)]
    rows = max(config.steps_per_update, *counts) * spec.num_members
    if not has_user_objects and device_memory.is_negligible_size(
        rows * spaces.flat_size(environment.observation_space) * 4
    ):
        return
    with explain_tracing_errors(has_user_objects, "an update"):
        needed = device_memory.largest_result_bytes(algorithm.step, member_state)
    device_memory.check_memory(
        needed * spec.num_members / device_memory.num_memories(int(spec.options.devices)),
        None,
        f"an update ({sizes})" if sizes else "an update",
        "Use less of them, a smaller network or fewer seeds",
    )


def check_evaluation_memory(
    evaluate: Callable[[State, jax.Array], PyTree],
    state: State,
    environment: Environment,
    num_episodes: int,
    num_members: int = 1,
    has_user_objects: bool = False,
) -> None:
    """Check that an evaluation can be traced and fits into memory.

    Args:
        evaluate: Evaluation function. It maps `(state, key)` to episodes.
        state: State of one member, or its abstract shapes.
        environment: Environment of evaluations.
        num_episodes: Number of parallel episodes.
        num_members: Number of members that are evaluated at the same time.
        has_user_objects: Whether the user passed the environment or the network as an object.

    Raises:
        UsageError: If the evaluation does not fit, or the user's objects cannot be traced.
    """
    if not has_user_objects and device_memory.is_negligible_size(
        num_episodes * num_members * (spaces.flat_size(environment.observation_space) * 4 + 64)
    ):
        return
    with explain_tracing_errors(has_user_objects, "an evaluation"):
        needed = (
            device_memory.largest_result_bytes(evaluate, state, jax.eval_shape(jax.random.key, 0))
            * num_members
        )
    fitting = int(
        num_episodes * 0.8 * (device_memory.available_memory_bytes() or 0) / max(needed, 1)
    )
    what = f"an evaluation of {num_episodes} episodes at once"
    device_memory.check_memory(
        needed,
        None,
        what,
        f"Use {fitting} episodes" + ", or fewer seeds" * (num_members > 1),
    )


@contextlib.contextmanager
def explain_tracing_errors(has_user_objects: bool, what: str) -> Iterator[None]:
    """Convert errors during tracing to UsageError.

    Args:
        has_user_objects: Whether objects that the user passed are traced. If False, only errors
            about arrays that are too large are converted.
        what: Name of the traced function in error messages.
    """
    try:
        yield
    except UsageError:
        raise
    # Arrays that are too large to be indexed raise these errors.
    except (OverflowError, NotImplementedError) as error:
        raise UsageError(f"{what} is too large: {error}") from error
    except Exception as error:
        if not has_user_objects:
            raise
        text = describe_error(error).split("\n")[0]
        raise UsageError(f"Tracing {what} failed with {text}. {_tracing_remedy(error)}") from error


def _tracing_remedy(error: Exception) -> str:
    """Return a remedy sentence for an error raised while tracing a user's objects."""
    if isinstance(error, AttributeError) and error.name in ("initial_carry", "unroll"):
        return (
            f"The network is a {type(error.obj).__name__} without the methods of "
            "rollax.networks.Network. Wrap it with rollax.from_equinox, "
            "from_linen, from_nnx or from_function."
        )
    where = _user_code_location(error)
    return f"Check shapes and side effects{f' in {where}' if where else ''}."


def _user_code_location(error: Exception) -> str:
    """Return file and line of the innermost frame outside of rollax and packages, or ""."""
    found, trace = "", error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if "site-packages" not in path and not trace.tb_frame.f_globals.get(
            "__name__", ""
        ).startswith("rollax"):
            found = f"{path}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def check_distributed_run(spec: Spec, is_on_host: bool) -> None:
    """Check that several processes can train the run together.

    Args:
        spec: Specification of the run.
        is_on_host: Whether the environment is a simulator on the host.

    Raises:
        UsageError: If the environment is a simulator, the run has opponents, or `devices` differs
            from the number of devices of all processes.
    """
    if is_on_host:
        raise UsageError(
            "--distributed supports only compiled environments, got the simulator "
            f"{spec.environment}. Remove the option."
        )
    for option, value in (
        ("--opponents", spec.opponents),
        ("--opponent-pool", spec.options.opponent_pool),
    ):
        if value:
            raise UsageError(
                f"{option} and --distributed cannot be combined. Train against opponents in one "
                "process."
            )
    if spec.options.devices != jax.device_count():
        raise UsageError(
            f"devices must be {jax.device_count()}, the number of devices of all "
            f"{processes.num_processes()} processes, got {spec.options.devices}. Remove --devices."
        )
