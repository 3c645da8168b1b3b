"""Settings as frozen dataclasses with static fields and traced fields.

Static fields determine array shapes and are part of the compiled program. Traced fields are leaves
of a pytree.
"""

import dataclasses
from typing import Any, ClassVar, Protocol, TypeVar, dataclass_transform, runtime_checkable

import jax
import numpy as np

from rollax.types import Setting
from rollax.user_input.coercion import coerce, field_types

T = TypeVar("T")


@runtime_checkable
class DataclassInstance(Protocol):
    """Instance of any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


# The compiled program holds settings as float32 and int32.
MAX_FLOAT32 = float(np.finfo(np.float32).max)
MAX_INT32 = 2**31 - 1


def static_field(default: Setting, low: float = 1) -> Any:
    """Declare a static settings field, such as a shape, a count or a choice.

    Args:
        default: Default value.
        low: Minimum of a value that is a number.

    Returns:
        The dataclass field.
    """
    return dataclasses.field(default=default, metadata={"static": True, "low": low})


def traced_field(default: float, low: float = -MAX_FLOAT32, high: float = MAX_FLOAT32) -> Any:
    """Declare a traced settings field, which is a number between `low` and `high`.

    Args:
        default: Default value. If it is greater than `high`, it replaces `high`.
        low: Minimum value.
        high: Maximum value. If it is infinite, infinity is a valid value.

    Returns:
        The dataclass field.
    """
    return dataclasses.field(default=default, metadata={"low": low, "high": max(high, default)})


@dataclass_transform(frozen_default=True, field_specifiers=(static_field, traced_field))
def settings_dataclass(cls: type[T]) -> type[T]:
    """Turn a class into a frozen dataclass that is a pytree with the traced fields as leaves.

    The constructor converts the values of static fields to their declared types. It raises a
    `UsageError` if a value cannot be converted.
    """

    def with_types(self: DataclassInstance) -> None:
        for field in dataclasses.fields(self):
            if field.metadata.get("static"):  # traced fields may hold any leaf of a pytree
                value = coerce(
                    field.name, getattr(self, field.name), field_types(type(self))[field.name]
                )
                object.__setattr__(self, field.name, value)

    cls.__post_init__ = with_types  # pyright: ignore[reportAttributeAccessIssue]
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def traced_field_names(cls: type) -> list[str]:
    """Return the names of the traced fields, which may differ between members of a population."""
    return [f.name for f in dataclasses.fields(cls) if not f.metadata.get("static")]
