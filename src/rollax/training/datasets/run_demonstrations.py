"""Demonstrations of a run: the option, the copy in the run folder, and their description."""

import dataclasses
import os
import shutil
from pathlib import Path

from rollax.algorithms.registry import list_algorithms
from rollax.algorithms.replay_updates import num_filled_steps
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.replay.demonstrations import (
    Demonstrations,
    RunDemonstrations,
    describe_values_out_of_bounds,
)
from rollax.training.console.progress import format_bytes
from rollax.training.datasets.demonstration_files import load_demonstrations, save_demonstrations
from rollax.training.evaluation.metrics import format_number
from rollax.training.run_folder.files import check_not_symlink
from rollax.training.run_folder.layout import DEMONSTRATIONS_FILE
from rollax.training.spec import Spec, get_algorithm_entry
from rollax.user_input.coercion import coerce

IN_MEMORY = "in memory"  # value of the option for demonstrations that were passed as an object


def data_options(
    demonstrations: Demonstrations | str | os.PathLike[str] | None,
) -> dict[str, str | None]:
    """Return the run options for the argument `demonstrations` of `rollax.train`."""
    if demonstrations is None or isinstance(demonstrations, Demonstrations):
        return {"demonstrations": None if demonstrations is None else IN_MEMORY}
    return {"demonstrations": str(coerce("demonstrations", demonstrations, Path))}


def with_demonstrations(
    spec: Spec, demonstrations: Demonstrations | str | os.PathLike[str] | None
) -> Spec:
    """Return the specification of a new run with its demonstrations, which are loaded.

    Args:
        spec: Specification of the run.
        demonstrations: Demonstrations, or None for the file in the option `demonstrations`.

    Raises:
        UsageError: If the algorithm does not use demonstrations, requires them and there are none,
            or if they cannot be loaded.
    """
    source = spec.options.demonstrations
    entry = get_algorithm_entry(spec.algorithm)
    use = entry.demonstrations
    varied = [*spec.randomize, *spec.curriculum]
    if entry.unit == "samples" and varied:
        raise UsageError(
            f"randomize and curriculum ({', '.join(varied)}) have no effect on {spec.algorithm}, "
            "which does not act in the environment while it learns. Remove them."
        )
    if source is None:
        if use == "required":
            raise UsageError(
                f"{spec.algorithm} must have demonstrations to learn from, got none. Record "
                "episodes with `rollax record RUN -o FILE`, and set --demonstrations FILE."
            )
        return spec
    if use == "none":
        names = [n for n, entry in list_algorithms().items() if entry.demonstrations != "none"]
        raise UsageError(
            f"demonstrations ({source}) has no effect on {spec.algorithm}. Use one of "
            f"{', '.join(names)}, or start from a run of bc with --init-from RUN."
        )
    data = (
        demonstrations
        if isinstance(demonstrations, Demonstrations)
        else load_demonstrations(source)
    )
    return dataclasses.replace(spec, demonstrations=RunDemonstrations(data.digest(), data))


def write_run_demonstrations(folder: Path, spec: Spec) -> None:
    """Write the demonstrations of a new run to its folder, so that it needs no other file."""
    if spec.demonstrations.data is not None:
        save_demonstrations(spec.demonstrations.data, folder / DEMONSTRATIONS_FILE)


def read_run_demonstrations(folder: Path, spec: Spec) -> Spec:
    """Return the specification of a run with the demonstrations in its folder.

    Args:
        folder: Folder of the run.
        spec: Specification of the run.

    Raises:
        UsageError: If the file is missing or differs from that of the start of the run.
    """
    if not spec.demonstrations.sha256:
        return spec
    path = folder / DEMONSTRATIONS_FILE
    check_not_symlink(path)
    if not path.exists():
        raise UsageError(
            f"{path} does not exist, but the run learns from it. Restore the file, or train a new "
            "run."
        )
    data = load_demonstrations(path)
    if data.digest() != spec.demonstrations.sha256:
        raise UsageError(
            f"{path} must be the file with which the run started (SHA-256 of its arrays "
            f"{spec.demonstrations.sha256}), got {data.digest()}. Restore the file, or train a new "
            "run."
        )
    return dataclasses.replace(
        spec, demonstrations=RunDemonstrations(spec.demonstrations.sha256, data)
    )


def copy_run_demonstrations(spec: Spec, folder: Path, new_folder: Path) -> None:
    """Copy the demonstrations of a run to the folder of a fork, if the run has any."""
    if spec.demonstrations.sha256:
        path = folder / DEMONSTRATIONS_FILE
        check_not_symlink(path)
        shutil.copyfile(path, new_folder / DEMONSTRATIONS_FILE)


def describe_demonstrations(spec: Spec, environment: Environment) -> list[str]:
    """Return lines about the demonstrations of a run and warnings, or an empty list.

    Args:
        spec: Specification of the run.
        environment: Environment of training.
    """
    data = spec.demonstrations.data
    if data is None:
        return []
    size = sum(array.nbytes for array in data.arrays.values())
    line = (
        f"Demonstrations: {data.num_episodes:,} episodes, {data.num_steps:,} steps, mean return "
        f"{format_number(float(data.returns.mean()))}, {format_bytes(size)} "
        f"({spec.options.demonstrations})"
    )
    space = environment.observation_space
    steps = data.to_steps(space, environment.action_space, environment.num_agents)
    lines = [line, *(f"warning: {x}" for x in describe_values_out_of_bounds(steps, space))]
    derived = spec.derived_settings
    if not derived.replay_capacity:
        return lines
    num_streams = derived.num_envs * (environment.num_agents or 1)
    number = num_filled_steps(len(steps.reward), num_streams, derived.replay_capacity)
    return [*lines, f"  The last {number:,} steps fill the replay buffer."]
