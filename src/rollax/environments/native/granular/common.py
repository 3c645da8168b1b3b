"""Functions shared by the environments of the suite `granular`."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from rollax.environments.environment import Environment
from rollax.environments.native.granular.physics import Bodies, safe_norm, sphere_inertia
from rollax.errors import UsageError

_MAX_OBSERVED_DISPLACEMENT = 3.0  # bound of each observed component of the goal displacement


def _to_float32(value: ArrayLike) -> jax.Array:
    return jnp.asarray(value, jnp.float32)


def parameter_field(default: float) -> Any:
    """Return a dataclass field that converts a physical parameter to a float32 array."""
    return eqx.field(converter=_to_float32, default=default)


def make_identical_bodies(count: int, mass: jax.Array, radius: jax.Array) -> Bodies:
    """Return `count` identical solid spheres with this mass and radius, `[]` each."""

    def repeat(x):
        return jnp.broadcast_to(x, (count,))

    return Bodies(repeat(radius), repeat(mass), repeat(sphere_inertia(mass, radius)))


def clip_norm(action: jax.Array) -> jax.Array:
    """Scale an action `[n]` down to a norm of at most 1."""
    return action / jnp.maximum(safe_norm(action), 1.0)


def observe_goal_displacement(displacement: jax.Array) -> jax.Array:
    """Return the features of the displacement to the goal that agents observe.

    Args:
        displacement: Displacement to the goal, `[D]`.

    Returns:
        Direction to the goal followed by the clipped displacement, `[2 D]`.
    """
    distance = safe_norm(displacement)
    return jnp.concatenate(
        [
            displacement / jnp.where(distance > 0, distance, 1.0),
            jnp.clip(displacement, -_MAX_OBSERVED_DISPLACEMENT, _MAX_OBSERVED_DISPLACEMENT),
        ]
    )


def check_counts(name: str, **counts: tuple[int, int]) -> None:
    """Check that each count is at least its minimum.

    Args:
        name: Id of the environment, for the error message.
        **counts: `(value, minimum)` of each count, keyed by argument name.

    Raises:
        UsageError: If a count is below its minimum.
    """
    for argument, (value, minimum) in counts.items():
        if value < minimum:
            raise UsageError(f"{name}: {argument} ({value}) must be at least {minimum}.")


def check_physics(environment: Environment, length_name: str) -> None:
    """Check the ranges of the physical parameters.

    Traced parameters are not checked, because their values are unknown.

    Args:
        environment: Environment with the attributes `radius`, `damping` and `time_step`.
        length_name: Name of the length that must be at least the diameter of a sphere.

    Raises:
        UsageError: If a parameter is out of range.
    """
    radius, length, damping, time_step = (
        getattr(environment, name) for name in ("radius", length_name, "damping", "time_step")
    )
    if any(isinstance(value, Tracer) for value in (radius, length, damping, time_step)):
        return
    rules = {
        f"radius must be above 0 and at most half of {length_name}": (radius > 0)
        & (2 * radius <= length),
        "damping must be at least 0 and below 1": (damping >= 0) & (damping < 1),
        "time_step must be above 0": time_step > 0,
    }
    for rule, is_satisfied in rules.items():
        if not np.all(is_satisfied):
            raise UsageError(f"{environment.name}: {rule}.")
