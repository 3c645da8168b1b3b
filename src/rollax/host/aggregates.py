"""Algorithms over several environments: interquartile means, performance profiles, probabilities of improvement.

Agarwal et al. 2021 (arXiv:2108.13264). Scores are normalized, an array of one number a seed for each environment; the
numbers of seeds may differ. Intervals are percentiles of the stratified bootstrap: seeds are resampled within each
environment, and the environments are given.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rollax.errors import UsageError
from rollax.host.statistics import NUMBERS_AT_ONCE, RESAMPLES, interquartile_mean

Scores = Sequence[np.ndarray]  # [n] of each environment


class Estimate(NamedTuple):
    """A value, or one at each of several places, with the ends of its 95 % interval (NaN where there is one seed only)."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def normalized(returns: np.ndarray, low: float, high: float) -> np.ndarray:
    """0 at `low`, 1 at `high`. Raises UsageError where there is nothing between them."""
    if not np.isfinite((low, high)).all() or low == high:
        raise UsageError(f"returns cannot be normalized by {low:g} and {high:g}: the two must be finite and differ")
    return (np.asarray(returns, float) - low) / (high - low)


def interquartile(scores: Scores) -> Estimate:
    """The mean of the middle half of all scores of all environments together."""
    return _estimate(lambda drawn: interquartile_mean(np.concatenate(drawn, axis=-1)), [scores])


def profile(scores: Scores, thresholds: np.ndarray) -> Estimate:
    """The share of runs with a score above each of `[T]` thresholds, averaged over environments; `[T]`."""

    def share(drawn: Scores) -> np.ndarray:
        return np.mean([(each[..., None] > thresholds).mean(axis=-2) for each in drawn], axis=0)

    return _estimate(share, [scores], thresholds.size)


def improvement(first: Scores, second: Scores) -> Estimate:
    """The chance that a run of the first scores higher than one of the second in the same environment, ties counting half.

    P(X > Y) is averaged over environments: in each it is the Mann-Whitney statistic U / (n m).
    """

    def chance(*drawn: np.ndarray) -> np.ndarray:
        pairs = zip(drawn[: len(first)], drawn[len(first) :], strict=True)
        differences = [a[..., :, None] - b[..., None, :] for a, b in pairs]
        return np.mean([((d > 0) + 0.5 * (d == 0)).mean(axis=(-2, -1)) for d in differences], axis=0)

    largest = max(max(map(len, first)), max(map(len, second)))
    return _estimate(lambda drawn: chance(*drawn), [first, second], largest)


def _estimate(of: Callable[[Scores], np.ndarray], samples: Sequence[Scores], numbers: int = 1) -> Estimate:
    """`of` the scores, with its interval. `numbers`: how many it makes of each score, so that resamples fit into the memory."""
    scores = [np.asarray(each, float) for sample in samples for each in sample]
    value = np.asarray(of(scores))
    if any(each.size < 2 for each in scores):
        return Estimate(value, np.full_like(value, np.nan), np.full_like(value, np.nan))
    size = sum(each.size for each in scores) * numbers
    drawn = np.concatenate([of(resample) for resample in _resamples(scores, max(1, NUMBERS_AT_ONCE // size))])
    low, high = np.percentile(drawn, (2.5, 97.5), axis=0)
    return Estimate(value, low, high)


def _resamples(scores: list[np.ndarray], at_once: int) -> Iterator[list[np.ndarray]]:
    """`RESAMPLES` resamples `[r, n]` of each environment's scores, at most `at_once` at a time."""
    generator = np.random.default_rng(0)
    for first in range(0, RESAMPLES, at_once):
        number = min(at_once, RESAMPLES - first)
        yield [each[generator.integers(each.size, size=(number, each.size))] for each in scores]
