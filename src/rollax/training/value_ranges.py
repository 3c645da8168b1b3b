"""Parsing of sweep values and of ranges for evolving settings."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

from rollax.coercion import coerce, coerce_dict, format_value
from rollax.config import check_range
from rollax.errors import UnknownNameError, UsageError
from rollax.populations.evolution import Range
from rollax.types import SettingValues


def parse_sweep_values(
    sweep: SettingValues | None, settings_class: type, known: list[str]
) -> dict[str, tuple[float, ...]]:
    """Parse the values of each setting in a sweep: one number or a sequence of numbers.

    Args:
        sweep: Values, keyed by setting name, or None for no sweep.
        settings_class: Class of the settings.
        known: Names of settings that can be swept.

    Returns:
        The values as tuples, keyed by setting name.

    Raises:
        UsageError: If a name is unknown, or a value has the wrong type or is out of range.
    """
    fields = {field.name: field for field in dataclasses.fields(settings_class)}
    swept = {}
    for name, values in coerce_dict("sweep", sweep).items():
        if name not in known:
            raise UnknownNameError("setting to sweep over (static ones cannot be)", name, known)
        swept[name] = coerce(f"sweep over {name}", values, tuple[float, ...])
        if not swept[name]:
            raise UsageError(f"sweep over {name} must have at least one value, got none.")
        check_range(name, swept[name], fields[name])
    return swept


def parse_evolve_ranges(
    evolve: SettingValues | None, settings_class: type, known: list[str]
) -> dict[str, Range]:
    """Parse the ranges of evolving settings: `(low, high)` or `(low, high, scale)`.

    The default scale is "log" if low > 0, and "linear" otherwise.

    Args:
        evolve: Ranges, keyed by setting name, or None for no evolution.
        settings_class: Class of the settings.
        known: Names of settings that can evolve.

    Returns:
        The ranges, keyed by setting name.

    Raises:
        UsageError: If a name is unknown, a range is not valid, or a bound is out of range for the
            setting.
    """
    fields = {field.name: field for field in dataclasses.fields(settings_class)}
    ranges = {}
    for name, values in coerce_dict("evolve", evolve).items():
        if name not in known:
            raise UnknownNameError("setting to evolve (static ones cannot be)", name, known)
        span = parse_range(values, min_log_ratio=1.0)
        if span is None:
            raise UsageError(
                f"evolve {name} must be (low, high) or (low, high, scale), got "
                f"{format_value(values)}."
            )
        if span.scale not in ("log", "linear"):
            raise UsageError(
                f"the scale of the range of {name} must be log or linear, got "
                f"{format_value(span.scale)}."
            )
        if not (math.isfinite(span.low) and math.isfinite(span.high) and span.low < span.high):
            raise UsageError(
                f"the range of {name} must be finite with low < high, got {span.low:g} to "
                f"{span.high:g}."
            )
        if span.scale == "log" and span.low <= 0:
            raise UsageError(
                f"the range of {name} must begin above 0 on a log scale, got {span.low:g}. Raise "
                "it, or make the range linear."
            )
        check_range(name, (span.low, span.high), fields[name])
        ranges[name] = span
    return ranges


def parse_randomized_ranges(randomize: SettingValues | None) -> dict[str, tuple[float, float]]:
    """Parse the ranges of randomized environment parameters, `(low, high)`.

    Args:
        randomize: Ranges, keyed by the name of the parameter, or None for no randomization.

    Raises:
        UsageError: If a range is not two finite numbers with low <= high.
    """
    ranges = {}
    for name, values in coerce_dict("randomize", randomize).items():
        span = parse_range(values, min_log_ratio=math.inf)
        is_finite = span is not None and math.isfinite(span.low) and math.isfinite(span.high)
        if span is None or not is_finite or span.scale != "linear" or span.low > span.high:
            raise UsageError(
                f"randomize {name} must be two finite numbers (low, high) with low <= high, got "
                f"{format_value(values)}."
            )
        ranges[name] = (span.low, span.high)
    return ranges


def parse_range(value: object, min_log_ratio: float) -> Range | None:
    """Parse `(low, high)` or `(low, high, scale)` without checking bounds.

    Args:
        value: Range from the user.
        min_log_ratio: Minimum ratio high / low of a positive range with the default scale "log".
            Smaller ranges have the default scale "linear".

    Returns:
        The range, or None if the value has another form.
    """
    try:
        parts = [] if isinstance(value, str | Mapping) else list(cast(Iterable[Any], value))
        low, high, *scales = parts
        low, high = float(low), float(high)
        default_scale = "log" if low > 0 and high >= min_log_ratio * low else "linear"
        return Range(low, high, *(scales or [default_scale]))
    except (TypeError, ValueError, OverflowError):
        return None
