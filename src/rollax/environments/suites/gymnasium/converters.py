"""Conversion of spaces, observations and actions between gymnasium and rollax."""

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as theirs

from rollax.environments import image_layouts
from rollax.environments.environment import SpaceConversion
from rollax.errors import UnknownNameError, UsageError
from rollax.spaces import (
    MAX_DISCRETE_SIZE,
    ActionSpace,
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    Space,
    Tuple,
)
from rollax.types import Observation
from rollax.user_input.coercion import format_value

ACTION_MASK = "action_mask"
ConvertFn = Callable[[Any], Any]
Layout = str | Mapping[str, str] | None  # layout of all pictures, or layouts by name of the part


def convert_observation_space(
    name: str, space: theirs.Space, layout: Layout = None
) -> tuple[Space, ConvertFn]:
    """Convert a gymnasium space to an observation space.

    8-bit integers stay 8-bit, other numbers become float32, and the values of a `Discrete` start at
    0. A key "action_mask" becomes bool. The channels and stacked frames of images become the last
    axis. Nested dictionaries and tuples are flattened to one dictionary with keys joined by
    slashes.

    Args:
        name: Name of the environment, for error messages.
        space: Gymnasium space.
        layout: Layout of images (see `rollax.environments.image_layouts`), or None to recognize
            it. A string applies to all boxes with that number of axes. A dictionary contains
            layouts, keyed by the flattened key of the array.

    Returns:
        The space, and the function that converts single or batched gymnasium observations. The
        function does not convert dtypes (see `make_observation_converter`).

    Raises:
        UsageError: If the space has no counterpart, two flattened keys are equal, or a layout does
            not fit.
    """
    parts = flatten_space(name, space)
    _check_layout_names(name, layout, parts)
    if parts is None:
        return _convert_leaf_space(name, space, layout if isinstance(layout, str) else None)
    conversions = {
        part_name: _convert_leaf_space(
            f"{name}, part {part_name}", inner, _get_part_layout(part_name, inner, layout)
        )
        for part_name, (inner, _) in parts.items()
    }
    if isinstance(parts.get(ACTION_MASK, [None])[0], theirs.Box | theirs.MultiBinary):
        conversions[ACTION_MASK] = Box(0.0, 1.0, parts[ACTION_MASK][0].shape, "bool"), _identity
    part_conversions = [
        (part_name, _make_getter(path), conversions[part_name][1])
        for part_name, (_, path) in parts.items()
    ]
    return Dict(
        {part_name: inner for part_name, (inner, _) in conversions.items()}
    ), lambda value: {
        part_name: convert(get_fn(value)) for part_name, get_fn, convert in part_conversions
    }


def make_observation_converter(space: Space, arrange: ConvertFn) -> ConvertFn:
    """Return a function that converts gymnasium observations to arrays with the space's dtypes.

    Args:
        space: Converted observation space.
        arrange: Conversion function from `convert_observation_space`.

    Returns:
        Function from a gymnasium observation to an array or a dictionary of arrays.
    """
    if isinstance(space, Dict):
        leaves: dict[str, Any] = dict(space.spaces)
        types = {name: np.dtype(part.dtype) for name, part in leaves.items()}
        return lambda value: {
            name: np.asarray(part, types[name]) for name, part in arrange(value).items()
        }
    assert not isinstance(space, Tuple), "tuples of observations are flattened"
    dtype = np.dtype(space.dtype)
    return lambda value: np.asarray(arrange(value), dtype)


def convert_action_space(name: str, space: theirs.Space) -> tuple[ActionSpace, ConvertFn]:
    """Convert a gymnasium space to an action space.

    Args:
        name: Name of the environment, for error messages.
        space: Gymnasium space.

    Returns:
        The space, and the function that converts an action to a gymnasium action.

    Raises:
        UsageError: If the space has no counterpart.
    """
    if isinstance(space, theirs.Dict):
        parts = {
            key: convert_action_space(f"{name}, action {key}", part)
            for key, part in space.spaces.items()
        }
        return Dict({key: part for key, (part, _) in parts.items()}), lambda value: {
            key: convert(value[key]) for key, (_, convert) in parts.items()
        }
    if isinstance(space, theirs.Tuple):
        entries = [
            convert_action_space(f"{name}, action {index}", part)
            for index, part in enumerate(space.spaces)
        ]
        return Tuple(tuple(part for part, _ in entries)), lambda value: tuple(
            convert(x) for (_, convert), x in zip(entries, value, strict=True)
        )
    if isinstance(space, theirs.Discrete):
        _check_discrete_size(name, space.n, space)
        # np.int64 by default, like the samples of gymnasium spaces.
        start, kind = (
            space.start,
            space.dtype.type,
        )
        return Discrete(int(space.n)), (lambda value: kind(kind(value) + start)) if start else kind
    if isinstance(space, theirs.MultiDiscrete) and space.nvec.ndim == 1:
        starts, dtype = np.asarray(space.start), space.dtype
        return MultiDiscrete(tuple(space.nvec.tolist())), lambda value: (value + starts).astype(
            dtype
        )
    if isinstance(space, theirs.MultiBinary) and len(space.shape) == 1:
        return MultiDiscrete((2,) * space.shape[0]), lambda value: np.asarray(value, np.int8)
    if isinstance(space, theirs.Box) and np.issubdtype(space.dtype, np.floating):
        low, high, dtype = space.low, space.high, space.dtype
        # Actions may be out of bounds after rounding to float32.
        box = Box(collapse_bounds(low), collapse_bounds(high), space.shape)
        return box, lambda value: np.clip(np.asarray(value, dtype), low, high)
    raise UsageError(
        f"{name}: the action space {_format_space(space)} has no counterpart. It must be a "
        "Discrete, a MultiDiscrete or MultiBinary with one axis, a Box of floats, or a Dict or "
        "Tuple of these. Convert it with gymnasium.wrappers.TransformAction and pass the result "
        "to rollax.from_gymnasium."
    )


def space_conversion(
    name: str, observations: theirs.Space | str, arrange: ConvertFn, actions: theirs.Space
) -> SpaceConversion:
    """Return the conversion of observations and actions between gymnasium and rollax.

    Args:
        name: Name of the environment, for error messages.
        observations: Gymnasium observation space, or a description of it.
        arrange: Conversion function from `convert_observation_space`.
        actions: Gymnasium action space.

    Returns:
        The conversion. Its observation function raises UsageError for values outside of the space.
    """
    convert_action = make_batch_action_fn(name, actions)
    return make_space_conversion(
        f"{name}: {_format_space(observations)}",
        arrange,
        lambda action, obs: convert_action(action),
    )


def make_space_conversion(
    description: str, arrange: ConvertFn, convert_action: Callable[[Any, Any], Any]
) -> SpaceConversion:
    """Return a conversion that raises UsageError for observations outside of the space.

    Args:
        description: Description of the observation space.
        arrange: Function that converts observations. It raises an exception for invalid ones.
        convert_action: Function from actions and the observations that caused them to actions of
            the suite.
    """

    def convert_observation(value: Observation) -> Any:
        try:
            return arrange(value)
        except UnknownNameError:
            raise
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"The observation must belong to {description}.") from error

    return SpaceConversion(convert_observation, convert_action, description)


def make_batch_action_fn(name: str, space: theirs.Space) -> ConvertFn:
    """Return the function that converts single actions and batches to gymnasium actions.

    Args:
        name: Name of the environment, for error messages.
        space: Gymnasium space of a single action.
    """
    if isinstance(space, theirs.Discrete):
        return lambda value: (value + space.start).astype(space.dtype)
    if isinstance(space, theirs.Dict):
        parts = {key: make_batch_action_fn(name, part) for key, part in space.spaces.items()}
        return lambda value: {key: convert(value[key]) for key, convert in parts.items()}
    if isinstance(space, theirs.Tuple):
        entries = [make_batch_action_fn(name, part) for part in space.spaces]
        return lambda value: tuple(convert(x) for convert, x in zip(entries, value, strict=True))
    return convert_action_space(name, space)[1]


def check_structure(space: theirs.Space, value: Observation) -> None:
    """Check that a value has the dictionaries and tuples of a space. Leaves may be batches.

    Lists are not accepted as tuples, because a list of tuples would be indexed along the wrong
    axis.

    Raises:
        TypeError: If a tuple is missing or has the wrong length.
        KeyError: If a dictionary lacks a key.
    """
    parts: dict[Any, Any] = {}
    if isinstance(space, theirs.Tuple):
        parts = dict(enumerate(space.spaces))
        if not isinstance(value, tuple) or len(value) != len(parts):
            raise TypeError
    elif isinstance(space, theirs.Dict):
        parts = dict(space.spaces)
    for name, part in parts.items():
        check_structure(part, value[name])


def add_action_mask(value: Observation, mask: np.ndarray) -> dict[str, Any]:
    """Return a converted observation as a dictionary with the additional key "action_mask"."""
    return {**(value if isinstance(value, dict) else {"observation": value}), ACTION_MASK: mask}


def flatten_space(name: str, space: theirs.Space) -> dict[str, tuple[Any, tuple[Any, ...]]] | None:
    """Flatten a `Dict` or `Tuple` space.

    Args:
        name: Name of the environment, for error messages.
        space: Gymnasium space.

    Returns:
        A pair of subspace and path (nested keys) for each leaf, keyed by the path joined with
        slashes. None for other spaces.

    Raises:
        UsageError: If two leaves get the same key.
    """
    if isinstance(space, theirs.Dict):
        inner = dict(space.spaces)
    elif isinstance(space, theirs.Tuple):
        inner = dict(enumerate(space.spaces))
    else:
        return None
    leaves_by_name: dict[str, tuple[Any, tuple[Any, ...]]] = {}
    for key, part in inner.items():
        nested = flatten_space(name, part)
        leaves = {"": (part, ())} if nested is None else nested
        for nested_name, (leaf, path) in leaves.items():
            full_name = f"{key}/{nested_name}" if nested_name else str(key)
            if full_name in leaves_by_name:
                raise UsageError(
                    f"{name}: the parts of observation_space must have different names, got two "
                    f"named {full_name!r} (the names of nested parts are joined by a slash). "
                    "Rename one of them."
                )
            leaves_by_name[full_name] = leaf, (key, *path)
    return leaves_by_name


def _check_layout_names(name: str, layout: Layout, parts: Mapping[str, object] | None) -> None:
    """Raise an error if a layout has the wrong type or an unknown key.

    Raises:
        UnknownNameError: If the observation does not have a key of the layout.
        UsageError: If the layout is neither a string nor a dictionary.
    """
    if isinstance(layout, Mapping):
        for part in layout:
            if part not in (parts or {}):
                raise UnknownNameError(
                    f"part of the observations of {name} in layout", str(part), parts or {}
                )
    elif layout is not None and not isinstance(layout, str):
        raise UsageError(
            "layout must be a string such as 'CHW', or a dictionary of such strings by part, got "
            f"{format_value(layout)}."
        )


def _get_part_layout(part: str, space: theirs.Space, layout: Layout) -> str | None:
    """Return the layout of the array with the flattened key `part`, or None if it is not declared.

    A string applies to all boxes with that number of axes.
    """
    if isinstance(layout, str):
        is_fitting = layout == image_layouts.FLAT or len(layout) == len(space.shape or ())
        return layout if is_fitting and isinstance(space, theirs.Box) else None
    return None if layout is None else layout.get(part)


def _make_getter(path: tuple[Hashable, ...]) -> ConvertFn:
    def get_value(value: Observation) -> Any:
        for name in path:
            value = value[name]
        return value

    return get_value


def _convert_leaf_space(
    name: str, space: theirs.Space, layout: str | None = None
) -> tuple[Space, ConvertFn]:
    if isinstance(space, theirs.Discrete):
        _check_discrete_size(name, space.n, space)
        return Discrete(int(space.n)), _make_shift_fn(space.start)
    if isinstance(space, theirs.MultiDiscrete) and space.nvec.ndim == 1:
        return MultiDiscrete(tuple(space.nvec.tolist())), _make_shift_fn(space.start)
    if isinstance(space, theirs.MultiBinary):
        return Box(0.0, 1.0, space.shape), _identity
    if isinstance(space, theirs.Box):
        return _convert_box(name, space, layout)
    raise UsageError(
        f"{name}: the observation space {_format_space(space)} has no counterpart. It must be a "
        "Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these. Convert it with "
        "gymnasium.wrappers.TransformObservation and pass the result to rollax.from_gymnasium."
    )


def _check_discrete_size(name: str, size: int | np.integer, space: theirs.Space) -> None:
    """Raise UsageError for a discrete space with 2^31 values or more."""
    if size >= MAX_DISCRETE_SIZE:
        raise UsageError(
            f"{name}: a Discrete space must have fewer than 2^31 values, got "
            f"{_format_space(space)}. "
            "Declare a Box, or a MultiDiscrete of its digits."
        )


def _convert_box(name: str, space: theirs.Box, layout: str | None) -> tuple[Box, ConvertFn]:
    """Return the converted box and the function that converts its values.

    Channels of images become the last axis.
    """
    dtype = "uint8" if space.dtype == np.uint8 else "float32"
    box = Box(collapse_bounds(space.low), collapse_bounds(space.high), space.shape, dtype)
    fault = image_layouts.layout_fault(space.shape, layout)
    if fault is not None:
        raise UsageError(f"{name}: {fault}")
    # The declared bounds and type distinguish pixels from category codes.
    declared = dataclasses.replace(box, dtype=space.dtype.name, layout=layout)
    detected_layout = image_layouts.image_layout(declared)
    if detected_layout is None:
        is_recognized = image_layouts.image_layout(box) is None
        return box if is_recognized else dataclasses.replace(
            box, layout=image_layouts.FLAT
        ), _identity
    low, high = (
        image_layouts.move_channels_last(bound, detected_layout)
        for bound in (space.low, space.high)
    )
    converted = Box(collapse_bounds(low), collapse_bounds(high), low.shape, dtype)
    is_recognized = image_layouts.recognize_layout(converted) == "HWC"
    arrange = (
        _identity
        if detected_layout == "HWC"
        else (lambda value: image_layouts.move_channels_last(np.asarray(value), detected_layout))
    )
    return converted if is_recognized else dataclasses.replace(converted, layout="HWC"), arrange


def chw_to_hwc(value: np.ndarray) -> np.ndarray:
    """Transpose images from `[..., C, H, W]` to `[..., H, W, C]`."""
    return image_layouts.move_channels_last(np.asarray(value), "CHW")


def _identity(value: Observation) -> Any:
    return value


def _make_shift_fn(start: np.ndarray | np.integer | int) -> ConvertFn:
    first = np.asarray(start)
    return (lambda value: np.asarray(value) - first) if np.any(first) else _identity


def collapse_bounds(bounds: np.ndarray) -> Any:
    """Return one bound as a scalar if all bounds are equal, else the array of bounds."""
    first = float(np.ravel(bounds)[0]) if bounds.size else math.inf
    return first if np.all(bounds == first) else bounds


def _format_space(space: object) -> str:
    text = str(space)
    return text if len(text) <= 80 else f"{text[:80]}..."
