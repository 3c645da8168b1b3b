"""Many simulators side by side: in this process, or in `workers` of their own. They restart where an episode ended."""

import contextlib
import functools
import math
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from rollax.errors import UsageError


class SimulatorFailed(RuntimeError):
    """A simulator raised, died, did not answer, or gave something of another form or not finite."""

    exit_code = 4  # of commands that it ends


class Stepped(NamedTuple):
    """One step of E simulators, `[E, ...]`."""

    next_obs: Any  # the true observation after the step
    obs: Any  # what acting goes on from: of the next episode where one ended
    reward: np.ndarray  # float32
    terminated: np.ndarray  # bool
    truncated: np.ndarray  # bool
    info: np.ndarray  # float32 [E, K]: the numbers asked for, NaN where there is none


class Simulators(Protocol):
    """E simulators."""

    def reset(self, seeds: Sequence[int | None], where: np.ndarray | None = None) -> Any:
        """Observations `[E, ...]` at the start of episodes. `where`: bool [E], others stay and have zeros."""
        ...

    def step(self, action: Any, seeds: Sequence[int | None] | None = None, where: np.ndarray | None = None) -> Stepped:
        """One step of each; where an episode ended, the next begins, with that seed. `where`: as for `reset`."""
        ...

    def close(self) -> None: ...


class Layout(NamedTuple):
    """What goes in and out of a simulator."""

    obs: Any  # a value of the space of observations, zeros
    info_names: tuple[str, ...]


@contextlib.contextmanager
def limited(seconds: float | None, name: Callable[[], str]) -> Iterator[Callable[[], Any]]:
    """Raises SimulatorFailed where what is within takes longer; `name` says what does. None: no limit. Gives what lets the time
    begin anew.

    By a timer of the process, which acts in the main thread of POSIX alone and not while a simulator is within compiled code.
    Where a caller has set that timer it is left alone.
    """
    is_possible = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
    if seconds is None or not is_possible or signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        yield lambda: None
        return

    def ring(*_: Any) -> None:
        raise SimulatorFailed(
            f"{name()} has not answered for {seconds:g} s and was interrupted (--env-timeout SECONDS lets it have longer)"
        )

    before = signal.signal(signal.SIGALRM, ring)
    anew = functools.partial(signal.setitimer, signal.ITIMER_REAL, seconds, seconds)
    anew()
    try:
        yield anew
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check_finite(rows: list[np.ndarray], reward: np.ndarray | None, name: Callable[[int], str]) -> None:
    """Raises SimulatorFailed that names the first simulator with a number that is not finite, before anything learns from it.

    `rows`: parts of observations `[E, ...]`; `reward`: `[E]`, None at a start.
    """
    parts = [("an observation", row) for row in rows if row.dtype.kind == "f"]
    for what, values in parts if reward is None else [("a reward", reward), *parts]:
        is_finite = np.isfinite(values)
        if not is_finite.all():
            index = int(np.argmin(is_finite.reshape(len(values), -1).all(axis=1)))
            raise SimulatorFailed(f"{name(index)} gave {what} that is not finite")


def attempted(name: str, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of a simulator returns. Raises SimulatorFailed that names it for whatever it raises."""
    try:
        return function(*arguments)
    except (SimulatorFailed, UsageError):
        raise
    except Exception as error:  # a simulator may raise anything
        text = traceback.format_exc().rstrip()
        raise SimulatorFailed(f"{name} raised {type(error).__name__} in {what}: {error}\n{text}") from error


class InProcess:
    """Simulators one after the other in this process. `first`: the number of the first, in words of what fails. Each has
    `timeout` seconds for a step or a start, where there is one; `go_on` is called before each.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        number: int,
        layout: Layout,
        first: int = 0,
        timeout: float | None = None,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        self._made, self._layout, self._first, self._timeout, self._current = [], layout, first, timeout, 0
        self._go_on = go_on
        self._begin_time: Callable[[], Any] = lambda: None
        self._leaves, self._structure = jax.tree.flatten(layout.obs)
        for index in range(number):
            self._made.append(self._try(index, "making it", make))

    def reset(self, seeds: Sequence[int | None], where: np.ndarray | None = None) -> Any:
        with limited(self._timeout, lambda: self._name(self._current)) as self._begin_time:
            return self._reset(seeds, where)

    def step(self, action: Any, seeds: Sequence[int | None] | None = None, where: np.ndarray | None = None) -> Stepped:
        with limited(self._timeout, lambda: self._name(self._current)) as self._begin_time:
            return self._step(action, seeds, where)

    def _reset(self, seeds: Sequence[int | None], where: np.ndarray | None) -> Any:
        rows = self._rows()
        for index, simulator in enumerate(self._made):
            if where is None or where[index]:
                seed = seeds[index]
                self._put(rows, index, self._try(index, "reset", simulator.reset, None if seed is None else int(seed)))
        check_finite(rows, None, self._name)
        return self._structure.unflatten(rows)

    def _step(self, action: Any, seeds: Sequence[int | None] | None, where: np.ndarray | None) -> Stepped:
        number, names = len(self._made), self._layout.info_names
        next_rows, reward = self._rows(), np.zeros(number, np.float32)
        terminated, truncated = np.zeros(number, bool), np.zeros(number, bool)
        info = np.full((number, len(names)), np.nan, np.float32)
        begun: list[tuple[int, Any]] = []
        for index, simulator in enumerate(self._made):
            if where is not None and not where[index]:
                continue
            given = self._try(index, "step", _stepped, simulator, action[index], names)
            obs, reward[index], terminated[index], truncated[index], info[index] = given
            self._put(next_rows, index, obs)
            if terminated[index] or truncated[index]:
                seed = None if seeds is None else seeds[index]
                begun.append((index, self._try(index, "reset", simulator.reset, None if seed is None else int(seed))))
        rows = next_rows
        if begun:
            rows = [row.copy() for row in next_rows]
            for index, obs in begun:
                self._put(rows, index, obs)
            check_finite(rows, None, self._name)
        check_finite(next_rows, reward, self._name)
        unflatten = self._structure.unflatten
        return Stepped(unflatten(next_rows), unflatten(rows), reward, terminated, truncated, info)

    def close(self) -> None:
        for index, simulator in enumerate(self._made):
            try:
                simulator.close()
            except Exception as error:  # what was learnt is worth more than how a simulator ends
                told = f"{self._name(index)} raised {type(error).__name__} when it was closed: {error}"
                warnings.warn(told, RuntimeWarning, stacklevel=2)

    def _rows(self) -> list[np.ndarray]:
        return [np.zeros((len(self._made), *leaf.shape), leaf.dtype) for leaf in self._leaves]

    def _put(self, rows: list[np.ndarray], index: int, obs: Any) -> None:
        try:
            values = self._structure.flatten_up_to(obs)
        except ValueError as error:  # other parts of a dictionary
            raise SimulatorFailed(f"{self._name(index)} changed its observations: {error}") from error
        for row, leaf, value in zip(rows, self._leaves, values, strict=True):
            if np.shape(value) != leaf.shape:
                raise SimulatorFailed(
                    f"{self._name(index)} changed its observations: one has the shape {np.shape(value)}, where its space says "
                    f"{leaf.shape}"
                )
            row[index] = value

    def _try(self, index: int, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        self._current = index
        self._begin_time()
        self._go_on()
        return attempted(self._name(index), what, function, *arguments)

    def _name(self, index: int) -> str:
        return f"simulator {self._first + index}"


def _stepped(simulator: Any, action: Any, names: Sequence[str]) -> tuple[Any, float, bool, bool, list[float]]:
    """A step, with the numbers asked for of its info: NaN for what is not there or is no number."""
    obs, reward, terminated, truncated, info = simulator.step(action)
    numbers = [_number(info.get(name)) for name in names]
    return obs, np.asarray(reward, np.float32).item(), bool(terminated), bool(truncated), numbers


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
