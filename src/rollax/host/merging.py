"""Archives as data: several merged into one, and two compared cell by cell."""

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.archives.core import Scored, qd_metrics
from rollax.errors import UsageError
from rollax.host import elites, keys, logging, run_folder
from rollax.host.api import Policy, load
from rollax.host.checkpoint import Checkpoints
from rollax.host.corrected import added, archive_with_cells, cells_of
from rollax.host.settings import Spec
from rollax.typed import shown


class Comparison(NamedTuple):
    """Two archives in the cells of the first, over the N cells where either has an elite; NaN where one has none."""

    cell: np.ndarray  # int [N], rising
    fitness_a: np.ndarray  # float32 [N]
    fitness_b: np.ndarray  # float32 [N]
    metrics_a: dict[str, float]  # qd_score, coverage, fitness_best, fitness_mean
    metrics_b: dict[str, float]  # of the second in the cells of the first

    def numbers(self) -> dict[str, float]:
        """How many cells only one has, or both and which is fitter there; how much fitter the second is there in the mean;
        and the metrics of each."""
        has_a, has_b = ~np.isnan(self.fitness_a), ~np.isnan(self.fitness_b)
        difference = (self.fitness_b - self.fitness_a)[has_a & has_b]
        counts = {
            "only_a": has_a & ~has_b,
            "only_b": has_b & ~has_a,
            "both": has_a & has_b,
            "better_a": difference < 0,
            "better_b": difference > 0,
            "equal": difference == 0,
        }
        mean = float(difference.mean()) if difference.size else float("nan")
        metrics = {f"{name}_{which}": x[name] for which, x in (("a", self.metrics_a), ("b", self.metrics_b)) for name in x}
        return {**{name: int(np.sum(mask)) for name, mask in counts.items()}, "mean_difference": mean, **metrics}


def merge_archives(runs: Sequence[Policy | Path | str], *, folder: Path | str | None = None) -> Policy:
    """One archive of the elites of several runs: what they leave when all are added to an empty archive of the first one's
    kind. It is that of the policy returned: `policy.elites()`, `policy.elite(...)`, `policy.corrected(...)`.

    A run is a policy, or a folder (its last checkpoint, and of a population its best member). With `folder` the merged archive
    is written as a run folder, to be loaded, evaluated, plotted and rendered as any other, and resumed with more total steps:
    it then goes on from this archive, with an emitter that begins anew.

    Raises UsageError when a run has no archive, when solutions or descriptors are not alike, for several environments, or when
    the folder is there already.
    """
    if isinstance(runs, Policy | Path | str) or not isinstance(runs, Iterable):
        raise UsageError(f"runs ({shown(runs)}) must be a sequence of policies or folders: put one alone in brackets")
    policies = [run if isinstance(run, Policy) else load(run) for run in runs]
    if not policies:
        raise UsageError("there is nothing to merge: give two runs or more")
    first, parts = policies[0], [filled(policy) for policy in policies]
    for policy, part in zip(policies[1:], parts[1:], strict=True):
        check_alike(first, policy, parts[0], part)
    archive, state = archive_with_cells(first)
    everyone = jax.tree.map(lambda *rows: np.concatenate(rows), *parts)
    state = first.algorithm.archived.with_archive(first.state, added(archive, state, everyone))
    spec = _single(first.spec, first, folder)
    frames = spec.config.steps_per_update
    step = -(-sum(policy.step for policy in policies) // frames) * frames  # whole updates
    spec = dataclasses.replace(spec, options=dataclasses.replace(spec.options, total_steps=max(step, 1)))
    notes = [f"merged of {len(policies)} archives with {sum(len(part.fitness) for part in parts):,} elites"]
    merged = dataclasses.replace(first, spec=spec, step=step, state=state, warnings=notes, member=None)
    if folder is not None:
        save(merged, Path(folder))
    return merged


def filled(policy: Policy) -> Scored:
    """The elites of a policy's archive alone, `[N, ...]` in the order of their places, as NumPy arrays."""
    found = elites.of_policy(policy)
    return jax.tree.map(lambda x: np.asarray(x)[found.mask], found.scored)


def check_alike(first: Policy, other: Policy, a: Scored, b: Scored) -> None:
    """Raises UsageError when elites `a` and `b` cannot be in one archive."""
    names = first.spec.environment, other.spec.environment
    if names[0] != names[1]:
        raise UsageError(f"fitness in {names[0]} and in {names[1]} cannot be compared: give archives of one environment")
    if a.descriptor.shape[1:] != b.descriptor.shape[1:]:
        sizes = a.descriptor.shape[1], b.descriptor.shape[1]
        raise UsageError(f"descriptors have {sizes[0]} and {sizes[1]} dimensions: give archives with the same descriptor")
    shapes = [
        [(str(path), x.shape[1:], x.dtype) for path, x in jax.tree.leaves_with_path((y.solution, y.extras))] for y in (a, b)
    ]
    if shapes[0] != shapes[1]:
        raise UsageError(f"solutions of {other.spec.algorithm} are not of the shapes of the first one's: train both alike")


def _single(spec: Spec, policy: Policy, folder: Path | str | None) -> Spec:
    """The specification of a single run with the settings that the policy was trained with."""
    moved = {name: float(getattr(policy.state.config, name)) for name in (*spec.sweep, *spec.evolve)}
    seed = int(spec.members()[policy.member or 0]["seed"])
    options = dataclasses.replace(spec.options, seed=seed, seeds=1, run_dir=folder)
    config = dataclasses.replace(spec.config, **moved)
    return dataclasses.replace(spec, config=config, sweep={}, evolve={}, updates_per_generation=0, options=options)


def save(policy: Policy, folder: Path) -> None:
    """Writes a policy with an archive as the folder of a run at its last checkpoint."""
    spec, algorithm = policy.spec, policy.algorithm
    config = dataclasses.replace(spec.config, total_updates=float(spec.total_updates))
    whole = jax.jit(algorithm.init)(keys.training(spec.options.seed), config)
    archive, state = archive_with_cells(policy)
    values = {name: float(x) for name, x in archive.metrics(state, config.qd_offset).items()}
    run_folder.create(spec)
    lines = logging.json_lines(folder / run_folder.METRICS)
    lines.write(policy.step, {**values, "updates": policy.step // spec.config.steps_per_update, "wall_time": 0.0})
    lines.sync()
    lines.close()
    with contextlib.closing(Checkpoints(folder / run_folder.CHECKPOINTS)) as checkpoints:
        checkpoints.save(policy.step, algorithm.archived.with_archive(whole, state), values, run_folder.made_with(spec))


def compare_archives(a: Policy | Path | str, b: Policy | Path | str) -> Comparison:
    """The archives of two runs in the same environment, each a policy or a folder, in the cells of the first one's.

    Raises UsageError when one has no archive, or when their environments or descriptors are not the same.
    """
    first, second = (run if isinstance(run, Policy) else load(run) for run in (a, b))
    parts = filled(first), filled(second)
    check_alike(first, second, *(part._replace(solution=(), extras=()) for part in parts))
    archive, state = archive_with_cells(first)
    best = [_best_by_cell(archive, state, part) for part in parts]
    cells = np.flatnonzero(np.isfinite(best[0]) | np.isfinite(best[1]))
    measure = lambda x: qd_metrics(jnp.asarray(x), jnp.isfinite(x), first.state.config.qd_offset)  # noqa: E731
    metrics = [{name: float(value) for name, value in measure(x).items()} for x in best]
    in_a, in_b = (np.where(np.isfinite(x), x, np.nan)[cells] for x in best)
    return Comparison(cells, in_a, in_b, metrics[0], metrics[1])


def _best_by_cell(archive: Any, state: Any, part: Scored) -> np.ndarray:
    """The best fitness in every cell, -inf where there is none, float32 [C]."""
    best = np.full(archive.num_cells, -np.inf, np.float32)
    np.maximum.at(best, cells_of(archive, state, part.descriptor), part.fitness)
    return best
