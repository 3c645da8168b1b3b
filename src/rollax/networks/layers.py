"""Encoders and heads, made of equinox layers whose leaves are arrays only."""

import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.networks import distributions
from rollax.spaces import Ball, Box, Dict, Discrete, Grid, MultiDiscrete, Space, zeros

Activation = Literal["tanh", "relu", "gelu", "silu", "elu"]
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "elu": jax.nn.elu,
}


def of_critics(space: Space) -> tuple[str, ...]:
    """The parts of observations that critics alone may see."""
    return ("global_state",) if isinstance(space, Dict) and "global_state" in space.spaces else ()


def linear(inputs: int, outputs: int, key: jax.Array, gain: float) -> eqx.nn.Linear:
    """As `Linear`, for layers with few outputs, such as heads: weights `[outputs, inputs]`."""
    layer_key, weight_key = jax.random.split(key)
    layer = eqx.nn.Linear(inputs, outputs, key=layer_key)
    weight = jax.nn.initializers.orthogonal(gain)(weight_key, layer.weight.shape)
    return eqx.tree_at(lambda m: (m.weight, m.bias), layer, (weight, jnp.zeros(outputs)))


class Linear(eqx.Module):
    """A dense layer, `[inputs]` to `[outputs]`, with orthogonal weights of the given gain and zero bias.

    For layers with many outputs: their weights' gradient is a product over the batch, which is fast where its rows are long. In
    the layout of `linear`, that of a layer of 4 inputs and 64 outputs takes six times as long on a CPU.
    """

    weight: jax.Array  # [inputs, outputs]
    bias: jax.Array

    def __init__(self, inputs: int, outputs: int, key: jax.Array, gain: float) -> None:
        self.weight = jax.nn.initializers.orthogonal(gain)(key, (inputs, outputs))
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.weight + self.bias


class MLP(eqx.Module):
    """Dense layers `[inputs]` to `[sizes[-1]]`, each followed by a normalization of its outputs (if any) and the activation."""

    layers: tuple[Linear, ...]
    norms: tuple[eqx.nn.LayerNorm, ...]
    activation: str = eqx.field(static=True)

    def __init__(
        self, inputs: int, sizes: tuple[int, ...], activation: str, layer_norm: bool = False, *, key: jax.Array
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
    """A convolution `[H, W, C]` to `[H', W', outputs]` without padding, as one product of all patches with the weights.

    On a CPU, inside a loop, that is about twenty times as fast as XLA's own convolution and its gradient.
    """

    weight: jax.Array  # [outputs, kernel * kernel * C], patches row by row
    bias: jax.Array
    kernel: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)

    def __init__(self, channels: int, outputs: int, kernel: int, stride: int, *, key: jax.Array) -> None:
        self.weight = jax.nn.initializers.orthogonal(math.sqrt(2))(key, (outputs, channels * kernel * kernel))
        self.bias, self.kernel, self.stride = jnp.zeros(outputs), kernel, stride

    def __call__(self, x: jax.Array) -> jax.Array:
        height, width = x.shape[0] - self.kernel + 1, x.shape[1] - self.kernel + 1
        corners = [(i, j) for i in range(self.kernel) for j in range(self.kernel)]
        shifted = [x[i : i + height : self.stride, j : j + width : self.stride] for i, j in corners]
        product = jnp.concatenate(shifted, axis=-1) @ self.weight.T
        return product + jnp.broadcast_to(self.bias, product.shape)


class CNN(eqx.Module):
    """Convolutions over a grid or an image `[H, W, C]`, flattened: 8-bit images are scaled to 0 ... 1."""

    layers: tuple[Convolution, ...]
    activation: str = eqx.field(static=True)

    def __init__(self, channels: int, filters: tuple["Filter", ...], activation: str, *, key: jax.Array) -> None:
        layers = []
        for k, (outputs, kernel, stride) in zip(jax.random.split(key, len(filters)), filters, strict=True):
            layers.append(Convolution(channels, outputs, kernel, stride, key=k))
            channels = outputs
        self.layers, self.activation = tuple(layers), activation

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.astype(self.layers[0].weight.dtype) / (255 if x.dtype == jnp.uint8 else 1)
        for layer in self.layers:
            x = ACTIVATIONS[self.activation](layer(x))
        return x.reshape(-1)


Filter = tuple[int, int, int]  # outputs, kernel, stride
# Filters by kind of input: small boards (MinAtar's 10 x 10), an agent's view of symbols, pictures.
GRID_FILTERS: tuple[Filter, ...] = ((16, 3, 1),)
SYMBOL_FILTERS: tuple[Filter, ...] = ((16, 2, 1), (32, 2, 1), (64, 2, 1))
IMAGE_FILTERS: tuple[Filter, ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))


def _flat(space: Space, value: Any) -> jax.Array:
    """A value as one vector of floats: integers of a discrete space one-hot, a dictionary's parts in the order of names."""
    if isinstance(space, Dict):
        return jnp.concatenate([_flat(part, value[name]) for name, part in space.items if name != "action_mask"])
    if isinstance(space, Discrete):
        return jax.nn.one_hot(value, space.n)
    if isinstance(space, MultiDiscrete):
        return jnp.concatenate([jax.nn.one_hot(value[i], n) for i, n in enumerate(space.sizes)])
    # Booleans by way of 8 bits: XLA would convert them before the reshape, where a CPU takes one after another.
    flat = value.reshape(-1).astype(jnp.uint8 if value.dtype == bool else value.dtype)
    return flat.astype(jnp.float32) * (1 / 255 if space.dtype == "uint8" else 1.0)


class Embedding(eqx.Module):
    """A learned vector for each symbol of a grid, those of one cell concatenated: `[H, W, k]` to `[H, W, k * size]`."""

    tables: tuple[jax.Array, ...]  # one for each number of a cell: [symbols, size]

    def __init__(self, space: Grid, size: int, *, key: jax.Array) -> None:
        keys = jax.random.split(key, len(space.sizes))
        self.tables = tuple(jax.random.normal(k, (n, size)) for k, n in zip(keys, space.sizes, strict=True))

    def __call__(self, x: jax.Array) -> jax.Array:
        # A product with one-hot rows: on a CPU its gradient is many times as fast as that of an index.
        parts = [jax.nn.one_hot(x[..., i], len(table), dtype=table.dtype) @ table for i, table in enumerate(self.tables)]
        return jnp.concatenate(parts, axis=-1)


class Encoder(eqx.Module):
    """Any observation to features `[n]`: grids of symbols embedded, images and grids through a CNN, the rest flattened; then
    dense layers.

    The part "action_mask", an input of the head only, and those named in `unseen` are left out. A discrete part is
    one-hot, so the first dense layer (or the core's input) is its embedding. `filters` are the convolutions: None chooses by
    size, () has them for images of 8-bit pixels alone.
    """

    space: Space = eqx.field(static=True)
    embeddings: dict[str, Embedding]  # by name of the part; "" for an observation without parts
    convolutions: dict[str, CNN]
    dense: MLP

    def __init__(
        self,
        space: Space,
        sizes: tuple[int, ...],
        activation: str,
        filters: tuple[Filter, ...] | None,
        embedding: int = 8,
        unseen: tuple[str, ...] = (),
        *,
        key: jax.Array,
    ) -> None:
        embedding_key, conv_key, dense_key = jax.random.split(key, 3)
        is_parted = isinstance(space, Dict)
        self.space = Dict({name: s for name, s in space.items if name not in unseen}) if is_parted else space
        parts = _parts(self.space)
        grids = {name: part for name, part in parts.items() if isinstance(part, Grid)}
        keys = jax.random.split(embedding_key, max(len(grids), 1))
        self.embeddings = {
            name: Embedding(part, embedding, key=k) for (name, part), k in zip(grids.items(), keys, strict=False)
        }
        images = {name: part for name, part in parts.items() if isinstance(part, Box) and len(part.shape) == 3}
        images |= {name: part for name, part in grids.items() if min(part.cells) > 2}
        if not filters:  # the usual ones leave nothing of what is smaller than they see
            images = {name: part for name, part in images.items() if min(part.shape[:2]) >= (4 if name in grids else 3)}
        if filters is not None and not filters:  # grids and boards do without, but hardly pixels
            images = {name: part for name, part in images.items() if name not in grids and part.dtype == "uint8"}
        keys = jax.random.split(conv_key, max(len(images), 1))
        self.convolutions = {}
        for (name, part), k in zip(images.items(), keys, strict=False):
            channels = len(part.sizes) * embedding if isinstance(part, Grid) else part.shape[-1]
            chosen = filters or _usual_filters(part)
            _check_filters(name, part.shape[:2], chosen)
            self.convolutions[name] = CNN(channels, chosen, activation, key=k)
        features = jax.eval_shape(lambda obs: self._features(obs), zeros(self.space)).shape[0]
        self.dense = MLP(features, sizes, activation, key=dense_key)

    def __call__(self, obs: Any) -> jax.Array:
        return self.dense(self._features(obs))

    def _features(self, obs: Any) -> jax.Array:
        parts = obs if isinstance(self.space, Dict) else {"": obs}
        return jnp.concatenate([self._part(name, part, parts[name]) for name, part in _parts(self.space).items()])

    def _part(self, name: str, space: Space, value: Any) -> jax.Array:
        if name in self.embeddings:
            value = self.embeddings[name](value)
        if name in self.convolutions:
            return self.convolutions[name](value)
        return value.reshape(-1) if name in self.embeddings else _flat(space, value)


def _usual_filters(space: Box | Grid) -> tuple[Filter, ...]:
    if isinstance(space, Grid):
        return SYMBOL_FILTERS
    return IMAGE_FILTERS if min(space.shape[:2]) >= 36 else GRID_FILTERS


def _check_filters(name: str, sides: tuple[int, ...], filters: tuple[Filter, ...]) -> None:
    """Raises ValueError where a filter is larger than what those before it leave."""
    for _, kernel, stride in filters:
        if kernel > min(sides):
            part = f"the part {name!r}" if name else "the observation"
            raise ValueError(
                f"network.filters {filters}: a kernel of {kernel} does not fit {part}, of which {sides[0]} x {sides[1]} are "
                "left there: choose smaller filters, or None for the usual ones"
            )
        sides = tuple((side - kernel) // stride + 1 for side in sides)


def _parts(space: Space) -> dict[str, Space]:
    if isinstance(space, Dict):
        return {name: part for name, part in space.items if name != "action_mask"}
    return {"": space}


class ValueHead(eqx.Module):
    """Features to a value `[]`."""

    layer: eqx.nn.Linear

    def __init__(self, inputs: int, *, key: jax.Array) -> None:
        self.layer = linear(inputs, 1, key, 1.0)

    def __call__(self, features: jax.Array, obs: Any) -> jax.Array:
        return self.layer(features)[0]


def preserve_values(network: Any, before: tuple[Any, Any], after: tuple[Any, Any]) -> Any:
    """The network whose values mean + std V are the same with the mean and std `after` as its own are with those `before`.

    W' = std W / std',    b' = (std b + mean - mean') / std'

    for the last layer of every `ValueHead` (PopArt: van Hasselt et al. 2016, arXiv:1602.07714, proposition 1).
    """
    (mean, std), (new_mean, new_std) = before, after

    def rescale(part: Any) -> Any:
        if not isinstance(part, ValueHead):
            return part
        weight, bias = part.layer.weight * (std / new_std), (std * part.layer.bias + mean - new_mean) / new_std
        return eqx.tree_at(lambda head: (head.layer.weight, head.layer.bias), part, (weight, bias))

    return jax.tree.map(rescale, network, is_leaf=lambda part: isinstance(part, ValueHead))


def categorical(logits: jax.Array, space: Discrete | MultiDiscrete, action_mask: jax.Array | None) -> distributions.Categorical:
    """The distribution over a space's choices: logits `[n]`, or `[k * max n]` or `[k, max n]` for a multi-discrete one."""
    legal = True if action_mask is None else action_mask.astype(bool)
    if isinstance(space, Discrete):
        return distributions.masked(logits, jnp.broadcast_to(legal, logits.shape))
    logits = logits.reshape(len(space.sizes), -1)
    return distributions.masked(logits, jnp.asarray(distributions.padding(space)) & legal)


def gaussian(
    mean: jax.Array, log_std: jax.Array, space: Box, squash: bool, action_mask: jax.Array | None = None
) -> distributions.Gaussian | distributions.SquashedGaussian:
    """The distribution over a box, with the dimensions masked that `action_mask` rules out."""
    legal = None if action_mask is None else jnp.asarray(action_mask, bool)
    plain = distributions.Gaussian(mean.reshape(space.shape), log_std, space, legal)
    return distributions.SquashedGaussian(plain) if squash else plain


class Deep(eqx.Module):
    """A head after dense layers of its own."""

    dense: MLP
    head: Any

    def __call__(self, features: jax.Array, obs: Any) -> Any:
        return self.head(self.dense(features), obs)


class Attentive(eqx.Module):
    """A head whose inputs are the features and, for each grid of the observation, an attention of the features over its cells.

    softmax(q K^T / sqrt(d)) V (Vaswani et al. 2017, arXiv:1706.03762, eq. 1): queries q are linear in the features, keys K are
    the embeddings of the cells' symbols, values V these and learned codes of the cells' places: `[heads * (k + 1) * size]` for
    a grid of k symbols a cell. Memory and observation are multiplied here; dense layers would have to learn every pairing of a
    symbol with a place.
    """

    embeddings: dict[str, Embedding]
    places: dict[str, jax.Array]  # [cells, size]
    queries: dict[str, eqx.nn.Linear]
    head: Any
    num_heads: int = eqx.field(static=True)

    def __init__(
        self, space: Space, inputs: int, heads: int, size: int, head: Callable[[int, jax.Array], Any], *, key: jax.Array
    ) -> None:
        grids = {name: part for name, part in _parts(space).items() if isinstance(part, Grid)}
        head_key, *keys = jax.random.split(key, 1 + len(grids))
        self.embeddings, self.places, self.queries, self.num_heads = {}, {}, {}, heads
        for (name, part), grid_key in zip(grids.items(), keys, strict=True):
            embedding_key, place_key, query_key = jax.random.split(grid_key, 3)
            width = len(part.sizes) * size
            self.embeddings[name] = Embedding(part, size, key=embedding_key)
            self.places[name] = jax.random.normal(place_key, (math.prod(part.cells), size))
            self.queries[name] = linear(inputs, heads * width, query_key, 1.0)
        found = sum(heads * (len(part.sizes) + 1) * size for part in grids.values())
        self.head = head(inputs + found, head_key)

    def __call__(self, features: jax.Array, obs: Any) -> Any:
        found = [features]
        for name, embedding in self.embeddings.items():
            cells = embedding(obs[name] if name else obs)
            cells = cells.reshape(-1, cells.shape[-1])
            query = self.queries[name](features).reshape(self.num_heads, -1)
            weights = jax.nn.softmax(query @ cells.T / math.sqrt(cells.shape[-1]), axis=-1)
            found.append((weights @ jnp.concatenate([cells, self.places[name]], axis=-1)).reshape(-1))
        return self.head(jnp.concatenate(found), obs)


class CategoricalHead(eqx.Module):
    """Features to a choice of a `Discrete` or `MultiDiscrete` space; an observation's "action_mask" is respected."""

    layer: eqx.nn.Linear
    space: Discrete | MultiDiscrete = eqx.field(static=True)
    is_masked: bool = eqx.field(static=True)

    def __init__(self, inputs: int, space: Discrete | MultiDiscrete, is_masked: bool, *, key: jax.Array) -> None:
        shape = (space.n,) if isinstance(space, Discrete) else (len(space.sizes), max(space.sizes))
        self.layer = linear(inputs, math.prod(shape), key, 0.01)
        self.space, self.is_masked = space, is_masked

    def __call__(self, features: jax.Array, obs: Any) -> distributions.Categorical:
        return categorical(self.layer(features), self.space, obs["action_mask"] if self.is_masked else None)


class GaussianHead(eqx.Module):
    """Features to independent normals over a `Box`, with a learned standard deviation a dimension, independent of the state.

    Dimensions that the observation's "action_mask" rules out are masked.
    """

    layer: eqx.nn.Linear
    log_std: jax.Array
    space: Box = eqx.field(static=True)
    squash: bool = eqx.field(static=True)
    is_masked: bool = eqx.field(static=True)

    def __init__(
        self, inputs: int, space: Box, squash: bool, initial_std: float, is_masked: bool = False, *, key: jax.Array
    ) -> None:
        if squash and not space.is_bounded:
            raise ValueError(f"network.squash needs an action space with finite bounds, but it is {space}: leave squash off")
        self.layer = linear(inputs, math.prod(space.shape), key, 0.01)
        self.log_std = jnp.full(space.shape, np.log(initial_std), jnp.float32)
        self.space, self.squash, self.is_masked = space, squash, is_masked

    def __call__(self, features: jax.Array, obs: Any) -> distributions.Gaussian | distributions.SquashedGaussian:
        mask = obs["action_mask"] if self.is_masked else None
        return gaussian(self.layer(features), self.log_std, self.space, self.squash, mask)


class BallHead(eqx.Module):
    """Features to a normal squashed into a `Ball`, with one learned standard deviation, independent of the state."""

    layer: eqx.nn.Linear
    log_std: jax.Array
    space: Ball = eqx.field(static=True)

    def __init__(self, inputs: int, space: Ball, initial_std: float, *, key: jax.Array) -> None:
        self.layer = linear(inputs, space.size, key, 0.01)
        self.log_std = jnp.asarray(np.log(initial_std), jnp.float32)
        self.space = space

    def __call__(self, features: jax.Array, obs: Any) -> distributions.RadialSquash:
        return distributions.RadialSquash(self.layer(features), self.log_std, self.space)
