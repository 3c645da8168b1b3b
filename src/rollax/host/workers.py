"""Simulators in processes of their own, which answer over pipes until these are closed."""

import ctypes
import functools
import multiprocessing
import pickle
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing import util
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import jax
import numpy as np

from rollax.errors import UsageError
from rollax.host.signals import stopping_signals
from rollax.host.simulators import InProcess, Layout, SimulatorFailed, Stepped


class Worker(NamedTuple):
    """A process with simulators."""

    process: Any
    connection: Any  # of a pipe
    begun: Any  # how many calls of a simulator it has begun, in memory that both see


class InWorkers:
    """Simulators in workers, as many in each as go evenly. Each simulator has `timeout` seconds for a step or a start."""

    def __init__(self, make: Callable[..., Any], number: int, layout: Layout, workers: int, timeout: float) -> None:
        self._timeout = timeout
        bounds = np.linspace(0, number, min(workers, number) + 1).round().astype(int)
        self._shares = [slice(int(a), int(b)) for a, b in zip(bounds, bounds[1:], strict=False)]
        self._workers: list[Worker] = []
        # Where nobody closes them, too: at the end of the process multiprocessing waits for workers, and they for their pipes.
        self.close = util.Finalize(self, _end, args=(self._workers,), exitpriority=0)
        try:
            for share in self._shares:
                self._workers.append(_started(make, share, layout))
            self._answers(max(timeout, 60.0))
        except BaseException:
            self.close()
            raise

    def reset(self, seeds: Sequence[int | None], where: np.ndarray | None = None) -> Any:
        return _joined(self._ask("reset", [(seeds[share], _cut(where, share)) for share in self._shares]))

    def step(self, action: Any, seeds: Sequence[int | None] | None = None, where: np.ndarray | None = None) -> Stepped:
        shares = self._shares
        return _joined(self._ask("step", [(action[s], None if seeds is None else seeds[s], _cut(where, s)) for s in shares]))

    def _ask(self, what: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        for worker, given in zip(self._workers, arguments, strict=True):
            try:
                worker.connection.send((what, given))
            except OSError as error:
                raise _died(worker.process) from error
        return self._answers(self._timeout)

    def _answers(self, timeout: float) -> list[Any]:
        answers = []
        for worker in self._workers:
            try:
                _await(worker, timeout)
                kind, value = worker.connection.recv()
            except (EOFError, OSError) as error:
                raise _died(worker.process) from error
            if kind != "done":
                raise (UsageError if kind == "usage" else SimulatorFailed)(value)
            answers.append(value)
        return answers


def _started(make: Callable[..., Any], share: slice, layout: Layout) -> Worker:
    context = multiprocessing.get_context("spawn")
    begun = context.RawValue(ctypes.c_ulong, 0)
    ours, theirs = context.Pipe()
    task = theirs, begun, make, share.stop - share.start, layout, share.start
    process = context.Process(target=main, args=task, daemon=True, name=f"simulators {share.start}")
    try:
        process.start()
    except (AttributeError, TypeError, OSError, pickle.PicklingError) as error:  # of pickle, which is asked for here
        raise UsageError(
            f"the environment cannot be sent to worker processes ({error}): make it by a function at the top of a "
            "module, or leave env_workers at 0"
        ) from error
    theirs.close()
    return Worker(process, ours, begun)


def _await(worker: Worker, timeout: float) -> None:
    """Returns when the worker's answer is there. Raises SimulatorFailed when one of its simulators takes longer than that."""
    begun, since = worker.begun.value, time.monotonic()
    while not worker.connection.poll(timeout / 10):
        if worker.begun.value != begun:
            begun, since = worker.begun.value, time.monotonic()
        elif time.monotonic() - since >= timeout:
            raise SimulatorFailed(
                f"the worker process of {worker.process.name} has not answered for {timeout:g} s and was ended "
                "(--env-timeout SECONDS lets it have longer)"
            )


def _died(process: Any) -> SimulatorFailed:
    process.join(2.0)
    code = process.exitcode
    how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
    return SimulatorFailed(f"the worker process of {process.name} died {how}")


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.connection.close()
    for worker in workers:
        worker.process.join(2.0)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
    workers.clear()


def _cut(where: np.ndarray | None, share: slice) -> np.ndarray | None:
    return None if where is None else where[share]


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *rows: np.concatenate(rows), *parts)


def main(connection: Connection, begun: Any, make: Callable[..., Any], number: int, layout: Layout, first: int) -> None:
    """Of a worker: makes the simulators, says so, and does what is asked for: `(method, arguments)` -> `("done", value)`, or
    what failed."""
    for stop in stopping_signals():  # a terminal or a scheduler sends it to all processes: the run itself ends this one
        signal.signal(stop, signal.SIG_IGN)

    def go_on() -> None:
        begun.value += 1

    made = _answer(connection, lambda: InProcess(make, number, layout, first, go_on=go_on), None)
    while made is not None:
        try:
            method, arguments = connection.recv()
            _answer(connection, functools.partial(getattr(made, method), *arguments))
        except (EOFError, OSError):  # the pipe was closed, for this answer too late to be read
            made.close()
            return


def _answer(connection: Connection, function: Callable[[], Any], told: Any = ...) -> Any:
    """Sends what the function returns, or `told` in place of that."""
    try:
        value = function()
    except UsageError as error:
        connection.send(("usage", str(error)))
    except SimulatorFailed as error:
        connection.send(("failed", str(error)))
    else:
        connection.send(("done", value if told is ... else told))
        return value
    return None
