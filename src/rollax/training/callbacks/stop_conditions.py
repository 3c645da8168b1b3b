"""Conditions such as "return_mean>=195", which stop a run after an evaluation."""

import math
import operator
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from rollax.errors import UsageError
from rollax.synonyms.lookup import UnknownSettingError
from rollax.training.result import Evaluated, StopWhenFn
from rollax.user_input.coercion import format_value

NO_CONDITION = "off"  # removes the condition of a run that is resumed
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_COMPARISON_PATTERN = re.compile(r"([^<>=!]+?)\s*(>=|<=|>|<)\s*([^<>=\s]+)")
_AND_PATTERN = re.compile(r"\s+and\s+")
# Values of a condition that every evaluation has in addition to its metrics.
COUNTER_NAMES = ("step", "updates", "wall_time")


class Comparison(NamedTuple):
    """Comparison of one evaluation metric with a fixed number."""

    name: str
    symbol: str
    number: float


def split_stop_when(stop_when: StopWhenFn | str | None) -> tuple[str | None, StopWhenFn | None]:
    """Return `(condition text, stop function)` for `stop_when`. At least one of the two is None."""
    return (stop_when, None) if isinstance(stop_when, str) else (None, stop_when)


def remove_if_off(condition: str) -> str | None:
    """Return the stop condition, or None if it is "off"."""
    return None if condition.strip() == NO_CONDITION else condition


def parse_stop_condition(text: str) -> tuple[Comparison, ...]:
    """Parse a stop condition, which joins comparisons `NAME OPERATOR NUMBER` with `and`.

    Args:
        text: Condition, such as "return_mean>=195 and length_mean<100".

    Returns:
        The comparisons.

    Raises:
        UsageError: If the text does not have this form.
    """
    return tuple(_parse_comparison(part, text) for part in _AND_PATTERN.split(text.strip()))


def _parse_comparison(part: str, text: str) -> Comparison:
    match = _COMPARISON_PATTERN.fullmatch(part)
    number = math.nan if match is None else _parse_number(match[3])
    if match is None or not math.isfinite(number):
        whole = "" if part == text.strip() else f" in {format_value(text)}"
        raise UsageError(
            f"stop_when must be comparisons NAME OPERATOR NUMBER joined by `and`, with one of the "
            f"operators {' '.join(_OPERATORS)}, got {format_value(part)}{whole}. Write, for "
            'example, "return_mean>=195", with quotes in a shell.'
        )
    return Comparison(match[1].strip(), match[2], number)


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def check_condition_names(text: str, names: Iterable[str]) -> None:
    """Check that every name in a stop condition is an evaluation metric or a counter.

    Args:
        text: Stop condition.
        names: Names of the evaluation metrics.

    Raises:
        UnknownSettingError: If a name is neither a metric nor in `COUNTER_NAMES`.
    """
    known = [*names, *COUNTER_NAMES]
    for comparison in parse_stop_condition(text):
        if comparison.name not in known:
            raise UnknownSettingError("evaluation metric in stop_when", comparison.name, known)


def is_condition_met(text: str, evaluated: Evaluated) -> bool:
    """Return whether every comparison of a condition holds. A comparison with NaN does not hold.

    Args:
        text: Stop condition.
        evaluated: Result of an evaluation.

    Raises:
        UnknownSettingError: If the evaluation has no metric with a name in the condition.
        UsageError: If a metric in the condition is not a single number.
    """
    check_condition_names(text, evaluated.values)
    return all(
        _OPERATORS[symbol](_get_number(name, evaluated), number)
        for name, symbol, number in parse_stop_condition(text)
    )


def describe_condition_values(text: str, evaluated: Evaluated) -> str:
    """Return the values that a condition compares, such as "return_mean 201.5"."""
    names = dict.fromkeys(comparison.name for comparison in parse_stop_condition(text))
    return ", ".join(f"{name} {_get_number(name, evaluated):.6g}" for name in names)


def _get_number(name: str, evaluated: Evaluated) -> float:
    value = ({"step": evaluated.step} | evaluated.values)[name]
    if not isinstance(value, int | float):
        raise UsageError(
            f"{name} in stop_when must be a single number, got {format_value(value)}. Choose "
            "another metric, or pass a function."
        )
    return float(value)
