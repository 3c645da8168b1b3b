"""Vectorized simulators in this process. A new episode starts automatically when one ends."""

import contextlib
import math
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from rollax.environments.environment import MultiAgentSimulator, Simulator
from rollax.environments.host_environment import SimulatorFaultError, to_flag, to_reward
from rollax.errors import UsageError, error_message
from rollax.training.console.signals import StopRequested, is_stop_requested
from rollax.training.simulators.restarts import (
    CONSTRUCTION_SECONDS,
    RestartLimit,
    SimulatorError,
    wait_for_restart,
)
from rollax.training.simulators.value_checks import check_action_masks, check_finite
from rollax.types import Action, Leaf, Observation, PyTree

CONSTRUCTION = "making it"  # name of the constructor call in error messages


class SimulatorStart(NamedTuple):
    """Observations of E simulators for the next action, such as at the start of episodes.

    Attributes:
        obs: Observations [E, ...], or [E, A, ...] with A agents.
        active: Whether each agent is in the episode, bool [E, A], or None without an agent axis.
    """

    obs: Any
    active: Any = None


class SimulatorStep(NamedTuple):
    """One step of E simulators.

    With an agent axis, observations are [E, A, ...], and `reward`, `terminated` and `truncated` are
    [E, A]. If an agent was not in the episode before the step, its reward is 0, and `terminated`
    and `truncated` have the same values as in its last step in the episode.

    Attributes:
        next_obs: Observation [E, ...] after the step. At the end of an episode, the final
            observation of this episode.
        obs: Observation [E, ...] for the next action. At the end of an episode, the first
            observation of the next episode.
        reward: Rewards, float32 [E].
        terminated: Whether the episode terminated, bool [E].
        truncated: Whether the episode was truncated, bool [E].
        ended: Whether the episode of the simulator ended, bool [E].
        info: K requested info values of each simulator, float32 [E, K]. NaN if missing.
        restarted: Whether the simulator failed and was recreated, bool [E]. Its episode is then
            truncated, its reward is 0, and `next_obs` is the last observation before the failure.
        active: Whether each agent is in the episode of `obs`, bool [E, A], or None without an agent
            axis.
    """

    next_obs: Any
    obs: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    ended: np.ndarray
    info: np.ndarray
    restarted: np.ndarray
    active: Any = None

    @property
    def reset(self) -> np.ndarray:
        """Whether `obs` is the first observation of an episode, bool [E], or [E, A] of an agent.

        It is true for an agent that returns to the episode.
        """
        if self.active is None:
            return self.ended
        return self.ended[:, None] | (self.active & (self.terminated | self.truncated))


@runtime_checkable
class Simulators(Protocol):
    """Interface of E vectorized simulators."""

    def reset(self, seeds: Sequence[int | None], where: np.ndarray | None = None) -> SimulatorStart:
        """Start episodes.

        Args:
            seeds: Seed of each simulator, or None for a random start.
            where: Mask of the simulators to reset, bool [E]. None resets all.

        Returns:
            First observations. Zeros for simulators that are not reset.
        """
        ...

    def step(
        self,
        action: Action,
        seeds: Sequence[int | None] | None = None,
        where: np.ndarray | None = None,
    ) -> SimulatorStep:
        """Step the simulators. When an episode ends, the next episode of the simulator starts.

        Args:
            action: Actions [E, ...].
            seeds: Seed of each simulator's next episode, or None for random starts.
            where: Mask of the simulators to step, bool [E]. None steps all.

        Returns:
            Results of the step.
        """
        ...

    def pop_restart_messages(self) -> list[str]:
        """Return the error message of each restarted simulator since the last call."""
        ...

    def close(self) -> None: ...


class SimulatorSpec(NamedTuple):
    """Observation format and requested info values of a simulator.

    Attributes:
        obs: Zeros with the structure, shapes and types of an observation, of all agents if there is
            an agent axis.
        info_names: Names of the info values that each step returns.
        needs_legal_action: Whether "action_mask" in observations must allow at least one action.
        num_agents: Number of agents A, or None without an agent axis.
    """

    obs: Any
    info_names: tuple[str, ...]
    needs_legal_action: bool = False
    num_agents: int | None = None

    def make_start(self) -> SimulatorStart:
        """Return zeros with the structure, shapes and types of the start of one simulator."""
        agents = self.num_agents
        return SimulatorStart(self.obs, None if agents is None else np.zeros(agents, bool))

    def make_empty_step(
        self, number: int, next_obs: Observation, obs: Observation, active: Any = None
    ) -> SimulatorStep:
        """Return a step of E = `number` simulators without rewards and ends of episodes.

        Args:
            number: Number E of simulators.
            next_obs: Observations after the step and before any reset, `[E, ...]`.
            obs: Observations for the next action, `[E, ...]`.
            active: Mask of the active agents, bool `[E, A]`, or None.
        """
        shape = (number,) if self.num_agents is None else (number, self.num_agents)
        return SimulatorStep(
            next_obs=next_obs,
            obs=obs,
            reward=np.zeros(shape, np.float32),
            terminated=np.zeros(shape, bool),
            truncated=np.zeros(shape, bool),
            ended=np.zeros(number, bool),
            info=np.full((number, len(self.info_names)), np.nan, np.float32),
            restarted=np.zeros(number, bool),
            active=active,
        )


@contextlib.contextmanager
def enforce_timeout(
    seconds: float | None, name: Callable[[], str]
) -> Iterator[Callable[[float | None], Any]]:
    """Raise SimulatorError if the body of the context exceeds a time limit.

    The limit uses the interval timer of the process. It works only in the main thread on POSIX
    systems, and cannot interrupt compiled code. If another timer is active, no limit applies.

    Args:
        seconds: Time limit in seconds, or None to disable it.
        name: Function that returns the name of the current simulator.

    Yields:
        A function that restarts the timer. Its argument is a lower bound of the limit in seconds,
        or None to stop the timer.

    Raises:
        SimulatorError: If the time limit expires.
    """
    is_possible = (
        hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
    )
    if seconds is None or not is_possible or signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        yield lambda min_seconds: None
        return
    limit = seconds

    def raise_timeout(*_: object) -> None:
        raise SimulatorError(
            f"{name()} did not respond within {limit:g} s and was interrupted. "
            "Raise --env-timeout to allow more time."
        )

    def restart_timer(min_seconds: float | None = 0.0) -> None:
        nonlocal limit
        if min_seconds is None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            return
        limit = max(seconds, min_seconds)
        signal.setitimer(signal.ITIMER_REAL, limit, limit)

    before = signal.signal(signal.SIGALRM, raise_timeout)
    restart_timer()
    try:
        yield restart_timer
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def call_simulator(
    name: str, what: str, function: Callable[..., PyTree], *arguments: object
) -> Any:
    """Call a function of a simulator and convert its errors to SimulatorError.

    Args:
        name: Name of the simulator.
        what: Name of the call in error messages.
        function: Function to call.
        *arguments: Arguments of the function.

    Returns:
        The result of the function.

    Raises:
        SimulatorError: If the function raises an exception. The message names the simulator.
        UsageError: If the constructor of the simulator raises UsageError.
    """
    try:
        return function(*arguments)
    except SimulatorError:
        raise
    except SimulatorFaultError as error:
        raise SimulatorError(f"{name} failed in its {what}: {error}") from error
    except (Exception, SystemExit) as error:  # a simulator may raise anything
        if isinstance(error, UsageError) and what == CONSTRUCTION:
            raise
        text = traceback.format_exc().rstrip()
        raise SimulatorError(
            f"{name} raised {type(error).__name__} in {what}: {error_message(error)}\n{text}"
        ) from error


class InProcessSimulators:
    """Simulators that run sequentially in this process."""

    def __init__(
        self,
        make: Callable[..., Simulator | MultiAgentSimulator],
        number: int,
        layout: SimulatorSpec,
        first: int = 0,
        timeout: float | None = None,
        before_call_fn: Callable[[float], None] = lambda min_seconds: None,
        max_restarts: int = 0,
    ) -> None:
        """Create the simulators.

        Args:
            make: Function that creates one simulator.
            number: Number of simulators.
            layout: Observation format and requested info values.
            first: Index of the first simulator in error messages.
            timeout: Time limit in seconds for each reset or step, or None to disable it.
            before_call_fn: Function that is called before each call of a simulator, with a lower
                bound of the time limit of the call in seconds.
            max_restarts: Maximum number of consecutive restarts of a simulator. 0 disables
                restarts.

        Raises:
            SimulatorError: If a simulator cannot be made.
        """
        self._simulators: list[Any] = []
        self._make_simulator = make
        self._layout = layout
        self._first = first
        self._timeout = timeout
        self._current_index = 0
        self._before_call_fn = before_call_fn
        self._restart_timer_fn: Callable[[float | None], Any] = lambda min_seconds: None
        # Rows are the leaves of a `SimulatorStart`: observations, then `active` with agents.
        self._obs_leaves = jax.tree.leaves(layout.make_start())
        self._structure = jax.tree.structure(layout.obs)
        self._has_agents = layout.num_agents is not None
        self._step_fn = step_agents if self._has_agents else step_simulator
        self._mask = find_action_mask(layout)
        self._episode_steps = np.zeros(number, int)
        self._restarts = RestartLimit([1] * number, max_restarts)
        try:
            for index in range(number):
                self._simulators.append(self._try(index, CONSTRUCTION, make))
        except BaseException:
            self.close()
            raise
        self._last_rows = self._make_rows()  # last observations, kept only if max_restarts > 0

    def reset(self, seeds: Sequence[int | None], where: np.ndarray | None = None) -> SimulatorStart:
        """Start episodes (see `Simulators.reset`)."""
        with enforce_timeout(
            self._timeout, lambda: self._name(self._current_index)
        ) as self._restart_timer_fn:
            return SimulatorStart(*self._from_rows(self._reset(seeds, self._to_mask(where))))

    def step(
        self,
        action: Action,
        seeds: Sequence[int | None] | None = None,
        where: np.ndarray | None = None,
    ) -> SimulatorStep:
        """Step the simulators (see `Simulators.step`)."""
        with enforce_timeout(
            self._timeout, lambda: self._name(self._current_index)
        ) as self._restart_timer_fn:
            step = self._step(action, seeds, self._to_mask(where))
        obs, active = self._from_rows(step.obs)
        return step._replace(next_obs=self._from_rows(step.next_obs)[0], obs=obs, active=active)

    def _from_rows(self, rows: list[np.ndarray]) -> tuple[Observation, np.ndarray | None]:
        """Return rows as observations, and the mask of active agents."""
        if self._has_agents:
            return self._structure.unflatten(rows[:-1]), rows[-1]
        return self._structure.unflatten(rows), None

    def pop_restart_messages(self) -> list[str]:
        """Return the error message of each restart (see `Simulators.pop_restart_messages`)."""
        return self._restarts.pop_messages()

    def _reset(self, seeds: Sequence[int | None], where: np.ndarray) -> list[np.ndarray]:
        rows = self._make_rows()
        for index in np.flatnonzero(where).tolist():
            self._begin_episode(rows, index, seeds)
        self._finish_starts(rows, where, seeds)
        self._store_observations(rows, where)
        return rows

    def _step(
        self, action: Action, seeds: Sequence[int | None] | None, moved: np.ndarray
    ) -> SimulatorStep:
        rows = self._make_rows(), self._make_rows()
        step = self._layout.make_empty_step(len(moved), *rows)
        self._episode_steps += moved
        for index in np.flatnonzero(moved).tolist():
            try:
                one = jax.tree.map(lambda x, i=index: x[i], action)
                self._step_one(step, index, one)
            except SimulatorError as error:
                self._recover(step, index, error, seeds)
        ended = self._find_ends(step, moved)
        self._finish_steps(step, moved, seeds)
        # Before the next episodes, because a failure to start them is the first of a new series.
        self._restarts.record_success(moved & ~step.restarted, ended & ~step.restarted)
        if not np.any(ended):
            step = step._replace(obs=step.next_obs)
        else:
            for index in np.flatnonzero(ended & ~step.restarted).tolist():
                self._begin_episode(step.obs, index, seeds)
            for row, next_row in zip(step.obs, step.next_obs, strict=True):
                row[~ended] = next_row[~ended]
            self._finish_starts(step.obs, ended, seeds)
        self._store_observations(step.obs, moved)
        return step

    def _step_one(self, step: SimulatorStep, index: int, action: Action) -> None:
        """Step one simulator."""
        names = self._layout.info_names
        result = self._try(index, "step", self._step_fn, self._simulators[index], action, names)
        step.reward[index] = result.reward
        step.terminated[index] = result.terminated
        step.truncated[index] = result.truncated
        step.info[index] = result.info
        self._put(step.next_obs, index, result.obs)

    def _find_ends(self, step: SimulatorStep, moved: np.ndarray) -> np.ndarray:
        """Set and return `step.ended`. The episode of agents ends when none of them is in it."""
        if not self._has_agents:
            return np.logical_or(step.terminated, step.truncated, out=step.ended)
        step.ended[moved] |= ~np.any(step.next_obs[-1][moved], axis=1)
        return step.ended

    def _begin_episode(
        self, rows: list[np.ndarray], index: int, seeds: Sequence[int | None] | None
    ) -> None:
        """Start an episode, after a restart of the simulator if its reset fails."""
        try:
            self._put(rows, index, self._start_episode(index, seeds))
        except SimulatorError as error:
            self._restart(rows, index, error, seeds)

    def _finish_steps(
        self, step: SimulatorStep, moved: np.ndarray, seeds: Sequence[int | None] | None
    ) -> None:
        """Check the observations, rewards and action masks of a step."""
        while True:
            try:
                check_finite(step.next_obs, step.reward, self._name)
                if self._mask is not None:
                    ends = (
                        (step.ended, step.ended)
                        if self._has_agents
                        else (step.terminated, step.truncated)
                    )
                    check_action_masks(
                        step.next_obs[self._mask], moved, ends, self._name, self._episode_steps
                    )
                return
            except SimulatorError as error:
                assert error.index is not None
                self._recover(step, error.index, error, seeds)

    def _finish_starts(
        self, rows: list[np.ndarray], started: np.ndarray, seeds: Sequence[int | None] | None
    ) -> None:
        """Check the observations and action masks of simulators that started an episode."""
        while True:
            try:
                check_finite(rows, None, self._name)
                if self._mask is not None:
                    self._episode_steps[started] = 0
                    check_action_masks(
                        rows[self._mask], started, None, self._name, self._episode_steps
                    )
                return
            except SimulatorError as error:
                assert error.index is not None
                self._restart(rows, error.index, error, seeds)

    def _recover(
        self,
        step: SimulatorStep,
        index: int,
        error: SimulatorError,
        seeds: Sequence[int | None] | None,
    ) -> None:
        """Restart a simulator that failed in a step, and truncate its episode."""
        self._restart(step.obs, index, error, seeds)
        for row, last in zip(step.next_obs, self._last_rows, strict=True):
            row[index] = last[index]
        step.reward[index], step.info[index] = 0.0, np.nan
        was_active = self._last_rows[-1][index] if self._has_agents else True
        step.terminated[index], step.truncated[index] = np.logical_not(was_active), was_active
        step.ended[index] = step.restarted[index] = True

    def _restart(
        self,
        rows: list[np.ndarray],
        index: int,
        error: Exception,
        seeds: Sequence[int | None] | None,
    ) -> None:
        """Recreate a simulator and start an episode.

        Raises:
            SimulatorError: If the simulator has failed too often.
        """

        while True:
            delay = self._restarts.record_failure(index, error)
            wait_for_restart(delay, lambda: self._before_call_fn(0.0))
            try:
                self._restart_timer_fn(0.0)
                self._close(index)
                self._simulators[index] = self._try(index, CONSTRUCTION, self._make_simulator)
                self._put(rows, index, self._start_episode(index, seeds))
                return
            except (SimulatorError, UsageError) as new_error:
                error = new_error

    def _store_observations(self, rows: list[np.ndarray], where: np.ndarray) -> None:
        """Store the observations of the selected simulators, if simulators may restart."""
        if self._restarts.max_restarts:
            for last, row in zip(self._last_rows, rows, strict=True):
                last[where] = row[where]

    def _to_mask(self, where: np.ndarray | None) -> np.ndarray:
        """Return `where` as a mask, bool [E]. None selects all simulators."""
        return np.ones(len(self._simulators), bool) if where is None else np.asarray(where, bool)

    def _start_episode(self, index: int, seeds: Sequence[int | None] | None) -> Any:
        seed = None if seeds is None else seeds[index]
        reset = self._simulators[index].reset
        return self._try(index, "reset", reset, None if seed is None else int(seed))

    def close(self) -> None:
        """Close all simulators. Errors are converted to warnings."""
        for index in range(len(self._simulators)):
            self._close(index)

    def _close(self, index: int) -> None:
        try:
            self._simulators[index].close()
        except Exception as error:  # an error here must not discard the training
            message = (
                f"{self._name(index)} raised {type(error).__name__} when it was closed: "
                f"{error_message(error)}"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=3)

    def _make_rows(self) -> list[np.ndarray]:
        return [
            np.zeros((len(self._simulators), *leaf.shape), leaf.dtype) for leaf in self._obs_leaves
        ]

    def _put(self, rows: list[np.ndarray], index: int, obs: Observation) -> None:
        try:
            values = self._structure.flatten_up_to(obs)
        except ValueError as error:  # the structure differs, for example the keys of a dictionary
            raise SimulatorError(
                f"{self._name(index)} changed its observations: {error}"
            ) from error
        if self._has_agents:
            values.append(self._simulators[index].active)
        for row, leaf, value in zip(rows, self._obs_leaves, values, strict=True):
            if np.shape(value) != leaf.shape:
                raise SimulatorError(
                    f"{self._name(index)} changed its observations: the shape must be that of its "
                    f"space, {leaf.shape}, got {np.shape(value)}."
                )
            row[index] = value

    def _try(
        self, index: int, what: str, function: Callable[..., PyTree], *arguments: object
    ) -> Any:
        if is_stop_requested():
            raise StopRequested
        self._current_index = index
        min_seconds = CONSTRUCTION_SECONDS if what == CONSTRUCTION else 0.0
        self._restart_timer_fn(min_seconds)
        self._before_call_fn(min_seconds)
        try:
            return call_simulator(self._name(index), what, function, *arguments)
        finally:  # so that the timer expires only where errors of a simulator are handled
            self._restart_timer_fn(None)

    def _name(self, index: int) -> str:
        return f"simulator {self._first + index}"


class SingleStep(NamedTuple):
    """Result of one simulator's step. Missing and non-numeric info values are NaN."""

    obs: Any
    reward: float | np.ndarray
    terminated: bool | np.ndarray
    truncated: bool | np.ndarray
    info: list[float]


def step_simulator(simulator: Simulator, action: Action, names: Sequence[str]) -> SingleStep:
    obs, reward, terminated, truncated, info = simulator.step(action)
    return SingleStep(
        obs=obs,
        reward=to_reward(reward),
        terminated=to_flag("terminated", terminated),
        truncated=to_flag("truncated", truncated),
        info=[_to_float(info.get(name)) for name in names],
    )


def step_agents(simulator: MultiAgentSimulator, action: Action, names: Sequence[str]) -> SingleStep:
    """Step a simulator with an agent axis."""
    obs, reward, terminated, truncated, info = simulator.step(action)
    return SingleStep(
        obs=obs,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        info=[_to_float(info.get(name)) for name in names],
    )


def find_action_mask(layout: SimulatorSpec) -> int | None:
    """Return the leaf index of "action_mask" in an observation, or None if it is not checked."""
    if not (
        layout.needs_legal_action and isinstance(layout.obs, dict) and "action_mask" in layout.obs
    ):
        return None
    parts: list[Any] = [path[0] for path, _ in jax.tree_util.tree_leaves_with_path(layout.obs)]
    return [part.key for part in parts].index("action_mask")


def _to_float(value: Leaf) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
