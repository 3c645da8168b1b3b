"""Grid archives, which divide every descriptor dimension into intervals of equal size.

They are the archives of MAP-Elites (Mouret and Clune 2015, arXiv:1504.04909).
"""

import math

import jax
import jax.numpy as jnp

from rollax.archives.archive import Archive
from rollax.archives.cells import AcceptanceThreshold, Cells, cells_archive, check_bounds
from rollax.errors import UsageError


def grid_archive(
    shape: tuple[int, ...],
    low: tuple[float, ...],
    high: tuple[float, ...],
    threshold: AcceptanceThreshold | None = None,
) -> Archive:
    """Build an archive whose cells form a grid.

    Args:
        shape: Number of cells along each dimension.
        low: Lower bounds of descriptors.
        high: Upper bounds of descriptors.
        threshold: Settings of acceptance thresholds. If None, a cell accepts a solution if it is
            empty or the fitness of the solution exceeds that of its elite.

    Returns:
        The archive.

    Raises:
        UsageError: If the bounds or the shape are not valid.
    """
    return cells_archive(grid_cells(shape, low, high), threshold)


def grid_cells(shape: tuple[int, ...], low: tuple[float, ...], high: tuple[float, ...]) -> Cells:
    """Return the cells of a grid, numbered in row-major order.

    Along a dimension with n cells, descriptor d belongs to cell floor(n (d - low) / (high - low)),
    clipped to the range from 0 to n - 1.

    Args:
        shape: Number of cells along each dimension.
        low: Lower bounds of descriptors.
        high: Upper bounds of descriptors.

    Returns:
        The cells.

    Raises:
        UsageError: If the bounds are not valid, if shape and bounds differ in the number of
            dimensions, or if a dimension has no cells.
    """
    check_bounds(low, high)
    if len(shape) != len(low):
        raise UsageError(
            f"grid must have one number per descriptor dimension ({len(low)}), got "
            f"{' '.join(map(str, shape))}."
        )
    if min(shape) < 1:
        raise UsageError(
            "grid must have at least 1 cell along every dimension, got "
            f"{' '.join(map(str, shape))}."
        )

    def cell_of(_: tuple[()], descriptor: jax.Array) -> jax.Array:
        return jax.vmap(lambda d: cell_index(d, shape, low, high))(descriptor)

    def center_of(_: tuple[()]) -> jax.Array:
        axes = [
            a + (jnp.arange(n) + 0.5) * (b - a) / n
            for n, a, b in zip(shape, low, high, strict=True)
        ]
        return jnp.stack([x.reshape(-1) for x in jnp.meshgrid(*axes, indexing="ij")], axis=-1)

    return Cells(math.prod(shape), low, high, lambda key: (), cell_of, center_of, True)


def cell_index(
    descriptor: jax.Array, shape: tuple[int, ...], low: tuple[float, ...], high: tuple[float, ...]
) -> jax.Array:
    """Return the row-major index of the cell of a descriptor (see `grid_cells`), int32 `[]`.

    Args:
        descriptor: Finite descriptor, `[K]`.
        shape: Number of cells along each dimension.
        low: Lower bounds of descriptors.
        high: Upper bounds of descriptors.
    """
    scale = jnp.asarray(
        [n / (upper - lower) for n, lower, upper in zip(shape, low, high, strict=True)], jnp.float32
    )
    # Clipped as floats, because the conversion is undefined outside the range of int32.
    position = jnp.clip(
        jnp.floor((descriptor - jnp.asarray(low)) * scale), 0, jnp.asarray(shape) - 1
    ).astype(jnp.int32)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return jnp.sum(position * jnp.asarray(strides, jnp.int32))
