"""A transformer as a recurrent core: GTrXL, attention over the last steps with gates in place of residual sums.

Parisotto et al. 2020, "Stabilizing transformers for reinforcement learning" (arXiv:1910.06764), with the relative positions and
the cached memory of Dai et al. 2019, "Transformer-XL" (arXiv:1901.02860).
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.networks import windows
from rollax.networks.layers import linear
from rollax.networks.windows import Window

GATE_BIAS = 2.0  # of the source, section 3.2: at first a layer changes little of what goes in
LARGEST_PERIOD = 10_000.0  # of the codes of distances (Vaswani et al. 2017, section 3.5)
MASKED = -1e9


class Attention(eqx.Module):
    """Attention of `heads` heads of size d = n / heads over entries, by content and by distance (Dai et al. 2019, section 3.3).

    score(i, j) = ((W_q x_i + u) . W_k x_j + (W_q x_i + v) . W_r R_(i - j)) / sqrt(d),    y_i = W_o [softmax_j(score) W_v x_j]

    R are sines and cosines of the distance. A step has one query and many entries, so keys and values are not made: W_k^T
    (W_q x_i + u) meets the entries as they are, and W_v their weighted sum.
    """

    query: jax.Array  # [heads, d, n], as the next three
    key: jax.Array
    value: jax.Array
    place: jax.Array
    content_bias: jax.Array  # u, [heads, d]
    place_bias: jax.Array  # v, [heads, d]
    output: eqx.nn.Linear

    def __init__(self, size: int, heads: int, *, key: jax.Array) -> None:
        *keys, output_key = jax.random.split(key, 5)
        made = [linear(size, size, k, 1.0).weight.reshape(heads, -1, size) for k in keys]
        self.query, self.key, self.value, self.place = made
        self.content_bias = self.place_bias = jnp.zeros((heads, size // heads))
        self.output = linear(size, size, output_key, 1.0)

    def __call__(self, entries: jax.Array, age: jax.Array) -> jax.Array:
        """`[L, n]` of the last L entries of `[M + L, n]`, each from itself and the `age` `[L]` entries before it, M at most."""
        length = len(age)
        distance = np.arange(len(entries) - length, -1, -1)
        query = jnp.einsum("hdn,ln->lhd", self.query, entries[-length:])
        content = jnp.einsum("lhd,hdn->lhn", query + self.content_bias[None], self.key)
        content = jnp.einsum("lhn,kn->hlk", content, entries)
        places = jnp.einsum("hdn,mn->hdm", self.place, _codes(distance, self.query.shape[2]).astype(entries.dtype))
        place = jnp.einsum("lhd,hdm->hlm", query + self.place_bias[None], places)
        score = content + _from_distances(jnp.where(distance[None, None] <= age[None, :, None], place, MASKED))
        weights = jax.nn.softmax(score / math.sqrt(self.query.shape[1]), axis=-1)
        found = jnp.einsum("lhn,hdn->lhd", jnp.einsum("hlk,kn->lhn", weights, entries), self.value)
        return jax.vmap(self.output)(found.reshape(length, -1))


class Gate(eqx.Module):
    """The gate of the source's section 3.2 (GRU-type) in place of the sum x + y:

    r = sigmoid(W_r y + U_r x),   z = sigmoid(W_z y + U_z x - b),   h = tanh(W_g y + U_g (r x)),   g(x, y) = (1 - z) x + z h
    """

    given: jax.Array  # W_r, W_z, W_g: [3 n, n]
    kept: jax.Array  # U_r, U_z: [2 n, n]
    new: jax.Array  # U_g: [n, n]
    bias: jax.Array  # b: [n]

    def __init__(self, size: int, *, key: jax.Array) -> None:
        keys = jax.random.split(key, 6)
        weights = [linear(size, size, k, 1.0).weight for k in keys]
        self.given, self.kept, self.new = jnp.concatenate(weights[:3]), jnp.concatenate(weights[3:5]), weights[5]
        self.bias = jnp.full(size, GATE_BIAS, jnp.float32)

    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        reset, update, new = jnp.split(self.given @ y, 3)
        reset_kept, update_kept = jnp.split(self.kept @ x, 2)
        reset, update = jax.nn.sigmoid(reset + reset_kept), jax.nn.sigmoid(update + update_kept - self.bias)
        return (1 - update) * x + update * jnp.tanh(new + self.new @ (reset * x))


class GatedTransformer(eqx.Module):
    """One layer of GTrXL (the source's sections 3.1 and 3.2), `[n]` to `[n]`, whose carry is the last M of its inputs x:

    y = g(x, relu(attention(norm([M, x])))),    out = g'(y, relu(dense(norm'(y))))

    Norms are of what goes into attention and dense layers alone, so that there is a way through all layers without any. No
    gradient flows into a memory that a sequence starts from (Dai et al. 2019, section 3.2). Deviation: every step sees itself
    and up to M inputs before it, also in a sequence, so that a sequence in parallel is its steps.
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
        self.up, self.down = linear(size, 2 * size, up_key, math.sqrt(2)), linear(2 * size, size, down_key, 1.0)

    def initial_carry(self) -> Window:
        return windows.empty(self.memory, self.attention.query.shape[2])

    def __call__(self, carry: Window, x: jax.Array) -> tuple[Window, jax.Array]:
        carry, outputs = self._through(carry, x[None], carry.number[None])
        return carry, outputs[0]

    def unroll(self, carry: Window, x: jax.Array, reset: jax.Array) -> tuple[Window, jax.Array]:
        carry = jax.lax.stop_gradient(carry)
        steps = jnp.arange(len(reset), dtype=jnp.int32)[:, None]
        age = steps - jax.lax.cummax(jnp.where(reset, steps, -carry.number), axis=0)  # inputs before each in its episode
        return jax.vmap(self._through, (0, 1, 1), (0, 1))(carry, x, age)

    def _through(self, carry: Window, x: jax.Array, age: jax.Array) -> tuple[Window, jax.Array]:
        """One stream `[L, n]`, with `age` `[L]` inputs of the same episode before each."""
        entries = jnp.concatenate([carry.entries, x])
        found = self.attention(jax.vmap(self.norms[0])(entries), age)
        y = jax.vmap(self.gates[0])(x, jax.nn.relu(found))
        outputs = jax.vmap(lambda y: self.gates[1](y, jax.nn.relu(self._dense(y))))(y)
        number = jnp.minimum(age[-1] + 1, self.memory)
        is_kept = np.arange(self.memory, 0, -1) <= number
        return Window(jnp.where(is_kept[:, None], entries[-self.memory :], 0), number), outputs

    def _dense(self, y: jax.Array) -> jax.Array:
        return self.down(jax.nn.relu(self.up(self.norms[1](y))))


def _codes(distance: np.ndarray, size: int) -> np.ndarray:
    """Sines and cosines `[m, size]` of distances `[m]` (Vaswani et al. 2017, section 3.5)."""
    angle = distance[:, None] / LARGEST_PERIOD ** (np.arange(0, size, 2) / size)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)[:, :size].astype(np.float32)


def _from_distances(x: jax.Array) -> jax.Array:
    """`[heads, L, M + 1]` by distance, the farthest first, to `[heads, L, M + L]` by entry, masked where there is no distance.

    The row of step i moves i to the right: laid end to end, rows that are one number too long do.
    """
    heads, length, span = x.shape
    masked = jnp.full((heads, length, length), MASKED, x.dtype)
    rows = jnp.concatenate([x, masked], axis=2).reshape(heads, -1)
    return rows[:, : length * (span + length - 1)].reshape(heads, length, -1)
