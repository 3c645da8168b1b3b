"""The contract of archives: collections of solutions that are good and differ in what they do.

An archive is pure functions on a state. A batch is added as a whole: what became of each solution is said of the archive
before the batch, so that it does not depend on the order, and where several equal ones compete, the first is kept. All that
belongs to an elite - solution, fitness, descriptor, extras - is written together, from one row of the batch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.algorithm import marked

REJECTED, BETTER, NEW = 0, 1, 2  # what became of a solution; the order is that of a ranking by it


class Scored(NamedTuple):
    """Solutions with what a scorer said of them, `[B, ...]`; one without the axis; elites of an archive, `[C, ...]`."""

    solution: Any  # a pytree of floats
    fitness: jax.Array  # float32 [B]: more is better
    descriptor: jax.Array  # float32 [B, K]
    extras: Any = ()  # whatever else belongs to a solution


class Added(NamedTuple):
    """What became of each solution of a batch, `[B]`, measured against the archive before the batch."""

    status: jax.Array  # int32: REJECTED, BETTER or NEW
    improvement: jax.Array  # float32: how much better than what was there; negative where it was worse


class Counts(NamedTuple):
    """What an archive counted in one batch, float32 [] each."""

    new: jax.Array  # elites where there was none
    better: jax.Array  # elites in place of a worse one
    outside: jax.Array  # descriptors out of bounds, which count as at the border
    nonfinite: jax.Array  # fitness or descriptors with NaN or infinity, which never enter


class Elites(NamedTuple):
    """All places of an archive, `[C, ...]`, for looking at."""

    scored: Scored
    mask: jax.Array  # bool [C]: where there is an elite
    center: jax.Array  # float32 [C, K]: descriptor in the middle of each place
    is_grid: jax.Array  # bool []: cells are those of a grid, in row-major order
    per_cell: Any = 1  # int32 []: places of each cell, one after the other


class Archive(NamedTuple):
    """Pure functions. `size` is the most elites C there can be."""

    init: Callable[[jax.Array, Scored], Any]  # (key, example without the axis) -> state
    add: Callable[[Any, Scored], tuple[Any, Added, Counts]]  # (state, batch [B]) -> (state, what became of each, counts)
    sample: Callable[[Any, jax.Array, int], Scored]  # (state, key, n) -> elites [n], uniformly, with replacement
    elites: Callable[[Any], Elites]
    num_elites: Callable[[Any], jax.Array]  # state -> how many elites there are, int32 []
    best: Callable[[Any], Scored]  # state -> the elite of highest fitness
    with_best: Callable[[Any, Any], Any]  # (state, place) -> the state with the elite there in place of the best
    metrics: Callable[[Any, Any], dict[str, jax.Array]]  # (state, offset of the QD score) -> numbers by name
    size: int
    low: tuple[float, ...]  # bounds of descriptors, K numbers each
    high: tuple[float, ...]
    refresh: Callable[[Any, jax.Array], Any] = lambda state, key: state  # what is done once an update, before its iterations
    # Optional, for looking at archives: the state without elites, whose cells are the same; and (state, descriptor [B, K]) ->
    # the cell that each belongs to, int32 [B], of the grid that metrics are of where there are no cells.
    empty: Callable[[Any], Any] | None = None
    cell_of: Callable[[Any, jax.Array], jax.Array] | None = None
    num_cells: int = 0  # how many of these there are
    placement: Callable[[Any], Any] = lambda state: marked(state, False)  # as `Algorithm.placement`, of the archive's state


class Sound(NamedTuple):
    """What of a batch `[B]` can be in an archive."""

    finite: jax.Array  # bool [B]: fitness, descriptor and extras are
    descriptor: jax.Array  # float32 [B, K]: of the others the lower bounds, so that what follows is defined
    outside: jax.Array  # bool [B]: the descriptor is out of bounds


def sound(batch: Scored, low: tuple[float, ...], high: tuple[float, ...]) -> Sound:
    """Which solutions of a batch have finite scores, and which of these are out of bounds."""
    lowest, highest = jnp.asarray([low], jnp.float32), jnp.asarray([high], jnp.float32)
    finite = jnp.isfinite(batch.fitness)
    for scores in jax.tree.leaves((batch.descriptor, batch.extras)):
        finite &= jnp.all(jnp.isfinite(scores), axis=tuple(range(1, scores.ndim)))
    descriptor = jnp.where(finite[:, None], batch.descriptor, lowest)
    return Sound(finite, descriptor, finite & jnp.any((descriptor < lowest) | (descriptor > highest), axis=-1))


def qd_metrics(fitness: jax.Array, mask: jax.Array, offset: Any) -> dict[str, jax.Array]:
    """QD score, coverage, best and mean fitness of elites `[C]` where `mask`; the two latter are NaN of an empty archive.

    QD score: the sum over elites of fitness + offset (Pugh et al. 2016, doi:10.3389/frobt.2016.00040). Coverage: the share of
    the C places that are taken.
    """
    number = jnp.sum(mask)
    total = jnp.sum(fitness, where=mask)
    return {
        "qd_score": total + offset * number,
        "coverage": number / mask.shape[0],
        "fitness_best": jnp.where(number > 0, jnp.max(fitness, where=mask, initial=-jnp.inf), jnp.nan),
        "fitness_mean": jnp.where(number > 0, total / jnp.maximum(number, 1), jnp.nan),
    }
