"""The programs of updates, which the first evaluation does not wait for, and what a session does around their segments."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from rollax.algorithm import Metrics
from rollax.host import record
from rollax.host.progress import size
from rollax.host.signals import StopRequest
from rollax.scale import processes

# A segment of about this long keeps the display lively and a stop prompt, and costs nothing measurable.
SEGMENT_SECONDS = 0.5
ANEW = "; simulators are in no checkpoint, so that episodes begin anew"


def in_phases(jitted: Any, *arguments: Any) -> tuple[Any, dict[str, float]]:
    """A function compiled for arguments of these shapes, and the seconds of tracing, of lowering and of XLA."""
    times = [time.monotonic()]
    stage = jitted
    for advance in (lambda stage: stage.trace(*arguments), lambda stage: stage.lower(), lambda stage: stage.compile()):
        stage = advance(stage)
        times.append(time.monotonic())
    return stage, {name: times[i + 1] - times[i] for i, name in enumerate(("tracing", "lowering", "xla"))}


class Training:
    """These programs, compiled at once or when they are asked for. `compile_run` gives one and what its phases took."""

    def __init__(self, compile_run: Callable[[], tuple[Any, dict[str, float]]], compile_evolve: Callable[[], Any]) -> None:
        self._compile = compile_run, compile_evolve
        self.is_ready = False
        self.run: Any
        self.evolve: Any
        self.memory_bytes: int | None = None  # estimate of what one call of advance needs
        self.compile_seconds = 0.0  # of all programs
        self.phases: dict[str, float] = {}  # of the program of updates, in seconds

    def make(self) -> None:
        """Traces and compiles them, unless that is done."""
        if self.is_ready:
            return
        started = time.monotonic()
        (self.run, self.phases), self.evolve = (each() for each in self._compile)
        usage = self.run.memory_analysis()
        self.memory_bytes = None if usage is None else usage.argument_size_in_bytes + usage.temp_size_in_bytes
        self.compile_seconds += time.monotonic() - started
        self.is_ready = True

    def describe(self, num_members: int | None) -> str:
        """What was compiled, in words."""
        memory = f", about {size(self.memory_bytes)} of memory" if self.memory_bytes else ""
        members = f", {num_members} members in one program" if num_members else ""
        return f"compiled in {self.compile_seconds:.1f} s for {jax.devices()[0].platform}{memory}{members}"


def agree(session: Any, asked: StopRequest, agreed: StopRequest) -> None:
    """What follows from clocks and signals until this is called again: the first's clock, and anyone's signal."""
    minutes = (time.monotonic() - session.last_checkpoint) / 60
    late = 0 < session.spec.options.checkpoint_minutes <= minutes
    pace = session.busy_updates / session.busy_seconds * SEGMENT_SECONDS if session.busy_seconds else 1.0
    if processes.count() > 1:
        told = processes.gathered(asked.number or 0, late, pace)
        agreed.number, late, pace = int(told[:, 0].max()) or None, told[0, 1], told[0, 2]
    session.checkpoint_is_late, session.pace = bool(late), float(pace)


def complete(session: Any) -> None:
    """Compiles what a session trains by, where that has waited for the first evaluation, and says what it took."""
    if session.program.training.is_ready:
        return
    started = time.monotonic()
    session.show.status("compiling")
    session.program.training.make()
    session.started += time.monotonic() - started  # no part of a run's time, like the other programs
    say(session)


def say(session: Any) -> None:
    """Says what was compiled, if all is."""
    program = session.program
    if program.training.is_ready:
        session.show.message(program.training.describe(program.num_members))


def begin_episodes(session: Any, members: np.ndarray | None = None) -> None:
    """Simulators on the host begin their episodes anew, where the state is no longer the one that they were played with: those
    of these members, bool `[P]`, or all."""
    if session.program.simulated is not None:
        session.program.simulated.begin_anew(session.updates, members)


def raise_failure(session: Any) -> None:
    """Raises SimulatorFailed after an update in which a simulator did; what was learnt before is in the session's state."""
    if session.program.simulated is not None and session.program.simulated.failure is not None:
        raise session.program.simulated.failure


def end(session: Any) -> None:
    """Ends the simulators on the host, if there are any."""
    if session.program.simulated is not None:
        session.program.simulated.close()


def warn_of_members(session: Any, rows: Metrics) -> None:
    """Says once of every member that it is no longer finite; the others go on."""
    if not session.program.num_members:
        return
    bad = record.bad_members(rows)
    known = np.zeros_like(bad) if session.bad is None else session.bad
    for index in np.flatnonzero(bad & ~known):
        member = ", ".join(f"{name} {value:g}" for name, value in session.spec.members()[index].items())
        session.show.message(f"warning: member {index} ({member}) is no longer finite; the others go on")
    session.bad = bad | known
