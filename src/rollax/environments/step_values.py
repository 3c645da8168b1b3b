"""Strict conversion of the rewards and flags that simulators return."""

from typing import Any

import numpy as np

from rollax.coercion import format_value

_NUMERIC_KINDS = "biuf"  # kinds of NumPy types


class SimulatorFaultError(ValueError):
    """Error for a simulator that returns invalid values."""


def to_reward(value: object) -> float:
    """Convert a reward to a float.

    Args:
        value: A number, or an array with one element.

    Returns:
        The reward.

    Raises:
        SimulatorFaultError: If the value is not one number.
    """
    if type(value) is float:
        return value
    return float(_to_single_number("reward", value, "one number", "Return a float."))


def to_flag(name: str, value: object) -> bool:
    """Convert `terminated` or `truncated` to a bool.

    Args:
        name: Name of the flag, for the error message.
        value: A bool, a number that is 0 or 1, or an array with one such element.

    Returns:
        The flag.

    Raises:
        SimulatorFaultError: If the value is anything else, such as a string or None.
    """
    if value is True or value is False:
        return value
    single = _to_single_number(name, value, "True or False", "Return a bool.")
    if single not in (0, 1):
        raise SimulatorFaultError(
            f"{name} must be True or False, got {format_value(value)}. Return a bool."
        )
    return bool(single)


def _to_single_number(name: str, value: object, expected: str, remedy: str) -> Any:
    """Convert a number or an array with one element to a Python number."""
    try:
        array = np.asarray(value)
    except Exception as error:  # objects with an array interface may raise anything
        raise SimulatorFaultError(
            f"{name} must be {expected}, got a {type(value).__name__}. {remedy}"
        ) from error
    if array.size != 1 or array.dtype.kind not in _NUMERIC_KINDS:
        kind = type(value).__name__
        raise SimulatorFaultError(
            f"{name} must be {expected}, got {format_value(value)} ({kind}). {remedy}"
        )
    return array.item()
