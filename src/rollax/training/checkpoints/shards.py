"""Storage of large leaves of a checkpoint, such as the arrays of a replay buffer.

Every process writes its shards directly from memory. A leaf is a folder with one file per shard.
For example, the file `0-4_8-16` contains columns 8 to 15 of rows 0 to 3. The files are read as
memory maps, so a process reads only the rows that it needs, for any number of devices.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from rollax.training.checkpoints.summary import DamagedCheckpointError
from rollax.training.run_folder.files import fsync_path

Bounds = tuple[tuple[int, int], ...]  # start and end by axis

# Larger leaves are written in parts, because Orbax holds two copies of everything that it writes.
LARGE_LEAF_BYTES = 1 << 26


def write_shards(folder: Path, leaf: jax.Array) -> None:
    """Write the shards of a leaf that this process holds. One device writes each element.

    Args:
        folder: Folder of the leaf, which is created.
        leaf: Leaf to write.

    Raises:
        OSError: If a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for shard in leaf.addressable_shards:
        if shard.replica_id == 0:
            path = folder / _shard_file_name(_slice_bounds(shard.index, leaf.shape))
            np.ascontiguousarray(shard.data).reshape(-1).view(np.uint8).tofile(path)
            fsync_path(path)


def has_all_shards(folder: Path, shape: tuple[int, ...]) -> bool:
    """Return whether the shard files in a folder contain all elements of a leaf of this shape."""
    return sum(map(_num_elements, _shard_files(folder))) == math.prod(shape)


class ShardedLeaf:
    """Leaf on disk. Slicing or `np.asarray(leaf)` reads its data.

    Args:
        folder: Folder of the leaf.
        shape: Shape of the leaf.
        dtype: Name of the data type.

    Raises:
        DamagedCheckpointError: If the shard files do not form an array of this shape and type.
    """

    def __init__(self, folder: Path, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, jnp.dtype(dtype)
        try:
            self._parts = _shard_files(folder)
            sizes = [
                path.stat().st_size == _num_elements(bounds) * self.dtype.itemsize
                for bounds, path in self._parts.items()
            ]
        except (OSError, ValueError) as error:
            raise DamagedCheckpointError(
                f"{folder} is damaged: it contains a file that is not part of an array"
            ) from error
        if not all(sizes) or not has_all_shards(folder, shape):
            raise DamagedCheckpointError(f"{folder} is damaged: its parts do not form one array")

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
        """Return a copy of a slice of the array."""
        requested = _slice_bounds(index, self.shape)
        result = np.empty([end - first for first, end in requested], self.dtype)
        for bounds, path in self._parts.items():
            overlap = [
                (max(a, c), min(b, d)) for (a, b), (c, d) in zip(requested, bounds, strict=True)
            ]
            if all(first < end for first, end in overlap):
                result[_relative_slices(overlap, requested)] = self._open_memmap(bounds, path)[
                    _relative_slices(overlap, bounds)
                ]
        return result

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        full_bounds = tuple((0, size) for size in self.shape)
        array = (
            self._open_memmap(full_bounds, self._parts[full_bounds])
            if full_bounds in self._parts
            else self[(slice(None),) * len(self.shape)]
        )
        return np.array(array, dtype) if dtype is not None or copy else array

    def _open_memmap(self, bounds: Bounds, path: Path) -> np.ndarray:
        return np.memmap(path, self.dtype, "r", shape=tuple(end - first for first, end in bounds))


def _slice_bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> Bounds:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _relative_slices(bounds: Sequence[tuple[int, int]], outer: Bounds) -> tuple[slice, ...]:
    return tuple(
        slice(first - start, end - start)
        for (first, end), (start, _) in zip(bounds, outer, strict=True)
    )


def _num_elements(bounds: Bounds) -> int:
    return math.prod(end - first for first, end in bounds)


def _shard_file_name(bounds: Bounds) -> str:
    return "_".join(f"{first}-{end}" for first, end in bounds) or "number"


def _shard_files(folder: Path) -> dict[Bounds, Path]:
    return {_parse_shard_file_name(path.name): path for path in sorted(folder.iterdir())}


def _parse_shard_file_name(name: str) -> Bounds:
    """Return the bounds that a shard's file name states. Inverse of `_shard_file_name`."""
    axes = [] if name == "number" else [axis.split("-") for axis in name.split("_")]
    return tuple((int(first), int(end)) for first, end in axes)
