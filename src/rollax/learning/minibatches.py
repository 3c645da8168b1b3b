"""From trajectories `[T, S]` to shuffled minibatches of sequences.

The T steps of a stream are cut into N = T / L sequences. Streams lie in groups of neighbors; each epoch shuffles the sequences
within every group, and a minibatch takes the same share of each group. So each sequence is used once an epoch, every
minibatch sees every part of the batch, whole rows are copied at once instead of single samples, and no sample leaves the
device on which its environment runs. With groups of one sequence per minibatch and stream (16 streams or fewer in a block)
this is a full shuffle stratified by stream.

What is drawn by priority is laid out as one pool instead: every sequence of every stream is a row of its own, and all of them
compete.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# Neighboring streams that are moved together. They are other environments (or other agents of one), so this correlates little
# and saves most of the cost of sorting and gathering; blocks stay small enough that at least 64 groups shuffle independently.
LARGEST_BLOCK = 16
FEWEST_GROUPS = 64


class Layout(NamedTuple):
    """How `[T, S]` is cut: S = groups x parts x block streams, T = sequences x length steps."""

    sequences: int
    length: int
    groups: int
    parts: int
    block: int
    num_minibatches: int

    @property
    def rows(self) -> int:
        """What is shuffled within a group."""
        return self.sequences * self.parts


def layout(num_steps: int, num_streams: int, sequence_length: int, num_minibatches: int, pooled: bool = False) -> Layout:
    """How rollouts are cut; `pooled`: into a single group of single sequences, as `prioritize` needs.

    Raises ValueError, saying what would fit, when the sizes do not divide.

    >>> layout(num_steps=128, num_streams=2048, sequence_length=1, num_minibatches=32)
    Layout(sequences=128, length=1, groups=128, parts=1, block=16, num_minibatches=32)
    """
    if num_steps % sequence_length:
        near = _divisors_near(num_steps, sequence_length)
        raise ValueError(
            f"num_steps ({num_steps}) must be a multiple of sequence_length ({sequence_length}): "
            f"try sequence_length {near} or num_steps {_multiples_near(num_steps, sequence_length)}"
        )
    sequences = num_steps // sequence_length
    parts = num_minibatches // math.gcd(sequences, num_minibatches)
    if num_streams % parts:
        raise ValueError(
            f"{num_streams} streams (num_envs x agents) of {sequences} sequences each cannot be split into num_minibatches "
            f"({num_minibatches}) equal parts: try num_minibatches {_divisors_near(num_streams * sequences, num_minibatches)}"
            f" or num_envs {_multiples_near(num_streams, parts)}"
        )
    if pooled:
        return Layout(sequences, sequence_length, 1, num_streams, 1, num_minibatches)
    blocks = num_streams // parts
    block = math.gcd(blocks, LARGEST_BLOCK)
    while block > 1 and blocks // block < FEWEST_GROUPS:
        block //= 2
    return Layout(sequences, sequence_length, blocks // block, parts, block, num_minibatches)


def to_rows(data: Any, cut: Layout) -> Any:
    """`[T, S, ...]` (or `[N, S, ...]`, one value a sequence) as `[rows, groups, length, block, ...]`."""

    def convert(x: jax.Array) -> jax.Array:
        features = x.shape[2:]
        length = x.shape[0] // cut.sequences
        x = x.reshape(cut.sequences, length, cut.groups, cut.parts, cut.block, *features)
        x = jnp.moveaxis(x, (3, 2), (1, 2))  # sequences, parts, groups, length, block
        return x.reshape(cut.rows, cut.groups, length, cut.block, *features)

    return jax.tree.map(convert, data)


def shuffle(key: jax.Array, cut: Layout) -> jax.Array:
    """A fresh order for one epoch: which rows each minibatch takes from each group, `[num_minibatches, rows / M, groups]`."""
    order = jnp.argsort(jax.random.bits(key, (cut.rows, cut.groups)), axis=0)
    return order.reshape(cut.num_minibatches, -1, cut.groups)


def prioritize(priority: jax.Array, exponent: jax.Array | float, key: jax.Array, cut: Layout) -> jax.Array:
    """As `shuffle`, but rows of a pool are drawn with replacement, each with a probability proportional to `priority^exponent`.

    `priority`: `[rows]`, 0 where there is nothing to learn from: such a row is drawn only if all are.
    """
    draws = jax.random.categorical(key, log_probability(priority, exponent), shape=(cut.rows,))
    return draws.reshape(cut.num_minibatches, -1, 1)


def log_probability(priority: jax.Array, exponent: jax.Array | float) -> jax.Array:
    """log P `[rows]` by which `prioritize` draws: finite, also for a priority of 0."""
    positive = priority > 0
    return jax.nn.log_softmax(jnp.where(positive, exponent * jnp.log(jnp.where(positive, priority, 1.0)), -1e9))


def importance(priority: jax.Array, exponent: jax.Array | float, beta: jax.Array | float, size: jax.Array) -> jax.Array:
    """Weights `[rows]` proportional to `P^-beta` (Schaul et al. 2016, section 3.4) against the preference of `prioritize`.

    `size`: `[rows]`, how many samples of a row count; there is no weight where none does. The mean weight of the samples that
    are drawn is 1, so that with `beta` 1 the losses that are drawn have the mean of all. Deviation: the source divides by the
    largest weight, by which the least of all rows would set the size of every loss.
    """
    log_p = log_probability(priority, exponent)
    log_size = jnp.log(jnp.maximum(size, 1e-30))
    log_weight = jnp.where(size > 0, -beta * log_p, 0.0)
    log_scale = jax.nn.logsumexp(log_p + log_size) - jax.nn.logsumexp(log_p + log_weight + log_size)
    return jnp.where(size > 0, jnp.exp(log_weight + log_scale), 0.0)


def take(data: Any, order: jax.Array) -> Any:
    """One minibatch `[L, B, ...]` from rows `[rows, groups, L, block, ...]` by `order` `[rows / M, groups]`."""

    def gather(x: jax.Array) -> jax.Array:
        length, block, features = x.shape[2], x.shape[3], x.shape[4:]
        flat = x.reshape(*x.shape[:2], -1)
        picked = jnp.take_along_axis(flat, order[..., None], axis=0, mode="promise_in_bounds")
        picked = picked.reshape(*order.shape, length, block, *features)
        # Groups first: so the samples of a device lie together in the minibatch, and none has to move.
        return jnp.moveaxis(picked, (2, 1), (0, 1)).reshape(length, -1, *features)

    return jax.tree.map(gather, data)


def _divisors_near(number: int, wanted: int) -> str:
    divisors = sorted((d for d in range(1, number + 1) if number % d == 0), key=lambda d: abs(d - wanted))
    return " or ".join(str(d) for d in sorted(divisors[:2]))


def _multiples_near(number: int, divisor: int) -> str:
    below = number // divisor * divisor
    return " or ".join(str(n) for n in (below, below + divisor) if n > 0)
