"""Exploration: the schedule of epsilon, noise that is correlated in time, random actions, and the units of actions."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.networks.critics import masked_action
from rollax.networks.q_networks import mask_actions
from rollax.spaces import ActionSpace, Box


def epsilon_schedule(config: Any, progress: jax.Array) -> jax.Array:
    """The chance of a random action, which falls in a straight line over the first `exploration_fraction` of training."""
    over = jnp.clip(progress / jnp.maximum(config.exploration_fraction, 1e-6), 0.0, 1.0)
    return config.epsilon * (1 + over * (config.epsilon_final_fraction - 1))


class Exploring(NamedTuple):
    """What exploring carries from step to step of one stream."""

    noise: Any  # float [...]: standard normal, one number for each of a continuous action; None for discrete actions
    steps: jax.Array  # int32 []: steps taken, at most 2^30
    memory: Any  # of the policy


def begin_exploring(space: ActionSpace, key: jax.Array, shape: tuple[int, ...], memory: Any) -> Exploring:
    """Before any step, of streams of that shape. `memory`: what their policy begins with."""
    noise = jax.random.normal(key, (*shape, *space.shape)) if isinstance(space, Box) else None
    return Exploring(noise, jnp.zeros(shape, jnp.int32), memory)


def next_noise(noise: Any, key: jax.Array, correlation: jax.Array | float) -> Any:
    """z' = rho z + sqrt(1 - rho^2) N(0, 1), an Ornstein-Uhlenbeck process; white noise with rho = 0.

    Where a task needs a push in one direction for a while, white noise hardly ever finds its reward.
    """
    if noise is None:
        return None
    return correlation * noise + jnp.sqrt(1 - correlation**2) * jax.random.normal(key, noise.shape)


def random_action(space: Any, obs: Any, noise: Any, key: jax.Array) -> jax.Array:
    """A uniform normalized action: of a discrete space one that is not masked, of a box by standard normal `noise`."""
    if isinstance(space, Box):
        return masked_action(jax.scipy.special.erf(noise / jnp.sqrt(2.0)), obs)  # 2 Phi(z) - 1
    return jax.random.categorical(key, mask_actions(jnp.zeros(space.n), obs)).astype(space.dtype)


def example_action(space: Any) -> jax.Array:
    """A normalized action, of the shape and type that replay holds."""
    return jnp.zeros(space.shape, jnp.float32 if isinstance(space, Box) else space.dtype)


def denormalize_action(space: Any, action: jax.Array) -> jax.Array:
    """A normalized action in the units of the environment: -1 ... 1 becomes low ... high of a box; discrete ones stay."""
    if not isinstance(space, Box):
        return action
    low, high = np.broadcast_to(space.low, space.shape), np.broadcast_to(space.high, space.shape)
    center, half = jnp.asarray((high + low) / 2, action.dtype), jnp.asarray((high - low) / 2, action.dtype)
    return (center + half * action).astype(space.dtype)
