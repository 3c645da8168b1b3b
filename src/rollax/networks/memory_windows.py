"""Carries that contain a sliding window over the last M memory entries, and their compact storage.

The windows of consecutive steps overlap, so a rollout of carries would store each entry M times.
The compact form stores each entry once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.types import Carry, PyTree


class MemoryWindow(NamedTuple):
    """Window over the last M memory entries of one stream, or `[S, ...]` for several streams.

    Attributes:
        entries: Entries, newest last, 0 where empty, float `[M, n]`.
        number: Number of entries in the window, int32 `[]`.
    """

    entries: jax.Array
    number: jax.Array


class MemoryWindowSequence(NamedTuple):
    """Windows of S streams before each of T steps in compact form, in N sequences.

    Consecutive windows of a sequence differ by one entry, so only the new entry is stored.

    Attributes:
        first: Windows before the first step of every sequence, `[N, S, ...]`.
        newest: Newest entry of the window before every step, float `[T, S, n]`.
        number: Number of entries before every step, int32 `[T, S]`.
    """

    first: MemoryWindow
    newest: jax.Array
    number: jax.Array


def empty_window(length: int, size: int) -> MemoryWindow:
    return MemoryWindow(jnp.zeros((length, size)), jnp.zeros((), jnp.int32))


def newest_entries(carry: Carry) -> Any:
    """Replace each window in a carry by its newest entry. Other leaves are unchanged."""
    return _map_by_type(
        MemoryWindow,
        lambda window: MemoryWindow(window.entries[..., -1, :], window.number),
        lambda x: x,
        carry,
    )


def join_entries(first: Carry, entries: Carry) -> Any:
    """Return the carries of a rollout in compact form.

    Args:
        first: Carry `[S, ...]` before the first step.
        entries: Result of `newest_entries` for every step, `[T, S, ...]`.

    Returns:
        The carries `[T, S, ...]`, with a `MemoryWindowSequence` in place of each window.
    """

    def join_window(window, start):
        return MemoryWindowSequence(jax.tree.map(lambda x: x[None], start), *window)

    return _map_by_type(MemoryWindow, join_window, lambda x, _: x, entries, first)


def carries_at_sequence_starts(carries: Carry, length: int) -> Any:
    """Return the carries `[N, S, ...]` before the first step of every sequence of `length` steps.

    Args:
        carries: Carries of a rollout `[T, S, ...]` in compact form, with N = 1.
        length: Number of steps of a sequence, a divisor of T.

    Returns:
        The carries at the starts of the N = T / `length` sequences, with `MemoryWindow`s.
    """

    def select_windows(windows: MemoryWindowSequence) -> MemoryWindow:
        entries, size = _all_entries(windows), windows.first.entries.shape[2]
        parts = [entries[time : time + size] for time in range(0, len(windows.newest), length)]
        return MemoryWindow(jnp.moveaxis(jnp.stack(parts), 1, 2), windows.number[::length])

    return _map_by_type(MemoryWindowSequence, select_windows, lambda x: x[::length], carries)


def first_carries(carries: Carry) -> Any:
    """Return the carries `[S, ...]` before the first step of a rollout in compact form."""
    return jax.tree.map(
        lambda x: x[0],
        _map_by_type(MemoryWindowSequence, lambda windows: windows.first, lambda x: x, carries),
    )


def split_into_sequences(carries: Carry, length: int) -> Any:
    """Split carries in compact form into sequences that can be used separately.

    Args:
        carries: Carries of a rollout `[T, S, ...]` in compact form, with N = 1.
        length: Number of steps of a sequence, a divisor of T.

    Returns:
        The carries in compact form with N = T / `length`. They contain the window before the first
        step of every sequence.
    """

    def replace(windows):
        return windows._replace(first=carries_at_sequence_starts(windows, length))

    return _map_by_type(MemoryWindowSequence, replace, lambda x: x, carries)


def gather_carries(carries: Carry, time: jax.Array, stream: jax.Array) -> Any:
    """Return the carry before each of K steps, given by their time and stream.

    Args:
        carries: Carries of a rollout `[T, S, ...]` in compact form, with N = 1.
        time: Indices of the steps, int32 `[K]`. Larger indices are clipped to T - 1.
        stream: Indices of the streams, int32 `[K]`.

    Returns:
        The carries `[K, ...]`, with `MemoryWindow`s.
    """

    def gather(x):
        return x.at[time, stream].get(mode="clip")

    def gather_windows(windows: MemoryWindowSequence) -> MemoryWindow:
        steps = (
            jnp.minimum(time, len(windows.number) - 1)[:, None]
            + jnp.arange(windows.first.entries.shape[2])[None]
        )
        return MemoryWindow(_all_entries(windows)[steps, stream[:, None]], gather(windows.number))

    return _map_by_type(MemoryWindowSequence, gather_windows, gather, carries)


def _all_entries(windows: MemoryWindowSequence) -> jax.Array:
    """Return all entries of the first sequence, `[M + T - 1, S, n]`.

    The window before step t consists of the entries with indices from t to t + M - 1.
    """
    return jnp.concatenate([jnp.moveaxis(windows.first.entries[0], 1, 0), windows.newest[1:]])


def _map_by_type(
    kind: type,
    function: Callable[..., PyTree],
    other_function: Callable[..., PyTree],
    *carries: Carry,
) -> Any:
    """Apply `function` to all subtrees of type `kind`, and `other_function` to all other leaves."""

    def is_part(part):
        return isinstance(part, kind)

    return jax.tree.map(
        lambda *x: function(*x) if is_part(x[0]) else other_function(*x), *carries, is_leaf=is_part
    )
