"""Large leaves of a checkpoint, such as a replay's: every process writes the part that it holds, from where it lies in memory.

A leaf is a folder of files, one for each part: `0-4_8-16` has rows 0 to 3 and of them columns 8 to 15. It is read as memory
maps, so that a process which needs some rows only, on however many devices, reads those.
"""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.host.files import sync

Bounds = tuple[tuple[int, int], ...]  # first and end, by axis

# Bytes of a leaf beyond which it is written so: orbax holds two copies of all that it writes.
LARGE = 1 << 26


def write(folder: Path, leaf: jax.Array) -> None:
    """Writes what this process holds of a leaf, each element once among all devices. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in leaf.addressable_shards:
        if shard.replica_id == 0:
            path = folder / _name(_bounds(shard.index, leaf.shape))
            np.ascontiguousarray(shard.data).reshape(-1).view(np.uint8).tofile(path)
            sync(path)


def are_whole(folder: Path, shape: tuple[int, ...]) -> bool:
    """Whether the parts of a leaf are all there."""
    return sum(map(_size, _files(folder))) == math.prod(shape)


class Parts:
    """A leaf that is read as it is asked for: `parts[rows, columns]` with slices, or `np.asarray(parts)`."""

    def __init__(self, folder: Path, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, jnp.dtype(dtype)
        self._parts = _files(folder)

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
        """An array of its own."""
        wanted = _bounds(index, self.shape)
        result = np.empty([end - first for first, end in wanted], self.dtype)
        for bounds, path in self._parts.items():
            both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(wanted, bounds, strict=True)]
            if all(first < end for first, end in both):
                result[_within(both, wanted)] = self._open(bounds, path)[_within(both, bounds)]
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        whole = tuple((0, size) for size in self.shape)
        array = self._open(whole, self._parts[whole]) if whole in self._parts else self[(slice(None),) * len(self.shape)]
        return np.array(array, dtype) if dtype is not None or copy else array

    def _open(self, bounds: Bounds, path: Path) -> np.ndarray:
        return np.memmap(path, self.dtype, "r", shape=tuple(end - first for first, end in bounds))


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> Bounds:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _within(bounds: Any, outer: Bounds) -> tuple[slice, ...]:
    return tuple(slice(first - start, end - start) for (first, end), (start, _) in zip(bounds, outer, strict=True))


def _size(bounds: Bounds) -> int:
    return math.prod(end - first for first, end in bounds)


def _name(bounds: Bounds) -> str:
    return "_".join(f"{first}-{end}" for first, end in bounds) or "number"


def _files(folder: Path) -> dict[Bounds, Path]:
    return {_named(path.name): path for path in sorted(folder.iterdir())}


def _named(name: str) -> Bounds:
    """The reverse of `_name`."""
    axes = [] if name == "number" else [axis.split("-") for axis in name.split("_")]
    return tuple((int(first), int(end)) for first, end in axes)
