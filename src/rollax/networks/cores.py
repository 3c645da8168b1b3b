"""Recurrent cores: GRU, LSTM, minGRU, a gated transformer, and stacks of them, behind one protocol."""

import math
from collections.abc import Callable
from typing import Any, Literal, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax import tree
from rollax.errors import UsageError, divisors_near
from rollax.networks.layers import linear
from rollax.networks.transformer import GatedTransformer

LONGEST_MEMORY = 32  # steps: the largest time constant of a unit at initialization


class Core(Protocol):
    """A recurrent layer: `(carry, [n]) -> (carry, [m])`, and the same over sequences `[L, B, n]` with resets `[L, B]`.

    Where `reset`, the carry before that step is the initial one.
    """

    def initial_carry(self) -> Any: ...
    def __call__(self, carry: Any, x: jax.Array) -> tuple[Any, jax.Array]: ...
    def unroll(self, carry: Any, x: jax.Array, reset: jax.Array) -> tuple[Any, jax.Array]: ...


class Memoryless(eqx.Module):
    """No memory: the carry is `()`."""

    def initial_carry(self) -> tuple[()]:
        return ()

    def __call__(self, carry: tuple[()], x: jax.Array) -> tuple[tuple[()], jax.Array]:
        return (), x

    def unroll(self, carry: tuple[()], x: jax.Array, reset: jax.Array) -> tuple[tuple[()], jax.Array]:
        return (), x


class GRU(eqx.Module):
    """Gated recurrent unit (Cho et al. 2014, arXiv:1406.1078), `h' = n + z (h - n)`, whose update gate z keeps the old value.

    Initialization: recurrent weights orthogonal gate by gate, input weights Glorot normal, biases 0 but that of the update
    gate. With a bias of b that gate keeps sigmoid(b), so it is b = log u, u ~ U(1, LONGEST_MEMORY - 1): time constants of 2 to
    `LONGEST_MEMORY` steps (chrono initialization, Tallec and Ollivier 2018, arXiv:1804.11188, eq. 16). With 0 every unit would
    lose half of its value at each step.
    """

    cell: eqx.nn.GRUCell

    def __init__(self, inputs: int, size: int, *, key: jax.Array) -> None:
        cell_key, weight_key, bias_key = jax.random.split(key, 3)
        cell = _orthogonal_cell(eqx.nn.GRUCell(inputs, size, key=cell_key), weight_key)
        # equinox orders the gates reset, update, new value.
        bias = jnp.zeros(3 * size).at[size : 2 * size].set(_chrono(bias_key, size))
        self.cell = eqx.tree_at(lambda m: (m.bias, m.bias_n), cell, (bias, jnp.zeros(size)))

    def initial_carry(self) -> jax.Array:
        return jnp.zeros(self.cell.hidden_size)

    def __call__(self, carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._advance(carry, self._project(x))

    def unroll(self, carry: jax.Array, x: jax.Array, reset: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _scan(self._advance, self.initial_carry(), carry, tree.over_steps(self._project)(x), reset)

    def _project(self, x: jax.Array) -> jax.Array:
        """The input's part of the gates, which does not depend on the step before."""
        return self.cell.weight_ih @ x + _bias(self.cell)

    def _advance(self, carry: jax.Array, projected: jax.Array) -> tuple[jax.Array, jax.Array]:
        """As `eqx.nn.GRUCell`, whose biases are one for all gates and one more for the new value."""
        reset_in, update_in, new_in = jnp.split(projected, 3)
        reset_hidden, update_hidden, new_hidden = jnp.split(self.cell.weight_hh @ carry, 3)
        forget = jax.nn.sigmoid(reset_in + reset_hidden)
        update = jax.nn.sigmoid(update_in + update_hidden)
        new = jnp.tanh(new_in + forget * (new_hidden + _bias(self.cell, "bias_n")))
        carry = new + update * (carry - new)
        return carry, carry


class LSTM(eqx.Module):
    """Long short-term memory (Hochreiter and Schmidhuber 1997), with a forget gate (Gers et al. 2000).

    Initialization: as `GRU`, with chrono biases b of the forget gate and -b of the input gate (the source's eq. 16).
    """

    cell: eqx.nn.LSTMCell

    def __init__(self, inputs: int, size: int, *, key: jax.Array) -> None:
        cell_key, weight_key, bias_key = jax.random.split(key, 3)
        cell = _orthogonal_cell(eqx.nn.LSTMCell(inputs, size, key=cell_key), weight_key)
        # equinox orders the gates input, forget, cell, output.
        chrono = _chrono(bias_key, size)
        bias = jnp.zeros(4 * size).at[: 2 * size].set(jnp.concatenate([-chrono, chrono]))
        self.cell = eqx.tree_at(lambda m: m.bias, cell, bias)

    def initial_carry(self) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros(self.cell.hidden_size), jnp.zeros(self.cell.hidden_size)

    def __call__(self, carry: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        return self._advance(carry, self._project(x))

    def unroll(self, carry: Any, x: jax.Array, reset: jax.Array) -> tuple[Any, jax.Array]:
        return _scan(self._advance, self.initial_carry(), carry, tree.over_steps(self._project)(x), reset)

    def _project(self, x: jax.Array) -> jax.Array:
        return self.cell.weight_ih @ x + _bias(self.cell)

    def _advance(self, carry: Any, projected: jax.Array) -> tuple[Any, jax.Array]:
        """As `eqx.nn.LSTMCell`."""
        hidden, memory = carry
        enter, forget, new, show = jnp.split(projected + self.cell.weight_hh @ hidden, 4)
        memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(enter) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(show) * jnp.tanh(memory)
        return (hidden, memory), hidden


class MinGRU(eqx.Module):
    """Minimal gated recurrent unit (Feng et al. 2024, arXiv:2410.01201, section 3.1): `h' = (1 - z) h + z n`.

    Gate z and new value n depend on the input alone, so a sequence is a linear recurrence and is solved by a parallel scan:
    its depth grows with the logarithm of the length. Deviations: no log-space form, which single precision does not need for
    gates between 0 and 1; orthogonal weights; and chrono biases -b of the gate (see `GRU`).
    """

    gate: eqx.nn.Linear
    new: eqx.nn.Linear

    def __init__(self, inputs: int, size: int, *, key: jax.Array) -> None:
        gate_key, new_key, bias_key = jax.random.split(key, 3)
        gate = linear(inputs, size, gate_key, 1.0)
        self.gate = eqx.tree_at(lambda m: m.bias, gate, -_chrono(bias_key, size))  # 1 - z keeps
        self.new = linear(inputs, size, new_key, 1.0)

    def initial_carry(self) -> jax.Array:
        return jnp.zeros(self.new.out_features)

    def __call__(self, carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        keep, add = self._project(x)
        carry = keep * carry + add
        return carry, carry

    def unroll(self, carry: jax.Array, x: jax.Array, reset: jax.Array) -> tuple[jax.Array, jax.Array]:
        keep, add = tree.over_steps(self._project)(x)
        keep = jnp.where(reset[..., None], 0.0, keep)  # a reset forgets everything before it
        add = add.at[0].add(keep[0] * carry)

        def combine(first: Any, second: Any) -> Any:
            return first[0] * second[0], second[0] * first[1] + second[1]

        _, hidden = jax.lax.associative_scan(combine, (keep, add))
        return hidden[-1], hidden

    def _project(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        gate = jax.nn.sigmoid(self.gate(x))
        return 1 - gate, gate * self.new(x)


class Stack(eqx.Module):
    """Recurrent layers in sequence, each on the output of the one before: the last one's output, or the sum of all."""

    cores: tuple[Any, ...]
    is_sum: bool = eqx.field(static=True)

    def initial_carry(self) -> tuple[Any, ...]:
        return tuple(core.initial_carry() for core in self.cores)

    def __call__(self, carry: tuple[Any, ...], x: jax.Array) -> tuple[Any, jax.Array]:
        return self._through(carry, x, lambda core, c, x: core(c, x))

    def unroll(self, carry: tuple[Any, ...], x: jax.Array, reset: jax.Array) -> tuple[Any, jax.Array]:
        return self._through(carry, x, lambda core, c, x: core.unroll(c, x, reset))

    def _through(self, carry: tuple[Any, ...], x: jax.Array, apply: Callable[..., Any]) -> tuple[Any, jax.Array]:
        carries, outputs = [], []
        for core, before in zip(self.cores, carry, strict=True):
            after, x = apply(core, before, x)
            carries.append(after)
            outputs.append(x)
        return tuple(carries), sum(outputs[1:], outputs[0]) if self.is_sum else x


class Block(eqx.Module):
    """A residual block, as of a transformer with a recurrent core for attention: y = x + core(norm(x)), y + dense(norm(y)).

    For cores such as `MinGRU`, whose gates depend on the input alone: the dense layers combine it with the carry.
    """

    core: Any
    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, core: Any, size: int, *, key: jax.Array) -> None:
        up_key, down_key = jax.random.split(key)
        self.core = core
        self.norms = eqx.nn.LayerNorm(size), eqx.nn.LayerNorm(size)
        self.up, self.down = linear(size, 2 * size, up_key, math.sqrt(2)), linear(2 * size, size, down_key, 0.1)

    def initial_carry(self) -> Any:
        return self.core.initial_carry()

    def __call__(self, carry: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        carry, remembered = self.core(carry, self.norms[0](x))
        return carry, self._dense(x + remembered)

    def unroll(self, carry: Any, x: jax.Array, reset: jax.Array) -> tuple[Any, jax.Array]:
        carry, remembered = self.core.unroll(carry, tree.over_steps(self.norms[0])(x), reset)
        return carry, tree.over_steps(self._dense)(x + remembered)

    def _dense(self, x: jax.Array) -> jax.Array:
        return x + self.down(jax.nn.gelu(self.up(self.norms[1](x))))


class Projected(eqx.Module):
    """A core behind a dense layer without activation, from the input's size to its own."""

    layer: eqx.nn.Linear
    core: Any

    def initial_carry(self) -> Any:
        return self.core.initial_carry()

    def __call__(self, carry: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        return self.core(carry, self.layer(x))

    def unroll(self, carry: Any, x: jax.Array, reset: jax.Array) -> tuple[Any, jax.Array]:
        return self.core.unroll(carry, tree.over_steps(self.layer)(x), reset)


def _scan(
    advance: Callable[[Any, Any], tuple[Any, jax.Array]], initial: Any, carry: Any, x: Any, reset: jax.Array
) -> tuple[Any, jax.Array]:
    """`advance(carry, x)` of one stream over `[L, B]` steps, from `initial` where `reset`."""

    def step(carry: Any, now: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        x, reset = now
        start = jax.tree.map(lambda i, c: jnp.broadcast_to(i.astype(c.dtype), c.shape), initial, carry)
        return jax.vmap(advance)(tree.where(reset, start, carry), x)

    return jax.lax.scan(step, carry, (x, reset))


def _bias(cell: Any, name: str = "bias") -> jax.Array:
    """A bias of equinox's cell, which is typed as optional."""
    return getattr(cell, name)


def _chrono(key: jax.Array, size: int) -> jax.Array:
    """Biases `[size]` log(t - 1) of a gate that keeps sigmoid(log(t - 1)) = 1 - 1 / t, t ~ U(2, LONGEST_MEMORY) steps."""
    return jnp.log(jax.random.uniform(key, (size,), minval=1.0, maxval=LONGEST_MEMORY - 1))


def _orthogonal_cell(cell: Any, key: jax.Array) -> Any:
    """Orthogonal recurrent weights, gate by gate, and Glorot inputs."""
    key_in, key_recurrent = jax.random.split(key)
    gates = cell.weight_hh.shape[0] // cell.hidden_size
    blocks = [jax.nn.initializers.orthogonal()(k, (cell.hidden_size,) * 2) for k in jax.random.split(key_recurrent, gates)]
    weight_in = jax.nn.initializers.glorot_normal(1, 0)(key_in, cell.weight_ih.shape)
    return eqx.tree_at(lambda m: (m.weight_ih, m.weight_hh), cell, (weight_in, jnp.concatenate(blocks)))


CORES: dict[str, Callable[..., Any]] = {"gru": GRU, "lstm": LSTM, "mingru": MinGRU}
Kind = Literal["none", "gru", "lstm", "mingru", "gtrxl"]
Output = Literal["last", "sum", "residual"]


def memory(kind: str, inputs: int, size: int, num_layers: int, output: Output, key: jax.Array) -> Any:
    """A core of that kind, of one or several layers."""
    if output == "residual":
        layer_key, *keys = jax.random.split(key, 1 + 2 * num_layers)
        pairs = zip(keys[::2], keys[1::2], strict=True)
        blocks = tuple(Block(CORES[kind](size, size, key=k), size, key=dense_key) for k, dense_key in pairs)
        return Projected(linear(inputs, size, layer_key, 1.0), Stack(blocks, False))
    if num_layers == 1:
        return CORES[kind](inputs, size, key=key)
    keys = jax.random.split(key, num_layers)
    return Stack(tuple(CORES[kind](inputs if i == 0 else size, size, key=k) for i, k in enumerate(keys)), output == "sum")


def transformer(inputs: int, size: int, num_layers: int, heads: int, memory: int, key: jax.Array) -> Projected:
    """A core of gated transformer layers, each of which remembers its last `memory` inputs."""
    layer_key, *keys = jax.random.split(key, 1 + num_layers)
    layers = tuple(GatedTransformer(size, heads, memory, key=k) for k in keys)
    return Projected(linear(inputs, size, layer_key, 1.0), Stack(layers, False))


def of_config(config: Any, inputs: int, key: jax.Array) -> tuple[Any, int]:
    """The core by a network's settings whose names begin with `core`, and the size of its output.

    Raises: UsageError for sizes and numbers below 1, and for a gtrxl whose heads do not divide its size or with another output.
    """
    for name in ("core_size", "core_layers", "core_heads", "core_memory"):
        if getattr(config, name) < 1:
            raise UsageError(f"network.{name} ({getattr(config, name)}) must be at least 1")
    if config.core == "none":
        return Memoryless(), inputs
    if config.core == "gtrxl":
        size, heads = config.core_size, config.core_heads
        if size % heads:
            near = divisors_near(size, heads)
            raise UsageError(f"network.core_heads ({heads}) must divide network.core_size ({size}): try core_heads {near}")
        if config.core_output != "last":
            raise UsageError(f"network.core_output ({config.core_output}) is not for a gtrxl, which has gates: leave it out")
        return transformer(inputs, size, config.core_layers, heads, config.core_memory, key), size
    return memory(config.core, inputs, config.core_size, config.core_layers, config.core_output, key), config.core_size
