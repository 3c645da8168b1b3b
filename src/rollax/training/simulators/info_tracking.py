"""Reduction of the `info` values of host simulators over their running episodes."""

from collections.abc import Mapping

import numpy as np

_REDUCTIONS = ("mean", "sum", "last")  # order of the last axis of `InfoTracker.take`


class InfoTracker:
    """Accumulators of K info values in S simulators. Nonfinite values are ignored."""

    def __init__(self, num_simulators: int, names: tuple[str, ...]) -> None:
        """Create empty accumulators.

        Args:
            num_simulators: Number S of simulators.
            names: Names of the K info values.
        """
        shape = num_simulators, len(names)
        self._names = names
        self._count, self._total = np.zeros(shape, np.int64), np.zeros(shape)
        self._last = np.full(shape, np.nan)

    def add(self, info: np.ndarray) -> None:
        """Add the info values of one step, float `[S, K]`."""
        is_known = np.isfinite(info)
        self._count += is_known
        self._total += np.where(is_known, info, 0.0)
        self._last = np.where(is_known, info, self._last)

    def take(self, simulators: np.ndarray) -> np.ndarray:
        """Return the reduced values of finished episodes, and clear their accumulators.

        Args:
            simulators: Indices of the N simulators whose episode has finished, int `[N]`.

        Returns:
            Mean, sum and last value, float `[N, K, 3]`. If no value was known, the sum is 0, and
            the mean and the last value are NaN.
        """
        count, total = self._count[simulators], self._total[simulators]
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = total / count
        reduced = np.stack([mean, total, self._last[simulators]], axis=-1)
        self._count[simulators], self._total[simulators] = 0, 0.0
        self._last[simulators] = np.nan
        return reduced

    def select(self, reduced: np.ndarray, reductions: Mapping[str, str]) -> dict[str, np.ndarray]:
        """Select one reduction of each info value.

        Args:
            reduced: Results of `take` with any leading axes, `[..., K, 3]`.
            reductions: Dictionary from each name to "mean", "sum" or "last".

        Returns:
            Values `[...]`, keyed by name.
        """
        return {
            name: reduced[..., index, _REDUCTIONS.index(reductions[name])].astype(np.float32)
            for index, name in enumerate(self._names)
        }
