"""Merging of runs that differ only in their seeds, at the steps common to all of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rollax.training.run_folder.tables import ignore_message
from rollax.visualization.plots.learning_curves import RunCurves


def merge_runs(
    runs: list[RunCurves], notify_fn: Callable[[str], object] = ignore_message
) -> list[RunCurves]:
    """Merge runs that differ only in their seeds into one run with all members.

    Args:
        runs: Recorded metrics of the runs.
        notify_fn: Function that receives a note for each run with steps that are dropped because
            other runs of its group do not have them.

    Returns:
        The merged runs. A merged run has the position of its first run in `runs`.
    """
    return [merge_group(group, notify_fn) for group in group_runs(runs)]


def group_runs(runs: list[RunCurves]) -> list[list[RunCurves]]:
    """Group runs that differ only in their seeds.

    Runs with the same seed are not grouped, because they usually compare versions of a program.
    Evolved populations are not grouped either, because their members depend on each other.

    Args:
        runs: Recorded metrics of the runs.

    Returns:
        The groups. A group has the position of its first run in `runs`.
    """
    experiments: dict[str, list[RunCurves]] = {}
    for index, run in enumerate(runs):
        key = repr(experiment_settings(run)) if not run.spec.evolve else str(index)
        experiments.setdefault(key, []).append(run)
    experiment_by_run = {id(run): group for group in experiments.values() for run in group}
    groups: list[list[RunCurves]] = []
    for run in runs:
        experiment = experiment_by_run[id(run)]
        if len(experiment) == 1 or _has_common_seed(experiment):
            groups.append([run])
        elif run is experiment[0]:
            groups.append(experiment)
    return groups


def _has_common_seed(runs: list[RunCurves]) -> bool:
    seeds = [
        member["seed"] for run in runs for member in run.spec.members()[: run.spec.options.seeds]
    ]
    return len(set(seeds)) < len(seeds)


def experiment_settings(run: RunCurves) -> dict[str, Any]:
    """Return the settings that are equal in runs that differ only in their seeds."""
    spec = run.spec
    return {
        "algorithm": spec.algorithm,
        "environment": spec.environment,
        "arguments": spec.arguments,
        "config": spec.config,
        "network": spec.network,
        "sweep": spec.sweep,
        "eval_arguments": spec.eval_arguments,
        "opponents": spec.opponents,
        "opponent_pool": (spec.pool_config, spec.options.opponent_pool_runs),
        "total_steps": spec.options.total_steps,
        "randomize": spec.randomize,
        "curriculum": spec.curriculum,
        "phases": [(phase.step, phase.changes) for phase in spec.phases],
        "agent_type": run.agent_type,
    }


def merge_group(
    group: list[RunCurves], notify_fn: Callable[[str], object] = ignore_message
) -> RunCurves:
    """Merge the runs of a group at their common steps.

    Args:
        group: Runs that differ only in their seeds.
        notify_fn: Function that receives a note for each run with steps that are dropped because
            other runs of the group do not have them.

    Returns:
        One run with all members, ordered by swept value and then by seed.
    """
    if len(group) == 1:
        return group[0]
    evaluations = _find_common_steps([run.eval_step for run in group])
    lines = _find_common_steps([run.step for run in group])
    for run in group:
        _report_omitted_steps(run, "evaluations", run.eval_step, evaluations.steps, notify_fn)
        _report_omitted_steps(run, "lines of metrics", run.step, lines.steps, notify_fn)
    keeps_episodes = len({run.returns.shape[2] for run in group}) == 1
    selected = [
        select_points(run, evaluation_indices, line_indices, keeps_episodes)
        for run, evaluation_indices, line_indices in zip(
            group, evaluations.indices, lines.indices, strict=True
        )
    ]
    order = _order_by_swept_value(group)

    def join_members(arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(arrays, axis=1)[:, order]

    def join_metrics(tables: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        names = [name for name in tables[0] if all(name in table for table in tables)]
        return {name: join_members([table[name] for table in tables]) for name in names}

    return group[0]._replace(
        eval_step=evaluations.steps,
        step=lines.steps,
        returns=join_members([run.returns for run in selected]),
        trials=join_members([run.trials for run in selected]),
        metrics=join_metrics([run.metrics for run in selected]),
        eval_metrics=join_metrics([run.eval_metrics for run in selected]),
        eval_time=np.mean([run.eval_time for run in selected], axis=0),
        time=np.mean([run.time for run in selected], axis=0),
    )


def _report_omitted_steps(
    run: RunCurves,
    description: str,
    steps: np.ndarray,
    common_steps: np.ndarray,
    notify_fn: Callable[[str], object],
) -> None:
    """Call `notify_fn` if a run has steps that are not common to its group."""
    if steps.size > common_steps.size:
        notify_fn(
            f"{run.folder}: {common_steps.size} of its {steps.size} {description} are used, at "
            f"the steps that all runs of {run.spec.algorithm} on {run.spec.environment} have in "
            "common."
        )


def _order_by_swept_value(group: list[RunCurves]) -> list[int]:
    """Return the order of the joined members: by index of the swept setting, then by run."""
    setting_indices = [
        index // run.spec.options.seeds for run in group for index in range(run.size)
    ]
    return np.argsort(setting_indices, kind="stable").tolist()


class CommonSteps(NamedTuple):
    """Steps that all arrays have in common, and the indices of these steps in each array."""

    steps: np.ndarray
    indices: list[np.ndarray]


def _find_common_steps(arrays: list[np.ndarray]) -> CommonSteps:
    common = arrays[0]
    for steps in arrays[1:]:
        common = np.intersect1d(common, steps)
    return CommonSteps(common, [np.searchsorted(steps, common) for steps in arrays])


def select_points(
    run: RunCurves, evaluations: np.ndarray, lines: np.ndarray, keeps_episodes: bool
) -> RunCurves:
    """Select evaluations and training metrics of a run, and repeat shared metrics for all members.

    Args:
        run: Recorded metrics of the run.
        evaluations: Indices of the evaluations.
        lines: Indices of the lines of training metrics, int `[m]`.
        keeps_episodes: Whether to keep single episodes. False averages over episodes, so that runs
            with different numbers of episodes can be merged.

    Returns:
        Recorded metrics at the selected points.
    """

    def select_episodes(values: np.ndarray) -> np.ndarray:
        selected = values[evaluations]
        return selected if keeps_episodes else selected.mean(axis=2, keepdims=True)

    return run._replace(
        returns=select_episodes(run.returns),
        trials=select_episodes(run.trials),
        metrics={
            name: np.broadcast_to(x[lines], (lines.size, run.size))
            for name, x in run.metrics.items()
        },
        eval_metrics={name: select_episodes(x) for name, x in run.eval_metrics.items()},
        eval_time=run.eval_time[evaluations],
        time=run.time[lines],
    )
