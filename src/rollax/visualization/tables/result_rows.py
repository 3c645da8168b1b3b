"""Table of results: one row per group of runs, with intervals over seeds."""

import math

import numpy as np

from rollax.training.evaluation.metrics import is_zero_sum_metric
from rollax.training.run_folder.layout import METRICS_FILE
from rollax.training.run_folder.metric_sinks import read_metrics
from rollax.training.spec import get_algorithm_entry
from rollax.visualization.plots.curve_estimates import (
    count_independent_seeds,
    describe_exclusions,
    describe_missing_intervals,
    estimate_over_seeds,
)
from rollax.visualization.plots.intervals import Estimate
from rollax.visualization.plots.learning_curves import (
    RETURN_METRIC,
    Curve,
    has_metric,
    metric_series,
    metric_title,
)
from rollax.visualization.tables.run_groups import RunGroup
from rollax.visualization.tables.run_table import RunTable
from rollax.visualization.tables.table_formats import Cell, Column

ARCHIVE_METRICS = ("coverage", "qd_score", "moqd_score")


def make_results_table(groups: list[RunGroup]) -> RunTable:
    """Build the table of results.

    The final return is the return in the last evaluation that all seeds have in common. The best
    return uses the best evaluation of each seed. Archive metrics are taken at the step of the last
    evaluation. All of them are interquartile means over seeds with 95 % bootstrap intervals.

    Args:
        groups: Groups of runs.

    Returns:
        The table. It has a column for labels if a label differs from the algorithm name, and a
        column for agent types if there are several. It has one column for each archive metric of a
        group.
    """
    curves = [group.curve for group in groups]
    metrics = [
        name for name in ARCHIVE_METRICS if any(has_metric(curve.run, name) for curve in curves)
    ]
    has_labels = any(curve.label != curve.run.spec.algorithm for curve in curves)
    has_agents = any(curve.run.agent_type for curve in curves)
    units = dict.fromkeys(get_algorithm_entry(curve.run.spec.algorithm).unit for curve in curves)
    columns = [
        *([Column("label", "label")] if has_labels else []),
        Column("algorithm", "algorithm"),
        Column("environment", "environment"),
        *([Column("agents", "agents")] if has_agents else []),
        Column("seeds", "seeds"),
        Column("steps", " or ".join(units)),
        Column("final_return", "final return", has_interval=True),
        Column("best_return", "best return", has_interval=True),
        *(Column(name, metric_title(name), has_interval=True) for name in metrics),
    ]
    rows = [_make_row(curve, has_labels, has_agents, metrics) for curve in curves]
    return RunTable(tuple(columns), tuple(rows), tuple(_make_notes(curves)))


def _make_row(
    curve: Curve, has_labels: bool, has_agents: bool, metrics: list[str]
) -> tuple[Cell, ...]:
    """Return the cells of a group in the order of the columns of `make_results_table`."""
    returns = metric_series(curve, RETURN_METRIC).values
    has_returns = len(returns) > 0 and not _is_zero_sum(curve)
    return (
        *([curve.label] if has_labels else []),
        curve.run.spec.algorithm,
        curve.run.spec.environment,
        *([curve.run.agent_type] if has_agents else []),
        count_independent_seeds(curve),
        _last_step(curve),
        _estimate(curve, returns[-1]) if has_returns else None,
        _estimate(curve, _best_of_seeds(curve, returns)) if has_returns else None,
        *(_estimate_last_metric(curve, name) for name in metrics),
    )


def _is_zero_sum(curve: Curve) -> bool:
    """Return whether the mean return over agents is always 0, as in a zero-sum game."""
    run = curve.run
    path = run.folder / METRICS_FILE
    if run.agent_type or not np.allclose(run.returns, 0.0, atol=1e-3) or not path.exists():
        return False
    records = [record for record in read_metrics(path) if record.get("event") == "evaluation"]
    try:
        return bool(records) and is_zero_sum_metric("return_mean", records[-1])
    except (KeyError, TypeError, ValueError):  # a damaged line
        return False


def _last_step(curve: Curve) -> int:
    """Return the step of the last evaluation, or of the last metric line without evaluations."""
    run = curve.run
    steps = run.eval_step if run.eval_step.size else run.step
    return int(steps[-1]) if steps.size else 0


def _estimate(curve: Curve, values: np.ndarray) -> Estimate:
    """Return the interquartile mean over values of p seeds, `[p]`, with its interval."""
    estimate = estimate_over_seeds(curve, values[None])
    return Estimate(float(estimate.middle[0]), float(estimate.low[0]), float(estimate.high[0]))


def _best_of_seeds(curve: Curve, returns: np.ndarray) -> np.ndarray:
    """Return the best return of each seed, `[p]`. NaN for seeds without a finite return.

    Args:
        curve: Curve of the returns.
        returns: Returns of the evaluations, `[K, p]`.
    """
    options = curve.run.spec.options
    is_cost = options.best_mode == "min" and options.best_metric.startswith("return")
    sign = -1 if is_cost else 1
    best = np.where(np.isfinite(returns), sign * returns, -math.inf).max(axis=0)
    return np.where(np.isfinite(best), sign * best, math.nan)


def _estimate_last_metric(curve: Curve, name: str) -> Estimate | None:
    """Estimate a training metric at the newest metric line before or at the last evaluation.

    The result is None if no such line exists or the run lacks the metric.
    """
    if not has_metric(curve.run, name):
        return None
    steps, values = metric_series(curve, name)
    index = int(np.searchsorted(steps, _last_step(curve), side="right")) - 1
    return _estimate(curve, values[index]) if index >= 0 else None


def _make_notes(curves: list[Curve]) -> list[str]:
    """Return the notes for the caption."""
    evaluated = [curve for curve in curves if curve.run.eval_step.size]
    notes = list[str]()
    if evaluated:
        notes += [
            "values: interquartile mean over seeds (the mean for fewer than four), with its 95 % "
            "bootstrap interval over seeds",
            "final return: last evaluation; best return: best evaluation of each seed, which is "
            "biased by the selection",
        ]
        notes += describe_missing_intervals(evaluated)
    notes += [note for curve in curves for note in _describe_progress(curve)]
    single = [curve for curve in curves if len(curve.members) == 1]
    return notes + [f"values left out: {text}" for text in describe_exclusions(single)]


def _describe_progress(curve: Curve) -> list[str]:
    """Return notes on a missing return and on unfinished training of a group."""
    spec, name = curve.run.spec, f"{curve.label} on {curve.run.spec.environment}"
    total_steps = spec.total_updates * spec.config.steps_per_update
    notes = []
    if not curve.run.eval_step.size:
        notes.append(f"{name}: no return, because the seeds have no evaluation in common")
    elif _is_zero_sum(curve):
        notes.append(f"{name}: no return, because the returns of all agents sum to 0")
    elif not np.isfinite(metric_series(curve, RETURN_METRIC).values[-1]).all():
        notes.append(
            f"{name}: no final return, because the last evaluation is not finite for all seeds"
        )
    if _last_step(curve) < total_steps:
        notes.append(f"{name}: results after {_last_step(curve):,} of {total_steps:,} steps")
    return notes
