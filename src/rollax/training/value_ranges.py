"""Parsing of sweep values, ranges of evolving settings, and values of environment parameters."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from rollax.errors import UsageError, describe_error
from rollax.populations.evolution import Range
from rollax.synonyms.lookup import UnknownSettingError
from rollax.training.options import RunOptions
from rollax.types import SettingValues
from rollax.user_input.coercion import coerce, coerce_dict, format_value
from rollax.user_input.settings_validation import check_range


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
            raise UnknownSettingError("setting to sweep over (static ones cannot be)", name, known)
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
            raise UnknownSettingError("setting to evolve (static ones cannot be)", name, known)
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


MAX_CURRICULUM_VALUES = 129  # of one parameter; 2**n + 1, so that levels can be halved


def parse_curriculum(curriculum: SettingValues | None) -> dict[str, tuple[float, ...]]:
    """Parse the values of environment parameters that change during training.

    Args:
        curriculum: Dictionary from the name of a parameter to a number, to numbers at equally
            spaced levels from 0 to 1, or to a function of the level. None is an empty curriculum.

    Returns:
        The values at equally spaced levels, keyed by name.

    Raises:
        UsageError: If a value has another form or is not finite, or a function raises.
    """
    parsed = {}
    for name, values in coerce_dict("curriculum", curriculum).items():
        if callable(values):
            parsed[name] = _sample_function(name, values)
            continue
        numbers = [values] if isinstance(values, int | float) else values
        parsed[name] = coerce(f"curriculum {name}", numbers, tuple[float, ...])
        is_short = 1 <= len(parsed[name]) <= MAX_CURRICULUM_VALUES
        if not is_short or not all(map(_is_finite_float32, parsed[name])):
            raise UsageError(
                f"curriculum {name} must be 1 to {MAX_CURRICULUM_VALUES} finite numbers, such as "
                f"the first and the last value (5, 10), got {format_value(values)}."
            )
    return parsed


def _is_finite_float32(number: float) -> bool:
    return abs(number) <= float(np.finfo(np.float32).max)


def _sample_function(name: str, function: Callable[[float], object]) -> tuple[float, ...]:
    """Return the values of a function at equally spaced levels.

    The number of levels is the smallest that reproduces `MAX_CURRICULUM_VALUES` values by linear
    interpolation. A linear function has two.
    """
    levels = np.linspace(0.0, 1.0, MAX_CURRICULUM_VALUES)
    try:
        values = np.asarray([float(cast(Any, function(float(level)))) for level in levels])
    except Exception as error:  # a user's function may raise anything
        raise UsageError(
            f"curriculum {name} must be a function from a level between 0 and 1 to a number, but "
            f"it raised {describe_error(error)}. Correct the function."
        ) from error
    is_finite = np.abs(values) <= np.finfo(np.float32).max
    if not is_finite.all():
        raise UsageError(
            f"curriculum {name} must be finite in float32 at all levels from 0 to 1, got "
            f"{values[~is_finite][0]}. Correct the function."
        )
    tolerance = 1e-6 * max(np.ptp(values), np.abs(values).max() * 1e-3)
    interval = MAX_CURRICULUM_VALUES - 1
    while interval > 1:
        kept = values[::interval]
        if np.abs(np.interp(levels, levels[::interval], kept) - values).max() <= tolerance:
            return tuple(kept.tolist())
        interval //= 2
    return tuple(values.tolist())


def check_curriculum(
    curriculum: Mapping[str, tuple[float, ...]],
    randomize: Mapping[str, tuple[float, float]],
    options: RunOptions,
) -> None:
    """Check that a curriculum does not conflict with other settings.

    Args:
        curriculum: Values of each parameter, keyed by name.
        randomize: Range of each sampled parameter, keyed by name.
        options: Options of the run.

    Raises:
        UsageError: If a parameter is also sampled, or an option has no effect.
    """
    for name in curriculum:
        if name in randomize:
            raise UsageError(
                f"{name} must either follow a curriculum or be sampled by randomize, got both. "
                "Remove one of them."
            )
    has_schedule = any(len(values) > 1 for values in curriculum.values())
    if options.curriculum_returns and not has_schedule:
        raise UsageError(
            f"curriculum_returns {options.curriculum_returns} has no effect without a parameter "
            "that changes. Add --curriculum.NAME FIRST LAST, or remove the option."
        )


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


def to_plain_value(name: str, value: object) -> Any:
    """Convert a value to types that config.yaml can store. Arrays are converted to lists.

    Args:
        name: Name of the value in error messages.
        value: Value to convert.

    Returns:
        The converted value.

    Raises:
        UsageError: If the value contains an object that cannot be stored.
    """
    if isinstance(value, Mapping):
        return {
            key: to_plain_value(f"{name}.{key}", part)
            for key, part in coerce_dict(name, value).items()
        }
    if isinstance(value, list | tuple):
        return type(value)(to_plain_value(f"{name}[{i}]", part) for i, part in enumerate(value))
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, str | int | float | None):
        kind = type(value).__name__
        raise UsageError(
            f"{name} must be a number, a string, an array or a list of them, got "
            f"{format_value(value)} ({kind})."
        )
    return value
