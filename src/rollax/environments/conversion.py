"""Conversion of user input to the argument types of environments.

Input is a number, a string from the command line, or an array. The module also contains two helpers
for the dtypes of pytree leaves.
"""

import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rollax.errors import UsageError
from rollax.synonyms.lookup import UnknownSettingError
from rollax.types import PyTree, Setting

_BOOLEAN_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_TYPE_DESCRIPTIONS = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
}


def check_argument_names(environment: str, names: Iterable[str], accepted: Iterable[str]) -> None:
    """Check that an environment accepts arguments of the given names.

    Args:
        environment: Id of the environment, for the error message.
        names: Names of the given arguments.
        accepted: Names of the accepted arguments.

    Raises:
        UnknownSettingError: If a given name is not accepted.
    """
    accepted = list(accepted)
    for name in names:
        if name not in accepted:
            raise UnknownSettingError(f"argument of {environment}", name, accepted)


# Characters per part of a name. Folder names have at most 255 bytes.
MAX_NAME_PART_LENGTH = 100


def name_fault(name: str) -> str | None:
    """Return an error message if an environment name or id is invalid, otherwise None.

    Names must be valid in paths, because run folders are named after environments.
    """
    parts = name.split("/")
    is_usable = all(
        0 < len(part) <= MAX_NAME_PART_LENGTH
        and not part.startswith(".")
        and part == part.strip()
        and part.isprintable()
        for part in parts
    )
    if is_usable and "\\" not in name:
        return None
    shown_name = name if len(name) <= MAX_NAME_PART_LENGTH else name[:MAX_NAME_PART_LENGTH] + "..."
    return (
        'name must be like "Name" or "mine/Name", because run folders are named after it, '
        f"got {shown_name!r}. Write parts of 1 to {MAX_NAME_PART_LENGTH} printable characters, "
        "separated by slashes, without backslashes, leading dots, or spaces at either end."
    )


def signature_defaults(factory: Callable[..., object]) -> dict[str, Any]:
    """Return the defaults of the named parameters of a function or class, keyed by name.

    The default of a required parameter is `inspect.Parameter.empty`.
    """
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(factory).parameters.values()
    return {p.name: p.default for p in parameters if p.kind in named and p.name != "self"}


def convert_arguments(
    environment: str, arguments: Mapping[str, Setting], defaults: Mapping[str, Setting]
) -> dict[str, Any]:
    """Check the names of the given arguments and convert their values to the types of the defaults.

    Args:
        environment: Id of the environment, for error messages.
        arguments: Given values, keyed by argument name.
        defaults: Defaults of all accepted arguments, keyed by argument name.

    Returns:
        The converted values, keyed by argument name. Defaults are not added.

    Raises:
        UnknownSettingError: If a given name is not accepted.
        UsageError: If a value cannot be converted.
    """
    check_argument_names(environment, arguments, defaults)
    return {
        name: convert_argument(environment, name, value, defaults[name])
        for name, value in arguments.items()
    }


def convert_argument(environment: str, name: str, value: Setting, default: Setting) -> Any:
    """Convert a value to the type of its default.

    The result is an array if the value or the default is an array. Otherwise, it is a Python
    number, string or tuple.

    Args:
        environment: Id of the environment, for error messages.
        name: Name of the argument.
        value: Value to convert.
        default: Default of the argument, which determines the type.

    Returns:
        The converted value.

    Raises:
        UsageError: If the value cannot be converted, or is a number that float32 or int32 cannot
            represent.
    """
    converted = _convert_to_default_type(environment, name, value, default)
    # The default may be infinite.
    are_numbers = isinstance(converted, int | float) and isinstance(default, int | float)
    if not _has_representable_numbers(converted) and not (are_numbers and converted == default):
        shown_value = (
            str(value)
            if len(str(value)) <= 40
            else f"{str(value)[:20]}..., {len(str(value))} characters"
        )
        raise UsageError(
            f"{environment}: {name} must be finite, and an integer must be smaller than 2^31, "
            f"got {shown_value}. The default is {default}."
        )
    return converted


def _has_representable_numbers(value: Setting) -> bool:
    """Return whether float32 and int32 can represent all numbers in a value.

    The result is True for values without numbers and for tracers.
    """
    if isinstance(value, Tracer):  # parameters of an environment made inside `vmap` or `jit`
        return True
    if isinstance(value, list | tuple):
        return all(map(_has_representable_numbers, value))
    if isinstance(value, Mapping):
        return all(map(_has_representable_numbers, value.values()))
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return value.dtype.kind not in "fc" or bool(np.all(np.isfinite(value)))
    if isinstance(value, int):
        return abs(value) < 2**31
    return not isinstance(value, float) or abs(value) <= float(np.finfo(np.float32).max)


def _convert_to_default_type(environment: str, name: str, value: Setting, default: Setting) -> Any:
    """Convert a value to the type of its default, without checking the range of numbers."""
    if default is inspect.Parameter.empty or default is None:
        return _parse_json(value)
    kind = next((k for k in (bool, int, float, str) if isinstance(default, k)), None)
    try:
        if isinstance(value, jax.Array):
            return _to_array(value, default)
        if kind is not None:
            return _to_scalar(value, kind)
        if isinstance(default, np.ndarray | jax.Array):
            return _to_array(np.asarray(_parse_json(value)), default)
        return _to_nested_tuples(_parse_json(value))
    except (ValueError, TypeError, KeyError, OverflowError):
        expected = (
            _TYPE_DESCRIPTIONS[kind] if kind is not None else "of the same type as its default"
        )
        shown_value = (
            f"an array {value.dtype}{list(value.shape)}"
            if isinstance(value, jax.Array)
            else repr(value)[:200]
        )
        raise UsageError(
            f"{environment}: {name} must be {expected}, got {shown_value}. The default is "
            f"{default}."
        ) from None


def _to_scalar(value: Setting, kind: type) -> Any:
    value = value.item() if isinstance(value, np.ndarray | np.generic) else value
    if kind is bool:
        return _BOOLEAN_WORDS[str(value).lower()]
    if kind is str:
        return value if isinstance(value, str) else _raise_value_error()
    if isinstance(value, bool):
        _raise_value_error()
    number = float(value)
    if kind is float:
        return number
    if isinstance(value, int) or (
        isinstance(value, str) and value.strip().lstrip("+-").isdecimal()
    ):
        return int(value)  # exact, even where a float is not
    return int(number) if math.isfinite(number) and int(number) == number else _raise_value_error()


def _to_array(value: Setting, default: Setting) -> Any:
    """Convert a value to an array with the shape and dtype of the default.

    Integers are converted to floats. Floats are not converted to integers.
    """
    default_array = np.asarray(default)
    default_type = np.dtype({"f": "float32", "i": "int32", "b": "bool"}[default_array.dtype.kind])
    if value.shape != default_array.shape or "bif".index(value.dtype.kind) > "bif".index(
        default_type.kind
    ):
        _raise_value_error()
    if (value.dtype.kind == "b") != (default_type.kind == "b"):
        _raise_value_error()
    return value.astype(default_type)


def _parse_json(value: Setting) -> Any:
    """Parse a string as JSON. Return other values and strings without JSON unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def _to_nested_tuples(value: Setting) -> Any:
    """Convert nested lists to tuples, which are hashable."""
    return tuple(_to_nested_tuples(v) for v in value) if isinstance(value, list | tuple) else value


def _raise_value_error() -> Any:
    raise ValueError


def check_no_tracers(environment: str, arguments: Mapping[str, Setting], remedy: str = "") -> None:
    """Check that arguments that determine array shapes are plain values.

    Args:
        environment: Id of the environment.
        arguments: Values, keyed by argument name.
        remedy: Sentence for the error message that recommends an alternative.

    Raises:
        UsageError: If a value is traced.
    """
    if any(isinstance(value, Tracer) for value in arguments.values()):
        message = "arguments determine array shapes, so they must be plain values, got traced ones."
        raise UsageError(f"{environment}: {message} {remedy}".rstrip())


def to_positive_int(environment: str, name: str, value: Setting) -> int:
    """Convert a count to an int.

    Args:
        environment: Id of the environment, for error messages.
        name: Name of the argument.
        value: Value to convert.

    Returns:
        The count, at least 1.

    Raises:
        UsageError: If the value is traced, not an integer, or below 1.
    """
    if isinstance(value, Tracer):
        raise UsageError(
            f"{environment}: {name} must be a Python integer, got a traced value. "
            "Make the environment outside of jit and vmap."
        )
    number = np.asarray(value)
    if (
        number.ndim
        or number.dtype.kind not in "iuf"
        or not np.isfinite(number)
        or number != np.floor(number)
    ):
        raise UsageError(f"{environment}: {name} must be an integer, got {value!r}.")
    if int(value) < 1:
        raise UsageError(f"{environment}: {name} ({value}) must be at least 1.")
    return int(value)


def to_parameter_array(value: Setting, default: Setting) -> jax.Array:
    """Convert a parameter to an array.

    The dtype is float32, int32 or bool if the default is a float, an int or a bool.
    """
    kind = {"f": np.float32, "i": np.int32, "b": np.bool_}[np.asarray(default).dtype.kind]
    return jnp.asarray(value if isinstance(value, jax.Array) else np.asarray(value, kind), kind)


def leaf_dtypes(tree: PyTree) -> tuple[str, ...]:
    """Return the dtype names of the leaves of a pytree of arrays or `jax.ShapeDtypeStruct`."""
    return tuple(leaf.dtype.name for leaf in jax.tree.leaves(tree))


def cast_leaves(tree: PyTree, types: tuple[str, ...]) -> Any:
    """Cast the leaves of a pytree to the given dtypes.

    Casting makes weak types strong. Typed random keys remain unchanged.
    """
    leaves, structure = jax.tree.flatten(tree)
    return structure.unflatten(
        [
            x if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key) else jnp.asarray(x, t)
            for x, t in zip(leaves, types, strict=True)
        ]
    )


def default_object_name(environment: object) -> str:
    """Return the default name of an environment object: "own/" followed by its class name."""
    return f"own/{type(getattr(environment, 'unwrapped', environment)).__name__}"
