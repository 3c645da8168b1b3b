"""Grid archives (MAP-Elites, Mouret and Clune 2015, arXiv:1504.04909): equal cells along every dimension of the descriptor."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from rollax.archives.cells import Cells, Threshold, cells_archive, check_bounds
from rollax.archives.core import Archive
from rollax.errors import UsageError


def grid(
    shape: tuple[int, ...], low: tuple[float, ...], high: tuple[float, ...], threshold: Threshold | None = None
) -> Archive:
    """An archive of `shape` cells, n_k along dimension k. Raises UsageError as `grid_cells`."""
    return cells_archive(grid_cells(shape, low, high), threshold)


def grid_cells(shape: tuple[int, ...], low: tuple[float, ...], high: tuple[float, ...]) -> Cells:
    """`shape` cells, n_k along dimension k; a cell's number is that of row-major order.

    The cell of d is floor(n (d - low) / (high - low)) along each dimension, the last or the first beyond the bounds.

    Raises UsageError when the dimensions of `shape` and bounds differ.
    """
    check_bounds(low, high)
    if len(shape) != len(low):
        raise UsageError(
            f"grid ({' '.join(map(str, shape))}) has {len(shape)} dimensions, but descriptors have {len(low)}: "
            f"give {len(low)} numbers"
        )
    if min(shape) < 1:
        raise UsageError(f"grid ({' '.join(map(str, shape))}) must have at least 1 cell along every dimension")

    def cell_of(_: Any, descriptor: jax.Array) -> jax.Array:
        return jax.vmap(lambda d: cell_number(d, shape, low, high))(descriptor)

    def center_of(_: Any) -> jax.Array:
        axes = [a + (jnp.arange(n) + 0.5) * (b - a) / n for n, a, b in zip(shape, low, high, strict=True)]
        return jnp.stack([x.reshape(-1) for x in jnp.meshgrid(*axes, indexing="ij")], axis=-1)

    return Cells(math.prod(shape), low, high, lambda key: (), cell_of, center_of, True)


def cell_number(descriptor: jax.Array, shape: tuple[int, ...], low: tuple[float, ...], high: tuple[float, ...]) -> jax.Array:
    """The cell of a finite descriptor `[K]`, int32 []."""
    scale = jnp.asarray([n / (upper - lower) for n, lower, upper in zip(shape, low, high, strict=True)], jnp.float32)
    # Clipped as floats: beyond the range of int32 the conversion is undefined.
    position = jnp.clip(jnp.floor((descriptor - jnp.asarray(low)) * scale), 0, jnp.asarray(shape) - 1).astype(jnp.int32)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return jnp.sum(position * jnp.asarray(strides, jnp.int32))
