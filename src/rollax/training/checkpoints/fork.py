"""Forking of a run: creation of a run that continues another run from one of its checkpoints."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from rollax.distributed import processes
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.training.checkpoints import carry_over, compatibility
from rollax.training.checkpoints.store import Checkpoints
from rollax.training.checkpoints.summary import MemberScores
from rollax.training.compile import program as programs
from rollax.training.datasets.run_demonstrations import (
    copy_run_demonstrations,
    read_run_demonstrations,
)
from rollax.training.opponents import copy_stored_opponents
from rollax.training.run_folder import creation, layout, metric_sinks
from rollax.training.run_folder.layout import CHECKPOINTS_FOLDER, METRICS_FILE
from rollax.training.run_folder.reproduction import needs_python
from rollax.training.spec import Spec
from rollax.types import NetworkFn, Record, State


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
    has_objects = needs_python(spec)
    if not spec.sweep or spec.evolve or has_objects or spec.options.opponent_pool_runs:
        raise UsageError(
            f"{folder} must be a sweep without evolution, custom objects or opponent_pool_runs to "
            "be forked. Train the settings in a new run."
        )
    settings = spec.swept_settings()
    if not kept_settings or not set(kept_settings) <= set(range(len(settings))):
        raise UsageError(
            f"The settings to keep must be from 0 to {len(settings) - 1}, got "
            f"{list(kept_settings)}. Choose existing settings."
        )
    read_run_demonstrations(folder, spec)
    step, state, scores, _ = _restore_state(folder, spec)
    seeds = spec.options.seeds
    members = np.array([index * seeds + seed for index in kept_settings for seed in range(seeds)])
    sweep = {name: tuple(settings[index][name] for index in kept_settings) for name in spec.sweep}
    options = dataclasses.replace(spec.options, run_dir=new_folder, sweep_paired=True)
    new_spec = dataclasses.replace(spec, sweep=sweep, options=options)
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
    copy_run_demonstrations(spec, folder, new_folder)
    _write_state(new_spec, _ForkedState(step, state, scores, layout.persistent_settings(new_spec)))
    return new_spec


def continue_in_new_folder(
    folder: Path,
    old_spec: Spec,
    spec: Spec,
    environment: Environment | None,
    network: NetworkFn | None,
    old_environment: Environment | None,
    step: int | None = None,
) -> Path:
    """Create a run that continues another run with a new phase. The other run stays unchanged.

    Args:
        folder: Folder of the run to continue.
        old_spec: Specification of this run.
        spec: Specification of the new run. Its option `run_dir` is the new folder.
        environment: Environment object, or None if the environment is made from its id.
        network: Network function, or None.
        old_environment: Environment of the run to continue, with its opponents. None if it has none
            and the environment is made from its id.
        step: Step of the checkpoint to continue from. None uses the newest checkpoint.

    Returns:
        The new folder.

    Raises:
        UsageError: If the new folder exists and is not empty, or there are several processes.
    """
    if processes.num_processes() > 1:
        raise UsageError("fork must be used in a single process. Remove --distributed.")
    forked = _restore_state(folder, old_spec, old_environment, network, step)
    fingerprint = programs.environment_fingerprint(spec, environment)
    new_folder = creation.create_run_folder(spec, fingerprint)
    copy_stored_opponents(old_spec, folder, new_folder)
    copy_run_demonstrations(old_spec, folder, new_folder)
    _write_state(spec, forked)
    return new_folder


class _ForkedState(NamedTuple):
    """State in a checkpoint, with its step, scores of members, and settings of the run."""

    step: int
    state: State
    scores: MemberScores | None
    settings: Record


def _restore_state(
    folder: Path,
    spec: Spec,
    environment: Environment | None = None,
    network: NetworkFn | None = None,
    step: int | None = None,
) -> _ForkedState:
    """Read the checkpoint of a step, or the newest checkpoint, of a run."""
    checkpoint = "last" if step is None else step
    spec = carry_over.with_checkpoint_structure(folder, spec, checkpoint)
    network = network if spec.network == layout.CUSTOM else None
    algorithm, _ = programs.build_algorithm_and_environment(spec, environment, network)
    state_shapes = (
        programs.abstract_population_state(spec, algorithm)
        if spec.num_members > 1
        else programs.abstract_member_state(spec, algorithm)
    )
    with compatibility.open_checkpoints(folder, spec) as checkpoints:
        step, state, _ = checkpoints.restore(checkpoint, state_shapes)
        summary = checkpoints.summary(step)
        return _ForkedState(step, state, summary.scores, summary.settings)


def _write_state(spec: Spec, forked: _ForkedState) -> None:
    """Write the first checkpoint of a new run."""
    folder = spec.options.run_dir
    assert folder is not None, "a fork has a folder"
    # The file contains the step at which the run continues, so that no line counts as missing.
    metric_sinks.make_json_lines_sink(folder / METRICS_FILE, forked.step).close()
    with contextlib.closing(Checkpoints(folder / CHECKPOINTS_FOLDER)) as checkpoints:
        checkpoints.save(
            forked.step,
            forked.state,
            {},
            forked.settings,
            forked.scores if spec.num_members > 1 else None,
        )
