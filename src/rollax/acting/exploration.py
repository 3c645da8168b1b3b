"""Exploration: epsilon schedule, correlated noise, random actions and scaling of actions."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from rollax.networks.critics import masked_action
from rollax.networks.q_networks import mask_illegal_values
from rollax.spaces import (
    ActionSpace,
    Ball,
    Box,
    SimpleActionSpace,
    check_discrete,
    map_space,
)
from rollax.types import Carry, Observation, PyTree, Scalar


@runtime_checkable
class EpsilonConfig(Protocol):
    """Settings of the probability of a random action (epsilon)."""

    @property
    def epsilon(self) -> Scalar: ...
    @property
    def epsilon_final_fraction(self) -> Scalar: ...
    @property
    def exploration_fraction(self) -> Scalar: ...


def epsilon_schedule(config: EpsilonConfig, progress: jax.Array) -> jax.Array:
    """Return the probability of a random action (epsilon).

    It changes linearly from `epsilon` to `epsilon * epsilon_final_fraction` over the first
    `exploration_fraction` of training, and is constant afterward.

    Args:
        config: Settings with `epsilon`, `epsilon_final_fraction` and `exploration_fraction`.
        progress: Progress of training between 0 and 1, float `[]`.

    Returns:
        The probability, float `[]`.
    """
    over = jnp.clip(progress / jnp.maximum(config.exploration_fraction, 1e-6), 0.0, 1.0)
    return config.epsilon * (1 + over * (config.epsilon_final_fraction - 1))


class ExplorationState(NamedTuple):
    """State of exploration in one stream.

    Attributes:
        noise: Standard normal noise with the shape of the action, float, or None for discrete
            actions.
        steps: Number of steps taken, saturating at 2^30, int32 `[]`.
        memory: Memory (recurrent state) of the policy.
    """

    noise: Any
    steps: jax.Array
    memory: Any


def init_exploration(
    space: ActionSpace, key: jax.Array, shape: tuple[int, ...], memory: Carry
) -> ExplorationState:
    """Return the initial exploration state.

    Args:
        space: Action space.
        key: Random key.
        shape: Leading axes of the state, `(E,)` environments or `(E, A)` with agents.
        memory: Initial memory of the policy with these leading axes.

    Returns:
        The exploration state, with noise from its stationary distribution N(0, 1).
    """
    noise = (
        jax.random.normal(key, (*shape, *space.shape)) if isinstance(space, Box | Ball) else None
    )
    return ExplorationState(noise, jnp.zeros(shape, jnp.int32), memory)


def sample_noise(noise: jax.Array | None, key: jax.Array, correlation: Scalar) -> jax.Array | None:
    """Sample the next value of an Ornstein-Uhlenbeck process, z' = rho z + sqrt(1 - rho^2) N(0, 1).

    Correlated noise helps in tasks whose reward requires several actions in the same direction.
    White noise (rho = 0) rarely reaches such a reward.

    Args:
        noise: Noise z of the previous step, or None for discrete actions.
        key: Random key.
        correlation: Correlation rho of consecutive steps.

    Returns:
        The noise z' with the shape of `noise`, or None for discrete actions.
    """
    if noise is None:
        return None
    return correlation * noise + jnp.sqrt(1 - correlation**2) * jax.random.normal(key, noise.shape)


def random_action(
    space: ActionSpace, obs: Observation, noise: jax.Array | None, key: jax.Array
) -> jax.Array:
    """Return a uniform random action.

    Discrete actions are legal. Actions in a box or a ball are normalized.

    Args:
        space: Action space.
        obs: Observation, which may contain an action mask.
        noise: Standard normal noise that determines the action in a box or a ball, or None for
            discrete actions.
        key: Random key for discrete actions.

    Returns:
        The action.
    """
    if noise is not None and isinstance(space, Ball):
        return _uniform_in_ball(noise)
    if noise is not None:
        return masked_action(jax.scipy.special.erf(noise / jnp.sqrt(2.0)), obs)  # 2 Phi(z) - 1
    discrete = check_discrete(space)
    logits = mask_illegal_values(jnp.zeros(discrete.n), obs)
    return jax.random.categorical(key, logits).astype(discrete.dtype)


def _uniform_in_ball(noise: jax.Array) -> jax.Array:
    """Transform standard normal noise `[d]` to a uniform sample of the unit ball.

    The direction is that of the noise. The d-th power of the norm of the sample is the distribution
    function of |noise|^2, a chi-square variable with d degrees of freedom.
    """
    square = jnp.sum(noise**2)
    norm = jax.scipy.special.gammainc(noise.size / 2, square / 2) ** (1 / noise.size)
    return noise * norm * jax.lax.rsqrt(jnp.maximum(square, 1e-12))


def example_action(space: ActionSpace) -> Any:
    """Return a zero action with the shape and dtype of actions in the replay buffer."""

    def make_zeros(part: SimpleActionSpace) -> jax.Array:
        return jnp.zeros(part.shape, jnp.float32 if isinstance(part, Box) else part.dtype)

    return map_space(make_zeros, space)


def denormalize_action(space: ActionSpace, action: jax.Array) -> jax.Array:
    """Scale a normalized action to a box or a ball. Discrete actions are unchanged.

    Args:
        space: Action space.
        action: Action in [-1, 1] for a `Box`, or in the unit ball for a `Ball`.
    """
    if isinstance(space, Ball):
        return space.radius * action
    if not isinstance(space, Box):
        return action
    low, high = np.broadcast_to(space.low, space.shape), np.broadcast_to(space.high, space.shape)
    center, half = (
        jnp.asarray((high + low) / 2, action.dtype),
        jnp.asarray((high - low) / 2, action.dtype),
    )
    return (center + half * action).astype(space.dtype)


def normalize_action(space: ActionSpace, action: PyTree) -> Any:
    """Scale an action to [-1, 1] or the unit ball, clipped to it. Inverts `denormalize_action`.

    Args:
        space: Action space.
        action: NumPy array of actions `[..., *shape]`. Discrete actions are unchanged.
    """
    if isinstance(space, Ball):
        return (action / space.radius).astype(np.float32)
    if not isinstance(space, Box):
        return action
    low, high = np.broadcast_to(space.low, space.shape), np.broadcast_to(space.high, space.shape)
    scaled = (action - (high + low) / 2) / np.maximum((high - low) / 2, np.finfo(float).tiny)
    return np.clip(scaled, -1.0, 1.0).astype(np.float32)
