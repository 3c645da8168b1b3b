"""Results of a study: table of trials, importance of settings, and the best trial as a preset."""

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from rollax.config import DataclassInstance
from rollax.errors import UsageError
from rollax.sweeps import optuna_study
from rollax.sweeps.search_space import Settings
from rollax.sweeps.study import Batch, Study, Trial
from rollax.training.console.result_tables import MAX_ROWS, format_interval, format_omitted_rows
from rollax.training.evaluation.metrics import format_finite_count, format_number
from rollax.training.spec import get_algorithm_entry

if TYPE_CHECKING:
    import optuna


class TrialResult(NamedTuple):
    """Trial with its result.

    Attributes:
        number: Number of the trial.
        state: WAITING, RUNNING, COMPLETE, PRUNED or FAIL.
        settings: Settings, keyed by full name such as `config.learning_rate`.
        value: Mean of the ranking metric over seeds. For pruned and running trials, the last
            intermediate value. None without a value.
        scores: Ranking metric of each seed, or None if it is unknown or not finite.
        steps: Number of steps per seed.
        run: Run folder, relative to the folder of the study.
        member: Index of the trial's first member in the population of that run, or None.
        problem: Reason of a failure, or None.
    """

    number: int
    state: str
    settings: Settings
    value: float | None
    scores: list[float | None]
    steps: int | None
    run: str | None
    member: int | None
    problem: str | None


def list_trial_results(study: Study) -> list[TrialResult]:
    """Return the results of all trials that are in batches.

    Trials are ordered by state (complete, pruned, running, others), and then from best to worst.
    """
    trials_and_batches = {
        trial.number: (trial, batch) for batch in study.list_batches() for trial in batch.trials
    }
    sign = 1 if study.mode == "max" else -1
    results = [
        _make_trial_result(drawn, *trials_and_batches[drawn.number])
        for drawn in study.optuna_study.get_trials(deepcopy=False)
        if drawn.number in trials_and_batches
    ]
    order = {"COMPLETE": 0, "PRUNED": 1, "RUNNING": 2}
    return sorted(
        results,
        key=lambda row: (
            order.get(row.state, 3),
            math.inf if row.value is None else -sign * row.value,
        ),
    )


def _latest_value(trial: "optuna.trial.FrozenTrial") -> float | None:
    if trial.state.name == "FAIL":
        return None
    if trial.state.name == "COMPLETE":
        return trial.value
    values = trial.intermediate_values
    return values[max(values)] if values else None


def _make_trial_result(
    frozen_trial: "optuna.trial.FrozenTrial", trial: Trial, batch: Batch
) -> TrialResult:
    """Build a trial result from the record in Optuna's storage. Invalid attributes are ignored."""
    attributes = frozen_trial.user_attrs
    run = next((run for run in batch.runs if run.name == attributes.get("run")), batch.runs[-1])
    scores = attributes.get("scores")
    scores = [_finite_or_none(score) for score in scores] if isinstance(scores, list) else []
    has_member = trial.number in run.numbers and bool(scores)
    settings = attributes.get("settings")
    if not isinstance(settings, dict) or not all(
        isinstance(value, int | float) for value in settings.values()
    ):
        settings = trial.settings  # an evolving population has final settings only at the end
    steps, problem = attributes.get("steps"), attributes.get("problem")
    return TrialResult(
        number=trial.number,
        state=frozen_trial.state.name,
        settings=settings,
        value=_latest_value(frozen_trial),
        scores=scores,
        steps=steps if isinstance(steps, int) else None,
        run=f"{batch.folder.parent.name}/{batch.folder.name}/{run.name}",
        member=run.numbers.index(trial.number) * len(scores) if has_member else None,
        problem=None if problem is None else str(problem),
    )


def _finite_or_none(score: object) -> float | None:
    return float(score) if isinstance(score, int | float) and math.isfinite(score) else None


def format_settings(settings: Settings) -> str:
    """Format settings on one line, without the prefix `config.`."""
    return " ".join(
        f"{name.removeprefix('config.')} {format_value(value)}" for name, value in settings.items()
    )


def format_value(value: object) -> str:
    """Format a setting: floats with four significant digits, and sequences joined by "x"."""
    if isinstance(value, list | tuple):
        return "x".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_progress(study: Study) -> str:
    """Format the progress of a study and its best trial so far on one line."""
    rows = list_trial_results(study)
    num_ended = sum(row.state in ("COMPLETE", "PRUNED", "FAIL") for row in rows)
    text = f"{num_ended} of {study.spec.num_trials} settings"
    if study.spec.search.budget is not None:
        text = (
            f"{num_ended} settings, {study.count_steps():,} of {study.spec.search.budget:,} steps"
        )
    if not rows or rows[0].state != "COMPLETE":
        return text
    best = rows[0]
    return (
        f"{text}, best {study.metric} {_format_mean(best)} of trial {best.number}: "
        f"{format_settings(best.settings)}"
    )


def _format_mean(row: TrialResult) -> str:
    if row.value is None:
        return "-"
    scores = [score for score in row.scores if score is not None]
    text = f"{format_number(row.value)}{format_interval(scores)}"
    if len(scores) == len(row.scores):
        return text
    return f"{text} ({format_finite_count(len(scores), len(row.scores), 'seeds')})"


def format_table(study: Study) -> list[str]:
    """Format a table of trials, from best to worst, as lines of text.

    Each line has the mean of the ranking metric with its 95 % t-interval over seeds.
    """
    rows = list_trial_results(study)
    if not rows:
        return ["  no trial has been drawn yet"]
    shown = rows[:MAX_ROWS]
    width = min(max(len(format_settings(row.settings)) for row in shown), 80)
    intervals = ", with 95 % intervals over seeds" if study.base.options.seeds > 1 else ""
    lines = [f"  {study.metric} by setting{intervals}:"]
    for row in shown:
        notes = {
            "COMPLETE": "",
            "PRUNED": f"  stopped at {row.steps or 0:,} steps",
            "FAIL": f"  failed: {row.problem}",
        }
        note = notes.get(row.state, f"  {row.state.lower()}")
        settings = format_settings(row.settings)
        lines.append(f"    {row.number:>4}  {settings:<{width}}  {_format_mean(row)}{note}")
    return [*lines, *format_omitted_rows(len(rows))]


def has_result(study: Study) -> bool:
    """Return whether at least one trial is complete."""
    rows = list_trial_results(study)
    return bool(rows) and rows[0].state == "COMPLETE"


def find_best_trial(study: Study) -> TrialResult:
    """Return the best complete trial.

    Raises:
        UsageError: If no trial is complete. The message lists the reasons for failures.
    """
    rows = list_trial_results(study)
    if not rows or rows[0].state != "COMPLETE":
        problems = {row.problem for row in rows if row.problem}
        raise UsageError(
            f"No trial of {study.folder} has a result"
            f"{': ' if problems else ''}{'; '.join(sorted(problems))}."
        )
    return rows[0]


def setting_importance(study: Study) -> dict[str, float]:
    """Return the importance of each setting (PED-ANOVA, Watanabe et al. 2023).

    Args:
        study: Loaded study.

    Returns:
        Importance of each setting, keyed by full name. The values sum to 1. Empty if there are too
        few results.
    """
    return optuna_study.parameter_importance(study.optuna_study)


def format_preset(study: Study) -> str:
    """Format the best trial as a YAML preset for `rollax train ... --preset FILE`.

    Raises:
        UsageError: If no trial is complete.
    """
    row, base = find_best_trial(study), study.base
    entry = get_algorithm_entry(base.algorithm)
    # Write all changed settings, because the file replaces the presets of the library.
    groups: dict[str, dict[str, Any]] = {
        "env": dict(base.arguments),
        "config": _changed_settings(base.config, entry.config()),
        "network": _changed_settings(base.network, entry.network_config()),
    }
    for name, value in row.settings.items():
        group, _, setting = name.partition(".")
        groups[group][setting] = value
    sampled = {"eval_stochastic": True} if base.options.eval_stochastic else {}
    tuned = {
        "total_steps": base.options.total_steps,
        **sampled,
        **{name: values for name, values in groups.items() if values},
    }
    num_complete = sum(each.state == "COMPLETE" for each in list_trial_results(study))
    seeds = f"{len(row.scores)} seed{'s' * (len(row.scores) > 1)}"
    comment = (
        f"# {study.metric} {_format_mean(row)} over {seeds}, the best of {num_complete} trials.\n"
        "# Selection biases this value upward. Train with other seeds for an unbiased one.\n"
    )
    return comment + yaml.safe_dump(
        {base.environment: json.loads(json.dumps(tuned))}, sort_keys=False
    )


def _changed_settings(settings: DataclassInstance, defaults: DataclassInstance) -> dict[str, Any]:
    """Return the settings that differ from their defaults."""
    default_values = vars(defaults)
    return {
        name: value
        for name, value in dataclasses.asdict(settings).items()
        if value != default_values[name]
    }


def summarize_study(study: Study) -> dict[str, Any]:
    """Return a flat summary of the study for JSON."""
    rows = list_trial_results(study)
    states = [row.state for row in rows]
    counts = {
        name.lower(): states.count(name) for name in ("COMPLETE", "PRUNED", "FAIL", "RUNNING")
    }
    summary: dict[str, Any] = {
        "study": str(study.folder),
        # A budget may allow fewer trials than requested.
        "trials": len(rows) if study.is_done() else study.spec.num_trials,
        **counts,
        "metric": study.metric,
    }
    if rows and rows[0].state == "COMPLETE":
        best = rows[0]
        summary |= {
            "best": best.value,
            "best_trial": best.number,
            "best_settings": best.settings,
            "best_run": best.run,
        }
    return summary
