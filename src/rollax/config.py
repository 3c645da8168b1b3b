"""Settings as data: a frozen dataclass whose static fields shape the program and whose other fields are traced leaves."""

import dataclasses
import math
from typing import Any, Literal, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp

from rollax.errors import UsageError, near

T = TypeVar("T")


def static(default: Any, low: int = 1) -> Any:
    """A settings field that is a shape, a count (of at least `low`) or a choice: part of the program, not of the data."""
    return dataclasses.field(default=default, metadata={"static": True, "low": low, "high": math.inf})


def number(default: float, low: float = -math.inf, high: float = math.inf) -> Any:
    """A settings field that is data: any number from `low` to `high`."""
    return dataclasses.field(default=default, metadata={"low": low, "high": high})


@dataclass_transform(frozen_default=True, field_specifiers=(static, number))
def settings(cls: type[T]) -> type[T]:
    """Makes a frozen dataclass a pytree: fields marked `static` are structure, all others are traced leaves."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def traced_fields(cls: type) -> list[str]:
    """The names of the settings that may differ between members of a population without recompiling."""
    return [f.name for f in dataclasses.fields(cls) if not f.metadata.get("static")]


def check_settings(config: Any) -> None:
    """Raises UsageError when a setting is out of its range or not a number; the message names it, its value and its range."""
    check_choices(config)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, bool | str | tuple) or value is None:
            continue
        if field.type is int and not isinstance(value, int):
            raise UsageError(f"{field.name} ({value}) must be a whole number")
        low, high = field.metadata.get("low", -math.inf), field.metadata.get("high", math.inf)
        if not bool(jnp.all((jnp.asarray(value) >= low) & (jnp.asarray(value) <= high))):
            span = f"between {low:g} and {high:g}" if math.isfinite(high) else f"at least {low:g}"
            raise UsageError(f"{field.name} ({value}) must be {span}")


def check_choices(config: Any, prefix: str = "") -> None:
    """Raises UsageError when a setting that is one of several words is none of them; before its name comes `prefix`."""
    for name, hint in get_type_hints(type(config)).items():
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        value = getattr(config, name)
        if choices and value not in choices:
            close = near(str(value), choices)
            meant = f": did you mean {' or '.join(close)}?" if close else ""
            raise UsageError(f"{prefix}{name} ({value!r}) must be one of {', '.join(choices)}{meant}")
