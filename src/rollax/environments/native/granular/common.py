"""What the environments of the suite share."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rollax.environments.native.granular.physics import Bodies, length, sphere_inertia
from rollax.errors import UsageError

_NEAR = 3.0  # displacements to the goal are observed within this in each direction


def _real(value: Any) -> jax.Array:
    return jnp.asarray(value, jnp.float32)


def number(default: float) -> Any:
    """A field that is a number of the physics: a leaf."""
    return eqx.field(converter=_real, default=default)


def same_bodies(count: int, mass: jax.Array, radius: jax.Array) -> Bodies:
    """Solid spheres that are all the same."""
    every = lambda x: jnp.broadcast_to(x, (count,))  # noqa: E731
    return Bodies(every(radius), every(mass), every(sphere_inertia(mass, radius)))


def bounded(action: jax.Array) -> jax.Array:
    """An action `[n]` with a norm of 1 at most."""
    return action / jnp.maximum(length(action), 1.0)


def towards(apart: jax.Array) -> jax.Array:
    """How a displacement `[D]` to the goal is observed, `[2 D]`: its direction, and itself, clipped."""
    distance = length(apart)
    return jnp.concatenate([apart / jnp.where(distance > 0, distance, 1.0), jnp.clip(apart, -_NEAR, _NEAR)])


def check_counts(name: str, **least: tuple[int, int]) -> None:
    """Raises UsageError for the first count below its least value: `name=(value, least)`."""
    for argument, (value, low) in least.items():
        if value < low:
            raise UsageError(f"{name}: {argument} ({value}) must be at least {low}.")


def check_physics(environment: Any, room: str) -> None:
    """Raises UsageError for physics that there cannot be, also for spheres that do not fit into their `room`, the name of a
    length. Numbers that are traced are data, and are not judged."""
    radius, within, damping, time_step = (getattr(environment, each) for each in ("radius", room, "damping", "time_step"))
    if any(isinstance(value, Tracer) for value in (radius, within, damping, time_step)):
        return
    rules = {
        f"radius must be above 0, and twice as much at most {room}": (radius > 0) & (2 * radius <= within),
        "damping must be from 0 to less than 1": (damping >= 0) & (damping < 1),
        "time_step must be above 0": time_step > 0,
    }
    for rule, holds in rules.items():
        if not np.all(holds):
            raise UsageError(f"{environment.name}: {rule}.")
