"""Tests of the loop on the host, which records segments."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rollax.algorithm import EpisodeSums, Metrics
from rollax.training import loop
from rollax.training.callbacks.dispatch import CallbackRunner
from rollax.training.session import Session

pytestmark = pytest.mark.quick


def test_every_line_has_the_mean_of_its_updates() -> None:
    """The segment starts within a line of two updates. Each update reports its number."""
    lines: list[tuple[int, Any, Any]] = []

    def write(step: int, values: dict[str, Any]) -> None:
        lines.append((step, values["updates"], values["number"]))

    spec = SimpleNamespace(updates_per_line=2, config=SimpleNamespace(steps_per_update=10))
    recorder = SimpleNamespace(write_metrics=write)
    session: Any = object.__new__(Session)
    session.spec, session.updates, session.start_time = spec, 3, 0.0
    session.recorder, session.callbacks = recorder, CallbackRunner((), print)
    session.program = SimpleNamespace(simulators=None)
    session.monitor = SimpleNamespace(observe=lambda record: [])
    rows = Metrics({"number": np.arange(3.0, 8.0)}, EpisodeSums(*np.ones((3, 5))))
    last = loop._record_segment(session, rows, num_updates=5, speed=1.0)
    assert lines == [(40, 4, 3.0), (60, 6, 4.5), (80, 8, 6.5)]
    assert last["number"] == 6.5
