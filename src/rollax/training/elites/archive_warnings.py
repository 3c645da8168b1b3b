"""Warnings about archives: thresholds too high for all solutions, and negative QD scores."""

import math

import numpy as np

from rollax.types import MetricValues

QD_SCORE = "qd_score"


def describe_unreached_threshold(
    first: MetricValues, threshold_start: float | None, num_solutions: int
) -> str | None:
    """Return a warning if no solution of the first update exceeded its cell's acceptance threshold.

    Args:
        first: Metrics of the first update, keyed by name. Values are numbers, or arrays with one
            entry per member. Archives without thresholds do not report `below_threshold`.
        threshold_start: Setting `threshold_start`, or None if it differs between members.
        num_solutions: Number of solutions evaluated in the update.

    Returns:
        The warning, or None if a solution exceeded a threshold or the archive has no thresholds.
    """
    if "below_threshold" not in first:
        return None
    names = ("below_threshold", "nonfinite", "fitness_lowest")
    below, nonfinite, lowest = (
        np.atleast_1d(np.asarray(first[name], np.float64)) for name in names
    )
    is_unreached = (below > 0) & (below + nonfinite >= num_solutions)
    if not is_unreached.any():
        return None
    lowest_fitness = float(np.min(lowest[is_unreached]))
    value = "" if threshold_start is None else f" ({threshold_start:g})"
    return (
        f"No solution of the first update has a fitness above threshold_start{value}, so none "
        "counts as an improvement. Set config.threshold_start below the lowest fitness, such as "
        f"{suggest_threshold(lowest_fitness):g} (the lowest so far is {lowest_fitness:g})."
    )


def describe_negative_qd_score(first: MetricValues) -> str | None:
    """Return a warning if the QD score after the first update is negative.

    Args:
        first: Metrics of the first update, keyed by name. Values are numbers, or arrays with one
            entry per member.

    Returns:
        The warning, or None if no QD score is negative or the algorithm has none.
    """
    if not np.any(np.asarray(first.get(QD_SCORE, 0.0)) < 0):
        return None
    return (
        f"{QD_SCORE} is negative after the first update, so it falls as the archive gets more "
        "elites, and selection by it prefers archives with few elites. Set config.qd_offset to "
        "minus the lowest possible fitness."
    )


def suggest_threshold(lowest_fitness: float) -> float:
    """Return a threshold at least 10 % below the lowest fitness, rounded down to two digits."""
    target = lowest_fitness - max(abs(lowest_fitness), 1e-6) / 10
    rounding_unit = 10.0 ** (math.floor(math.log10(abs(target))) - 1) if target else 1e-6
    return math.floor(target / rounding_unit) * rounding_unit
