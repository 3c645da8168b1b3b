"""Some settings of a sweep as a run of their own, which goes on from where they are."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rollax.errors import UsageError
from rollax.host import logging, resuming, run_folder
from rollax.host import program as programs
from rollax.host.checkpoint import Checkpoints
from rollax.host.run_folder import CHECKPOINTS, METRICS
from rollax.host.settings import Spec


def fork(folder: Path, kept: Sequence[int], to: Path) -> Spec:
    """A new run in the folder `to` whose members are those of some settings, as they are in the run's newest checkpoint.

    `kept`: indices into `Spec.swept()`, each with all its seeds. The run in `folder` stays as it is; that in `to` is to be
    resumed, and has no lines of what was before.

    Raises UsageError for a run without a sweep, one that evolves or had objects of its own, and for settings that it has not.
    """
    spec = run_folder.read_spec(folder)
    if not spec.sweep or spec.evolve or spec.own_environment or spec.network == run_folder.CUSTOM:
        raise UsageError(f"{folder} has no settings of a sweep that could go on by themselves: train those anew")
    settings = spec.swept()
    if not kept or not set(kept) <= set(range(len(settings))):
        raise UsageError(f"the settings to keep ({list(kept)}) must be some of 0 to {len(settings) - 1}")
    algorithm, _ = programs.assemble(spec)
    like = programs.abstract_population(spec, algorithm) if spec.num_members > 1 else programs.abstract(spec, algorithm)
    with resuming.checkpoints_of(folder, spec) as checkpoints:
        step, state, _ = checkpoints.restore("last", like)
        summary = checkpoints.summary(step)
    seeds = spec.options.seeds
    members = np.array([index * seeds + seed for index in kept for seed in range(seeds)])
    sweep = {name: tuple(settings[index][name] for index in kept) for name in spec.sweep}
    options = dataclasses.replace(spec.options, run_dir=to, sweep_paired=True)
    smaller = dataclasses.replace(spec, sweep=sweep, options=options)
    scores = summary.scores
    if spec.num_members > 1:
        state = _of_members(state, members if smaller.num_members > 1 else members[0])
        scores = None if scores is None else scores._replace(values=[scores.values[member] for member in members])
    run_folder.create(smaller)
    logging.json_lines(to / METRICS, step).close()  # its marker says from where the run goes on, so that no line is missed
    with contextlib.closing(Checkpoints(to / CHECKPOINTS)) as begun:
        begun.save(step, state, {}, run_folder.made_with(smaller), scores if smaller.num_members > 1 else None)
    return smaller


def _of_members(state: Any, members: np.ndarray) -> Any:
    """A population's state of these members; of one alone, without the axis."""
    return jax.tree.map(lambda leaf: leaf[members], state)
