"""Quality-diversity search with external scores, such as those of a simulator or a laboratory."""

import dataclasses
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from rollax.acting.scoring import Score
from rollax.algorithm import Config, InitFn
from rollax.algorithms.registry import find_algorithm
from rollax.archives.archive import counts_by_name
from rollax.archives.cells import check_bounds
from rollax.config import MAX_INT32
from rollax.environments.closed_form import Task
from rollax.errors import UsageError
from rollax.networks.solutions import ConstantSolution
from rollax.runtime.numerics import standard_numerics
from rollax.spaces import Box
from rollax.training.checkpoints.store import Checkpoints
from rollax.training.compile import device_memory, keys
from rollax.training.elites import archive_warnings, selection
from rollax.types import SettingValues
from rollax.user_input.coercion import coerce, format_repr, format_value
from rollax.user_input.settings_validation import resolve_settings, validate_settings


class AskTell:
    """Quality-diversity search for solutions [D] with an ask-and-tell interface in NumPy.

    Call `solutions = search.ask()`, then `search.tell(fitness, descriptor)`. `save` writes the
    search to `folder`. A later search with the same arguments continues exactly from the saved
    state, also if it was saved between `ask` and `tell`.

    Args:
        algorithm: Name of the algorithm, such as "map_elites", "cma_me" or "cma_mae".
        dimensions: Number of dimensions D of a solution.
        low: Lower bounds of the descriptor, [K].
        high: Upper bounds of the descriptor, [K].
        config: Settings of the algorithm, as a dictionary or an instance of its settings class.
            None uses the defaults.
        seed: Seed of the search.
        start: Initial solution, [D]. None means zeros.
        folder: Folder that `save` writes to and that a saved search is read from, or None.

    Raises:
        UsageError: If the algorithm needs gradients or policies, a setting or bound is not valid,
            or the folder contains a search with different arguments.
    """

    @standard_numerics()
    def __init__(
        self,
        algorithm: str,
        dimensions: int,
        low: Sequence[float],
        high: Sequence[float],
        *,
        config: Config | SettingValues | None = None,
        seed: int = 0,
        start: Sequence[float] | np.ndarray | None = None,
        folder: str | Path | None = None,
    ) -> None:
        name, entry = find_algorithm(coerce("algorithm", algorithm, str))
        size, seed = coerce("dimensions", dimensions, int), coerce("seed", seed, int)
        low_bounds = coerce("low", low, tuple[float, ...])
        high_bounds = coerce("high", high, tuple[float, ...])
        settings = validate_settings(resolve_settings("config", entry.config, {}, config))
        first = _validate_start(size, start)
        if not 0 <= seed < 2**32:
            raise UsageError(f"seed must be in [0, 2^32), got {format_value(seed)}.")
        derived = entry.derive_settings(settings).archive
        self._num_objectives = 0 if derived is None else len(derived.objectives)
        task = _make_external_task(name, size, low_bounds, high_bounds, self._num_objectives)
        search = entry.make(
            task,
            lambda key: ConstantSolution(jnp.zeros(size) if first is None else jnp.asarray(first)),
        )
        archived = search.archived
        if archived is None or derived is None:
            raise UsageError(
                f"algorithm must support ask and tell, got {name}. Use map_elites, cma_me or "
                "cma_mae."
            )
        _check_memory(search.init, settings)
        self._settings = derived
        self._archive_fn, self._num_batches_fn = archived.archive, archived.num_batches
        self._ask, self._tell_fn, self._metrics_fn = (
            jax.jit(x) for x in (archived.ask, archived.tell, search.state_metrics)
        )
        # One assignment changes both the state and the pending solutions, so that an interrupt
        # cannot separate them.
        self._state_and_pending: tuple[Any, Any] = (
            jax.jit(search.init)(keys.training_key(seed), settings),
            None,
        )
        self._empty_solutions = ConstantSolution(jnp.zeros((derived.batch_size, size)))
        arguments = {
            "algorithm": name,
            "dimensions": size,
            "low": low_bounds,
            "high": high_bounds,
            "seed": seed,
        }
        # Converted to JSON types, for comparison with the summary of a checkpoint.
        self._arguments = json.loads(json.dumps(arguments | dataclasses.asdict(settings)))
        self._folder = None if folder is None else coerce("folder", folder, Path)
        self._checkpoints = (
            None if self._folder is None else Checkpoints(self._folder, 2, 0, "qd_score", "max")
        )
        if self._checkpoints is not None and self._checkpoints.steps():
            self._restore()

    def __repr__(self) -> str:
        facts = {
            name: self._arguments[name]
            for name in ("algorithm", "dimensions", "low", "high", "seed")
        }
        return format_repr("AskTell", **facts, iterations=self.iterations, folder=self._folder)

    @property
    def iterations(self) -> int:
        """Number of batches passed to `tell`."""
        return int(self._num_batches_fn(self._state))

    @standard_numerics()
    def ask(self) -> np.ndarray:
        """Return solutions to score, float32 [B, D].

        Repeated calls return the same solutions until `tell` is called.
        """
        if self._pending is None:
            self._state_and_pending = self._ask(self._state)
        _, pending = self._state_and_pending
        return np.asarray(pending.action)

    @standard_numerics()
    def tell(
        self, fitness: ArrayLike, descriptor: ArrayLike, objectives: ArrayLike | None = None
    ) -> dict[str, float]:
        """Insert the solutions from `ask` with their scores and return the metrics of the archive.

        A UserWarning is issued if no solution of the first batch exceeds `threshold_start`
        (cma_mae).

        Args:
            fitness: Fitness of each solution, [B]. NaN marks failed solutions.
            descriptor: Descriptor of each solution, [B, K].
            objectives: Objectives of each solution, [B, M], for a multi-objective algorithm (mome).

        Returns:
            Metrics of the archive, keyed by name, and the counts `new`, `better`, `outside`,
            `nonfinite` (and `below_threshold` for archives with thresholds) of this batch.

        Raises:
            UsageError: If `ask` has not been called, or an array has the wrong shape.
        """
        if self._pending is None:
            raise UsageError("`tell` must follow `ask`. Call `ask` first.")
        batch_size, size = self._pending.action.shape[0], self._num_descriptors
        scores = _to_float_array("fitness", fitness), _to_float_array("descriptor", descriptor)
        if scores[0].shape != (batch_size,) or scores[1].shape != (batch_size, size):
            raise UsageError(
                f"fitness must have shape [{batch_size}] and descriptor [{batch_size}, {size}], "
                f"one row per solution from `ask`, got {list(scores[0].shape)} and "
                f"{list(scores[1].shape)}."
            )
        objective_values = (
            np.zeros((batch_size, 0), np.float32)
            if objectives is None
            else _to_float_array("objectives", objectives)
        )
        if objective_values.shape != (batch_size, self._num_objectives):
            raise UsageError(
                f"objectives must have shape [{batch_size}, {self._num_objectives}], one column "
                f"per objective in the settings, got {list(objective_values.shape)}."
            )
        extras = jnp.asarray(objective_values) if self._num_objectives else ()
        score = Score(jnp.asarray(scores[0]), jnp.asarray(scores[1]), extras)
        is_first = self.iterations == 0
        state, counts = self._tell_fn(self._state, self._pending, score)
        self._state_and_pending = state, None
        metrics = self._metrics_fn(state) | counts_by_name(counts)
        values = {name: float(value) for name, value in metrics.items()}
        if is_first:
            warning = archive_warnings.describe_unreached_threshold(
                values, self._settings.threshold_start, batch_size
            )
            if warning is not None:
                # The third level is the caller of the decorated method.
                warnings.warn(warning, UserWarning, stacklevel=3)
        return values

    @standard_numerics()
    def elites(self) -> dict[str, np.ndarray]:
        """Return a table of the elites, best first.

        Returns:
            Arrays with one row for each of N elites: `place` (index of the archive entry),
            `fitness`, `descriptor_0`, `descriptor_1` and so on, each [N], and `solution`, [N, D].
        """
        archive, state = self._archive_fn(self._state)
        elites = jax.device_get(archive.elites(state))
        columns = selection.elite_columns(elites)
        actions = np.asarray(elites.solutions.solution.action)
        return columns | {"solution": actions[columns["place"]]}

    @standard_numerics()
    def save(self) -> None:
        """Write the search to its folder.

        Raises:
            UsageError: If the search has no folder.
        """
        if self._checkpoints is None:
            raise UsageError("The search has no folder to save to. Pass folder=... to AskTell.")
        self._checkpoints.save(
            self.iterations * 2 + (self._pending is not None),
            self._checkpoint_contents(),
            {},
            self._arguments,
        )
        self._checkpoints.wait()

    def _checkpoint_contents(self) -> Any:
        return self._state, self._empty_solutions if self._pending is None else self._pending

    def _restore(self) -> None:
        assert self._checkpoints is not None
        for summary in self._checkpoints.readable_summaries():
            for name, value in self._arguments.items():
                saved_value = summary.settings.get(name, value)
                if saved_value != value:
                    raise UsageError(
                        f"The search in {self._folder} was made with {name} {saved_value}, got "
                        f"{value}. Pass the same arguments to continue it, or choose another "
                        "folder."
                    )
        step, (state, solutions), _ = self._checkpoints.restore("last", self._checkpoint_contents())
        self._state_and_pending = state, solutions if step % 2 else None

    @property
    def _state(self) -> Any:
        return self._state_and_pending[0]

    @property
    def _pending(self) -> Any:
        return self._state_and_pending[1]

    @property
    def _num_descriptors(self) -> int:
        return len(self._arguments["low"])


def _validate_start(num_dimensions: int, start: object) -> np.ndarray | None:
    """Return the initial solution, [D] or None, or raise UsageError if it is not valid."""
    if not 1 <= num_dimensions <= MAX_INT32:
        raise UsageError(
            f"dimensions must be between 1 and {MAX_INT32}, got {format_value(num_dimensions)}."
        )
    if start is None:
        return None
    first = _to_float_array("start", start)
    if first.shape != (num_dimensions,) or not np.isfinite(first).all():
        raise UsageError(
            f"start must be {num_dimensions} (dimensions) finite numbers, "
            f"got {format_value(start)}."
        )
    return first


def _to_float_array(name: str, value: object) -> np.ndarray:
    """Convert a value to a float32 array. Values beyond the range of float32 become infinite.

    Raise UsageError for values that are not real numbers.
    """
    try:
        if np.asarray(value).dtype.kind in "USc":  # NumPy would parse or truncate these
            raise ValueError
        with np.errstate(over="ignore"):
            return np.asarray(value, np.float32)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(
            f"{name} must be an array of real numbers, with NaN for missing ones, got "
            f"{format_value(value)}."
        ) from None


def _check_memory(init: InitFn, settings: Config) -> None:
    """Raise UsageError if two copies of the search's state, which `tell` needs, exceed memory."""
    try:
        state = jax.eval_shape(init, jax.random.key(0), settings)
    except OverflowError as error:  # arrays that are too large to be indexed
        raise UsageError(
            f"{error}. Use fewer dimensions, cells or solutions in a batch."
        ) from error
    device_memory.check_memory(
        2 * device_memory.tree_bytes(state),
        None,
        "the search",
        "Use fewer cells or dimensions, or a smaller batch_size",
    )


def _make_external_task(
    name: str,
    num_dimensions: int,
    low: tuple[float, ...],
    high: tuple[float, ...],
    num_objectives: int,
) -> Task:
    """Return a task for external scores. Its `score` function is a placeholder."""
    check_bounds(low, high)

    def score(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.full((), jnp.nan), jnp.zeros(len(low))

    def score_objectives(x: jax.Array) -> jax.Array:
        return jnp.full(num_objectives, jnp.nan)

    return Task(
        f"{name}, scored elsewhere,",
        score,
        Box(-float("inf"), float("inf"), (num_dimensions,)),
        Box(low, high, (len(low),)),
        has_external_scores=True,
        objectives=score_objectives if num_objectives else None,
    )
