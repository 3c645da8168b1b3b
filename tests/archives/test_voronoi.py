"""Tests of Voronoi archives: the search for the nearest centroid, and even spacing of centroids."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.archives.archive import ScoredSolutions
from rollax.archives.cells import cells_archive
from rollax.archives.voronoi import (
    MAX_PER_BIN_IN_KMEANS,
    bin_centroids,
    kmeans,
    nearest_centroids,
    nearest_exhaustive,
    nearest_in_bins,
    num_bins_per_dimension,
    voronoi_cells,
)
from rollax.errors import UsageError


def brute(centroids: np.ndarray, points: np.ndarray) -> np.ndarray:
    squares = np.zeros((len(points), len(centroids)), np.float32)
    for k in range(points.shape[1]):
        squares = squares + (points[:, k, None] - centroids[None, :, k]) ** 2
    return np.argmin(squares, axis=1)


CENTROIDS = {
    "even": lambda n, k: np.random.default_rng(0).random((n, k)),
    "crowded": lambda n, k: (
        np.random.default_rng(1).random((n, k)) ** 4
    ),  # more centroids in some bins than a bin can list
    # many equal centroids
    "lattice": lambda n, k: np.random.default_rng(2).integers(0, 4, (n, k)) / 4,
    "outside": lambda n, k: np.random.default_rng(3).random((n, k)) * 3 - 1,
}


@pytest.mark.parametrize("kind", CENTROIDS)
@pytest.mark.parametrize(("number", "dimensions"), [(1, 2), (7, 1), (200, 2), (150, 3), (64, 5)])
def test_the_nearest_centroid_is_found(kind: str, number: int, dimensions: int) -> None:
    """It equals a comparison with all, inside and outside of the bounds.

    Of equal ones it is the first.
    """
    centroids = CENTROIDS[kind](number, dimensions).astype(np.float32)
    numbers = np.random.default_rng(4)
    near, lattice = (
        numbers.random((300, dimensions)),
        numbers.integers(-1, 9, (100, dimensions)) / 8,
    )
    points = np.concatenate([near, numbers.normal(size=(50, dimensions)) * 10, lattice]).astype(
        np.float32
    )
    expected = brute(centroids, points)
    for find in (
        lambda cells, points: nearest_centroids(cells, points),
        lambda cells, points: nearest_exhaustive(cells.centroids, points),
    ):
        found = jax.jit(find)(bin_centroids(jnp.asarray(centroids)), jnp.asarray(points))
        np.testing.assert_array_equal(found, expected)


def test_most_points_need_no_exhaustive_search() -> None:
    """For even centroids, the neighboring bins nearly always determine the nearest one."""
    cells = jax.jit(lambda key: bin_centroids(kmeans(key, 400, 2)))(jax.random.key(0))
    points = jax.random.uniform(jax.random.key(1), (2_000, 2))
    _, is_certain = jax.vmap(
        lambda point: nearest_in_bins(cells, point, num_bins_per_dimension(400, 2))
    )(points)
    assert jnp.mean(is_certain) > 0.999


def test_centroids_of_kmeans_are_even() -> None:
    """K-means lowers the mean distance to the nearest centroid.

    Cells are more equal than random ones.
    """
    points = jax.random.uniform(jax.random.key(2), (20_000, 2))

    def quality(centroids: jax.Array) -> tuple[float, float]:
        cell = nearest_centroids(bin_centroids(centroids), points)
        distance = jnp.mean(jnp.linalg.norm(points - centroids[cell], axis=1))
        return float(distance), float(jnp.std(jnp.bincount(cell, length=100)) / 200)

    before, after = (
        quality(jax.random.uniform(jax.random.key(3), (100, 2))),
        quality(kmeans(jax.random.key(3), 100, 2)),
    )
    assert after[0] < 0.85 * before[0]
    assert after[1] < 0.5 * before[1]


def test_kmeans_of_many_cells_needs_little_memory() -> None:
    """It needs a few times the million samples of 8 bytes, and no matrix of all distances."""
    compiled = jax.jit(kmeans, static_argnums=(1, 2)).lower(jax.random.key(0), 100_000, 2).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 300e6


def test_most_points_need_no_exhaustive_search_among_random_centroids() -> None:
    """K-means starts there. An exhaustive search of most points would take quadratic time."""
    cells = bin_centroids(jax.random.uniform(jax.random.key(0), (2_500, 2)), MAX_PER_BIN_IN_KMEANS)
    points = jax.random.uniform(jax.random.key(1), (5_000, 2))
    _, is_certain = jax.vmap(
        lambda point: nearest_in_bins(cells, point, num_bins_per_dimension(2_500, 2))
    )(points)
    assert jnp.mean(is_certain) > 0.995


def test_custom_centroids_define_the_cells() -> None:
    """They are in units of the descriptor, for any bounds."""
    centroids = [[-9.0, 0.5], [0.0, 0.5], [9.0, 0.5]]
    archive = cells_archive(voronoi_cells(3, (-10.0, 0.0), (10.0, 1.0), centroids), None)
    state = archive.init(
        jax.random.key(0), ScoredSolutions(jnp.zeros(()), jnp.zeros(()), jnp.zeros(2))
    )
    descriptor = jnp.asarray([[8.0, 0.9], [-4.0, 0.1], [-1e6, 0.5], [5.0, 0.5]])
    batch = ScoredSolutions(jnp.arange(4.0), jnp.asarray([1.0, 2.0, 3.0, 4.0]), descriptor)
    state, _, counts = archive.add(state, batch)
    assert archive.elites(state).solutions.solution.tolist() == [2.0, 1.0, 3.0]
    assert counts.outside == 1


def test_too_many_cells_for_kmeans_are_refused() -> None:
    with pytest.raises(
        UsageError,
        match="by k-means must be between 1 and 10,000,000, got 500,000,000. Lower "
        "cvt_cells, or use a grid",
    ):
        voronoi_cells(500_000_000, (0.0, 0.0), (1.0, 1.0))


def test_invalid_centroids_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"3 rows of 2 finite numbers, got an array of shape \(2, 2\)"
    ):
        voronoi_cells(3, (0.0, 0.0), (1.0, 1.0), centroids=[[0.0, 0.0], [1.0, 1.0]])
