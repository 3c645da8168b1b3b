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
    from scipy import stats  # late: it takes longer to import than all of this package

    return stats.trim_mean(values, 0.25, axis=axis)


def bootstrap_interval(values: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """The percentile bootstrap interval of the interquartile mean, with a generator of its own. `values`: finite, `[N]`."""
    from scipy import stats

    if values.min() == values.max():  # one value, or all the same
        return float(values[0]), float(values[0])
    result = stats.bootstrap(
        (values,),
        interquartile_mean,
        n_resamples=RESAMPLES,
        batch=max(1, NUMBERS_AT_ONCE // values.size),
        vectorized=True,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
