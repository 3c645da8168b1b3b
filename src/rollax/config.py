"""Settings as data: a frozen dataclass whose static fields shape the program and whose other fields are traced leaves."""

import dataclasses
import math
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np

from rollax.errors import UsageError
from rollax.typed import hints, shown, typed

T = TypeVar("T")

LARGEST_FLOAT = float(np.finfo(np.float32).max)  # settings become float32 and int32 in the program
LARGEST_INT = 2**31 - 1


def static(default: Any, low: float = 1) -> Any:
    """A settings field that is a shape, a count (of at least `low`) or a choice: part of the program, not of the data."""
    return dataclasses.field(default=default, metadata={"static": True, "low": low})


def number(default: float, low: float = -LARGEST_FLOAT, high: float = LARGEST_FLOAT) -> Any:
    """A settings field that is data: any finite number from `low` to `high`. Infinite only where `high` or the default is."""
    return dataclasses.field(default=default, metadata={"low": low, "high": max(high, default)})


@dataclass_transform(frozen_default=True, field_specifiers=(static, number))
def settings(cls: type[T]) -> type[T]:
    """Makes a frozen dataclass a pytree: fields marked `static` are structure, all others are traced leaves.

    Static fields get their types when an instance is made, which raises UsageError where they cannot.
    """

    def with_types(self: Any) -> None:
        for field in dataclasses.fields(self):
            if field.metadata.get("static"):  # others may be anything that a pytree may hold
                value = typed(field.name, getattr(self, field.name), hints(type(self))[field.name])
                object.__setattr__(self, field.name, value)

    cls.__post_init__ = with_types  # pyright: ignore[reportAttributeAccessIssue]
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def traced_fields(cls: type) -> list[str]:
    """The names of the settings that may differ between members of a population without recompiling."""
    return [f.name for f in dataclasses.fields(cls) if not f.metadata.get("static")]


def checked(config: Any, prefix: str = "") -> Any:
    """The settings (any dataclass) with the types and within the ranges of their fields.

    Raises UsageError that names a setting, with `prefix` before its name, its value and what it must be.
    """
    values = {}
    for field in dataclasses.fields(config):
        hint = hints(type(config))[field.name]
        values[field.name] = typed(f"{prefix}{field.name}", getattr(config, field.name), hint)
        check_range(f"{prefix}{field.name}", values[field.name], field)
    return dataclasses.replace(config, **values)


def check_range(name: str, value: Any, field: dataclasses.Field[Any]) -> None:
    """Raises UsageError for numbers, also in sequences, that the field or the program's number types do not have."""
    if isinstance(value, tuple):
        for part in value:
            check_range(name, part, field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    largest = LARGEST_INT if isinstance(value, int) else LARGEST_FLOAT
    low, high = field.metadata.get("low", -largest), field.metadata.get("high", largest)
    if not low <= value <= high:
        raise UsageError(f"{name} ({shown(value)}) must be {span(value, low, high)}")


def span(value: float, low: float, high: float) -> str:
    """What a number out of its range must be, in words."""
    has_low, has_high = low > -LARGEST_INT, high < LARGEST_INT
    if has_low and has_high:
        return f"between {low:g} and {high:g}"
    if isinstance(value, int):
        return f"at least {low:g}" if value < low else f"at most {high:.0f}"
    return " and ".join([f"at least {low:g}"] * has_low + ["finite"] * math.isfinite(high))
