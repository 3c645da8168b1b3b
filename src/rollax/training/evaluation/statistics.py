"""Summary statistics of returns, over episodes or seeds."""

from collections.abc import Sequence

import numpy as np

NUM_RESAMPLES = 2000
# Resamples are drawn in chunks of this size, so that thousands of episodes fit into memory.
MAX_RESAMPLED_VALUES = 4_000_000


def summarize(
    values: Sequence[float] | np.ndarray, confidence: float = 0.95, with_interval: bool = True
) -> dict[str, float]:
    """Summarize values by mean, standard deviation, and interquartile mean with bootstrap interval.

    Args:
        values: Values of any shape. NaN and infinite values are ignored.
        confidence: Confidence level of the interval.
        with_interval: Whether to compute the interval, which is slow. If False, its ends are NaN.

    Returns:
        A dictionary with the keys `count`, `mean`, `std`, `min`, `max`, `median`, `p20`, `iqm`,
        `iqm_low`, `iqm_high` and `any_nan`. `std` is the sample standard deviation, or 0 for one
        value. `p20` is the 20th percentile, and `iqm` is the mean of the middle half. `iqm_low` and
        `iqm_high` are the ends of the percentile bootstrap interval of `iqm`. `any_nan` is 1.0 if a
        value is NaN or infinite, else 0.0. Statistics are NaN if no value is finite. The order of
        values has no effect. If all values are equal, both ends of the interval are this value.
    """
    values = np.asarray(values, dtype=np.float64).ravel()
    finite = np.sort(values[np.isfinite(values)])
    summary = {"count": float(finite.size), "any_nan": float(finite.size < values.size)}
    if finite.size == 0:
        return summary | dict.fromkeys(
            ("mean", "std", "min", "max", "median", "p20", "iqm", "iqm_low", "iqm_high"),
            float("nan"),
        )
    low, high = (
        bootstrap_interval(finite, confidence) if with_interval else (float("nan"), float("nan"))
    )
    return summary | {
        "mean": float(finite.mean()),
        "std": float(finite.std(ddof=1)) if finite.size > 1 else 0.0,
        "min": float(finite[0]),
        "max": float(finite[-1]),
        "median": float(np.median(finite)),
        "p20": float(np.percentile(finite, 20)),
        "iqm": float(interquartile_mean(finite)),
        "iqm_low": low,
        "iqm_high": high,
    }


def interquartile_mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the mean without the lowest and highest quarter of values.

    The size of a quarter is rounded down, so fewer than four values give the plain mean.

    Args:
        values: Values.
        axis: Axis to average over.

    Returns:
        The mean, without `axis`.
    """
    size = values.shape[axis]
    cut = size // 4
    ordered = np.partition(values, (cut, size - cut - 1), axis=axis)
    return np.take(ordered, np.arange(cut, size - cut), axis=axis).mean(axis=axis)


def bootstrap_interval(values: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the interquartile mean.

    Args:
        values: Finite values [N].
        confidence: Confidence level.

    Returns:
        Low and high end. The random generator has a fixed seed.
    """
    if values.min() == values.max():
        return float(values[0]), float(values[0])
    low, high = bootstrap_intervals(values, confidence)
    return float(low), float(high)


def bootstrap_intervals(
    values: np.ndarray, confidence: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Return the percentile bootstrap interval of the interquartile mean of each sample.

    All samples use the same resampled indices. scipy.stats is not used, because its import is slow.

    Args:
        values: Samples of N finite values, [..., N].
        confidence: Confidence level.

    Returns:
        Low and high ends, [...] each.
    """
    generator, size = np.random.default_rng(0), values.shape[-1]
    batch = max(1, MAX_RESAMPLED_VALUES // max(values.size, 1))
    means = [
        interquartile_mean(
            values[..., generator.integers(0, size, (min(batch, NUM_RESAMPLES - first), size))]
        )
        for first in range(0, NUM_RESAMPLES, batch)
    ]
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(np.concatenate(means, axis=-1), (tail, 100 - tail), axis=-1)
    return low, high
