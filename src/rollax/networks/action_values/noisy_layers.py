"""Dense layers with learned noise, which explores without random actions.

Fortunato et al. 2018, arXiv:1706.10295, section 3 (a), factorized Gaussian noise. Deviation: the
mean weights keep the initialization of `layers.Linear`, orthogonal weights and zero bias, instead
of the uniform one of the paper.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.networks.layers import Linear
from rollax.types import Parameters

INITIAL_NOISE = 0.5  # sigma_0 of the paper, section 3.2


class NoisyLinear(Linear):
    """Dense layer whose weights have learned means and noise scales.

    A call uses the mean weights. `sample_noise` returns a layer with a sample of the weights.

    Attributes:
        weight_scale: Scale of the noise of each weight, `[inputs, outputs]`.
        bias_scale: Scale of the noise of the bias, `[outputs]`.
    """

    weight_scale: jax.Array
    bias_scale: jax.Array

    def __init__(self, layer: Linear) -> None:
        self.weight, self.bias = layer.weight, layer.bias
        scale = INITIAL_NOISE / math.sqrt(len(layer.weight))
        self.weight_scale = jnp.full(layer.weight.shape, scale, layer.weight.dtype)
        self.bias_scale = jnp.full(layer.bias.shape, scale, layer.bias.dtype)


def _is_dense(part: object) -> bool:
    return isinstance(part, Linear)


def _is_noisy(part: object) -> bool:
    return isinstance(part, NoisyLinear)


def make_noisy(network: Parameters) -> Parameters:
    """Return a network whose dense layers (`layers.Linear`) have learned noise."""
    return jax.tree.map(
        lambda part: NoisyLinear(part) if _is_dense(part) else part, network, is_leaf=_is_dense
    )


def has_noise(network: Parameters) -> bool:
    """Return whether a network has layers with learned noise."""
    return any(map(_is_noisy, jax.tree.leaves(network, is_leaf=_is_noisy)))


def sample_noise(network: Parameters, key: jax.Array) -> Parameters:
    """Return a network with a sample of the weights of all noisy layers.

    The weights are w = mu + sigma f(a) f(b)^T and the bias is mu + sigma f(b), with independent
    standard normal a `[inputs]` and b `[outputs]` and f(x) = sign(x) sqrt(|x|). Gradients with
    respect to `network` are those of the means and the scales.

    Args:
        network: Network.
        key: Random key.

    Returns:
        The network, unchanged if it has no noisy layer.

    References:
        Fortunato et al. 2018, Eq. 10 and 11.
    """
    parts, structure = jax.tree.flatten(network, is_leaf=_is_noisy)
    keys = iter(jax.random.split(key, 1 + sum(map(_is_noisy, parts))))
    return structure.unflatten(
        [_sample_layer(part, next(keys)) if _is_noisy(part) else part for part in parts]
    )


def _sample_layer(layer: NoisyLinear, key: jax.Array) -> NoisyLinear:
    input_key, output_key = jax.random.split(key)
    inputs, outputs = layer.weight.shape
    input_noise = _scale_noise(jax.random.normal(input_key, (inputs,)))
    output_noise = _scale_noise(jax.random.normal(output_key, (outputs,)))
    weight = layer.weight + layer.weight_scale * jnp.outer(input_noise, output_noise)
    bias = layer.bias + layer.bias_scale * output_noise
    return eqx.tree_at(lambda part: (part.weight, part.bias), layer, (weight, bias))


def _scale_noise(noise: jax.Array) -> jax.Array:
    return jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))
