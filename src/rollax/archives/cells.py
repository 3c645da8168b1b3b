"""Archives of one solution a cell: the best that fell into it. What a cell is, is a function of the descriptor.

An addition costs O(B), however many cells there are: everything it touches is gathered and scattered at the cells of the batch.
So are a sample of n elites and the best one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.algorithm import marked
from rollax.archives.core import BETTER, NEW, REJECTED, Added, Archive, Counts, Elites, Scored, qd_metrics, sound
from rollax.errors import UsageError

# (what the cells need, descriptor [B, K]) -> int32 [B] within 0 ... C - 1
CellFn = Callable[[Any, jax.Array], jax.Array]


class Cells(NamedTuple):
    """What divides descriptors into cells."""

    size: int
    low: tuple[float, ...]  # bounds of descriptors, K numbers each
    high: tuple[float, ...]
    make: Callable[[jax.Array], Any]  # key -> what the functions below need, such as centroids
    cell_of: CellFn
    center_of: Callable[[Any], jax.Array]  # -> float32 [C, K]
    is_grid: bool  # cells are those of a grid, in row-major order


class Threshold(NamedTuple):
    """A threshold of acceptance for every cell that rises slowly (CMA-MAE, Fontaine and Nikolaidis 2023, arXiv:2205.10752).

    A solution is accepted that is above the threshold of its cell, which then moves towards it by `learning_rate`: with 0 it
    stays where it begins, with 1 it is the fitness accepted last. The elite of a cell is the best one ever accepted.
    """

    start: Any = 0.0  # where thresholds begin
    learning_rate: Any = 0.01


class CellsState(NamedTuple):
    """Everything that changes, and what belongs to the cells. Leaves of `elites` lead with `[C]`."""

    cells: Any
    elites: Scored  # fitness is -inf where a cell is empty
    threshold: jax.Array | None  # float32 [C]; None where it is the fitness
    order: jax.Array  # int32 [C]: the cells in the order in which they were filled
    filled: jax.Array  # int32 []: how many are filled
    best: jax.Array  # int32 []: the cell of the best elite; of equals, the one that came first
    claims: jax.Array  # int32 [C]: all UNCLAIMED between additions


UNCLAIMED = 2**31 - 1


def cells_archive(cells: Cells, threshold: Threshold | None = None) -> Archive:
    """An archive of these cells. Raises UsageError for bounds that are no bounds, and sizes beyond what can be counted."""
    size, low, high, make_cells, cell_of, center_of, is_grid = cells
    check_cells(cells)

    def init(key: jax.Array, example: Scored) -> CellsState:
        rows = jax.tree.map(lambda x: jnp.zeros((size, *jnp.shape(x)), jnp.result_type(x)), example)
        return without_elites(make_cells(key), rows, threshold)

    def add(state: CellsState, batch: Scored) -> tuple[CellsState, Added, Counts]:
        finite, descriptor, outside = sound(batch, low, high)
        cell = cell_of(state.cells, descriptor)
        fitness = jnp.where(finite, batch.fitness, -jnp.inf)
        old = state.elites.fitness[cell]
        is_empty = old == -jnp.inf
        accepted, improvement = evaluate_batch(state.threshold, cell, fitness, old, is_empty, threshold)
        status = jnp.where(accepted, jnp.where(is_empty, NEW, BETTER), REJECTED).astype(jnp.int32)
        wins, state = winners(state, cell, fitness, accepted & (fitness > old))
        state = write(state, cell, wins, wins & is_empty, batch)
        if threshold is not None:
            state = updated_thresholds(state, cell, fitness, accepted, threshold)
        counts = Counts(*(jnp.sum(x, dtype=jnp.float32) for x in (wins & is_empty, wins & ~is_empty, outside, ~finite)))
        return state, Added(status, improvement), counts

    def metrics(state: CellsState, offset: Any) -> dict[str, jax.Array]:
        return qd_metrics(state.elites.fitness, state.elites.fitness > -jnp.inf, offset)

    def elites(state: CellsState) -> Elites:
        return Elites(state.elites, state.elites.fitness > -jnp.inf, center_of(state.cells), jnp.asarray(is_grid))

    with_best = lambda state, place: state._replace(best=jnp.asarray(place, jnp.int32))  # noqa: E731
    looks = {
        "empty": lambda state: without_elites(state.cells, jax.tree.map(jnp.zeros_like, state.elites), threshold),
        "cell_of": lambda state, descriptor: cell_of(state.cells, descriptor),
        "num_cells": size,
        "placement": solutions,
    }
    return Archive(init, add, sample, elites, lambda state: state.filled, best, with_best, metrics, size, low, high, **looks)


def solutions(state: Any) -> Any:
    """A function for `Archive.placement`: the elites' solutions are split; what is small and read as a whole is on all."""
    marks = marked(state, False)
    return marks._replace(elites=marks.elites._replace(solution=marked(state.elites.solution)))


def without_elites(cells: Any, rows: Scored, threshold: Threshold | None) -> CellsState:
    """A state without elites. `rows`: zeros `[C, ...]` like those that elites will be in."""
    size = rows.fitness.shape[0]
    start = None if threshold is None else jnp.full(size, threshold.start, jnp.float32)
    zero, places = jnp.zeros((), jnp.int32), jnp.zeros(size, jnp.int32)
    elites = rows._replace(fitness=jnp.full(size, -jnp.inf))
    return CellsState(cells, elites, start, places, zero, zero, jnp.full(size, UNCLAIMED, jnp.int32))


def metrics_within(cells: Cells, elites: Scored, offset: Any) -> dict[str, jax.Array]:
    """The metrics that elites `[N]` of an archive without cells have when the best of them in each of these cells counts."""
    best = jax.ops.segment_max(elites.fitness, cells.cell_of((), elites.descriptor), cells.size)
    return qd_metrics(best, best > -jnp.inf, offset)


def check_cells(cells: Cells) -> None:
    """Raises UsageError for bounds that are no bounds, and for more cells than can be counted."""
    check_bounds(cells.low, cells.high)
    if not 1 <= cells.size < 2**31:
        raise UsageError(
            f"an archive of {cells.size:,} cells must have between 1 and 2,147,483,647: take fewer cells a dimension"
        )


def check_bounds(low: tuple[float, ...], high: tuple[float, ...]) -> None:
    """Raises UsageError for bounds of descriptors that are infinite, reversed, or of different numbers of dimensions."""
    if len(low) != len(high) or not low:
        raise UsageError(f"descriptors have {len(low)} lower and {len(high)} upper bounds: give one of each a dimension")
    for dimension, (lower, upper) in enumerate(zip(low, high, strict=True)):
        if not -float("inf") < lower < upper < float("inf"):
            raise UsageError(
                f"the bounds of descriptor {dimension} ({lower:g} to {upper:g}) must be finite, the lower one first"
            )


def evaluate_batch(
    thresholds: jax.Array | None,
    cell: jax.Array,
    fitness: jax.Array,
    old: jax.Array,
    is_empty: jax.Array,
    threshold: Threshold | None,
) -> tuple[jax.Array, jax.Array]:
    """Which solutions are accepted, and by how much each is better than what its cell asks for, `[B]`.

    Without thresholds the improvement of the first in a cell is its fitness (Fontaine et al. 2020, arXiv:1912.02400).
    """
    if thresholds is None or threshold is None:
        improvement = jnp.where(is_empty, fitness, fitness - old)
        return fitness > old, jnp.where(fitness == -jnp.inf, -jnp.inf, improvement)
    improvement = fitness - thresholds[cell]
    return improvement > 0, improvement


def first_of_each(state: CellsState, cell: jax.Array, mask: jax.Array) -> tuple[jax.Array, CellsState]:
    """The index of the first solution where `mask` in each solution's cell, int32 [B], UNCLAIMED where there is none."""
    return min_of_each(state, cell, jnp.arange(cell.shape[0], dtype=jnp.int32), mask)


def min_of_each(state: CellsState, cell: jax.Array, value: jax.Array, mask: jax.Array) -> tuple[jax.Array, CellsState]:
    """The minimum in each solution's cell of the values, int32 [B], where `mask`; UNCLAIMED where there is none."""
    at = jnp.where(mask, cell, state.claims.shape[0])
    claims = state.claims.at[at].min(value, mode="drop")
    minimum = claims[cell]
    # Only the cells of the batch are reset, so that no addition pays for the others. The reset depends on what was read: if it
    # could come first, XLA would copy all claims.
    reset = jnp.where(minimum == UNCLAIMED, minimum, UNCLAIMED)
    return minimum, state._replace(claims=claims.at[at].set(reset, mode="drop"))


def descending(fitness: jax.Array) -> jax.Array:
    """int32 in the reverse order of float32 fitness, equal where it is: negative floats are ordered by their bits reversed."""
    bits = jax.lax.bitcast_convert_type(jnp.where(fitness == 0, 0.0, fitness), jnp.int32)  # -0 is 0
    return ~jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def winners(state: CellsState, cell: jax.Array, fitness: jax.Array, competes: jax.Array) -> tuple[jax.Array, CellsState]:
    """Which solution wins each cell, bool [B]: of those that compete, the highest fitness, of equals the lowest index."""
    value = descending(fitness)
    best, state = min_of_each(state, cell, value, competes)
    is_best = competes & (value == best)
    first, state = first_of_each(state, cell, is_best)
    return is_best & (first == jnp.arange(cell.shape[0])), state


def write(state: CellsState, cell: jax.Array, wins: jax.Array, is_new: jax.Array, batch: Scored) -> CellsState:
    """The state with the winners in their cells, which are distinct, and in the order of cells."""
    size = state.order.shape[0]
    at = jnp.where(wins, cell, size)
    elites = jax.tree.map(lambda rows, x: rows.at[at].set(x, mode="drop"), state.elites, batch)
    place = jnp.where(is_new, state.filled + jnp.cumsum(is_new) - 1, size)
    order = state.order.at[place].set(cell, mode="drop")
    filled = state.filled + jnp.sum(is_new, dtype=jnp.int32)
    # A cell never gets worse, so the best is the best before or one of the winners. Fitness is read after it is written: for a
    # read of what was before, XLA would copy that of all cells.
    fitness = jnp.where(wins, batch.fitness, -jnp.inf)
    first = jnp.argmax(fitness)
    is_better = (fitness[first] > elites.fitness[state.best]) | jnp.any(wins & (cell == state.best))
    best = jnp.where(is_better, cell[first], state.best)
    return state._replace(elites=elites, order=order, filled=filled, best=best)


def updated_thresholds(
    state: CellsState, cell: jax.Array, fitness: jax.Array, accepted: jax.Array, threshold: Threshold
) -> CellsState:
    """The thresholds after a batch: t' = (1 - a)^n t + (1 - (1 - a)^n) mean f, over the n accepted solutions of a cell.

    The rule for batches of Fontaine and Nikolaidis 2023, arXiv:2205.10752, appendix.
    """
    size, thresholds = cell.shape[0], state.threshold
    assert thresholds is not None
    # One row of the batch stands for each cell, so that sums are over `[B]` and never over `[C]`.
    row, state = first_of_each(state, cell, accepted)
    row = jnp.where(accepted, row, size)
    number, total = (jax.ops.segment_sum(x, row, size)[row] for x in (jnp.ones(size), fitness))
    keep = (1.0 - threshold.learning_rate) ** number
    new = keep * thresholds[cell] + (1 - keep) * total / number
    at = jnp.where(accepted, cell, state.order.shape[0])
    return state._replace(threshold=thresholds.at[at].set(new, mode="drop"))


def sample(state: CellsState, key: jax.Array, number: int) -> Scored:
    """Members `[n]`, uniformly, with replacement; of an empty archive its zeros."""
    index = jax.random.randint(key, (number,), 0, jnp.maximum(state.filled, 1))
    return at(state.elites, state.order[index])


def best(state: CellsState) -> Scored:
    return jax.tree.map(lambda row: row[0], at(state.elites, state.best[None]))


def at(elites: Scored, places: jax.Array) -> Scored:
    """The elites at places int32 `[n]`: on every device, wherever they lie."""
    return tree.spread(jax.tree.map(lambda rows: rows[places], elites), False)
