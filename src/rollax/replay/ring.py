"""Replay buffers: a ring of transitions for every stream of experience, sampled uniformly.

A `Replay` is a pytree of arrays `[S, N, ...]`: S streams with N places each, in the types of the rows. Adding writes one row a
stream and sampling reads the rows of its batch, so neither takes longer where N is larger, as long as the state is donated to
the compiled program. A learner gets a `Batch`.

flashbax 0.1.3 was weighed. All its streams move together, so that the steps of an agent that has ended before the others would
be kept; it holds no true next observation, but takes the row that follows, which after an end begins another episode; its
buffers do not say their size; and it brings tensorstore along.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from rollax import tree
from rollax.errors import UsageError


class Step(NamedTuple):
    """A transition of one stream."""

    obs: Any
    action: jax.Array  # of a box normalized, within -1 ... 1 for each dimension
    reward: jax.Array  # float []
    terminated: jax.Array  # bool []
    truncated: jax.Array  # bool []
    next_obs: Any  # the true observation after the step, never that of a new episode
    reset: jax.Array  # bool []: obs begins an episode
    carry: Any  # the policy's memory before the step, before any reset; `()` without memory


class Replay(NamedTuple):
    """The last N rows of each of S streams."""

    data: Any  # [S, N, ...]
    cursor: jax.Array  # int32 [S]: the place of the next row
    size: jax.Array  # int32 [S]: how many rows there are


class Batch(NamedTuple):
    """A sample of transitions `[B, ...]` for the target `reward + discount * value(next_obs)`."""

    obs: Any
    action: jax.Array
    reward: jax.Array  # float [B]: discounted sum over the steps between the two observations
    discount: jax.Array  # float [B]: gamma to the number of these steps; 0 after a termination
    next_obs: Any
    weight: jax.Array  # float [B]: of each sample in the loss; 1 where samples are drawn uniformly
    reset: jax.Array  # bool [B]: obs begins an episode
    carry: Any  # [B, ...] the policy's memory at obs, before any reset


class ReplayBuffer(NamedTuple):
    """How an algorithm remembers: uniformly (`uniform`) or by priority (`prioritized.prioritized`). Any state will do."""

    init: Callable[[Step, int, Any], Any]  # (one step, streams, config) -> state
    add: Callable[[Any, Step, jax.Array], Any]  # (state, steps [S, ...], which to keep bool [S]) -> state
    can_sample: Callable[[Any, Any], jax.Array]  # (state, config) -> bool []
    sample: Callable[..., tuple[Batch, jax.Array]]  # (state, config, key, progress) -> (batch, index int32 [B])
    update_priorities: Callable[..., Any]  # (state, config, index, td_error [B], is_active) -> state


def uniform(num_steps: int = 1) -> ReplayBuffer:
    """Every step is as likely; returns over `num_steps` steps. The config has `capacity`, `batch_size` and `gamma`."""

    def start(example: Step, num_streams: int, config: Any) -> Replay:
        check_enough(num_streams, config.capacity, config.batch_size, num_steps)
        return init(example, num_streams, config.capacity)

    def sample_batch(replay: Replay, config: Any, key: jax.Array, progress: jax.Array) -> tuple[Batch, jax.Array]:
        index = sample(replay, key, config.batch_size, num_steps)
        return returns(replay, index, num_steps, config.gamma), index

    return ReplayBuffer(
        init=start,
        add=add,
        can_sample=lambda replay, config: can_sample(replay, config.batch_size, num_steps),
        sample=sample_batch,
        update_priorities=lambda replay, config, index, td_error, is_active: replay,
    )


def size_in_bytes(example: Any, num_streams: int, capacity: int) -> int:
    """The size of a `Replay`'s rows. `example`: one row of one stream, or its shapes."""
    row = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(lambda: example)))
    return row * num_streams * (capacity // num_streams)


def check_enough(num_streams: int, capacity: int, batch_size: int, num_steps: int = 1) -> None:
    """Raises UsageError for rings that, when full, hold less than a batch of sequences of that length."""
    if num_streams * max(capacity // num_streams - num_steps + 1, 0) < batch_size:
        enough = num_streams * (-(-batch_size // num_streams) + num_steps - 1)
        raise UsageError(
            f"capacity ({capacity}) holds too little to draw {batch_size} (batch_size) sequences of {num_steps} steps from "
            f"{num_streams} streams: try {enough} or more"
        )


def init(example: Any, num_streams: int, capacity: int) -> Replay:
    """Empty rings for `capacity` rows in all. `example`: one row of one stream, an array at every leaf.

    Raises UsageError for a capacity that is too small, or too large for an index.
    """
    if capacity < num_streams:
        raise UsageError(f"capacity ({capacity}) must be at least the number of streams ({num_streams}): try {num_streams}")
    places = capacity // num_streams
    if num_streams * places >= 2**31:
        raise UsageError(f"capacity ({capacity}) must be less than 2^31")
    data = jax.tree.map(lambda x: jnp.zeros((num_streams, places, *jnp.shape(x)), x.dtype), example)
    return Replay(data, jnp.zeros(num_streams, jnp.int32), jnp.zeros(num_streams, jnp.int32))


def add(replay: Replay, rows: Any, keep: jax.Array) -> Replay:
    """One row `[S, ...]` for each stream where `keep`, in place of the oldest one when the ring is full."""
    places = _shape(replay)[1]
    place = jnp.where(keep, replay.cursor, places)  # out of range: not written
    # Each stream writes into its own ring, so that over several devices none asks another where to write.
    put = jax.vmap(lambda ring, place, row: ring.at[place].set(row, mode="drop"))
    data = jax.tree.map(lambda rings, row: put(rings, place, row), replay.data, rows)
    moved = keep.astype(jnp.int32)
    return Replay(data, (replay.cursor + moved) % places, jnp.minimum(replay.size + moved, places))


def newest(replay: Replay) -> jax.Array:
    """The index of each stream's newest row, int32 [S]: the one that `add` has written."""
    num_streams, places = _shape(replay)
    return jnp.arange(num_streams) * places + (replay.cursor - 1) % places


def can_sample(replay: Replay, batch_size: int, length: int = 1) -> jax.Array:
    """Whether there are at least `batch_size` sequences of that length, bool []."""
    return jnp.sum(jnp.maximum(replay.size - length + 1, 0)) >= batch_size


def sample(replay: Replay, key: jax.Array, batch_size: int, length: int = 1) -> jax.Array:
    """Indices int32 [B] of the first rows of sequences, uniform over all sequences of `length` consecutive rows of a stream.

    Raises UsageError when there is none; inside a compiled program ask `can_sample` first.
    """
    if not isinstance(replay.size, Tracer) and not can_sample(replay, 1, length):
        raise UsageError(f"nothing to sample: no stream holds {length} rows. Add more, or ask can_sample first")
    num_streams, places = _shape(replay)
    cursor, size = tree.spread((replay.cursor, replay.size), False)  # all devices draw the same
    starts = jnp.maximum(size - length + 1, 0)
    last = jnp.cumsum(starts)
    drawn = jax.random.randint(key, (batch_size,), 0, jnp.maximum(last[-1], 1))
    stream = jnp.zeros_like(drawn)
    if num_streams > 1:
        stream = jnp.searchsorted(last, drawn, side="right", method="compare_all").astype(jnp.int32)
        stream = jnp.minimum(stream, num_streams - 1)
    age = drawn - (last - starts)[stream]
    oldest = (cursor - size)[stream]
    return stream * places + (oldest + age) % places


def rows(replay: Replay, index: jax.Array, offset: jax.Array | int = 0) -> Any:
    """The rows `[..., *]` that are `offset` places after those at `index` in their ring."""
    num_streams, places = _shape(replay)
    stream, place = index // places, (index % places + offset) % places
    return jax.tree.map(lambda x: x.at[stream, place].get(mode="promise_in_bounds"), replay.data)


def sequences(replay: Replay, index: jax.Array, length: int) -> Any:
    """Consecutive rows `[L, B, ...]` from `index` [B] on, for a recurrent learner to unroll its network over.

    Store the carry before each step as a further part of the rows, and start from that of the first one.
    """
    return rows(replay, jnp.broadcast_to(index, (length, *index.shape)), jnp.arange(length)[:, None])


def returns(replay: Replay, index: jax.Array, num_steps: int, gamma: jax.Array | float) -> Batch:
    """The batch of `num_steps`-step returns of rows of `Step`s, from `index` [B] on.

    R = sum_(i<k) gamma^i r_i, discount gamma^k, where k is `num_steps`, or less where the episode ends before (with discount 0
    after a termination), where another begins without an end, as simulators do when a run is resumed, or where the newest
    row is reached: that is a shorter return, not a wrong one.
    """
    num_streams, places = _shape(replay)
    steps: Step = replay.data
    if num_steps == 1:
        now = rows(replay, index)
        discount = gamma * jnp.where(now.terminated, 0.0, 1.0)
        return Batch(now.obs, now.action, now.reward, discount, now.next_obs, jnp.ones_like(now.reward), now.reset, now.carry)
    scalars = replay._replace(data=(steps.reward, steps.terminated, steps.truncated, steps.reset))
    reward, terminated, truncated, begins = sequences(scalars, index, num_steps)
    stream = index // places
    to_come = (replay.cursor[stream] - 1 - index % places) % places  # how many rows are newer
    ended = terminated | truncated | (jnp.arange(num_steps)[:, None] >= to_come[None])
    ended = ended.at[:-1].set(ended[:-1] | begins[1:])
    before = jnp.cumsum(ended, axis=0) - ended  # ends before each step
    power = jnp.power(gamma, jnp.arange(num_steps, dtype=jnp.float32))[:, None]
    last = jnp.sum(before == 0, axis=0) - 1
    total = jnp.sum(jnp.where(before == 0, power * reward, 0.0), axis=0)
    is_over = jnp.any((before == 0) & terminated, axis=0)
    discount = jnp.where(is_over, 0.0, jnp.power(gamma, last + 1.0))
    obs, action, reset, carry = rows(replay._replace(data=(steps.obs, steps.action, steps.reset, steps.carry)), index)
    next_obs = rows(replay._replace(data=steps.next_obs), index, last)
    return Batch(obs, action, total, discount, next_obs, jnp.ones_like(total), reset, carry)


def _shape(replay: Replay) -> tuple[int, int]:
    """Streams, and places of each."""
    return jax.tree.leaves(replay.data)[0].shape[:2]
