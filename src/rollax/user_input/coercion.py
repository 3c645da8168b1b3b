"""Conversion and validation of values that users pass as settings.

Unambiguous values are converted. NumPy integers and floats without a fraction (2048.0) become ints.
Lists, arrays and iterators become tuples, and a single value becomes a tuple with one element.
Strings are not converted to numbers or booleans, so "8" and "no" are errors.
"""

import contextlib
import functools
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NoReturn,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import jax
import numpy as np

from rollax.errors import UsageError, find_similar_names
from rollax.types import TypeHint

MAX_VALUE_CHARACTERS = 60  # length of a value in an error message
MAX_SEQUENCE_LENGTH = 1_000_000


def coerce(name: str, value: object, hint: TypeHint, where: str = "") -> Any:
    """Convert `value` to the type `hint`.

    Args:
        name: Name of the setting, for the error message.
        value: Value to convert.
        hint: bool, int, float, str, Path, Any, None, a Literal of strings, or a union, tuple or
            dictionary of these types.
        where: Prefix of the error message, such as "train: ".

    Returns:
        The converted value.

    Raises:
        UsageError: If the value cannot be converted. The message contains the setting, the value
            and the type.
    """
    try:
        return _convert(value, hint)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(
            f"{where}{name} ({format_value(value)}) must be {describe_type(hint)}"
            f"{_suggest_remedy(value, hint)}"
        ) from None


@functools.cache
def field_types(kind: type) -> dict[str, Any]:
    """Return a dictionary from the field names of a dataclass to their types."""
    return get_type_hints(kind)


def format_value(value: object) -> str:
    """Format a value for an error message. Strings are quoted, and long values are shortened."""
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and abs(value) >= 10**MAX_VALUE_CHARACTERS
    ):
        # Python refuses to convert very large integers to text.
        return f"a number of about {value.bit_length() * math.log10(2):.0f} digits"
    text = repr(value) if isinstance(value, str) else str(value)
    if " at 0x" in text:  # default repr of objects
        return f"an object of type {type(value).__name__}"
    return (
        text
        if len(text) <= MAX_VALUE_CHARACTERS
        else f"{text[: MAX_VALUE_CHARACTERS // 2]}... ({len(text)} characters)"
    )


def format_repr(kind: str, /, **facts: object) -> str:
    """Return a short text for `__repr__`, such as "Policy(step=100)". Values of None are omitted.

    Args:
        kind: Name of the class.
        **facts: Attributes to show, as `name=value`. Floats have six significant digits.
    """
    texts = {
        name: f"{fact:.6g}" if isinstance(fact, float) else format_value(fact)
        for name, fact in facts.items()
        if fact is not None
    }
    return f"{kind}({', '.join(f'{name}={text}' for name, text in texts.items())})"


def coerce_dict(name: str, value: object) -> dict[str, Any]:
    """Convert a value to a dictionary with string keys. None becomes an empty dictionary.

    Raises:
        UsageError: If the value is not a dictionary with string keys.
    """
    return {} if value is None else coerce(name, value, dict[str, Any])


def describe_type(hint: TypeHint) -> str:
    """Describe a type for an error message, such as "an integer or None"."""
    plain = {
        bool: "True or False",
        int: "an integer",
        float: "a number",
        str: "a string",
        Path: "the path of a file or folder",
        NoneType: "None",
        Any: "any value",
    }
    if hint in plain:
        return plain[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (Union, UnionType):
        return " or ".join(describe_type(option) for option in arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"a sequence in which every item is {describe_type(arguments[0])}"
    if origin is tuple:
        return f"{len(arguments)} values: {', '.join(describe_type(part) for part in arguments)}"
    values = "" if arguments[1] is Any else f" whose values are each {describe_type(arguments[1])}"
    return f"a dictionary with string keys{values}"


def _convert(value: object, hint: TypeHint) -> Any:
    """Convert a value to a type, or raise TypeError, ValueError or OverflowError."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, UnionType):
        return _convert_union(value, arguments)
    if hint is NoneType:
        return None if value is None else _reject()
    if origin is Literal:
        return value if isinstance(value, str) and value in arguments else _reject()
    if origin is tuple:
        return _convert_sequence(value, arguments)
    if origin is dict:
        return _convert_dict(value, arguments[1])
    return _SCALAR_CONVERTERS[hint](value)


def _convert_union(value: object, options: tuple[TypeHint, ...]) -> Any:
    """Convert a value to the first type in `options` that accepts it."""
    for option in options:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return _convert(value, option)
    return _reject()


def _convert_sequence(value: object, parts: tuple[TypeHint, ...]) -> tuple[Any, ...]:
    if isinstance(value, str | bytes | Mapping | set | frozenset):
        _reject()
    is_one = (
        np.ndim(value) == 0
        if isinstance(value, np.ndarray | jax.Array)
        else not isinstance(value, Iterable)
    )
    values: list[Any] = []
    for part in [value] if is_one or not isinstance(value, Iterable) else value:
        values.append(part)
        if len(values) > MAX_SEQUENCE_LENGTH:
            _reject()
    kinds = [parts[0]] * len(values) if parts[-1] is Ellipsis else list(parts)
    # A single number is accepted for a sequence of numbers, but not for a sequence of sequences.
    if len(values) != len(kinds) or (is_one and get_origin(parts[0]) is tuple):
        _reject()
    return tuple(_convert(part, kind) for part, kind in zip(values, kinds, strict=True))


def _convert_dict(value: object, hint: TypeHint) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        _reject()
    return {name: _convert(part, hint) for name, part in value.items()}


def _unwrap_scalar(value: object) -> Any:
    """Return the Python scalar of a 0-dimensional array, or any other value unchanged."""
    return (
        value.item()
        if isinstance(value, np.generic | np.ndarray | jax.Array) and np.ndim(value) == 0
        else value
    )


def _convert_bool(value: object) -> bool:
    value = _unwrap_scalar(value)
    return value if isinstance(value, bool) else _reject()


def _convert_number(value: object) -> int | float:
    value = _unwrap_scalar(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else _reject()


def _convert_int(value: object) -> int:
    number = _convert_number(value)
    return int(number) if number == int(number) else _reject()


def _convert_str(value: object) -> str:
    return str(value) if isinstance(value, str) else _reject()


def _convert_path(value: object) -> Path:
    return Path(value) if isinstance(value, str | os.PathLike) else _reject()


_SCALAR_CONVERTERS: dict[Any, Any] = {
    bool: _convert_bool,
    int: _convert_int,
    float: lambda value: float(_convert_number(value)),
    str: _convert_str,
    Path: _convert_path,
}


def _suggest_remedy(value: object, hint: TypeHint) -> str:
    """Return the end of an error message, with a suggestion if the intended value is clear."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if get_origin(hint) is Literal:
        close = find_similar_names(str(value), get_args(hint))
        return f": did you mean {' or '.join(close)}?" if close else "."
    if isinstance(value, str) and (int in options or float in options) and _is_number_text(value):
        return f", not a string. Write {value.strip()} without quotes."
    if isinstance(value, str) and bool in options:
        return ", not a string."
    if isinstance(value, float) and int in options and math.isfinite(value):
        return f". Use {math.floor(value)} or {math.ceil(value)}."
    return "."


def _is_number_text(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _reject() -> NoReturn:
    raise ValueError
