"""Merging of several archives, and comparison of two archives cell by cell."""

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.archives.archive import Archive, ScoredSolutions, qd_metrics
from rollax.errors import UsageError
from rollax.loading import load
from rollax.policy import Policy
from rollax.runtime.numerics import standard_numerics
from rollax.training.checkpoints.store import Checkpoints
from rollax.training.compile import keys
from rollax.training.elites import selection
from rollax.training.elites.re_evaluation import (
    elite_thresholds,
    find_cells,
    get_archive_with_cells,
    insert_elites,
)
from rollax.training.run_folder import creation, layout, metric_sinks
from rollax.training.spec import Spec
from rollax.types import ArchiveState, RunPath
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import format_repr, format_value


class Comparison(NamedTuple):
    """Comparison of two archives in the cells of the first archive.

    N is the number of cells that contain an elite of at least one archive.

    Attributes:
        cell: Indices of the cells, int [N], ascending.
        fitness_a: Best fitness per cell in the first archive, float32 [N]. NaN for empty cells.
        fitness_b: Best fitness per cell in the second archive, float32 [N]. NaN for empty cells.
        metrics_a: qd_score, coverage, fitness_best and fitness_mean of the first archive.
        metrics_b: The same metrics of the second archive, computed in the first archive's cells.
    """

    cell: np.ndarray
    fitness_a: np.ndarray
    fitness_b: np.ndarray
    metrics_a: dict[str, float]
    metrics_b: dict[str, float]

    def __repr__(self) -> str:
        return format_repr(
            "Comparison",
            cells=len(self.cell),
            qd_score_a=self.metrics_a.get("qd_score"),
            qd_score_b=self.metrics_b.get("qd_score"),
        )

    def numbers(self) -> dict[str, float]:
        """Return the comparison as a dictionary of numbers.

        `only_a`, `only_b` and `both` are the numbers of cells filled only by the first archive,
        only by the second, and by both. `better_a`, `better_b` and `equal` are the numbers of cells
        filled by both in which the first archive, the second or neither has a higher fitness.
        `mean_difference` is the mean fitness difference (second minus first) in cells that both
        fill. The metrics of the archives have the suffixes `_a` and `_b`.
        """
        is_in_first, is_in_second = ~np.isnan(self.fitness_a), ~np.isnan(self.fitness_b)
        difference = (self.fitness_b - self.fitness_a)[is_in_first & is_in_second]
        counts = {
            "only_a": is_in_first & ~is_in_second,
            "only_b": is_in_second & ~is_in_first,
            "both": is_in_first & is_in_second,
            "better_a": difference < 0,
            "better_b": difference > 0,
            "equal": difference == 0,
        }
        mean = float(difference.mean()) if difference.size else float("nan")
        metrics = {
            f"{name}_{suffix}": archive_metrics[name]
            for suffix, archive_metrics in (("a", self.metrics_a), ("b", self.metrics_b))
            for name in archive_metrics
        }
        return {
            **{name: int(np.sum(mask)) for name, mask in counts.items()},
            "mean_difference": mean,
            **metrics,
        }


@standard_numerics()
@coerce_arguments(folder=Path | None)
def merge_archives(runs: Sequence[Policy | RunPath], *, folder: Path | str | None = None) -> Policy:
    """Merge the archives of several runs into one archive.

    All elites are inserted at once into an empty archive with the cells of the first run. With
    acceptance thresholds (cma_mae, cma_maega), each cell gets the largest threshold of the former
    cells of its elites.

    Args:
        runs: Policies, results of runs or run folders. For a result or a folder, the last
            checkpoint is used, and for a population, its best member.
        folder: Folder to write the merged archive to as a run. The run can be loaded, evaluated,
            plotted and rendered like any other. Resuming it with more total steps continues from
            this archive with a new emitter. None writes no run.

    Returns:
        A policy with the merged archive. Its methods include `elites`, `elite` and
        `correct_archive`.

    Raises:
        UsageError: If a run has no archive, the environments or the shapes of solutions or
            descriptors differ, or the folder exists.
    """
    if isinstance(runs, Policy | str | os.PathLike) or not isinstance(runs, Iterable):
        raise UsageError(
            f"runs must be a sequence of policies or folders, got {format_value(runs)}. Put a "
            "single one in a list."
        )
    policies = [run if isinstance(run, Policy) else load(run) for run in runs]
    if not policies:
        raise UsageError("runs must contain at least one archive, got none. Pass two runs or more.")
    first, elites_by_run = policies[0], [collect_elites(policy) for policy in policies]
    thresholds = [elite_thresholds(policy) for policy in policies]
    for policy, run_elites in zip(policies[1:], elites_by_run[1:], strict=True):
        check_compatible(first, policy, elites_by_run[0], run_elites)
    archive, state = get_archive_with_cells(first)
    all_elites = jax.tree.map(lambda *rows: np.concatenate(rows), *elites_by_run)
    all_thresholds = np.concatenate(thresholds)
    if archive.thresholds is None:
        kept = _find_distinct_rows(all_elites)
        all_elites = jax.tree.map(lambda rows: rows[kept], all_elites)
        all_thresholds = all_thresholds[kept]
    merged_archive = insert_elites(archive, state, all_elites, all_thresholds)
    state = selection.archive_functions(first).with_archive(first.state, merged_archive)
    spec = _make_single_run_spec(first.spec, first, folder)
    frames = spec.config.steps_per_update
    step = -(-sum(policy.step for policy in policies) // frames) * frames  # whole updates
    spec = dataclasses.replace(
        spec, options=dataclasses.replace(spec.options, total_steps=max(step, 1))
    )
    notes = [
        f"Merged from {len(policies)} archives with "
        f"{sum(len(run_elites.fitness) for run_elites in elites_by_run):,} elites"
    ]
    merged = dataclasses.replace(
        first,
        spec=spec,
        step=step,
        state=state,
        warnings=notes,
        member=None,
        folder=folder and Path(folder),
    )
    if folder is not None:
        save_as_run(merged, Path(folder))
    return merged


def collect_elites(policy: Policy) -> ScoredSolutions:
    """Return the elites of a policy's archive in archive order, as NumPy arrays [N, ...].

    Args:
        policy: Policy of a run with an archive.

    Raises:
        UsageError: If the algorithm has no archive, or the archive is empty.
    """
    elites = selection.get_elites(policy)
    return jax.tree.map(lambda x: np.asarray(x)[elites.mask], elites.solutions)


def _find_distinct_rows(elites: ScoredSolutions) -> np.ndarray:
    """Return the indices of the first occurrences of elites, ascending.

    Two archives with a common origin have equal elites, whose distance is 0. In an archive of
    dominated novelty, they would replace other elites.
    """
    columns = [np.ascontiguousarray(rows) for rows in jax.tree.leaves(elites)]
    first_indices: dict[bytes, int] = {}
    for index in range(len(elites.fitness)):
        row = b"".join(rows[index].tobytes() for rows in columns)
        first_indices.setdefault(hashlib.sha256(row).digest(), index)
    return np.array(list(first_indices.values()))


def check_compatible(
    first_policy: Policy,
    second_policy: Policy,
    first_elites: ScoredSolutions,
    second_elites: ScoredSolutions,
) -> None:
    """Check that the elites of two archives can be inserted into one archive.

    Args:
        first_policy: Policy of the first archive.
        second_policy: Policy of the second archive.
        first_elites: Elites of the first archive.
        second_elites: Elites of the second archive.

    Raises:
        UsageError: If environments, descriptors or shapes of solutions differ.
    """
    names = first_policy.spec.environment, second_policy.spec.environment
    if names[0] != names[1]:
        raise UsageError(
            f"Archives must be of the same environment, got {names[0]} and {names[1]}, whose "
            "fitness cannot be compared. Choose archives of one environment."
        )
    if first_elites.descriptor.shape[1:] != second_elites.descriptor.shape[1:]:
        sizes = first_elites.descriptor.shape[1], second_elites.descriptor.shape[1]
        raise UsageError(
            f"Descriptors must have the same dimensions, got {sizes[0]} and {sizes[1]}. Choose "
            "archives with the same descriptor."
        )
    shapes = [
        [
            (str(path), x.shape[1:], x.dtype)
            for path, x in jax.tree.leaves_with_path((y.solution, y.extras))
        ]
        for y in (first_elites, second_elites)
    ]
    if shapes[0] != shapes[1]:
        raise UsageError(
            f"Solutions of {second_policy.spec.algorithm} must have the shapes of those of the "
            "first archive. Train both with the same network."
        )


def _make_single_run_spec(spec: Spec, policy: Policy, folder: Path | str | None) -> Spec:
    """Return the specification of a single run with the member's seed and settings."""
    current = policy.algorithm.config(policy.state)
    varied = {name: float(getattr(current, name)) for name in (*spec.sweep, *spec.evolve)}
    seed = int(spec.members()[policy.member or 0]["seed"])
    options = dataclasses.replace(spec.options, seed=seed, seeds=1, run_dir=folder)
    config = dataclasses.replace(spec.config, **varied)
    return dataclasses.replace(
        spec, config=config, sweep={}, evolve={}, updates_per_generation=0, options=options
    )


def save_as_run(policy: Policy, folder: Path) -> None:
    """Write an archive to a new run folder, as a run that ended at the policy's step.

    Args:
        policy: Policy with an archive.
        folder: Folder of the run, which is created.

    Raises:
        UsageError: If the folder exists.
    """
    spec, algorithm = policy.spec, policy.algorithm
    config = dataclasses.replace(spec.config, total_updates=float(spec.total_updates))
    initial_state = jax.jit(algorithm.init)(keys.training_key(spec.options.seed), config)
    _, archive_state = get_archive_with_cells(policy)
    state = selection.archive_functions(policy).with_archive(initial_state, archive_state)
    values = {name: float(x) for name, x in algorithm.state_metrics(state).items()}
    creation.create_run_folder(spec)
    lines = metric_sinks.make_json_lines_sink(folder / layout.METRICS_FILE)
    lines.write(
        policy.step,
        {**values, "updates": policy.step // spec.config.steps_per_update, "wall_time": 0.0},
    )
    lines.sync()
    lines.close()
    with contextlib.closing(Checkpoints(folder / layout.CHECKPOINTS_FOLDER)) as checkpoints:
        checkpoints.save(
            policy.step,
            state,
            values,
            layout.persistent_settings(spec),
        )


@standard_numerics()
def compare_archives(a: Policy | RunPath, b: Policy | RunPath) -> Comparison:
    """Compare the archives of two runs in the cells of the first archive.

    Args:
        a: First policy, or the result or folder of its run.
        b: Second policy, or the result or folder of its run.

    Returns:
        The comparison.

    Raises:
        UsageError: If a run has no archive, or environments or descriptors differ.
    """
    first, second = (run if isinstance(run, Policy) else load(run) for run in (a, b))
    parts = collect_elites(first), collect_elites(second)
    check_compatible(first, second, *(part._replace(solution=(), extras=()) for part in parts))
    archive, state = get_archive_with_cells(first)
    best_a, best_b = (_best_fitness_per_cell(archive, state, part) for part in parts)
    cells = np.flatnonzero(np.isfinite(best_a) | np.isfinite(best_b))

    def measure(fitness: np.ndarray) -> dict[str, float]:
        offset = selection.archive_functions(first).qd_offset(first.state)
        metrics = qd_metrics(jnp.asarray(fitness), jnp.isfinite(fitness), offset)
        return {name: float(value) for name, value in metrics.items()}

    return Comparison(
        cell=cells,
        fitness_a=np.where(np.isfinite(best_a), best_a, np.nan)[cells],
        fitness_b=np.where(np.isfinite(best_b), best_b, np.nan)[cells],
        metrics_a=measure(best_a),
        metrics_b=measure(best_b),
    )


def _best_fitness_per_cell(
    archive: Archive, state: ArchiveState, elites: ScoredSolutions
) -> np.ndarray:
    """Return the best fitness in each of C cells, float32 [C], with -inf for empty cells."""
    best = np.full(archive.num_cells, -np.inf, np.float32)
    np.maximum.at(best, find_cells(archive, state, elites.descriptor), elites.fitness)
    return best
