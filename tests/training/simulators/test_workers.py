"""Tests of single worker processes."""

import os
import signal
import sys
import time
from typing import Any

import numpy as np
import pytest

from rollax.training.simulators.vectorized import SimulatorSpec
from rollax.training.simulators.worker_group import WorkerTask
from rollax.training.simulators.workers import ProcessWorker


class Constant:
    """Simulator with constant observations."""

    def reset(self, seed: int | None) -> Any:
        return np.zeros(2, np.float32)

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def close(self) -> None:
        """Release nothing."""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_workers_ignore_signals_while_they_start() -> None:
    """Python would otherwise stop a process before it can ignore the signals."""
    layout = SimulatorSpec(np.zeros(2, np.float32), ())
    worker = ProcessWorker(WorkerTask(Constant, 1, layout, 0, 0), 60.0)
    for _ in range(50):
        os.kill(worker.process.pid or 0, signal.SIGINT)
        time.sleep(0.01)
    assert worker.receive()[0] == "done"
    worker.close()
    worker.join(60.0)
