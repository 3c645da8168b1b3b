"""Policies and critics conditioned on a behavior descriptor: pi(s | d) and Q(s, a | d).

The method is from Faldor et al. 2024, arXiv:2401.08632. The policy adds a linear function of the
descriptor to the bias of its first dense layer. For a fixed descriptor, it is therefore equal to an
unconditioned policy with another bias.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.action_spaces import normalize_space
from rollax.environments.environment import Environment
from rollax.networks.critics import (
    Actor,
    ActorCritics,
    ActorCriticsConfig,
    ConditionedObservation,
    ContinuousCritic,
    make_critics,
)
from rollax.networks.layers import Linear


class ConditionedActor(eqx.Module):
    """Policy pi(s | d) with the bias b + d V in its first dense layer, where V is learned.

    Attributes:
        policy: Policy that includes the bias b.
        weight: Weights V, `[K, outputs of the first layer]`.
    """

    policy: Actor
    weight: jax.Array

    def with_descriptor(self, descriptor: jax.Array) -> Actor:
        """Return the policy pi(. | d) for a descriptor d `[K]`."""
        bias = first_layer(self.policy).bias + descriptor @ self.weight
        has_dense = bool(self.policy.dense.layers)
        return eqx.tree_at(
            lambda p: p.dense.layers[0].bias if has_dense else p.head.layer.bias, self.policy, bias
        )

    def __call__(self, obs: ConditionedObservation) -> Any:
        return self.with_descriptor(obs.descriptor)(obs.observation)


class ConditionedCritic(eqx.Module):
    """Critic Q(s, a | d) of an observation, an action and a descriptor."""

    critic: ContinuousCritic

    def __call__(self, obs: ConditionedObservation, action: jax.Array) -> jax.Array:
        return self.critic(obs.observation, jnp.concatenate([action.reshape(-1), obs.descriptor]))


def make_conditioned_actor_critics(
    environment: Environment,
    policy: Actor,
    config: ActorCriticsConfig,
    num_descriptors: int,
    key: jax.Array,
) -> ActorCritics:
    """Return a conditioned policy with the weights of `policy`, and conditioned critics.

    Args:
        environment: Environment with the spaces.
        policy: Initial policy.
        config: Architecture of the critics.
        num_descriptors: Dimension K of the descriptors.
        key: Random key of the weights.

    Returns:
        The policy and the critics.

    Raises:
        UsageError: If the action space is neither a `Ball` nor a bounded `Box`.
    """
    size = math.prod(normalize_space(environment.action_space).shape)
    actor_key, critic_key = jax.random.split(key)
    weight = Linear(
        num_descriptors, first_layer(policy).bias.shape[0], actor_key, math.sqrt(2)
    ).weight
    critics = make_critics(environment, config, size + num_descriptors, critic_key)
    return ActorCritics(
        ConditionedActor(policy, weight), tuple(ConditionedCritic(critic) for critic in critics)
    )


def first_layer(policy: Actor) -> Linear:
    """Return the first dense layer after the encoder. Without hidden layers, it is in the head."""
    return policy.dense.layers[0] if policy.dense.layers else policy.head.layer


def bind_descriptor(
    critic: tuple[ConditionedCritic, ...], descriptor: jax.Array
) -> tuple[Any, ...]:
    """Return critics Q(., . | d) for a fixed descriptor d `[K]`."""
    return tuple(
        lambda obs, action, network=network: network(
            ConditionedObservation(obs, descriptor), action
        )
        for network in critic
    )
