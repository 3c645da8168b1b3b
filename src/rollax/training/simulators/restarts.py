"""Restarts of simulators that fail: limit on consecutive failures, and delay before a restart."""

import time
from collections.abc import Callable

import numpy as np

from rollax.training.console.signals import StopRequested, is_stop_requested

# Delay before the first restart. It doubles with each consecutive failure.
FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 0.5, 30.0
RELIABLE_STEPS = 10_000  # steps without a failure after which earlier failures do not count
CONSTRUCTION_SECONDS = 60.0  # lower bound of the time limit for making a simulator
_WAIT_SECONDS = 0.1  # between checks for a stop request during a delay


class SimulatorError(RuntimeError):
    """Error for a simulator that raised, died, timed out, or returned invalid values.

    Attributes:
        index: Index of the simulator if a value of it is invalid, otherwise None.
    """

    exit_code = 4  # exit code of the command

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


class RestartLimit:
    """Limit on consecutive failures of simulators, or of workers.

    A series of consecutive failures of a simulator ends with a completed episode, or after
    `RELIABLE_STEPS` steps. A series of failures of a worker ends when this applies to all of its
    simulators, because any of them may have caused the failures.

    Args:
        sizes: Number of simulators of each worker, or a 1 for each simulator that restarts alone.
        max_restarts: Maximum number of consecutive restarts of each worker or simulator. 0 disables
            restarts.
    """

    def __init__(self, sizes: list[int], max_restarts: int) -> None:
        self.max_restarts = max_restarts
        self._num_failures = np.zeros(len(sizes), int)
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - np.array(sizes)
        # Steps of each simulator since the last failure. The value is at least `RELIABLE_STEPS`
        # after a completed episode.
        self._num_steps = np.zeros(self._ends[-1], int)
        self._messages: list[str] = []

    def record_success(self, moved: np.ndarray, completed: np.ndarray) -> None:
        """Record steps without a failure.

        Args:
            moved: Mask of the simulators that made a step, bool [E].
            completed: Mask of the simulators that completed an episode, bool [E].
        """
        if not self.max_restarts:
            return
        self._num_steps += moved
        self._num_steps[completed] = RELIABLE_STEPS
        fewest_steps = np.minimum.reduceat(self._num_steps, self._starts)
        self._num_failures[fewest_steps >= RELIABLE_STEPS] = 0

    def record_failure(self, index: int, error: Exception) -> float:
        """Record a failure, and return the delay before the restart in seconds.

        Args:
            index: Index of the simulator or worker that failed.
            error: Error of the failure.

        Raises:
            SimulatorError: If there were too many consecutive failures.
        """
        self._num_failures[index] += 1
        self._num_steps[self._starts[index] : self._ends[index]] = 0
        failures = int(self._num_failures[index])
        if failures > self.max_restarts:
            raise (
                error
                if not self.max_restarts
                else SimulatorError(
                    f"{error}\nIt failed {failures} times in a row, so it is not restarted again."
                )
            ) from error
        self._messages.append(str(error))
        return min(FIRST_DELAY_SECONDS * 2.0 ** (failures - 1), MAX_DELAY_SECONDS)

    def pop_messages(self) -> list[str]:
        """Return the error message of each restart since the last call."""
        messages, self._messages = self._messages, []
        return messages


def wait_for_restart(seconds: float, keep_alive: Callable[[], None] = lambda: None) -> None:
    """Wait before a restart.

    Args:
        seconds: Delay in seconds.
        keep_alive: Function that is called repeatedly during the delay.

    Raises:
        StopRequested: If a stop was requested.
    """
    ready_at = time.monotonic() + seconds
    while (remaining := ready_at - time.monotonic()) > 0:
        if is_stop_requested():
            raise StopRequested
        keep_alive()
        time.sleep(min(remaining, _WAIT_SECONDS))
