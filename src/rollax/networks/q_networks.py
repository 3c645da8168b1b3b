"""Networks of action values: Q(s, a) for every action of a `Discrete` space."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.core import Environment
from rollax.networks import cores, distributions, layers
from rollax.networks.core import ActorCriticOutput
from rollax.networks.critics import make_encoder
from rollax.networks.layers import MLP, Linear
from rollax.networks.tower import Tower
from rollax.spaces import check_discrete


class Features(eqx.Module):
    """An observation as features `[n]`."""

    encoder: layers.Encoder
    dense: MLP

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
class RecurrentQNetworkConfig(QNetworkConfig):
    """How the network of action values is built, with a memory or none."""

    core: cores.Kind = "none"
    """Memory between the dense layers and the values."""
    core_size: int = 64
    """Size of the memory."""
    core_layers: int = 1
    """Memories one upon the other."""
    core_output: cores.Output = "last"
    """What several memories give: the last one's output, the sum of all, or each as a residual block (see `cores.Block`)."""
    core_heads: int = 4
    """Heads of attention in each layer of a gtrxl; a divisor of core_size."""
    core_memory: int = 64
    """Steps before the current one that each layer of a gtrxl remembers."""
    agent_id: bool = False
    """Agents see which one they are (where there are agents)."""


def q_network(environment: Environment, config: QNetworkConfig, key: jax.Array) -> QNetwork:
    """Action values of a `Discrete` space, `obs -> [n]`. Raises UsageError for any other space."""
    encoder_key, head_key = jax.random.split(key)
    features, size = _features(environment, config, encoder_key)
    return QNetwork(features, _values_head(environment, config, size, head_key))


def recurrent_q_network(environment: Environment, config: RecurrentQNetworkConfig, key: jax.Array) -> Tower:
    """Action values of a `Discrete` space, with a memory or none, `(carry, obs) -> (carry, [n])`. Raises as `q_network`."""
    encoder_key, core_key, head_key = jax.random.split(key, 3)
    features, size = _features(environment, config, encoder_key)
    core, size = cores.of_config(config, size, core_key)
    return Tower(features, core, _values_head(environment, config, size, head_key))


def _features(environment: Environment, config: QNetworkConfig, key: jax.Array) -> tuple[Features, int]:
    encoder_key, dense_key = jax.random.split(key)
    encoder, size = make_encoder(environment, config, encoder_key)
    dense = MLP(size, config.hidden, config.activation, config.layer_norm, key=dense_key)
    return Features(encoder, dense), config.hidden[-1] if config.hidden else size


def _values_head(environment: Environment, config: QNetworkConfig, inputs: int, key: jax.Array) -> ValuesHead:
    number = check_discrete(environment.action_space).n
    value_key, advantage_key = jax.random.split(key)
    if config.dueling:
        return ValuesHead(Linear(inputs, 1, value_key, 1.0), Linear(inputs, number, advantage_key, 1.0))
    return ValuesHead(Linear(inputs, number, value_key, 1.0), None)


def argmax_q(network: Any, obs: Any) -> jax.Array:
    """The legal action of the highest value."""
    return jnp.argmax(mask_actions(network(obs), obs)).astype(jnp.int32)


def select_q(values: jax.Array, action: jax.Array) -> jax.Array:
    """The values `[B]` of one action each, out of `[B, n]`."""
    # A comparison instead of an index: the gradient of an index is a scatter, which is slow everywhere.
    return jnp.sum(jnp.where(jax.nn.one_hot(action, values.shape[1], dtype=bool), values, 0.0), axis=1)


def mask_actions(q: jax.Array, obs: Any) -> jax.Array:
    """Action values with those of illegal actions so low that none is ever the best."""
    if isinstance(obs, dict) and "action_mask" in obs:
        return jnp.where(obs["action_mask"].astype(bool), q, distributions.ILLEGAL)
    return q


class EpsilonGreedy(eqx.Module):
    """The best action, or with chance epsilon any legal one. Illegal actions have values of -1e9."""

    values: jax.Array  # float [n]
    epsilon: jax.Array  # float []

    def sample(self, key: jax.Array) -> jax.Array:
        chance_key, random_key = jax.random.split(key)
        is_legal = self.values > distributions.ILLEGAL / 2
        anything = jax.random.categorical(random_key, jnp.where(is_legal, 0.0, distributions.ILLEGAL))
        is_random = jax.random.uniform(chance_key) < self.epsilon
        return jnp.where(is_random, anything.astype(jnp.int32), self.mode())

    def mode(self) -> jax.Array:
        return jnp.argmax(self.values).astype(jnp.int32)

    def log_prob(self, raw_action: jax.Array) -> jax.Array:
        return jnp.zeros(())  # no loss needs it

    def entropy(self) -> jax.Array:
        return jnp.zeros(())

    def action(self, raw_action: jax.Array) -> jax.Array:
        return raw_action


class EpsilonGreedyNetwork(eqx.Module):
    """Action values as a rollout wants them: a policy, and the value of its best action."""

    network: Any  # (carry, obs) -> (carry, [n])
    epsilon: jax.Array

    def initial_carry(self) -> Any:
        return self.network.initial_carry()

    def __call__(self, carry: Any, obs: Any) -> tuple[Any, ActorCriticOutput]:
        carry, values = self.network(carry, obs)
        values = mask_actions(values, obs)
        return carry, ActorCriticOutput(EpsilonGreedy(values, self.epsilon), jnp.max(values))
