"""Archives of a Pareto front a cell, for several objectives at once (MOME).

Pierrot et al. 2022, arXiv:2202.03057. A front holds solutions none of which is as good as another in every objective and better
in one. Where a full front would grow, the most crowded of its solutions leaves (Janmohamed et al. 2023, arXiv:2302.12668), of
equally crowded ones the last, where the first paper takes a random one. Solutions are added one after the other, in order.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.archives.cells import Cells, at, best, check_cells, solutions
from rollax.archives.core import BETTER, NEW, REJECTED, Added, Archive, Counts, Elites, Scored, qd_metrics, sound
from rollax.errors import UsageError


class FrontsState(NamedTuple):
    """Everything that changes, and what belongs to the cells. Leaves of `elites` lead with `[C * F]`, a front after the other;
    their extras are the objectives `[C * F, M]`."""

    cells: Any
    elites: Scored  # fitness is -inf where there is none
    order: jax.Array  # int32 [C]: the cells in the order in which they were filled
    filled: jax.Array  # int32 []: how many are filled
    best: jax.Array  # int32 []: the place of the elite of highest fitness


def fronts(cells: Cells, front_size: int, reference: tuple[float, ...]) -> Archive:
    """An archive of fronts of up to `front_size` (F) solutions. Solutions come with objectives `[B, M]` as extras.

    `reference`: the point that hypervolumes are measured from, one number for each objective. `size` is C * F.

    Raises UsageError for cells that are no cells, and sizes beyond what can be counted.
    """
    check_cells(cells)
    if front_size < 1 or cells.size * front_size >= 2**31:
        raise UsageError(f"front_size ({front_size}) must be at least 1, and with {cells.size:,} cells less than 2^31 in all")
    size = cells.size * front_size

    def init(key: jax.Array, example: Scored) -> FrontsState:
        shape = getattr(example.extras, "shape", ())
        if shape != (len(reference),):
            raise UsageError(f"reference {reference} must have a number for each objective, but solutions come with {shape}")
        rows = jax.tree.map(lambda x: jnp.zeros((size, *jnp.shape(x)), jnp.result_type(x)), example)
        return without_elites(cells, cells.make(key), rows)

    def elites(state: FrontsState) -> Elites:
        center = jnp.repeat(cells.center_of(state.cells), front_size, axis=0)
        mask = state.elites.fitness > -jnp.inf
        return Elites(state.elites, mask, center, jnp.asarray(cells.is_grid), jnp.asarray(front_size))

    def num_elites(state: FrontsState) -> jax.Array:
        return jnp.sum(state.elites.fitness > -jnp.inf, dtype=jnp.int32)

    return Archive(
        init=init,
        add=functools.partial(add, cells, front_size),
        sample=functools.partial(sample, front_size),
        elites=elites,
        num_elites=num_elites,
        best=best,
        with_best=lambda state, place: state._replace(best=jnp.asarray(place, jnp.int32)),
        metrics=functools.partial(front_metrics, front_size, reference),
        size=size,
        low=cells.low,
        high=cells.high,
        empty=lambda state: without_elites(cells, state.cells, jax.tree.map(jnp.zeros_like, state.elites)),
        cell_of=lambda state, descriptor: cells.cell_of(state.cells, descriptor),
        num_cells=cells.size,
        placement=solutions,
    )


def without_elites(cells: Cells, made: Any, rows: Scored) -> FrontsState:
    """A state without elites. `rows`: zeros `[C * F, ...]` like those that elites will be in."""
    elites, zero = rows._replace(fitness=jnp.full(rows.fitness.shape, -jnp.inf)), jnp.zeros((), jnp.int32)
    return FrontsState(made, elites, jnp.zeros(cells.size, jnp.int32), zero, zero)


def add(cells: Cells, front_size: int, state: FrontsState, batch: Scored) -> tuple[FrontsState, Added, Counts]:
    """The archive after a batch `[B]`. Improvement is that of the best fitness in the cell before the batch."""
    finite, descriptor, outside = sound(batch, cells.low, cells.high)
    cell = cells.cell_of(state.cells, descriptor)
    before = jnp.max(state.elites.fitness.reshape(cells.size, front_size)[cell], axis=1)
    was_empty = before == -jnp.inf
    state, (entered, filled) = jax.lax.scan(functools.partial(add_one, front_size), state, (batch, cell, finite))
    status = jnp.where(entered, jnp.where(was_empty, NEW, BETTER), REJECTED).astype(jnp.int32)
    improvement = jnp.where(was_empty, batch.fitness, batch.fitness - before)
    counts = Counts(*(jnp.sum(x, dtype=jnp.float32) for x in (filled, entered & ~filled, outside, ~finite)))
    state = state._replace(best=jnp.argmax(state.elites.fitness).astype(jnp.int32))
    return state, Added(status, jnp.where(finite, improvement, -jnp.inf)), counts


def sample(front_size: int, state: FrontsState, key: jax.Array, number: int) -> Scored:
    """Elites `[n]`, with replacement: a cell uniformly, then one of its front."""
    cell_key, place_key = jax.random.split(key)
    cell = state.order[jax.random.randint(cell_key, (number,), 0, jnp.maximum(state.filled, 1))]
    mask = state.elites.fitness.reshape(-1, front_size)[cell] > -jnp.inf
    rank = jax.random.randint(place_key, (number, 1), 0, jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1))
    within = jnp.argmax(mask & (jnp.cumsum(mask, axis=1) == rank + 1), axis=1)
    return at(state.elites, cell * front_size + within)


def front_metrics(front_size: int, reference: tuple[float, ...], state: FrontsState, offset: Any) -> dict[str, jax.Array]:
    """Besides the metrics of the fittest in every cell: `moqd_score`, the sum over cells of the hypervolume of their fronts,
    `hypervolume` of all elites (with two objectives), and `front_mean`, how many elites a filled cell has."""
    mask = (state.elites.fitness > -jnp.inf).reshape(-1, front_size)
    objectives = state.elites.extras.reshape(-1, front_size, len(reference))
    volumes = jax.vmap(lambda front, mask: hypervolume(front, mask, reference))(objectives, mask)
    best = jnp.max(state.elites.fitness.reshape(-1, front_size), axis=1)
    of_fronts = {"moqd_score": jnp.sum(volumes), "front_mean": jnp.sum(mask) / jnp.maximum(state.filled, 1)}
    if len(reference) == 2:  # with more objectives it would take time that grows with the square of all places
        of_fronts["hypervolume"] = hypervolume(state.elites.extras, mask.reshape(-1), reference)
    return qd_metrics(best, best > -jnp.inf, offset) | of_fronts


def add_one(front_size: int, state: FrontsState, row: Any) -> tuple[FrontsState, tuple[jax.Array, jax.Array]]:
    """The archive after one solution, whether it entered, and whether it filled an empty cell, bool [] each."""
    solution, cell, is_finite = row
    start = cell * front_size
    objectives = jax.lax.dynamic_slice_in_dim(state.elites.extras, start, front_size)
    fitness = jax.lax.dynamic_slice_in_dim(state.elites.fitness, start, front_size)
    mask = fitness > -jnp.inf
    # An equal one that was there before counts as better, so that of copies the first stays.
    enters = is_finite & ~jnp.any(mask & jnp.all(objectives >= solution.extras[None], axis=1))
    stays = mask & ~(enters & jnp.all(objectives <= solution.extras[None], axis=1))
    points = jnp.concatenate([objectives, solution.extras[None]])
    slot = jax.lax.cond(jnp.all(stays), most_crowded, lambda points, stays: jnp.argmin(stays), points, stays)
    enters &= slot < front_size  # else the new one is the most crowded itself
    kept = jnp.where(stays, fitness, -jnp.inf)
    elites = state.elites._replace(fitness=jax.lax.dynamic_update_slice_in_dim(state.elites.fitness, kept, start, 0))
    place = jnp.where(enters, start + slot, state.elites.fitness.shape[0])
    elites = jax.tree.map(lambda rows, new: rows.at[place].set(new, mode="drop"), elites, solution)
    is_new = enters & ~jnp.any(mask)
    order = state.order.at[jnp.where(is_new, state.filled, state.order.shape[0])].set(cell, mode="drop")
    return state._replace(elites=elites, order=order, filled=state.filled + is_new), (enters, is_new)


def most_crowded(points: jax.Array, stays: jax.Array) -> jax.Array:
    """The index of the most crowded of points `[F + 1, M]`, of equally crowded ones the last, int32 []."""
    del stays  # all do
    crowding = crowding_distance(points)
    return points.shape[0] - 1 - jnp.argmin(crowding[::-1])


def crowding_distance(points: jax.Array) -> jax.Array:
    """How far the neighbors of each point of a front are apart along every objective, as shares of its extent, float32 [N].

    Infinite at the ends; Deb et al. 2002, doi:10.1109/4235.996017, section III.B. `points`: `[N, M]`.
    """

    def along(values: jax.Array) -> jax.Array:
        order = jnp.argsort(values, stable=True)
        ranked = values[order]
        extent = ranked[-1] - ranked[0]
        gaps = jnp.append(ranked[1:], jnp.inf) - jnp.append(-jnp.inf, ranked[:-1])
        return jnp.zeros_like(values).at[order].set(gaps / jnp.where(extent > 0, extent, 1.0))

    return jnp.sum(jax.vmap(along, in_axes=1)(points), axis=0)


def hypervolume(points: jax.Array, mask: jax.Array, reference: tuple[float, ...]) -> jax.Array:
    """The volume between the reference point and points `[N, M]` where `mask`, float32 []; what is below it is left out.

    By slices along the last objective, so O(N^(M - 1) log N) for M of 2 and more.
    """
    above = jnp.where(mask[:, None], jnp.maximum(points - jnp.asarray([reference], jnp.float32), 0.0), 0.0)
    return _volume(above)


def _volume(above: jax.Array) -> jax.Array:
    if above.shape[1] == 1:
        return jnp.max(above, initial=0.0)
    above = above[jnp.argsort(-above[:, -1], stable=True)]
    depth = above[:, -1] - jnp.append(above[1:, -1], 0.0)
    if above.shape[1] == 2:
        return jnp.sum(depth * jax.lax.cummax(above[:, 0]))
    index = jnp.arange(above.shape[0])
    slices = jax.vmap(lambda last: _volume(jnp.where((index <= last)[:, None], above[:, :-1], 0.0)))(index)
    return jnp.sum(depth * slices)
