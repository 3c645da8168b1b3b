"""Recurrent cores: GRU, LSTM, minGRU, gated transformer, and stacks of such layers."""

import math
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax import tree
from rollax.errors import UsageError, suggest_divisors
from rollax.networks.layers import make_orthogonal_linear
from rollax.networks.transformer import GatedTransformer
from rollax.types import Carry, PyTree

MAX_TIME_CONSTANT = 32  # Largest time constant of a unit at initialization, in steps.


CellT = TypeVar("CellT", eqx.nn.GRUCell, eqx.nn.LSTMCell)


@runtime_checkable
class Core(Protocol):
    """Recurrent layers for one step, `(carry, [n]) -> (carry, [m])`.

    `unroll` processes sequences `[L, B, n]` with a mask `reset` `[L, B]`. The initial carry
    replaces the carry before steps where `reset` is true.
    """

    def initial_carry(self) -> Any: ...
    def __call__(self, carry: Carry, x: jax.Array) -> tuple[Any, jax.Array]: ...
    def unroll(self, carry: Carry, x: jax.Array, reset: jax.Array) -> tuple[Any, jax.Array]: ...


class MemorylessCore(eqx.Module):
    """Core without memory. The carry is `()`."""

    def initial_carry(self) -> tuple[()]:
        return ()

    def __call__(self, carry: tuple[()], x: jax.Array) -> tuple[tuple[()], jax.Array]:
        return (), x

    def unroll(
        self, carry: tuple[()], x: jax.Array, reset: jax.Array
    ) -> tuple[tuple[()], jax.Array]:
        return (), x


class GRU(eqx.Module):
    """Gated recurrent unit (Cho et al. 2014, arXiv:1406.1078), `h' = n + z (h - n)`.

    Recurrent weights are orthogonal per gate, and input weights are Glorot normal. Biases are 0,
    except for the bias b of the update gate z. A unit with bias b keeps the fraction sigmoid(b) of
    its value in each step. Initially, b = log u with u ~ U(1, MAX_TIME_CONSTANT - 1). Units
    therefore have time constants of 2 to `MAX_TIME_CONSTANT` steps (chrono initialization, Tallec
    and Ollivier 2018, arXiv:1804.11188, eq. 16). With b = 0, every unit would lose half of its
    value in each step.
    """

    cell: eqx.nn.GRUCell

    def __init__(self, inputs: int, size: int, *, key: jax.Array) -> None:
        cell_key, weight_key, bias_key = jax.random.split(key, 3)
        cell = _init_cell_weights(eqx.nn.GRUCell(inputs, size, key=cell_key), weight_key)
        # equinox orders the gates: reset, update, new value.
        bias = jnp.zeros(3 * size).at[size : 2 * size].set(_chrono_biases(bias_key, size))
        self.cell = eqx.tree_at(lambda m: (m.bias, m.bias_n), cell, (bias, jnp.zeros(size)))

    def initial_carry(self) -> jax.Array:
        return jnp.zeros(self.cell.hidden_size)

    def __call__(self, carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._advance(carry, self._project(x))

    def unroll(
        self, carry: jax.Array, x: jax.Array, reset: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return _scan_core(
            self._advance,
            self.initial_carry(),
            carry,
            tree.vmap_over_steps(self._project)(x),
            reset,
        )

    def _project(self, x: jax.Array) -> jax.Array:
        """Return the contribution of the input to the gates, which does not depend on the carry."""
        return self.cell.weight_ih @ x + _get_bias(self.cell)

    def _advance(self, carry: jax.Array, gate_inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compute one step of `eqx.nn.GRUCell` from the result of `_project`."""
        reset_in, update_in, candidate_in = jnp.split(gate_inputs, 3)
        reset_hidden, update_hidden, candidate_hidden = jnp.split(self.cell.weight_hh @ carry, 3)
        reset_gate = jax.nn.sigmoid(reset_in + reset_hidden)
        update_gate = jax.nn.sigmoid(update_in + update_hidden)
        candidate = jnp.tanh(
            candidate_in + reset_gate * (candidate_hidden + _get_bias(self.cell, "bias_n"))
        )
        carry = candidate + update_gate * (carry - candidate)
        return carry, carry


class LSTM(eqx.Module):
    """Long short-term memory (LSTM) with a forget gate.

    The LSTM is from Hochreiter and Schmidhuber 1997, and the forget gate from Gers et al. 2000.
    Weights are initialized as in `GRU`. The biases are chrono biases b for the forget gate, -b for
    the input gate (eq. 16 of Tallec and Ollivier 2018) and 0 for all other gates.
    """

    cell: eqx.nn.LSTMCell

    def __init__(self, inputs: int, size: int, *, key: jax.Array) -> None:
        cell_key, weight_key, bias_key = jax.random.split(key, 3)
        cell = _init_cell_weights(eqx.nn.LSTMCell(inputs, size, key=cell_key), weight_key)
        # equinox orders the gates: input, forget, cell, output.
        chrono = _chrono_biases(bias_key, size)
        bias = jnp.zeros(4 * size).at[: 2 * size].set(jnp.concatenate([-chrono, chrono]))
        self.cell = eqx.tree_at(lambda m: m.bias, cell, bias)

    def initial_carry(self) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros(self.cell.hidden_size), jnp.zeros(self.cell.hidden_size)

    def __call__(self, carry: Carry, x: jax.Array) -> tuple[Any, jax.Array]:
        return self._advance(carry, self._project(x))

    def unroll(self, carry: Carry, x: jax.Array, reset: jax.Array) -> tuple[Any, jax.Array]:
        return _scan_core(
            self._advance,
            self.initial_carry(),
            carry,
            tree.vmap_over_steps(self._project)(x),
            reset,
        )

    def _project(self, x: jax.Array) -> jax.Array:
        return self.cell.weight_ih @ x + _get_bias(self.cell)

    def _advance(self, carry: Carry, gate_inputs: jax.Array) -> tuple[Any, jax.Array]:
        """Compute one step of `eqx.nn.LSTMCell` from the result of `_project`."""
        hidden, memory = carry
        enter, forget, new, show = jnp.split(gate_inputs + self.cell.weight_hh @ hidden, 4)
        memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(enter) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(show) * jnp.tanh(memory)
        return (hidden, memory), hidden


class MinGRU(eqx.Module):
    """Minimal gated recurrent unit (Feng et al. 2024, arXiv:2410.01201, section 3.1).

    The update is `h' = (1 - z) h + z n`. Gate z and new value n depend only on the input, so `h` is
    a linear recurrence, which a parallel scan of logarithmic depth solves. Deviations from the
    paper: The scan is not in log space, which single precision does not need for gates in [0, 1].
    Weights are orthogonal. The gate has chrono biases -b (see `GRU`).
    """

    gate: eqx.nn.Linear
    new: eqx.nn.Linear

    def __init__(self, inputs: int, size: int, *, key: jax.Array) -> None:
        gate_key, new_key, bias_key = jax.random.split(key, 3)
        gate = make_orthogonal_linear(inputs, size, gate_key, 1.0)
        self.gate = eqx.tree_at(
            lambda m: m.bias, gate, -_chrono_biases(bias_key, size)
        )  # 1 - z is the fraction that is kept
        self.new = make_orthogonal_linear(inputs, size, new_key, 1.0)

    def initial_carry(self) -> jax.Array:
        return jnp.zeros(self.new.out_features)

    def __call__(self, carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        keep, update = self._project(x)
        carry = keep * carry + update
        return carry, carry

    def unroll(
        self, carry: jax.Array, x: jax.Array, reset: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        keep, update = tree.vmap_over_steps(self._project)(x)
        keep = jnp.where(reset[..., None], 0.0, keep)  # A reset discards the previous memory.
        update = update.at[0].add(keep[0] * carry)

        def combine(first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]) -> Any:
            return first[0] * second[0], second[0] * first[1] + second[1]

        _, hidden = jax.lax.associative_scan(combine, (keep, update))
        return hidden[-1], hidden

    def _project(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        gate = jax.nn.sigmoid(self.gate(x))
        return 1 - gate, gate * self.new(x)


class StackedCore(eqx.Module):
    """Sequence of recurrent layers that returns the output of the last layer or the sum of all.

    Attributes:
        cores: The layers. The carry is a tuple with one carry per layer.
        is_sum: Whether to return the sum of the outputs of all layers.
    """

    cores: tuple[Any, ...]
    is_sum: bool = eqx.field(static=True)

    def initial_carry(self) -> tuple[Any, ...]:
        return tuple(core.initial_carry() for core in self.cores)

    def __call__(self, carry: tuple[Carry, ...], x: jax.Array) -> tuple[Any, jax.Array]:
        return self._forward(carry, x, lambda core, c, x: core(c, x))

    def unroll(
        self, carry: tuple[Carry, ...], x: jax.Array, reset: jax.Array
    ) -> tuple[Any, jax.Array]:
        return self._forward(carry, x, lambda core, c, x: core.unroll(c, x, reset))

    def _forward(
        self, carry: tuple[Carry, ...], x: jax.Array, apply: Callable[..., tuple[Carry, jax.Array]]
    ) -> tuple[Any, jax.Array]:
        carries, outputs = [], []
        for core, before in zip(self.cores, carry, strict=True):
            after, x = apply(core, before, x)
            carries.append(after)
            outputs.append(x)
        return tuple(carries), sum(outputs[1:], outputs[0]) if self.is_sum else x


class ResidualBlock(eqx.Module):
    """Residual block with a recurrent core: y = x + core(norm(x)), out = y + dense(norm(y)).

    The block is a transformer layer with a recurrent core instead of attention. It is useful for
    `MinGRU`, because the gates of a `MinGRU` depend only on the input. The dense layers of the
    block combine input and memory.
    """

    core: Core
    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, core: Core, size: int, *, key: jax.Array) -> None:
        up_key, down_key = jax.random.split(key)
        self.core = core
        self.norms = eqx.nn.LayerNorm(size), eqx.nn.LayerNorm(size)
        self.up, self.down = (
            make_orthogonal_linear(size, 2 * size, up_key, math.sqrt(2)),
            make_orthogonal_linear(2 * size, size, down_key, 0.1),
        )

    def initial_carry(self) -> Any:
        return self.core.initial_carry()

    def __call__(self, carry: Carry, x: jax.Array) -> tuple[Any, jax.Array]:
        carry, core_output = self.core(carry, self.norms[0](x))
        return carry, self._feed_forward(x + core_output)

    def unroll(self, carry: Carry, x: jax.Array, reset: jax.Array) -> tuple[Any, jax.Array]:
        carry, core_output = self.core.unroll(carry, tree.vmap_over_steps(self.norms[0])(x), reset)
        return carry, tree.vmap_over_steps(self._feed_forward)(x + core_output)

    def _feed_forward(self, x: jax.Array) -> jax.Array:
        return x + self.down(jax.nn.gelu(self.up(self.norms[1](x))))


class ProjectedCore(eqx.Module):
    """Core with a linear layer in front, from the input features to the units of the core."""

    layer: eqx.nn.Linear
    core: Core

    def initial_carry(self) -> Any:
        return self.core.initial_carry()

    def __call__(self, carry: Carry, x: jax.Array) -> tuple[Any, jax.Array]:
        return self.core(carry, self.layer(x))

    def unroll(self, carry: Carry, x: jax.Array, reset: jax.Array) -> tuple[Any, jax.Array]:
        return self.core.unroll(carry, tree.vmap_over_steps(self.layer)(x), reset)


def _scan_core(
    advance: Callable[[Carry, PyTree], tuple[Carry, jax.Array]],
    initial: Carry,
    carry: Carry,
    x: PyTree,
    reset: jax.Array,
) -> tuple[Any, jax.Array]:
    """Scan `advance(carry, x)` over the L steps of B sequences.

    The carry `initial` replaces the carry before steps where `reset` `[L, B]` is true.

    Returns:
        The last carry `[B, ...]` and the outputs `[L, B, ...]`.
    """

    def step(carry: Carry, inputs: tuple[PyTree, jax.Array]) -> tuple[Any, jax.Array]:
        x, reset = inputs
        start = jax.tree.map(
            lambda i, c: jnp.broadcast_to(i.astype(c.dtype), c.shape), initial, carry
        )
        return jax.vmap(advance)(tree.where(reset, start, carry), x)

    return jax.lax.scan(step, carry, (x, reset))


def _get_bias(cell: eqx.nn.GRUCell | eqx.nn.LSTMCell, name: str = "bias") -> jax.Array:
    """Return a bias of an equinox cell, which is never None, although its type allows None."""
    return getattr(cell, name)


def _chrono_biases(key: jax.Array, size: int) -> jax.Array:
    """Return gate biases log(t - 1) `[size]` with t ~ U(2, MAX_TIME_CONSTANT) steps.

    A gate with this bias keeps the fraction sigmoid(log(t - 1)) = 1 - 1 / t of its value.
    """
    return jnp.log(jax.random.uniform(key, (size,), minval=1.0, maxval=MAX_TIME_CONSTANT - 1))


def _init_cell_weights(cell: CellT, key: jax.Array) -> CellT:
    """Initialize recurrent weights orthogonally per gate and input weights as Glorot normal."""
    key_in, key_recurrent = jax.random.split(key)
    gates = cell.weight_hh.shape[0] // cell.hidden_size
    blocks = [
        jax.nn.initializers.orthogonal()(k, (cell.hidden_size,) * 2)
        for k in jax.random.split(key_recurrent, gates)
    ]
    weight_in = jax.nn.initializers.glorot_normal(1, 0)(key_in, cell.weight_ih.shape)
    return eqx.tree_at(
        lambda m: (m.weight_ih, m.weight_hh), cell, (weight_in, jnp.concatenate(blocks))
    )


CORE_CLASSES: dict[str, Callable[..., Any]] = {"gru": GRU, "lstm": LSTM, "mingru": MinGRU}
CoreKind = Literal["none", "gru", "lstm", "mingru", "gtrxl"]
CoreOutput = Literal["last", "sum", "residual"]


def make_recurrent_core(
    kind: str, inputs: int, num_units: int, num_layers: int, output: CoreOutput, key: jax.Array
) -> Any:
    """Return a core with one or several GRU, LSTM or minGRU layers.

    Args:
        kind: Kind of the layers, a key of `CORE_CLASSES`.
        inputs: Number of input features.
        num_units: Number of units per layer.
        num_layers: Number of layers.
        output: Combination of the layers: "last", "sum" or "residual" (see `ResidualBlock`).
        key: Random key of the weights.

    Returns:
        The core.
    """
    if output == "residual":
        layer_key, *keys = jax.random.split(key, 1 + 2 * num_layers)
        pairs = zip(keys[::2], keys[1::2], strict=True)
        blocks = tuple(
            ResidualBlock(CORE_CLASSES[kind](num_units, num_units, key=k), num_units, key=dense_key)
            for k, dense_key in pairs
        )
        return ProjectedCore(
            make_orthogonal_linear(inputs, num_units, layer_key, 1.0), StackedCore(blocks, False)
        )
    if num_layers == 1:
        return CORE_CLASSES[kind](inputs, num_units, key=key)
    keys = jax.random.split(key, num_layers)
    return StackedCore(
        tuple(
            CORE_CLASSES[kind](inputs if i == 0 else num_units, num_units, key=k)
            for i, k in enumerate(keys)
        ),
        output == "sum",
    )


def make_transformer_core(
    inputs: int, num_units: int, num_layers: int, heads: int, memory: int, key: jax.Array
) -> ProjectedCore:
    """Return a core of gated transformer layers.

    Args:
        inputs: Number of input features.
        num_units: Number of units per layer.
        num_layers: Number of layers.
        heads: Number of attention heads per layer.
        memory: Number of previous steps that each layer attends to.
        key: Random key of the weights.

    Returns:
        The core.
    """
    layer_key, *keys = jax.random.split(key, 1 + num_layers)
    layers = tuple(GatedTransformer(num_units, heads, memory, key=k) for k in keys)
    return ProjectedCore(
        make_orthogonal_linear(inputs, num_units, layer_key, 1.0), StackedCore(layers, False)
    )


@runtime_checkable
class CoreConfig(Protocol):
    """Settings of the core of a recurrent network."""

    @property
    def core(self) -> CoreKind: ...
    @property
    def core_size(self) -> int: ...
    @property
    def core_layers(self) -> int: ...
    @property
    def core_heads(self) -> int: ...
    @property
    def core_memory(self) -> int: ...
    @property
    def core_output(self) -> CoreOutput: ...


def make_core(config: CoreConfig, inputs: int, key: jax.Array) -> tuple[Any, int]:
    """Return the recurrent core for the settings `core` and `core_*` of a network.

    Args:
        config: Settings of the network.
        inputs: Number of input features.
        key: Random key of the weights.

    Returns:
        The core and the number of its output features.

    Raises:
        UsageError: If `core_size`, `core_layers`, `core_heads` or `core_memory` is below 1. For
            "gtrxl", also if `core_heads` does not divide `core_size`, or if `core_output` is not
            "last".
    """
    for name in ("core_size", "core_layers", "core_heads", "core_memory"):
        if getattr(config, name) < 1:
            raise UsageError(f"network.{name} must be at least 1, got {getattr(config, name)}.")
    if config.core == "none":
        return MemorylessCore(), inputs
    if config.core == "gtrxl":
        size, heads = config.core_size, config.core_heads
        if size % heads:
            near = suggest_divisors(size, heads)
            raise UsageError(
                f"network.core_heads must divide network.core_size ({size}), got {heads}. "
                f"Set core_heads to {near}."
            )
        if config.core_output != "last":
            raise UsageError(
                'network.core_output must be "last" for a gtrxl, which has gates, got '
                f"{config.core_output!r}. Remove it."
            )
        return make_transformer_core(
            inputs, size, config.core_layers, heads, config.core_memory, key
        ), size
    return make_recurrent_core(
        config.core, inputs, config.core_size, config.core_layers, config.core_output, key
    ), config.core_size
