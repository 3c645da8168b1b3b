"""Forking of a sweep: creation of a run that continues a subset of the swept settings."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from rollax.errors import UsageError
from rollax.training.checkpoints import compatibility
from rollax.training.checkpoints.store import Checkpoints
from rollax.training.compile import program as programs
from rollax.training.run_folder import creation, layout, metric_sinks
from rollax.training.run_folder.layout import CHECKPOINTS_FOLDER, METRICS_FILE
from rollax.training.spec import Spec


def fork_run(folder: Path, kept_settings: Sequence[int], new_folder: Path) -> Spec:
    """Create a run that continues a subset of a sweep's settings from its newest checkpoint.

    The original run stays unchanged. Resume the new run to train it. The new run has no metric
    lines from before the fork.

    Args:
        folder: Folder of the sweep.
        kept_settings: Indices into `Spec.swept_settings()` of the settings to keep. All seeds of
            these settings are kept.
        new_folder: Folder of the new run.

    Returns:
        The specification of the new run.

    Raises:
        UsageError: If the run has no sweep, evolves, or uses custom objects, or an index is out of
            range.
    """
    spec = layout.read_spec(folder)
    if not spec.sweep or spec.evolve or spec.own_environment or spec.network == layout.CUSTOM:
        raise UsageError(
            f"{folder} must be a sweep without evolution or custom objects to be forked. Train the "
            "settings in a new run."
        )
    settings = spec.swept_settings()
    if not kept_settings or not set(kept_settings) <= set(range(len(settings))):
        raise UsageError(
            f"The settings to keep must be from 0 to {len(settings) - 1}, got "
            f"{list(kept_settings)}. Choose existing settings."
        )
    algorithm, _ = programs.build_algorithm_and_environment(spec)
    state_shapes = (
        programs.abstract_population_state(spec, algorithm)
        if spec.num_members > 1
        else programs.abstract_member_state(spec, algorithm)
    )
    with compatibility.open_checkpoints(folder, spec) as checkpoints:
        step, state, _ = checkpoints.restore("last", state_shapes)
        summary = checkpoints.summary(step)
    seeds = spec.options.seeds
    members = np.array([index * seeds + seed for index in kept_settings for seed in range(seeds)])
    sweep = {name: tuple(settings[index][name] for index in kept_settings) for name in spec.sweep}
    options = dataclasses.replace(spec.options, run_dir=new_folder, sweep_paired=True)
    new_spec = dataclasses.replace(spec, sweep=sweep, options=options)
    scores = summary.scores
    if spec.num_members > 1:
        # A single index removes the member axis.
        selected = members if new_spec.num_members > 1 else members[0]
        state = jax.tree.map(lambda leaf: leaf[selected], state)
        scores = (
            None
            if scores is None
            else scores._replace(values=[scores.values[member] for member in members])
        )
    creation.create_run_folder(new_spec)
    # The file contains the step at which the run continues, so that no line counts as missing.
    metric_sinks.make_json_lines_sink(new_folder / METRICS_FILE, step).close()
    with contextlib.closing(Checkpoints(new_folder / CHECKPOINTS_FOLDER)) as new_checkpoints:
        new_checkpoints.save(
            step,
            state,
            {},
            layout.persistent_settings(new_spec),
            scores if new_spec.num_members > 1 else None,
        )
    return new_spec
