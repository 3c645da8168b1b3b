"""Archives with a Pareto front per cell, for several objectives (MOME).

Pierrot et al. 2022, arXiv:2202.03057. A front contains solutions that do not dominate each other.
When a solution enters a full front, the most crowded solution is removed (Janmohamed et al. 2023,
arXiv:2302.12668). If several solutions are equally crowded, the last one is removed. The original
paper removes a random solution. The solutions of a batch are inserted sequentially.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.archives.archive import (
    Archive,
    Elites,
    Insertion,
    InsertionResult,
    ScoredSolutions,
    count_insertions,
    find_valid_solutions,
    qd_metrics,
)
from rollax.archives.cells import (
    Cells,
    best_elite,
    check_cells,
    gather_elites,
    insertion_status,
    make_solution_placement,
)
from rollax.archives.rows import (
    clear_rows,
    find_best_row,
    is_filled,
    make_empty_rows,
    set_best,
)
from rollax.errors import UsageError
from rollax.types import PyTree, Scalar


class ParetoFrontsState(NamedTuple):
    """State of an archive with a Pareto front of up to F solutions in each of C cells.

    Attributes:
        cells: Data of the cells, as returned by `Cells.make`.
        elites: Elites `[C * F, ...]`, one front after the other, with fitness -inf in empty
            entries. Their extras are the objectives `[C * F, M]`.
        order: Indices of the filled cells in the order of their first insertion, int32 `[C]`. Only
            the first `filled` entries are valid.
        filled: Number of filled cells, int32 `[]`.
        best: Index of the elite with the highest fitness, int32 `[]`.
    """

    cells: Any
    elites: ScoredSolutions
    order: jax.Array
    filled: jax.Array
    best: jax.Array


def pareto_front_archive(cells: Cells, front_size: int, reference: tuple[float, ...]) -> Archive:
    """Build an archive with a Pareto front of up to F solutions in each of C cells.

    The extras of solutions are the objectives `[B, M]`. The size of the archive is C * F.

    Args:
        cells: The cells.
        front_size: Maximum number of solutions per front, F.
        reference: Reference point of the hypervolume, M numbers.

    Returns:
        The archive. Its `init` raises a `UsageError` if the extras are not M objectives.

    Raises:
        UsageError: If the cells are not valid, or `front_size` is below 1 or too large.
    """
    check_cells(cells)
    if front_size < 1 or cells.size * front_size >= 2**31:
        raise UsageError(
            "front_size must be at least 1, and front_size x cells must be less than 2^31, got "
            f"{front_size} x {cells.size:,}."
        )
    size = cells.size * front_size

    def init(key: jax.Array, example: ScoredSolutions) -> ParetoFrontsState:
        shape = getattr(example.extras, "shape", ())
        if shape != (len(reference),):
            raise UsageError(
                f"reference must have one number per objective, got {reference} for objectives "
                f"of shape {shape}."
            )
        return make_empty_state(cells, cells.make(key), make_empty_rows(example, size))

    def elites(state: ParetoFrontsState) -> Elites:
        center = jnp.repeat(cells.center_of(state.cells), front_size, axis=0)
        return Elites(
            solutions=state.elites,
            mask=is_filled(state.elites),
            center=center,
            is_grid=jnp.asarray(cells.is_grid),
            num_per_cell=jnp.asarray(front_size),
        )

    def num_elites(state: ParetoFrontsState) -> jax.Array:
        return jnp.sum(is_filled(state.elites), dtype=jnp.int32)

    return Archive(
        init=init,
        add=functools.partial(add_batch, cells, front_size),
        sample=functools.partial(sample_elites, front_size),
        elites=elites,
        num_elites=num_elites,
        best=best_elite,
        with_best=set_best,
        metrics=functools.partial(front_metrics, front_size, reference),
        size=size,
        low=cells.low,
        high=cells.high,
        empty=lambda state: make_empty_state(cells, state.cells, clear_rows(state.elites)),
        cell_of=lambda state, descriptor: cells.cell_of(state.cells, descriptor),
        num_cells=cells.size,
        placement=make_solution_placement,
    )


def make_empty_state(cells: Cells, cells_data: PyTree, rows: ScoredSolutions) -> ParetoFrontsState:
    """Return a state without elites.

    Args:
        cells: The cells.
        cells_data: Data of the cells, as returned by `Cells.make`.
        rows: Empty entries `[C * F, ...]`, as returned by `make_empty_rows`.

    Returns:
        The state.
    """
    zero = jnp.zeros((), jnp.int32)
    return ParetoFrontsState(
        cells=cells_data,
        elites=rows,
        order=jnp.zeros(cells.size, jnp.int32),
        filled=zero,
        best=zero,
    )


def add_batch(
    cells: Cells, front_size: int, state: ParetoFrontsState, batch: ScoredSolutions
) -> Insertion:
    """Insert a batch `[B]` into the archive.

    The improvement is relative to the best fitness in the cell before the batch.

    Args:
        cells: The cells.
        front_size: Maximum number of solutions per front.
        state: State of the archive.
        batch: Scored batch, `[B, ...]`.

    Returns:
        The new state, the insertion result of each solution, and the counts.
    """
    validity = find_valid_solutions(batch, cells.low, cells.high)
    cell = cells.cell_of(state.cells, validity.descriptor)
    old_fitness = jnp.max(state.elites.fitness.reshape(cells.size, front_size)[cell], axis=1)
    was_empty = old_fitness == -jnp.inf
    solutions = PlacedSolution(solution=batch, cell=cell, is_finite=validity.finite)
    state, (is_inserted, is_new) = jax.lax.scan(
        functools.partial(add_solution, front_size), state, solutions
    )
    improvement = jnp.where(was_empty, batch.fitness, batch.fitness - old_fitness)
    return Insertion(
        state=state._replace(best=find_best_row(state.elites)),
        result=InsertionResult(
            status=insertion_status(is_inserted, was_empty),
            improvement=jnp.where(validity.finite, improvement, -jnp.inf),
        ),
        counts=count_insertions(new=is_new, better=is_inserted & ~is_new, validity=validity),
    )


def sample_elites(
    front_size: int, state: ParetoFrontsState, key: jax.Array, num_elites: int
) -> ScoredSolutions:
    """Sample n elites with replacement: first a filled cell, then an elite of its front, uniformly.

    Args:
        front_size: Maximum number of solutions per front.
        state: State of the archive.
        key: Random key.
        num_elites: Number of elites n.

    Returns:
        The elites.
    """
    cell_key, place_key = jax.random.split(key)
    cell = state.order[jax.random.randint(cell_key, (num_elites,), 0, jnp.maximum(state.filled, 1))]
    mask = state.elites.fitness.reshape(-1, front_size)[cell] > -jnp.inf
    rank = jax.random.randint(
        place_key, (num_elites, 1), 0, jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1)
    )
    offset = jnp.argmax(mask & (jnp.cumsum(mask, axis=1) == rank + 1), axis=1)
    return gather_elites(state.elites, cell * front_size + offset)


def front_metrics(
    front_size: int, reference: tuple[float, ...], state: ParetoFrontsState, offset: Scalar
) -> dict[str, jax.Array]:
    """Return the QD metrics of the fittest elite in each cell, and metrics of the fronts.

    Args:
        front_size: Maximum number of solutions per front.
        reference: Reference point of the hypervolume, M numbers.
        state: State of the archive.
        offset: Offset of the QD score.

    Returns:
        The metrics of `qd_metrics`, "moqd_score" (sum of the hypervolumes of all fronts) and
        "front_mean" (mean number of elites per filled cell). For two objectives, also "hypervolume"
        (hypervolume of all elites together).
    """
    mask = (state.elites.fitness > -jnp.inf).reshape(-1, front_size)
    objectives = state.elites.extras.reshape(-1, front_size, len(reference))
    volumes = jax.vmap(lambda front, mask: hypervolume(front, mask, reference))(objectives, mask)
    best = jnp.max(state.elites.fitness.reshape(-1, front_size), axis=1)
    metrics = {
        "moqd_score": jnp.sum(volumes),
        "front_mean": jnp.sum(mask) / jnp.maximum(state.filled, 1),
    }
    if (
        len(reference) == 2
    ):  # With more objectives, the time grows with the square of the number of entries.
        metrics["hypervolume"] = hypervolume(state.elites.extras, mask.reshape(-1), reference)
    return qd_metrics(best, best > -jnp.inf, offset) | metrics


class PlacedSolution(NamedTuple):
    """Scored solution with the index of its cell, to be inserted.

    Attributes:
        solution: Scored solution.
        cell: Index of the cell of the solution's descriptor, int32 `[]`.
        is_finite: Whether all scores of the solution are finite, bool `[]`.
    """

    solution: ScoredSolutions
    cell: jax.Array
    is_finite: jax.Array


def add_solution(
    front_size: int, state: ParetoFrontsState, candidate: PlacedSolution
) -> tuple[ParetoFrontsState, tuple[jax.Array, jax.Array]]:
    """Insert one solution into the front of its cell, unless an elite there dominates or equals it.

    Elites that the solution dominates are removed. If the front is full, the most crowded solution
    is removed.

    Args:
        front_size: Maximum number of solutions per front.
        state: State of the archive.
        candidate: Solution to insert.

    Returns:
        The state, and a tuple of two bools `[]`: whether the solution was inserted, and whether its
        cell was empty before.
    """
    solution, cell, is_finite = candidate
    start = cell * front_size
    objectives = jax.lax.dynamic_slice_in_dim(state.elites.extras, start, front_size)
    fitness = jax.lax.dynamic_slice_in_dim(state.elites.fitness, start, front_size)
    mask = fitness > -jnp.inf
    # An existing equal solution counts as better, so that the first of several copies is kept.
    is_inserted = is_finite & ~jnp.any(mask & jnp.all(objectives >= solution.extras[None], axis=1))
    is_retained = mask & ~(is_inserted & jnp.all(objectives <= solution.extras[None], axis=1))
    points = jnp.concatenate([objectives, solution.extras[None]])
    slot = jax.lax.cond(
        jnp.all(is_retained),
        most_crowded_index,
        lambda points, is_retained: jnp.argmin(is_retained),
        points,
        is_retained,
    )
    is_inserted &= slot < front_size  # otherwise the new solution is the most crowded one
    retained_fitness = jnp.where(is_retained, fitness, -jnp.inf)
    elites = state.elites._replace(
        fitness=jax.lax.dynamic_update_slice_in_dim(
            state.elites.fitness, retained_fitness, start, 0
        )
    )
    row = jnp.where(is_inserted, start + slot, state.elites.fitness.shape[0])
    elites = jax.tree.map(
        lambda rows, value: rows.at[row].set(value, mode="drop"), elites, solution
    )
    is_new = is_inserted & ~jnp.any(mask)
    order = state.order.at[jnp.where(is_new, state.filled, state.order.shape[0])].set(
        cell, mode="drop"
    )
    return state._replace(elites=elites, order=order, filled=state.filled + is_new), (
        is_inserted,
        is_new,
    )


def most_crowded_index(points: jax.Array, is_retained: jax.Array) -> jax.Array:
    """Return the index of the most crowded point of `[F + 1, M]`. Ties go to the highest index.

    `is_retained` is unused. Both branches of `jax.lax.cond` need the same signature.
    """
    del is_retained
    crowding = crowding_distance(points)
    return points.shape[0] - 1 - jnp.argmin(crowding[::-1])


def crowding_distance(points: jax.Array) -> jax.Array:
    """Return the crowding distance of each point of a front, float32 `[N]`.

    For each objective, the gap between the two neighbors of the point is divided by the range of
    the objective in the front. The crowding distance is the sum over objectives. It is infinite for
    the minimum and the maximum of an objective (Deb et al. 2002, doi:10.1109/4235.996017, section
    III.B).

    Args:
        points: Objectives of the N points of a front, `[N, M]`.

    Returns:
        The crowding distances.
    """

    def normalized_gaps(values: jax.Array) -> jax.Array:
        order = jnp.argsort(values, stable=True)
        ranked = values[order]
        extent = ranked[-1] - ranked[0]
        gaps = jnp.append(ranked[1:], jnp.inf) - jnp.append(-jnp.inf, ranked[:-1])
        return jnp.zeros_like(values).at[order].set(gaps / jnp.where(extent > 0, extent, 1.0))

    return jnp.sum(jax.vmap(normalized_gaps, in_axes=1)(points), axis=0)


def hypervolume(points: jax.Array, mask: jax.Array, reference: tuple[float, ...]) -> jax.Array:
    """Return the hypervolume that a set of points dominates above a reference point, float32 `[]`.

    The hypervolume is the sum of slices along the last objective. The cost is O(N^(M - 1) log N)
    for M >= 2. A point below the reference point in any objective contributes 0.

    Args:
        points: Objectives of N points, `[N, M]`.
        mask: Whether to include each point, bool `[N]`.
        reference: Reference point, M numbers.

    Returns:
        The hypervolume.
    """
    above = jnp.where(
        mask[:, None], jnp.maximum(points - jnp.asarray([reference], jnp.float32), 0.0), 0.0
    )
    return _hypervolume_above_origin(above)


def _hypervolume_above_origin(points: jax.Array) -> jax.Array:
    if points.shape[1] == 1:
        return jnp.max(points, initial=0.0)
    points = points[jnp.argsort(-points[:, -1], stable=True)]
    depth = points[:, -1] - jnp.append(points[1:, -1], 0.0)
    if points.shape[1] == 2:
        return jnp.sum(depth * jax.lax.cummax(points[:, 0]))
    index = jnp.arange(points.shape[0])
    slices = jax.vmap(
        lambda last: _hypervolume_above_origin(
            jnp.where((index <= last)[:, None], points[:, :-1], 0.0)
        )
    )(index)
    return jnp.sum(depth * slices)
