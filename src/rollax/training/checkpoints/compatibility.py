"""Compatibility checks for loading and resuming a run.

They run before anything is compiled or written.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from rollax.config import user_functions
from rollax.distributed import processes
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.runtime.shell import format_command_line, is_command_running
from rollax.synonyms.lookup import UnknownSettingError
from rollax.training.checkpoints import fingerprints
from rollax.training.checkpoints.store import Checkpoints
from rollax.training.compile import program as programs
from rollax.training.options import RunOptions
from rollax.training.run_folder import layout, metric_sinks, recorder
from rollax.training.run_folder.files import check_not_symlink, open_regular_file
from rollax.training.run_folder.layout import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    CUSTOM,
    EVALUATIONS_FILE,
    LINEAGE_FILE,
    LOCK_FILE,
    METRICS_FILE,
    TENSORBOARD_FOLDER,
    WANDB_FOLDER,
)
from rollax.training.run_folder.phases import count_phases, undo_phases
from rollax.training.spec import Spec, get_algorithm_entry, resolve_devices
from rollax.training.spec_file import (
    NEW_CONFIG_DEFAULTS,
    NEW_KEY_DEFAULTS,
    NEW_OPTION_DEFAULTS,
    new_network_defaults,
)
from rollax.types import NetworkFn, Record, Setting

CHANGEABLE_OPTIONS = (
    "stop_when",
    "eval_seed",
    "on_nonfinite",
    "devices",
    "env_workers",
    "env_timeout",
    "env_restarts",
    "checkpoint_minutes",
    "checkpoint_steps",
    "keep_last",
    "keep_best",
    "tensorboard",
    "wandb",
    "trackio",
)
_RESUME_ARGUMENTS = (
    "total_steps",
    "config",
    "arguments",
    "fork",
    "checkpoint",
    "learning_rate",
    "metrics",
    "callback",
    "stop_when",
    "quiet",
)


def with_resume_options(spec: Spec, total_steps: int | None, changes: dict[str, Setting]) -> Spec:
    """Return the specification of a resumed run, with new total steps or changed options.

    The intervals between metric lines and between evaluations stay the same.

    Args:
        spec: Specification of the run.
        total_steps: New total number of environment steps, or None to leave it unchanged.
        changes: New option values, keyed by option name.

    Raises:
        UsageError: If an option cannot change during a run, or a value is not valid.
    """
    for name in changes:
        if name not in CHANGEABLE_OPTIONS:
            known = dict.fromkeys([*CHANGEABLE_OPTIONS, *_RESUME_ARGUMENTS])
            raise UnknownSettingError("option to change at a resume", name, known)
    if processes.num_processes() > 1:
        # Use all devices of the current processes, independent of the earlier number.
        changes = {"devices": 1} | changes
    options = resolve_devices(dataclasses.replace(spec.options, **changes))
    if total_steps is not None:
        options = dataclasses.replace(options, total_steps=total_steps)
    options.check()
    return dataclasses.replace(spec, options=options)


@contextlib.contextmanager
def open_checkpoints(folder: Path, spec: Spec) -> Iterator[Checkpoints]:
    """Open the checkpoints of a run for reading.

    Args:
        folder: Folder of the run.
        spec: Specification of the run.

    Yields:
        The checkpoints.

    Raises:
        UsageError: If the path of the checkpoints is not a folder.
    """
    path, options = folder / CHECKPOINTS_FOLDER, spec.options
    if path.exists() and not path.is_dir():
        raise UsageError(
            f"{path} must be a folder. Move it away, and restore the run's checkpoints."
        )
    with contextlib.closing(
        Checkpoints(
            path,
            options.keep_last,
            options.keep_best,
            options.best_metric,
            options.best_mode,
            spec.best_phase_starts,
            ignores_optimizer=None in user_functions(spec.config).values(),
        )
    ) as checkpoints:
        yield checkpoints


def parse_checkpoint(
    checkpoint: str | int, checkpoints: Checkpoints
) -> Literal["last", "best"] | int:
    """Convert a checkpoint argument to "last", "best" or a step. Raise UsageError if invalid."""
    if checkpoint == "last" or checkpoint == "best":
        return checkpoint
    if not str(checkpoint).isdecimal():
        raise UsageError(
            f"checkpoint ({checkpoint}) must be last, best or one of the steps "
            f"{checkpoints.steps()}."
        )
    return int(checkpoint)


def find_start_step(
    folder: Path, spec: Spec, fork: Path | None = None, checkpoint: str | int | None = None
) -> int:
    """Return the step at which a run continues, or 0 if it has no checkpoint.

    Args:
        folder: Folder of the run.
        spec: Specification in config.yaml.
        fork: Folder of a new run that continues this one, or None.
        checkpoint: First checkpoint of the fork: "last", "best" or a step. None uses the newest
            checkpoint.

    Raises:
        UsageError: If `checkpoint` is passed without `fork`, does not exist, or is older than the
            last phase of the run.
    """
    with open_checkpoints(folder, spec) as checkpoints:
        if checkpoint is None:
            return max(checkpoints.steps(), default=0)
        if fork is None:
            raise UsageError(
                "checkpoint must be used with fork, because a run continues in its folder from its "
                "newest checkpoint. Add fork, a new folder."
            )
        step = checkpoints.find_step(parse_checkpoint(checkpoint, checkpoints))
        if checkpoint != "last" and spec.phases and step <= spec.phases[-1].step:
            raise UsageError(
                f"checkpoint ({checkpoint}) must be from the last phase of the run, which began at "
                f"step {spec.phases[-1].step}. Choose a later checkpoint of {checkpoints.steps()}."
            )
        return step


def _learning_rate_warnings(spec: Spec, old_spec: Spec, step: int) -> list[str]:
    """Return a warning if a change of the total steps raises an annealed learning rate."""
    if any("learning_rate" in name for phase in spec.phases for name in phase.config_names):
        return []
    if user_functions(spec.config):  # the learning rate may not be that of the settings
        return []
    final_fraction = getattr(spec.config, "learning_rate_final_fraction", 1.0)
    end_steps = [
        run_spec.total_updates * spec.config.steps_per_update for run_spec in (old_spec, spec)
    ]
    old_rate, new_rate = (
        spec.config.learning_rate * (1 + (final_fraction - 1) * min(step / end, 1.0))
        if final_fraction < 1
        else 0.0
        for end in end_steps
    )
    if new_rate <= 1.01 * old_rate:
        return []
    return [
        f"The learning rate was annealed to {old_rate:.3g} at step {step:,}. It is now "
        f"{new_rate:.3g}, and reaches {spec.config.learning_rate * final_fraction:.3g} at step "
        f"{end_steps[1]:,}. Performance may drop at first. --learning-rate RATE holds a constant "
        "rate, such as a tenth of that."
    ]


def check_resume(
    folder: Path,
    spec: Spec,
    old_spec: Spec,
    environment: Environment | None,
    network: NetworkFn | None,
    start: int | None = None,
) -> list[str]:
    """Check that a run can be resumed.

    Args:
        folder: Folder of the run.
        spec: Specification with the changes requested for the resume.
        old_spec: Specification in config.yaml, before these changes.
        environment: Environment object that the user passed, or None.
        network: Network function that the user passed (random key to network), or None.
        start: Step of the first checkpoint of a fork. None uses the newest checkpoint.

    Returns:
        Warnings about changed settings.

    Raises:
        UsageError: If the run is finished, the environment or the network does not match the run,
            all checkpoints are missing or damaged, or config.yaml was changed.
    """
    _check_network(spec, network)
    if environment is not None and not spec.own_environment:
        raise UsageError(
            f"The environment of this run is made from its id ({spec.environment}). Remove "
            "environment=..., or train a new run in the one that you pass."
        )
    if environment is not None and environment.name != spec.environment:
        raise UsageError(
            f"environment must be {spec.environment}, got {environment.name}. Pass the environment "
            "that the run was trained in."
        )
    if environment is not None:
        fingerprints.check_same_environment(
            layout.read_environment_fingerprint(folder), environment
        )
    _check_output_paths(folder, spec.options)
    with open_checkpoints(folder, spec) as checkpoints:
        if not checkpoints.steps():
            _check_no_lost_checkpoint(folder)
            _check_no_incomplete_fork(folder, spec)
            _check_no_warm_start(folder, spec)
            return []
        intact = checkpoints.newest_intact_summary()
        newest = next(checkpoints.readable_summaries())
        warnings = _check_same_settings(folder, spec, newest.settings)
        end = spec.total_updates * spec.config.steps_per_update
        step = newest.step if start is None else start
        if step >= end:
            _check_unfinished(folder, intact.step if start is None else start, end)
    return [*warnings, *_learning_rate_warnings(spec, old_spec, step)]


def _check_output_paths(folder: Path, options: RunOptions) -> None:
    """Raise UsageError for files and folders that a resumed run must not write to."""
    for name in (METRICS_FILE, EVALUATIONS_FILE, LINEAGE_FILE, LOCK_FILE):
        if os.path.lexists(folder / name):
            open_regular_file(folder / name).close()  # raises if the file is not regular
    dashboards = ((TENSORBOARD_FOLDER, options.tensorboard), (WANDB_FOLDER, options.wandb))
    for path in [folder / name for name, is_enabled in dashboards if is_enabled]:
        check_not_symlink(path)
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} must be a folder. Move it away.")
    if options.tensorboard:
        for path in (folder / TENSORBOARD_FOLDER).glob("*"):  # one folder per member
            check_not_symlink(path)


def check_load(
    folder: Path, spec: Spec, checkpoint_spec: Spec, network: NetworkFn | None
) -> list[str]:
    """Check that a policy can be loaded from a run.

    Args:
        folder: Folder of the run.
        spec: Specification of the run.
        checkpoint_spec: Specification with the network of the checkpoint to load.
        network: Network function that the user passed (random key to network), or None.

    Returns:
        Warnings about changed settings.

    Raises:
        UsageError: If a network is passed although settings describe the network of the run, or
            config.yaml was changed.
    """
    _check_network(checkpoint_spec, network)
    with open_checkpoints(folder, spec) as checkpoints:
        newest = next(checkpoints.readable_summaries(), None)
        return [] if newest is None else _check_same_settings(folder, spec, newest.settings)


def check_environment_fits(folder: Path, spec: Spec, environment: Environment | None) -> None:
    """Check that the policy of a run can act in another environment.

    Args:
        folder: Folder of the run.
        spec: Specification of the run.
        environment: Environment that replaces the run's environment, or None to skip the check.

    Raises:
        UsageError: If the spaces differ in more than their bounds, or the number of agents differs.
    """
    if environment is None:
        return
    recorded = layout.read_environment_fingerprint(folder)
    if not recorded and not spec.own_environment:  # a folder of an older version
        with contextlib.suppress(UsageError, ImportError):  # the suite may not be installed
            recorded = programs.environment_fingerprint(spec)
    fingerprints.check_fingerprint_fits(recorded, environment)


def _check_network(spec: Spec, network: NetworkFn | None) -> None:
    if network is not None and spec.network != CUSTOM:
        raise UsageError(
            "The network of this checkpoint is made from settings. Remove network=..., or train a "
            "new run with it."
        )


def _check_same_settings(folder: Path, spec: Spec, checkpoint_settings: Record) -> list[str]:
    """Check that config.yaml matches the settings of a checkpoint, and return warnings.

    Phases of the run that began after the checkpoint are not a difference. Environment arguments
    may differ, for example the path of a file that was moved. Each differing argument gives one
    warning. Any other difference raises UsageError.
    """
    settings = undo_phases(layout.persistent_settings(spec), count_phases(checkpoint_settings))
    current = _flatten_settings(settings)
    new = {
        "options": NEW_OPTION_DEFAULTS,
        "config": NEW_CONFIG_DEFAULTS,
        "network": new_network_defaults(get_algorithm_entry(spec.algorithm)),
    }
    defaults = _flatten_settings(new) | _flatten_settings(NEW_KEY_DEFAULTS)
    saved = {name: value for name, value in defaults.items() if name in current}
    saved |= _flatten_settings(checkpoint_settings)
    changed = [name for name in current | saved if current.get(name) != saved.get(name)]
    changes = {
        name: f"{name} is {current.get(name)!r}, but was {saved.get(name)!r}" for name in changed
    }
    fixed_changes = [
        change
        for name, change in changes.items()
        if not name.startswith(("arguments", "eval_arguments"))
    ]
    if fixed_changes:
        raise UsageError(
            f"{folder / CONFIG_FILE} was changed after the checkpoint was made: "
            f"{'; '.join(fixed_changes)}. The settings of a run cannot change. Restore them, or "
            "train a new run with the new ones."
        )
    return [
        f"{change} when the checkpoint was made ({folder / CONFIG_FILE})"
        for change in changes.values()
    ]


def _flatten_settings(document: Record, prefix: str = "") -> Record:
    """Return nested settings as a flat dictionary with keys such as config.learning_rate."""
    flat = {}
    for name, value in document.items():
        is_branch = isinstance(value, dict) and value
        flat |= (
            _flatten_settings(value, f"{prefix}{name}.") if is_branch else {prefix + name: value}
        )
    return flat


def _check_no_incomplete_fork(folder: Path, spec: Spec) -> None:
    """Raise UsageError for a fork whose first checkpoint was not written."""
    runs = [phase.run for phase in spec.phases if phase.run is not None]
    if runs:
        raise UsageError(
            f"{folder} continues {runs[-1]}, but its first checkpoint is missing, because the fork "
            "was interrupted. Fork the run again into another folder."
        )


def _check_no_lost_checkpoint(folder: Path) -> None:
    """Raise UsageError if a run was trained but has no checkpoint.

    A run that ended while writing its first checkpoint has only an unfinished checkpoint. Such a
    run is accepted, and a resume restarts it.
    """
    lines = (
        metric_sinks.read_metrics(folder / METRICS_FILE) if (folder / METRICS_FILE).exists() else []
    )
    last_step = max((line["step"] for line in lines), default=0)
    is_first_unfinished = (folder / CHECKPOINTS_FOLDER / f"step_{0:012d}.writing").exists()
    if last_step > 0 and not is_first_unfinished:
        raise UsageError(
            f"{folder} was trained for {last_step:,} steps, but has no checkpoint. Restore "
            f"{folder / CHECKPOINTS_FOLDER}, or move {METRICS_FILE} away to train from the start."
        )


def _check_no_warm_start(folder: Path, spec: Spec) -> None:
    """Raise UsageError if a run without checkpoints would restart without its warm start."""
    if spec.options.init_from is not None:
        raise UsageError(
            f"{folder} has no checkpoint yet, so it cannot continue from its warm start "
            f"({spec.options.init_from}). Train a new run with init_from."
        )


def _check_unfinished(folder: Path, step: int, end: int) -> None:
    if step > end or (step == end and step in recorder.evaluated_steps(folder)):
        remedy = (
            format_command_line("rollax", "resume", folder, "--total-steps", 2 * end)
            if is_command_running()
            else f"rollax.resume({str(folder)!r}, total_steps={2 * end})"
        )
        raise UsageError(
            f"{folder} is finished at {step:,} steps. To continue, raise --total-steps: {remedy}"
        )
