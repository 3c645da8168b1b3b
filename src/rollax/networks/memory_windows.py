"""Sliding windows over the last M memory entries.

A rollout in compact form stores each entry once. Consecutive carries would store it M times.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.types import Carry, PyTree


class MemoryWindow(NamedTuple):
    """Window over the last M memory entries, `[..., M, n]` for several streams."""

    entries: jax.Array  # float [M, n]: newest last, 0 if empty
    number: jax.Array  # int32 []: number of entries


class MemoryWindowSequence(NamedTuple):
    """Compact windows of S streams before each of T steps, in N sequences.

    Consecutive windows differ by one entry, so only new entries are stored.

    Attributes:
        first: Windows before the first step of every sequence, `[N, S, ...]`.
        newest: Newest entry before every step, float `[T, S, n]`.
        number: Number of entries before every step, int32 `[T, S]`.
    """

    first: MemoryWindow
    newest: jax.Array
    number: jax.Array


def empty_window(length: int, size: int) -> MemoryWindow:
    return MemoryWindow(jnp.zeros((length, size)), jnp.zeros((), jnp.int32))


def newest_entries(carry: Carry) -> Any:
    """Reduce the windows of a carry to their newest entry. Other parts do not change."""
    return _map_by_type(
        MemoryWindow,
        lambda window: MemoryWindow(window.entries[..., -1, :], window.number),
        lambda x: x,
        carry,
    )


def join_entries(first: Carry, entries: Carry) -> Any:
    """Join the carries of a rollout in compact form.

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
    """Return the carries `[N, S, ...]` before every `length`-th step."""

    def select_windows(windows: MemoryWindowSequence) -> MemoryWindow:
        entries, size = _all_entries(windows), windows.first.entries.shape[2]
        parts = [entries[time : time + size] for time in range(0, len(windows.newest), length)]
        return MemoryWindow(jnp.moveaxis(jnp.stack(parts), 1, 2), windows.number[::length])

    return _map_by_type(MemoryWindowSequence, select_windows, lambda x: x[::length], carries)


def first_carries(carries: Carry) -> Any:
    """Return the carries `[S, ...]` before the first step."""
    return jax.tree.map(
        lambda x: x[0],
        _map_by_type(MemoryWindowSequence, lambda windows: windows.first, lambda x: x, carries),
    )


def split_into_sequences(carries: Carry, length: int) -> Any:
    """Split the carries into sequences of `length` steps. Each stores the windows at its start."""

    def replace(windows):
        return windows._replace(first=carries_at_sequence_starts(windows, length))

    return _map_by_type(MemoryWindowSequence, replace, lambda x: x, carries)


def gather_carries(carries: Carry, time: jax.Array, stream: jax.Array) -> Any:
    """Return the carries `[K, ...]` of one sequence before K given steps.

    Args:
        carries: Carries `[T, S, ...]`.
        time: Steps `[K]`. Steps beyond the end are clipped to the last one.
        stream: Streams `[K]`.

    Returns:
        The carries.
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
    """Return all entries of one sequence, `[M + T - 1, S, n]`.

    The window before step t starts at index t.
    """
    return jnp.concatenate([jnp.moveaxis(windows.first.entries[0], 1, 0), windows.newest[1:]])


def _map_by_type(
    kind: type,
    function: Callable[..., PyTree],
    other_function: Callable[..., PyTree],
    *carries: Carry,
) -> Any:
    """Apply `function` to all parts of type `kind`, and `other_function` to all other leaves."""

    def is_part(part):
        return isinstance(part, kind)

    return jax.tree.map(
        lambda *x: function(*x) if is_part(x[0]) else other_function(*x), *carries, is_leaf=is_part
    )
