"""Reduction of info values over the episodes of simulators."""

import numpy as np

from rollax.training.simulators.info_tracking import InfoTracker


def test_missing_values_are_ignored_and_finished_episodes_are_cleared() -> None:
    tracker = InfoTracker(2, ("speed", "is_success"))
    for speed, success in [(1.0, np.nan), (np.inf, np.nan), (3.0, 1.0)]:
        tracker.add(np.array([[speed, success], [speed, np.nan]]))
    reduced = tracker.take(np.array([0, 1]))
    means = tracker.select(reduced, {"speed": "mean", "is_success": "mean"})
    others = tracker.select(reduced, {"speed": "sum", "is_success": "last"})
    np.testing.assert_array_equal(means["speed"], [2.0, 2.0])
    np.testing.assert_array_equal(means["is_success"], [1.0, np.nan])
    np.testing.assert_array_equal(others["speed"], [4.0, 4.0])
    np.testing.assert_array_equal(others["is_success"], [1.0, np.nan])
    empty = tracker.select(tracker.take(np.array([1])), {"speed": "sum", "is_success": "last"})
    assert empty["speed"] == 0 and np.isnan(empty["is_success"])
