"""Paths, comparison and device placement of the leaves of a state."""

import re
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rollax.errors import UsageError
from rollax.training.checkpoints.shards import ShardedLeaf
from rollax.training.checkpoints.summary import CheckpointSummary, LeafRecord
from rollax.training.spec_file import NEW_CONFIG_DEFAULTS
from rollax.types import Leaf, PyTree, State

T = TypeVar("T")

SETTING_PATH = re.compile(r"(?:.*\.)?config\.(\w+)")  # path of a setting in a state


def named_leaves(tree: PyTree) -> list[tuple[str, jax.Array | jax.ShapeDtypeStruct]]:
    """Return `(path, array)` for each leaf of a state. Python numbers are converted to arrays.

    Args:
        tree: State of a run.

    Raises:
        UsageError: If a leaf is not an array.
    """
    named = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        try:
            named.append(
                (
                    name,
                    leaf
                    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)
                    else jnp.asarray(leaf),
                )
            )
        except TypeError as error:
            raise UsageError(
                f"{name} in a state must be an array, got a {type(leaf).__name__}. Convert it."
            ) from error
    return named


class LeafChanges(NamedTuple):
    """Differences between the leaves of a checkpoint and those of the state that is read from it.

    Attributes:
        replaced: Arrays of the leaves that are not read from the checkpoint, keyed by path.
        unused: Paths of the leaves in the checkpoint that the state does not have.
    """

    replaced: Mapping[str, Leaf]
    unused: frozenset[str] = frozenset()


def add_missing_settings(summary: CheckpointSummary, template: State) -> LeafChanges:
    """Return the default of each setting that a checkpoint of an older version does not contain.

    Args:
        summary: Summary of the checkpoint.
        template: State, or its abstract shapes.

    Returns:
        The arrays of these settings. Only settings with a default in `NEW_CONFIG_DEFAULTS` are
        included.
    """
    saved = {leaf.path for leaf in summary.leaves}
    values = {}
    for path, leaf in named_leaves(template):
        match = SETTING_PATH.fullmatch(path.lstrip("."))
        if path not in saved and match is not None and match[1] in NEW_CONFIG_DEFAULTS:
            values[path] = np.full(leaf.shape, NEW_CONFIG_DEFAULTS[match[1]], leaf.dtype)
    return LeafChanges(values)


def place_arrays(
    arrays: list[np.ndarray | ShardedLeaf | None],
    records: list[LeafRecord],
    template: T,
    replaced: Mapping[str, Leaf],
) -> T:
    """Rebuild a state from saved arrays, in buffers that JAX owns and can donate.

    Args:
        arrays: Saved arrays in the order of `records`. A leaf without elements has None.
        records: Description of each leaf.
        template: State, or its abstract shapes, with the structure and the shardings of the result.
        replaced: Arrays of the leaves that are not read from the checkpoint, keyed by path.

    Returns:
        The state.
    """
    by_path = {
        record.path: (array, record.random) for array, record in zip(arrays, records, strict=True)
    }
    placed = []
    for path, leaf in named_leaves(template):
        if isinstance(replaced.get(path), jax.Array):
            placed.append(replaced[path])
            continue
        array, generator = (replaced[path], None) if path in replaced else by_path[path]
        if array is None:
            data = jax.eval_shape(jax.random.key_data, leaf) if generator else leaf
            array = np.empty(data.shape, data.dtype)
        if generator:
            # Only a compiled function can place keys on the devices of several processes.
            wrap = jax.jit(
                partial(jax.random.wrap_key_data, impl=generator), out_shardings=leaf.sharding
            )
            placed.append(wrap(np.asarray(array)))
        elif jax.process_count() > 1:
            placed.append(
                jax.make_array_from_callback(leaf.shape, leaf.sharding, partial(_copy_slice, array))
            )
        else:
            placed.append(jax.device_put(np.asarray(array), leaf.sharding, may_alias=False))
    return jax.tree.unflatten(jax.tree.structure(template), placed)


def _copy_slice(array: Leaf, index: tuple[slice, ...] | None) -> np.ndarray:
    """Return a copy of `array[index]`, the slice that one device of this process holds."""
    return np.array(array[index])


def check_same_leaves(
    summary: CheckpointSummary,
    template: State,
    changes: LeafChanges,
    ignores_optimizer: bool = False,
) -> None:
    """Check that the leaves of a checkpoint match those of a state.

    Args:
        summary: Summary of the checkpoint.
        template: State, or its abstract shapes.
        changes: Leaves that may differ.
        ignores_optimizer: Whether the states of optimizers may differ, because the functions that
            make the optimizers are not known.

    Raises:
        UsageError: If paths, types or shapes differ. The message names up to ten differences.
    """
    saved = {leaf.path: f"{leaf.dtype}{list(leaf.shape)}" for leaf in summary.leaves}
    expected = {path: f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in named_leaves(template)}
    differing = [
        path
        for path in saved | expected
        if saved.get(path) != expected.get(path)
        and path not in changes.replaced
        and path not in changes.unused
        and not (ignores_optimizer and ".optimizer" in path)
    ]
    generators = {leaf.path: leaf.random for leaf in summary.leaves if leaf.random}
    if differing and all(
        expected.get(path, "").startswith("key<") and path in generators for path in differing
    ):
        path, generator = differing[0], generators[differing[0]]
        raise UsageError(
            f"The checkpoint of step {summary.step} must be read with the random number generator "
            f"{generator}: {path} is {saved[path]} there, got {expected[path]}. Set "
            f"JAX_DEFAULT_PRNG_IMPL={generator}."
        )
    if differing:
        lines = [
            f"  {p}: saved {saved.get(p, 'nothing')}, expected {expected.get(p, 'nothing')}"
            for p in differing[:10]
        ]
        omitted_lines = [f"  and {len(differing) - 10} more"] if len(differing) > 10 else []
        name, remedy = "state", "Use the settings and the version that made it."
        if all(".optimizer" in path for path in differing):
            name = "optimizer"
            remedy = "Use the optimizer that made it, or train a new run with init_from=RUN."
        heading = f"The checkpoint of step {summary.step} does not match the {name}. {remedy}"
        raise UsageError("\n".join([heading, *lines, *omitted_lines]))


def store_name(index: int, leaf: LeafRecord) -> str:
    """Return a file name for a leaf: its index, and its path with special characters replaced."""
    return f"{index:04d}_" + re.sub(r"\W+", "_", leaf.path, flags=re.ASCII).strip("_")
