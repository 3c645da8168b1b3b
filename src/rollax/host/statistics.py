"""What is reported of many returns, be they episodes or seeds."""

from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000
# Resamples are drawn in pieces of this many numbers, so that thousands of episodes do not take gigabytes.
NUMBERS_AT_ONCE = 4_000_000


def summarize(values: Sequence[float] | np.ndarray, confidence: float = 0.95, with_interval: bool = True) -> dict[str, float]:
    """Mean, standard deviation and interquartile mean with its percentile bootstrap interval.

    `count`, `mean`, `std` (of the sample, 0 for one value), `min`, `max`, `median`, `p20` (a percentile), `iqm` (the mean
    of the middle half), `iqm_low` and `iqm_high` (its interval at `confidence`), `any_nan` (1.0 when a value was NaN or
    infinite). Such values are left out of the others, which are NaN when nothing is left. The same values give the same
    interval, in whatever order.

    Without its interval, which takes longest, the ends of that are NaN. For n = 1 the interval is the value; it says nothing
    about spread then.
    """
    values = np.asarray(values, dtype=np.float64).ravel()
    finite = np.sort(values[np.isfinite(values)])
    summary = {"count": float(finite.size), "any_nan": float(finite.size < values.size)}
    if finite.size == 0:
        return summary | dict.fromkeys(
            ("mean", "std", "min", "max", "median", "p20", "iqm", "iqm_low", "iqm_high"), float("nan")
        )
    low, high = bootstrap_interval(finite, confidence) if with_interval else (float("nan"), float("nan"))
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
    """The mean without the lowest and the highest quarter, whole values only: of fewer than four it is the mean."""
    size = values.shape[axis]
    cut = size // 4
    ordered = np.partition(values, (cut, size - cut - 1), axis=axis)
    return np.take(ordered, np.arange(cut, size - cut), axis=axis).mean(axis=axis)


def bootstrap_interval(values: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """The percentile bootstrap interval of the interquartile mean, with a generator of its own. `values`: finite, `[N]`."""
    if values.min() == values.max():  # one value, or all the same
        return float(values[0]), float(values[0])
    low, high = bootstrap_intervals(values, confidence)
    return float(low), float(high)


def bootstrap_intervals(values: np.ndarray, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Those of many samples at once, `[..., N]` to `[...]`, by the same resamples.

    In few lines here, as scipy.stats, with which a test compares it, takes longer to import than all of this package.
    """
    generator, size = np.random.default_rng(0), values.shape[-1]
    batch = max(1, NUMBERS_AT_ONCE // max(values.size, 1))
    means = [
        interquartile_mean(values[..., generator.integers(0, size, (min(batch, RESAMPLES - first), size))])
        for first in range(0, RESAMPLES, batch)
    ]
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(np.concatenate(means, axis=-1), (tail, 100 - tail), axis=-1)
    return low, high
