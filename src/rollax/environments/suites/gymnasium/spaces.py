"""Spaces of gymnasium as those of rollax, and values from the one to the other."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces as theirs

from rollax.environments.hosted import Translation
from rollax.errors import UsageError
from rollax.spaces import ActionSpace, Box, Dict, Discrete, MultiDiscrete, Space

MASK = "action_mask"
Convert = Callable[[Any], Any]
_SMALLEST = 24  # pixels of a picture's side, and more than it has channels


def observation(name: str, space: Any) -> tuple[Space, Convert]:
    """The space of observations, and what arranges gymnasium's observations, one or a batch, as that space has them.

    8-bit images stay 8-bit, with their channels last; other numbers become float32, integers of a `Discrete` begin at 0, a part
    "action_mask" becomes bool. Parts of dictionaries and tuples within others have names with a slash. Types of numbers are
    left to `typed`.

    Raises UsageError for a space that has no counterpart.
    """
    parts = _parts(space)
    if parts is None:
        return _leaf(name, space)
    made = {part: _leaf(f"{name}, part {part}", inner) for part, (inner, _) in parts.items()}
    if isinstance(parts.get(MASK, [None])[0], theirs.Box | theirs.MultiBinary):
        made[MASK] = Box(0.0, 1.0, parts[MASK][0].shape, "bool"), _as_it_is
    found = [(part, _at(path), made[part][1]) for part, (_, path) in parts.items()]
    space = Dict({part: inner for part, (inner, _) in made.items()})
    return space, lambda value: {part: convert(pick(value)) for part, pick, convert in found}


def typed(space: Space, arrange: Convert) -> Convert:
    """What arranges observations as that space has them, in arrays of its types."""
    if isinstance(space, Dict):
        leaves: dict[str, Any] = dict(space.spaces)
        types = {name: np.dtype(part.dtype) for name, part in leaves.items()}
        return lambda value: {name: np.asarray(part, types[name]) for name, part in arrange(value).items()}
    dtype = np.dtype(space.dtype)
    return lambda value: np.asarray(arrange(value), dtype)


def action(name: str, space: Any) -> tuple[ActionSpace, Convert]:
    """The space of actions, and what makes one of our actions one of gymnasium's. Raises UsageError as `observation` does."""
    if isinstance(space, theirs.Discrete):
        start = int(space.start)
        return Discrete(int(space.n)), lambda value: int(value) + start
    if isinstance(space, theirs.MultiDiscrete) and space.nvec.ndim == 1:
        starts, dtype = np.asarray(space.start), space.dtype
        return MultiDiscrete(tuple(space.nvec.tolist())), lambda value: (value + starts).astype(dtype)
    if isinstance(space, theirs.MultiBinary) and len(space.shape) == 1:
        return MultiDiscrete((2,) * space.shape[0]), lambda value: np.asarray(value, np.int8)
    if isinstance(space, theirs.Box) and np.issubdtype(space.dtype, np.floating):
        low, high, dtype = space.low, space.high, space.dtype
        # Rounding to float32 on the way may have left the bounds.
        return _box(space), lambda value: np.clip(np.asarray(value, dtype), low, high)
    raise UsageError(
        f"{name}: actions {_shown(space)} have no counterpart: they must be Discrete, MultiDiscrete or MultiBinary of one "
        "axis, or a Box of floats; gymnasium.wrappers.TransformAction can make them so (rollax.from_gymnasium takes what it "
        "wraps)"
    )


def translation(name: str, observations: Any, arrange: Convert, actions: Any) -> Translation:
    """What `arrange` makes of observations, which are as `observations` says, and actions of gymnasium's space for ours."""
    _, act = action(name, actions)
    description = f"{name}: {_shown(observations)}"

    def with_start(value: Any) -> Any:  # also a batch
        return (value + actions.start).astype(actions.dtype)

    def arranged(value: Any) -> Any:
        try:
            return arrange(value)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"an observation must be of {description}") from error

    return Translation(arranged, with_start if isinstance(actions, theirs.Discrete) else act, description)


def check_form(space: Any, value: Any) -> None:
    """Raises TypeError or KeyError unless dictionaries and tuples are where the space has them; those of a batch hold arrays.
    A list of tuples would be read across."""
    parts: dict[Any, Any] = {}
    if isinstance(space, theirs.Tuple):
        parts = dict(enumerate(space.spaces))
        if not isinstance(value, tuple) or len(value) != len(parts):
            raise TypeError
    elif isinstance(space, theirs.Dict):
        parts = dict(space.spaces)
    for name, part in parts.items():
        check_form(part, value[name])


def with_mask(value: Any, mask: Any) -> dict[str, Any]:
    """An arranged observation with the legal actions as a part of it."""
    return {**(value if isinstance(value, dict) else {"observation": value}), MASK: mask}


def _parts(space: Any) -> dict[str, tuple[Any, tuple[Any, ...]]] | None:
    """The leaves of dictionaries and tuples by name, each with the path to it; None for another space."""
    if isinstance(space, theirs.Dict):
        inner = dict(space.spaces)
    elif isinstance(space, theirs.Tuple):
        inner = dict(enumerate(space.spaces))
    else:
        return None
    found: dict[str, tuple[Any, tuple[Any, ...]]] = {}
    for name, part in inner.items():
        below = _parts(part)
        if below is None:
            found[str(name)] = part, (name,)
        else:
            found |= {f"{name}/{other}": (leaf, (name, *path)) for other, (leaf, path) in below.items()}
    return found


def _at(path: tuple[Any, ...]) -> Convert:
    def pick(value: Any) -> Any:
        for name in path:
            value = value[name]
        return value

    return pick


def _leaf(name: str, space: Any) -> tuple[Space, Convert]:
    if isinstance(space, theirs.Discrete):
        return Discrete(int(space.n)), _from_zero(space.start)
    if isinstance(space, theirs.MultiDiscrete) and space.nvec.ndim == 1:
        return MultiDiscrete(tuple(space.nvec.tolist())), _from_zero(space.start)
    if isinstance(space, theirs.MultiBinary):
        return Box(0.0, 1.0, space.shape), _as_it_is
    if isinstance(space, theirs.Box):
        return _picture(space) if space.dtype == np.uint8 else (_box(space), _as_it_is)
    raise UsageError(
        f"{name}: observations {_shown(space)} have no counterpart: they must be Box, Discrete, MultiDiscrete, MultiBinary, or "
        "a Dict or Tuple of these; gymnasium.wrappers.TransformObservation can make them so (rollax.from_gymnasium takes what "
        "it wraps)"
    )


def _picture(space: Any) -> tuple[Space, Convert]:
    """8-bit numbers. Of what can only be a picture the channels are the last axis: `[C, H, W]`, as stacked gray ones are, is
    turned, and `[H, W]` gets one channel."""
    turned = _as_it_is
    if len(space.shape) == 3 and space.shape[0] < _SMALLEST <= min(space.shape[1:]):
        turned = channels_last
    elif len(space.shape) == 2 and min(space.shape) >= _SMALLEST:
        turned = lambda value: np.asarray(value)[..., None]  # noqa: E731
    low, high = turned(space.low), turned(space.high)
    return Box(_one_if_same(low), _one_if_same(high), low.shape, "uint8"), turned


def channels_last(value: Any) -> np.ndarray:
    """Pictures `[..., C, H, W]` as `[..., H, W, C]`."""
    return np.moveaxis(np.asarray(value), -3, -1)


def _as_it_is(value: Any) -> Any:
    return value


def _from_zero(start: Any) -> Convert:
    first = np.asarray(start)
    return (lambda value: np.asarray(value) - first) if np.any(first) else _as_it_is


def _box(space: Any) -> Box:
    return Box(_one_if_same(space.low), _one_if_same(space.high), space.shape)


def _one_if_same(bounds: np.ndarray) -> Any:
    """Bounds as one number where all are the same: those of an image are very many."""
    first = float(np.ravel(bounds)[0]) if bounds.size else math.inf
    return first if np.all(bounds == first) else bounds


def _shown(space: Any) -> str:
    text = str(space)
    return text if len(text) <= 80 else f"{text[:80]}..."
