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
CUSTOM = "custom"  # replaces a user's network or function in a run folder


@runtime_checkable
class DataclassInstance(Protocol):
    """Instance of any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


# The compiled program holds settings as float32 and int32.
MAX_FLOAT32 = float(np.finfo(np.float32).max)
MAX_INT32 = 2**31 - 1


class UserFunction:
    """Function that the user passed to a setting in place of the name of a choice.

    A run folder stores the text "custom" instead. Objects with the same function are equal.

    Attributes:
        function: The function, or None if the setting was read from a run folder.
    """

    def __init__(self, function: object = None) -> None:
        self.function: Any = function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UserFunction) and self.function is other.function

    def __hash__(self) -> int:
        return id(self.function)

    def __repr__(self) -> str:
        return CUSTOM

    def __deepcopy__(self, memo: object) -> "UserFunction":
        return self


def static_field(default: Setting, low: float = 1, takes_function: bool = False) -> Any:
    """Declare a static settings field, such as a shape, a count or a choice.

    Args:
        default: Default value.
        low: Minimum of a value that is a number.
        takes_function: Whether the value may also be a function, which becomes a `UserFunction`.

    Returns:
        The dataclass field.
    """
    metadata = {"static": True, "low": low, "takes_function": takes_function}
    return dataclasses.field(default=default, metadata=metadata)


def coerce_setting(name: str, value: object, kind: type, field: dataclasses.Field) -> Any:
    """Convert the value of a field of a settings class to its type.

    Args:
        name: Name of the setting in error messages.
        value: Value.
        kind: Settings class.
        field: Field of `kind`. If it takes functions, a function, or a tuple of functions such as
            an optimizer of optax, becomes a `UserFunction`.

    Raises:
        UsageError: If the value cannot be converted.
    """
    if field.metadata.get("takes_function"):
        if isinstance(value, UserFunction):
            return value
        is_functions = isinstance(value, tuple) and bool(value) and all(map(callable, value))
        if callable(value) or is_functions:
            return UserFunction(value)
    return coerce(name, value, field_types(kind)[field.name])


def user_functions(config: DataclassInstance) -> dict[str, Any]:
    """Return the functions that the user passed to settings, keyed by name.

    A function is None if the settings were read from a run folder.
    """
    values = {field.name: vars(config)[field.name] for field in dataclasses.fields(config)}
    return {name: v.function for name, v in values.items() if isinstance(v, UserFunction)}


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
                value = coerce_setting(field.name, getattr(self, field.name), type(self), field)
                object.__setattr__(self, field.name, value)

    cls.__post_init__ = with_types  # pyright: ignore[reportAttributeAccessIssue]
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def traced_field_names(cls: type) -> list[str]:
    """Return the names of the traced fields, which may differ between members of a population."""
    return [f.name for f in dataclasses.fields(cls) if not f.metadata.get("static")]
