"""Simulators that step together in a pool of threads: EnvPool's."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from rollax.host.simulators import Layout, SimulatorFailed, Stepped, check_finite


class Pool:
    """See `rollax.host.simulators.Simulators`. The pool is made with the seed of its first simulator, and made anew when all
    episodes are begun with seeds; where one ended, the next begins with the pool's own random numbers."""

    def __init__(self, make: Callable[[int, int], Any], number: int, layout: Layout) -> None:
        self._make, self._number, self._layout = make, number, layout
        self._pool: Any = None
        self._all = np.arange(number, dtype=np.int32)

    def reset(self, seeds: Sequence[int | None], where: np.ndarray | None = None) -> Any:
        rows = self._rows()
        if self._pool is None or where is None or np.all(where):
            self.close()
            self._pool = self._make(self._number, int(seeds[0] or 0))
            where = None
        ids = self._all if where is None else self._all[where]
        self._put(rows, *self._try("reset", lambda: self._pool.reset(ids)))
        return rows

    def step(self, action: Any, seeds: Sequence[int | None] | None = None, where: np.ndarray | None = None) -> Stepped:
        number, ids = self._number, self._all if where is None else self._all[where]
        reward = np.zeros(number, np.float32)
        terminated, truncated = np.zeros(number, bool), np.zeros(number, bool)
        info = np.full((number, len(self._layout.info_names)), np.nan, np.float32)
        next_rows = self._rows()
        assert self._pool is not None, "reset comes first"
        obs, rewards, over, cut, told, whose = self._try("step", lambda: self._pool.step(action[ids], ids))
        self._put(next_rows, obs, whose)
        reward[whose], terminated[whose], truncated[whose] = rewards, over, cut & ~over
        for column, name in enumerate(self._layout.info_names):
            info[whose, column] = told[name]
        rows, ended = next_rows, self._all[terminated | truncated]
        if ended.size:
            rows = jax.tree.map(np.copy, next_rows)
            self._put(rows, *self._try("reset", lambda: self._pool.begin_next(ended)))
            check_finite(jax.tree.leaves(rows), None, _name)
        check_finite(jax.tree.leaves(next_rows), reward, _name)
        return Stepped(next_rows, rows, reward, terminated, truncated, info)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def _rows(self) -> Any:
        return jax.tree.map(lambda leaf: np.zeros((self._number, *leaf.shape), leaf.dtype), self._layout.obs)

    def _put(self, rows: Any, obs: Any, whose: np.ndarray) -> None:
        def put(row: np.ndarray, values: np.ndarray) -> None:
            if values.shape[1:] != row.shape[1:]:
                raise SimulatorFailed(f"the pool's observations have the shape {values.shape[1:]}, their space {row.shape[1:]}")
            row[whose] = values

        jax.tree.map(put, rows, obs)

    def _try(self, what: str, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except Exception as error:  # a pool may raise anything
            raise SimulatorFailed(f"the pool of simulators raised {type(error).__name__} in {what}: {error}") from error


def _name(index: int) -> str:
    return f"simulator {index} of the pool"
