"""Simulators in workers on a Ray cluster."""

import collections
import contextlib
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

from rollax.distributed.ray_cluster import connect_to_ray
from rollax.environments.environment import MultiAgentSimulator, Simulator
from rollax.errors import UsageError
from rollax.training.console.signals import StopRequested, is_stop_requested
from rollax.training.simulators.restarts import CONSTRUCTION_SECONDS, MAX_DELAY_SECONDS
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

START_SECONDS = 120.0  # time for Ray to place a worker and to start its process


class RaySimulators(WorkerSimulators):
    """Simulators in actors that Ray spreads over the nodes of a cluster (see `WorkerSimulators`).

    If a node dies and restarts are enabled, its workers are started again on other nodes.
    """

    def __init__(
        self,
        make: Callable[..., Simulator | MultiAgentSimulator],
        number: int,
        layout: SimulatorSpec,
        workers: int,
        timeout: float,
        max_restarts: int = 0,
    ) -> None:
        """Connect to the cluster and start the workers.

        Args:
            make: Function that creates one simulator. Ray pickles it.
            number: Number of simulators.
            layout: Observation format and requested info values.
            workers: Maximum number of workers.
            timeout: Time limit in seconds for each reset or step of a simulator.
            max_restarts: Maximum number of consecutive restarts of a simulator or a worker. 0
                disables restarts.

        Raises:
            UsageError: If the cluster cannot be reached, or creating a simulator raises UsageError.
            SimulatorError: If creating a simulator fails or times out.
        """
        import ray

        if not ray.is_initialized():
            connect_to_ray("Unset RAY_ADDRESS to use this machine.")

        def start_worker(share: slice) -> RayWorker:
            size = share.stop - share.start
            task = WorkerTask(make, size, layout, share.start, max_restarts)
            return RayWorker(task, timeout)

        super().__init__(start_worker, number, layout, workers, max_restarts)


class RayWorker:
    """Actor on a Ray cluster (see `SimulatorWorker`).

    Args:
        task: Simulators of the worker.
        timeout: Time limit in seconds for each reset or step of a simulator.
    """

    def __init__(self, task: WorkerTask, timeout: float) -> None:
        import ray
        import ray.cloudpickle

        self._name = f"the Ray worker of simulators {task.first}"
        # The actor itself interrupts a simulator that takes too long, except in compiled code.
        restart_seconds = MAX_DELAY_SECONDS + CONSTRUCTION_SECONDS if task.max_restarts else 0.0
        self._timeout = (task.number + 1) * (timeout + restart_seconds)
        # Ray places an actor on a node with a free CPU, and does not reserve it after that, so that
        # a cluster can run more workers than it has CPUs.
        actor_class = ray.remote(SimulatorActor)
        self._actor: Any = actor_class.options(scheduling_strategy="SPREAD").remote()
        self._answers: collections.deque[ray.ObjectRef] = collections.deque()
        pickled = ray.cloudpickle.dumps(task)
        self._answers.append(self._actor.start.remote(pickled, timeout, sys.path))
        self._is_started = False

    def send(self, method: str, arguments: tuple[object, ...]) -> None:
        """Send a request (see `SimulatorWorker.send`)."""
        self._answers.append(self._actor.call.remote(method, arguments))

    def receive(self) -> Answer:
        """Wait for the next answer (see `SimulatorWorker.receive`)."""
        import ray
        import ray.exceptions

        reference, started = self._answers.popleft(), time.monotonic()
        timeout = self._timeout if self._is_started else max(self._timeout, START_SECONDS)
        while not ray.wait([reference], timeout=POLL_SECONDS)[0]:
            if is_stop_requested():
                raise StopRequested
            if time.monotonic() - started >= timeout:
                raise WorkerError(
                    f"{self._name} did not respond within {timeout:g} s and was stopped. Check "
                    "that the cluster has free CPUs, or raise --env-timeout."
                )
        try:
            value = ray.get(reference)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            raise WorkerError(f"{self._name} died ({type(error).__name__}: {reason})") from error
        self._is_started = True
        return value

    def close(self) -> None:
        """Ask the worker to end (see `SimulatorWorker.close`)."""
        import ray

        if ray.is_initialized():  # Ray ends its actors when the process ends
            self._answers = collections.deque([self._actor.close.remote()])

    def join(self, seconds: float) -> None:
        """Wait until the worker has ended (see `SimulatorWorker.join`)."""
        import ray
        import ray.exceptions

        if ray.is_initialized():
            with contextlib.suppress(ray.exceptions.RayError):
                ray.wait(list(self._answers), timeout=seconds)
            ray.kill(self._actor)


def _load_task(pickled_task: bytes) -> WorkerTask:
    try:
        return pickle.loads(pickled_task)
    except ImportError as error:
        raise UsageError(
            f"A Ray worker cannot make the environment ({error}). Install the package on all nodes "
            "of the cluster, or start rollax in a folder that all nodes share."
        ) from error


class SimulatorActor:
    """Process on a Ray cluster that runs simulators."""

    def __init__(self) -> None:
        self._simulators: InProcessSimulators | None = None

    def start(self, pickled_task: bytes, timeout: float, path: list[str]) -> Answer:
        """Make the simulators.

        Args:
            pickled_task: Pickled `WorkerTask`.
            timeout: Time limit in seconds for each reset or step of a simulator.
            path: Module search path of the main process, for nodes that share its file system.
        """
        # At the end, so that no module of this process is shadowed.
        sys.path.extend(folder for folder in path if folder not in sys.path)

        def make() -> None:
            task = _load_task(pickled_task)
            self._simulators = InProcessSimulators(
                task.make,
                task.number,
                task.layout,
                task.first,
                timeout=timeout,
                max_restarts=task.max_restarts,
            )

        return answer(make)

    def call(self, method: str, arguments: tuple[object, ...]) -> Answer:
        """Call a method of the simulators."""
        assert self._simulators is not None
        perform = call_method(self._simulators, method, arguments)
        return answer(perform, self._simulators.pop_restart_messages)

    def close(self) -> None:
        """Close the simulators."""
        if self._simulators is not None:
            self._simulators.close()
