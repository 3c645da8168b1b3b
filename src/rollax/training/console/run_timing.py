"""Measured durations of a run: remaining time, and the share of time that evaluations take."""

import collections

WINDOW_SECONDS = 60.0  # length of the recent past from which the remaining time is estimated
MIN_MEASURED_SECONDS = 1.0  # shortest measurement for an estimate


class RunTiming:
    """Durations of the segments and evaluations of a run.

    The first segment includes work that happens only once, such as the first transfer to a device.
    The estimate uses its duration only until a second segment has ended.
    """

    def __init__(self) -> None:
        self._segments = collections.deque[tuple[float, float]]()  # updates and seconds
        self._has_second_segment = False
        self._training_seconds = 0.0
        self._evaluation_seconds = 0.0
        self._last_evaluation_seconds = 0.0

    def add_segment(self, num_updates: int, seconds: float) -> None:
        """Add the duration of a segment."""
        if self._segments and not self._has_second_segment:
            self._segments.clear()
            self._has_second_segment = True
        self._segments.append((num_updates, seconds))
        self._training_seconds += seconds
        total = sum(each for _, each in self._segments)
        while total - self._segments[0][1] > WINDOW_SECONDS:
            total -= self._segments.popleft()[1]

    def add_evaluation(self, seconds: float) -> None:
        """Add the duration of an evaluation."""
        self._evaluation_seconds += seconds
        self._last_evaluation_seconds = seconds

    def evaluation_share(self, partial_seconds: float = 0.0) -> float:
        """Return the share of evaluations in the time of training and evaluation, in [0, 1].

        Args:
            partial_seconds: Duration of a segment that is not complete.
        """
        total = self._training_seconds + partial_seconds + self._evaluation_seconds
        return self._evaluation_seconds / total if total else 0.0

    def remaining_seconds(
        self, num_updates: float, num_evaluations: int, partial: tuple[float, float] = (0.0, 0.0)
    ) -> float | None:
        """Estimate the remaining time from recent segments and the last evaluation.

        Args:
            num_updates: Number of remaining updates.
            num_evaluations: Number of remaining evaluations.
            partial: Updates and seconds of a segment that is not complete.

        Returns:
            The remaining time in seconds, or None if too little was measured.
        """
        if num_updates <= 0:
            return num_evaluations * self._last_evaluation_seconds
        updates, seconds = (sum(each) for each in zip(partial, *self._segments, strict=True))
        if seconds < MIN_MEASURED_SECONDS or not updates:
            return None
        return seconds / updates * num_updates + num_evaluations * self._last_evaluation_seconds
