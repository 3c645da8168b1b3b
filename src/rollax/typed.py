"""Values that users write, as the types that settings have: what can only be meant one way is converted, the rest refused.

Whole numbers may be numpy's or a float without fraction (2048.0), sequences may be lists, arrays or generators, and one value
stands for a sequence of one. A text is never a number or a truth value: "8" and "no" are refused.
"""

import contextlib
import functools
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import jax
import numpy as np

from rollax.errors import UsageError, near

MOST_LETTERS = 60  # of a value in a message
MOST_VALUES = 1_000_000  # in a sequence


def typed(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type `hint`: bool, int, float, str, Path, a Literal, None, or tuples and dictionaries of them.

    Raises UsageError that names the setting, its value and the wanted type.
    """
    try:
        return _converted(value, hint)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{name} ({shown(value)}) must be {words(hint)}{_remedy(value, hint)}") from None


@functools.cache
def hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass' fields."""
    return get_type_hints(kind)


def shown(value: Any) -> str:
    """A value in a message: texts in quotes, long ones cut."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**MOST_LETTERS:
        return f"a number of about {value.bit_length() * math.log10(2):.0f} digits"  # Python refuses to print the longest
    text = repr(value) if isinstance(value, str) else str(value)
    if " at 0x" in text:  # what Python says of objects that say nothing of themselves
        return f"an object of type {type(value).__name__}"
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS // 2]}... ({len(text)} characters)"


def names(name: str, value: Any) -> dict[str, Any]:
    """A dictionary with names as keys, empty for None. Raises UsageError for anything else."""
    return {} if value is None else typed(name, value, dict[str, Any])


def words(hint: Any) -> str:
    """A type in words."""
    plain = {bool: "True or False", int: "a whole number", float: "a number", str: "a text", Path: "a path", NoneType: "None"}
    if hint in plain:
        return plain[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (Union, UnionType):
        return " or ".join(words(option) for option in arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"a sequence, each of it {words(arguments[0])}"
    if origin is tuple:
        return f"{len(arguments)} values: {', '.join(words(part) for part in arguments)}"
    return "a dictionary with names as keys"


def _converted(value: Any, hint: Any) -> Any:
    """Raises TypeError, ValueError or OverflowError for what `hint` cannot be."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, UnionType):
        return _first(value, arguments)
    if hint is NoneType:
        return None if value is None else _refuse()
    if origin is Literal:
        return value if isinstance(value, str) and value in arguments else _refuse()
    if origin is tuple:
        return _sequence(value, arguments)
    if origin is dict:
        return _dictionary(value, arguments[1])
    return _PLAIN[hint](value)


def _first(value: Any, options: tuple[Any, ...]) -> Any:
    """The first of several types that the value can be."""
    for option in options:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return _converted(value, option)
    return _refuse()


def _sequence(value: Any, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    if isinstance(value, str | bytes | Mapping | set | frozenset):
        _refuse()
    is_one = np.ndim(value) == 0 if isinstance(value, np.ndarray | jax.Array) else not isinstance(value, Iterable)
    values: list[Any] = []
    for part in [value] if is_one else value:
        values.append(part)
        if len(values) > MOST_VALUES:
            _refuse()
    kinds = [parts[0]] * len(values) if parts[-1] is Ellipsis else list(parts)
    # One number stands for a sequence of numbers, but hardly for a sequence of sequences.
    if len(values) != len(kinds) or (is_one and get_origin(parts[0]) is tuple):
        _refuse()
    return tuple(_converted(part, kind) for part, kind in zip(values, kinds, strict=True))


def _dictionary(value: Any, hint: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        _refuse()
    return {name: _converted(part, hint) for name, part in value.items()}


def _single(value: Any) -> Any:
    """The Python value of an array without axes."""
    return value.item() if isinstance(value, np.generic | np.ndarray | jax.Array) and np.ndim(value) == 0 else value


def _truth(value: Any) -> bool:
    value = _single(value)
    return value if isinstance(value, bool) else _refuse()


def _number(value: Any) -> int | float:
    value = _single(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else _refuse()


def _whole(value: Any) -> int:
    number = _number(value)
    return int(number) if number == int(number) else _refuse()


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str) else _refuse()


def _path(value: Any) -> Path:
    return Path(value) if isinstance(value, str | os.PathLike) else _refuse()


_PLAIN: dict[Any, Any] = {
    bool: _truth,
    int: _whole,
    float: lambda value: float(_number(value)),
    str: _text,
    Path: _path,
}


def _remedy(value: Any, hint: Any) -> str:
    """What was probably meant."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if get_origin(hint) is Literal:
        close = near(str(value), get_args(hint))
        return f": did you mean {' or '.join(close)}?" if close else ""
    if isinstance(value, str) and (int in options or float in options) and _spells_number(value):
        return f", not a text: write {value.strip()}"
    if isinstance(value, str) and bool in options:
        return ", not a text"
    if isinstance(value, float) and int in options and math.isfinite(value):
        return f": try {math.floor(value)} or {math.ceil(value)}"
    return ""


def _spells_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _refuse() -> NoReturn:
    raise ValueError
