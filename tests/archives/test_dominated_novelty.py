"""Tests of dominated novelty against a reference in Python, and of the solutions that remain."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.archives.archive import STATUS_NEW, STATUS_REJECTED, ScoredSolutions
from rollax.archives.dominated_novelty import dominated_novelty, dominated_novelty_archive
from rollax.errors import UsageError


def reference(fitness: list[float], descriptor: np.ndarray, k: int) -> list[float]:
    found = []
    for i, (f, d) in enumerate(zip(fitness, descriptor, strict=True)):
        if f == -math.inf:
            found.append(-math.inf)
            continue
        fitter = [j for j, g in enumerate(fitness) if g > f or (g == f and j < i)]
        near = sorted(float(np.linalg.norm(d - descriptor[j])) for j in fitter)[:k]
        found.append(sum(near) / len(near) if near else math.inf)
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [1, 3, 8])
def test_dominated_novelty_equals_the_reference(seed: int, k: int) -> None:
    """Fitness and descriptors have ties, and some rows are empty."""
    numbers = np.random.default_rng(seed)
    fitness = numbers.choice([0.0, 1.0, 1.5, 2.0, -math.inf], 12)
    descriptor = numbers.integers(0, 4, (12, 2)).astype(np.float32)
    found = dominated_novelty(jnp.asarray(fitness), jnp.asarray(descriptor), k)
    np.testing.assert_allclose(found, reference(fitness.tolist(), descriptor, k), rtol=1e-5)


def test_the_most_novel_solutions_remain() -> None:
    """Of seven solutions in two batches, the five furthest from fitter ones remain.

    NaN is rejected.
    """
    archive = dominated_novelty_archive(5, (0.0,), (10.0,), 1, (5,))
    state = archive.init(
        jax.random.key(0), ScoredSolutions(jnp.zeros(()), jnp.zeros(()), jnp.zeros(1))
    )

    def batch(*rows: tuple[float, float, float]) -> ScoredSolutions:
        solution, fitness, place = (jnp.asarray(column) for column in zip(*rows, strict=True))
        return ScoredSolutions(solution, fitness, place[:, None])

    state, added, counts = archive.add(
        state, batch((1, 5.0, 0.0), (2, math.nan, 1.0), (3, 4.0, 9.0), (4, 1.0, 11.0))
    )
    assert added.status.tolist() == [STATUS_NEW, STATUS_REJECTED, STATUS_NEW, STATUS_NEW]
    assert (counts.new, counts.better, counts.outside, counts.nonfinite) == (3, 0, 1, 1)
    assert archive.num_elites(state) == 3 and archive.best(state).solution == 1
    # Solution 5 is a copy of the best, 6 is fit, 7 is near 3 and worse, 8 is far from all fitter
    # ones.
    state, added, counts = archive.add(
        state, batch((5, 5.0, 0.0), (6, 6.0, 2.0), (7, 3.9, 9.1), (8, 2.0, 5.0))
    )
    elites = archive.elites(state)
    assert sorted(elites.solutions.solution[elites.mask].tolist()) == [1, 3, 4, 6, 8]
    assert added.status.tolist() == [STATUS_REJECTED, STATUS_NEW, STATUS_REJECTED, STATUS_NEW] and (
        counts.new,
        counts.better,
    ) == (2, 0)
    assert archive.best(state).solution == 6
    values = archive.metrics(state, 1.0)  # with cells of size 2: 1, 6, 8, and 3 with 4
    assert values["coverage"] == pytest.approx(4 / 5) and values["qd_score"] == pytest.approx(
        5 + 6 + 2 + 4 + 4
    )


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"num_neighbors must be between 1 and population_size - 1 \(4\), got 5"
    ):
        dominated_novelty_archive(5, (0.0,), (1.0,), 5, (3,))
    with pytest.raises(
        UsageError, match="grid must have one number per descriptor dimension .1., got 3 3"
    ):
        dominated_novelty_archive(5, (0.0,), (1.0,), 1, (3, 3))
    with pytest.raises(UsageError, match="Use fewer cells per dimension"):
        dominated_novelty_archive(5, (0.0, 0.0), (1.0, 1.0), 1, (100_000, 100_000))


def test_an_emptied_archive_equals_a_new_one() -> None:
    """Cells are those of the grid of the metrics."""
    archive = dominated_novelty_archive(3, (0.0, 0.0), (10.0, 1.0), 1, (5, 2))
    example = ScoredSolutions(jnp.zeros(()), jnp.zeros(()), jnp.zeros(2))
    start = archive.init(jax.random.key(0), example)
    places = jnp.asarray([[3.0, 0.1], [11.0, 0.6], [-1.0, 0.5]])
    state, *_ = archive.add(start, ScoredSolutions(jnp.arange(3.0), jnp.ones(3), places))
    assert archive.cell_of(state, places).tolist() == [2, 9, 1]
    for x, y in zip(jax.tree.leaves(archive.empty(state)), jax.tree.leaves(start), strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == y.dtype
