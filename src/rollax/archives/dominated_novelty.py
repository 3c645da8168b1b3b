"""Archive of dominated novelty search, which keeps solutions that are far from fitter solutions.

Bahlous-Boldi, Faldor et al. 2025, arXiv:2502.00593. The solutions with the largest mean distance to
their k nearest fitter solutions survive. The fittest solution is always kept. Unlike in the paper,
the first of two solutions with the same fitness counts as fitter, so that one of several copies is
kept.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rollax.archives.archive import (
    STATUS_NEW,
    STATUS_REJECTED,
    Archive,
    Insertion,
    InsertionCounts,
    InsertionResult,
    ScoredSolutions,
    find_valid_solutions,
)
from rollax.archives.cells import check_cells, qd_metrics_in_cells
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
from rollax.types import Scalar


class PopulationState(NamedTuple):
    """State of a population of at most C solutions. Filled entries come first, oldest first.

    Attributes:
        elites: Solutions `[C, ...]`, with fitness -inf in empty entries.
        filled: Number of filled entries, int32 `[]`.
        best: Index of the solution with the highest fitness, int32 `[]`.
    """

    elites: ScoredSolutions
    filled: jax.Array
    best: jax.Array


def dominated_novelty_archive(
    size: int,
    low: tuple[float, ...],
    high: tuple[float, ...],
    num_neighbors: int,
    grid: tuple[int, ...],
) -> Archive:
    """Build an archive whose solutions compete by dominated novelty.

    Args:
        size: Maximum number of solutions C.
        low: Lower bounds of descriptors.
        high: Upper bounds of descriptors.
        num_neighbors: Number k of nearest fitter solutions over which distances are averaged.
        grid: Number of cells along each dimension of the grid that the metrics use.

    Returns:
        The archive.

    Raises:
        UsageError: If the bounds or the grid are not valid, or if `num_neighbors` is not between 1
            and `size` - 1.
    """
    if not 1 <= num_neighbors < size:
        raise UsageError(
            f"num_neighbors must be between 1 and population_size - 1 ({size - 1}), got "
            f"{num_neighbors}."
        )
    cells = grid_cells(grid, low, high)
    check_cells(cells)

    def init(key: jax.Array, example: ScoredSolutions) -> PopulationState:
        return make_empty_state(make_empty_rows(example, size))

    def empty(state: PopulationState) -> PopulationState:
        return make_empty_state(clear_rows(state.elites))

    def metrics(state: PopulationState, offset: Scalar) -> dict[str, jax.Array]:
        return qd_metrics_in_cells(cells, state.elites, offset)

    return Archive(
        init=init,
        add=functools.partial(add_batch, low, high, num_neighbors),
        sample=sample_rows_uniformly,
        elites=list_rows,
        num_elites=count_filled,
        best=read_best_row,
        with_best=set_best,
        metrics=metrics,
        size=size,
        low=low,
        high=high,
        empty=empty,
        cell_of=lambda state, descriptor: cells.cell_of((), descriptor),
        num_cells=cells.size,
    )


def make_empty_state(rows: ScoredSolutions) -> PopulationState:
    """Return a state without elites. `rows` has C empty entries, as from `make_empty_rows`."""
    zero = jnp.zeros((), jnp.int32)
    return PopulationState(elites=rows, filled=zero, best=zero)


def add_batch(
    low: tuple[float, ...],
    high: tuple[float, ...],
    num_neighbors: int,
    state: PopulationState,
    batch: ScoredSolutions,
) -> Insertion:
    """Insert a batch `[B]` and keep the solutions with the highest dominated novelty.

    Args:
        low: Lower bounds of descriptors.
        high: Upper bounds of descriptors.
        num_neighbors: Number of nearest fitter solutions.
        state: State of the population.
        batch: Scored batch.

    Returns:
        The new state, the insertion result of each solution, and the counts. The improvement of a
        solution is its dominated novelty.
    """
    size = state.elites.fitness.shape[0]
    finite, descriptor, outside = find_valid_solutions(batch, low, high)
    fitness = jnp.where(finite, batch.fitness, -jnp.inf)
    batch = batch._replace(fitness=fitness, descriptor=descriptor)
    union = jax.tree.map(lambda old, new: jnp.concatenate([old, new]), state.elites, batch)
    novelty = dominated_novelty(union.fitness, union.descriptor, num_neighbors)
    keep = select_survivors(novelty, union.fitness, size)
    elites = jax.tree.map(lambda rows: rows[keep], union)
    is_retained = jnp.zeros(union.fitness.shape, bool).at[keep].set(True)[size:] & finite
    filled = jnp.sum(is_filled(elites), dtype=jnp.int32)
    num_new = (filled - state.filled).astype(jnp.float32)
    status = jnp.where(is_retained, STATUS_NEW, STATUS_REJECTED).astype(jnp.int32)
    return Insertion(
        state=PopulationState(elites=elites, filled=filled, best=find_best_row(elites)),
        result=InsertionResult(status=status, improvement=novelty[size:]),
        counts=InsertionCounts(
            new=num_new,
            better=jnp.sum(is_retained) - num_new,
            outside=jnp.sum(outside, dtype=jnp.float32),
            nonfinite=jnp.sum(~finite, dtype=jnp.float32),
        ),
    )


def select_survivors(novelty: jax.Array, fitness: jax.Array, size: int) -> jax.Array:
    """Return the indices of the solutions with the highest novelty, in ascending order.

    Indices of empty entries come last.

    Args:
        novelty: Dominated novelty of N solutions, float32 `[N]`.
        fitness: Fitness, -inf in empty entries, float32 `[N]`.
        size: Number of solutions to keep.

    Returns:
        The indices, int32 `[size]`.
    """
    keep = jnp.sort(jnp.argsort(-novelty, stable=True)[:size])
    return keep[jnp.argsort(fitness[keep] == -jnp.inf, stable=True)]


class NeighborSearch(NamedTuple):
    """Search for the nearest fitter solutions of N solutions, one neighbor per iteration.

    Attributes:
        distance: Distance of each solution to the fitter solutions that are not found yet, inf for
            all other solutions, float32 `[N, N]`.
        total: Sum of the distances to the neighbors found so far, float32 `[N]`.
        num_found: Number of neighbors found so far, float32 `[N]`.
    """

    distance: jax.Array
    total: jax.Array
    num_found: jax.Array


def dominated_novelty(fitness: jax.Array, descriptor: jax.Array, num_neighbors: int) -> jax.Array:
    """Return the mean distance of each solution to its k nearest fitter solutions, float32 `[N]`.

    If fewer than k solutions are fitter, the mean is over all fitter solutions. The novelty is inf
    for the fittest solution, and -inf for a fitness of -inf.

    Args:
        fitness: Fitness, float32 `[N]`.
        descriptor: Descriptors, float32 `[N, K]`.
        num_neighbors: Number of neighbors k.

    Returns:
        The dominated novelty of each solution.
    """
    index = jnp.arange(fitness.shape[0])
    is_equal = fitness[None, :] == fitness[:, None]
    is_fitter = (fitness[None, :] > fitness[:, None]) | (
        is_equal & (index[None, :] < index[:, None])
    )
    squares = jnp.sum((descriptor[:, None] - descriptor[None, :]) ** 2, axis=-1)
    distance = jnp.where(is_fitter, jnp.sqrt(squares), jnp.inf)

    def add_nearest(search: NeighborSearch, _: None) -> tuple[NeighborSearch, None]:
        distance = search.distance
        smallest = jnp.min(distance, axis=1)
        # One at a time, so that equal distances count separately.
        nearest = jnp.min(
            jnp.where(distance == smallest[:, None], index[None, :], index.shape[0]), axis=1
        )
        is_fitter_left = jnp.isfinite(smallest)
        distance = jnp.where(index[None, :] == nearest[:, None], jnp.inf, distance)
        total = search.total + jnp.where(is_fitter_left, smallest, 0.0)
        return NeighborSearch(distance, total, search.num_found + is_fitter_left), None

    start = NeighborSearch(distance, jnp.zeros(fitness.shape), jnp.zeros(fitness.shape))
    search, _ = jax.lax.scan(add_nearest, start, None, length=num_neighbors)
    novelty = jnp.where(
        search.num_found > 0, search.total / jnp.maximum(search.num_found, 1), jnp.inf
    )
    return jnp.where(fitness == -jnp.inf, -jnp.inf, novelty)
