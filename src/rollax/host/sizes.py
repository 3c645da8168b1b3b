"""Whether a run fits into the memory, asked before anything is compiled, allocated or written."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

from rollax import spaces
from rollax.algorithm import Algorithm
from rollax.environments.core import Environment
from rollax.errors import UsageError
from rollax.host import memory
from rollax.host.settings import Spec, entry

BYTES_OF_CELL = 16  # of the metrics of a population laid on a grid, as XLA allocates them


def check_state(spec: Spec, one: Any, algorithm: Algorithm) -> None:
    """Raises UsageError when the states of all members, each like `one`, do not fit into the memory of the devices."""
    number = spec.num_members
    size = number * (memory.size_of(one) + BYTES_OF_CELL * cells_beyond(algorithm, one))
    needed = 2 * size if spec.evolve else size  # a generation is made beside the one before
    capacity = getattr(spec.config, "capacity", None)
    what = f"the state of {number} members" if number > 1 else "the state"
    what += f" (capacity {capacity})" if capacity else ""
    is_archive = entry(spec.algorithm).unit == "evaluations"
    remedy = "fewer cells or seeds, or smaller solutions" if is_archive else memory.REMEDY
    memory.check_memory(needed / memory.devices(int(spec.options.devices)), None if is_archive else capacity, what, remedy)


def cells_beyond(algorithm: Algorithm, one: Any) -> int:
    """How many cells metrics are of that the archive's state has no places for: a population is laid on a grid for them."""
    archived, found = algorithm.archived, [0]
    if archived is None:
        return 0

    def look(state: Any) -> None:
        archive, _ = archived.archive(state)
        found.append(archive.num_cells - archive.size)

    jax.eval_shape(look, one)
    return max(found)


_SIZES = ("num_envs", "num_steps", "capacity", "batch_size")


def check_update(spec: Spec, algorithm: Algorithm, one: Any, environment: Environment, own: bool) -> None:
    """Raises UsageError for an update that does not fit, or whose tracing fails for a reason of the user's `own` objects."""
    config = spec.config
    counts = [value for value in vars(config).values() if isinstance(value, int)]
    rows = max(config.steps_per_update, *counts) * spec.num_members
    if not own and memory.is_plenty(rows * spaces.size(environment.observation_space) * 4):
        return
    with tracing(own, "an update"):
        needed = memory.largest_result(algorithm.step, one)
    memory.check_memory(
        needed * spec.num_members / memory.devices(int(spec.options.devices)),
        None,
        f"an update ({', '.join(f'{name} {getattr(config, name)}' for name in _SIZES if name in vars(config))})",
        "less of them, a smaller network or fewer seeds",
    )


def check_evaluation(
    evaluate: Callable[[Any, jax.Array], Any],
    state: Any,
    environment: Environment,
    episodes: int,
    members: int = 1,
    own: bool = False,
) -> None:
    """Raises UsageError for an evaluation that does not fit, or whose tracing fails for a reason of the user's `own` objects.

    `state`: one member's, or its shapes; `members`: how many are evaluated side by side.
    """
    if not own and memory.is_plenty(episodes * members * (spaces.size(environment.observation_space) * 4 + 64)):
        return
    with tracing(own, "an evaluation"):
        needed = memory.largest_result(evaluate, state, jax.eval_shape(jax.random.key, 0)) * members
    fitting = int(episodes * 0.8 * (memory.memory_in_bytes() or 0) / max(needed, 1))
    what = f"an evaluation of {episodes} episodes at once"
    memory.check_memory(needed, None, what, f"{fitting} episodes" + ", or fewer seeds" * (members > 1))


@contextlib.contextmanager
def tracing(own: bool, what: str) -> Iterator[None]:
    """What a user's own objects raise while they are traced, as UsageError."""
    try:
        yield
    except UsageError:
        raise
    except (OverflowError, NotImplementedError) as error:  # of sizes beyond what can be indexed
        raise UsageError(f"{what} is too large: {error}") from error
    except Exception as error:
        if not own:
            raise
        text = str(error).strip().split("\n")[0]
        remedy = "look for side effects and for shapes that change: rollax.check_environment(environment) says more"
        raise UsageError(f"tracing {what} fails with {type(error).__name__}: {text} ({remedy})") from error
