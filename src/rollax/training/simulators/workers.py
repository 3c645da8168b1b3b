"""Simulators in worker processes, which communicate over pipes."""

import ctypes
import functools
import multiprocessing
import pickle
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing import util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import jax
import numpy as np

from rollax.environments.environment import Simulator
from rollax.errors import UsageError
from rollax.training.console.signals import list_stop_signals
from rollax.training.simulators.vectorized import (
    InProcessSimulators,
    SimulatorError,
    SimulatorSpec,
    SimulatorStep,
)
from rollax.types import Action, Observation, PyTree


class Worker(NamedTuple):
    """Worker process that runs simulators.

    Attributes:
        process: Handle of the worker process.
        connection: Main process's end of the pipe to the worker.
        begun: Shared counter. The worker increments it before each simulator call.
    """

    process: Any
    connection: Any
    begun: Any


class MultiprocessSimulators:
    """Simulators in worker processes, distributed evenly (see `vectorized.Simulators`)."""

    def __init__(
        self,
        make: Callable[..., Simulator],
        number: int,
        layout: SimulatorSpec,
        workers: int,
        timeout: float,
    ) -> None:
        """Start the worker processes.

        Args:
            make: Function that creates one simulator. It must be picklable.
            number: Number of simulators.
            layout: Observation format and requested info values.
            workers: Maximum number of worker processes.
            timeout: Time limit in seconds for each reset or step of a simulator.

        Raises:
            UsageError: If `make` cannot be pickled, or creating a simulator raises UsageError.
            SimulatorError: If creating a simulator fails or times out.
        """
        self._timeout = timeout
        bounds = np.linspace(0, number, min(workers, number) + 1).round().astype(int)
        self._slices = [slice(int(a), int(b)) for a, b in zip(bounds, bounds[1:], strict=False)]
        self._workers: list[Worker] = []
        # Close the pipes at exit as well, because multiprocessing waits for the workers then.
        self.close = util.Finalize(self, _stop_workers, args=(self._workers,), exitpriority=0)
        try:
            for share in self._slices:
                self._workers.append(_start_worker(make, share, layout))
            self._receive_answers(max(timeout, 60.0))
        except BaseException:
            self.close()
            raise

    def reset(self, seeds: Sequence[int | None], where: np.ndarray | None = None) -> Observation:
        """Start episodes (see `Simulators.reset`)."""
        return _concatenate_results(
            self._ask(
                "reset", [(seeds[share], _slice_mask(where, share)) for share in self._slices]
            )
        )

    def step(
        self,
        action: Action,
        seeds: Sequence[int | None] | None = None,
        where: np.ndarray | None = None,
    ) -> SimulatorStep:
        """Step the simulators (see `Simulators.step`)."""
        shares = self._slices
        return _concatenate_results(
            self._ask(
                "step",
                [
                    (
                        jax.tree.map(lambda x, s=s: x[s], action),
                        None if seeds is None else seeds[s],
                        _slice_mask(where, s),
                    )
                    for s in shares
                ],
            )
        )

    def _ask(self, what: str, arguments: list[tuple[object, ...]]) -> list[Any]:
        for worker, given in zip(self._workers, arguments, strict=True):
            try:
                worker.connection.send((what, given))
            except OSError as error:
                raise _worker_died_error(worker.process) from error
        return self._receive_answers(self._timeout)

    def _receive_answers(self, timeout: float) -> list[Any]:
        answers = []
        for worker in self._workers:
            try:
                _wait_for_answer(worker, timeout)
                kind, value = worker.connection.recv()
            except (EOFError, OSError) as error:
                raise _worker_died_error(worker.process) from error
            if kind != "done":
                raise (UsageError if kind == "usage" else SimulatorError)(value)
            answers.append(value)
        return answers


def _start_worker(make: Callable[..., Simulator], share: slice, layout: SimulatorSpec) -> Worker:
    context = multiprocessing.get_context("spawn")
    begun = context.RawValue(ctypes.c_ulong, 0)
    ours, theirs = context.Pipe()
    task = theirs, begun, make, share.stop - share.start, layout, share.start
    process = context.Process(
        target=run_worker, args=task, daemon=True, name=f"simulators {share.start}"
    )
    try:
        process.start()
    except (
        AttributeError,
        TypeError,
        OSError,
        pickle.PicklingError,
    ) as error:  # includes errors of pickle, which serializes `make`
        raise UsageError(
            f"The environment cannot be sent to worker processes ({error}). Make it with a "
            "function at the top level of a module, or set env_workers to 0."
        ) from error
    theirs.close()
    return Worker(process, ours, begun)


def _wait_for_answer(worker: Worker, timeout: float) -> None:
    """Wait for the answer of a worker.

    Raise SimulatorError if one call of a simulator takes longer than `timeout` seconds.
    """
    begun, since = worker.begun.value, time.monotonic()
    while not worker.connection.poll(timeout / 10):
        if worker.begun.value != begun:
            begun, since = worker.begun.value, time.monotonic()
        elif time.monotonic() - since >= timeout:
            raise SimulatorError(
                f"the worker process of {worker.process.name} did not respond within "
                f"{timeout:g} s and was stopped. Raise --env-timeout to allow more time."
            )


def _worker_died_error(process: BaseProcess) -> SimulatorError:
    process.join(2.0)
    code = process.exitcode
    how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
    return SimulatorError(f"the worker process of {process.name} died {how}")


def _stop_workers(workers: list[Worker]) -> None:
    for worker in workers:
        worker.connection.close()
    for worker in workers:
        worker.process.join(2.0)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
    workers.clear()


def _slice_mask(where: np.ndarray | None, share: slice) -> np.ndarray | None:
    return None if where is None else where[share]


def _concatenate_results(parts: list[PyTree]) -> PyTree:
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *rows: np.concatenate(rows), *parts)


def run_worker(
    connection: Connection,
    begun: ctypes.c_ulong,
    make: Callable[..., Simulator],
    number: int,
    layout: SimulatorSpec,
    first: int,
) -> None:
    """Run the main loop of a worker process.

    The worker creates the simulators and sends a confirmation. It then answers each request
    `(method, arguments)` with `("done", result)`, `("usage", message)` for a UsageError, or
    `("failed", message)` for a SimulatorError.

    Args:
        connection: Worker's end of the pipe to the main process.
        begun: Shared counter, incremented before each simulator call.
        make: Function that creates one simulator.
        number: Number of simulators.
        layout: Observation format and requested info values.
        first: Index of the first simulator in error messages.
    """
    # Terminals and schedulers signal all processes, but the main process stops its workers itself.
    for stop in list_stop_signals():
        signal.signal(stop, signal.SIG_IGN)

    def go_on() -> None:
        begun.value += 1

    made = _send_answer(
        connection, lambda: InProcessSimulators(make, number, layout, first, go_on=go_on), None
    )
    while made is not None:
        try:
            method, arguments = connection.recv()
            _send_answer(connection, functools.partial(getattr(made, method), *arguments))
        except (EOFError, OSError):  # the main process has closed the pipe
            made.close()
            return


def _send_answer(connection: Connection, function: Callable[[], PyTree], told: object = ...) -> Any:
    """Call a function and return its result, after sending the result or `told` if it is set.

    If the function fails, send the error message and return None.
    """
    try:
        value = function()
    except UsageError as error:
        connection.send(("usage", str(error)))
    except SimulatorError as error:
        connection.send(("failed", str(error)))
    else:
        connection.send(("done", value if told is ... else told))
        return value
    return None
