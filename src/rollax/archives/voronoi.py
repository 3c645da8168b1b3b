"""Archives whose cells are those of a Voronoi tessellation: every descriptor belongs to its nearest centroid (CVT-MAP-Elites).

Vassiliades et al. 2018, arXiv:1610.05729. Centroids come from k-means over uniform samples (Lloyd's algorithm), so that cells
are about equally large in any number of dimensions.
"""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.archives.cells import Cells, Threshold, cells_archive, check_bounds
from rollax.archives.core import Archive
from rollax.errors import UsageError

SAMPLES, LEAST_SAMPLES, ITERATIONS = 10, 20_000, 20  # of k-means: samples for each centroid, in all, and rounds
MOST_CELLS = 10_000_000  # of k-means, beyond which it would take hours, and its samples more memory than the archive
IN_BIN, REACH = 4, 2  # most centroids that a bin lists, and how many bins to every side are searched
IN_BIN_AT_RANDOM = 8  # the same of k-means: what no bin lists is compared with all, which many random centroids would make slow
MOST_BINNED = 3  # dimensions beyond which there would be too many bins around
SAMPLES_AT_ONCE = 65_536  # of k-means, so that what it needs of the memory hardly grows with the number of cells
BLOCK = 256  # descriptors whose distances to all centroids are held at once


class Voronoi(NamedTuple):
    """Centroids `[C, K]`, in units where the bounds are 0 and 1, and bins to find the near ones by."""

    centroids: jax.Array
    bins: jax.Array | None  # int32 [bins, in_bin]: centroids in each, then C; None where all are compared
    is_whole: jax.Array | None  # bool [bins]: all centroids in it are listed


def voronoi(
    size: int,
    low: tuple[float, ...],
    high: tuple[float, ...],
    centroids: Any = None,
    threshold: Threshold | None = None,
) -> Archive:
    """An archive of `size` cells, as `voronoi_cells` divides them. Raises UsageError as it does."""
    return cells_archive(voronoi_cells(size, low, high, centroids), threshold)


def voronoi_cells(size: int, low: tuple[float, ...], high: tuple[float, ...], centroids: Any = None) -> Cells:
    """`size` cells, by k-means or around given `centroids` `[C, K]` (in units of the descriptor).

    Raises UsageError when these are not `[size, K]`, or not finite, or without them for more than k-means can place.
    """
    check_bounds(low, high)
    if centroids is None and not 1 <= size <= MOST_CELLS:
        raise UsageError(f"{size:,} cells by k-means must be between 1 and {MOST_CELLS:,}: take fewer cvt_cells, or a grid")
    low_row, span = jnp.asarray([low]), jnp.asarray([high]) - jnp.asarray([low])
    if centroids is not None:
        centroids = np.asarray(centroids, np.float32)
        if centroids.shape != (size, len(low)) or not np.isfinite(centroids).all():
            raise UsageError(f"centroids must be {size} rows of {len(low)} finite numbers, not an array {centroids.shape}")

    def make_cells(key: jax.Array) -> Voronoi:
        if centroids is None:
            return binned(kmeans(key, size, len(low)))
        return binned((jnp.asarray(centroids) - low_row) / span)

    def cell_of(cells: Voronoi, descriptor: jax.Array) -> jax.Array:
        return nearest(cells, (descriptor - low_row) / span)

    center_of = lambda cells: low_row + cells.centroids * span  # noqa: E731
    return Cells(size, low, high, make_cells, cell_of, center_of, False)


def kmeans(key: jax.Array, number: int, dimensions: int) -> jax.Array:
    """Centroids `[C, K]` of uniform samples of the unit cube, after some rounds of Lloyd's algorithm."""
    sample_key, start_key = jax.random.split(key)
    samples = jax.random.uniform(sample_key, (max(SAMPLES * number, LEAST_SAMPLES), dimensions))
    start = jax.random.uniform(start_key, (number, dimensions))
    block = min(SAMPLES_AT_ONCE, samples.shape[0])
    padded = jnp.concatenate([samples, jnp.zeros((-samples.shape[0] % block, dimensions))])
    blocks = padded.reshape(-1, block, dimensions)

    def move(centroids: jax.Array, _: None) -> tuple[jax.Array, None]:
        cells = binned(centroids, IN_BIN_AT_RANDOM)
        cell = jax.lax.map(lambda block: nearest(cells, block), blocks).reshape(-1)[: samples.shape[0]]
        total = jax.ops.segment_sum(samples, cell, number)
        count = jax.ops.segment_sum(jnp.ones((samples.shape[0], 1)), cell, number)
        return jnp.where(count > 0, total / jnp.maximum(count, 1), centroids), None

    return jax.lax.scan(move, start, None, length=ITERATIONS)[0]


def binned(centroids: jax.Array, in_bin: int = IN_BIN) -> Voronoi:
    """Centroids with bins, about as many as centroids, each of which lists up to `in_bin`."""
    number, dimensions = centroids.shape
    if dimensions > MOST_BINNED:
        return Voronoi(centroids, None, None)
    side = bins_along(number, dimensions)
    bin = jax.vmap(lambda x: bin_number(bin_place(x, side), side))(centroids)
    order = jnp.argsort(bin)  # stable
    first = jnp.searchsorted(bin[order], jnp.arange(side**dimensions))
    count = jnp.bincount(bin, length=side**dimensions)
    places = first[:, None] + jnp.arange(in_bin)[None, :]
    listed = jnp.where(jnp.arange(in_bin)[None, :] < count[:, None], order[jnp.minimum(places, number - 1)], number)
    return Voronoi(centroids, listed.astype(jnp.int32), count <= in_bin)


def bins_along(number: int, dimensions: int) -> int:
    """How many bins there are along each dimension."""
    return max(1, int(number ** (1 / dimensions)))


def bin_place(point: jax.Array, side: int) -> jax.Array:
    """The bin of a point `[K]` along each dimension, the last or first beyond the bounds, int32 [K]."""
    return jnp.clip(jnp.floor(point * side), 0, side - 1).astype(jnp.int32)


def bin_number(place: jax.Array, side: int) -> jax.Array:
    """The number of a bin, int32 [], in row-major order."""
    strides = jnp.asarray([side**k for k in reversed(range(place.shape[0]))], jnp.int32)
    return jnp.sum(place * strides)


def nearest(cells: Voronoi, points: jax.Array) -> jax.Array:
    """The nearest centroid of every point `[B, K]`, of equals the first, int32 [B]."""
    if cells.bins is None:
        return nearest_of_all(cells.centroids, points)
    number, dimensions = cells.centroids.shape
    side = bins_along(number, dimensions)
    found, is_certain = jax.vmap(lambda point: nearest_around(cells, point, side))(points)

    # The few that have no certain answer, such as those far out of bounds, are compared with all centroids, one at a time.
    def settle(loop: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        found, is_certain = loop
        index = jnp.argmin(is_certain)
        return found.at[index].set(nearest_of_all(cells.centroids, points[index][None])[0]), is_certain.at[index].set(True)

    return jax.lax.while_loop(lambda loop: ~jnp.all(loop[1]), settle, (found, is_certain))[0]


def nearest_around(cells: Voronoi, point: jax.Array, side: int) -> tuple[jax.Array, jax.Array]:
    """The nearest centroid in the bins around a point `[K]`, and whether no other can be nearer, int32 [] and bool []."""
    assert cells.bins is not None and cells.is_whole is not None
    number = cells.centroids.shape[0]
    place = bin_place(point, side)
    steps = jnp.asarray(list(itertools.product(range(-REACH, REACH + 1), repeat=point.shape[0])), jnp.int32)
    around = place[None] + steps
    is_inside = jnp.all((around >= 0) & (around < side), axis=1)
    bins = jax.vmap(lambda place: bin_number(place, side))(jnp.clip(around, 0, side - 1))
    listed = jnp.where(is_inside[:, None], cells.bins[bins], number).reshape(-1)
    squares = squared_distances(point[None], cells.centroids[jnp.minimum(listed, number - 1)])[0]
    squares = jnp.where(listed < number, squares, jnp.inf)
    smallest = jnp.min(squares)
    found = jnp.min(jnp.where(squares == smallest, listed, number))
    # All within the bins searched was compared; the border bins hold what is out of bounds as well.
    to_border = jnp.minimum(point * side - (place - REACH), place + REACH + 1 - point * side)
    to_border = jnp.where(place - REACH <= 0, place + REACH + 1 - point * side, to_border)
    to_border = jnp.where(place + REACH >= side - 1, point * side - (place - REACH), to_border)
    reaches_all = (place - REACH <= 0) & (place + REACH >= side - 1)
    reach = jnp.min(jnp.where(reaches_all, jnp.inf, to_border)) / side
    # `number` where the compiler has computed the distances twice and rounded them differently.
    is_found = (found < number) & jnp.all(cells.is_whole[bins] | ~is_inside)
    return found, is_found & (jnp.sqrt(smallest) < reach * (1 - 1e-5))


def squared_distances(points: jax.Array, centroids: jax.Array) -> jax.Array:
    """`[B, C]`, added up in one order wherever they are compared, so that ties are ties."""
    parts = [(points[:, k, None] - centroids[None, :, k]) ** 2 for k in range(points.shape[1])]
    return functools.reduce(jnp.add, parts)


def nearest_of_all(centroids: jax.Array, points: jax.Array) -> jax.Array:
    """The nearest centroid of every point `[B, K]`, of equals the first, int32 [B]; in blocks of points."""
    number, size = centroids.shape[0], points.shape[0]
    block = min(BLOCK, size)
    padded = jnp.concatenate([points, jnp.zeros((-size % block, points.shape[1]))]).reshape(-1, block, points.shape[1])

    def of_block(points: jax.Array) -> jax.Array:
        squares = squared_distances(points, centroids)
        smallest = jnp.min(squares, axis=1, keepdims=True)
        # Faster than `argmin`, which the compiler does not vectorize; but it may compute distances twice, and round them
        # differently, so that none is equal to the smallest.
        found = jnp.min(jnp.where(squares == smallest, jnp.arange(number)[None, :], number), axis=1)
        is_found = jnp.all(found < number)
        return jax.lax.cond(is_found, lambda: found, lambda: jnp.argmin(squares, axis=1).astype(found.dtype))

    return jax.lax.map(of_block, padded).reshape(-1)[:size].astype(jnp.int32)
