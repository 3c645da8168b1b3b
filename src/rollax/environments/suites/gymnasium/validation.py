"""Validation of gymnasium observations against the declared space."""

import warnings
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
from gymnasium import spaces as theirs

from rollax.environments.host_environment import SimulatorFaultError
from rollax.environments.suites.gymnasium.converters import ACTION_MASK, flatten_space
from rollax.types import Leaf, Observation

_BOUNDS_REMEDY = "Return values within these bounds, or declare wider ones."
_MAX_EXACT_INTEGER = 2**24  # networks receive integers as float32
_BOUNDS_TOLERANCE = 1e-5  # relative tolerance of the bounds of floats, for rounding


_Bound = float | np.ndarray  # the same bound for all values, or one for each


class _PartSpec(NamedTuple):
    """Declared properties of one leaf of an observation.

    Attributes:
        label: Name of the leaf in messages.
        path: Nested keys of the leaf in the observation.
        shape: Declared shape, without batch axes.
        low: Lower bounds.
        high: Upper bounds.
        dtype: Declared dtype.
        is_integer: Whether the values are integers or bool.
        has_type_bounds: Whether the bounds are the full range of the dtype.
        min_allowed: Lower bounds with a tolerance for rounding.
        max_allowed: Upper bounds with a tolerance for rounding.
    """

    label: str
    path: tuple[Any, ...]
    shape: tuple[int, ...]
    low: _Bound
    high: _Bound
    dtype: np.dtype
    is_integer: bool
    has_type_bounds: bool
    min_allowed: _Bound
    max_allowed: _Bound


class ObservationCheck:
    """Check of single or batched observations against a gymnasium space.

    `SimulatorFaultError` is raised for values that are not numbers, fractions in an integer space,
    and integers out of bounds. Floats out of bounds cause a single warning, as in gymnasium.
    """

    def __init__(
        self, name: str, space: theirs.Space, warned_parts: set[str] | None = None
    ) -> None:
        """Create an observation check.

        Args:
            name: Name of the environment, for warnings.
            space: Observation space that the environment declares.
            warned_parts: Set of the observation arrays that already caused a warning. All
                simulators of an environment share this set. None disables warnings.
        """
        self._name, self._space, self._warned_parts = name, space, warned_parts
        leaves = flatten_space(name, space)
        if leaves is None:
            self._parts = [_make_part_spec("the observation", (), space)]
        else:
            self._parts = [
                _make_part_spec(f"the observation's part {key!r}", path, leaf)
                for key, (leaf, path) in leaves.items()
            ]

    def __call__(self, obs: Observation, mask: Leaf = None) -> None:
        """Check an observation against the space, and check that an action mask has values 0 or 1.

        Args:
            obs: One observation or a batch.
            mask: Action mask from `info`, or None.

        Raises:
            SimulatorFaultError: If a value cannot belong to the space.
        """
        for part in self._parts:
            self._check(part, _select_part(part, obs))
        if mask is not None and np.asarray(mask).dtype != bool:
            self._check(
                _make_part_spec_from_bounds(
                    f"info[{ACTION_MASK!r}]", (), np.shape(mask), (0, 1), np.dtype(np.int8)
                ),
                mask,
            )

    def _check(self, part: _PartSpec, value: object) -> None:
        array = _to_array(part, value)
        if array.size == 0 or (part.has_type_bounds and array.dtype == part.dtype):
            return
        if (
            part.is_integer
            and array.dtype.kind == "f"
            and not np.array_equal(array, np.floor(array))
        ):
            raise SimulatorFaultError(_format_fault(part, array, _suggest_remedy(part, array)))
        is_outside = (array < part.min_allowed) | (array > part.max_allowed)
        if is_outside.any():
            outside_part, values = _select_outside(part, array, is_outside)
            if part.is_integer:
                raise SimulatorFaultError(_format_fault(outside_part, values, _BOUNDS_REMEDY))
            self.warn_once(part.label, _format_fault(outside_part, values, _BOUNDS_REMEDY))
        elif part.is_integer and np.abs(array.astype(float)).max() > _MAX_EXACT_INTEGER:
            self.warn_once(
                part.label,
                f"{part.label} has integers up to {array.max()}, which float32 rounds. Return "
                "smaller numbers, such as differences, or declare a Box of floats.",
            )
        elif part.dtype == np.uint8 and _is_likely_scaled(part, array):
            self.warn_once(part.label, _format_fault(part, array, _suggest_remedy(part, array)))

    def warn_about_undeclared_parts(self, obs: Observation) -> None:
        """Warn once about each entry of a dictionary that the space does not declare.

        Args:
            obs: One observation.
        """
        for path in _undeclared_paths(self._space, obs):
            label = f"the observation's part {'/'.join(map(str, path))!r}"
            self.warn_once(
                label,
                f"{label} is not declared in observation_space, so networks do not receive it. "
                "Declare it, or remove it from the observation.",
            )

    def warn_once(self, label: str, message: str) -> None:
        """Warn about a part of the environment's values, once for all simulators.

        Args:
            label: Name of the part.
            message: Text of the warning, without the name of the environment.
        """
        if self._warned_parts is not None and label not in self._warned_parts:
            self._warned_parts.add(label)
            warnings.warn(f"{self._name}: {message}", RuntimeWarning, stacklevel=2)


def _undeclared_paths(space: theirs.Space, obs: object) -> Iterator[tuple[Hashable, ...]]:
    """Yield the nested keys of an observation that its space does not declare."""
    if not isinstance(space, theirs.Dict) or not isinstance(obs, Mapping):
        return
    for key, value in obs.items():
        if key not in space.spaces:
            yield (key,)
        else:
            yield from ((key, *path) for path in _undeclared_paths(space.spaces[key], value))


def _select_outside(
    part: _PartSpec, array: np.ndarray, is_outside: np.ndarray
) -> tuple[_PartSpec, np.ndarray]:
    """Return the part and the values to report for values out of bounds.

    If each value has its own bounds, these are the bounds and the values of the first entry out of
    bounds.
    """
    if not np.ndim(part.low) and not np.ndim(part.high):
        return part, array
    index = tuple(np.argwhere(is_outside)[0][array.ndim - len(part.shape) :].tolist())
    low, high = (np.broadcast_to(bound, part.shape)[index] for bound in (part.low, part.high))
    label = f"{part.label} at index {list(index)}"
    return part._replace(label=label, low=low, high=high), array[(..., *index)]


def _format_fault(part: _PartSpec, array: np.ndarray, remedy: str) -> str:
    """Return the error message for values outside of their space."""
    kind = (
        "integers"
        if part.is_integer and part.dtype not in (np.uint8, bool)
        else f"{part.dtype.name} values"
    )
    declared = f"{kind} from {np.min(part.low):g} to {np.max(part.high):g}"
    received = f"{array.dtype.name} values from {array.min():g} to {array.max():g}"
    return f"{part.label} must have {declared}, as its space declares, got {received}. {remedy}"


def _make_part_spec(label: str, path: tuple[Hashable, ...], space: theirs.Space) -> _PartSpec:
    """Return the declared shape, dtype and bounds of one leaf of a gymnasium space."""
    if isinstance(space, theirs.Discrete):
        low, high = int(space.start), int(space.start) + int(space.n) - 1
    elif isinstance(space, theirs.MultiDiscrete):
        low, high = map(_collapse_bounds, (space.start, space.start + space.nvec - 1))
    elif isinstance(space, theirs.MultiBinary):
        low, high = 0, 1
    else:
        box = cast(theirs.Box, space)
        low, high = (_collapse_bounds(bound.astype(float)) for bound in (box.low, box.high))
    shape: Any = space.shape
    return _make_part_spec_from_bounds(
        label, path, tuple(shape), (low, high), np.dtype(space.dtype)
    )


def _make_part_spec_from_bounds(
    label: str,
    path: tuple[Hashable, ...],
    shape: tuple[int, ...],
    bounds: tuple[_Bound, _Bound],
    dtype: np.dtype,
) -> _PartSpec:
    low, high = bounds
    is_integer = dtype.kind in "biu"
    is_whole_type = dtype == np.uint8 and bool(np.all(low == 0) and np.all(high == 255))
    slack = 0 if is_integer else _BOUNDS_TOLERANCE * (1 + np.minimum(np.abs(low), np.abs(high)))
    is_whole_type = is_whole_type or dtype.kind == "b"
    return _PartSpec(
        label, path, shape, low, high, dtype, is_integer, is_whole_type, low - slack, high + slack
    )


def _collapse_bounds(bounds: np.ndarray) -> Any:
    """Return one bound as a scalar if all bounds are equal, else the array of bounds."""
    return bounds.flat[0] if bounds.size and (bounds == bounds.flat[0]).all() else bounds


def _select_part(part: _PartSpec, obs: Observation) -> Any:
    value = obs
    for key in part.path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError) as error:
            raise SimulatorFaultError(
                f"{part.label} must be present, because the space declares it, got "
                f"{_describe_structure(obs)}. Return all parts, or remove it from the space."
            ) from error
    return value


def _describe_structure(value: object) -> str:
    return (
        f"a dictionary of {', '.join(map(str, value))}"
        if isinstance(value, dict)
        else f"a {type(value).__name__}"
    )


def _to_array(part: _PartSpec, value: object) -> np.ndarray:
    """Convert a value to a numeric array of the declared shape, with any leading batch axes."""
    try:
        array = np.asarray(value)
    except Exception as error:  # rows of different lengths, or objects with an array interface
        raise SimulatorFaultError(
            f"{part.label} must be an array of numbers, got a {type(value).__name__} ({error})."
        ) from error
    if array.dtype.kind not in "biuf":
        raise SimulatorFaultError(
            f"{part.label} must be an array of numbers, got a {type(value).__name__} of type "
            f"{array.dtype}. Return a NumPy array of numbers."
        )
    if array.shape[array.ndim - len(part.shape) :] != part.shape or array.ndim < len(part.shape):
        raise SimulatorFaultError(
            f"{part.label} must have the shape {part.shape}, as its space declares, got "
            f"{array.shape}. "
            "Return that shape, or declare another."
        )
    return array


def _is_likely_scaled(part: _PartSpec, array: np.ndarray) -> bool:
    """Return whether 8-bit pixels were probably divided by 255.

    Floats with a maximum of exactly 1 are taken as divided.
    """
    is_picture = part.dtype == np.uint8 and np.max(part.high) == 255
    return is_picture and array.dtype.kind == "f" and array.max() == 1


def _suggest_remedy(part: _PartSpec, array: np.ndarray) -> str:
    if (
        part.dtype == np.uint8
        and np.max(part.high) == 255
        and array.min() >= 0
        and array.max() <= 1
    ):
        return "Return (255 * picture).astype(np.uint8), or declare Box(0, 1, shape, np.float32)."
    return "Return integers, or declare a Box of floats."
