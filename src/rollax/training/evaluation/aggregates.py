"""Aggregates over environments: interquartile mean, performance profile, improvement probability.

Scores are normalized returns: one array [n] with one entry per seed for each environment. The
number of seeds n may differ between environments. Intervals are percentiles of the stratified
bootstrap: seeds are resampled within each environment, and environments are fixed.

References:
    Agarwal et al. 2021 (arXiv:2108.13264).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rollax.errors import UsageError
from rollax.training.evaluation.statistics import (
    MAX_RESAMPLED_VALUES,
    NUM_RESAMPLES,
    interquartile_mean,
)

Scores = Sequence[np.ndarray]  # one array [n] per environment


class Estimate(NamedTuple):
    """Estimate with its 95 % interval.

    Attributes:
        value: Estimate, a scalar or an array.
        low: Lower end of the interval. NaN if an environment has only one seed.
        high: Upper end of the interval. NaN if an environment has only one seed.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def normalize_returns(returns: np.ndarray, low: float, high: float) -> np.ndarray:
    """Scale returns linearly so that `low` becomes 0 and `high` becomes 1.

    Args:
        returns: Returns of any shape.
        low: Return with the normalized value 0.
        high: Return with the normalized value 1.

    Returns:
        Normalized returns.

    Raises:
        UsageError: If `low` and `high` are equal or not finite.
    """
    if not np.isfinite((low, high)).all() or low == high:
        raise UsageError(
            f"The normalization bounds must be finite and differ, got {low:g} and {high:g}."
        )
    return (np.asarray(returns, float) - low) / (high - low)


def estimate_interquartile_mean(scores: Scores) -> Estimate:
    """Estimate the interquartile mean over the pooled scores of all environments."""
    return _estimate_with_interval(
        lambda sample: interquartile_mean(np.concatenate(sample, axis=-1)), [scores]
    )


def estimate_performance_profile(scores: Scores, thresholds: np.ndarray) -> Estimate:
    """Estimate the fraction of runs above each threshold, averaged over environments.

    Args:
        scores: Scores [n] of each environment.
        thresholds: Thresholds [T].

    Returns:
        Fractions [T] with intervals.
    """

    def share_above(sample: Scores) -> np.ndarray:
        return np.mean(
            [
                (scores_of_environment[..., None] > thresholds).mean(axis=-2)
                for scores_of_environment in sample
            ],
            axis=0,
        )

    return _estimate_with_interval(share_above, [scores], thresholds.size)


def estimate_probability_of_improvement(first: Scores, second: Scores) -> Estimate:
    """Estimate the probability that a run in `first` has a higher score than a run in `second`.

    The probability P(X > Y) is averaged over environments. For each environment, it is the
    Mann-Whitney statistic U / (n m), with ties counting half.

    Args:
        first: Scores [n] of each environment.
        second: Scores [m] of each environment, in the same order of environments.

    Returns:
        The probability with its interval.
    """

    def probability(*samples: np.ndarray) -> np.ndarray:
        pairs = zip(samples[: len(first)], samples[len(first) :], strict=True)
        differences = [a[..., :, None] - b[..., None, :] for a, b in pairs]
        return np.mean(
            [((d > 0) + 0.5 * (d == 0)).mean(axis=(-2, -1)) for d in differences], axis=0
        )

    largest = max(max(map(len, first)), max(map(len, second)))
    return _estimate_with_interval(lambda samples: probability(*samples), [first, second], largest)


def _estimate_with_interval(
    statistic: Callable[[Scores], np.ndarray], samples: Sequence[Scores], values_per_score: int = 1
) -> Estimate:
    """Return a statistic of the scores with its bootstrap interval.

    `values_per_score` is the number of intermediate values that the statistic computes per score.
    Larger values reduce the number of resamples that are held in memory at once.
    """
    scores = [np.asarray(each, float) for sample in samples for each in sample]
    value = np.asarray(statistic(scores))
    if any(each.size < 2 for each in scores):
        return Estimate(value, np.full_like(value, np.nan), np.full_like(value, np.nan))
    size = sum(each.size for each in scores) * values_per_score
    resamples = _draw_resamples(scores, max(1, MAX_RESAMPLED_VALUES // size))
    drawn = np.concatenate([statistic(resample) for resample in resamples])
    low, high = np.percentile(drawn, (2.5, 97.5), axis=0)
    return Estimate(value, low, high)


def _draw_resamples(scores: list[np.ndarray], max_resamples: int) -> Iterator[list[np.ndarray]]:
    """Yield `NUM_RESAMPLES` resamples in blocks: one array [r, n] per environment.

    A block has r <= `max_resamples` resamples.
    """
    generator = np.random.default_rng(0)
    for first in range(0, NUM_RESAMPLES, max_resamples):
        number = min(max_resamples, NUM_RESAMPLES - first)
        yield [each[generator.integers(each.size, size=(number, each.size))] for each in scores]
