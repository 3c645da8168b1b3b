"""From trajectories `[T, S]` to shuffled minibatches of sequences.

The T steps of a stream are cut into N = T / L sequences. Streams lie in groups of neighbors; each epoch shuffles the sequences
within every group, and a minibatch takes the same share of each group. So each sequence is used once an epoch, every
minibatch sees every part of the batch, whole rows are copied at once instead of single samples, and no sample leaves the
device on which its environment runs. With groups of one sequence per minibatch and stream (16 streams or fewer in a block)
this is a full shuffle stratified by stream.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.errors import divisors_near, multiples_near
from rollax.scopes import scope

# Neighboring streams that are moved together. They are other environments (or other agents of one), so this correlates little
# and saves most of the cost of sorting and gathering; blocks stay small enough that at least 64 groups shuffle independently.
LARGEST_BLOCK = 16
FEWEST_GROUPS = 64
MOST_RANKED = 128  # rows that are shuffled by comparing all with all


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
    """How rollouts are cut; `pooled`: into a single group of single sequences, as sampling by priority needs.

    Raises ValueError, saying what would fit, when the sizes do not divide.

    >>> layout(num_steps=128, num_streams=2048, sequence_length=1, num_minibatches=32)
    Layout(sequences=128, length=1, groups=128, parts=1, block=16, num_minibatches=32)
    """
    if num_steps % sequence_length:
        near = divisors_near(num_steps, sequence_length)
        raise ValueError(
            f"num_steps ({num_steps}) must be a multiple of sequence_length ({sequence_length}): "
            f"try sequence_length {near} or num_steps {multiples_near(num_steps, sequence_length)}"
        )
    sequences = num_steps // sequence_length
    parts = num_minibatches // math.gcd(sequences, num_minibatches)
    if num_streams % parts:
        raise ValueError(
            f"{num_streams} streams (num_envs x agents) of {sequences} sequences each cannot be split into num_minibatches "
            f"({num_minibatches}) equal parts: try num_minibatches {divisors_near(num_streams * sequences, num_minibatches)}"
            f" or num_envs {multiples_near(num_streams, parts)}"
        )
    if pooled:
        return Layout(sequences, sequence_length, 1, num_streams, 1, num_minibatches)
    blocks = num_streams // parts
    block = math.gcd(blocks, LARGEST_BLOCK)
    while block > 1 and blocks // block < FEWEST_GROUPS:
        block //= 2
    return Layout(sequences, sequence_length, blocks // block, parts, block, num_minibatches)


@scope("shuffling")
def to_rows(data: Any, cut: Layout) -> Any:
    """`[T, S, ...]` (or `[N, S, ...]`, one value a sequence) as `[rows, groups, length, block, ...]`."""

    def convert(x: jax.Array) -> jax.Array:
        features = x.shape[2:]
        length = x.shape[0] // cut.sequences
        x = x.reshape(cut.sequences, length, cut.groups, cut.parts, cut.block, *features)
        x = jnp.moveaxis(x, (3, 2), (1, 2))  # sequences, parts, groups, length, block
        return x.reshape(cut.rows, cut.groups, length, cut.block, *features)

    return jax.tree.map(convert, data)


def ranks(numbers: jax.Array) -> jax.Array:
    """How many of each column's numbers `[n, groups]` come before each, int32: a permutation, as equals keep their order.

    `numbers`: int32, none negative. n^2 comparisons, one row with all at a time: on a CPU, for few rows, a quarter of the time
    of sorting or less.
    """
    index = jnp.arange(numbers.shape[0])[:, None]

    def count(row: jax.Array, before: jax.Array) -> jax.Array:
        # One less, so that of equals the earlier is the smaller: a single comparison, which is vectorized.
        return before + (numbers[row][None] - (row < index) < numbers)

    return jax.lax.fori_loop(0, numbers.shape[0], count, jnp.zeros(numbers.shape, jnp.int32), unroll=8)


@scope("shuffling")
def shuffle(key: jax.Array, cut: Layout) -> jax.Array:
    """A fresh order for one epoch: which rows each minibatch takes from each group, `[num_minibatches, rows / M, groups]`."""
    bits = jax.random.bits(key, (cut.rows * cut.groups,)).reshape(cut.rows, cut.groups)  # drawn in one row: compiles sooner
    order = ranks((bits >> 1).astype(jnp.int32)) if cut.rows <= MOST_RANKED else jnp.argsort(bits, axis=0)
    return order.reshape(cut.num_minibatches, -1, cut.groups)


@scope("shuffling")
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


Active = dict[str, jax.Array]  # by part of the network, "actor" and "critic": whether it learns now
# (train, order, active) -> (train, metrics)
Minibatch = Callable[[Any, jax.Array, Active], tuple[Any, dict[str, jax.Array]]]


def epochs(
    minibatch: Minibatch,
    learner: Any,
    cut: Layout,
    key: jax.Array,
    actor_epochs: int,
    critic_epochs: int,
    target_kl: jax.Array | float,
    shuffle: Callable[[jax.Array, Layout], jax.Array] = shuffle,
) -> tuple[Any, dict[str, jax.Array]]:
    """Runs `minibatch` over fresh shuffles: exactly `actor_epochs`, unless one ends with "approx_kl" above `target_kl`.

    A separate critic has `critic_epochs` of its own, 0 when there is none. Metrics are the means over the last epoch that ran,
    and "epochs", how many the policy had.
    """

    def active(index: jax.Array, stop: jax.Array) -> dict[str, jax.Array]:
        return {"actor": index < stop, "critic": index < critic_epochs}

    def unfinished(index: jax.Array, stop: jax.Array) -> jax.Array:
        return (index < critic_epochs) | (index < stop)

    def epoch(loop: tuple[jax.Array, jax.Array, Any, Any]) -> tuple[jax.Array, jax.Array, Any, Any]:
        index, stop, learner, before = loop
        orders, now = shuffle(jax.random.fold_in(key, index), cut), active(index, stop)
        learner, metrics = jax.lax.scan(lambda c, order: minibatch(c, order, now), learner, orders)
        metrics = tree.where(unfinished(index, stop), jax.tree.map(jnp.mean, metrics), before)
        stop = jnp.where(metrics["approx_kl"] > target_kl, jnp.minimum(stop, index + 1), stop)
        return index + 1, stop, learner, metrics

    index, stop = jnp.zeros((), jnp.int32), jnp.asarray(actor_epochs, jnp.int32)
    shapes = jax.eval_shape(lambda learner: minibatch(learner, shuffle(key, cut)[0], active(index, stop))[1], learner)
    empty = jax.tree.map(lambda s: jnp.zeros((), s.dtype), shapes)
    loop = jax.lax.while_loop(lambda loop: tree.any_member(unfinished(*loop[:2])), epoch, (index, stop, learner, empty))
    _, stop, learner, metrics = loop
    return learner, {**metrics, "epochs": stop.astype(jnp.float32)}
