"""What is drawn of the numbers of several seeds or episodes: a line and the two sides of its band."""

import math

import numpy as np

from rollax.host.statistics import bootstrap_interval, bootstrap_intervals, interquartile_mean

Estimate = tuple[float, float, float]  # the line and the two sides of its band


def interval(values: np.ndarray) -> Estimate:
    """Of one evaluation `[p, N]`: over the mean returns of several members, or over the episodes of a single one."""
    if values.shape[0] > 1:
        means = values.mean(axis=1)
        means = means[np.isfinite(means)]
        if not means.size:
            return math.nan, math.nan, math.nan
        low, high = bootstrap_interval(means)
        return float(interquartile_mean(means)), low, high
    episodes = values[np.isfinite(values)]
    draws = np.random.default_rng(0).integers(episodes.size, size=(1000, episodes.size))
    low, high = np.percentile(episodes[draws].mean(axis=1), (2.5, 97.5))
    return float(episodes.mean()), float(low), float(high)


def middle(values: np.ndarray) -> Estimate:
    """The line alone of `interval`."""
    line, *_ = interval(values)
    return line, line, line


def middle_half(values: np.ndarray) -> Estimate:
    """Of one line of metrics `[p, 1]`: the interquartile mean over members, with the quartiles as its band."""
    finite = values[np.isfinite(values)]
    low, high = np.percentile(finite, (25, 75))
    return float(interquartile_mean(finite)), float(low), float(high)


def over_seeds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The interquartile mean of `[K, p]` over seeds, and the ends of its 95 % bootstrap interval, `[K]` each.

    NaN where not all seeds have a number, as a mean of others would be of something else; the ends are NaN also for one seed.
    """
    low, high = np.full((2, len(values)), math.nan)
    whole = np.isfinite(values).all(axis=1)
    line = np.where(whole, interquartile_mean(np.where(np.isfinite(values), values, 0.0), axis=1), math.nan)
    if values.shape[1] > 1 and whole.any():
        low[whole], high[whole] = bootstrap_intervals(values[whole])
    return line, low, high


def smoothed(values: np.ndarray, number: int) -> np.ndarray:
    """Each row of `[K, ...]` as the mean of the `number` rows around it, fewer at both ends; what is NaN remains so."""
    if number == 1 or not len(values):
        return values
    finite = np.isfinite(values)
    parts = np.where(finite, values, 0.0), finite.astype(float)
    sums, counts = (np.concatenate([np.zeros_like(x[:1]), np.cumsum(x, axis=0)]) for x in parts)
    at = np.arange(len(values))
    first, stop = np.maximum(at - (number - 1) // 2, 0), np.minimum(at + number // 2 + 1, len(values))
    with np.errstate(invalid="ignore"):
        return np.where(finite, (sums[stop] - sums[first]) / (counts[stop] - counts[first]), math.nan)
