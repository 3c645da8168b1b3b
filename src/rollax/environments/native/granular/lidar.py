"""What an agent in the plane perceives around it: how near things are, by direction.

K sectors of equal width, the k-th centerd at the angle 2 pi k / K, counter-clockwise from the first axis. A reading is
1 - gap / reach for the smallest gap between surfaces in the sector: 1 when they touch, 0 when nothing is within reach.
"""

import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.native.granular.physics import length


def directions(sectors: int) -> np.ndarray:
    """The centers of the sectors as vectors of length 1, `[K, 2]`."""
    angles = 2 * np.pi * np.arange(sectors) / sectors
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def nearness(gap: jax.Array, reach: jax.Array) -> jax.Array:
    """A reading for a gap; overlapping surfaces touch."""
    return jnp.clip(1 - gap / reach, 0.0, 1.0)


def of_disc(displacement: jax.Array, radius: jax.Array, other: jax.Array, reach: jax.Array, sectors: int) -> jax.Array:
    """Readings `[K]` of one disc of radius `other`, whose center is at `displacement` `[2]`, by one of `radius`.

    It is seen in every sector that it covers a part of, so that a wide thing nearby is not a thin one.
    """
    distance = length(displacement)
    reading = nearness(distance - radius - other, reach)
    safe = jnp.where(distance > 0, distance, 1.0)
    # Half of what the disc covers and half a sector; it is seen where the angle between both centers is less.
    half = jnp.arcsin(jnp.clip(other / safe, 0.0, 1.0)) + np.pi / sectors
    is_seen = jnp.asarray(directions(sectors)) @ (displacement / safe) >= jnp.cos(jnp.minimum(half, np.pi))
    return jnp.where(is_seen, reading, 0.0)


def of_walls(position: jax.Array, high: jax.Array, radius: jax.Array, reach: jax.Array, sectors: int) -> jax.Array:
    """Readings `[K]` of the walls of a box from 0 to `high` `[2]`, along the center of each sector."""

    def along(direction: jax.Array) -> jax.Array:
        moves = jnp.abs(direction) > 1e-6
        gap = jnp.where(direction > 0, high - position, position)
        far = jnp.where(moves, gap / jnp.where(moves, jnp.abs(direction), 1.0), jnp.inf)
        return nearness(jnp.min(far) - radius, reach)

    return jax.vmap(along)(jnp.asarray(directions(sectors)))
