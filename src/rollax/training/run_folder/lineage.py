"""History of an evolving population: records in lineage.jsonl, and their text format."""

from pathlib import Path

import numpy as np

from rollax.algorithm import Config
from rollax.populations.evolution import EPISODE_RETURN, Generation
from rollax.training.evaluation.metrics import format_number
from rollax.training.run_folder.layout import LINEAGE_FILE
from rollax.training.run_folder.metric_sinks import read_metrics
from rollax.training.run_folder.recorder import NullRecorder, Recorder
from rollax.training.spec import Spec
from rollax.types import MetricValues

MAX_LOGGED_GENERATIONS = 20  # generations shown during training


def record_initial_generation(
    spec: Spec, updates: int, config: Config, recorder: Recorder | NullRecorder
) -> None:
    """Write the initial settings of every member at the start of an evolving run.

    Args:
        spec: Specification of the run.
        updates: Number of completed updates. If it is not 0, nothing is written.
        config: Settings of the members, with leading axis [P].
        recorder: Recorder of the run.
    """
    if not spec.evolve or updates:
        return
    settings = {name: np.asarray(vars(config)[name]).tolist() for name in spec.evolve}
    recorder.write_generation(
        0, {"generation": 0, "fitness": None, "parent": None, "settings": settings}
    )


def make_generation_record(spec: Spec, updates: int, generation: Generation) -> MetricValues:
    """Return the record of a generation.

    Args:
        spec: Specification of the run.
        updates: Number of completed updates.
        generation: Fitness before the generation, and parent indices and settings after it.

    Returns:
        The record. The parent index of a member that was not replaced is the member's index.
    """
    settings = {name: generation.settings[name].tolist() for name in spec.evolve}
    history = {
        "fitness": generation.fitness.tolist(),
        "parent": generation.parent.tolist(),
        "settings": settings,
    }
    return {"generation": updates // spec.updates_per_generation, **history}


def should_log_generation(spec: Spec, updates: int) -> bool:
    """Return whether to show the generation after `updates` updates. A run shows at most 20."""
    interval = spec.updates_per_generation
    num_generations = spec.total_updates // interval
    return updates // interval % -(-num_generations // MAX_LOGGED_GENERATIONS) == 0


def format_generation(spec: Spec, updates: int, generation: Generation) -> str:
    """Format a generation on one line, with the minimum and maximum of fitness and settings."""
    fitnesses = np.asarray(generation.fitness)
    finite = fitnesses[np.isfinite(fitnesses)]
    fitness = (
        f"{format_number(finite.min())} to {format_number(finite.max())}"
        if finite.size
        else "unknown"
    )
    replaced = int(replaced_members(generation).sum())
    ranges = "".join(
        f"  {name} {values.min():.3g} to {values.max():.3g}"
        for name, values in generation.settings.items()
    )
    number, frames = updates // spec.updates_per_generation, updates * spec.config.steps_per_update
    return (
        f"{frames:>13,} steps  generation {number}: {fitness_label(spec)} {fitness}, "
        f"{replaced} replaced{ranges}"
    )


def fitness_label(spec: Spec) -> str:
    """Return the display name of the metric that selects members."""
    return "return in training" if spec.evolve_metric == EPISODE_RETURN else spec.evolve_metric


def replaced_members(generation: Generation) -> np.ndarray:
    """Return a mask of the members that were replaced, bool [P]."""
    parent = np.asarray(generation.parent)
    return parent != np.arange(parent.size)


def num_founders(folder: Path, step: int) -> int | None:
    """Return the number of distinct founders of the members evaluated at `step`.

    The founder of a member is its ancestor in the initial population. Members with the same
    founder are not independent, so confidence intervals over members are not valid.

    Args:
        folder: Run folder.
        step: Step of the evaluation.

    Returns:
        The number of founders, or None if every member has a different founder.
    """
    founders: np.ndarray | None = None
    for line in read_lineage(folder):
        parent = _parse_parent_indices(line)
        # A generation at a step follows the evaluation of that step.
        if parent is None or line["step"] >= step:
            continue
        if founders is None or founders.size != parent.size:
            founders = np.arange(parent.size)
        founders = founders[parent]
    if founders is None:
        return None
    number = len(set(founders.tolist()))
    return None if number == founders.size else number


def _parse_parent_indices(record: MetricValues) -> np.ndarray | None:
    """Return the parent index of each member, or None for initial members and invalid records."""
    parent = record.get("parent")
    if not isinstance(parent, list) or not all(
        isinstance(index, int) and 0 <= index < len(parent) for index in parent
    ):
        return None
    return np.asarray(parent, int)


def read_lineage(folder: Path) -> list[MetricValues]:
    """Return one record for each generation of a run, also if it was repeated after a resume."""
    path = folder / LINEAGE_FILE
    return read_metrics(path) if path.exists() else []
