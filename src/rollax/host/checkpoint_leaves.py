"""The leaves of a state: their paths, whether they are those that were saved, and how saved arrays become a state again."""

import re
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rollax.errors import UsageError
from rollax.host.checkpoint_parts import Parts
from rollax.host.checkpoint_summary import LeafRecord, Summary

T = TypeVar("T")


def named_leaves(tree: Any) -> list[tuple[str, jax.Array | jax.ShapeDtypeStruct]]:
    """Paths and leaves, as the arrays that a compiled function would see."""
    named = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        try:
            named.append((name, leaf if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) else jnp.asarray(leaf)))
        except TypeError as error:
            raise UsageError(f"a state holds arrays only, but {name} is a {type(leaf).__name__}") from error
    return named


def place(arrays: list[np.ndarray | Parts | None], records: list[LeafRecord], like: T) -> T:
    """The state in the structure of `like`, in buffers that jax owns, so that they can be donated."""
    by_path = {record.path: (array, record.random) for array, record in zip(arrays, records, strict=True)}
    placed = []
    for path, leaf in named_leaves(like):
        array, generator = by_path[path]
        if array is None:
            data = jax.eval_shape(jax.random.key_data, leaf) if generator else leaf
            array = np.empty(data.shape, data.dtype)
        if generator:
            # Compiled, because keys over the devices of several processes cannot be put there in any other way.
            wrap = jax.jit(partial(jax.random.wrap_key_data, impl=generator), out_shardings=leaf.sharding)
            placed.append(wrap(np.asarray(array)))
        elif jax.process_count() > 1:
            placed.append(jax.make_array_from_callback(leaf.shape, leaf.sharding, partial(_copied, array)))
        else:
            placed.append(jax.device_put(np.asarray(array), leaf.sharding, may_alias=False))
    return jax.tree.unflatten(jax.tree.structure(like), placed)


def _copied(array: Any, index: Any) -> np.ndarray:
    """What a device of this process needs, and no more."""
    return np.array(array[index])


def check_same_leaves(summary: Summary, like: Any) -> None:
    saved = {leaf.path: f"{leaf.dtype}{list(leaf.shape)}" for leaf in summary.leaves}
    expected = {path: f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in named_leaves(like)}
    differing = [path for path in (saved | expected) if saved.get(path) != expected.get(path)]
    if differing:
        lines = [f"  {p}: saved {saved.get(p, 'nothing')}, expected {expected.get(p, 'nothing')}" for p in differing[:10]]
        more = [f"  and {len(differing) - 10} more"] if len(differing) > 10 else []
        heading = f"the checkpoint of step {summary.step} is of another state: use the settings and the version that made it"
        raise UsageError("\n".join([heading, *lines, *more]))


def store_name(index: int, leaf: LeafRecord) -> str:
    """The name of a leaf in the store: any path becomes letters that are safe there, the index keeps it unique."""
    return f"{index:04d}_" + re.sub(r"\W+", "_", leaf.path, flags=re.ASCII).strip("_")
