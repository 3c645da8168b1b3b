"""The remaining time of a run, and the share of time that evaluations take."""

from types import SimpleNamespace
from typing import Any

import pytest

from rollax.training.console.run_timing import WINDOW_SECONDS, RunTiming
from rollax.training.evaluation import run_evaluation


def test_the_remaining_time_is_known_once_enough_was_measured() -> None:
    timing = RunTiming()
    assert timing.remaining_seconds(10, 1) is None
    timing.add_segment(1, 0.5)
    assert timing.remaining_seconds(10, 0) is None, "half a second is too short"
    assert timing.remaining_seconds(10, 0, partial=(0.5, 1.0)) == pytest.approx(10.0)
    timing.add_segment(2, 4.0)
    assert timing.remaining_seconds(10, 0) == pytest.approx(20.0), "without the first segment"
    timing.add_evaluation(3.0)
    assert timing.remaining_seconds(10, 2) == pytest.approx(26.0)
    assert timing.remaining_seconds(0, 1) == pytest.approx(3.0)


def test_the_remaining_time_follows_the_speed_of_the_last_minute() -> None:
    timing = RunTiming()
    for _ in range(5):
        timing.add_segment(1, 1.0)
    for _ in range(3):
        timing.add_segment(1, WINDOW_SECONDS)
    assert timing.remaining_seconds(1, 0) == pytest.approx(WINDOW_SECONDS)


def test_the_share_of_evaluations() -> None:
    timing = RunTiming()
    assert timing.evaluation_share() == 0
    timing.add_evaluation(1.0)
    timing.add_segment(1, 2.0)
    assert timing.evaluation_share(1.0) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("interval", "total", "expected"),
    [
        (4, 41, [4, 8, 12, 16, 20, 24, 28, 32, 36]),
        (1, 3, [1, 2]),
        (4, 11, [4, 8]),
        (2, 3, [2]),
        (0, 5, []),
    ],
)
def test_the_end_is_not_evaluated_twice(interval: int, total: int, expected: list[int]) -> None:
    spec: Any = SimpleNamespace(updates_per_evaluation=interval, total_updates=total)
    assert list(run_evaluation._list_evaluations(spec)) == expected
    for updates in range(total + 1):
        session: Any = SimpleNamespace(spec=spec, updates=updates)
        later = [each for each in [*expected, total] if each > updates]
        assert run_evaluation.num_remaining_evaluations(session) == len(later)
