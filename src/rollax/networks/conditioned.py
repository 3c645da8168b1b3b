"""A policy and critics that depend on a descriptor of behavior: pi(s | d) and Q(s, a | d).

Faldor et al. 2024, arXiv:2401.08632. A descriptor enters the first dense layer only, where it adds to the bias, so that the
policy at one descriptor is a policy of observations like any other.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.core import Environment
from rollax.networks.critics import Actor, ActorCritics, ActorCriticsConfig, Conditioned, ContinuousCritic, make_critics
from rollax.networks.layers import Linear
from rollax.spaces import check_bounded


class ConditionedActor(eqx.Module):
    """pi(s | d): a policy whose first dense layer has the bias b + d V."""

    policy: Actor  # with the bias b
    weight: jax.Array  # V, [K, outputs of the first layer]

    def at(self, descriptor: jax.Array) -> Actor:
        """pi(. | d), a policy of observations alone; `descriptor`: `[K]`."""
        bias = first_layer(self.policy).bias + descriptor @ self.weight
        has_dense = bool(self.policy.dense.layers)
        return eqx.tree_at(lambda p: p.dense.layers[0].bias if has_dense else p.head.layer.bias, self.policy, bias)

    def __call__(self, obs: Conditioned) -> Any:
        return self.at(obs.descriptor)(obs.observation)


class ConditionedCritic(eqx.Module):
    """Q(s, a | d): the descriptor is one more input beside the action."""

    critic: ContinuousCritic

    def __call__(self, obs: Conditioned, action: jax.Array) -> jax.Array:
        return self.critic(obs.observation, jnp.concatenate([action.reshape(-1), obs.descriptor]))


def conditioned(
    environment: Environment, policy: Actor, config: ActorCriticsConfig, num_descriptors: int, key: jax.Array
) -> ActorCritics:
    """A policy that is made of `policy`, and critics, that depend on descriptors of K numbers.

    Raises UsageError for an action space that is no bounded box.
    """
    size = math.prod(check_bounded(environment.action_space).shape)
    actor_key, critic_key = jax.random.split(key)
    weight = Linear(num_descriptors, first_layer(policy).bias.shape[0], actor_key, math.sqrt(2)).weight
    critics = make_critics(environment, config, size + num_descriptors, critic_key)
    return ActorCritics(ConditionedActor(policy, weight), tuple(ConditionedCritic(critic) for critic in critics))


def first_layer(policy: Actor) -> Linear:
    """The dense layer that the features of an observation enter."""
    return policy.dense.layers[0] if policy.dense.layers else policy.head.layer


def at_descriptor(critic: tuple[Any, ...], descriptor: jax.Array) -> tuple[Any, ...]:
    """Critics Q(., . | d) of observations and actions alone; `descriptor`: `[K]`."""
    return tuple(lambda obs, action, one=one: one(Conditioned(obs, descriptor), action) for one in critic)
