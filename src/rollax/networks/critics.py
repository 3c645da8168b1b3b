"""Networks of algorithms that learn values of actions: action values, deterministic and random policies with their critics."""

import dataclasses
import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.core import Environment
from rollax.errors import UsageError
from rollax.networks import cores, distributions, layers
from rollax.networks.core import ActorCriticOutput
from rollax.networks.tower import Tower
from rollax.spaces import Box, Dict, Discrete, Space

# Bounds of the logarithm of a policy's standard deviation, those of pytorch_sac (Yarats and Kostrikov 2020) and CleanRL; the
# code of Haarnoja et al. 2018 has -20 ... 2.
LOW_LOG_STD, HIGH_LOG_STD = -5.0, 2.0


class Linear(eqx.Module):
    """A dense layer, `[inputs]` to `[outputs]`, whose weights lie as products of batches want them: that saves a fourth."""

    weight: jax.Array  # [inputs, outputs]
    bias: jax.Array

    def __init__(self, inputs: int, outputs: int, key: jax.Array, gain: float) -> None:
        self.weight = jax.nn.initializers.orthogonal(gain)(key, (inputs, outputs))
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.weight + self.bias


class Dense(eqx.Module):
    """Dense layers, each followed by a normalization of its outputs (if any) and the activation."""

    layers: tuple[Linear, ...]
    norms: tuple[eqx.nn.LayerNorm, ...]
    activation: str = eqx.field(static=True)

    def __init__(self, inputs: int, sizes: tuple[int, ...], activation: str, layer_norm: bool, *, key: jax.Array) -> None:
        keys = jax.random.split(key, max(len(sizes), 1))
        pairs = zip((inputs, *sizes), sizes, keys, strict=False)
        self.layers = tuple(Linear(a, b, k, math.sqrt(2)) for a, b, k in pairs)
        self.norms = tuple(eqx.nn.LayerNorm(size) for size in sizes) if layer_norm else ()
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        for i, layer in enumerate(self.layers):
            x = layer(x)
            x = self.norms[i](x) if self.norms else x
            x = layers.ACTIVATIONS[self.activation](x)
        return x


class ContinuousCritic(eqx.Module):
    """The value of an observation and an action within -1 ... 1, `[]`."""

    encoder: layers.Encoder
    dense: Dense
    head: Linear

    def __call__(self, obs: Any, action: jax.Array) -> jax.Array:
        return self.head(self.dense(jnp.concatenate([self.encoder(obs), action.reshape(-1)])))[0]


class Actor(eqx.Module):
    """A policy: the outputs of `head` for the features of an observation."""

    encoder: layers.Encoder
    dense: Dense
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
        legal = obs["action_mask"].astype(bool) if _is_masked(obs) else None
        return distributions.SquashedGaussian(distributions.Gaussian(mean, log_std, Box(-1.0, 1.0, self.shape), legal))


class ActorCritics(eqx.Module):
    """A policy, and critics that share nothing with it or with each other."""

    actor: Any  # obs -> action, or a distribution over actions
    critic: tuple[Any, ...]  # each (obs, action) -> value


class Features(eqx.Module):
    """An observation as features `[n]`."""

    encoder: layers.Encoder
    dense: Dense

    def __call__(self, obs: Any) -> jax.Array:
        return self.dense(self.encoder(obs))


class ValuesHead(eqx.Module):
    """Features to the value of each action `[n]`.

    With `advantage` dueling: V + A - mean A (Wang et al. 2016, arXiv:1511.06581, eq. 9).
    """

    value: Linear  # to each action's value, or to V
    advantage: Linear | None

    def __call__(self, features: jax.Array, obs: Any = None) -> jax.Array:
        value = self.value(features)
        if self.advantage is None:
            return value
        advantage = self.advantage(features)
        return value + (advantage - jnp.mean(advantage))


class QNetwork(eqx.Module):
    """The value of each action `[n]`, without a memory."""

    features: Features
    head: ValuesHead

    def __call__(self, obs: Any) -> jax.Array:
        return self.head(self.features(obs))


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


@dataclasses.dataclass(frozen=True)
class QNetworkConfig:
    """How the network of action values is built."""

    hidden: tuple[int, ...] = (128, 128)
    """Sizes of the dense layers."""
    activation: layers.Activation = "relu"
    """Activation of every layer."""
    dueling: bool = False
    """A value and advantages in place of action values."""
    layer_norm: bool = True
    """Normalize the outputs of every dense layer."""
    filters: tuple[tuple[int, int, int], ...] | None = None
    """Convolutions (outputs, kernel, stride) for observations [H, W, C]; by size when None; for 8-bit images only when empty
    (--network.filters without values)."""
    embedding: int = 8
    """Size of the vector for each symbol of a grid."""


@dataclasses.dataclass(frozen=True)
class MemoryQNetworkConfig(QNetworkConfig):
    """How the network of action values is built, with a memory or none."""

    core: cores.Kind = "none"
    """Memory between the dense layers and the values."""
    core_size: int = 64
    """Size of the memory."""
    core_layers: int = 1
    """Memories one upon the other."""
    core_output: cores.Output = "last"
    """What several memories give: the last one's output, the sum of all, or each as a residual block (see `cores.Block`)."""
    agent_id: bool = False
    """Agents see which one they are (where there are agents)."""


def deterministic(environment: Environment, config: ActorCriticsConfig, key: jax.Array) -> ActorCritics:
    """A policy that gives one action, and critics.

    Raises UsageError for an action space that is no bounded box, or without critics.
    """
    return _actor_critics(environment, config, TanhHead, 1, key)


def stochastic(environment: Environment, config: ActorCriticsConfig, key: jax.Array) -> ActorCritics:
    """A policy that gives a distribution, and critics. Raises as `deterministic`."""
    return _actor_critics(environment, config, TanhGaussianHead, 2, key)


def q_network(environment: Environment, config: QNetworkConfig, key: jax.Array) -> QNetwork:
    """Action values of a `Discrete` space, `obs -> [n]`. Raises UsageError for any other space."""
    encoder_key, head_key = jax.random.split(key)
    features, size = _features(environment, config, encoder_key)
    return QNetwork(features, _values_head(environment, config, size, head_key))


def q_tower(environment: Environment, config: MemoryQNetworkConfig, key: jax.Array) -> Tower:
    """Action values of a `Discrete` space, with a memory or none, `(carry, obs) -> (carry, [n])`. Raises as `q_network`."""
    encoder_key, core_key, head_key = jax.random.split(key, 3)
    features, size = _features(environment, config, encoder_key)
    core, size = cores.of_config(config, size, core_key)
    return Tower(features, core, _values_head(environment, config, size, head_key))


def _features(environment: Environment, config: QNetworkConfig, key: jax.Array) -> tuple[Features, int]:
    encoder_key, dense_key = jax.random.split(key)
    encoder, size = _encoder(environment, config, encoder_key)
    dense = Dense(size, config.hidden, config.activation, config.layer_norm, key=dense_key)
    return Features(encoder, dense), config.hidden[-1] if config.hidden else size


def _values_head(environment: Environment, config: QNetworkConfig, inputs: int, key: jax.Array) -> ValuesHead:
    number = check_discrete(environment.action_space).n
    value_key, advantage_key = jax.random.split(key)
    if config.dueling:
        return ValuesHead(Linear(inputs, 1, value_key, 1.0), Linear(inputs, number, advantage_key, 1.0))
    return ValuesHead(Linear(inputs, number, value_key, 1.0), None)


def _actor_critics(
    environment: Environment, config: ActorCriticsConfig, head: Any, outputs: int, key: jax.Array
) -> ActorCritics:
    space = check_bounded(environment.action_space)
    if config.critics < 1:
        raise UsageError(f"network.critics ({config.critics}) must be at least 1")
    size = math.prod(space.shape)
    encoder_key, dense_key, head_key, critics_key = jax.random.split(key, 4)
    encoder, features = _encoder(environment, config, encoder_key)
    dense = Dense(features, config.hidden, config.activation, False, key=dense_key)
    features = config.hidden[-1] if config.hidden else features
    actor = Actor(encoder, dense, head(Linear(features, outputs * size, head_key, 0.01), space.shape))

    def critic(key: jax.Array) -> ContinuousCritic:
        encoder_key, dense_key, head_key = jax.random.split(key, 3)
        encoder, features = _encoder(environment, config, encoder_key)
        dense = Dense(features + size, config.hidden, config.activation, config.layer_norm, key=dense_key)
        features = config.hidden[-1] if config.hidden else features + size
        return ContinuousCritic(encoder, dense, Linear(features, 1, head_key, 1.0))

    return ActorCritics(actor, tuple(critic(k) for k in jax.random.split(critics_key, config.critics)))


def _encoder(environment: Environment, config: Any, key: jax.Array) -> tuple[layers.Encoder, int]:
    """What comes before the dense layers, and how many features it gives."""
    for name, size in {"hidden": min(config.hidden, default=1), "embedding": config.embedding}.items():
        if size < 1:
            raise UsageError(f"network.{name} ({getattr(config, name)}) must be at least 1")
    space = _seen(environment.observation_space)
    encoder = layers.Encoder(space, (), config.activation, config.filters, config.embedding, key=key)
    return encoder, jax.eval_shape(encoder, layers.zeros(space)).shape[0]


def _seen(space: Space) -> Space:
    """What a policy may see: all but the part that is for critics of other algorithms only."""
    if not isinstance(space, Dict):
        return space
    return Dict({name: part for name, part in space.items if name != "global_state"})


class EpsilonGreedy(eqx.Module):
    """The best action, or with chance epsilon any legal one. Illegal actions have values of -1e9."""

    values: jax.Array  # float [n]
    epsilon: jax.Array  # float []

    def sample(self, key: jax.Array) -> jax.Array:
        chance_key, random_key = jax.random.split(key)
        anything = jax.random.categorical(
            random_key, jnp.where(self.values > distributions.ILLEGAL / 2, 0.0, distributions.ILLEGAL)
        )
        is_random = jax.random.uniform(chance_key) < self.epsilon
        return jnp.where(is_random, anything.astype(jnp.int32), self.mode())

    def mode(self) -> jax.Array:
        return jnp.argmax(self.values).astype(jnp.int32)

    def log_prob(self, draw: jax.Array) -> jax.Array:
        return jnp.zeros(())  # as for the entropy: no policy is learnt

    def entropy(self) -> jax.Array:
        return jnp.zeros(())

    def action(self, draw: jax.Array) -> jax.Array:
        return draw


class Acting(eqx.Module):
    """Action values as a rollout wants them: a policy, and the value of its best action."""

    network: Any  # (carry, obs) -> (carry, [n])
    epsilon: jax.Array

    def initial_carry(self) -> Any:
        return self.network.initial_carry()

    def __call__(self, carry: Any, obs: Any) -> tuple[Any, ActorCriticOutput]:
        carry, values = self.network(carry, obs)
        values = legal(values, obs)
        return carry, ActorCriticOutput(EpsilonGreedy(values, self.epsilon), jnp.max(values))


def falling(config: Any, progress: jax.Array) -> jax.Array:
    """The chance of a random action, which falls in a straight line over the first `exploration_fraction` of training."""
    over = jnp.clip(progress / jnp.maximum(config.exploration_fraction, 1e-6), 0.0, 1.0)
    return config.epsilon * (1 + over * (config.epsilon_final_fraction - 1))


def best(network: Any, obs: Any) -> jax.Array:
    """The legal action of the highest value."""
    return jnp.argmax(legal(network(obs), obs)).astype(jnp.int32)


def of_action(values: jax.Array, action: jax.Array) -> jax.Array:
    """The values `[B]` of one action each, out of `[B, n]`."""
    # A comparison instead of an index: the gradient of an index is a scatter, which is slow everywhere.
    return jnp.sum(jnp.where(jax.nn.one_hot(action, values.shape[1], dtype=bool), values, 0.0), axis=1)


def values(critic: tuple[Any, ...], obs: Any, action: jax.Array) -> list[jax.Array]:
    """What each critic says of a batch, `[B]` each."""
    return [jax.vmap(one)(obs, action) for one in critic]


def least(critic: tuple[Any, ...], obs: Any, action: jax.Array) -> jax.Array:
    """The least of the critics' values, `[B]`: it is less likely to be too high (Fujimoto et al. 2018, arXiv:1802.09477)."""
    return functools.reduce(jnp.minimum, values(critic, obs, action))


def sample(actor: Any, obs: Any, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Actions `[B, ...]` within -1 ... 1, by standard normal numbers, and the logarithms of their densities `[B]`."""
    policies = jax.vmap(actor)(obs)
    draws = jax.vmap(draw)(policies, noise)
    return jax.vmap(lambda policy, u: (policy.action(u), policy.log_prob(u)))(policies, draws)


def draw(policy: distributions.SquashedGaussian, noise: jax.Array) -> jax.Array:
    """What standard normal numbers make the policy draw."""
    return policy.base.mean + jnp.exp(policy.base.log_std) * noise


def check_bounded(space: Any) -> Box:
    """The action space, if it is a box of floats with finite bounds. Raises UsageError otherwise."""
    if isinstance(space, Box) and space.dtype.startswith("float") and space.is_bounded:
        return space
    raise UsageError(f"continuous actions need a Box of floats with finite bounds, but the space is {space}: use dqn or ppo")


def check_discrete(space: Any) -> Discrete:
    """The action space, if it is discrete. Raises UsageError otherwise."""
    if isinstance(space, Discrete):
        return space
    raise UsageError(f"values of all actions need a Discrete action space, but it is {space}: use sac, td3 or ppo")


def to_space(space: Box, action: jax.Array) -> jax.Array:
    """An action within -1 ... 1 as the environment takes it."""
    low, high = np.broadcast_to(space.low, space.shape), np.broadcast_to(space.high, space.shape)
    center, half = jnp.asarray((high + low) / 2, action.dtype), jnp.asarray((high - low) / 2, action.dtype)
    return center + half * action


def legal(q: jax.Array, obs: Any) -> jax.Array:
    """Action values with those of illegal actions so low that none is ever the best."""
    return jnp.where(obs["action_mask"].astype(bool), q, distributions.ILLEGAL) if _is_masked(obs) else q


def masked_action(action: jax.Array, obs: Any) -> jax.Array:
    """An action within -1 ... 1, 0 in the dimensions that the observation's "action_mask" rules out."""
    return jnp.where(obs["action_mask"].astype(bool), action, 0.0) if _is_masked(obs) else action


def num_dimensions(action: jax.Array, obs: Any) -> jax.Array:
    """How many numbers an action has, float []: those that the observation's "action_mask" leaves."""
    return jnp.sum(masked_action(jnp.ones_like(action), obs))


def _is_masked(obs: Any) -> bool:
    return isinstance(obs, dict) and "action_mask" in obs
