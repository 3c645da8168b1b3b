"""Runs in slow simulators: progress during rollouts and evaluations, and stops between steps."""

import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollax
from rollax.training.console.progress import LineDisplay
from rollax.training.console.signals import StopRequested, get_interrupt_result, stop_on_signals
from rollax.training.options import HOST_EVAL_EPISODES
from rollax.training.simulators import runner
from support.counter_simulator import on_host

CONFIG = {"num_envs": 2, "num_steps": 8, "num_minibatches": 1, "num_epochs": 1}
OPTIONS = {"eval_count": 1, "tensorboard": False}


class Recorded(LineDisplay):
    """A display that keeps the statuses and the progress it is given."""

    def __init__(self) -> None:
        super().__init__(silent=True)
        self.statuses: list[str] = []
        self.done: list[int] = []
        self.metric_texts: list[dict[str, str]] = []

    def status(self, text: str) -> None:
        self.statuses.append(text)

    def progress(self, num_done: int, num_total: int, metric_texts: dict[str, str]) -> None:
        self.done.append(num_done)
        self.metric_texts.append(metric_texts)


def test_progress_is_shown_during_rollouts_and_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(runner, "EVALUATION_REPORT_SECONDS", 0.0)
    show = Recorded()
    options = OPTIONS | {"run_dir": tmp_path / "run"}
    result = rollax.train(
        "ppo", on_host(), total_steps=32, config=CONFIG, options=options, show=show
    )
    assert result.evaluation["episodes"] == HOST_EVAL_EPISODES
    assert show.done == [*range(0, 16, 2), 16, *range(16, 32, 2), 32]
    assert all("evaluation" in texts for texts in show.metric_texts)
    assert "return" not in show.metric_texts[0], "it is not known yet"
    assert show.metric_texts[-1]["left"] == "0:00"
    assert "evaluating: 0 of 10 episodes finished, 20 steps" in show.statuses


@pytest.mark.quick
def test_an_interrupt_stops_a_run_between_two_steps(tmp_path: Path) -> None:
    """The update under way is discarded, and a resumed run repeats it."""
    options = OPTIONS | {"run_dir": tmp_path / "run", "eval_count": 0}
    environment = on_host(fault="interrupt", at=19)
    with pytest.raises(KeyboardInterrupt) as raised:
        rollax.train("ppo", environment, total_steps=64, config=CONFIG, options=options, quiet=True)
    result = get_interrupt_result(raised.value)
    assert (result.status, result.steps) == ("stopped", 32)
    again = rollax.resume(tmp_path / "run", environment=on_host(), quiet=True)
    assert (again.status, again.steps) == ("done", 64)


def test_no_other_simulator_of_this_process_steps_after_an_interrupt() -> None:
    simulators = runner.make_simulators(on_host(fault="interrupt", at=2), 3, 0, 60.0)
    simulators.reset([0, 1, 2])
    simulators.step(np.zeros(3, np.int32))
    with stop_on_signals(), pytest.raises(StopRequested):
        simulators.step(np.zeros(3, np.int32))
    counters: Any = simulators
    taken = [each.environment.unwrapped.taken for each in counters._simulators]
    assert taken == [2, 1, 1]
    simulators.close()


def test_an_interrupt_does_not_wait_for_worker_processes() -> None:
    simulators = runner.make_simulators(on_host(fault="hang", at=2), 1, 1, 60.0)
    simulators.reset([0])
    simulators.step(np.zeros(1, np.int32))
    with stop_on_signals() as request:

        def stop() -> None:
            request.signal_number = signal.SIGINT

        threading.Timer(0.3, stop).start()
        started = time.monotonic()
        with pytest.raises(StopRequested):
            simulators.step(np.zeros(1, np.int32))
        simulators.close()
    assert time.monotonic() - started < 10
