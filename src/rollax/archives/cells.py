"""Archives that keep the best solution in each cell of the descriptor space.

An insertion costs O(B), because only the cells of the batch are gathered and scattered. The costs
of insertion, of sampling n elites and of reading the best elite do not depend on the number of
cells.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.algorithm import uniform_placement
from rollax.archives.archive import (
    STATUS_IMPROVED,
    STATUS_NEW,
    STATUS_REJECTED,
    Archive,
    Elites,
    Insertion,
    InsertionResult,
    ScoredSolutions,
    count_insertions,
    find_valid_solutions,
    qd_metrics,
)
from rollax.archives.rows import (
    clear_rows,
    count_filled,
    is_filled,
    make_empty_rows,
    set_best,
)
from rollax.errors import UsageError
from rollax.types import PyTree, Scalar

# (data of the cells, descriptors [B, K]) -> cell indices, int32 [B] in 0 ... C - 1
CellFn = Callable[[PyTree, jax.Array], jax.Array]


class Cells(NamedTuple):
    """Partition of the descriptor space into cells.

    Attributes:
        size: Number of cells C.
        low: Lower bounds of descriptors, K numbers.
        high: Upper bounds of descriptors, K numbers.
        make: Function from a random key to the data of the cells, a pytree of arrays such as
            centroids, or `()` for a grid.
        cell_of: Function `(data, descriptor)` from descriptors `[B, K]` to cell indices, int32
            `[B]`.
        center_of: Function from the data to the center of each cell, float32 `[C, K]`.
        is_grid: Whether the cells form a grid in row-major order.
    """

    size: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    make: Callable[[jax.Array], Any]
    cell_of: CellFn
    center_of: Callable[[Any], jax.Array]
    is_grid: bool


class AcceptanceThreshold(NamedTuple):
    """Slowly rising acceptance threshold of every cell (CMA-MAE).

    Fontaine and Nikolaidis 2023, arXiv:2205.10752. A solution is accepted if its fitness exceeds
    the threshold of its cell. The threshold then moves toward that fitness. Thresholds determine
    the status and the improvement of a solution, which emitters use for ranking. Thresholds do not
    affect the elites of the archive. The elite of a cell is the best solution so far, as in the
    result archive of pyribs.

    Attributes:
        start: Initial value of every threshold.
        learning_rate: Step size from the threshold toward the fitness of accepted solutions, in
            [0, 1]. 0 keeps the initial thresholds. With 1, the threshold becomes the mean fitness
            of the solutions that the cell accepted in the last batch.
    """

    start: Any = 0.0
    learning_rate: Any = 0.01


class CellsState(NamedTuple):
    """State of an archive with one solution per cell.

    Attributes:
        cells: Data of the cells, as returned by `Cells.make`.
        elites: Elites `[C, ...]`, with fitness -inf in empty cells.
        threshold: Acceptance thresholds, float32 `[C]`. If None, solutions must exceed the fitness
            of the elite.
        order: Indices of the filled cells in the order of their first insertion, int32 `[C]`. Only
            the first `filled` entries are valid.
        filled: Number of filled cells, int32 `[]`.
        best: Cell of the best elite, int32 `[]`. Ties go to the elite that was inserted first.
        claims: Scratch array of insertions, int32 `[C]`. All entries are `UNCLAIMED` between
            insertions.
    """

    cells: Any
    elites: ScoredSolutions
    threshold: jax.Array | None
    order: jax.Array
    filled: jax.Array
    best: jax.Array
    claims: jax.Array


UNCLAIMED = 2**31 - 1


def cells_archive(cells: Cells, threshold: AcceptanceThreshold | None = None) -> Archive:
    """Build an archive that keeps the best solution in each of the given cells.

    Args:
        cells: The cells.
        threshold: Settings of acceptance thresholds. If None, a cell accepts a solution if it is
            empty or the fitness of the solution exceeds that of its elite.

    Returns:
        The archive.

    Raises:
        UsageError: If the bounds are not valid, or there are 2^31 cells or more.
    """
    check_cells(cells)

    def init(key: jax.Array, example: ScoredSolutions) -> CellsState:
        return make_empty_state(cells.make(key), make_empty_rows(example, cells.size), threshold)

    def empty(state: CellsState) -> CellsState:
        return make_empty_state(state.cells, clear_rows(state.elites), threshold)

    def cell_of(state: CellsState, descriptor: jax.Array) -> jax.Array:
        return cells.cell_of(state.cells, descriptor)

    archive = Archive(
        init=init,
        add=functools.partial(add_batch, cells, threshold),
        sample=sample_elites,
        elites=functools.partial(list_elites, cells),
        num_elites=count_filled,
        best=best_elite,
        with_best=set_best,
        metrics=functools.partial(compute_metrics, threshold),
        size=cells.size,
        low=cells.low,
        high=cells.high,
        empty=empty,
        cell_of=cell_of,
        num_cells=cells.size,
        placement=make_solution_placement,
    )
    if threshold is None:
        return archive
    return archive._replace(thresholds=read_thresholds, with_thresholds=set_thresholds)


def add_batch(
    cells: Cells, threshold: AcceptanceThreshold | None, state: CellsState, batch: ScoredSolutions
) -> Insertion:
    """Insert a batch `[B]` into the archive.

    Args:
        cells: The cells.
        threshold: Settings of the acceptance thresholds, or None for no thresholds.
        state: State of the archive.
        batch: Scored batch, `[B, ...]`.

    Returns:
        The new state, the insertion result of each solution, and the counts.
    """
    validity = find_valid_solutions(batch, cells.low, cells.high)
    cell = cells.cell_of(state.cells, validity.descriptor)
    fitness = jnp.where(validity.finite, batch.fitness, -jnp.inf)
    elite_fitness = state.elites.fitness[cell]
    is_empty = elite_fitness == -jnp.inf
    accepted, improvement = compute_acceptance(
        state.threshold, cell, fitness, elite_fitness, is_empty, threshold
    )
    # With thresholds, a cell is new until it accepts a solution, whose fitness then exceeds the
    # initial threshold.
    is_new = is_empty if threshold is None else elite_fitness <= threshold.start
    is_winner, state = find_winners(state, cell, fitness, fitness > elite_fitness)
    state = write_winners(state, cell, is_winner, is_winner & is_empty, batch)
    counts = count_insertions(
        new=is_winner & is_empty, better=is_winner & ~is_empty, validity=validity
    )
    if threshold is not None:
        state = update_thresholds(state, cell, fitness, accepted, threshold)
        is_below_threshold = validity.finite & ~accepted
        counts = counts._replace(below_threshold=jnp.sum(is_below_threshold, dtype=jnp.float32))
    result = InsertionResult(status=insertion_status(accepted, is_new), improvement=improvement)
    return Insertion(state=state, result=result, counts=counts)


def insertion_status(accepted: jax.Array, is_new: jax.Array) -> jax.Array:
    """Return the status of each solution, int32 `[B]`.

    Args:
        accepted: Whether each solution is accepted, bool `[B]`.
        is_new: Whether the cell of each solution was empty before the batch, bool `[B]`. With
            thresholds, whether the cell had not accepted a solution yet.

    Returns:
        `STATUS_REJECTED`, `STATUS_IMPROVED` or `STATUS_NEW` for each solution.
    """
    status = jnp.where(accepted, jnp.where(is_new, STATUS_NEW, STATUS_IMPROVED), STATUS_REJECTED)
    return status.astype(jnp.int32)


def compute_metrics(
    threshold: AcceptanceThreshold | None, state: CellsState, offset: Scalar
) -> dict[str, jax.Array]:
    """Return the QD metrics and, if the archive has thresholds, the lowest fitness of the elites.

    Args:
        threshold: Settings of the acceptance thresholds, or None for no thresholds.
        state: State of the archive.
        offset: Offset of the QD score.

    Returns:
        The metrics of `qd_metrics`, and "fitness_lowest" with thresholds.
    """
    mask = is_filled(state.elites)
    values = qd_metrics(state.elites.fitness, mask, offset)
    if threshold is not None:  # reported because threshold_start must be lower
        lowest = jnp.min(state.elites.fitness, where=mask, initial=jnp.inf)
        values["fitness_lowest"] = jnp.where(jnp.any(mask), lowest, jnp.nan)
    return values


def list_elites(cells: Cells, state: CellsState) -> Elites:
    """Return all entries of the archive, one per cell, with the centers of `cells`."""
    return Elites(
        solutions=state.elites,
        mask=is_filled(state.elites),
        center=cells.center_of(state.cells),
        is_grid=jnp.asarray(cells.is_grid),
    )


def read_thresholds(state: CellsState) -> jax.Array:
    """Return the acceptance threshold of each cell, float32 `[C]`."""
    assert state.threshold is not None
    return state.threshold


def set_thresholds(state: CellsState, thresholds: jax.Array) -> CellsState:
    """Return the state with its acceptance thresholds replaced by `thresholds`, float32 `[C]`."""
    return state._replace(threshold=thresholds)


def make_solution_placement(state: CellsState) -> CellsState:
    """Return the placement of an archive state: solutions are split, other arrays replicated."""
    placement = uniform_placement(state, False)
    return placement._replace(
        elites=placement.elites._replace(solution=uniform_placement(state.elites.solution))
    )


def make_empty_state(
    cells: PyTree, rows: ScoredSolutions, threshold: AcceptanceThreshold | None
) -> CellsState:
    """Return the state of an archive without elites.

    Args:
        cells: Arrays that define the C cells.
        rows: Empty rows, `[C, ...]`.
        threshold: Settings of acceptance thresholds, or None for an archive without them.
    """
    size = rows.fitness.shape[0]
    zero = jnp.zeros((), jnp.int32)
    return CellsState(
        cells=cells,
        elites=rows,
        threshold=None if threshold is None else jnp.full(size, threshold.start, jnp.float32),
        order=jnp.zeros(size, jnp.int32),
        filled=zero,
        best=zero,
        claims=jnp.full(size, UNCLAIMED, jnp.int32),
    )


def qd_metrics_in_cells(
    cells: Cells, elites: ScoredSolutions, offset: Scalar
) -> dict[str, jax.Array]:
    """Return the QD metrics of elites `[N]`, including only the best elite in each cell.

    Args:
        cells: Cells of a grid, which have no data.
        elites: Elites of an archive without cells, with fitness -inf in empty entries.
        offset: Offset of the QD score.

    Returns:
        The metrics of `qd_metrics`.
    """
    best = jax.ops.segment_max(elites.fitness, cells.cell_of((), elites.descriptor), cells.size)
    return qd_metrics(best, best > -jnp.inf, offset)


def check_cells(cells: Cells) -> None:
    """Raise UsageError if the bounds are not valid, or there are 2^31 cells or more."""
    check_bounds(cells.low, cells.high)
    if not 1 <= cells.size < 2**31:
        raise UsageError(
            f"The number of cells must be between 1 and 2,147,483,647, got {cells.size:,}. "
            "Use fewer cells per dimension."
        )


def check_bounds(low: tuple[float, ...], high: tuple[float, ...]) -> None:
    """Raise UsageError if descriptor bounds are infinite, reversed, or differ in number."""
    if len(low) != len(high) or not low:
        raise UsageError(
            f"The numbers of lower and upper descriptor bounds must be equal and at least 1, got "
            f"{len(low)} and {len(high)}. Specify one of each per dimension."
        )
    for dimension, (lower, upper) in enumerate(zip(low, high, strict=True)):
        if not -float("inf") < lower < upper < float("inf"):
            raise UsageError(
                f"The bounds of descriptor {dimension} must be finite and in ascending order, got "
                f"{lower:g} to {upper:g}."
            )


def compute_acceptance(
    thresholds: jax.Array | None,
    cell: jax.Array,
    fitness: jax.Array,
    elite_fitness: jax.Array,
    is_empty: jax.Array,
    threshold: AcceptanceThreshold | None,
) -> tuple[jax.Array, jax.Array]:
    """Return a mask of the accepted solutions and the improvement of each solution.

    Without thresholds, the improvement of the first solution in a cell is its fitness (Fontaine et
    al. 2020, arXiv:1912.02400).

    Args:
        thresholds: Current threshold of each cell, float32 `[C]`, or None for no thresholds.
        cell: Cell index of each solution, int32 `[B]`.
        fitness: Fitness of each solution, -inf if its scores are not finite, float32 `[B]`.
        elite_fitness: Fitness of the elite in each solution's cell, -inf in empty cells, float32
            `[B]`.
        is_empty: Whether each solution's cell is empty, bool `[B]`.
        threshold: Settings of the acceptance thresholds, or None for no thresholds.

    Returns:
        Whether each solution is accepted, bool `[B]`, and its improvement, float32 `[B]`.
    """
    if thresholds is None or threshold is None:
        improvement = jnp.where(is_empty, fitness, fitness - elite_fitness)
        return fitness > elite_fitness, jnp.where(fitness == -jnp.inf, -jnp.inf, improvement)
    improvement = fitness - thresholds[cell]
    return improvement > 0, improvement


def first_index_per_cell(
    state: CellsState, cell: jax.Array, mask: jax.Array
) -> tuple[jax.Array, CellsState]:
    """Return, for each solution, the lowest index among candidate solutions in the same cell.

    Args:
        state: State of the archive.
        cell: Cell index of each solution, int32 `[B]`.
        mask: Whether each solution is a candidate, bool `[B]`.

    Returns:
        The lowest index, int32 `[B]`, or `UNCLAIMED` without candidates in the cell, and the
        archive state with reset claims.
    """
    return min_per_cell(state, cell, jnp.arange(cell.shape[0], dtype=jnp.int32), mask)


def min_per_cell(
    state: CellsState, cell: jax.Array, value: jax.Array, mask: jax.Array
) -> tuple[jax.Array, CellsState]:
    """Return, for each solution, the lowest value among candidate solutions in the same cell.

    Args:
        state: State of the archive.
        cell: Cell index of each solution, int32 `[B]`.
        value: Value of each solution, int32 `[B]`.
        mask: Whether each solution is a candidate, bool `[B]`.

    Returns:
        The lowest value, int32 `[B]`, or `UNCLAIMED` without candidates in the cell, and the
        archive state with reset claims.
    """
    target_cell = jnp.where(mask, cell, state.claims.shape[0])
    claims = state.claims.at[target_cell].min(value, mode="drop")
    minimum = claims[cell]
    # Only the cells of the batch are reset, so the cost does not depend on the number of cells. The
    # reset depends on the value read, because otherwise XLA could reorder them and copy all claims.
    reset = jnp.where(minimum == UNCLAIMED, minimum, UNCLAIMED)
    return minimum, state._replace(claims=claims.at[target_cell].set(reset, mode="drop"))


def descending_sort_keys(fitness: jax.Array) -> jax.Array:
    """Return int32 keys whose ascending order is the descending order of the float32 fitness.

    Equal fitness has equal keys. The bits of negative floats, except the sign bit, are inverted, so
    that the bits as integers have the order of the floats.
    """
    # maps -0 to 0
    bits = jax.lax.bitcast_convert_type(jnp.where(fitness == 0, 0.0, fitness), jnp.int32)
    return ~jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def find_winners(
    state: CellsState, cell: jax.Array, fitness: jax.Array, is_candidate: jax.Array
) -> tuple[jax.Array, CellsState]:
    """Return a mask of the candidate with the highest fitness in each cell of a batch.

    Ties go to the lowest index.

    Args:
        state: State of the archive.
        cell: Cell index of each solution, int32 `[B]`.
        fitness: Fitness of each solution, float32 `[B]`.
        is_candidate: Whether each solution competes for its cell, bool `[B]`.

    Returns:
        The mask, bool `[B]`, and the archive state with reset claims.
    """
    value = descending_sort_keys(fitness)
    best, state = min_per_cell(state, cell, value, is_candidate)
    is_best = is_candidate & (value == best)
    first, state = first_index_per_cell(state, cell, is_best)
    return is_best & (first == jnp.arange(cell.shape[0])), state


def write_winners(
    state: CellsState,
    cell: jax.Array,
    is_winner: jax.Array,
    is_new: jax.Array,
    batch: ScoredSolutions,
) -> CellsState:
    """Write solutions to their cells.

    Args:
        state: State of the archive.
        cell: Cell index of each solution, int32 `[B]`.
        is_winner: Whether to write each solution, bool `[B]`. At most one per cell.
        is_new: Whether a solution to write belongs to an empty cell, bool `[B]`.
        batch: Scored batch, `[B, ...]`.

    Returns:
        The state with updated `elites`, `order`, `filled` and `best`.
    """
    size = state.order.shape[0]
    target_cell = jnp.where(is_winner, cell, size)
    elites = jax.tree.map(
        lambda rows, x: rows.at[target_cell].set(x, mode="drop"), state.elites, batch
    )
    position = jnp.where(is_new, state.filled + jnp.cumsum(is_new) - 1, size)
    order = state.order.at[position].set(cell, mode="drop")
    filled = state.filled + jnp.sum(is_new, dtype=jnp.int32)
    # A cell never gets worse, so the best elite is the previous one or one of the winners. Fitness
    # is read after it is written, because reading it before would make XLA copy the fitness of all
    # cells.
    fitness = jnp.where(is_winner, batch.fitness, -jnp.inf)
    first = jnp.argmax(fitness)
    is_better = (fitness[first] > elites.fitness[state.best]) | jnp.any(
        is_winner & (cell == state.best)
    )
    best = jnp.where(is_better, cell[first], state.best)
    return state._replace(elites=elites, order=order, filled=filled, best=best)


def update_thresholds(
    state: CellsState,
    cell: jax.Array,
    fitness: jax.Array,
    accepted: jax.Array,
    threshold: AcceptanceThreshold,
) -> CellsState:
    """Update the thresholds of the cells after a batch.

    The threshold t of a cell becomes

        t' = (1 - a)^n t + (1 - (1 - a)^n) mean f

    where n is the number of accepted solutions in the cell, mean f is their mean fitness, and a is
    the learning rate. This is the batch update rule in the appendix of Fontaine and Nikolaidis
    2023, arXiv:2205.10752.

    Args:
        state: State of the archive.
        cell: Cell index of each solution, int32 `[B]`.
        fitness: Fitness of each solution, float32 `[B]`.
        accepted: Whether each solution was accepted, bool `[B]`.
        threshold: Settings of the acceptance thresholds.

    Returns:
        The state with updated thresholds.
    """
    size, thresholds = cell.shape[0], state.threshold
    assert thresholds is not None
    # One row of the batch represents each cell, so that sums are over `[B]` instead of `[C]`.
    row, state = first_index_per_cell(state, cell, accepted)
    row = jnp.where(accepted, row, size)
    num_accepted = jax.ops.segment_sum(jnp.ones(size), row, size)[row]
    total = jax.ops.segment_sum(fitness, row, size)[row]
    decay = (1.0 - threshold.learning_rate) ** num_accepted
    new_threshold = decay * thresholds[cell] + (1 - decay) * total / num_accepted
    target_cell = jnp.where(accepted, cell, state.order.shape[0])
    return state._replace(threshold=thresholds.at[target_cell].set(new_threshold, mode="drop"))


def sample_elites(state: CellsState, key: jax.Array, num_elites: int) -> ScoredSolutions:
    """Sample elites uniformly with replacement.

    Args:
        state: State of the archive.
        key: Random key.
        num_elites: Number of elites n.

    Returns:
        The elites, `[n, ...]`. They are empty entries if the archive is empty.
    """
    index = jax.random.randint(key, (num_elites,), 0, jnp.maximum(state.filled, 1))
    return gather_elites(state.elites, state.order[index])


def best_elite(state: CellsState) -> ScoredSolutions:
    """Return the elite with the highest fitness."""
    return jax.tree.map(lambda row: row[0], gather_elites(state.elites, state.best[None]))


def gather_elites(elites: ScoredSolutions, indices: jax.Array) -> ScoredSolutions:
    """Return the elites at `indices`, int32 `[n]`, replicated on every device."""
    return tree.constrain_sharding(jax.tree.map(lambda rows: rows[indices], elites), False)
