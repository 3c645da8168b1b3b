"""Interface of archives, which are collections of diverse, high-performing solutions.

An archive consists of pure functions on a state with C entries. An entry is empty or holds one
elite. Archives with cells have a fixed number of entries per cell. Batches are inserted as a whole.
The first of several equal solutions of a batch is kept. All values of an elite (solution, fitness,
descriptor, extras) come from the same solution of a batch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.algorithm import uniform_placement
from rollax.runtime.notebook import format_html_table
from rollax.types import Scalar
from rollax.user_input.coercion import format_repr

STATUS_REJECTED, STATUS_IMPROVED, STATUS_NEW = (
    0,
    1,
    2,
)  # Insertion status of a solution. A better status has a higher number.


class ScoredSolutions(NamedTuple):
    """Scored solutions: a batch `[B, ...]`, elites `[C, ...]`, or a single solution without axis.

    Attributes:
        solution: Solutions, a pytree of floats.
        fitness: Fitness, which is maximized, float32 `[B]`.
        descriptor: Behavior descriptors, float32 `[B, K]`.
        extras: Additional scores, `[B, ...]`: objectives, recorded observations or `()`.
    """

    solution: Any
    fitness: jax.Array
    descriptor: jax.Array
    extras: Any = ()

    def __repr__(self) -> str:
        fitness, descriptor = (getattr(x, "shape", None) for x in (self.fitness, self.descriptor))
        return f"Scored(fitness {fitness}, descriptor {descriptor})"


class InsertionResult(NamedTuple):
    """Insertion result of each solution of a batch `[B]`.

    In archives with one solution per cell, both fields refer to the archive before the batch.

    Attributes:
        status: `STATUS_REJECTED`, `STATUS_IMPROVED` or `STATUS_NEW`, int32 `[B]`.
        improvement: Difference between the fitness and the fitness that it must exceed, such as
            that of the elite in the same cell, float32 `[B]`. It is negative for worse solutions.
            Dominated novelty search reports the novelty instead.
    """

    status: jax.Array
    improvement: jax.Array


class InsertionCounts(NamedTuple):
    """Numbers of solutions in one insertion, float32 `[]` each.

    Attributes:
        new: Number of solutions that became an elite without replacing one. With Pareto fronts,
            number of solutions that were inserted into an empty cell.
        better: Number of all other solutions that became an elite.
        outside: Number of finite solutions with a descriptor out of bounds. Cell archives assign
            them to the nearest cell.
        nonfinite: Number of solutions with a NaN or infinite score. They are not inserted.
        below_threshold: Number of finite solutions whose fitness did not exceed the threshold of
            their cell, or None if the archive has no thresholds.
    """

    new: jax.Array
    better: jax.Array
    outside: jax.Array
    nonfinite: jax.Array
    below_threshold: jax.Array | None = None


def counts_by_name(counts: InsertionCounts) -> dict[str, jax.Array]:
    """Return the counts of an insertion as a dictionary, without counts that are None."""
    return {name: value for name, value in counts._asdict().items() if value is not None}


class Insertion(NamedTuple):
    """Outcome of the insertion of a batch.

    Attributes:
        state: State of the archive after the insertion.
        result: Insertion result of each solution.
        counts: Numbers of new, better and rejected solutions.
    """

    state: Any
    result: InsertionResult
    counts: InsertionCounts


class Elites(NamedTuple):
    """All entries of an archive, `[C, ...]`, for inspection.

    Attributes:
        solutions: Scored solutions, arbitrary in empty entries.
        mask: Whether an entry has an elite, bool `[C]`.
        center: Descriptor at the center of the cell of each entry, float32 `[C, K]`. In archives
            without cells, the descriptor of the elite.
        is_grid: Whether the cells form a grid and entries are in row-major order, bool `[]`.
        num_per_cell: Number of consecutive entries per cell, int32 `[]`.
    """

    solutions: ScoredSolutions
    mask: jax.Array
    center: jax.Array
    is_grid: jax.Array
    num_per_cell: Any = 1

    def __repr__(self) -> str:
        size, dimensions = self.center.shape[-2:]
        return (
            f"Elites({size} places, {dimensions} descriptor dimensions, "
            f"{jax.tree.structure(self.solutions).num_leaves} arrays)"
        )


class Archive(NamedTuple):
    """Pure functions of an archive.

    Attributes:
        init: Function `(key, example)` that returns the initial state. The example is a scored
            solution without a batch axis.
        add: Function `(state, batch)` that inserts a scored batch and returns an `Insertion`.
        sample: Function `(state, key, n)` that returns `n` random elites, with replacement.
        elites: Function from the state to all entries, as `Elites`.
        num_elites: Function from the state to the number of elites, int32 `[]`.
        best: Function from the state to the elite with the highest fitness.
        with_best: Function `(state, index)` that returns the state with the elite in the entry with
            this index marked as the best.
        metrics: Function `(state, offset)` that returns a dictionary of scalar metrics. `offset` is
            added to the fitness of every elite in the QD score.
        size: Number of entries C, which is the maximum number of elites.
        low: Lower bounds of descriptors, K numbers.
        high: Upper bounds of descriptors, K numbers.
        refresh: Function `(state, key)` that returns a new state. It runs once per update, before
            the iterations.
        empty: Function from the state to a state without elites and with the same cells, or None if
            not implemented.
        cell_of: Function `(state, descriptor)` from descriptors `[B, K]` to cell indices, int32
            `[B]`. Archives without cells return the cells of the grid used for metrics. None if not
            implemented.
        num_cells: Number of cells that `cell_of` distinguishes, or 0 without `cell_of`.
        thresholds: Function from the state to the acceptance threshold of each cell, float32 `[C]`.
            None for archives without thresholds.
        with_thresholds: Function `(state, thresholds)` that returns the state with the acceptance
            thresholds set to `thresholds`, float32 `[C]`. None for archives without thresholds.
        placement: Function from the state to a pytree of bools that marks the leaves to split over
            devices, as in `Algorithm.placement`.
    """

    init: Callable[[jax.Array, ScoredSolutions], Any]
    add: Callable[[Any, ScoredSolutions], Insertion]
    sample: Callable[[Any, jax.Array, int], ScoredSolutions]
    elites: Callable[[Any], Elites]
    num_elites: Callable[[Any], jax.Array]
    best: Callable[[Any], ScoredSolutions]
    with_best: Callable[[Any, Any], Any]
    metrics: Callable[[Any, Any], dict[str, jax.Array]]
    size: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    refresh: Callable[[Any, jax.Array], Any] = lambda state, key: state
    empty: Callable[[Any], Any] | None = None
    cell_of: Callable[[Any, jax.Array], jax.Array] | None = None
    num_cells: int = 0
    thresholds: Callable[[Any], jax.Array] | None = None
    with_thresholds: Callable[[Any, jax.Array], Any] | None = None
    placement: Callable[[Any], Any] = lambda state: uniform_placement(state, False)

    def __repr__(self) -> str:
        return format_repr("Archive", **self._facts())

    def _repr_html_(self) -> str:
        return format_html_table("Archive", self._facts())

    def _facts(self) -> dict[str, Any]:
        """Return the attributes that `__repr__` and the notebook table show, keyed by name."""
        return {
            "size": self.size,
            "low": self.low,
            "high": self.high,
            "num_cells": self.num_cells or None,
        }


class BatchValidity(NamedTuple):
    """Validity of each solution in a scored batch `[B]`.

    Attributes:
        finite: Whether fitness, descriptor and extras are finite, bool `[B]`.
        descriptor: Descriptors, float32 `[B, K]`, with the lower bounds where `finite` is false.
        outside: Whether a finite solution has a descriptor out of bounds, bool `[B]`.
    """

    finite: jax.Array
    descriptor: jax.Array
    outside: jax.Array


def find_valid_solutions(
    batch: ScoredSolutions, low: tuple[float, ...], high: tuple[float, ...]
) -> BatchValidity:
    """Return which solutions have finite scores and which descriptors are out of bounds.

    Args:
        batch: Scored batch.
        low: Lower bounds of descriptors.
        high: Upper bounds of descriptors.

    Returns:
        The validity of each solution.
    """
    lowest, highest = jnp.asarray([low], jnp.float32), jnp.asarray([high], jnp.float32)
    finite = jnp.isfinite(batch.fitness)
    for scores in jax.tree.leaves((batch.descriptor, batch.extras)):
        finite &= jnp.all(jnp.isfinite(scores), axis=tuple(range(1, scores.ndim)))
    descriptor = jnp.where(finite[:, None], batch.descriptor, lowest)
    outside = jnp.any((descriptor < lowest) | (descriptor > highest), axis=-1)
    return BatchValidity(finite=finite, descriptor=descriptor, outside=finite & outside)


def count_insertions(new: jax.Array, better: jax.Array, validity: BatchValidity) -> InsertionCounts:
    """Return the counts of one insertion.

    Args:
        new: Whether each solution counts as `InsertionCounts.new`, bool `[B]`.
        better: Whether each solution counts as `InsertionCounts.better`, bool `[B]`.
        validity: Validity of the solutions.

    Returns:
        The counts, without `below_threshold`.
    """
    return InsertionCounts(
        new=jnp.sum(new, dtype=jnp.float32),
        better=jnp.sum(better, dtype=jnp.float32),
        outside=jnp.sum(validity.outside, dtype=jnp.float32),
        nonfinite=jnp.sum(~validity.finite, dtype=jnp.float32),
    )


def qd_metrics(fitness: jax.Array, mask: jax.Array, offset: Scalar) -> dict[str, jax.Array]:
    """Return the QD score, the coverage, and the best and mean fitness of the elites.

    The QD score is the sum over elites of fitness + offset (Pugh et al. 2016,
    doi:10.3389/frobt.2016.00040). Coverage is the fraction of entries with an elite. Best and mean
    fitness are NaN for an empty archive.

    Args:
        fitness: Fitness of each entry, float32 `[C]`.
        mask: Whether an entry has an elite, bool `[C]`.
        offset: Offset of the QD score.

    Returns:
        Scalars with the keys "qd_score", "coverage", "fitness_best" and "fitness_mean".
    """
    num_elites = jnp.sum(mask)
    total = jnp.sum(fitness, where=mask)
    return {
        "qd_score": total + offset * num_elites,
        "coverage": num_elites / mask.shape[0],
        "fitness_best": jnp.where(
            num_elites > 0, jnp.max(fitness, where=mask, initial=-jnp.inf), jnp.nan
        ),
        "fitness_mean": jnp.where(num_elites > 0, total / jnp.maximum(num_elites, 1), jnp.nan),
    }
