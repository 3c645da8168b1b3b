"""Simulators that step together in the thread pool of EnvPool."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from rollax.environments.host_environment import SimulatorFaultError
from rollax.errors import error_message
from rollax.training.simulators.restarts import SimulatorError
from rollax.training.simulators.value_checks import check_finite
from rollax.training.simulators.vectorized import (
    SimulatorSpec,
    SimulatorStart,
    SimulatorStep,
)
from rollax.types import Action, Observation, PyTree


class PooledSimulators:
    """Simulators in a thread pool (see `rollax.training.simulators.vectorized.Simulators`).

    The pool is created with the seed of its first simulator. It is created again whenever all
    episodes are reset. Episodes in between use the pool's random generator, not their seeds.
    """

    def __init__(
        self, make: Callable[[int, int], object], number: int, layout: SimulatorSpec
    ) -> None:
        self._make_pool, self._number, self._layout = make, number, layout
        self._pool: Any = None
        self._all_ids = np.arange(number, dtype=np.int32)

    def reset(self, seeds: Sequence[int | None], where: np.ndarray | None = None) -> SimulatorStart:
        """Start episodes (see `Simulators.reset`)."""
        rows = self._make_rows()
        if self._pool is None or where is None or np.all(where):
            self.close()
            self._pool = self._make_pool(self._number, int(seeds[0] or 0))
            where = None
        ids = self._all_ids if where is None else self._all_ids[where]
        self._put(rows, *self._try("reset", lambda: self._pool.reset(ids)))
        return SimulatorStart(rows)

    def step(
        self,
        action: Action,
        seeds: Sequence[int | None] | None = None,
        where: np.ndarray | None = None,
    ) -> SimulatorStep:
        """Step the simulators (see `Simulators.step`)."""
        ids = self._all_ids if where is None else self._all_ids[where]
        next_rows = self._make_rows()
        after = self._layout.make_empty_step(self._number, next_rows, next_rows)
        assert self._pool is not None, "reset must be called first"
        obs, rewards, terminated, truncated, info, stepped_ids = self._try(
            "step", lambda: self._pool.step(action[ids], ids)
        )
        self._put(next_rows, obs, stepped_ids)
        after.reward[stepped_ids], after.terminated[stepped_ids] = rewards, terminated
        after.truncated[stepped_ids], after.ended[stepped_ids] = (
            truncated & ~terminated,
            truncated | terminated,
        )
        for column, name in enumerate(self._layout.info_names):
            after.info[stepped_ids, column] = info[name]
        rows, ended = next_rows, self._all_ids[after.ended]
        if ended.size:
            rows = jax.tree.map(np.copy, next_rows)
            self._put(rows, *self._try("reset", lambda: self._pool.begin_next(ended)))
            check_finite(jax.tree.leaves(rows), None, _simulator_name)
        check_finite(jax.tree.leaves(next_rows), after.reward, _simulator_name)
        return after._replace(obs=rows)

    def pop_restart_messages(self) -> list[str]:
        """Return an empty list, because pools do not restart."""
        return []

    def close(self) -> None:
        """Close the pool."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def _make_rows(self) -> Any:
        return jax.tree.map(
            lambda leaf: np.zeros((self._number, *leaf.shape), leaf.dtype), self._layout.obs
        )

    def _put(self, rows: Observation, obs: Observation, whose: np.ndarray) -> None:
        def put(row: np.ndarray, values: np.ndarray) -> None:
            if values.shape[1:] != row.shape[1:]:
                raise SimulatorError(
                    f"the observations of the pool must have the shape {row.shape[1:]} of their "
                    f"space, got {values.shape[1:]}."
                )
            row[whose] = values

        jax.tree.map(put, rows, obs)

    def _try(self, what: str, function: Callable[[], PyTree]) -> PyTree:
        try:
            return function()
        except SimulatorFaultError as error:
            raise SimulatorError(f"the pool of simulators failed in its {what}: {error}") from error
        except Exception as error:  # a pool may raise anything
            raise SimulatorError(
                f"the pool of simulators raised {type(error).__name__} in {what}: "
                f"{error_message(error)}"
            ) from error


def _simulator_name(index: int) -> str:
    return f"simulator {index} of the pool"
