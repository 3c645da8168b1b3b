"""Autoencoder that compresses feature vectors `[D]` (rows) to low-dimensional codes `[K]`."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.learning.optimizers import clipped_adam
from rollax.learning.train_state import apply_gradients
from rollax.networks.layers import MLP, Linear
from rollax.types import Parameters, Scalar, State

MIN_SCALE = 1e-3  # features with a smaller standard deviation count as constant


class Autoencoder(eqx.Module):
    """Dense autoencoder from feature vectors `[D]` to codes `[K]` and back."""

    encoder: MLP
    code_layer: Linear
    decoder: MLP
    row_layer: Linear

    def __init__(
        self, features: int, code_size: int, hidden: tuple[int, ...], key: jax.Array
    ) -> None:
        keys = jax.random.split(key, 4)
        self.encoder = MLP(features, hidden, "tanh", key=keys[0])
        self.code_layer = Linear(hidden[-1] if hidden else features, code_size, keys[1], 1.0)
        self.decoder = MLP(code_size, hidden[::-1], "tanh", key=keys[2])
        self.row_layer = Linear(hidden[0] if hidden else code_size, features, keys[3], 1.0)

    def encode(self, row: jax.Array) -> jax.Array:
        return self.code_layer(self.encoder(row))

    def decode(self, code: jax.Array) -> jax.Array:
        return self.row_layer(self.decoder(code))


class AutoencoderState(NamedTuple):
    """Autoencoder with statistics for the normalization of its inputs and codes.

    Attributes:
        network: The autoencoder.
        optimizer: State of the optimizer.
        row_mean: Mean of the rows (feature vectors) of the last training, `[D]`.
        row_scale: Standard deviation of these rows, `[D]`.
        code_mean: Mean of the codes of these rows, `[K]`.
        code_scale: Standard deviation of the codes of these rows, `[K]`.
        loss: Mean squared reconstruction error of normalized vectors in the last gradient step,
            float32 `[]`.
    """

    network: Autoencoder
    optimizer: Any
    row_mean: jax.Array
    row_scale: jax.Array
    code_mean: jax.Array
    code_scale: jax.Array
    loss: jax.Array


def init_autoencoder(
    features: int, code_size: int, hidden: tuple[int, ...], learning_rate: Scalar, key: jax.Array
) -> AutoencoderState:
    """Initialize an autoencoder.

    Args:
        features: Number of features D of a vector.
        code_size: Number of dimensions K of a code.
        hidden: Widths of the hidden layers of the encoder. The decoder has the same widths in
            reverse order.
        learning_rate: Learning rate of Adam.
        key: Random key.

    Returns:
        The autoencoder with statistics of mean 0 and standard deviation 1.
    """
    network = Autoencoder(features, code_size, hidden, key)
    return AutoencoderState(
        network=network,
        optimizer=_make_optimizer(learning_rate).init(network),
        row_mean=jnp.zeros(features),
        row_scale=jnp.ones(features),
        code_mean=jnp.zeros(code_size),
        code_scale=jnp.ones(code_size),
        loss=jnp.zeros(()),
    )


def encode_rows(state: AutoencoderState, rows: jax.Array) -> jax.Array:
    """Return the codes of feature vectors, normalized with the statistics of the training vectors.

    Args:
        state: Autoencoder.
        rows: Feature vectors `[N, D]`.

    Returns:
        Codes, float32 `[N, K]`. Codes of the training vectors have mean 0 and standard deviation 1.
    """
    return (_encode_unscaled(state, rows) - state.code_mean[None]) / state.code_scale[None]


def train_autoencoder(
    state: AutoencoderState,
    rows: jax.Array,
    mask: jax.Array,
    num_steps: jax.Array,
    batch_size: int,
    learning_rate: Scalar,
    key: jax.Array,
) -> AutoencoderState:
    """Train the autoencoder with Adam, starting from a new optimizer state.

    Args:
        state: Autoencoder.
        rows: Feature vectors `[N, D]`.
        mask: Whether to train on each vector, bool `[N]`.
        num_steps: Number of gradient steps, int32 `[]`. It may be 0.
        batch_size: Number of vectors per gradient step.
        learning_rate: Learning rate of Adam.
        key: Random key.

    Returns:
        The trained autoencoder with the statistics of the vectors where `mask` is true.
    """
    mean, scale = _mean_and_scale(rows, mask)
    state = state._replace(
        row_mean=mean, row_scale=scale, optimizer=_make_optimizer(learning_rate).init(state.network)
    )
    normal = (rows - mean[None]) / scale[None]
    weights = mask / jnp.maximum(jnp.sum(mask), 1)

    def loss(network: Autoencoder, batch: jax.Array) -> jax.Array:
        return jnp.mean(
            (jax.vmap(lambda row: network.decode(network.encode(row)))(batch) - batch) ** 2
        )

    def step(
        index: jax.Array, loop: tuple[Parameters, State, jax.Array]
    ) -> tuple[Any, Any, jax.Array]:
        network, optimizer, _ = loop
        picked = jax.random.choice(
            jax.random.fold_in(key, index), rows.shape[0], (batch_size,), p=weights
        )
        value, gradient = jax.value_and_grad(loss)(network, normal[picked])
        return *apply_gradients(_make_optimizer(learning_rate), optimizer, network, gradient), value

    # A loop instead of a scan, so that updates without training take no steps, also under vmap.
    network, optimizer, value = jax.lax.fori_loop(
        0, num_steps, step, (state.network, state.optimizer, state.loss)
    )
    state = state._replace(network=network, optimizer=optimizer, loss=value)
    code_mean, code_scale = _mean_and_scale(_encode_unscaled(state, rows), mask)
    return state._replace(code_mean=code_mean, code_scale=code_scale)


def _encode_unscaled(state: AutoencoderState, rows: jax.Array) -> jax.Array:
    return jax.vmap(state.network.encode)((rows - state.row_mean[None]) / state.row_scale[None])


def _mean_and_scale(rows: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the mean and standard deviation of each feature, `[D]` each.

    Args:
        rows: Feature vectors `[N, D]`.
        mask: Whether to include each vector, bool `[N]`.

    Returns:
        The mean, and the standard deviation, which is at least `MIN_SCALE`.
    """
    number = jnp.maximum(jnp.sum(mask), 1)
    mean = jnp.sum(rows, axis=0, where=mask[:, None]) / number
    variance = jnp.sum((rows - mean[None]) ** 2, axis=0, where=mask[:, None]) / number
    return mean, jnp.maximum(jnp.sqrt(variance), MIN_SCALE)


def _make_optimizer(learning_rate: Scalar) -> Any:
    return clipped_adam(learning_rate, 1e-8, 1.0)
