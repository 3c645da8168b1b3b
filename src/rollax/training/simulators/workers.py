"""Simulators in worker processes, which communicate over pipes."""

import contextlib
import ctypes
import multiprocessing
import pickle
import time
from collections.abc import Callable, MutableSequence
from multiprocessing.connection import Connection

from rollax.environments.environment import MultiAgentSimulator, Simulator
from rollax.errors import UsageError
from rollax.training.console.signals import (
    StopRequested,
    hold_stop_signals,
    ignore_stop_signals,
    is_stop_requested,
)
from rollax.training.simulators.restarts import CONSTRUCTION_SECONDS
from rollax.training.simulators.vectorized import InProcessSimulators, SimulatorSpec
from rollax.training.simulators.worker_group import (
    POLL_SECONDS,
    Answer,
    WorkerError,
    WorkerSimulators,
    WorkerTask,
    answer,
    call_method,
)


class MultiprocessSimulators(WorkerSimulators):
    """Simulators in worker processes (see `WorkerSimulators`)."""

    def __init__(
        self,
        make: Callable[..., Simulator | MultiAgentSimulator],
        number: int,
        layout: SimulatorSpec,
        workers: int,
        timeout: float,
        max_restarts: int = 0,
    ) -> None:
        """Start the worker processes.

        Args:
            make: Function that creates one simulator. It must be picklable.
            number: Number of simulators.
            layout: Observation format and requested info values.
            workers: Maximum number of worker processes.
            timeout: Time limit in seconds for each reset or step of a simulator.
            max_restarts: Maximum number of consecutive restarts of a simulator or a worker. 0
                disables restarts.

        Raises:
            UsageError: If `make` cannot be pickled, or creating a simulator raises UsageError.
            SimulatorError: If creating a simulator fails or times out.
        """

        def start_worker(share: slice) -> ProcessWorker:
            size = share.stop - share.start
            return ProcessWorker(WorkerTask(make, size, layout, share.start, max_restarts), timeout)

        super().__init__(start_worker, number, layout, workers, max_restarts)


class ProcessWorker:
    """Worker process (see `SimulatorWorker`).

    Args:
        task: Simulators of the worker.
        timeout: Time limit in seconds for each reset or step of a simulator.

    Raises:
        UsageError: If the task cannot be pickled.
    """

    def __init__(self, task: WorkerTask, timeout: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._timeout = timeout
        # Number of simulator calls that have started, and a lower bound of the time limit of the
        # last one.
        self._calls = context.RawArray(ctypes.c_double, [0.0, CONSTRUCTION_SECONDS])
        self._connection, theirs = context.Pipe()
        self.process = context.Process(
            target=run_worker,
            args=(theirs, self._calls, task),
            daemon=True,
            name=f"simulators {task.first}",
        )
        try:
            with hold_stop_signals():
                self.process.start()
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

    def send(self, method: str, arguments: tuple[object, ...]) -> None:
        """Send a request (see `SimulatorWorker.send`)."""
        try:
            self._connection.send((method, arguments))
        except OSError as error:
            raise self._died_error() from error

    def receive(self) -> Answer:
        """Wait for the next answer (see `SimulatorWorker.receive`)."""
        try:
            self._wait()
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._died_error() from error

    def close(self) -> None:
        """Ask the worker to end (see `SimulatorWorker.close`)."""
        self._connection.close()

    def join(self, seconds: float) -> None:
        """Wait until the worker has ended (see `SimulatorWorker.join`)."""
        self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _wait(self) -> None:
        """Wait until an answer arrives, or one call of a simulator takes too long."""
        (calls, min_seconds), since = self._calls, time.monotonic()
        while not self._connection.poll(min(self._timeout / 10, POLL_SECONDS)):
            if is_stop_requested():
                raise StopRequested
            timeout = max(self._timeout, min_seconds)
            if self._calls[0] != calls:
                (calls, min_seconds), since = self._calls, time.monotonic()
            elif time.monotonic() - since >= timeout:
                raise WorkerError(
                    f"the worker process of {self.process.name} did not respond within "
                    f"{timeout:g} s and was stopped. Raise --env-timeout to allow more time."
                )

    def _died_error(self) -> WorkerError:
        self.process.join(2.0)
        code = self.process.exitcode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        return WorkerError(f"the worker process of {self.process.name} died {how}")


def run_worker(connection: Connection, calls: MutableSequence[float], task: WorkerTask) -> None:
    """Run the main loop of a worker process.

    The worker creates the simulators and sends a confirmation. It then answers each request
    `(method, arguments)`.

    Args:
        connection: Worker's end of the pipe to the main process.
        calls: Shared array of two numbers: the number of simulator calls that have started, and a
            lower bound of the time limit of the last one, in seconds.
        task: Simulators of the worker.
    """
    ignore_stop_signals()

    def count_call(min_seconds: float) -> None:
        calls[1] = min_seconds
        calls[0] += 1

    made: list[InProcessSimulators] = []

    def make() -> None:
        make_simulator, number, layout, first, max_restarts = task
        made.append(
            InProcessSimulators(
                make_simulator,
                number,
                layout,
                first,
                before_call_fn=count_call,
                max_restarts=max_restarts,
            )
        )

    with contextlib.suppress(OSError):  # the main process stopped before the simulators were made
        connection.send(answer(make))
    for simulators in made:
        _answer_requests(connection, simulators)
        simulators.close()


def _answer_requests(connection: Connection, simulators: InProcessSimulators) -> None:
    """Answer requests until the main process closes the pipe."""
    while True:
        try:
            method, arguments = connection.recv()
            perform = call_method(simulators, method, arguments)
            connection.send(answer(perform, simulators.pop_restart_messages))
        except (EOFError, OSError):
            return
