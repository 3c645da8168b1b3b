"""Exploration: epsilon schedule, correlated noise, random actions and scaling of actions."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from rollax.acting.held_noise import HeldNoise
from rollax.action_spaces import make_normalized_zeros
from rollax.networks.critics import get_action_mask, masked_action
from rollax.networks.policy_heads import make_categorical, select_action_mask
from rollax.spaces import (
    ActionSpace,
    Ball,
    Box,
    Dict,
    Discrete,
    Grid,
    SimpleActionSpace,
    Space,
    Tuple,
    join_values,
    list_parts,
    list_values,
    map_space,
)
from rollax.types import Action, Carry, Observation, PyTree, Scalar


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
    """State of exploration of one agent in one environment.

    Attributes:
        noise: Standard normal noise with the structure and shapes of the action, float, and None
            for discrete parts.
        steps: Number of steps taken, saturating at 2^30, int32 `[]`.
        memory: Memory (recurrent state) of the policy.
        held: Noise weights of gSDE, or None for another policy.
    """

    noise: Any
    steps: jax.Array
    memory: Any
    held: HeldNoise | None = None


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
    noise = sample_normal(key, make_normalized_zeros(space), shape)
    return ExplorationState(noise, jnp.zeros(shape, jnp.int32), memory)


def sample_normal(key: jax.Array, action: Action, shape: tuple[int, ...] = ()) -> Any:
    """Sample standard normal noise for the continuous parts of an action.

    Args:
        key: Random key.
        action: Action, or noise, with the structure and the shapes of the result.
        shape: Additional leading axes.

    Returns:
        The noise, float, and None for discrete parts.
    """
    parts, structure = jax.tree.flatten(action)
    keys = jax.random.split(key, len(parts)) if len(parts) > 1 else [key] * len(parts)
    noise = [
        jax.random.normal(k, (*shape, *part.shape))
        if jnp.issubdtype(part.dtype, jnp.floating)
        else None
        for part, k in zip(parts, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, noise)


def sample_noise(noise: PyTree, key: jax.Array, correlation: Scalar) -> Any:
    """Sample the next value of an Ornstein-Uhlenbeck process, z' = rho z + sqrt(1 - rho^2) N(0, 1).

    Correlated noise helps in tasks whose reward requires several actions in the same direction.
    White noise (rho = 0) rarely reaches such a reward.

    Args:
        noise: Noise z of the previous step, and None for discrete parts.
        key: Random key.
        correlation: Correlation rho of consecutive steps.

    Returns:
        The noise z' with the structure and shapes of `noise`.
    """
    if noise is None:
        return None
    return jax.tree.map(
        lambda z, fresh: correlation * z + jnp.sqrt(1 - correlation**2) * fresh,
        noise,
        sample_normal(key, noise),
    )


def random_action(space: Space, obs: Observation, noise: PyTree, key: jax.Array) -> Any:
    """Return a uniform random action.

    Discrete actions are legal. Actions in a box or a ball are normalized.

    Args:
        space: Action space.
        obs: Observation, which may contain an action mask.
        noise: Standard normal noise that determines the action in a box or a ball, and None for
            discrete parts.
        key: Random key for discrete parts.

    Returns:
        The action.
    """
    assert not isinstance(space, Grid), "a space of observations"
    if isinstance(space, Dict | Tuple):
        parts, noises = list_parts(space), list_values(space, noise)
        keys = dict(zip(parts, jax.random.split(key, len(parts)), strict=True))
        actions = {
            name: random_action(part, select_action_mask(obs, name), noises[name], keys[name])
            for name, part in parts.items()
        }
        return join_values(space, actions)
    if isinstance(space, Ball):
        return _uniform_in_ball(noise)
    if isinstance(space, Box):
        return masked_action(jax.scipy.special.erf(noise / jnp.sqrt(2.0)), obs)  # 2 Phi(z) - 1
    is_single = isinstance(space, Discrete)
    logits = jnp.zeros(space.n if is_single else (len(space.sizes), max(space.sizes)))
    policy = make_categorical(logits, space, get_action_mask(obs))
    return policy.sample(key).astype(space.dtype)


def _uniform_in_ball(noise: jax.Array) -> jax.Array:
    """Transform standard normal noise `[d]` to a uniform sample of the unit ball.

    The sample has the direction of the noise and the norm F(|noise|^2)^(1/d), where F is the
    distribution function of the chi-square distribution with d degrees of freedom.
    """
    square = jnp.sum(noise**2)
    norm = jax.scipy.special.gammainc(noise.size / 2, square / 2) ** (1 / noise.size)
    return noise * norm * jax.lax.rsqrt(jnp.maximum(square, 1e-12))


def denormalize_action(space: ActionSpace, action: Action) -> Any:
    """Scale the normalized parts of an action to boxes and balls. Discrete parts are unchanged.

    Args:
        space: Action space.
        action: Action, with parts in [-1, 1] for a `Box`, and in the unit ball for a `Ball`.
    """
    return map_space(_denormalize_part, space, action)


def _denormalize_part(space: SimpleActionSpace, action: jax.Array) -> jax.Array:
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
