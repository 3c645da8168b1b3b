"""Dense layers of networks that learn values."""

import math

import equinox as eqx
import jax

from rollax.networks import layers


class Dense(eqx.Module):
    """Dense layers, each followed by a normalization of its outputs (if any) and the activation."""

    layers: tuple[layers.Linear, ...]
    norms: tuple[eqx.nn.LayerNorm, ...]
    activation: str = eqx.field(static=True)

    def __init__(self, inputs: int, sizes: tuple[int, ...], activation: str, layer_norm: bool, *, key: jax.Array) -> None:
        keys = jax.random.split(key, max(len(sizes), 1))
        pairs = zip((inputs, *sizes), sizes, keys, strict=False)
        self.layers = tuple(layers.Linear(a, b, k, math.sqrt(2)) for a, b, k in pairs)
        self.norms = tuple(eqx.nn.LayerNorm(size) for size in sizes) if layer_norm else ()
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        for i, layer in enumerate(self.layers):
            x = layer(x)
            x = self.norms[i](x) if self.norms else x
            x = layers.ACTIVATIONS[self.activation](x)
        return x
