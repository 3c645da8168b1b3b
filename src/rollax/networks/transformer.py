"""Gated transformer (GTrXL) as a recurrent core: attention over previous steps, with gates.

The core follows Parisotto et al. 2020, "Stabilizing transformers for reinforcement learning"
(arXiv:1910.06764), with the relative positions and the cached memory of Dai et al. 2019,
"Transformer-XL" (arXiv:1901.02860). Gates replace the residual sums of a transformer.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.networks import memory_windows
from rollax.networks.layers import make_orthogonal_linear
from rollax.networks.memory_windows import MemoryWindow

GATE_BIAS = 2.0  # As in section 3.2 of the GTrXL paper. Layers initially change inputs little.
MAX_PERIOD = 10_000.0  # Maximum period of position codes (Vaswani et al. 2017, section 3.5).
MASKED_SCORE = -1e9


class Attention(eqx.Module):
    """Multi-head attention by content and relative position (Dai et al. 2019, section 3.3).

        score(i, j) = ((W_q x_i + u) . W_k x_j + (W_q x_i + v) . W_r R_(i - j)) / sqrt(d)
        y_i = W_o [softmax_j(score) W_v x_j]

    x are the memory entries and inputs `[n]`. R_(i - j) are sines and cosines of the distance i - j
    in steps, and d = n / heads. A step has one query and many entries, so keys and values are not
    computed explicitly. Instead, W_k^T (W_q x_i + u) is multiplied with the entries, and W_v with
    the weighted sum of the entries.
    """

    query: jax.Array  # W_q, [heads, d, n]
    key: jax.Array  # W_k, [heads, d, n]
    value: jax.Array  # W_v, [heads, d, n]
    place: jax.Array  # W_r, [heads, d, n]
    content_bias: jax.Array  # u, [heads, d]
    place_bias: jax.Array  # v, [heads, d]
    output: eqx.nn.Linear

    def __init__(self, size: int, heads: int, *, key: jax.Array) -> None:
        *keys, output_key = jax.random.split(key, 5)
        layers = [
            make_orthogonal_linear(size, size, k, 1.0).weight.reshape(heads, -1, size) for k in keys
        ]
        self.query, self.key, self.value, self.place = layers
        self.content_bias = self.place_bias = jnp.zeros((heads, size // heads))
        self.output = make_orthogonal_linear(size, size, output_key, 1.0)

    def __call__(self, entries: jax.Array, age: jax.Array) -> jax.Array:
        """Return the outputs `[L, n]` for the last L of the entries `[M + L, n]`.

        Args:
            entries: M memory entries, followed by the inputs of L steps.
            age: Number of previous entries of the same episode at each step, int32 `[L]`. Step i
                attends to its input and to the `age[i]` entries before it, at most M.
        """
        length = len(age)
        distance = np.arange(len(entries) - length, -1, -1)
        query = jnp.einsum("hdn,ln->lhd", self.query, entries[-length:])
        content = jnp.einsum("lhd,hdn->lhn", query + self.content_bias[None], self.key)
        content = jnp.einsum("lhn,kn->hlk", content, entries)
        places = jnp.einsum(
            "hdn,mn->hdm",
            self.place,
            _sinusoidal_codes(distance, self.query.shape[2]).astype(entries.dtype),
        )
        place = jnp.einsum("lhd,hdm->hlm", query + self.place_bias[None], places)
        score = content + _align_relative_scores(
            jnp.where(distance[None, None] <= age[None, :, None], place, MASKED_SCORE)
        )
        weights = jax.nn.softmax(score / math.sqrt(self.query.shape[1]), axis=-1)
        attended = jnp.einsum(
            "lhn,hdn->lhd", jnp.einsum("hlk,kn->lhn", weights, entries), self.value
        )
        return jax.vmap(self.output)(attended.reshape(length, -1))


class Gate(eqx.Module):
    """GRU-type gate (section 3.2 of the GTrXL paper) that replaces the residual sum x + y.

    r = sigmoid(W_r y + U_r x),   z = sigmoid(W_z y + U_z x - b),   h = tanh(W_g y + U_g (r x))
    g(x, y) = (1 - z) x + z h
    """

    input_weight: jax.Array  # W_r, W_z, W_g: [3 n, n]
    state_weight: jax.Array  # U_r, U_z: [2 n, n]
    candidate_weight: jax.Array  # U_g: [n, n]
    bias: jax.Array  # b: [n]

    def __init__(self, size: int, *, key: jax.Array) -> None:
        keys = jax.random.split(key, 6)
        weights = [make_orthogonal_linear(size, size, k, 1.0).weight for k in keys]
        self.input_weight = jnp.concatenate(weights[:3])
        self.state_weight = jnp.concatenate(weights[3:5])
        self.candidate_weight = weights[5]
        self.bias = jnp.full(size, GATE_BIAS, jnp.float32)

    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        reset, update, candidate = jnp.split(self.input_weight @ y, 3)
        reset_kept, update_kept = jnp.split(self.state_weight @ x, 2)
        reset, update = (
            jax.nn.sigmoid(reset + reset_kept),
            jax.nn.sigmoid(update + update_kept - self.bias),
        )
        return (1 - update) * x + update * jnp.tanh(candidate + self.candidate_weight @ (reset * x))


class GatedTransformer(eqx.Module):
    """Layer of GTrXL (sections 3.1 and 3.2) from `[n]` to `[n]`. The carry holds the last M inputs.

        y = g(x, relu(attention(norm([carry, x])))),    out = g'(y, relu(dense(norm'(y))))

    Normalization is applied only to the inputs of attention and dense layers, so an identity path
    through all layers remains. No gradient flows into the memory at the start of a sequence (Dai et
    al. 2019, section 3.2). Unlike in the paper, every step attends to itself and to at most M
    previous inputs, even within a sequence, so `unroll` equals stepwise application.
    """

    attention: Attention
    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    gates: tuple[Gate, Gate]
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    memory: int = eqx.field(static=True)

    def __init__(self, size: int, heads: int, memory: int, *, key: jax.Array) -> None:
        attention_key, first_key, second_key, up_key, down_key = jax.random.split(key, 5)
        self.attention, self.memory = Attention(size, heads, key=attention_key), memory
        self.norms = eqx.nn.LayerNorm(size), eqx.nn.LayerNorm(size)
        self.gates = Gate(size, key=first_key), Gate(size, key=second_key)
        self.up, self.down = (
            make_orthogonal_linear(size, 2 * size, up_key, math.sqrt(2)),
            make_orthogonal_linear(2 * size, size, down_key, 1.0),
        )

    def initial_carry(self) -> MemoryWindow:
        return memory_windows.empty_window(self.memory, self.attention.query.shape[2])

    def __call__(self, carry: MemoryWindow, x: jax.Array) -> tuple[MemoryWindow, jax.Array]:
        carry, outputs = self._forward(carry, x[None], carry.number[None])
        return carry, outputs[0]

    def unroll(
        self, carry: MemoryWindow, x: jax.Array, reset: jax.Array
    ) -> tuple[MemoryWindow, jax.Array]:
        carry = jax.lax.stop_gradient(carry)
        steps = jnp.arange(len(reset), dtype=jnp.int32)[:, None]
        age = steps - jax.lax.cummax(
            jnp.where(reset, steps, -carry.number), axis=0
        )  # number of earlier inputs of the same episode
        return jax.vmap(self._forward, (0, 1, 1), (0, 1))(carry, x, age)

    def _forward(
        self, carry: MemoryWindow, x: jax.Array, age: jax.Array
    ) -> tuple[MemoryWindow, jax.Array]:
        """Process L steps of one sequence.

        Args:
            carry: Last M inputs before the first step.
            x: Inputs `[L, n]`.
            age: Number of previous inputs of the same episode at each step, int32 `[L]`.

        Returns:
            The carry after the last step and the outputs `[L, n]`.
        """
        entries = jnp.concatenate([carry.entries, x])
        attended = self.attention(jax.vmap(self.norms[0])(entries), age)
        y = jax.vmap(self.gates[0])(x, jax.nn.relu(attended))
        outputs = jax.vmap(lambda y: self.gates[1](y, jax.nn.relu(self._feed_forward(y))))(y)
        number = jnp.minimum(age[-1] + 1, self.memory)
        is_kept = np.arange(self.memory, 0, -1) <= number
        return MemoryWindow(
            jnp.where(is_kept[:, None], entries[-self.memory :], 0), number
        ), outputs

    def _feed_forward(self, y: jax.Array) -> jax.Array:
        return self.down(jax.nn.relu(self.up(self.norms[1](y))))


def _sinusoidal_codes(distance: np.ndarray, size: int) -> np.ndarray:
    """Return sine and cosine codes `[m, size]` of distances `[m]` (Vaswani et al. 2017, 3.5)."""
    angle = distance[:, None] / MAX_PERIOD ** (np.arange(0, size, 2) / size)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)[:, :size].astype(np.float32)


def _align_relative_scores(x: jax.Array) -> jax.Array:
    """Convert scores per distance to scores per entry.

    The scores of step i must be shifted right by i. To do so, rows that are one element too long
    are concatenated and reshaped.

    Args:
        x: Scores of each step for the distances M, ..., 1, 0, `[heads, L, M + 1]`.

    Returns:
        Scores of each step for all entries, `[heads, L, M + L]`. Entries that are not within
        distance M before a step have the score `MASKED_SCORE`.
    """
    heads, length, span = x.shape
    masked = jnp.full((heads, length, length), MASKED_SCORE, x.dtype)
    rows = jnp.concatenate([x, masked], axis=2).reshape(heads, -1)
    return rows[:, : length * (span + length - 1)].reshape(heads, length, -1)
