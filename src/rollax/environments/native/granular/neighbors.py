"""Neighbor search with the cell lists of jax-md.

Capacities are fixed in advance, so the search works under `jit` and `vmap`.
"""

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rollax.errors import UsageError
from rollax.runtime.installation import install_command


class Neighbors(NamedTuple):
    """Neighbors of N spheres, at most K each, in no particular order.

    Attributes:
        indices: Indices of neighbors, int32 [N, K]. Unused entries are N.
        overflow: Whether neighbors are missing because a sphere has more than K, bool [].
    """

    indices: jax.Array
    overflow: jax.Array


@functools.cache
def make_neighbor_search(
    num_spheres: int,
    side: tuple[float, ...],
    periodic: bool,
    cutoff: float,
    capacity: int,
    min_distance: float,
) -> Callable[[jax.Array], Neighbors]:
    """Build a function that finds all pairs of spheres closer than `cutoff`.

    A list stays valid for contacts until two spheres have approached each other by `cutoff` minus
    the distance at which they touch.

    The defaults of jax-md are not suitable here: jax-md chooses the size of a list from example
    positions outside of `jit`, and rebuilds the list only after large motions. Example positions do
    not represent other episodes, and under `vmap` both branches of a condition are computed. Sizes
    are therefore computed from the geometry, and each call rebuilds the list. Call the search once
    for several time steps. The returned function is cached, because compiled programs compare
    functions by identity.

    Args:
        num_spheres: Number of spheres N.
        side: Side of the box from 0 along each axis.
        periodic: Whether the box is periodic.
        cutoff: Largest distance of neighbors.
        capacity: Maximum number of neighbors of one sphere. Excess neighbors are dropped and
            reported as an overflow.
        min_distance: Smallest expected distance between two centers, which bounds the number of
            spheres per cell.

    Returns:
        Function from positions `[N, D]` to `Neighbors`.

    Raises:
        UsageError: If jax-md is not installed, or `cutoff` does not fit `min_distance` and the box.
    """
    if not 0 < min_distance <= cutoff or (periodic and min(side) < 2 * cutoff):
        side_limit = (
            f" and at most half the side ({min(side):g}) of a periodic box" if periodic else ""
        )
        raise UsageError(
            f"cutoff ({cutoff:g}) must be at least closest ({min_distance:g}){side_limit}."
        )
    partition, space = _import_jax_md()
    with jax.ensure_compile_time_eval(), jax.numpy_rank_promotion("allow"):
        box = jnp.asarray(side, jnp.float32)
        displacement = (space.periodic(box) if periodic else space.free())[0]
        neighbor_fn = partition.neighbor_list(
            displacement, box, cutoff, dr_threshold=0.0, format=partition.Dense
        )
        # The example determines the sizes of cells. Buffers are sized from the geometry below.
        example_list = neighbor_fn.allocate(jnp.zeros((num_spheres, len(side))))
    cells = (
        None
        if example_list.cell_list_fn is None
        else min(num_spheres, _max_cell_occupancy(side, cutoff, min_distance))
    )
    empty_list = dataclasses.replace(
        example_list, max_occupancy=min(capacity, num_spheres - 1), cell_list_capacity=cells
    )

    def search(position: jax.Array) -> Neighbors:
        # A center beyond a wall belongs to the cell at the wall.
        clipped = (
            position
            if periodic
            else jnp.clip(position, 0.0, jnp.broadcast_to(box * (1 - 1e-6), position.shape))
        )
        with jax.numpy_rank_promotion("allow"):
            found = neighbor_fn.update(clipped, empty_list)
        return Neighbors(found.idx.astype(jnp.int32), found.error.code != 0)

    return search


def _max_cell_occupancy(side: tuple[float, ...], cutoff: float, min_distance: float) -> int:
    """Return an upper bound on the number of spheres per cell with distances >= `min_distance`.

    Discs or balls of diameter `min_distance` must fit into the cell, extended by half a diameter.
    No packing is denser than 0.907 in the plane (Thue) and 0.741 in space (Kepler).
    """
    widths = [1 + length / (length // cutoff) / min_distance for length in side]
    return math.ceil(
        math.prod(widths) * {2: 0.9069 / (math.pi / 4), 3: 0.7405 / (math.pi / 6)}[len(side)]
    )


def _import_jax_md() -> tuple[ModuleType, ModuleType]:
    """Import the neighbor lists and spaces of jax-md on first use, because this takes seconds."""
    try:
        return importlib.import_module("jax_md.partition"), importlib.import_module("jax_md.space")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"The package {error.name} is not installed, and pairs=listed needs it. "
            f"Use pairs=all, or run: {install_command('granular')}"
        ) from error
