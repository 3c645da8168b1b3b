"""What users write (numbers, texts from a command line, arrays) as the values that environments take; and types of leaves."""

import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rollax.errors import UnknownNameError, UsageError

_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def check_names(environment: str, given: Iterable[str], accepted: Iterable[str]) -> None:
    """Raises `UnknownNameError` for the first given argument that the environment does not accept."""
    accepted = list(accepted)
    for name in given:
        if name not in accepted:
            raise UnknownNameError(f"argument of {environment}", name, accepted)


LONGEST_PART = 100  # characters of a part of a name: folders may have 255 bytes


def name_fault(name: str) -> str | None:
    """Why a name, or an id, cannot be that of an environment, whose runs are in folders of that name; None where it can."""
    parts = name.split("/")
    is_usable = all(
        0 < len(part) <= LONGEST_PART and not part.startswith(".") and part == part.strip() and part.isprintable()
        for part in parts
    )
    if is_usable and "\\" not in name:
        return None
    shown = name if len(name) <= LONGEST_PART else name[:LONGEST_PART] + "..."
    return (
        f'name is {shown!r}: runs are in folders of that name, so that it must be like "Name" or "mine/Name": parts with a '
        f"slash between them, each of 1 to {LONGEST_PART} printable characters, with no backslash, no dot at its start and no "
        "space at either end."
    )


def signature_defaults(factory: Callable[..., Any]) -> dict[str, Any]:
    """The arguments of a function or class and their defaults (`inspect.Parameter.empty` where one is required)."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(factory).parameters.values()
    return {p.name: p.default for p in parameters if p.kind in named and p.name != "self"}


def convert_all(environment: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The given values, checked against and converted like the defaults."""
    check_names(environment, given, defaults)
    return {name: convert(environment, name, value, defaults[name]) for name, value in given.items()}


def convert(environment: str, name: str, value: Any, default: Any) -> Any:
    """`value` as the type of `default`: a Python number, text or tuple, or an array where one was given or is expected.

    Raises: UsageError when the value cannot be meant that way, or is a number that no array of the program holds.
    """
    converted = _converted(environment, name, value, default)
    if not _is_number_of_arrays(converted) and not _is_same(converted, default):
        shown = str(value) if len(str(value)) <= 40 else f"{str(value)[:20]}..., {len(str(value))} letters"
        raise UsageError(
            f"{environment}: {name} ({shown}) must be finite, and a whole number less than 2^31 (default: {default})."
        )
    return converted


def _is_number_of_arrays(value: Any) -> bool:
    """Whether all numbers in the value are finite, and whole ones fit into int32. True for what holds none, and for tracers."""
    if isinstance(value, Tracer):  # an environment made inside `vmap` or `jit`, whose parameters are data
        return True
    if isinstance(value, list | tuple):
        return all(map(_is_number_of_arrays, value))
    if isinstance(value, Mapping):
        return all(map(_is_number_of_arrays, value.values()))
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return value.dtype.kind not in "fc" or bool(np.all(np.isfinite(value)))
    if isinstance(value, int):
        return abs(value) < 2**31
    return not isinstance(value, float) or abs(value) <= float(np.finfo(np.float32).max)


def _is_same(value: Any, default: Any) -> bool:
    """Whether a number is the default, which may be infinite."""
    return isinstance(value, int | float) and isinstance(default, int | float) and value == default


def _converted(environment: str, name: str, value: Any, default: Any) -> Any:
    """The value as the type of the default, whatever number it is."""
    if default is inspect.Parameter.empty or default is None:
        return _literal(value)
    kind = next((k for k in (bool, int, float, str) if isinstance(default, k)), None)
    try:
        if isinstance(value, jax.Array):
            return _array(value, default)
        if kind is not None:
            return _scalar(value, kind)
        if isinstance(default, np.ndarray | jax.Array):
            return _array(np.asarray(_literal(value)), default)
        return _tuples(_literal(value))
    except (ValueError, TypeError, KeyError, OverflowError):
        wanted = _WORDS[kind] if kind is not None else f"like its default {default}"
        shown = f"an array {value.dtype}{list(value.shape)}" if isinstance(value, jax.Array) else repr(value)[:200]
        raise UsageError(f"{environment}: {name} must be {wanted}, not {shown} (default: {default}).") from None


def _scalar(value: Any, kind: type) -> Any:
    value = value.item() if isinstance(value, np.ndarray | np.generic) else value
    if kind is bool:
        return _TRUTHS[str(value).lower()]
    if kind is str:
        return value if isinstance(value, str) else _refuse()
    if isinstance(value, bool):
        _refuse()
    number = float(value)
    if kind is float:
        return number
    if isinstance(value, int) or (isinstance(value, str) and value.strip().lstrip("+-").isdecimal()):
        return int(value)  # exactly, also where a float is not
    return int(number) if math.isfinite(number) and int(number) == number else _refuse()


def _array(value: Any, default: Any) -> Any:
    """An array of the default's shape and type: whole numbers serve as real ones but not the other way round."""
    wanted = np.asarray(default)
    wanted_type = np.dtype({"f": "float32", "i": "int32", "b": "bool"}[wanted.dtype.kind])
    if value.shape != wanted.shape or "bif".index(value.dtype.kind) > "bif".index(wanted_type.kind):
        _refuse()
    if (value.dtype.kind == "b") != (wanted_type.kind == "b"):
        _refuse()
    return value.astype(wanted_type)


def _literal(value: Any) -> Any:
    """A text as the JSON value it spells, or else itself."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def _tuples(value: Any) -> Any:
    """Lists as tuples, so that the value can be hashed."""
    return tuple(_tuples(v) for v in value) if isinstance(value, list | tuple) else value


def _refuse() -> Any:
    raise ValueError


def step_limit(environment: str, name: str, value: Any) -> int:
    """The most steps of an episode, which shape the program. Raises UsageError for a traced value, for what is no whole number,
    and for what is below 1."""
    if isinstance(value, Tracer):
        raise UsageError(f"{environment}: {name} is a count and part of the program: it must be a plain whole number.")
    number = np.asarray(value)
    if number.ndim or number.dtype.kind not in "iuf" or not np.isfinite(number) or number != np.floor(number):
        raise UsageError(f"{environment}: {name} ({value!r}) must be a whole number.")
    if int(value) < 1:
        raise UsageError(f"{environment}: {name} ({value}) must be at least 1.")
    return int(value)


def as_leaf(value: Any, default: Any) -> jax.Array:
    """A parameter as an array of the kind of its default: float32, int32 or bool."""
    kind = {"f": np.float32, "i": np.int32, "b": np.bool_}[np.asarray(default).dtype.kind]
    return jnp.asarray(value if isinstance(value, jax.Array) else np.asarray(value, kind), kind)


def leaf_types(tree: Any) -> tuple[str, ...]:
    """The types of a tree's leaves, arrays or shapes."""
    return tuple(leaf.dtype.name for leaf in jax.tree.leaves(tree))


def with_types(tree: Any, types: tuple[str, ...]) -> Any:
    """The tree with those types of leaves, which makes weak types definite; typed keys stay as they are."""
    leaves, structure = jax.tree.flatten(tree)
    return structure.unflatten(
        [
            x if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key) else jnp.asarray(x, t)
            for x, t in zip(leaves, types, strict=True)
        ]
    )
