"""Replay buffers with one ring of transitions per stream and uniform sampling.

A `ReplayState` stores the last N transitions (rows) of each of S streams in arrays `[S, N, ...]`
with the dtypes of the transitions. An index `s * N + n` selects entry n of stream s. If the state
is donated to the compiled program, the time to add one transition per stream and to sample a batch
does not depend on N.

rollax does not use flashbax 0.1.3 for these reasons:

- Its streams advance together, so it would store transitions of agents that are done.
- It uses the observation of the next transition as the next observation. At the end of an episode,
  the next transition belongs to another episode.
- Its buffers do not report the number of stored transitions.
- It depends on tensorstore.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.core import Tracer

from rollax import tree
from rollax.errors import UsageError
from rollax.types import PyTree, Scalar


class ReplayStep(NamedTuple):
    """Transition of one stream.

    Attributes:
        obs: Observation before the step.
        action: Action. Actions of a box are normalized to [-1, 1].
        reward: Reward, float `[]`.
        terminated: Whether the step terminated the episode, bool `[]`.
        truncated: Whether the step truncated the episode, bool `[]`.
        next_obs: Observation after the step and before any reset.
        reset: Whether `obs` begins an episode, bool `[]`.
        carry: Memory of the policy before the step and before any reset, or `()` for policies
            without memory.
    """

    obs: Any
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_obs: Any
    reset: jax.Array
    carry: Any


class ReplayState(NamedTuple):
    """The last N transitions of each of S streams.

    Attributes:
        data: Pytree of transitions, `[S, N, ...]`.
        cursor: Position in each ring where the next transition is written, int32 `[S]`.
        size: Number of stored transitions, int32 `[S]`.
    """

    data: Any
    cursor: jax.Array
    size: jax.Array


class ReplayBatch(NamedTuple):
    """Batch of k-step transitions for the target `reward + discount * value(next_obs)`.

    Attributes:
        obs: Observations.
        action: Actions.
        reward: Discounted sum of the rewards of k steps, float `[B]`.
        discount: gamma^k, or 0 if the episode terminated within the k steps, float `[B]`.
        next_obs: Observations after k steps.
        weight: Importance weight of each sample in the loss, 1 for uniform sampling, float `[B]`.
        reset: Whether `obs` begins an episode, bool `[B]`.
        carry: Memory of the policy at `obs` and before any reset, `[B, ...]`.
    """

    obs: Any
    action: jax.Array
    reward: jax.Array
    discount: jax.Array
    next_obs: Any
    weight: jax.Array
    reset: jax.Array
    carry: Any


class ReplayBuffer(NamedTuple):
    """Pure functions of a replay buffer with S streams.

    Use `make_uniform_replay` or `rollax.replay.prioritized.make_prioritized_replay` to build one.

    Attributes:
        init: Function `(example, num_streams, config)` that returns the initial state. `example` is
            one transition of one stream.
        add: Function `(state, steps, keep)` that adds one transition `steps[s]` to each stream s
            where the mask `keep`, bool `[S]`, is true. It returns the new state.
        can_sample: Function `(state, config)` that returns whether there are enough transitions for
            a batch, bool `[]`.
        sample: Function `(state, config, key, progress)` that returns a batch and the indices of
            its transitions, int32 `[B]`. `progress` is the completed fraction of training.
        update_priorities: Function `(state, config, index, td_error, is_active)` that returns the
            state with the priorities of a sampled batch. `td_error` holds absolute TD errors `[B]`.
            If `is_active`, bool `[]`, is false, the state is unchanged.
    """

    init: Callable[[ReplayStep, int, Any], Any]
    add: Callable[[Any, ReplayStep, jax.Array], Any]
    can_sample: Callable[[Any, Any], jax.Array]
    sample: Callable[..., tuple[ReplayBatch, jax.Array]]
    update_priorities: Callable[..., Any]


@runtime_checkable
class ReplaySettings(Protocol):
    """Settings of a replay buffer with uniform sampling."""

    @property
    def capacity(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def gamma(self) -> Scalar: ...


def make_uniform_replay(num_steps: int = 1) -> ReplayBuffer:
    """Build a replay buffer with uniform sampling.

    Args:
        num_steps: Number of steps of n-step returns.

    Returns:
        The replay buffer. Its functions take `ReplaySettings`.
    """

    def start(example: ReplayStep, num_streams: int, config: ReplaySettings) -> ReplayState:
        check_capacity(num_streams, config.capacity, config.batch_size, num_steps)
        return init_replay(example, num_streams, config.capacity)

    def sample_batch(
        replay: ReplayState, config: ReplaySettings, key: jax.Array, progress: jax.Array
    ) -> tuple[ReplayBatch, jax.Array]:
        index = sample_indices(replay, key, config.batch_size, num_steps)
        return make_nstep_batch(replay, index, num_steps, config.gamma), index

    return ReplayBuffer(
        init=start,
        add=add_row_per_stream,
        can_sample=lambda replay, config: can_sample(replay, config.batch_size, num_steps),
        sample=sample_batch,
        update_priorities=lambda replay, config, index, td_error, is_active: replay,
    )


def size_in_bytes(example: PyTree, num_streams: int, capacity: int) -> int:
    """Return the size of the stored transitions of a full replay buffer in bytes.

    Args:
        example: One transition of one stream, as arrays or `jax.ShapeDtypeStruct`s.
        num_streams: Number of streams.
        capacity: Total number of transitions in all streams.
    """
    row = sum(
        math.prod(x.shape) * x.dtype.itemsize
        for x in jax.tree.leaves(jax.eval_shape(lambda: example))
    )
    return row * num_streams * (capacity // num_streams)


def check_capacity(num_streams: int, capacity: int, batch_size: int, num_steps: int = 1) -> None:
    """Check that the rings can hold enough sequences for a batch.

    Args:
        num_streams: Number of streams.
        capacity: Total number of transitions in all streams.
        batch_size: Number of sequences in a batch.
        num_steps: Number of consecutive transitions in a sequence.

    Raises:
        UsageError: If the capacity is too small.
    """
    if num_streams * max(capacity // num_streams - num_steps + 1, 0) < batch_size:
        min_capacity = num_streams * (-(-batch_size // num_streams) + num_steps - 1)
        raise UsageError(
            f"capacity ({capacity}) must be at least {min_capacity} to sample batch_size "
            f"({batch_size}) sequences of {num_steps} steps from {num_streams} streams."
        )


def init_replay(example: PyTree, num_streams: int, capacity: int) -> ReplayState:
    """Return an empty replay with one ring per stream.

    Args:
        example: One transition of one stream as a pytree of arrays.
        num_streams: Number of streams S.
        capacity: Total number of transitions in all streams. Each ring holds N = `capacity //
            num_streams` transitions.

    Returns:
        The replay.

    Raises:
        UsageError: If the capacity is smaller than the number of streams, or S * N is 2^31 or more.
    """
    if capacity < num_streams:
        raise UsageError(
            f"capacity ({capacity}) must be at least the number of streams ({num_streams})."
        )
    ring_size = capacity // num_streams
    if num_streams * ring_size >= 2**31:
        raise UsageError(f"capacity ({capacity}) must be less than 2^31.")
    data = jax.tree.map(
        lambda x: jnp.zeros((num_streams, ring_size, *jnp.shape(x)), x.dtype), example
    )
    return ReplayState(data, jnp.zeros(num_streams, jnp.int32), jnp.zeros(num_streams, jnp.int32))


def add_row_per_stream(replay: ReplayState, rows: PyTree, keep: jax.Array) -> ReplayState:
    """Add one transition to each stream where `keep` is true. Full rings overwrite the oldest one.

    Args:
        replay: Replay of S streams.
        rows: Transitions `[S, ...]`, one per stream.
        keep: Whether to add the transition of each stream, bool `[S]`.

    Returns:
        The updated replay.
    """
    ring_size = _ring_shape(replay)[1]
    position = jnp.where(keep, replay.cursor, ring_size)  # indices out of range are not written
    # vmap over streams lets each device write to its own rings without communication.
    write_row = jax.vmap(lambda ring, position, row: ring.at[position].set(row, mode="drop"))
    data = jax.tree.map(lambda rings, row: write_row(rings, position, row), replay.data, rows)
    added = keep.astype(jnp.int32)
    return ReplayState(
        data, (replay.cursor + added) % ring_size, jnp.minimum(replay.size + added, ring_size)
    )


def add_rows(replay: ReplayState, rows: PyTree, keep: jax.Array) -> ReplayState:
    """Add several transitions in order to a replay with a single stream.

    A full ring overwrites its oldest transitions. If more than N transitions are added, the last N
    remain.

    Args:
        replay: Replay of one stream, `[1, N, ...]`.
        rows: Transitions `[R, ...]`, oldest first.
        keep: Whether to add each transition, bool `[R]`.

    Returns:
        The updated replay.
    """
    ring_size = _ring_shape(replay)[1]
    count = jnp.cumsum(keep, dtype=jnp.int32)
    total = count[-1]
    is_written = keep & (count > total - ring_size)  # the newest of the rows with the same position
    # Indices out of range are not written.
    position = jnp.where(is_written, (replay.cursor[0] + count - 1) % ring_size, ring_size)
    data = jax.tree.map(
        lambda ring, row: ring.at[0, position].set(row, mode="drop"), replay.data, rows
    )
    return ReplayState(
        data, (replay.cursor + total) % ring_size, jnp.minimum(replay.size + total, ring_size)
    )


def newest_indices(replay: ReplayState) -> jax.Array:
    """Return the index of the newest transition of each stream, int32 `[S]`."""
    num_streams, ring_size = _ring_shape(replay)
    return jnp.arange(num_streams) * ring_size + (replay.cursor - 1) % ring_size


def can_sample(replay: ReplayState, batch_size: int, length: int = 1) -> jax.Array:
    """Return whether there are at least `batch_size` sequences of `length` steps, bool `[]`."""
    return jnp.sum(jnp.maximum(replay.size - length + 1, 0)) >= batch_size


def sample_indices(
    replay: ReplayState, key: jax.Array, batch_size: int, length: int = 1
) -> jax.Array:
    """Sample sequences of `length` consecutive transitions of a stream, uniformly with replacement.

    Args:
        replay: Replay.
        key: Random key.
        batch_size: Number of sequences B.
        length: Number of transitions in a sequence.

    Returns:
        Index of the first transition of each sequence, int32 `[B]`.

    Raises:
        UsageError: If all streams have fewer than `length` transitions. Compiled code does not
            raise it and must check `can_sample` first.
    """
    if not isinstance(replay.size, Tracer) and not can_sample(replay, 1, length):
        raise UsageError(
            f"The replay must contain {length} rows of one stream to sample. Add more rows, or "
            "check can_sample first."
        )
    num_streams, ring_size = _ring_shape(replay)
    # All devices sample the same indices.
    cursor, size = tree.constrain_sharding((replay.cursor, replay.size), False)
    starts = jnp.maximum(size - length + 1, 0)
    last = jnp.cumsum(starts)
    draw = jax.random.randint(key, (batch_size,), 0, jnp.maximum(last[-1], 1))
    stream = jnp.zeros_like(draw)
    if num_streams > 1:
        stream = jnp.searchsorted(last, draw, side="right", method="compare_all").astype(jnp.int32)
        stream = jnp.minimum(stream, num_streams - 1)
    age = draw - (last - starts)[stream]
    oldest = (cursor - size)[stream]
    return stream * ring_size + (oldest + age) % ring_size


def gather_rows(replay: ReplayState, index: jax.Array, offset: jax.Array | int = 0) -> Any:
    """Return the transitions that follow those at `index` by `offset` steps in the same ring.

    Args:
        replay: Replay.
        index: Indices, int32 `[...]`.
        offset: Number of steps to move forward, which broadcasts to the shape of `index`.

    Returns:
        Transitions, with the axes of `index` as leading axes.
    """
    num_streams, ring_size = _ring_shape(replay)
    stream, position = index // ring_size, (index % ring_size + offset) % ring_size
    return jax.tree.map(lambda x: x.at[stream, position].get(mode="promise_in_bounds"), replay.data)


def gather_sequences(replay: ReplayState, index: jax.Array, length: int) -> Any:
    """Return sequences of consecutive transitions, `[L, B, ...]`.

    To train a policy with memory, store the memory in `ReplayStep.carry`, and unroll the network
    from the memory of the first transition.

    Args:
        replay: Replay.
        index: Index of the first transition of each sequence, int32 `[B]`.
        length: Number of transitions L.
    """
    return gather_rows(
        replay, jnp.broadcast_to(index, (length, *index.shape)), jnp.arange(length)[:, None]
    )


def make_nstep_batch(
    replay: ReplayState, index: jax.Array, num_steps: int, gamma: jax.Array | float
) -> ReplayBatch:
    """Return a batch of transitions with n-step returns.

    The reward of a transition is R = sum_(i<k) gamma^i r_i. Its discount is gamma^k, or 0 if the
    episode terminates within the k steps. The number of steps k is at most `num_steps`. It is
    smaller if the episode ends earlier, if the newest transition is reached, or if a new episode
    begins although the previous episode did not end. The last case occurs when a run with
    simulators is resumed.

    Args:
        replay: Replay of `ReplayStep`s.
        index: Index of the first step of each transition, int32 `[B]`.
        num_steps: Maximum number of steps k.
        gamma: Discount factor.

    Returns:
        The batch, with weights of 1.
    """
    num_streams, ring_size = _ring_shape(replay)
    steps: ReplayStep = replay.data
    if num_steps == 1:
        row = gather_rows(replay, index)
        discount = gamma * jnp.where(row.terminated, 0.0, 1.0)
        return ReplayBatch(
            row.obs,
            row.action,
            row.reward,
            discount,
            row.next_obs,
            jnp.ones_like(row.reward),
            row.reset,
            row.carry,
        )
    scalars = replay._replace(data=(steps.reward, steps.terminated, steps.truncated, steps.reset))
    reward, terminated, truncated, is_reset = gather_sequences(scalars, index, num_steps)
    stream = index // ring_size
    num_newer = (replay.cursor[stream] - 1 - index % ring_size) % ring_size  # number of newer rows
    is_end = terminated | truncated | (jnp.arange(num_steps)[:, None] >= num_newer[None])
    is_end = is_end.at[:-1].set(is_end[:-1] | is_reset[1:])
    num_earlier_ends = jnp.cumsum(is_end, axis=0) - is_end  # number of ends before each step
    power = jnp.power(gamma, jnp.arange(num_steps, dtype=jnp.float32))[:, None]
    last = jnp.sum(num_earlier_ends == 0, axis=0) - 1
    total = jnp.sum(jnp.where(num_earlier_ends == 0, power * reward, 0.0), axis=0)
    has_terminated = jnp.any((num_earlier_ends == 0) & terminated, axis=0)
    discount = jnp.where(has_terminated, 0.0, jnp.power(gamma, last + 1.0))
    obs, action, reset, carry = gather_rows(
        replay._replace(data=(steps.obs, steps.action, steps.reset, steps.carry)), index
    )
    next_obs = gather_rows(replay._replace(data=steps.next_obs), index, last)
    return ReplayBatch(obs, action, total, discount, next_obs, jnp.ones_like(total), reset, carry)


def _ring_shape(replay: ReplayState) -> tuple[int, int]:
    """Return the number of streams S and the capacity N of each ring."""
    return jax.tree.leaves(replay.data)[0].shape[:2]
