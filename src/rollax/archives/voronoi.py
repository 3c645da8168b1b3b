"""Voronoi archives, which assign each descriptor to the cell of the nearest centroid.

They are the archives of CVT-MAP-Elites (Vassiliades et al. 2018, arXiv:1610.05729). Centroids are
computed by k-means (Lloyd's algorithm) from uniform samples, so that cells have about equal size in
any number of dimensions. To find the nearest centroid quickly, the unit cube is divided into a
regular grid of bins, and each bin lists the centroids in it.
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rollax.archives.cells import Cells, check_bounds
from rollax.errors import UsageError

SAMPLES_PER_CENTROID, MIN_SAMPLES, NUM_ITERATIONS = (
    10,
    20_000,
    20,
)  # k-means: samples per centroid, minimum number of samples, iterations
# Above this number of cells, k-means would take hours, and the samples of k-means would need more
# memory than the archive.
MAX_KMEANS_CELLS = 10_000_000
MAX_PER_BIN, BIN_SEARCH_RADIUS = (
    4,
    2,
)  # maximum number of centroids listed per bin, and bins searched in each direction
# Points near bins that do not list all of their centroids are compared with all centroids. In
# k-means, this would be slow with many random centroids, so bins list more of them.
MAX_PER_BIN_IN_KMEANS = 8
MAX_BINNED_DIMENSIONS = 3  # With more dimensions, there would be too many neighboring bins.
SAMPLE_BLOCK_SIZE = (
    65_536  # Bounds the memory of k-means, almost independent of the number of cells.
)
# number of descriptors whose distances to all centroids are computed at once
DESCRIPTOR_BLOCK_SIZE = 256


class BinnedCentroids(NamedTuple):
    """Centroids with bins for nearest-neighbor search.

    Attributes:
        centroids: Centroids `[C, K]`, scaled so that the bounds are 0 and 1.
        bins: Indices of the centroids in each bin, padded with C, int32 `[num_bins, max_per_bin]`.
            If None, points are compared with all centroids.
        is_whole: Whether a bin lists all centroids in it, bool `[num_bins]`, or None without bins.
    """

    centroids: jax.Array
    bins: jax.Array | None
    is_whole: jax.Array | None


def voronoi_cells(
    size: int,
    low: tuple[float, ...],
    high: tuple[float, ...],
    centroids: npt.ArrayLike | None = None,
) -> Cells:
    """Return the cells of a Voronoi tessellation of the descriptor space.

    Args:
        size: Number of cells.
        low: Lower bounds of descriptors.
        high: Upper bounds of descriptors.
        centroids: Centroids `[size, K]` in units of the descriptor, or None to compute them by
            k-means.

    Returns:
        The cells.

    Raises:
        UsageError: If the bounds or the centroids are not valid, or if there are too many cells for
            k-means.
    """
    check_bounds(low, high)
    if centroids is None and not 1 <= size <= MAX_KMEANS_CELLS:
        raise UsageError(
            f"The number of cells by k-means must be between 1 and {MAX_KMEANS_CELLS:,}, got "
            f"{size:,}. Lower cvt_cells, or use a grid."
        )
    low_row, span = jnp.asarray([low]), jnp.asarray([high]) - jnp.asarray([low])
    if centroids is not None:
        centroids = np.asarray(centroids, np.float32)
        if centroids.shape != (size, len(low)) or not np.isfinite(centroids).all():
            raise UsageError(
                f"centroids must be {size} rows of {len(low)} finite numbers, got an array of "
                f"shape {centroids.shape}."
            )

    def make_cells(key: jax.Array) -> BinnedCentroids:
        if centroids is None:
            return bin_centroids(kmeans(key, size, len(low)))
        return bin_centroids((jnp.asarray(centroids) - low_row) / span)

    def cell_of(cells: BinnedCentroids, descriptor: jax.Array) -> jax.Array:
        return nearest_centroids(cells, (descriptor - low_row) / span)

    def center_of(cells):
        return low_row + cells.centroids * span

    return Cells(size, low, high, make_cells, cell_of, center_of, False)


def kmeans(key: jax.Array, num_centroids: int, dimensions: int) -> jax.Array:
    """Compute centroids of uniform samples in the unit cube by k-means (Lloyd's algorithm).

    Args:
        key: Random key.
        num_centroids: Number of centroids C.
        dimensions: Number of dimensions K.

    Returns:
        The centroids, float32 `[C, K]`.
    """
    sample_key, start_key = jax.random.split(key)
    samples = jax.random.uniform(
        sample_key, (max(SAMPLES_PER_CENTROID * num_centroids, MIN_SAMPLES), dimensions)
    )
    initial_centroids = jax.random.uniform(start_key, (num_centroids, dimensions))
    block = min(SAMPLE_BLOCK_SIZE, samples.shape[0])
    padded = jnp.concatenate([samples, jnp.zeros((-samples.shape[0] % block, dimensions))])
    blocks = padded.reshape(-1, block, dimensions)

    def update_centroids(centroids: jax.Array, _: None) -> tuple[jax.Array, None]:
        cells = bin_centroids(centroids, MAX_PER_BIN_IN_KMEANS)
        cell = jax.lax.map(lambda block: nearest_centroids(cells, block), blocks).reshape(-1)[
            : samples.shape[0]
        ]
        total = jax.ops.segment_sum(samples, cell, num_centroids)
        count = jax.ops.segment_sum(jnp.ones((samples.shape[0], 1)), cell, num_centroids)
        return jnp.where(count > 0, total / jnp.maximum(count, 1), centroids), None

    return jax.lax.scan(update_centroids, initial_centroids, None, length=NUM_ITERATIONS)[0]


def bin_centroids(centroids: jax.Array, max_per_bin: int = MAX_PER_BIN) -> BinnedCentroids:
    """Sort centroids into about as many bins as there are centroids.

    With more than `MAX_BINNED_DIMENSIONS` dimensions, no bins are used.

    Args:
        centroids: Centroids `[C, K]` in the unit cube.
        max_per_bin: Maximum number of centroids listed per bin.

    Returns:
        The centroids and their bins.
    """
    num_centroids, dimensions = centroids.shape
    if dimensions > MAX_BINNED_DIMENSIONS:
        return BinnedCentroids(centroids, None, None)
    num_bins = num_bins_per_dimension(num_centroids, dimensions)
    bin = jax.vmap(lambda x: bin_index(bin_coordinates(x, num_bins), num_bins))(centroids)
    order = jnp.argsort(bin)  # stable
    first = jnp.searchsorted(bin[order], jnp.arange(num_bins**dimensions))
    count = jnp.bincount(bin, length=num_bins**dimensions)
    positions = first[:, None] + jnp.arange(max_per_bin)[None, :]
    binned_indices = jnp.where(
        jnp.arange(max_per_bin)[None, :] < count[:, None],
        order[jnp.minimum(positions, num_centroids - 1)],
        num_centroids,
    )
    return BinnedCentroids(centroids, binned_indices.astype(jnp.int32), count <= max_per_bin)


def num_bins_per_dimension(num_centroids: int, dimensions: int) -> int:
    """Return the number of bins along each dimension of the unit cube, at least 1."""
    return max(1, int(num_centroids ** (1 / dimensions)))


def bin_coordinates(point: jax.Array, num_bins: int) -> jax.Array:
    """Return the coordinates of the bin of a point `[K]` in the unit cube, int32 `[K]`.

    There are `num_bins` bins per axis. Points outside of the cube belong to the bins at its sides.
    """
    return jnp.clip(jnp.floor(point * num_bins), 0, num_bins - 1).astype(jnp.int32)


def bin_index(coordinates: jax.Array, num_bins: int) -> jax.Array:
    """Return the row-major index of the bin with the `coordinates` `[K]`, int32 `[]`."""
    strides = jnp.asarray([num_bins**k for k in reversed(range(coordinates.shape[0]))], jnp.int32)
    return jnp.sum(coordinates * strides)


def nearest_centroids(cells: BinnedCentroids, points: jax.Array) -> jax.Array:
    """Return the index of the nearest centroid of each point `[B, K]`, int32 `[B]`.

    Ties go to the lowest index.
    """
    if cells.bins is None:
        return nearest_exhaustive(cells.centroids, points)
    num_centroids, dimensions = cells.centroids.shape
    num_bins = num_bins_per_dimension(num_centroids, dimensions)
    nearest, is_certain = jax.vmap(lambda point: nearest_in_bins(cells, point, num_bins))(points)

    # The few points whose nearest centroid may lie outside of the searched bins, such as points far
    # out of bounds, are compared with all centroids, one at a time.
    def compare_with_all(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        nearest, is_certain = carry
        index = jnp.argmin(is_certain)
        return nearest.at[index].set(
            nearest_exhaustive(cells.centroids, points[index][None])[0]
        ), is_certain.at[index].set(True)

    return jax.lax.while_loop(
        lambda carry: ~jnp.all(carry[1]), compare_with_all, (nearest, is_certain)
    )[0]


def nearest_in_bins(
    cells: BinnedCentroids, point: jax.Array, num_bins: int
) -> tuple[jax.Array, jax.Array]:
    """Return the nearest centroid in the bins around a point.

    Args:
        cells: Binned centroids.
        point: Point `[K]`.
        num_bins: Number of bins along each dimension.

    Returns:
        The index of the centroid, int32 `[]`, and whether it is certainly the nearest of all
        centroids, bool `[]`.
    """
    assert cells.bins is not None and cells.is_whole is not None
    num_centroids = cells.centroids.shape[0]
    coordinates = bin_coordinates(point, num_bins)
    steps = jnp.asarray(
        list(
            itertools.product(
                range(-BIN_SEARCH_RADIUS, BIN_SEARCH_RADIUS + 1), repeat=point.shape[0]
            )
        ),
        jnp.int32,
    )
    neighbor_coordinates = coordinates[None] + steps
    is_inside = jnp.all((neighbor_coordinates >= 0) & (neighbor_coordinates < num_bins), axis=1)
    bins = jax.vmap(lambda coordinates: bin_index(coordinates, num_bins))(
        jnp.clip(neighbor_coordinates, 0, num_bins - 1)
    )
    candidates = jnp.where(is_inside[:, None], cells.bins[bins], num_centroids).reshape(-1)
    squared = squared_distances(
        point[None], cells.centroids[jnp.minimum(candidates, num_centroids - 1)]
    )[0]
    squared = jnp.where(candidates < num_centroids, squared, jnp.inf)
    smallest = jnp.min(squared)
    nearest = jnp.min(jnp.where(squared == smallest, candidates, num_centroids))
    # All centroids in the searched bins were compared. Border bins include centroids out of bounds.
    border_distance = jnp.minimum(
        point * num_bins - (coordinates - BIN_SEARCH_RADIUS),
        coordinates + BIN_SEARCH_RADIUS + 1 - point * num_bins,
    )
    border_distance = jnp.where(
        coordinates - BIN_SEARCH_RADIUS <= 0,
        coordinates + BIN_SEARCH_RADIUS + 1 - point * num_bins,
        border_distance,
    )
    border_distance = jnp.where(
        coordinates + BIN_SEARCH_RADIUS >= num_bins - 1,
        point * num_bins - (coordinates - BIN_SEARCH_RADIUS),
        border_distance,
    )
    has_all_bins = (coordinates - BIN_SEARCH_RADIUS <= 0) & (
        coordinates + BIN_SEARCH_RADIUS >= num_bins - 1
    )
    search_radius = jnp.min(jnp.where(has_all_bins, jnp.inf, border_distance)) / num_bins
    # `nearest` is `num_centroids` if the compiler computed the distances twice with different
    # rounding.
    is_found = (nearest < num_centroids) & jnp.all(cells.is_whole[bins] | ~is_inside)
    return nearest, is_found & (jnp.sqrt(smallest) < search_radius * (1 - 1e-5))


def squared_distances(points: jax.Array, centroids: jax.Array) -> jax.Array:
    """Return the squared distances between points `[B, K]` and centroids `[C, K]`, `[B, C]`.

    The sum over dimensions has a fixed order, so that ties are exact.
    """
    parts = [(points[:, k, None] - centroids[None, :, k]) ** 2 for k in range(points.shape[1])]
    return functools.reduce(jnp.add, parts)


def nearest_exhaustive(centroids: jax.Array, points: jax.Array) -> jax.Array:
    """Return the index of the nearest centroid of each point, by comparison with all centroids.

    Args:
        centroids: Centroids `[C, K]`.
        points: Points `[B, K]`.

    Returns:
        The indices, int32 `[B]`. Ties go to the lowest index.
    """
    num_centroids, size = centroids.shape[0], points.shape[0]
    block = min(DESCRIPTOR_BLOCK_SIZE, size)
    padded = jnp.concatenate([points, jnp.zeros((-size % block, points.shape[1]))]).reshape(
        -1, block, points.shape[1]
    )

    def find_nearest_in_block(points: jax.Array) -> jax.Array:
        squared = squared_distances(points, centroids)
        smallest = jnp.min(squared, axis=1, keepdims=True)
        # Faster than `argmin`, which the compiler does not vectorize. It may compute the distances
        # twice with different rounding, so that none equals the smallest.
        nearest = jnp.min(
            jnp.where(squared == smallest, jnp.arange(num_centroids)[None, :], num_centroids),
            axis=1,
        )
        is_found = jnp.all(nearest < num_centroids)
        return jax.lax.cond(
            is_found, lambda: nearest, lambda: jnp.argmin(squared, axis=1).astype(nearest.dtype)
        )

    return jax.lax.map(find_nearest_in_block, padded).reshape(-1)[:size].astype(jnp.int32)
