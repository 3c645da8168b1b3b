"""Who is near whom: jax-md's cell lists with a capacity that is fixed beforehand, so that they work under `jit` and `vmap`."""

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


class Neighbors(NamedTuple):
    """The neighbors of N spheres, at most K each, in no particular order."""

    indices: jax.Array  # int32 [N, K]: N where there is none
    overflow: jax.Array  # bool []: there were more, which are missing


@functools.cache
def neighbor_search(
    number: int, side: tuple[float, ...], periodic: bool, cutoff: float, capacity: int, closest: float
) -> Callable[[jax.Array], Neighbors]:
    """A function from positions `[number, D]` in the box from 0 to `side` to all pairs nearer than `cutoff`.

    `capacity` is the most neighbors of one sphere and `closest` the least distance to expect between two centers, which
    bounds how many share a cell. What is more than that is left out and flagged as an overflow. A list stays right for
    contacts until two spheres have come nearer by `cutoff` less the distance at which they touch.

    jax-md sizes a list by an example of positions, outside of `jit`, and rebuilds it where a sphere has moved far. Neither
    helps here: an example says little about other episodes, and under `vmap` a condition computes both sides. So
    sizes follow from the geometry, and each call builds anew: call it once for several time steps. Functions
    compare by identity, hence the cache: equal searches are one and the same, and so are the programs that hold them.

    Raises: UsageError when jax-md is not installed or the sizes do not fit.
    """
    if not 0 < closest <= cutoff or (periodic and min(side) < 2 * cutoff):
        most = f" and a periodic box of {min(side):g} at most {min(side) / 2:g}" if periodic else ""
        raise UsageError(f"cutoff ({cutoff:g}) must be at least closest ({closest:g}){most}.")
    partition, space = _jax_md()
    with jax.ensure_compile_time_eval(), jax.numpy_rank_promotion("allow"):
        box = jnp.asarray(side, jnp.float32)
        displacement = (space.periodic(box) if periodic else space.free())[0]
        find = partition.neighbor_list(displacement, box, cutoff, dr_threshold=0.0, format=partition.Dense)
        # An example is needed for the sizes of cells; those of buffers follow from the geometry instead.
        example = find.allocate(jnp.zeros((number, len(side))))
    cells = None if example.cell_list_fn is None else min(number, _most_in_cell(side, cutoff, closest))
    empty = dataclasses.replace(example, max_occupancy=min(capacity, number - 1), cell_list_capacity=cells)

    def search(position: jax.Array) -> Neighbors:
        # Cells are counted from the lower corner; a center beyond a wall belongs to the cell at the wall.
        inside = position if periodic else jnp.clip(position, 0.0, jnp.broadcast_to(box * (1 - 1e-6), position.shape))
        with jax.numpy_rank_promotion("allow"):
            found = find.update(inside, empty)
        return Neighbors(found.idx.astype(jnp.int32), found.error.code != 0)

    return search


def _most_in_cell(side: tuple[float, ...], cutoff: float, closest: float) -> int:
    """How many points that are `closest` apart fit in one cell: discs and balls that fill a cell and half a gap around it.

    No packing is denser than 0.907 in the plane (Thue) and 0.741 in space (Kepler).
    """
    wide = [1 + length / (length // cutoff) / closest for length in side]
    return math.ceil(math.prod(wide) * {2: 0.9069 / (math.pi / 4), 3: 0.7405 / (math.pi / 6)}[len(side)])


def _jax_md() -> tuple[ModuleType, ModuleType]:
    """Its neighbor lists and spaces, imported late: that takes seconds."""
    try:
        return importlib.import_module("jax_md.partition"), importlib.import_module("jax_md.space")
    except ModuleNotFoundError as error:
        remedy = 'pip install "rollax[granular]", or compare all pairs'
        raise UsageError(f"lists of neighbors need the package {error.name}, which is not installed: {remedy}.") from error
