"""Warm start: the initial state of a new run from the parts of another run's state.

Arrays are matched by their path in the state. An array that has the same shape in both runs is
copied. An array that depends on the observations or actions is copied entry by entry (see
`axis_labels`) if the spaces differ. All other arrays keep their initial values.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.algorithm import Algorithm
from rollax.errors import UsageError
from rollax.training.checkpoints.axis_labels import AxisLabels, LabeledArrays, label_axes
from rollax.training.run_folder.files import (
    MAX_SMALL_FILE_BYTES,
    read_regular_file,
    write_atomically,
)
from rollax.types import Leaf, PyTree, Record, State

WARM_START_FILE = "warm_start.json"
DEFAULT_PARTS = ("networks", "statistics")
_ATOMIC_PARTS = ("replay", "archive")  # parts that are copied completely or not at all
_MAX_LISTED_ARRAYS = 8


class SourceParts(NamedTuple):
    """Parts of the state of a run that a warm start can copy.

    Attributes:
        run: Folder of the run.
        algorithm: Name of the algorithm.
        environment: Name of the environment.
        step: Environment step of the checkpoint.
        num_members: Number of members. If it is greater than 1, arrays have a leading axis of
            members.
        parts: Parts of the state, as returned by `Algorithm.parts`.
    """

    run: str
    algorithm: str
    environment: str
    step: int
    num_members: int
    parts: dict[str, PyTree]


class AlignedAxis(NamedTuple):
    """Positions of the entries that two arrays share along one axis.

    Attributes:
        axis: Index of the axis from the end.
        source: Positions in the source.
        target: Positions of the same entries in the new run.
        zeros: Positions in the new run that are set to 0, because they belong to new inputs.
    """

    axis: int
    source: list[int]
    target: list[int]
    zeros: list[int]


class ArrayMatch(NamedTuple):
    """Match between an array of the new run and an array of the source.

    Attributes:
        name: Part and path of the array, such as "networks.critic.head.layer.bias".
        source_shape: Shape in the source without the axis of members, or None if the source does
            not have the array.
        target_shape: Shape in the new run without the axis of members, or None if the new run does
            not have the array.
        array: Array of the source, or None if nothing is copied.
        axes: Aligned axes of an array that is copied entry by entry, otherwise `()`.
    """

    name: str
    source_shape: tuple[int, ...] | None
    target_shape: tuple[int, ...] | None
    array: Leaf | None = None
    axes: tuple[AlignedAxis, ...] = ()

    @property
    def outcome(self) -> str:
        """Whether the array is "copied", "adapted", "initialized" or "unused"."""
        if self.target_shape is None:
            return "unused"
        if self.array is None:
            return "initialized"
        return "adapted" if self.axes else "copied"

    def __str__(self) -> str:
        shapes = [
            "absent" if shape is None else str(list(shape))
            for shape in (self.source_shape, self.target_shape)
        ]
        return f"{self.name} {' -> '.join(dict.fromkeys(shapes))}"


class WarmStart(NamedTuple):
    """Source of a warm start, and the match of every array of the copied parts."""

    source: SourceParts
    matches: tuple[ArrayMatch, ...]

    def names(self, outcome: str) -> list[str]:
        """Return the descriptions of all arrays with an outcome (see `ArrayMatch.outcome`)."""
        return [str(match) for match in self.matches if match.outcome == outcome]

    def record(self) -> Record:
        """Return the content of warm_start.json."""
        source = self.source._asdict()
        del source["parts"]
        outcomes = ("copied", "adapted", "initialized", "unused")
        return source | {outcome: self.names(outcome) for outcome in outcomes}


def plan_warm_start(
    source: SourceParts,
    target: Mapping[str, PyTree],
    part_names: Sequence[str],
    num_members: int,
    strict: bool,
) -> WarmStart:
    """Match the arrays of a new run with those of a source, before the run starts.

    Args:
        source: Parts of the source.
        target: Parts of the abstract state of one member of the new run.
        part_names: Names of the parts to copy. If empty, the `DEFAULT_PARTS` are copied, or the
            archive of an algorithm without networks.
        num_members: Number of members of the new run.
        strict: Whether to raise an error if an array cannot be copied unchanged.

    Returns:
        The warm start.

    Raises:
        UsageError: If the numbers of members differ and the source has more than one, if one of the
            runs does not have a chosen part, if no weights can be copied, or if `strict` is true
            and an array cannot be copied unchanged.
    """
    if source.num_members not in (1, num_members):
        numbers = "1 member" if num_members == 1 else f"1 or {num_members} members"
        raise UsageError(
            f"{source.run} must have {numbers} to start this run, got {source.num_members}. Set "
            f"seeds to {source.num_members}, or pass one member: "
            f"init_from=rollax.load({source.run!r}, member=0)."
        )
    names = part_names or [name for name in DEFAULT_PARTS if name in target] or ["archive"]
    for name in names:
        missing = [
            run
            for run, parts in (("init_from", source.parts), ("the new run", target))
            if not jax.tree.leaves(parts.get(name))
        ]
        if missing and part_names:
            known = [part for part in target if jax.tree.leaves(source.parts.get(part))]
            raise UsageError(
                f"init_parts must be parts of both runs ({', '.join(known) or 'none'}), got "
                f"{name}, which {missing[0]} does not have. Remove it, or pass a run that has it: "
                "its folder, or its result if it used a custom optimizer."
            )
    matches = tuple(
        match for name in names for match in _match_part(name, source, target.get(name))
    )
    warm_start = WarmStart(source, matches)
    _check_matches(warm_start, strict)
    return warm_start


def _check_matches(warm_start: WarmStart, strict: bool) -> None:
    """Raise UsageError if nothing can be copied, or a strict start would change an array."""
    run, matches = warm_start.source.run, warm_start.matches
    others = [str(match) for match in matches if match.outcome != "copied"]
    # Biases often have the same shape in unrelated networks, so only weights count.
    weights = [
        match
        for match in matches
        if match.name.startswith("networks") and len(match.target_shape or ()) > 1
    ]
    if all(match.array is None for match in weights or matches):
        raise UsageError(
            f"No weights of {run} ({warm_start.source.algorithm}) fit this run. Use the same kind "
            f"of algorithm and the same network settings. Arrays: {_shorten(others)}."
        )
    if strict and others:
        raise UsageError(
            f"{len(others)} of {len(matches)} arrays of {run} do not fit this run: "
            f"{_shorten(others)}. Use the same settings, or set strict to False to copy the rest."
        )


def _shorten(descriptions: list[str]) -> str:
    """Join the first descriptions, and append the number of omitted ones."""
    listed = "; ".join(descriptions[:_MAX_LISTED_ARRAYS])
    number = len(descriptions) - _MAX_LISTED_ARRAYS
    return f"{listed}; and {number} more" if number > 0 else listed


def _match_part(name: str, source: SourceParts, target: PyTree) -> list[ArrayMatch]:
    """Match the arrays of one part. The parts in `_ATOMIC_PARTS` match completely or not at all."""
    old, new = _named_leaves(source.parts.get(name)), _named_leaves(target)
    num_leading = int(source.num_members > 1)
    old_shapes = {path: tuple(leaf.shape[num_leading:]) for path, leaf in old.items()}
    new_shapes = {path: tuple(leaf.shape) for path, leaf in new.items()}
    if name == "statistics":
        old_labels, new_labels = map(_label_entries, (old_shapes, new_shapes))
    else:
        old_labels, new_labels = label_axes(source.parts.get(name)), label_axes(target)
    matches = []
    for path in old | new:
        match = ArrayMatch(f"{name}{path}", old_shapes.get(path), new_shapes.get(path))
        if path in old and path in new and old[path].dtype == new[path].dtype:
            old_array = old_shapes[path], old_labels.get(path, ())
            new_array = new_shapes[path], new_labels.get(path, ())
            axes = _align_arrays(*old_array, *new_array)
            match = match if axes is None else match._replace(array=old[path], axes=axes)
        matches.append(match)
    if name in _ATOMIC_PARTS and any(match.outcome != "copied" for match in matches):
        return [match._replace(array=None, axes=()) for match in matches]
    return matches


def _named_leaves(tree: PyTree) -> dict[str, Any]:
    """Return the leaves of a pytree, keyed by their path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def _label_entries(shapes: dict[str, tuple[int, ...]]) -> LabeledArrays:
    """Label the entries of statistics by their position along each axis."""
    return {
        path: tuple(
            AxisLabels(axis, tuple((i,) for i in range(shape[axis])), False)
            for axis in range(-len(shape), 0)
        )
        for path, shape in shapes.items()
    }


def _align_arrays(
    old_shape: tuple[int, ...],
    old_labels: tuple[AxisLabels, ...],
    new_shape: tuple[int, ...],
    new_labels: tuple[AxisLabels, ...],
) -> tuple[AlignedAxis, ...] | None:
    """Return the aligned axes of two arrays.

    Return `()` if the array is copied as a whole, or None if the arrays do not fit.
    """
    if old_labels == new_labels:
        return () if old_shape == new_shape else None
    labeled = [labels.axis for labels in new_labels]
    if [labels.axis for labels in old_labels] != labeled:
        return None
    old_rest, new_rest = (
        [size for axis, size in enumerate(shape, -len(shape)) if axis not in labeled]
        for shape in (old_shape, new_shape)
    )
    axes = tuple(_align_axis(*pair) for pair in zip(old_labels, new_labels, strict=True))
    return axes if old_rest == new_rest and all(axis.source for axis in axes) else None


def _align_axis(old: AxisLabels, new: AxisLabels) -> AlignedAxis:
    """Return the positions of the labels that two axes share."""
    positions = {label: position for position, label in enumerate(old.labels)}
    shared = [position for position, label in enumerate(new.labels) if label in positions]
    added = [position for position, label in enumerate(new.labels) if label not in positions]
    return AlignedAxis(
        axis=new.axis,
        source=[positions[new.labels[position]] for position in shared],
        target=shared,
        zeros=added if new.is_input else [],
    )


def apply_warm_start(warm_start: WarmStart, algorithm: Algorithm, state: State) -> State:
    """Return the initial state of a run with the arrays of a warm start.

    Args:
        warm_start: Source and matched arrays.
        algorithm: Algorithm, vectorized over members if the state is of a population.
        state: Initial state.

    Returns:
        The state, with the shardings of `state`.
    """
    leaves, structure = jax.tree.flatten(state)
    # `parts` only selects nodes, so it also selects the positions of leaves.
    positions = algorithm.parts(structure.unflatten(range(len(leaves))))
    by_name = {
        f"{part}{path}": position
        for part, tree in positions.items()
        for path, position in _named_leaves(tree).items()
    }
    for match in warm_start.matches:
        if match.array is not None:
            position = by_name[match.name]
            leaves[position] = _copy_array(match, leaves[position])
    return structure.unflatten(leaves)


def _copy_array(match: ArrayMatch, initial: jax.Array) -> jax.Array:
    """Return the array of the new run: `initial`, with the matched entries of the source array.

    The result has the shape and the sharding of `initial`, in a buffer that JAX can donate.
    """
    assert match.array is not None, "an array without a counterpart keeps its initialization"
    if not match.axes:
        value = jnp.broadcast_to(match.array, initial.shape)
    else:
        source, value = np.asarray(match.array), np.array(initial)
        index = [np.arange(size) for size in value.shape]
        for axis in match.axes:
            after = (slice(None),) * (-axis.axis - 1)
            value[(..., axis.zeros, *after)] = 0
            source = np.take(source, axis.source, axis.axis)
            index[axis.axis] = np.asarray(axis.target)
        value[np.ix_(*index)] = source
    return jax.device_put(value, initial.sharding, may_alias=False)


def describe_warm_start(warm_start: WarmStart) -> Iterator[str]:
    """Yield the lines of a summary of the copied, adapted, initialized and unused arrays."""
    source = warm_start.source
    yield (
        f"Warm start from {source.run} at step {source.step:,} "
        f"({source.algorithm}, {source.environment})"
    )
    yield from describe_outcomes(
        len(warm_start.names("copied")),
        {outcome: warm_start.names(outcome) for outcome in ("adapted", "initialized", "unused")},
    )


def describe_outcomes(num_copied: int, others: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield lines with the number of copied arrays, and with the other arrays by their outcome."""
    yield f"  copied       {num_copied} arrays"
    for outcome, names in others.items():
        if names:
            yield f"  {outcome:<12} {_shorten(names)}"


def write_warm_start(folder: Path, warm_start: WarmStart) -> None:
    """Write the source and the matched arrays of a warm start to the folder of a run."""
    content = json.dumps(warm_start.record(), indent=2).encode()
    write_atomically(folder / WARM_START_FILE, content)


def summarize_warm_start(folder: Path) -> str:
    """Return one line about the warm start of a run, or "" if its record is missing or invalid."""
    try:
        record = json.loads(read_regular_file(folder / WARM_START_FILE, MAX_SMALL_FILE_BYTES))
        counts = [len(record[outcome]) for outcome in ("copied", "adapted", "initialized")]
        return (
            f"{record['run']} at step {int(record['step']):,} ({record['algorithm']}, "
            f"{record['environment']}): {counts[0]} arrays copied, {counts[1]} adapted, "
            f"{counts[2]} initialized"
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return ""
