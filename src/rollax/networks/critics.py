"""Networks for continuous actions: a policy, deterministic or stochastic, and critics Q(s, a) that share nothing with it."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.core import Environment
from rollax.errors import UsageError
from rollax.networks import distributions, layers
from rollax.networks.layers import MLP, Linear
from rollax.spaces import Box, Dict, Space, check_bounded

# Bounds of the logarithm of a policy's standard deviation, those of pytorch_sac (Yarats and Kostrikov 2020) and CleanRL; the
# code of Haarnoja et al. 2018 has -20 ... 2.
LOW_LOG_STD, HIGH_LOG_STD = -5.0, 2.0


class Conditioned(NamedTuple):
    """What a network is given that depends on a descriptor of behavior besides the observation."""

    observation: Any
    descriptor: jax.Array  # float32 [K]


class ContinuousCritic(eqx.Module):
    """The value of an observation and an action within -1 ... 1, `[]`."""

    encoder: layers.Encoder
    dense: MLP
    head: Linear

    def __call__(self, obs: Any, action: jax.Array) -> jax.Array:
        return self.head(self.dense(jnp.concatenate([self.encoder(obs), action.reshape(-1)])))[0]


class Actor(eqx.Module):
    """A policy: the outputs of `head` for the features of an observation."""

    encoder: layers.Encoder
    dense: MLP
    head: Any

    def __call__(self, obs: Any) -> Any:
        return self.head(self.dense(self.encoder(obs)), obs)


class TanhHead(eqx.Module):
    """Features to one action within -1 ... 1, 0 in dimensions that the observation's "action_mask" rules out."""

    layer: Linear
    shape: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, features: jax.Array, obs: Any) -> jax.Array:
        return masked_action(jnp.tanh(self.layer(features)).reshape(self.shape), obs)


class TanhGaussianHead(eqx.Module):
    """Features to normals through tanh, within -1 ... 1, whose mean and standard deviation depend on the features.

    Dimensions that the observation's "action_mask" rules out have no part in density and entropy, and their action is 0.
    """

    layer: Linear
    shape: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, features: jax.Array, obs: Any) -> distributions.SquashedGaussian:
        mean, log_std = jnp.split(self.layer(features), 2)
        log_std = jnp.clip(log_std, LOW_LOG_STD, HIGH_LOG_STD)
        mean, log_std = mean.reshape(self.shape), log_std.reshape(self.shape)
        legal = action_mask(obs)
        return distributions.SquashedGaussian(distributions.Gaussian(mean, log_std, Box(-1.0, 1.0, self.shape), legal))


class ActorCritics(eqx.Module):
    """A policy, and critics that share nothing with it or with each other."""

    actor: Any  # obs -> action, or a distribution over actions
    critic: tuple[Any, ...]  # each (obs, action) -> value


@dataclasses.dataclass(frozen=True)
class ActorCriticsConfig:
    """How policy and critics are built."""

    hidden: tuple[int, ...] = (256, 256)
    """Sizes of the dense layers."""
    activation: layers.Activation = "relu"
    """Activation of every layer."""
    critics: int = 2
    """How many critics; the least of their values is believed."""
    layer_norm: bool = False
    """Normalize the outputs of the critics' dense layers."""
    filters: tuple[tuple[int, int, int], ...] | None = None
    """Convolutions (outputs, kernel, stride) for observations [H, W, C]; by size when None; for 8-bit images only when empty
    (--network.filters without values)."""
    embedding: int = 8
    """Size of the vector for each symbol of a grid."""


def deterministic(environment: Environment, config: ActorCriticsConfig, key: jax.Array) -> ActorCritics:
    """A policy that gives one action, and critics.

    Raises UsageError for an action space that is no bounded box, or without critics.
    """
    return _actor_critics(environment, config, TanhHead, 1, key)


def stochastic(environment: Environment, config: ActorCriticsConfig, key: jax.Array) -> ActorCritics:
    """A policy that gives a distribution, and critics. Raises as `deterministic`."""
    return _actor_critics(environment, config, TanhGaussianHead, 2, key)


def _actor_critics(
    environment: Environment, config: ActorCriticsConfig, head: Any, outputs: int, key: jax.Array
) -> ActorCritics:
    space = check_bounded(environment.action_space)
    if config.critics < 1:
        raise UsageError(f"network.critics ({config.critics}) must be at least 1")
    size = math.prod(space.shape)
    encoder_key, dense_key, head_key, critics_key = jax.random.split(key, 4)
    encoder, features = make_encoder(environment, config, encoder_key)
    dense = MLP(features, config.hidden, config.activation, key=dense_key)
    features = config.hidden[-1] if config.hidden else features
    actor = Actor(encoder, dense, head(Linear(features, outputs * size, head_key, 0.01), space.shape))

    return ActorCritics(actor, make_critics(environment, config, size, critics_key))


def make_critics(environment: Environment, config: Any, size: int, key: jax.Array) -> tuple[ContinuousCritic, ...]:
    """Critics of observations and `size` further numbers: those of an action, and whatever else they are asked about."""

    def critic(key: jax.Array) -> ContinuousCritic:
        encoder_key, dense_key, head_key = jax.random.split(key, 3)
        encoder, features = make_encoder(environment, config, encoder_key)
        dense = MLP(features + size, config.hidden, config.activation, config.layer_norm, key=dense_key)
        features = config.hidden[-1] if config.hidden else features + size
        return ContinuousCritic(encoder, dense, Linear(features, 1, head_key, 1.0))

    return tuple(critic(k) for k in jax.random.split(key, config.critics))


def make_encoder(environment: Environment, config: Any, key: jax.Array) -> tuple[layers.Encoder, int]:
    """What comes before the dense layers, and how many features it gives."""
    for name, size in {"hidden": min(config.hidden, default=1), "embedding": config.embedding}.items():
        if size < 1:
            raise UsageError(f"network.{name} ({getattr(config, name)}) must be at least 1")
    space = _observed(environment.observation_space)
    encoder = layers.Encoder(space, (), config.activation, config.filters, config.embedding, key=key)
    return encoder, jax.eval_shape(encoder, layers.zeros(space)).shape[0]


def _observed(space: Space) -> Space:
    """What a policy may see: all but the part that is for critics of other algorithms only."""
    unseen = layers.of_critics(space)
    return Dict({name: part for name, part in space.items if name not in unseen}) if isinstance(space, Dict) else space


def critic_values(critic: tuple[Any, ...], obs: Any, action: jax.Array) -> list[jax.Array]:
    """What each critic says of a batch, `[B]` each."""
    return [jax.vmap(one)(obs, action) for one in critic]


def min_q(critic: tuple[Any, ...], obs: Any, action: jax.Array) -> jax.Array:
    """The least of the critics' values, `[B]`: it is less likely to be too high (Fujimoto et al. 2018, arXiv:1802.09477)."""
    return functools.reduce(jnp.minimum, critic_values(critic, obs, action))


def sample_actions(actor: Any, obs: Any, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Actions `[B, ...]` within -1 ... 1, by standard normal numbers, and the logarithms of their densities `[B]`."""
    policies = jax.vmap(actor)(obs)
    raw_actions = jax.vmap(raw_action)(policies, noise)
    return jax.vmap(lambda policy, u: (policy.action(u), policy.log_prob(u)))(policies, raw_actions)


def masked_action(action: jax.Array, obs: Any) -> jax.Array:
    """A normalized action, 0 in the dimensions that the observation's "action_mask" rules out."""
    mask = action_mask(obs)
    return action if mask is None else jnp.where(mask, action, 0.0)


def num_dimensions(action: jax.Array, obs: Any) -> jax.Array:
    """How many numbers an action has, float []: those that the observation's "action_mask" leaves."""
    return jnp.sum(masked_action(jnp.ones_like(action), obs))


def action_mask(obs: Any) -> jax.Array | None:
    """The observation's "action_mask", bool; None where it has none."""
    obs = obs.observation if isinstance(obs, Conditioned) else obs
    return obs["action_mask"].astype(bool) if isinstance(obs, dict) and "action_mask" in obs else None


def raw_action(policy: distributions.SquashedGaussian, noise: jax.Array) -> jax.Array:
    """The raw action of a policy by standard normal numbers: mean + std noise."""
    return policy.base.mean + jnp.exp(policy.base.log_std) * noise
