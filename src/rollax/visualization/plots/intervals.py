"""Point estimates and intervals over seeds and episodes."""

import math
from typing import NamedTuple

import numpy as np

from rollax.training.evaluation.metrics import format_number
from rollax.training.evaluation.statistics import (
    bootstrap_interval,
    bootstrap_intervals,
    interquartile_mean,
)


class Estimate(NamedTuple):
    """Point estimate with the lower and upper end of its interval."""

    middle: float
    low: float
    high: float


class EstimatedCurve(NamedTuple):
    """Point estimates at K points with the ends of their intervals, `[K]` each."""

    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def format_estimate(estimate: Estimate) -> str:
    """Format an estimate as text such as `482.1 [470.3, 491]`. A NaN interval is omitted."""
    middle, low, high = map(format_number, estimate)
    return f"{middle} [{low}, {high}]" if math.isfinite(estimate.low) else middle


def estimate_with_interval(values: np.ndarray) -> Estimate:
    """Estimate the return of one evaluation with a 95 % bootstrap interval.

    Args:
        values: Returns of p members over N episodes, `[p, N]`.

    Returns:
        For several members, the interquartile mean over the members' mean returns. For a single
        member, the mean over episodes. Non-finite means or returns are excluded. NaN if no finite
        value remains.
    """
    if values.shape[0] > 1:
        means = values.mean(axis=1)
        means = means[np.isfinite(means)]
        if not means.size:
            return Estimate(math.nan, math.nan, math.nan)
        low, high = bootstrap_interval(means)
        return Estimate(float(interquartile_mean(means)), low, high)
    episodes = values[np.isfinite(values)]
    if not episodes.size:
        return Estimate(math.nan, math.nan, math.nan)
    draws = np.random.default_rng(0).integers(episodes.size, size=(1000, episodes.size))
    low, high = np.percentile(episodes[draws].mean(axis=1), (2.5, 97.5))
    return Estimate(float(episodes.mean()), float(low), float(high))


def estimate_without_interval(values: np.ndarray) -> Estimate:
    """Estimate as in `estimate_with_interval`. Both interval ends are equal to the estimate."""
    middle = estimate_with_interval(values).middle
    return Estimate(middle, middle, middle)


def iqm_with_quartiles(values: np.ndarray) -> Estimate:
    """Return the interquartile mean over members, with the first and third quartile.

    Args:
        values: Values `[p, 1]` of p members in one metric line, with at least one finite value.
    """
    finite = values[np.isfinite(values)]
    low, high = np.percentile(finite, (25, 75))
    return Estimate(float(interquartile_mean(finite)), float(low), float(high))


def iqm_over_seeds(values: np.ndarray) -> EstimatedCurve:
    """Return interquartile means over seeds with 95 % bootstrap intervals.

    Args:
        values: Values `[K, p]` of p seeds.

    Returns:
        Mean, lower end and upper end, `[K]` each. All are NaN at points where the value of a seed
        is not finite, because the mean over the remaining seeds would not be comparable. The ends
        are also NaN for a single seed.
    """
    low, high = np.full((2, len(values)), math.nan)
    is_complete = np.isfinite(values).all(axis=1)
    means = interquartile_mean(np.where(np.isfinite(values), values, 0.0), axis=1)
    if values.shape[1] > 1 and is_complete.any():
        low[is_complete], high[is_complete] = bootstrap_intervals(values[is_complete])
    return EstimatedCurve(np.where(is_complete, means, math.nan), low, high)


def iqm_over_seeds_without_interval(values: np.ndarray) -> EstimatedCurve:
    """Estimate as in `iqm_over_seeds`. Both interval ends are NaN."""
    middle = iqm_over_seeds(values).middle
    return EstimatedCurve(middle, np.full_like(middle, math.nan), np.full_like(middle, math.nan))


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """Return a centered moving average that ignores NaN.

    Args:
        values: Values at K points, `[K, ...]`.
        window: Window length in points. Windows are shorter near both ends.

    Returns:
        Averages of the same shape, NaN where `values` is NaN.
    """
    if window == 1 or not len(values):
        return values
    finite = np.isfinite(values)
    parts = np.where(finite, values, 0.0), finite.astype(float)
    sums, counts = (np.concatenate([np.zeros_like(x[:1]), np.cumsum(x, axis=0)]) for x in parts)
    index = np.arange(len(values))
    first = np.maximum(index - (window - 1) // 2, 0)
    stop = np.minimum(index + window // 2 + 1, len(values))
    with np.errstate(invalid="ignore"):
        return np.where(
            finite, (sums[stop] - sums[first]) / (counts[stop] - counts[first]), math.nan
        )
