"""An archive without cells whose elites are a minimum distance apart in a space that it learns (AURORA).

Cully 2019, arXiv:1905.11874, with the control of size of Grillotti and Cully 2022, arXiv:2106.05648. An elite has a code: what
an autoencoder makes of what was seen of it, which comes as extras `[D]`. A solution enters where no code is nearer than the
distance, or in place of the nearest where it is fitter and no other code is that near: all elites are at least this distance
apart. Once an update the distance follows the number of elites towards a target, and at updates 1, 2, 4, 8, ... the autoencoder
learns anew from all elites; then those are added again, the fittest first.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.archives.cells import Cells, check_cells, metrics_within
from rollax.archives.core import BETTER, NEW, REJECTED, Added, Archive, Counts, Elites, Scored, sound
from rollax.archives.grid import grid_cells
from rollax.errors import UsageError
from rollax.learning import autoencoder

ROOM = 2  # places for each elite that is aimed at


class Learning(NamedTuple):
    """How codes are learnt."""

    code_size: int
    hidden: tuple[int, ...]
    num_steps: int  # of Adam, each time
    batch_size: int
    learning_rate: Any


class UnstructuredState(NamedTuple):
    """Everything that changes. Rows `[C]`, those that are filled first."""

    coder: autoencoder.CodeState
    elites: Scored  # fitness is -inf where there is none; extras are what was seen
    code: jax.Array  # float32 [C, K]
    distance: jax.Array  # float32 []: minimum distance between codes
    filled: jax.Array  # int32 []
    best: jax.Array  # int32 []: the row of the best
    updates: jax.Array  # int32 []


def unstructured(
    target_size: int, low: tuple[float, ...], high: tuple[float, ...], rate: Any, learning: Learning, grid: tuple[int, ...]
) -> Archive:
    """An archive of about `target_size` elites, at most twice as many. The distance changes by up to `rate` of it an update.

    `low`, `high`: bounds of the environment's own descriptors, which metrics lay on a `grid`.

    Raises UsageError for bounds that are no bounds, a grid that does not fit them, or more of its cells than can be counted.
    """
    cells, size = grid_cells(grid, low, high), ROOM * target_size
    check_cells(cells)

    def init(key: jax.Array, example: Scored) -> UnstructuredState:
        if getattr(example.extras, "ndim", 0) != 1:
            raise UsageError("an archive that learns descriptors needs what was seen of solutions, as rows of numbers")
        rows = jax.tree.map(lambda x: jnp.zeros((size, *jnp.shape(x)), jnp.result_type(x)), example)
        coder = autoencoder.begin(example.extras.shape[0], learning.code_size, learning.hidden, learning.learning_rate, key)
        code, zero = jnp.zeros((size, learning.code_size)), jnp.zeros((), jnp.int32)
        # Codes have deviation 1, so about as many as are aimed at are this far apart.
        distance = jnp.asarray(3.0 / target_size ** (1 / learning.code_size), jnp.float32)
        return UnstructuredState(coder, rows._replace(fitness=jnp.full(size, -jnp.inf)), code, distance, zero, zero, zero)

    def sample(state: UnstructuredState, key: jax.Array, number: int) -> Scored:
        rows = jax.random.randint(key, (number,), 0, jnp.maximum(state.filled, 1))
        return jax.tree.map(lambda x: x[rows], state.elites)

    def elites(state: UnstructuredState) -> Elites:
        return Elites(state.elites, state.elites.fitness > -jnp.inf, state.elites.descriptor, jnp.zeros((), bool))

    def empty(state: UnstructuredState) -> UnstructuredState:
        rows, zero = jax.tree.map(jnp.zeros_like, state.elites), jnp.zeros((), jnp.int32)
        elites = rows._replace(fitness=jnp.full(size, -jnp.inf))
        return state._replace(elites=elites, code=jnp.zeros_like(state.code), filled=zero, best=zero)

    return Archive(
        init=init,
        add=functools.partial(add, low, high),
        sample=sample,
        elites=elites,
        num_elites=lambda state: state.filled,
        best=lambda state: jax.tree.map(lambda x: x[state.best], state.elites),
        with_best=lambda state, place: state._replace(best=jnp.asarray(place, jnp.int32)),
        metrics=functools.partial(metrics, cells),
        size=size,
        low=low,
        high=high,
        empty=empty,
        cell_of=lambda state, descriptor: cells.cell_of((), descriptor),
        num_cells=cells.size,
        refresh=functools.partial(refresh, target_size, rate, learning),
    )


def add(
    low: tuple[float, ...], high: tuple[float, ...], state: UnstructuredState, batch: Scored
) -> tuple[UnstructuredState, Added, Counts]:
    """The archive after a batch `[B]`."""
    finite, _, outside = sound(batch, low, high)
    code = autoencoder.codes(state.coder, jnp.where(finite[:, None], batch.extras, 0.0))
    state, added = jax.lax.scan(add_one, state, (batch, code, finite))
    new, better = (jnp.sum(added.status == kind, dtype=jnp.float32) for kind in (NEW, BETTER))
    counts = Counts(new, better, *(jnp.sum(x, dtype=jnp.float32) for x in (outside, ~finite)))
    return state._replace(best=jnp.argmax(state.elites.fitness).astype(jnp.int32)), added, counts


def refresh(target_size: int, rate: Any, learning: Learning, state: UnstructuredState, key: jax.Array) -> UnstructuredState:
    """The archive before the next update: what it learns, and how far apart its elites are."""
    mask = state.elites.fitness > -jnp.inf
    updates = state.updates
    is_due = (updates > 0) & (updates & (updates - 1) == 0) & (state.filled > 0)
    steps = jnp.where(is_due, learning.num_steps, 0)
    rows, samples = state.elites.extras, min(learning.batch_size, state.code.shape[0])
    coder = autoencoder.learned(state.coder, rows, mask, steps, samples, learning.learning_rate, key)
    coder = tree.where(is_due, coder, state.coder)
    excess = (state.filled - target_size) / target_size
    distance = state.distance * (1 + jnp.where(state.filled > 0, rate * jnp.maximum(excess, -1.0), 0.0))
    state = state._replace(coder=coder, code=autoencoder.codes(coder, rows), distance=distance, updates=updates + 1)
    return thinned(state)


def metrics(cells: Cells, state: UnstructuredState, offset: Any) -> dict[str, jax.Array]:
    """Besides those of the elites within cells of the environment's descriptors: `num_elites`, the minimum `distance` of codes,
    and `reconstruction_loss`, the autoencoder's when it learned last."""
    own = {"num_elites": state.filled, "distance": state.distance, "reconstruction_loss": state.coder.loss}
    return metrics_within(cells, state.elites, offset) | {name: value.astype(jnp.float32) for name, value in own.items()}


def add_one(state: UnstructuredState, row: Any) -> tuple[UnstructuredState, Added]:
    """The archive after one solution, and what became of it, compared with its nearest neighbor."""
    solution, code, is_finite = row
    size = state.code.shape[0]
    away = jnp.sqrt(jnp.sum((state.code - code[None]) ** 2, axis=1))
    away = jnp.where(state.elites.fitness > -jnp.inf, away, jnp.inf)
    nearest = jnp.argmin(away)
    second = jnp.min(away.at[nearest].set(jnp.inf))
    old = state.elites.fitness[nearest]
    is_novel = away[nearest] > state.distance
    enters = is_finite & is_novel & (state.filled < size)
    replaces = is_finite & ~is_novel & (solution.fitness > old) & (second > state.distance)
    place = jnp.where(enters, state.filled, jnp.where(replaces, nearest, size))
    elites = jax.tree.map(lambda rows, new: rows.at[place].set(new, mode="drop"), state.elites, solution)
    state = state._replace(elites=elites, code=state.code.at[place].set(code, mode="drop"), filled=state.filled + enters)
    status = jnp.where(enters, NEW, jnp.where(replaces, BETTER, REJECTED)).astype(jnp.int32)
    improvement = jnp.where(is_novel, solution.fitness, solution.fitness - old)
    return state, Added(status, jnp.where(is_finite, improvement, -jnp.inf))


def thinned(state: UnstructuredState) -> UnstructuredState:
    """The archive of those elites that are the distance apart, the fittest of near ones, in the order in which they were."""
    order = jnp.argsort(-state.elites.fitness, stable=True)

    def judge(kept: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
        squares = jnp.sum((state.code - state.code[row][None]) ** 2, axis=1)
        is_apart = ~jnp.any(kept & (jnp.sqrt(squares) <= state.distance))
        return kept.at[row].set(is_apart & (state.elites.fitness[row] > -jnp.inf)), None

    kept, _ = jax.lax.scan(judge, jnp.zeros(order.shape, bool), order)
    rows = jnp.argsort(~kept, stable=True)
    elites = jax.tree.map(lambda x: x[rows], state.elites)
    elites = elites._replace(fitness=jnp.where(kept[rows], elites.fitness, -jnp.inf))
    best = jnp.argmax(elites.fitness).astype(jnp.int32)
    return state._replace(elites=elites, code=state.code[rows], filled=jnp.sum(kept, dtype=jnp.int32), best=best)
