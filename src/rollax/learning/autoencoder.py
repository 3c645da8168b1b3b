"""An autoencoder of rows of numbers, which learns to say in a few numbers what tells the rows apart."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.learning.train_state import adam, apply_gradients
from rollax.networks.layers import MLP, Linear

LEAST_SCALE = 1e-3  # a feature that varies less than this counts as constant


class Autoencoder(eqx.Module):
    """Rows `[D]` to codes `[K]` and back, through dense layers."""

    encoder: MLP
    to_code: Linear
    decoder: MLP
    to_row: Linear

    def __init__(self, features: int, code_size: int, hidden: tuple[int, ...], key: jax.Array) -> None:
        keys = jax.random.split(key, 4)
        self.encoder = MLP(features, hidden, "tanh", key=keys[0])
        self.to_code = Linear(hidden[-1] if hidden else features, code_size, keys[1], 1.0)
        self.decoder = MLP(code_size, hidden[::-1], "tanh", key=keys[2])
        self.to_row = Linear(hidden[0] if hidden else code_size, features, keys[3], 1.0)

    def encode(self, row: jax.Array) -> jax.Array:
        return self.to_code(self.encoder(row))

    def decode(self, code: jax.Array) -> jax.Array:
        return self.to_row(self.decoder(code))


class CodeState(NamedTuple):
    """An autoencoder with the units of its rows and codes."""

    network: Autoencoder
    optimizer: Any
    row_mean: jax.Array  # [D]
    row_scale: jax.Array
    code_mean: jax.Array  # [K]
    code_scale: jax.Array
    loss: jax.Array  # float32 []: mean squared error in units of the deviation of each number, when it learned last


def begin(features: int, code_size: int, hidden: tuple[int, ...], learning_rate: Any, key: jax.Array) -> CodeState:
    """An autoencoder that has learned nothing yet."""
    network = Autoencoder(features, code_size, hidden, key)
    rows, codes = (jnp.zeros(features), jnp.ones(features)), (jnp.zeros(code_size), jnp.ones(code_size))
    return CodeState(network, _optimizer(learning_rate).init(network), *rows, *codes, jnp.zeros(()))


def codes(state: CodeState, rows: jax.Array) -> jax.Array:
    """The codes of rows `[N, D]`, in units in which those that it learned from have deviation 1, float32 [N, K]."""
    return (_raw_codes(state, rows) - state.code_mean[None]) / state.code_scale[None]


def learned(
    state: CodeState,
    rows: jax.Array,
    mask: jax.Array,
    num_steps: jax.Array,
    batch_size: int,
    learning_rate: Any,
    key: jax.Array,
) -> CodeState:
    """The autoencoder after `num_steps` (int32 [], may be 0) steps of Adam on samples of rows `[N, D]` where `mask`."""
    mean, scale = _units(rows, mask)
    state = state._replace(row_mean=mean, row_scale=scale, optimizer=_optimizer(learning_rate).init(state.network))
    normal = (rows - mean[None]) / scale[None]
    weights = mask / jnp.maximum(jnp.sum(mask), 1)

    def loss(network: Autoencoder, batch: jax.Array) -> jax.Array:
        return jnp.mean((jax.vmap(lambda row: network.decode(network.encode(row)))(batch) - batch) ** 2)

    def step(index: jax.Array, loop: tuple[Any, Any, jax.Array]) -> tuple[Any, Any, jax.Array]:
        network, optimizer, _ = loop
        picked = jax.random.choice(jax.random.fold_in(key, index), rows.shape[0], (batch_size,), p=weights)
        value, gradient = jax.value_and_grad(loss)(network, normal[picked])
        return *apply_gradients(_optimizer(learning_rate), optimizer, network, gradient), value

    # A loop and not a scan, so that no step is taken in an update without learning, also with several members.
    network, optimizer, value = jax.lax.fori_loop(0, num_steps, step, (state.network, state.optimizer, state.loss))
    state = state._replace(network=network, optimizer=optimizer, loss=value)
    code_mean, code_scale = _units(_raw_codes(state, rows), mask)
    return state._replace(code_mean=code_mean, code_scale=code_scale)


def _raw_codes(state: CodeState, rows: jax.Array) -> jax.Array:
    return jax.vmap(state.network.encode)((rows - state.row_mean[None]) / state.row_scale[None])


def _units(rows: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and deviation of each number over rows `[N, D]` where `mask`."""
    number = jnp.maximum(jnp.sum(mask), 1)
    mean = jnp.sum(rows, axis=0, where=mask[:, None]) / number
    variance = jnp.sum((rows - mean[None]) ** 2, axis=0, where=mask[:, None]) / number
    return mean, jnp.maximum(jnp.sqrt(variance), LEAST_SCALE)


def _optimizer(learning_rate: Any) -> Any:
    return adam(learning_rate, 1e-8, 1.0)
