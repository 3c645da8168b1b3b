"""Memories that slide over time: the last M entries. A rollout keeps each entry once; carries in a row have it M times."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Window(NamedTuple):
    """A carry, or a part of one: what was remembered at the last steps. `[..., M, n]` for several streams."""

    entries: jax.Array  # float [M, n]: the newest last, 0 where there is none
    number: jax.Array  # int32 []: how many there are


class Windows(NamedTuple):
    """The windows of S streams before each of T steps, in N sequences: with every step they move on by one entry."""

    first: Window  # [N, S, ...]: before the first step of every sequence
    newest: jax.Array  # float [T, S, n]: the newest entry before every step
    number: jax.Array  # int32 [T, S]


def empty(length: int, size: int) -> Window:
    return Window(jnp.zeros((length, size)), jnp.zeros((), jnp.int32))


def newest(carry: Any) -> Any:
    """Of a carry what the step before has added: of a window the newest entry, of other parts all."""
    return _map(Window, lambda window: Window(window.entries[..., -1, :], window.number), lambda x: x, carry)


def sequence(first: Any, added: Any) -> Any:
    """Carries `[T, S, ...]` of a rollout from `newest` of each, and the carry `[S, ...]` before its first step."""
    join = lambda window, start: Windows(jax.tree.map(lambda x: x[None], start), *window)  # noqa: E731
    return _map(Window, join, lambda x, _: x, added, first)


def starts(carries: Any, length: int) -> Any:
    """The carries `[N, S, ...]` before every `length`-th of the steps."""

    def of_windows(windows: Windows) -> Window:
        entries, size = _entries(windows), windows.first.entries.shape[2]
        parts = [entries[time : time + size] for time in range(0, len(windows.newest), length)]
        return Window(jnp.moveaxis(jnp.stack(parts), 1, 2), windows.number[::length])

    return _map(Windows, of_windows, lambda x: x[::length], carries)


def first(carries: Any) -> Any:
    """The carries `[S, ...]` before the first of the steps."""
    return jax.tree.map(lambda x: x[0], _map(Windows, lambda windows: windows.first, lambda x: x, carries))


def cut(carries: Any, length: int) -> Any:
    """The same carries in sequences of `length` steps, each with the window that it starts from."""
    replace = lambda windows: windows._replace(first=starts(windows, length))  # noqa: E731
    return _map(Windows, replace, lambda x: x, carries)


def at(carries: Any, time: jax.Array, stream: jax.Array) -> Any:
    """The carries `[K, ...]` before the steps `time` `[K]` of `stream` `[K]`, in one sequence; the last step for later ones."""
    pick = lambda x: x.at[time, stream].get(mode="clip")  # noqa: E731

    def of_windows(windows: Windows) -> Window:
        steps = jnp.minimum(time, len(windows.number) - 1)[:, None] + jnp.arange(windows.first.entries.shape[2])[None]
        return Window(_entries(windows)[steps, stream[:, None]], pick(windows.number))

    return _map(Windows, of_windows, pick, carries)


def _entries(windows: Windows) -> jax.Array:
    """All entries of one sequence, `[M + T - 1, S, n]`: those of the window before step t begin at t."""
    return jnp.concatenate([jnp.moveaxis(windows.first.entries[0], 1, 0), windows.newest[1:]])


def _map(kind: type, function: Any, other: Any, *carries: Any) -> Any:
    """`function` of every part of that type, `other` of every other leaf."""
    is_part = lambda part: isinstance(part, kind)  # noqa: E731
    return jax.tree.map(lambda *x: function(*x) if is_part(x[0]) else other(*x), *carries, is_leaf=is_part)
