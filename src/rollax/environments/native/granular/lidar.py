"""Lidar sensor of a disc-shaped agent in the plane.

There are K sectors of equal width. Sector k is centered at the angle 2 pi k / K, counterclockwise
from the first axis. The reading of a sector is 1 - gap / reach, where the gap is the smallest
distance between the surface of the agent and another surface in the sector. The reading is 1 at
contact, and 0 if no surface is within reach.
"""

import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.native.granular.physics import safe_norm


def sector_directions(sectors: int) -> np.ndarray:
    """Return unit vectors to the centers of the sectors, float32 `[K, 2]`."""
    angles = 2 * np.pi * np.arange(sectors) / sectors
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def lidar_reading(gap: jax.Array, reach: jax.Array) -> jax.Array:
    """Return the reading for a gap between surfaces, from 1 (touching) to 0 (`reach` or more)."""
    return jnp.clip(1 - gap / reach, 0.0, 1.0)


def disc_readings(
    displacement: jax.Array,
    radius: jax.Array,
    disc_radius: jax.Array,
    reach: jax.Array,
    sectors: int,
) -> jax.Array:
    """Return the readings of all sectors for a single disc.

    The reading is positive in every sector that the disc covers at least partly.

    Args:
        displacement: Displacement from the agent to the center of the disc, `[2]`.
        radius: Radius of the agent.
        disc_radius: Radius of the disc.
        reach: Range of the lidar.
        sectors: Number of sectors K.

    Returns:
        Readings, `[K]`.
    """
    distance = safe_norm(displacement)
    reading = lidar_reading(distance - radius - disc_radius, reach)
    safe_distance = jnp.where(distance > 0, distance, 1.0)
    # The disc is visible if the angle between its center and the center of the sector is smaller
    # than half the angle that the disc covers plus half a sector.
    half_angle = jnp.arcsin(jnp.clip(disc_radius / safe_distance, 0.0, 1.0)) + np.pi / sectors
    is_seen = jnp.asarray(sector_directions(sectors)) @ (displacement / safe_distance) >= jnp.cos(
        jnp.minimum(half_angle, np.pi)
    )
    return jnp.where(is_seen, reading, 0.0)


def wall_readings(
    position: jax.Array, high: jax.Array, radius: jax.Array, reach: jax.Array, sectors: int
) -> jax.Array:
    """Return the readings of the walls of a box, measured along the center of each sector.

    Args:
        position: Position of the agent, `[2]`.
        high: Upper corner of the box, `[2]`. The lower corner is 0.
        radius: Radius of the agent.
        reach: Range of the lidar.
        sectors: Number of sectors K.

    Returns:
        Readings, `[K]`.
    """

    def read_direction(direction: jax.Array) -> jax.Array:
        is_moving = jnp.abs(direction) > 1e-6
        gap = jnp.where(direction > 0, high - position, position)
        distances = jnp.where(
            is_moving, gap / jnp.where(is_moving, jnp.abs(direction), 1.0), jnp.inf
        )
        return lidar_reading(jnp.min(distances) - radius, reach)

    return jax.vmap(read_direction)(jnp.asarray(sector_directions(sectors)))
