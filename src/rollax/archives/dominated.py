"""A population without cells that keeps who is far from everyone fitter: dominated novelty search.

Bahlous-Boldi, Faldor et al. 2025, arXiv:2502.00593. The score that solutions compete by is the mean distance to the k nearest
among those that are fitter; who has none is kept. Deviation: of equally fit ones the first counts as fitter, not each for the
other, so that of copies one stays.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.archives.cells import check_cells, metrics_within
from rollax.archives.core import NEW, REJECTED, Added, Archive, Counts, Elites, Scored, sound
from rollax.archives.grid import grid_cells
from rollax.errors import UsageError


class PopulationState(NamedTuple):
    """Everything that changes. Rows `[C]`, those that are filled first, in the order in which they came."""

    elites: Scored  # fitness is -inf where there is none
    filled: jax.Array  # int32 []
    best: jax.Array  # int32 []: the row of the best


def dominated(size: int, low: tuple[float, ...], high: tuple[float, ...], num_neighbors: int, grid: tuple[int, ...]) -> Archive:
    """A population of `size` that competes by dominated novelty over `num_neighbors`; metrics are those of it laid on a `grid`.

    Raises UsageError for bounds that are no bounds, and sizes that do not fit together.
    """
    if not 1 <= num_neighbors < size:
        raise UsageError(f"num_neighbors ({num_neighbors}) must be between 1 and population_size - 1 ({size - 1})")
    cells = grid_cells(grid, low, high)
    check_cells(cells)

    def init(key: jax.Array, example: Scored) -> PopulationState:
        return without_elites(jax.tree.map(lambda x: jnp.zeros((size, *jnp.shape(x)), jnp.result_type(x)), example))

    def add(state: PopulationState, batch: Scored) -> tuple[PopulationState, Added, Counts]:
        finite, descriptor, outside = sound(batch, low, high)
        fitness = jnp.where(finite, batch.fitness, -jnp.inf)
        batch = batch._replace(fitness=fitness, descriptor=descriptor)
        union = jax.tree.map(lambda *parts: jnp.concatenate(parts), state.elites, batch)
        novelty = dominated_novelty(union.fitness, union.descriptor, num_neighbors)
        keep = jnp.sort(jnp.argsort(-novelty, stable=True)[:size])
        keep = keep[jnp.argsort(union.fitness[keep] == -jnp.inf, stable=True)]  # those that are there first
        elites = jax.tree.map(lambda rows: rows[keep], union)
        stays = jnp.zeros(union.fitness.shape, bool).at[keep].set(True)[size:] & finite
        filled = jnp.sum(elites.fitness > -jnp.inf, dtype=jnp.int32)
        grown = (filled - state.filled).astype(jnp.float32)
        counts = Counts(grown, jnp.sum(stays) - grown, jnp.sum(outside, dtype=jnp.float32), jnp.sum(~finite, dtype=jnp.float32))
        state = PopulationState(elites, filled, jnp.argmax(elites.fitness).astype(jnp.int32))
        return state, Added(jnp.where(stays, NEW, REJECTED).astype(jnp.int32), novelty[size:]), counts

    def sample(state: PopulationState, key: jax.Array, number: int) -> Scored:
        rows = jax.random.randint(key, (number,), 0, jnp.maximum(state.filled, 1))
        return jax.tree.map(lambda x: x[rows], state.elites)

    def metrics(state: PopulationState, offset: Any) -> dict[str, jax.Array]:
        return metrics_within(cells, state.elites, offset)

    def at_best(state: PopulationState) -> Scored:
        return jax.tree.map(lambda x: x[state.best], state.elites)

    def elites(state: PopulationState) -> Elites:
        return Elites(state.elites, state.elites.fitness > -jnp.inf, state.elites.descriptor, jnp.zeros((), bool))

    with_best = lambda state, place: state._replace(best=jnp.asarray(place, jnp.int32))  # noqa: E731
    looks = {
        "empty": lambda state: without_elites(jax.tree.map(jnp.zeros_like, state.elites)),
        "cell_of": lambda state, descriptor: cells.cell_of((), descriptor),
        "num_cells": cells.size,
    }
    return Archive(init, add, sample, elites, lambda state: state.filled, at_best, with_best, metrics, size, low, high, **looks)


def without_elites(rows: Scored) -> PopulationState:
    """A state without elites. `rows`: zeros `[C, ...]` like those that elites will be in."""
    zero = jnp.zeros((), jnp.int32)
    return PopulationState(rows._replace(fitness=jnp.full(rows.fitness.shape, -jnp.inf)), zero, zero)


def dominated_novelty(fitness: jax.Array, descriptor: jax.Array, num_neighbors: int) -> jax.Array:
    """The mean distance of each of N to the k nearest of those that are fitter, or to all of these if fewer, float32 [N].

    Infinite for the fittest, -inf where the fitness is.
    """
    index = jnp.arange(fitness.shape[0])
    is_equal = fitness[None, :] == fitness[:, None]
    is_fitter = (fitness[None, :] > fitness[:, None]) | (is_equal & (index[None, :] < index[:, None]))
    squares = jnp.sum((descriptor[:, None] - descriptor[None, :]) ** 2, axis=-1)
    distance = jnp.where(is_fitter, jnp.sqrt(squares), jnp.inf)

    def take(loop: tuple[jax.Array, ...], _: None) -> tuple[tuple[jax.Array, ...], None]:
        distance, total, number = loop
        smallest = jnp.min(distance, axis=1)
        # One at a time, so that the same distance may count several times.
        place = jnp.min(jnp.where(distance == smallest[:, None], index[None, :], index.shape[0]), axis=1)
        is_fitter_left = jnp.isfinite(smallest)
        distance = jnp.where(index[None, :] == place[:, None], jnp.inf, distance)
        return (distance, total + jnp.where(is_fitter_left, smallest, 0.0), number + is_fitter_left), None

    start = distance, jnp.zeros(fitness.shape), jnp.zeros(fitness.shape)
    (_, total, number), _ = jax.lax.scan(take, start, None, length=num_neighbors)
    novelty = jnp.where(number > 0, total / jnp.maximum(number, 1), jnp.inf)
    return jnp.where(fitness == -jnp.inf, -jnp.inf, novelty)
