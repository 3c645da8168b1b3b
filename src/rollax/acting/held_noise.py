"""Noise weights of generalized state-dependent exploration (gSDE), held for several steps.

The weights follow from a random key (`rollax.networks.distributions.Gaussian`), so the carry of a
policy in training contains the key instead of the weights. Learning does not need them, because the
density of an action does not depend on the weights.

Raffin et al. 2021, Smooth exploration for robotic reinforcement learning, arXiv:2005.05719.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting.streams import Rollout
from rollax.networks.critics import TanhGaussianHead
from rollax.networks.policy_heads import GaussianHead
from rollax.types import Action, Carry, Observation, PyTree, Scalar, Settings


class HeldNoise(NamedTuple):
    """Random key of the noise weights of one stream.

    Attributes:
        key_data: Data of the random key, uint32 `[2]`.
        steps: Number of steps with these weights, -1 before the first step, int32 `[]`.
    """

    key_data: jax.Array
    steps: jax.Array


class NoisyCarry(NamedTuple):
    """Carry of an on-policy algorithm in training: the memory of the network, and held noise."""

    memory: Carry
    held: HeldNoise


def init_held_noise(network: PyTree, shape: tuple[int, ...] = ()) -> HeldNoise | None:
    """Return the initial state of held noise. The first call of `hold_noise` draws weights.

    Args:
        network: Network, or a pytree of networks.
        shape: Leading axes of the state.

    Returns:
        The state, or None unless a policy head has the standard deviation "gsde".
    """

    def is_head(part: Any) -> bool:
        return isinstance(part, GaussianHead | TanhGaussianHead)

    parts = jax.tree.leaves(network, is_leaf=is_head)
    if not any(is_head(part) and part.std == "gsde" for part in parts):
        return None
    data = jax.random.key_data(jax.random.key(0))
    return HeldNoise(jnp.broadcast_to(data, (*shape, *data.shape)), jnp.full(shape, -1, jnp.int32))


def hold_noise(
    noise: HeldNoise, reset: jax.Array, key: jax.Array, sample_freq: Scalar
) -> tuple[HeldNoise, jax.Array]:
    """Draw new weights if an episode starts or the weights are due.

    Args:
        noise: State before the step.
        reset: Whether the step is the first of an episode, bool `[]`.
        key: Random key of new weights.
        sample_freq: Steps after which weights are drawn. 0 draws them only at the start of
            episodes.

    Returns:
        The state after the step, and the random key of the action.
    """
    is_due = (sample_freq > 0) & (noise.steps >= sample_freq)
    fresh = HeldNoise(jax.random.key_data(key), jnp.zeros((), jnp.int32))
    key_data, steps = tree.where(reset | (noise.steps < 0) | is_due, fresh, noise)
    held = HeldNoise(key_data, jnp.minimum(steps + 1, 2**30))
    return held, jax.random.wrap_key_data(key_data)


def next_key(
    noise: HeldNoise | None, reset: jax.Array, key: jax.Array, config: Settings
) -> tuple[HeldNoise | None, jax.Array]:
    """Apply `hold_noise` with `config.sde_sample_freq`. Without held noise, return `key`."""
    return (None, key) if noise is None else hold_noise(noise, reset, key, config.sde_sample_freq)


def add_to_carry(network: PyTree, memory: Carry) -> Carry:
    """Return the carry for a policy that may hold the weights of its noise."""
    held = init_held_noise(network)
    return memory if held is None else NoisyCarry(memory, held)


def remove_from_rollout(rollout: Rollout) -> Rollout:
    """Return the rollout for learning, whose carries are the memory of the network."""
    if not isinstance(rollout.actor.carry, NoisyCarry):
        return rollout
    actor = rollout.actor._replace(carry=rollout.actor.carry.memory)
    experience = rollout.experience._replace(carry=rollout.experience.carry.memory)
    return rollout._replace(actor=actor, experience=experience)


def add_to_sampler(
    sampler: Callable[..., tuple[Carry, Action, PyTree]], config: Settings, carry: Carry
) -> Callable[..., tuple[Carry, Action, PyTree]]:
    """Return a policy for training that samples with the key of its held weights.

    Args:
        sampler: Function `(train, carry, obs, reset, key)` that returns carry, action and extras.
        config: Settings of the algorithm.
        carry: Carry of the policy. Without held noise, the result is `sampler`.
    """
    if not isinstance(carry, NoisyCarry):
        return sampler
    return functools.partial(_sample_with_held_noise, sampler, config)


def _sample_with_held_noise(
    sampler: Callable[..., tuple[Carry, Action, PyTree]],
    config: Settings,
    train: PyTree,
    carry: NoisyCarry,
    obs: Observation,
    reset: jax.Array,
    key: jax.Array,
) -> tuple[NoisyCarry, Action, PyTree]:
    held, key = hold_noise(carry.held, reset, key, config.sde_sample_freq)
    memory, action, extras = sampler(train, carry.memory, obs, reset, key)
    return NoisyCarry(memory, held), action, extras
