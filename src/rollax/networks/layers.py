"""Encoders, heads and layers as equinox modules whose leaves are arrays only."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.image_layouts import arrange_image, image_shape
from rollax.spaces import (
    Box,
    Dict,
    Discrete,
    Grid,
    MultiDiscrete,
    Space,
    Tuple,
    make_zeros,
)
from rollax.types import Observation, Parameters, PyTree, Scalar

Head = Callable[[jax.Array, Observation], PyTree]  # (features, obs) -> output
MakeHead = Callable[[int, jax.Array], Head]  # (number of features, random key) -> head
Activation = Literal["tanh", "relu", "gelu", "silu", "elu"]
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "elu": jax.nn.elu,
}


def critic_only_parts(space: Space) -> tuple[str, ...]:
    """Return the keys of a dictionary observation that only critics observe ("global_state")."""
    return ("global_state",) if isinstance(space, Dict) and "global_state" in space.spaces else ()


def make_orthogonal_linear(inputs: int, outputs: int, key: jax.Array, gain: float) -> eqx.nn.Linear:
    """Return an equinox layer with orthogonal weights `[outputs, inputs]` and zero bias.

    This layout is faster for layers with few outputs, such as heads. Use `Linear` for layers with
    many outputs.
    """
    layer_key, weight_key = jax.random.split(key)
    layer = eqx.nn.Linear(inputs, outputs, key=layer_key)
    weight = jax.nn.initializers.orthogonal(gain)(weight_key, layer.weight.shape)
    return eqx.tree_at(lambda m: (m.weight, m.bias), layer, (weight, jnp.zeros(outputs)))


class Linear(eqx.Module):
    """Dense layer from `[inputs]` to `[outputs]` with orthogonal weights and zero bias.

    The weights have the shape `[inputs, outputs]`, which is faster for layers with many outputs,
    because the gradient of the weights is a matrix product over the batch with long rows. With the
    layout of `make_orthogonal_linear`, the gradient of a layer with 4 inputs and 64 outputs takes
    six times as long on a CPU.
    """

    weight: jax.Array  # [inputs, outputs]
    bias: jax.Array

    def __init__(self, inputs: int, outputs: int, key: jax.Array, gain: float) -> None:
        self.weight = jax.nn.initializers.orthogonal(gain)(key, (inputs, outputs))
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.weight + self.bias


class MLP(eqx.Module):
    """Dense layers, each followed by optional layer normalization and the activation."""

    layers: tuple[Linear, ...]
    norms: tuple[eqx.nn.LayerNorm, ...]
    activation: str = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        sizes: tuple[int, ...],
        activation: str,
        layer_norm: bool = False,
        *,
        key: jax.Array,
    ) -> None:
        keys = jax.random.split(key, max(len(sizes), 1))
        pairs = zip((inputs, *sizes), sizes, keys, strict=False)
        self.layers = tuple(Linear(a, b, k, math.sqrt(2)) for a, b, k in pairs)
        self.norms = tuple(eqx.nn.LayerNorm(size) for size in sizes) if layer_norm else ()
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        for i, layer in enumerate(self.layers):
            x = layer(x.astype(layer.weight.dtype))
            x = ACTIVATIONS[self.activation](self.norms[i](x) if self.norms else x)
        return x


class Convolution(eqx.Module):
    """Convolution without padding from `[H, W, C]` to `[H', W', outputs]`, as one matrix product.

    The product multiplies all patches with the weights. Inside a loop on a CPU, this is about 20
    times as fast as the XLA convolution, including the gradient.
    """

    weight: jax.Array  # [outputs, kernel * kernel * C], patches in row-major order
    bias: jax.Array
    kernel: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)

    def __init__(
        self, channels: int, outputs: int, kernel: int, stride: int, *, key: jax.Array
    ) -> None:
        self.weight = jax.nn.initializers.orthogonal(math.sqrt(2))(
            key, (outputs, channels * kernel * kernel)
        )
        self.bias, self.kernel, self.stride = jnp.zeros(outputs), kernel, stride

    def __call__(self, x: jax.Array) -> jax.Array:
        height, width = x.shape[0] - self.kernel + 1, x.shape[1] - self.kernel + 1
        corners = [(i, j) for i in range(self.kernel) for j in range(self.kernel)]
        shifted = [x[i : i + height : self.stride, j : j + width : self.stride] for i, j in corners]
        product = jnp.concatenate(shifted, axis=-1) @ self.weight.T
        return product + jnp.broadcast_to(self.bias, product.shape)


class CNN(eqx.Module):
    """Convolutions from a grid or image `[H, W, C]` to a flat vector.

    8-bit values are divided by 255.
    """

    layers: tuple[Convolution, ...]
    activation: str = eqx.field(static=True)

    def __init__(
        self, channels: int, filters: tuple["Filter", ...], activation: str, *, key: jax.Array
    ) -> None:
        layers = []
        for k, (outputs, kernel, stride) in zip(
            jax.random.split(key, len(filters)), filters, strict=True
        ):
            layers.append(Convolution(channels, outputs, kernel, stride, key=k))
            channels = outputs
        self.layers, self.activation = tuple(layers), activation

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.astype(self.layers[0].weight.dtype) / (255 if x.dtype == jnp.uint8 else 1)
        for layer in self.layers:
            x = ACTIVATIONS[self.activation](layer(x))
        return x.reshape(-1)


Filter = tuple[int, int, int]  # outputs, kernel, stride
# Default filters for small boards (MinAtar's 10 x 10), grids of symbols, and images.
BOARD_FILTERS: tuple[Filter, ...] = ((16, 3, 1),)
SYMBOL_FILTERS: tuple[Filter, ...] = ((16, 2, 1), (32, 2, 1), (64, 2, 1))
IMAGE_FILTERS: tuple[Filter, ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))


def _flatten_value(space: Space, value: jax.Array) -> jax.Array:
    """Flatten a value of a space to a float vector.

    Discrete values are one-hot, 8-bit values are divided by 255, and the entries of a dictionary
    are concatenated in the order of their keys, without "action_mask".
    """
    if isinstance(space, Dict):
        return jnp.concatenate(
            [
                _flatten_value(part, value[name])
                for name, part in space.items
                if name != "action_mask"
            ]
        )
    if isinstance(space, Discrete):
        return jax.nn.one_hot(value, space.n)
    if isinstance(space, MultiDiscrete):
        return jnp.concatenate([jax.nn.one_hot(value[i], n) for i, n in enumerate(space.sizes)])
    assert not isinstance(space, Tuple), "a space of actions"
    # Booleans are converted to 8 bits first. XLA would otherwise convert them to float before the
    # reshape, one element at a time on a CPU.
    flat = value.reshape(-1).astype(jnp.uint8 if value.dtype == bool else value.dtype)
    return flat.astype(jnp.float32) * (1 / 255 if space.dtype == "uint8" else 1.0)


class Embedding(eqx.Module):
    """Embedding of the symbols of a grid by learned vectors, `[H, W, k] -> [H, W, k * size]`.

    The vectors of the k symbols of a cell are concatenated.
    """

    tables: tuple[jax.Array, ...]  # [symbols, size] for each of the k symbols of a cell

    def __init__(self, space: Grid, size: int, *, key: jax.Array) -> None:
        keys = jax.random.split(key, len(space.sizes))
        self.tables = tuple(
            jax.random.normal(k, (n, size)) for k, n in zip(keys, space.sizes, strict=True)
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        # On a CPU, the gradient of a product with one-hot rows is much faster than the gradient of
        # an index.
        parts = [
            jax.nn.one_hot(x[..., i], len(table), dtype=table.dtype) @ table
            for i, table in enumerate(self.tables)
        ]
        return jnp.concatenate(parts, axis=-1)


class Encoder(eqx.Module):
    """Encoder of observations as features `[n]`: embeddings, convolutions and dense layers.

    Each entry of a dictionary observation is encoded separately. Grids of symbols are embedded.
    Grids and images (see `rollax.environments.image_layouts`) are encoded by a CNN. All other
    values are flattened, and discrete values are one-hot. The entry "action_mask", which only heads
    use, and the entries named in `omitted_parts` are not encoded. `filters` are the convolutional
    layers. None selects default layers by the size of a grid or image. With an empty tuple, only
    8-bit images are encoded by default layers, and all other grids are flattened.

    Attributes:
        space: Observation space without the omitted entries.
        embeddings: Embeddings of the grids, keyed by observation key ("" if the observation is not
            a dictionary).
        convolutions: CNNs of grids and images, with the same keys.
        dense: Dense layers from the concatenated features to the output.
    """

    space: Space = eqx.field(static=True)
    embeddings: dict[str, Embedding]
    convolutions: dict[str, CNN]
    dense: MLP

    def __init__(
        self,
        space: Space,
        sizes: tuple[int, ...],
        activation: str,
        filters: tuple[Filter, ...] | None,
        embedding: int = 8,
        omitted_parts: tuple[str, ...] = (),
        *,
        key: jax.Array,
    ) -> None:
        embedding_key, conv_key, dense_key = jax.random.split(key, 3)
        has_parts = isinstance(space, Dict)
        self.space = (
            Dict({name: s for name, s in space.items if name not in omitted_parts})
            if has_parts
            else space
        )
        parts: dict[str, Any] = dict(encoded_parts(self.space))
        grids = {name: part for name, part in parts.items() if isinstance(part, Grid)}
        keys = jax.random.split(embedding_key, max(len(grids), 1))
        self.embeddings = {
            name: Embedding(part, embedding, key=k)
            for (name, part), k in zip(grids.items(), keys, strict=False)
        }
        pictures = {
            name: image_shape(part) for name, part in parts.items() if isinstance(part, Box)
        }
        images = {name: shape for name, shape in pictures.items() if shape is not None}
        images |= {
            name: (*g.cells, len(g.sizes) * embedding)
            for name, g in grids.items()
            if min(g.cells) > 2
        }
        if not filters:  # The default filters require a minimum size.
            images = {
                name: shape
                for name, shape in images.items()
                if min(shape[:2]) >= (4 if name in grids else 3)
            }
        if filters is not None and not filters:  # Only pixels need convolutions.
            images = {
                name: shape
                for name, shape in images.items()
                if name not in grids and parts[name].dtype == "uint8"
            }
        keys = jax.random.split(conv_key, max(len(images), 1))
        self.convolutions = {}
        for (name, (*sides, channels)), k in zip(images.items(), keys, strict=False):
            layer_filters = filters or _default_filters(sides, name in grids)
            _check_filters(name, sides, layer_filters)
            self.convolutions[name] = CNN(channels, layer_filters, activation, key=k)
        features = jax.eval_shape(
            lambda obs: self._compute_features(obs), make_zeros(self.space)
        ).shape[0]
        self.dense = MLP(features, sizes, activation, key=dense_key)

    def __call__(self, obs: Observation) -> jax.Array:
        return self.dense(self._compute_features(obs))

    def _compute_features(self, obs: Observation) -> jax.Array:
        parts = obs if isinstance(self.space, Dict) else {"": obs}
        return jnp.concatenate(
            [
                self._encode_part(name, part, parts[name])
                for name, part in encoded_parts(self.space).items()
            ]
        )

    def _encode_part(self, name: str, space: Space, value: jax.Array) -> jax.Array:
        if name in self.embeddings:
            value = self.embeddings[name](value)
        if name in self.convolutions:
            return self.convolutions[name](
                arrange_image(space, value) if isinstance(space, Box) else value
            )
        return value.reshape(-1) if name in self.embeddings else _flatten_value(space, value)


def _default_filters(sides: Sequence[int], is_grid: bool) -> tuple[Filter, ...]:
    if is_grid:
        return SYMBOL_FILTERS
    return IMAGE_FILTERS if min(sides) >= 36 else BOARD_FILTERS


def _check_filters(name: str, sides: Sequence[int], filters: tuple[Filter, ...]) -> None:
    """Raise ValueError if a filter is larger than its input."""
    for _, kernel, stride in filters:
        if kernel > min(sides):
            part = f"the part {name!r}" if name else "the observation"
            raise ValueError(
                f"network.filters must fit the input, but a kernel of {kernel} in {filters} is "
                f"larger than {sides[0]} x {sides[1]}, the size of {part} at that layer. Use "
                "smaller filters, or None for the defaults."
            )
        sides = tuple((side - kernel) // stride + 1 for side in sides)


def encoded_parts(space: Space) -> dict[str, Any]:
    """Return the spaces of the observation entries that an encoder reads, keyed by entry.

    If the observation is not a dictionary, the key is "".
    """
    if isinstance(space, Dict):
        return {name: part for name, part in space.items if name != "action_mask"}
    return {"": space}


class ValueHead(eqx.Module):
    """Head that returns a value `[]`."""

    layer: eqx.nn.Linear

    def __init__(self, inputs: int, *, key: jax.Array) -> None:
        self.layer = make_orthogonal_linear(inputs, 1, key, 1.0)

    def __call__(self, features: jax.Array, obs: Observation) -> jax.Array:
        return self.layer(features)[0]


def preserve_values(
    network: Parameters, old_scale: tuple[Scalar, Scalar], new_scale: tuple[Scalar, Scalar]
) -> Any:
    """Return a network with rescaled value heads, so that mean + std V does not change.

        W' = std W / std',    b' = (std b + mean - mean') / std'

    for the last layer of every `ValueHead` (PopArt: van Hasselt et al. 2016, arXiv:1602.07714,
    proposition 1).

    Args:
        network: Network with normalized values V.
        old_scale: Mean and std before the change, `[]` each.
        new_scale: Mean' and std' after the change, `[]` each.

    Returns:
        The rescaled network.
    """
    (mean, std), (new_mean, new_std) = old_scale, new_scale

    def rescale(part: PyTree) -> Any:
        if not isinstance(part, ValueHead) or part.layer.bias is None:
            return part
        weight, bias = (
            part.layer.weight * (std / new_std),
            (std * part.layer.bias + mean - new_mean) / new_std,
        )
        return eqx.tree_at(lambda head: (head.layer.weight, head.layer.bias), part, (weight, bias))

    return jax.tree.map(rescale, network, is_leaf=lambda part: isinstance(part, ValueHead))


class DeepHead(eqx.Module):
    """Head that applies dense layers to the features before another head."""

    dense: MLP
    head: Head

    def __call__(self, features: jax.Array, obs: Observation) -> PyTree:
        return self.head(self.dense(features), obs)


class AttentionHead(eqx.Module):
    """Head that receives the features and the result of attention over the cells of observed grids.

    The attention is softmax(q K^T / sqrt(d)) V (Vaswani et al. 2017, arXiv:1706.03762, eq. 1).
    Queries q are linear in the features, keys K are the embeddings of the symbols of each cell, and
    values V are these embeddings with learned position codes. The result is `[heads * (k + 1) *
    size]` for a grid with k symbols per cell. Attention multiplies the features, which contain the
    memory of a recurrent core, with the observation. Dense layers would have to learn every pair of
    symbol and position.
    """

    embeddings: dict[str, Embedding]
    places: dict[str, jax.Array]  # learned position codes, [cells, size]
    queries: dict[str, eqx.nn.Linear]
    head: Head
    num_heads: int = eqx.field(static=True)

    def __init__(
        self,
        space: Space,
        inputs: int,
        heads: int,
        size: int,
        head: MakeHead,
        *,
        key: jax.Array,
    ) -> None:
        grids = {
            name: part for name, part in encoded_parts(space).items() if isinstance(part, Grid)
        }
        head_key, *keys = jax.random.split(key, 1 + len(grids))
        self.embeddings, self.places, self.queries, self.num_heads = {}, {}, {}, heads
        for (name, part), grid_key in zip(grids.items(), keys, strict=True):
            embedding_key, place_key, query_key = jax.random.split(grid_key, 3)
            width = len(part.sizes) * size
            self.embeddings[name] = Embedding(part, size, key=embedding_key)
            self.places[name] = jax.random.normal(place_key, (math.prod(part.cells), size))
            self.queries[name] = make_orthogonal_linear(inputs, heads * width, query_key, 1.0)
        num_read = sum(heads * (len(part.sizes) + 1) * size for part in grids.values())
        self.head = head(inputs + num_read, head_key)

    def __call__(self, features: jax.Array, obs: Observation) -> PyTree:
        outputs = [features]
        for name, embedding in self.embeddings.items():
            cells = embedding(obs[name] if name else obs)
            cells = cells.reshape(-1, cells.shape[-1])
            query = self.queries[name](features).reshape(self.num_heads, -1)
            weights = jax.nn.softmax(query @ cells.T / math.sqrt(cells.shape[-1]), axis=-1)
            outputs.append(
                (weights @ jnp.concatenate([cells, self.places[name]], axis=-1)).reshape(-1)
            )
        return self.head(jnp.concatenate(outputs), obs)
