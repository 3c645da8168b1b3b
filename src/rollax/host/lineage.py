"""The history of a population that evolves: what a line of lineage.jsonl says, and what a person is told."""

from pathlib import Path
from typing import Any

import numpy as np

from rollax.host.logging import read_metrics
from rollax.host.record import Recorder, Unwritten
from rollax.host.run_folder import LINEAGE
from rollax.host.settings import Spec
from rollax.populations.evolution import Generation

MOST_SHOWN = 20  # generations that a person is told of


def begin(spec: Spec, updates: int, config: Any, recorder: Recorder | Unwritten) -> None:
    """Writes the first line, what every member drew, where a run that evolves is at its start."""
    if not spec.evolve or updates:
        return
    settings = {name: np.asarray(getattr(config, name)).tolist() for name in spec.evolve}
    recorder.generation(0, {"generation": 0, "fitness": None, "parent": None, "settings": settings})


def line(spec: Spec, updates: int, generation: Generation) -> dict[str, Any]:
    """A generation: the fitness before it, whose copy each member became (its own index where it stayed), settings after it."""
    settings = {name: generation.settings[name].tolist() for name in spec.evolve}
    history = {"fitness": generation.fitness.tolist(), "parent": generation.parent.tolist(), "settings": settings}
    return {"generation": updates // spec.updates_per_generation, **history}


def is_shown(spec: Spec, updates: int) -> bool:
    """Whether a person is told of the generation after so many updates: not of more than they would read."""
    every = spec.updates_per_generation
    return updates // every % -(-spec.total_updates // every // MOST_SHOWN) == 0


def words(spec: Spec, updates: int, generation: Generation) -> str:
    known = generation.fitness[np.isfinite(generation.fitness)]
    fitness = f"{known.min():.2f} to {known.max():.2f}" if known.size else "not known yet"
    replaced = int(children(generation).sum())
    ranges = "".join(f"  {name} {values.min():.3g} to {values.max():.3g}" for name, values in generation.settings.items())
    number, frames = updates // spec.updates_per_generation, updates * spec.config.steps_per_update
    return f"{frames:>13,} steps  generation {number}: return in training {fitness}, {replaced} replaced{ranges}"


def children(generation: Generation) -> np.ndarray:
    """Who was replaced, bool `[P]`."""
    parent = np.asarray(generation.parent)
    return parent != np.arange(parent.size)


def read(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run, as one history however often it was resumed; none of a run that does not evolve."""
    path = folder / LINEAGE
    return read_metrics(path) if path.exists() else []
