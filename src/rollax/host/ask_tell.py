"""Quality-diversity for scores that are computed elsewhere, by a simulator or in a laboratory: ask, score, tell."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.acting.scoring import Score
from rollax.algorithms import find
from rollax.archives.cells import check_bounds
from rollax.config import checked
from rollax.environments.native.tasks import Task
from rollax.errors import UsageError
from rollax.host import elites, keys, memory
from rollax.host.checkpoint import Checkpoints
from rollax.host.settings import settings_of
from rollax.networks.solutions import Constant
from rollax.spaces import Box
from rollax.typed import shown, typed


class AskTell:
    """A search for solutions `[D]` in plain NumPy: `solutions = search.ask()`, then `search.tell(fitness, descriptor)`.

    `low`, `high`: bounds of the descriptor, K numbers each. `config`: settings of the algorithm, as a dictionary or its own
    class. `start`: the solution to begin with, 0 by default. With a `folder`, `save` keeps the search there, and a search with
    the same arguments goes on from it, bit for bit, also between `ask` and `tell`; with other ones it is refused.

    Raises UsageError for an algorithm that cannot (those that need gradients or policies), or settings that do not fit.
    """

    def __init__(
        self,
        algorithm: str,
        dimensions: int,
        low: Sequence[float],
        high: Sequence[float],
        *,
        config: Any = None,
        seed: int = 0,
        start: Any = None,
        folder: str | Path | None = None,
    ) -> None:
        name, entry = find(typed("algorithm", algorithm, str))
        size, seed = typed("dimensions", dimensions, int), typed("seed", seed, int)
        bounds = tuple(typed(side, given, tuple[float, ...]) for side, given in (("low", low), ("high", high)))
        settings: Any = checked(settings_of("config", entry.config, {}, config))
        first = _start(size, start)
        self._objectives = len(getattr(settings, "objectives", ()))
        task = _outside(name, size, bounds[0], bounds[1], self._objectives)
        made = entry.make(task, lambda key: Constant(jnp.zeros(size) if first is None else jnp.asarray(first)))
        archived = made.archived
        if archived is None:
            raise UsageError(f"{name} does not ask for solutions: use map_elites, cma_me or cma_mae")
        _check_memory(made.init, settings)
        self._archive = archived.archive
        self._ask, self._tell, self._metrics = (jax.jit(x) for x in (archived.ask, archived.tell, made.state_metrics))
        self._state = jax.jit(made.init)(keys.training(seed), settings)
        self._pending: Any = None
        self._nothing = Constant(jnp.zeros((settings.batch_size, size)))
        own = {"algorithm": name, "dimensions": size, "low": bounds[0], "high": bounds[1], "seed": seed}
        self._arguments = json.loads(json.dumps(own | dataclasses.asdict(settings)))  # as a checkpoint's summary keeps them
        self._folder = None if folder is None else typed("folder", folder, Path)
        self._checkpoints = None if self._folder is None else Checkpoints(self._folder, 2, 0, "qd_score", "max")
        if self._checkpoints is not None and self._checkpoints.steps():
            self._restore()

    @property
    def iterations(self) -> int:
        """How many batches were told."""
        return int(self._state.updates)

    def ask(self) -> np.ndarray:
        """Solutions to score, float32 `[B, D]`; the same ones until they are told of."""
        if self._pending is None:
            self._state, self._pending = self._ask(self._state)
        return np.asarray(self._pending.action)

    def tell(self, fitness: Any, descriptor: Any, objectives: Any = None) -> dict[str, float]:
        """The scores of what `ask` gave, `[B]` and `[B, K]`, NaN where there is none; returns the numbers of the archive.

        `objectives`: `[B, M]`, for an algorithm that has several (mome).

        Raises UsageError before `ask`, or for arrays of other shapes.
        """
        if self._pending is None:
            raise UsageError("there is nothing to tell of: ask for solutions first")
        number, size = self._pending.action.shape[0], self._descriptors
        scores = _numbers("fitness", fitness), _numbers("descriptor", descriptor)
        if scores[0].shape != (number,) or scores[1].shape != (number, size):
            raise UsageError(
                f"fitness must be [{number}] and descriptor [{number}, {size}], a row for each solution that was asked for, "
                f"not {list(scores[0].shape)} and {list(scores[1].shape)}"
            )
        given = np.zeros((number, 0), np.float32) if objectives is None else _numbers("objectives", objectives)
        if given.shape != (number, self._objectives):
            raise UsageError(
                f"objectives must be [{number}, {self._objectives}], a number for each that the settings name, "
                f"not {list(given.shape)}"
            )
        extras = jnp.asarray(given) if self._objectives else ()
        score = Score(jnp.asarray(scores[0]), jnp.asarray(scores[1]), extras)
        self._state, counts = self._tell(self._state, self._pending, score)
        self._pending = None
        values = self._metrics(self._state) | counts._asdict()
        return {name: float(value) for name, value in values.items()}

    def elites(self) -> dict[str, np.ndarray]:
        """The elites as columns, the best first: place, fitness, descriptors, and the solutions `[N, D]`."""
        archive, state = self._archive(self._state)
        found = jax.device_get(archive.elites(state))
        columns = elites.columns(found)
        return columns | {"solution": np.asarray(found.scored.solution.action)[columns["place"]]}

    def save(self) -> None:
        """Writes the search into its folder. Raises UsageError when it was given none."""
        if self._checkpoints is None:
            raise UsageError("a search is saved into a folder: give folder=... when it is made")
        self._checkpoints.save(self.iterations * 2 + (self._pending is not None), self._saved(), {}, self._arguments)
        self._checkpoints.wait()

    def _saved(self) -> Any:
        return self._state, self._nothing if self._pending is None else self._pending

    def _restore(self) -> None:
        assert self._checkpoints is not None
        for summary in self._checkpoints.readable():
            for name, value in self._arguments.items():
                was = summary.settings.get(name, value)
                if was != value:
                    raise UsageError(
                        f"the search in {self._folder} was made with {name} {was}, not {value}: give the same arguments to go "
                        "on with it, or another folder"
                    )
        step, (self._state, solutions), _ = self._checkpoints.restore("last", self._saved())
        self._pending = solutions if step % 2 else None

    @property
    def _descriptors(self) -> int:
        return self._state.archive.elites.descriptor.shape[1]


def _start(size: int, start: Any) -> np.ndarray | None:
    """The solution to begin with, `[D]`, or None. Raises UsageError for what is none."""
    if size < 1:
        raise UsageError(f"dimensions ({size}) must be at least 1")
    if start is None:
        return None
    first = _numbers("start", start)
    if first.shape != (size,) or not np.isfinite(first).all():
        raise UsageError(f"start must be {size} (dimensions) finite numbers, not {shown(start)}")
    return first


def _numbers(name: str, value: Any) -> np.ndarray:
    """An array of numbers as float32; what is too large for that is infinite. Raises UsageError for anything else."""
    try:
        if np.asarray(value).dtype.kind in "USc":  # which NumPy would convert, or cut
            raise ValueError
        with np.errstate(over="ignore"):
            return np.asarray(value, np.float32)
    except (TypeError, ValueError):
        raise UsageError(f"{name} must be an array of real numbers (NaN where there is none), not {shown(value)}") from None


def _check_memory(init: Any, settings: Any) -> None:
    """Raises UsageError for a search that does not fit into memory: its state is there twice while it is told of scores."""
    try:
        state = jax.eval_shape(init, jax.random.key(0), settings)
    except OverflowError as error:  # of sizes beyond what can be indexed
        raise UsageError(f"{error}: take fewer dimensions, cells or solutions in a batch") from error
    memory.check_memory(2 * memory.size_of(state), None, "the search", "fewer cells or dimensions, or a smaller batch_size")


def _outside(name: str, size: int, low: Any, high: Any, num_objectives: int) -> Task:
    """A task whose scores come from elsewhere; none is asked of it."""
    check_bounds(low, high)

    def score(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.full((), jnp.nan), jnp.zeros(len(low))

    spaces = Box(-float("inf"), float("inf"), (size,)), Box(low, high, (len(low),))
    objectives = (lambda x: jnp.full(num_objectives, jnp.nan)) if num_objectives else None
    return Task(f"{name}, scored elsewhere,", score, *spaces, is_outside=True, objectives=objectives)
