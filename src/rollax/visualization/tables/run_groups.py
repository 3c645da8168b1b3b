"""Groups of runs for tables. Members with the same settings are one row or column."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rollax.config import CUSTOM
from rollax.errors import UsageError, describe_error
from rollax.training.run_folder.reproduction import (
    Setting,
    describe_evolving_settings,
    list_settings,
)
from rollax.training.spec import Spec
from rollax.visualization.plots.figure import read_runs
from rollax.visualization.plots.learning_curves import Curve, RunCurves, make_curves
from rollax.visualization.plots.run_merging import group_runs, merge_group


class RunGroup(NamedTuple):
    """Members with the same settings, from runs that differ only in their seeds.

    Attributes:
        curve: Curve with the members and the label of the group, as in `rollax plot`.
        settings: Settings of each run, keyed by setting name. Swept settings have the value of the
            members. The value of an evolving setting is a text with its range.
    """

    curve: Curve
    settings: list[dict[str, Setting]]


def read_groups(
    folders: list[Path], label: tuple[str, ...], notify_fn: Callable[[str], object]
) -> list[RunGroup]:
    """Read runs and group members with the same settings, as `rollax plot` does.

    Args:
        folders: Run folders.
        label: Labels of the groups in order. If empty, labels are generated.
        notify_fn: Function that receives a note for each skipped run and for omitted evaluations.

    Returns:
        The groups. Runs with several agent types have one group per type.

    Raises:
        UsageError: If no run can be read, or the number of labels is wrong.
    """
    runs, settings = list[RunCurves](), dict[int, dict[str, Setting]]()
    for run in read_runs(folders, notify_fn):
        try:
            settings[id(run)] = _read_settings(run.spec)
            runs.append(run)
        except Exception as error:  # one damaged or hostile folder must not end the command
            notify_fn(
                f"Skipped: {run.folder} has settings that cannot be read: {describe_error(error)}"
            )
    if not runs:
        raise UsageError("No run has readable settings. Name other runs.")
    sources = [_drop_unevaluated_runs(group, notify_fn) for group in group_runs(runs)]
    merged = [merge_group(group, notify_fn) for group in sources]
    runs_by_merged = {id(run): group for run, group in zip(merged, sources, strict=True)}
    return [
        RunGroup(
            curve,
            [settings[id(run)] | _swept_settings(curve) for run in runs_by_merged[id(curve.run)]],
        )
        for curve in make_curves(merged, label)
    ]


def _drop_unevaluated_runs(
    group: list[RunCurves], notify_fn: Callable[[str], object]
) -> list[RunCurves]:
    """Return the evaluated runs of a group, or all runs if no run was evaluated.

    Runs are merged at the evaluations that they have in common, so a run without evaluations would
    remove the evaluations of all other runs.
    """
    evaluated = [run for run in group if run.eval_step.size]
    if not evaluated or len(evaluated) == len(group):
        return group
    for run in group:
        if not run.eval_step.size:
            notify_fn(f"Skipped: {run.folder} has no evaluation yet, but other seeds have.")
    return evaluated


def _read_settings(spec: Spec) -> dict[str, Setting]:
    """Return all settings of a run, keyed by name, including those that `list_settings` omits."""
    settings = {setting.name: setting for setting in list_settings(spec)}
    others: dict[str, str] = describe_evolving_settings(spec)
    others |= {f"opponents.{name}": folder for name, folder in spec.opponents.items()}
    others |= {"network": CUSTOM} if spec.network == CUSTOM else {}
    return settings | {name: _changed_setting(name, value) for name, value in others.items()}


def _swept_settings(curve: Curve) -> dict[str, Setting]:
    """Return the swept settings of the members of a curve, keyed by `config.<name>`."""
    swept = curve.run.spec.swept_settings()[int(curve.members[0]) // curve.members.size]
    return {f"config.{name}": _changed_setting(f"config.{name}", swept[name]) for name in swept}


def _changed_setting(name: str, value: str | float) -> Setting:
    """Return a setting without preset and default. It is treated as changed."""
    return Setting(name, value=value, preset=None, default=None)
