"""Simulators that are distributed over workers, such as processes. Dead workers are replaced."""

import time
from collections.abc import Callable, Sequence
from multiprocessing import util
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from rollax.environments.environment import MultiAgentSimulator, Simulator
from rollax.errors import UsageError
from rollax.training.simulators.restarts import RestartLimit, SimulatorError, wait_for_restart
from rollax.training.simulators.vectorized import (
    InProcessSimulators,
    SimulatorSpec,
    SimulatorStart,
    SimulatorStep,
)
from rollax.types import Action, PyTree

POLL_SECONDS = 0.2  # between checks for a stop request while workers step
CLOSE_SECONDS = 2.0  # time for workers to close their simulators before they are killed

# Kind ("done", "usage" or "failed"), value or error message, and messages of restarts.
Answer = tuple[str, Any, list[str]]


class WorkerTask(NamedTuple):
    """Simulators of a worker.

    Attributes:
        make: Function that creates one simulator. It must be picklable.
        number: Number of simulators.
        layout: Observation format and requested info values.
        first: Index of the first simulator in error messages.
        max_restarts: Maximum number of consecutive restarts of a simulator. 0 disables restarts.
    """

    make: Callable[..., Simulator | MultiAgentSimulator]
    number: int
    layout: SimulatorSpec
    first: int
    max_restarts: int


class WorkerError(SimulatorError):
    """Error for a worker that died or did not respond."""


class SimulatorWorker(Protocol):
    """Worker that runs some of the simulators. It answers requests in the order they are sent."""

    def send(self, method: str, arguments: tuple[object, ...]) -> None:
        """Send a request to call `InProcessSimulators.reset` or `InProcessSimulators.step`.

        Raises:
            WorkerError: If the worker is dead.
        """
        ...

    def receive(self) -> Answer:
        """Wait for the next answer. The first one confirms that the simulators were made.

        Raises:
            WorkerError: If the worker is dead or does not answer in time.
            StopRequested: If a stop was requested. The worker can then only be closed.
        """
        ...

    def close(self) -> None:
        """Ask the worker to close its simulators and to end."""
        ...

    def join(self, seconds: float) -> None:
        """Wait until the worker has ended. Kill it after `seconds`."""
        ...


def answer(function: Callable[[], PyTree], messages: Callable[[], list[str]] = list) -> Answer:
    """Return the answer of a worker to a request.

    Args:
        function: Function that performs the request.
        messages: Function that returns the messages of restarts.

    Returns:
        `("done", result, messages)`, or `("usage", message, [])` for a UsageError, or
        `("failed", message, [])` for a SimulatorError.
    """
    try:
        value = function()
    except UsageError as error:
        return "usage", str(error), []
    except SimulatorError as error:
        return "failed", str(error), []
    return "done", value, messages()


def call_method(
    simulators: InProcessSimulators, method: str, arguments: tuple[Any, ...]
) -> Callable[[], PyTree]:
    """Return a function that calls a method of the simulators of a worker."""
    methods = {"reset": simulators.reset, "step": simulators.step}
    return lambda: methods[method](*arguments)


class WorkerSimulators:
    """Simulators that are distributed evenly over workers (see `vectorized.Simulators`)."""

    def __init__(
        self,
        start_worker: Callable[[slice], SimulatorWorker],
        number: int,
        layout: SimulatorSpec,
        workers: int,
        max_restarts: int = 0,
    ) -> None:
        """Start the workers.

        Args:
            start_worker: Function that starts a worker for a range of simulators.
            number: Number of simulators.
            layout: Observation format and requested info values.
            workers: Maximum number of workers.
            max_restarts: Maximum number of consecutive restarts of a worker. 0 disables restarts.

        Raises:
            UsageError: If a worker cannot be started, or creating a simulator raises UsageError.
            SimulatorError: If creating a simulator fails or times out.
        """
        bounds = np.linspace(0, number, min(workers, number) + 1).round().astype(int)
        self._slices = [slice(int(a), int(b)) for a, b in zip(bounds, bounds[1:], strict=False)]
        self._start_worker, self._layout = start_worker, layout
        sizes = [share.stop - share.start for share in self._slices]
        self._restarts = RestartLimit(sizes, max_restarts)
        self._messages: list[str] = []
        self._last_start: SimulatorStart = jax.tree.map(
            lambda leaf: np.zeros((number, *leaf.shape), leaf.dtype), layout.make_start()
        )
        # Simulators whose worker died. Their episode is truncated at their next step.
        self._lost = np.zeros(number, bool)
        self._workers: list[SimulatorWorker] = []
        # Close the workers at exit as well, because multiprocessing waits for them then.
        self.close = util.Finalize(self, stop_workers, args=(self._workers,), exitpriority=0)
        try:
            for share in self._slices:
                self._workers.append(start_worker(share))
            for worker in self._workers:
                self._receive(worker)
        except BaseException:
            self.close()
            raise

    def reset(self, seeds: Sequence[int | None], where: np.ndarray | None = None) -> SimulatorStart:
        """Start episodes (see `Simulators.reset`)."""
        started = self._to_mask(where)
        answers, failures = self._call_all(
            "reset", [(seeds[share], started[share]) for share in self._slices]
        )
        self._lost &= ~started
        for index, start in self._restart(failures, seeds).items():
            answers[index] = start
            self._lost[self._slices[index]] |= ~started[self._slices[index]]
        start: SimulatorStart = _concatenate_results(answers)
        self._store_observations(start, started)
        return start

    def step(
        self,
        action: Action,
        seeds: Sequence[int | None] | None = None,
        where: np.ndarray | None = None,
    ) -> SimulatorStep:
        """Step the simulators (see `Simulators.step`)."""
        moved = self._to_mask(where)
        answers, failures = self._call_all(
            "step",
            [
                (
                    jax.tree.map(lambda x, s=share: x[s], action),
                    None if seeds is None else seeds[share],
                    moved[share],
                )
                for share in self._slices
            ],
        )
        for index, start in self._restart(failures, seeds).items():
            share = self._slices[index]
            answers[index] = self._layout.make_empty_step(
                share.stop - share.start, start.obs, start.obs, start.active
            )
            self._lost[share] = True
        step: SimulatorStep = _concatenate_results(answers)
        lost = self._lost & moved
        if np.any(lost):
            step = self._truncate(step, lost)
            self._lost &= ~moved
        self._store_observations(SimulatorStart(step.obs, step.active), moved)
        self._restarts.record_success(moved & ~step.restarted, step.ended & ~step.restarted)
        return step

    def pop_restart_messages(self) -> list[str]:
        """Return the error message of each restart (see `Simulators.pop_restart_messages`)."""
        messages, self._messages = self._messages + self._restarts.pop_messages(), []
        return messages

    def _call_all(
        self, method: str, arguments: list[tuple[object, ...]]
    ) -> tuple[list[Any], dict[int, SimulatorError]]:
        """Send a request to all workers. Return their answers, and the errors of dead workers."""
        answers: list[Any] = [None] * len(self._workers)
        failures: dict[int, SimulatorError] = {}

        def attempt(index: int, function: Callable[[], Any]) -> None:
            try:
                answers[index] = function()
            except WorkerError as error:
                if not self._restarts.max_restarts:
                    raise
                failures[index] = error

        for index, worker in enumerate(self._workers):
            attempt(index, lambda worker=worker, i=index: worker.send(method, arguments[i]))
        for index, worker in enumerate(self._workers):
            if index not in failures:
                attempt(index, lambda worker=worker: self._receive(worker))
        return answers, failures

    def _receive(self, worker: SimulatorWorker) -> Any:
        kind, value, messages = worker.receive()
        if kind != "done":
            raise (UsageError if kind == "usage" else SimulatorError)(value)
        self._messages += messages
        return value

    def _restart(
        self, failures: dict[int, SimulatorError], seeds: Sequence[int | None] | None
    ) -> dict[int, SimulatorStart]:
        """Replace dead workers, and start an episode in each of their simulators.

        Returns:
            Starts of the episodes, keyed by index of the worker.

        Raises:
            SimulatorError: If a worker has failed too often.
        """
        starts: dict[int, SimulatorStart] = {}
        while failures:
            delays = [self._restarts.record_failure(index, e) for index, e in failures.items()]
            wait_for_restart(max(delays))
            stop_workers([self._workers[index] for index in failures])
            indices, failures = list(failures), {}
            for index in indices:
                self._workers[index] = self._start_worker(self._slices[index])
            for index in indices:
                share = self._slices[index]
                worker = self._workers[index]
                given = [None] * (share.stop - share.start) if seeds is None else seeds[share]
                try:
                    self._receive(worker)
                    worker.send("reset", (given, None))
                    starts[index] = self._receive(worker)
                except (SimulatorError, UsageError) as error:
                    failures[index] = SimulatorError(str(error))
        return starts

    def _truncate(self, step: SimulatorStep, lost: np.ndarray) -> SimulatorStep:
        """Return the step with truncated episodes where simulators were lost."""

        def replace_lost(row: np.ndarray, values: np.ndarray | bool | float) -> np.ndarray:
            return np.where(lost.reshape(-1, *[1] * (row.ndim - 1)), values, row).astype(row.dtype)

        was_active = True if self._last_start.active is None else self._last_start.active
        return step._replace(
            next_obs=jax.tree.map(replace_lost, step.next_obs, self._last_start.obs),
            reward=replace_lost(step.reward, 0.0),
            terminated=replace_lost(step.terminated, np.logical_not(was_active)),
            truncated=replace_lost(step.truncated, was_active),
            ended=step.ended | lost,
            info=replace_lost(step.info, np.nan),
            restarted=step.restarted | lost,
        )

    def _store_observations(self, start: SimulatorStart, where: np.ndarray) -> None:
        """Store the observations of the selected simulators, if workers may restart."""

        def put(last: np.ndarray, row: np.ndarray) -> None:
            last[where & ~self._lost] = row[where & ~self._lost]

        if self._restarts.max_restarts:
            jax.tree.map(put, self._last_start, start)

    def _to_mask(self, where: np.ndarray | None) -> np.ndarray:
        """Return `where` as a mask, bool [E]. None selects all simulators."""
        return np.ones(self._lost.shape, bool) if where is None else np.asarray(where, bool)


def stop_workers(workers: list[SimulatorWorker]) -> None:
    """Close all workers, kill those that do not end in time, and clear the list."""
    for worker in workers:
        worker.close()
    deadline = time.monotonic() + CLOSE_SECONDS
    for worker in workers:
        worker.join(max(deadline - time.monotonic(), 0.0))
    workers.clear()


def _concatenate_results(parts: list[PyTree]) -> PyTree:
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *rows: np.concatenate(rows), *parts)
