"""Network that returns the quantiles of returns for any fractions (implicit quantile network)."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.environment import Environment
from rollax.networks.action_values.q_networks import (
    ActionValuesHead,
    FeatureExtractor,
    QNetworkConfig,
    add_noise,
    check_size,
    make_action_values_head,
    make_feature_extractor,
)
from rollax.networks.layers import MLP, Linear
from rollax.types import Observation


class ImplicitQuantileNetwork(eqx.Module):
    """Network that returns the quantile of the return of each action for each fraction, `[n, k]`.

    The features of the observation are multiplied elementwise by an embedding of the fraction tau,
    phi(tau) = relu(W c(tau) + b) with c_i = cos(pi i tau) for i from 0 to cosines - 1 (Dabney et
    al. 2018, arXiv:1806.06923, eq. 4).

    Attributes:
        features: Encoder and first dense layer.
        embedding: Layer of the embedding, W and b.
        dense: Further dense layers.
        head: Head that returns one number per action.
    """

    features: FeatureExtractor
    embedding: Linear
    dense: MLP
    head: ActionValuesHead

    def __call__(self, obs: Observation, fractions: jax.Array) -> jax.Array:
        features = self.features(obs)
        frequencies = jnp.pi * jnp.arange(len(self.embedding.weight))

        def quantiles(fraction: jax.Array) -> jax.Array:
            embedding = jax.nn.relu(self.embedding(jnp.cos(frequencies * fraction)))
            return self.head(self.dense(features * embedding))

        return jax.vmap(quantiles, out_axes=1)(fractions)


@dataclasses.dataclass(frozen=True)
class ImplicitQuantileNetworkConfig(QNetworkConfig):
    """Architecture of the implicit quantile network.

    The embedding of fractions multiplies the output of the first layer of `hidden`.
    """

    cosines: int = 64
    """Number of cosines that describe a fraction."""


def implicit_quantile_network(
    environment: Environment, config: ImplicitQuantileNetworkConfig, key: jax.Array
) -> ImplicitQuantileNetwork:
    """Return a network `(obs, fractions [k]) -> [n, k]` for a `Discrete` action space.

    Arguments and errors are those of `q_networks.q_network`.
    """
    encoder_key, embedding_key, dense_key, head_key = jax.random.split(key, 4)
    first, further = config.hidden[:1], config.hidden[1:]
    features, size = make_feature_extractor(environment, config, first, encoder_key)
    embedding = Linear(check_size("cosines", config.cosines, 1), size, embedding_key, 2**0.5)
    dense = MLP(size, further, config.activation, config.layer_norm, key=dense_key)
    head = make_action_values_head(
        environment, config, further[-1] if further else size, None, head_key
    )
    return add_noise(ImplicitQuantileNetwork(features, embedding, dense, head), config)
