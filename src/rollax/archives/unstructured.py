"""Archive without cells whose elites keep a minimum distance in a learned space (AURORA).

Cully 2019, arXiv:1905.11874, with the size control of Grillotti and Cully 2022, arXiv:2106.05648.
The extras `[D]` of a solution are its recorded observations. The autoencoder encodes them to the
code `[K]` of the solution. A solution is inserted if all codes in the archive are farther away than
the minimum distance. If only the nearest elite is closer, and is less fit, the solution replaces
it. All elites therefore keep the minimum distance.

Once per update, the minimum distance adapts so that the number of elites approaches a target. At
updates 1, 2, 4, 8, ... the autoencoder is trained on all elites. Elites that are then too close to
a fitter elite are removed.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.archives.archive import (
    STATUS_IMPROVED,
    STATUS_NEW,
    STATUS_REJECTED,
    Archive,
    Insertion,
    InsertionResult,
    ScoredSolutions,
    count_insertions,
    find_valid_solutions,
)
from rollax.archives.cells import Cells, check_cells, qd_metrics_in_cells
from rollax.archives.grid import grid_cells
from rollax.archives.rows import (
    clear_rows,
    count_filled,
    find_best_row,
    is_filled,
    list_rows,
    make_empty_rows,
    read_best_row,
    sample_rows_uniformly,
    set_best,
)
from rollax.errors import UsageError
from rollax.learning import autoencoder
from rollax.types import Scalar

CAPACITY_FACTOR = 2  # capacity of the archive as a multiple of the target number of elites


class AutoencoderSettings(NamedTuple):
    """Settings of the autoencoder.

    Attributes:
        code_size: Dimension of the code.
        hidden: Sizes of the dense layers of the encoder.
        num_steps: Gradient steps per training.
        batch_size: Elites per gradient step.
        learning_rate: Learning rate (Adam).
    """

    code_size: int
    hidden: tuple[int, ...]
    num_steps: int
    batch_size: int
    learning_rate: Any


class UnstructuredState(NamedTuple):
    """State of an unstructured archive with C rows. Filled rows come first.

    Attributes:
        autoencoder: State of the autoencoder.
        elites: Elites `[C, ...]`, with fitness -inf in empty rows. Their extras are the recorded
            observations.
        code: Codes of the elites, float32 `[C, K]`.
        distance: Minimum distance between codes, float32 `[]`.
        filled: Number of filled rows, int32 `[]`.
        best: Index of the row with the best elite, int32 `[]`.
        updates: Number of calls of `refresh`, which is called once per update, int32 `[]`.
    """

    autoencoder: autoencoder.AutoencoderState
    elites: ScoredSolutions
    code: jax.Array
    distance: jax.Array
    filled: jax.Array
    best: jax.Array
    updates: jax.Array


def unstructured_archive(
    target_size: int,
    low: tuple[float, ...],
    high: tuple[float, ...],
    max_distance_change: Scalar,
    autoencoder_settings: AutoencoderSettings,
    grid: tuple[int, ...],
) -> Archive:
    """Build an archive of about `target_size` elites, and at most twice as many.

    Args:
        target_size: Target number of elites.
        low: Lower bounds of the environment's descriptors, used only for metrics.
        high: Upper bounds of the environment's descriptors, used only for metrics.
        max_distance_change: Maximum relative change of the minimum distance per update.
        autoencoder_settings: Settings of the autoencoder.
        grid: Number of cells along each dimension of the grid that the metrics use.

    Returns:
        The archive. Its `init` raises a `UsageError` if solutions have no recorded observations.

    Raises:
        UsageError: If the bounds are not valid, or if the grid does not match them or is too large.
    """
    cells, size = grid_cells(grid, low, high), CAPACITY_FACTOR * target_size
    check_cells(cells)

    def init(key: jax.Array, example: ScoredSolutions) -> UnstructuredState:
        if getattr(example.extras, "ndim", 0) != 1:
            raise UsageError(
                "Extras must be the recorded observations of each solution as a vector. Record "
                "them with ScoringOptions(num_frames=...)."
            )
        return make_empty_state(example, size, autoencoder_settings, target_size, key)

    def empty(state: UnstructuredState) -> UnstructuredState:
        zero = jnp.zeros((), jnp.int32)
        return state._replace(
            elites=clear_rows(state.elites),
            code=jnp.zeros_like(state.code),
            filled=zero,
            best=zero,
        )

    return Archive(
        init=init,
        add=functools.partial(add_batch, low, high),
        sample=sample_rows_uniformly,
        elites=list_rows,
        num_elites=count_filled,
        best=read_best_row,
        with_best=set_best,
        metrics=functools.partial(metrics, cells),
        size=size,
        low=low,
        high=high,
        empty=empty,
        cell_of=lambda state, descriptor: cells.cell_of((), descriptor),
        num_cells=cells.size,
        refresh=functools.partial(refresh, target_size, max_distance_change, autoencoder_settings),
    )


def make_empty_state(
    example: ScoredSolutions,
    size: int,
    autoencoder_settings: AutoencoderSettings,
    target_size: int,
    key: jax.Array,
) -> UnstructuredState:
    """Return a state without elites and with a new autoencoder.

    Args:
        example: Single scored solution. Its extras are its recorded observations `[D]`.
        size: Number of rows C.
        autoencoder_settings: Settings of the autoencoder.
        target_size: Target number of elites.
        key: Random key of the autoencoder.

    Returns:
        The state.
    """
    coder = autoencoder.init_autoencoder(
        example.extras.shape[0],
        autoencoder_settings.code_size,
        autoencoder_settings.hidden,
        autoencoder_settings.learning_rate,
        key,
    )
    zero = jnp.zeros((), jnp.int32)
    # Codes have standard deviation 1, so about `target_size` of them are this far apart.
    distance = jnp.asarray(3.0 / target_size ** (1 / autoencoder_settings.code_size), jnp.float32)
    return UnstructuredState(
        autoencoder=coder,
        elites=make_empty_rows(example, size),
        code=jnp.zeros((size, autoencoder_settings.code_size)),
        distance=distance,
        filled=zero,
        best=zero,
        updates=zero,
    )


def add_batch(
    low: tuple[float, ...],
    high: tuple[float, ...],
    state: UnstructuredState,
    batch: ScoredSolutions,
) -> Insertion:
    """Insert the solutions of a batch `[B]` into the archive, one after the other.

    Args:
        low: Lower bounds of descriptors.
        high: Upper bounds of descriptors.
        state: State of the archive.
        batch: Scored batch.

    Returns:
        The new state, the insertion result of each solution, and the counts.
    """
    validity = find_valid_solutions(batch, low, high)
    observations = jnp.where(validity.finite[:, None], batch.extras, 0.0)
    code = autoencoder.encode_rows(state.autoencoder, observations)
    solutions = EncodedSolution(solution=batch, code=code, is_finite=validity.finite)
    state, result = jax.lax.scan(add_solution, state, solutions)
    counts = count_insertions(
        new=result.status == STATUS_NEW,
        better=result.status == STATUS_IMPROVED,
        validity=validity,
    )
    return Insertion(
        state=state._replace(best=find_best_row(state.elites)), result=result, counts=counts
    )


def refresh(
    target_size: int,
    max_distance_change: Scalar,
    autoencoder_settings: AutoencoderSettings,
    state: UnstructuredState,
    key: jax.Array,
) -> UnstructuredState:
    """Train the autoencoder if this is due, adapt the minimum distance, and remove close elites.

    Args:
        target_size: Target number of elites.
        max_distance_change: Maximum relative change of the minimum distance.
        autoencoder_settings: Settings of the autoencoder.
        state: State of the archive.
        key: Random key of the training.

    Returns:
        The state before the next update.
    """
    mask = is_filled(state.elites)
    updates = state.updates
    is_due = (updates > 0) & (updates & (updates - 1) == 0) & (state.filled > 0)
    steps = jnp.where(is_due, autoencoder_settings.num_steps, 0)
    rows, samples = state.elites.extras, min(autoencoder_settings.batch_size, state.code.shape[0])
    coder = autoencoder.train_autoencoder(
        state.autoencoder, rows, mask, steps, samples, autoencoder_settings.learning_rate, key
    )
    coder = tree.where(is_due, coder, state.autoencoder)
    excess = (state.filled - target_size) / target_size
    distance = state.distance * (
        1 + jnp.where(state.filled > 0, max_distance_change * jnp.maximum(excess, -1.0), 0.0)
    )
    state = state._replace(
        autoencoder=coder,
        code=autoencoder.encode_rows(coder, rows),
        distance=distance,
        updates=updates + 1,
    )
    return remove_near_elites(state)


def metrics(cells: Cells, state: UnstructuredState, offset: Scalar) -> dict[str, jax.Array]:
    """Return the QD metrics of the elites on the grid, and metrics of the learned space.

    Args:
        cells: Grid of the environment's descriptors.
        state: State of the archive.
        offset: Offset of the QD score.

    Returns:
        The metrics of `qd_metrics`, "num_elites", "distance" (minimum distance between codes) and
        "reconstruction_loss" (loss of the autoencoder in its last training).
    """
    archive_metrics = {
        "num_elites": state.filled,
        "distance": state.distance,
        "reconstruction_loss": state.autoencoder.loss,
    }
    return qd_metrics_in_cells(cells, state.elites, offset) | {
        name: value.astype(jnp.float32) for name, value in archive_metrics.items()
    }


class EncodedSolution(NamedTuple):
    """Scored solution with its code, to be inserted.

    Attributes:
        solution: Scored solution.
        code: Code of the recorded observations of the solution, float32 `[K]`.
        is_finite: Whether all scores of the solution are finite, bool `[]`.
    """

    solution: ScoredSolutions
    code: jax.Array
    is_finite: jax.Array


def add_solution(
    state: UnstructuredState, candidate: EncodedSolution
) -> tuple[UnstructuredState, InsertionResult]:
    """Insert one solution if the minimum distance between codes is kept.

    The solution is inserted if no elite is within the minimum distance and the archive is not full.
    It replaces the nearest elite if this is the only elite within the minimum distance and is less
    fit.

    Args:
        state: State of the archive.
        candidate: Solution to insert.

    Returns:
        The state and the result of the insertion.
    """
    solution, code, is_finite = candidate
    size = state.code.shape[0]
    distances = jnp.sqrt(jnp.sum((state.code - code[None]) ** 2, axis=1))
    distances = jnp.where(state.elites.fitness > -jnp.inf, distances, jnp.inf)
    nearest = jnp.argmin(distances)
    second_distance = jnp.min(distances.at[nearest].set(jnp.inf))
    nearest_fitness = state.elites.fitness[nearest]
    is_novel = distances[nearest] > state.distance
    is_inserted = is_finite & is_novel & (state.filled < size)
    is_replacement = (
        is_finite
        & ~is_novel
        & (solution.fitness > nearest_fitness)
        & (second_distance > state.distance)
    )
    row = jnp.where(is_inserted, state.filled, jnp.where(is_replacement, nearest, size))
    elites = jax.tree.map(
        lambda rows, value: rows.at[row].set(value, mode="drop"), state.elites, solution
    )
    state = state._replace(
        elites=elites,
        code=state.code.at[row].set(code, mode="drop"),
        filled=state.filled + is_inserted,
    )
    status = jnp.where(
        is_inserted, STATUS_NEW, jnp.where(is_replacement, STATUS_IMPROVED, STATUS_REJECTED)
    ).astype(jnp.int32)
    improvement = jnp.where(is_novel, solution.fitness, solution.fitness - nearest_fitness)
    return state, InsertionResult(status, jnp.where(is_finite, improvement, -jnp.inf))


def remove_near_elites(state: UnstructuredState) -> UnstructuredState:
    """Remove elites within the minimum distance of a fitter elite that is kept.

    The remaining elites keep their order and move to the first rows.
    """
    order = jnp.argsort(-state.elites.fitness, stable=True)

    def keep_if_far(is_kept: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
        squares = jnp.sum((state.code - state.code[row][None]) ** 2, axis=1)
        is_far = ~jnp.any(is_kept & (jnp.sqrt(squares) <= state.distance))
        return is_kept.at[row].set(is_far & (state.elites.fitness[row] > -jnp.inf)), None

    is_kept, _ = jax.lax.scan(keep_if_far, jnp.zeros(order.shape, bool), order)
    rows = jnp.argsort(~is_kept, stable=True)
    elites = jax.tree.map(lambda x: x[rows], state.elites)
    elites = elites._replace(fitness=jnp.where(is_kept[rows], elites.fitness, -jnp.inf))
    return state._replace(
        elites=elites,
        code=state.code[rows],
        filled=jnp.sum(is_kept, dtype=jnp.int32),
        best=find_best_row(elites),
    )
