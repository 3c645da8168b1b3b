"""Conversion and range checks of settings, and their combination from presets and arguments."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from rollax.config import MAX_FLOAT32, MAX_INT32, DataclassInstance, coerce_setting
from rollax.errors import UsageError
from rollax.synonyms.lookup import UnknownSettingError
from rollax.types import Setting
from rollax.user_input.coercion import coerce_dict, field_types, format_value

SettingsT = TypeVar("SettingsT", bound=DataclassInstance)


def validate_settings(config: SettingsT, prefix: str = "") -> SettingsT:
    """Convert the settings of any dataclass to their types and check their ranges.

    Args:
        config: Settings.
        prefix: Prefix of the names in error messages, such as "config.".

    Returns:
        The converted settings.

    Raises:
        UsageError: If a setting cannot be converted to its type or is out of its range.
    """
    values = {}
    for field in dataclasses.fields(config):
        values[field.name] = coerce_setting(
            f"{prefix}{field.name}", getattr(config, field.name), type(config), field
        )
        check_range(f"{prefix}{field.name}", values[field.name], field)
    return dataclasses.replace(config, **values)


def check_range(name: str, value: Setting, field: dataclasses.Field) -> None:
    """Check that a number, or each number in a sequence, is in the range of its field.

    Raises:
        UsageError: If a number is outside the range of its field. The range of a field without
            bounds is that of int32 or float32.
    """
    if isinstance(value, tuple):
        for part in value:
            check_range(name, part, field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    largest = MAX_INT32 if isinstance(value, int) else MAX_FLOAT32
    low, high = field.metadata.get("low", -largest), field.metadata.get("high", largest)
    if not low <= value <= high:
        raise UsageError(
            f"{name} ({format_value(value)}) must be {describe_range(value, low, high)}."
        )


def describe_range(value: float, low: float, high: float) -> str:
    """Describe a range for an error message about `value`, which is outside of the range."""
    has_low, has_high = low > -MAX_INT32, high < MAX_INT32
    if has_low and has_high:
        return f"between {low:g} and {high:g}"
    if isinstance(value, int):
        return f"at least {low:g}" if value < low else f"at most {high:.0f}"
    return " and ".join([f"at least {low:g}"] * has_low + ["finite"] * math.isfinite(high))


def resolve_settings(
    name: str, kind: type, preset: Mapping[str, Setting], argument: Setting
) -> Any:
    """Return the settings of a preset, overridden by the argument of a user.

    Args:
        name: Name of the argument in error messages.
        kind: Settings class.
        preset: Preset, a dictionary from setting names to values.
        argument: Argument of the user: a settings object, which is returned unchanged, a dictionary
            that overrides settings of the preset, or None to use the preset.

    Returns:
        The settings, an instance of `kind`.

    Raises:
        UsageError: If `argument` is neither an instance of `kind` nor a dictionary.
        UnknownSettingError: If a setting does not exist.
    """
    if argument is not None and not isinstance(argument, Mapping):
        if type(argument) is not kind:
            other = f"{type(argument).__name__} ({format_value(argument)})"
            raise UsageError(
                f"{name} must be {kind.__name__} or a dictionary of its settings, got {other}."
            )
        return argument
    values = parse_yaml_values(kind, preset) | coerce_dict(name, argument)
    known = [field.name for field in dataclasses.fields(kind)]
    for setting in values:
        if setting not in known:
            raise UnknownSettingError("setting", setting, known)
    return kind(**values)


def parse_yaml_values(kind: type, values: Mapping[str, Setting]) -> dict[str, Any]:
    """Convert strings to floats in float settings, because YAML reads 1e-3 as a string.

    Strings that are not numbers are unchanged.
    """
    wanted = field_types(kind)
    return {
        name: _parse_number(value) if wanted.get(name) is float else value
        for name, value in values.items()
    }


def _parse_number(value: Setting) -> Any:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
