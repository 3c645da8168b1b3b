"""Networks that return a value Q(s, a), or several, for each action of a `Discrete` space."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.action_spaces import check_discrete
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.networks import distributions, layers, recurrent
from rollax.networks.action_values.noisy_layers import make_noisy
from rollax.networks.critics import make_encoder
from rollax.networks.layers import MLP, Linear
from rollax.networks.network import ActorCriticOutput
from rollax.networks.torso import Tower
from rollax.types import Carry, Observation

NetworkT = TypeVar("NetworkT", bound=eqx.Module)


class FeatureExtractor(eqx.Module):
    """Encoder and dense layers from an observation to features `[n]`."""

    encoder: layers.Encoder
    dense: MLP

    def __call__(self, obs: Observation) -> jax.Array:
        return self.dense(self.encoder(obs))


class ActionValuesHead(eqx.Module):
    """Head that returns the value of each action, `[n]`, or `size` numbers for each, `[n, size]`.

    A dueling head returns V + A - mean A (Wang et al. 2016, arXiv:1511.06581, eq. 9).

    Attributes:
        value: Layer for the action values, or for the state value V of a dueling head.
        advantage: Layer for the advantages A of a dueling head, otherwise None.
        size: Number of outputs per action, such as atoms or quantiles, or None for one value.
    """

    value: Linear
    advantage: Linear | None
    size: int | None = eqx.field(static=True, default=None)

    def __call__(self, features: jax.Array, obs: Observation = None) -> jax.Array:
        value = self._split(self.value(features))
        if self.advantage is None:
            return value
        advantage = self._split(self.advantage(features))
        return value + (advantage - jnp.mean(advantage, axis=0, keepdims=True))

    def _split(self, outputs: jax.Array) -> jax.Array:
        return outputs if self.size is None else outputs.reshape(-1, self.size)


class QNetwork(eqx.Module):
    """Network without memory that returns the outputs of its head, such as action values `[n]`."""

    features: FeatureExtractor
    head: ActionValuesHead

    def __call__(self, obs: Observation) -> jax.Array:
        return self.head(self.features(obs))


@dataclasses.dataclass(frozen=True)
class ActionValuesConfig:
    """Architecture of a network of action values."""

    hidden: tuple[int, ...] = (128, 128)
    """Sizes of the dense layers."""
    activation: layers.Activation = "relu"
    """Activation function of all layers."""
    dueling: bool = False
    """Use separate value and advantage outputs (dueling network)."""
    layer_norm: bool = True
    """Apply layer normalization to the dense layers."""
    filters: tuple[tuple[int, int, int], ...] | None = None
    """Convolutions (outputs, kernel, stride) for observations [H, W, C]. None selects them by size;
    empty (--network.filters without values) uses convolutions only for 8-bit images."""
    embedding: int = 8
    """Size of the embedding vector per symbol of a grid."""


@dataclasses.dataclass(frozen=True)
class QNetworkConfig(ActionValuesConfig):
    """Architecture of the action-value network."""

    noisy: bool = False
    """Use dense layers with learned noise, which explores (noisy networks)."""


@dataclasses.dataclass(frozen=True)
class CategoricalQNetworkConfig(QNetworkConfig):
    """Architecture of the network of categorical distributions of returns."""

    atoms: int = 51
    """Number of atoms of the distribution of each action."""


@dataclasses.dataclass(frozen=True)
class QuantileQNetworkConfig(QNetworkConfig):
    """Architecture of the network of quantiles of returns."""

    quantiles: int = 51
    """Number of quantiles of the distribution of each action."""


@dataclasses.dataclass(frozen=True)
class RainbowNetworkConfig(CategoricalQNetworkConfig):
    """Architecture of the network of Rainbow."""

    dueling: bool = True
    """Use separate value and advantage outputs (dueling network)."""
    noisy: bool = True
    """Use dense layers with learned noise, which explores (noisy networks)."""


@dataclasses.dataclass(frozen=True)
class RecurrentQNetworkConfig(ActionValuesConfig):
    """Architecture of the action-value network with optional memory."""

    core: recurrent.CoreKind = "none"
    """Recurrent core between the dense layers and the action values."""
    core_size: int = 64
    """Number of units of the core."""
    core_layers: int = 1
    """Number of layers of the core."""
    core_output: recurrent.CoreOutput = "last"
    """Output of a core with several layers: the last layer ("last"), the sum of all layers
    ("sum"), or residual blocks ("residual", see `recurrent.ResidualBlock`).
    """
    core_heads: int = 4
    """Number of attention heads per layer of a gtrxl core. Must divide core_size."""
    core_memory: int = 64
    """Number of previous steps that each layer of a gtrxl core attends to."""
    agent_id: bool = False
    """Append the index of the agent to observations in multi-agent environments."""


def q_network(environment: Environment, config: QNetworkConfig, key: jax.Array) -> QNetwork:
    """Return an action-value network `obs -> [n]` for a `Discrete` action space.

    Args:
        environment: Environment with the spaces.
        config: Architecture of the network.
        key: Random key of the weights.

    Returns:
        The network.

    Raises:
        UsageError: If the action space is not `Discrete`, or a size in the config is below 1.
    """
    return _make_q_network(environment, config, None, key)


def categorical_q_network(
    environment: Environment, config: CategoricalQNetworkConfig, key: jax.Array
) -> QNetwork:
    """Return a network `obs -> [n, atoms]` of the logits of distributions of returns.

    Arguments and errors are those of `q_network`.
    """
    return _make_q_network(environment, config, check_size("atoms", config.atoms, 2), key)


def quantile_q_network(
    environment: Environment, config: QuantileQNetworkConfig, key: jax.Array
) -> QNetwork:
    """Return a network `obs -> [n, quantiles]` of the quantiles of distributions of returns.

    Arguments and errors are those of `q_network`.
    """
    return _make_q_network(environment, config, check_size("quantiles", config.quantiles, 1), key)


def check_size(name: str, value: int, smallest: int) -> int:
    """Return a setting of the network that must not be smaller than `smallest`."""
    if value < smallest:
        raise UsageError(f"network.{name} must be at least {smallest}, got {value}.")
    return value


def _make_q_network(
    environment: Environment, config: QNetworkConfig, size: int | None, key: jax.Array
) -> QNetwork:
    """Return a network with `size` outputs per action, or with action values for None."""
    encoder_key, head_key = jax.random.split(key)
    features, inputs = make_feature_extractor(environment, config, config.hidden, encoder_key)
    head = make_action_values_head(environment, config, inputs, size, head_key)
    return add_noise(QNetwork(features, head), config)


def add_noise(network: NetworkT, config: QNetworkConfig) -> NetworkT:
    """Return a network whose dense layers after the encoder have learned noise, if configured.

    Args:
        network: Network with a `FeatureExtractor` as `features`.
        config: Architecture of the network.
    """
    if not config.noisy:
        return network
    noisy: Any = make_noisy(network)
    encoder = vars(network)["features"].encoder
    return eqx.tree_at(lambda n: n.features.encoder, noisy, encoder)


def recurrent_q_network(
    environment: Environment, config: RecurrentQNetworkConfig, key: jax.Array
) -> Tower:
    """Return an action-value network with optional memory, `(carry, obs) -> (carry, [n])`.

    Args:
        environment: Environment with the spaces.
        config: Architecture of the network.
        key: Random key of the weights.

    Returns:
        The network.

    Raises:
        UsageError: If the action space is not `Discrete`, a size in the config is below 1, or the
            settings of the core are invalid.
    """
    encoder_key, core_key, head_key = jax.random.split(key, 3)
    features, size = make_feature_extractor(environment, config, config.hidden, encoder_key)
    core, size = recurrent.make_core(config, size, core_key)
    head = make_action_values_head(environment, config, size, None, head_key)
    return Tower(features, core, head)


def make_feature_extractor(
    environment: Environment, config: ActionValuesConfig, hidden: tuple[int, ...], key: jax.Array
) -> tuple[FeatureExtractor, int]:
    """Return an encoder with dense layers of the sizes `hidden`, and its number of features."""
    encoder_key, dense_key = jax.random.split(key)
    encoder, size = make_encoder(environment, config, encoder_key)
    dense = MLP(size, hidden, config.activation, config.layer_norm, key=dense_key)
    return FeatureExtractor(encoder, dense), hidden[-1] if hidden else size


def make_action_values_head(
    environment: Environment,
    config: ActionValuesConfig,
    inputs: int,
    size: int | None,
    key: jax.Array,
) -> ActionValuesHead:
    """Return a head of `inputs` features with `size` outputs per action, or one for None."""
    num_actions, each = check_discrete(environment.action_space).n, size or 1
    value_key, advantage_key = jax.random.split(key)
    if config.dueling:
        return ActionValuesHead(
            Linear(inputs, each, value_key, 1.0),
            Linear(inputs, num_actions * each, advantage_key, 1.0),
            size,
        )
    return ActionValuesHead(Linear(inputs, num_actions * each, value_key, 1.0), None, size)


def argmax_q(network: Callable[[Observation], jax.Array], obs: Observation) -> jax.Array:
    """Return the legal action with the highest value."""
    return jnp.argmax(mask_illegal_values(network(obs), obs)).astype(jnp.int32)


def select_rows(outputs: jax.Array, action: jax.Array) -> jax.Array:
    """Return the rows `[B, m]` of the actions `[B]`, from outputs per action `[B, n, m]`."""
    is_taken = jax.nn.one_hot(action, outputs.shape[1], dtype=bool)[..., None]
    return jnp.sum(jnp.where(is_taken, outputs, 0.0), axis=1)


def select_q(values: jax.Array, action: jax.Array) -> jax.Array:
    """Return the values `[B]` of the actions `[B]`, from action values `[B, n]`."""
    # A comparison avoids the gradient of an index, a scatter, which is slow on all devices.
    return jnp.sum(
        jnp.where(jax.nn.one_hot(action, values.shape[1], dtype=bool), values, 0.0), axis=1
    )


def mask_illegal_values(q: jax.Array, obs: Observation) -> jax.Array:
    """Set the values `[n]` of actions that the "action_mask" forbids to -1e9."""
    if isinstance(obs, dict) and "action_mask" in obs:
        return jnp.where(obs["action_mask"].astype(bool), q, distributions.ILLEGAL_LOGIT)
    return q


class EpsilonGreedy(eqx.Module):
    """Policy that chooses a random legal action with probability epsilon, else the best action.

    Attributes:
        values: Action values, float `[n]`, -1e9 for illegal actions.
        epsilon: Probability of a random action, float `[]`.
    """

    values: jax.Array
    epsilon: jax.Array

    def sample(self, key: jax.Array) -> jax.Array:
        chance_key, random_key = jax.random.split(key)
        is_legal = self.values > distributions.ILLEGAL_LOGIT / 2
        uniform_action = jax.random.categorical(
            random_key, jnp.where(is_legal, 0.0, distributions.ILLEGAL_LOGIT)
        )
        is_random = jax.random.uniform(chance_key) < self.epsilon
        return jnp.where(is_random, uniform_action.astype(jnp.int32), self.mode())

    def mode(self) -> jax.Array:
        return jnp.argmax(self.values).astype(jnp.int32)

    def log_prob(self, raw_action: jax.Array) -> jax.Array:
        return jnp.zeros(())  # No loss uses it.

    def entropy(self) -> jax.Array:
        return jnp.zeros(())

    def action(self, raw_action: jax.Array) -> jax.Array:
        return raw_action

    def raw_action(self, action: jax.Array) -> jax.Array:
        return action


class EpsilonGreedyNetwork(eqx.Module):
    """Actor-critic with the epsilon-greedy policy of an action-value network.

    The value of an observation is the highest value of a legal action.
    """

    network: Any  # (carry, obs) -> (carry, [n])
    epsilon: jax.Array

    def initial_carry(self) -> Any:
        return self.network.initial_carry()

    def __call__(self, carry: Carry, obs: Observation) -> tuple[Any, ActorCriticOutput]:
        carry, values = self.network(carry, obs)
        values = mask_illegal_values(values, obs)
        return carry, ActorCriticOutput(EpsilonGreedy(values, self.epsilon), jnp.max(values))
