"""Selection of the metrics of a figure, and estimates with intervals for its lines."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rollax.acting.evaluation import TRIAL_END_NAMES
from rollax.errors import UsageError
from rollax.populations.evolution import Range
from rollax.training.evaluation.metrics import format_finite_count
from rollax.training.run_folder.lineage import fitness_label, read_lineage
from rollax.visualization.plots import intervals, lineage_chart
from rollax.visualization.plots.learning_curves import (
    EPISODE_METRICS,
    METRIC_TITLES,
    RETURN_METRIC,
    STEP_AXIS_LABEL,
    Curve,
    RunCurves,
    has_metric,
    metric_series,
    training_metric,
)

TRAINING_RETURN = "episode_return"
SHARED_COLOR = "#555555"  # for metrics of a whole run with several curves
MAX_EXCLUSIONS = 3  # number of lines listed in a note on excluded values
NUM_EARLIER_EVALUATIONS = 5  # drawn below the last evaluation in charts of trials
# The return has a larger panel, and the count of gradient steps is not informative.
METRICS_WITHOUT_PANEL = ("episode_return", "gradient_steps")


class CurveEstimate(NamedTuple):
    """Line and band of a curve in a panel, at the K points with finite values.

    Attributes:
        curve: Curve that provides label, color and line style.
        x: Steps or times, `[K]`.
        middle: Values of the line, `[K]`.
        low: Lower end of the band, `[K]`.
        high: Upper end of the band, `[K]`.
        has_episodes: Whether each point is an estimate over several episodes.
    """

    curve: Curve
    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    has_episodes: bool = False


def estimate_curve(
    curve: Curve,
    steps: np.ndarray,
    values: np.ndarray,
    estimator: Callable[[np.ndarray], intervals.Estimate],
) -> CurveEstimate | None:
    """Apply an estimator at the points that have finite values.

    Args:
        curve: Curve that provides label, color and line style.
        steps: Steps or times, `[K]`.
        values: Values of p members over N episodes, `[K, p, N]`.
        estimator: Function that maps values `[p, N]` to an estimate.

    Returns:
        The estimate, or None if no value is finite.
    """
    finite = [k for k in range(len(steps)) if np.isfinite(values[k]).any()]
    if not finite:
        return None
    middle, low, high = np.array([estimator(values[k]) for k in finite]).T
    return CurveEstimate(
        curve=curve,
        x=steps[finite],
        middle=middle,
        low=low,
        high=high,
        has_episodes=values.shape[2] > 1,
    )


def select_estimator(curve: Curve) -> Callable[[np.ndarray], intervals.Estimate]:
    """Return the estimator for a curve. Without independent members, it has no interval."""
    return (
        intervals.estimate_without_interval
        if curve.has_shared_founders
        else intervals.estimate_with_interval
    )


def estimate_evaluation_returns(curves: list[Curve]) -> list[CurveEstimate]:
    """Estimate the evaluation return of each curve. Curves without evaluations are skipped."""
    estimates = [
        estimate_curve(
            curve, curve.run.eval_step, curve.run.returns[:, curve.members], select_estimator(curve)
        )
        for curve in curves
    ]
    return [estimate for estimate in estimates if estimate is not None]


def estimate_secondary_metric(curves: list[Curve]) -> list[CurveEstimate]:
    """Estimate the metric that `secondary_metric` selects. Curves without values are skipped."""
    name = secondary_metric(curves)
    estimates = [
        estimate_curve(
            curve,
            curve.run.step,
            training_metric(curve, name)[:, :, None],
            intervals.iqm_with_quartiles if name == TRAINING_RETURN else select_estimator(curve),
        )
        for curve in curves
    ]
    return [estimate for estimate in estimates if estimate is not None]


def estimate_metric(curves: list[Curve], name: str) -> list[CurveEstimate]:
    """Estimate the lines of a metric in a small panel.

    A metric with one value for all members is drawn once per run, in gray if the run has several
    curves.

    Args:
        curves: Curves of the overview.
        name: Name of the metric.

    Returns:
        Estimates of the curves that have finite values.
    """
    estimates, drawn_runs = list[CurveEstimate | None](), set[Path]()
    for curve in curves:
        run = curve.run
        if name in run.eval_metrics:
            estimates.append(_estimate_evaluation_metric(curve, name))
            continue
        is_shared = name in run.metrics and run.metrics[name].shape[1] < run.size
        if is_shared and run.folder in drawn_runs:
            continue
        drawn_runs.add(run.folder)
        is_shared_by_curves = is_shared and len(curve.members) < run.size
        estimates.append(
            estimate_curve(
                curve._replace(color=SHARED_COLOR, line_style="-")
                if is_shared_by_curves
                else curve,
                run.step,
                training_metric(curve, name)[:, :, None],
                intervals.iqm_with_quartiles,
            )
        )
    return [estimate for estimate in estimates if estimate is not None]


def _estimate_evaluation_metric(curve: Curve, name: str) -> CurveEstimate | None:
    """Estimate an evaluation metric over the episodes of a single member, or over all members."""
    values = (
        curve.run.eval_metrics[name][:, curve.members]
        if len(curve.members) == 1
        else metric_series(curve, name).values[:, :, None]
    )
    return estimate_curve(curve, curve.run.eval_step, values, intervals.estimate_with_interval)


class PanelLine(NamedTuple):
    """Line of a panel: a metric of p seeds at K points.

    Attributes:
        environment: Name of the environment.
        metric: Name of the metric.
        curve: Curve that provides label, color and line style.
        x: Steps or times, `[K]`.
        values: Values of all seeds, `[K, p]`.
        middle: Interquartile mean over seeds, `[K]`.
        low: Lower end of the 95 % bootstrap interval, `[K]`. NaN for a single seed and for members
            with common ancestors (`Curve.has_shared_founders`).
        high: Upper end of the 95 % bootstrap interval, `[K]`.
    """

    environment: str
    metric: str
    curve: Curve
    x: np.ndarray
    values: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def estimate_lines(curves: list[Curve], names: tuple[str, ...]) -> list[PanelLine]:
    """Estimate the lines of metrics at the points with finite values of all seeds.

    Args:
        curves: Curves to estimate.
        names: Names of the metrics. An empty tuple selects the evaluation return.

    Returns:
        Lines of all metrics and curves. Lines without such a point are omitted.

    Raises:
        UsageError: If no line has finite values.
    """
    names = names or (RETURN_METRIC,)
    lines = [_estimate_line(curve, name) for name in names for curve in curves]
    found_lines = [line for line in lines if line is not None]
    if not found_lines:
        raise UsageError(f"There is nothing to draw of {', '.join(names)} yet. Train for longer.")
    return found_lines


def _estimate_line(curve: Curve, name: str) -> PanelLine | None:
    """Return the line of a metric, or None if no point has finite values of all seeds."""
    x, values = metric_series(curve, name)
    is_finite = np.isfinite(values).all(axis=1)
    if not is_finite.any():
        return None
    estimate = estimate_over_seeds(curve, values[is_finite])
    return PanelLine(
        environment=curve.run.spec.environment,
        metric=name,
        curve=curve,
        x=x[is_finite],
        values=values[is_finite],
        middle=estimate.middle,
        low=estimate.low,
        high=estimate.high,
    )


def estimate_over_seeds(curve: Curve, values: np.ndarray) -> intervals.EstimatedCurve:
    """Return interquartile means over the seeds of a curve with 95 % bootstrap intervals.

    Args:
        curve: Curve whose members have the values.
        values: Values of the p members, one per seed, at K points, `[K, p]`.

    Returns:
        The estimates. The ends of the intervals are NaN for a single member, and for members that
        are not independent (`Curve.has_shared_founders`).
    """
    if curve.has_shared_founders:
        return intervals.iqm_over_seeds_without_interval(values)
    return intervals.iqm_over_seeds(values)


def count_independent_seeds(curve: Curve) -> int:
    """Return the number of members, or of their distinct ancestors in an evolved population."""
    founders = curve.run.founders
    return founders if founders is not None and curve.has_shared_founders else len(curve.members)


def describe_missing_intervals(curves: list[Curve]) -> list[str]:
    """Return notes that name the curves without an interval over seeds and state the reason."""
    single = dict.fromkeys(
        f"{curve.label} on {curve.run.spec.environment}"
        for curve in curves
        if len(curve.members) == 1
    )
    shared = {
        f"{curve.label} on {curve.run.spec.environment}": curve
        for curve in curves
        if curve.has_shared_founders
    }
    notes = [
        f"{name}: no interval, because {len(curve.members)} members with "
        f"{curve.run.founders} distinct founders are not independent"
        for name, curve in shared.items()
    ]
    return notes + ([f"no interval for a single seed: {'; '.join(single)}"] if single else [])


class Evolution(NamedTuple):
    """Lineage of an evolved population (see `lineage_chart.draw_lineage`).

    Attributes:
        history: History of the population.
        ranges: Range of each evolved setting, keyed by setting name.
        last_step: Last step of the run.
        best_member: Index of the best final member.
    """

    history: lineage_chart.LineageHistory
    ranges: dict[str, Range]
    last_step: int
    best_member: int


def read_evolution(run: RunCurves) -> Evolution | None:
    """Return the lineage of an evolved run.

    Args:
        run: Recorded metrics of the run.

    Returns:
        The lineage, or None if the run does not evolve, is drawn over wall time, or has no valid
        lineage file.
    """
    if not run.spec.evolve or run.axis != STEP_AXIS_LABEL:
        return None
    history = lineage_chart.parse_history(read_lineage(run.folder), run.spec.evolve)
    if history is None:
        return None
    returns = run.returns[-1].mean(axis=-1) if run.eval_step.size else np.zeros(0)
    is_max = run.spec.options.best_mode == "max"
    return Evolution(
        history=history._replace(fitness_name=fitness_label(run.spec)),
        ranges=run.spec.evolve,
        last_step=int(max(run.step.max(initial=0), history.step[-1])),
        best_member=lineage_chart.best_member(history, returns if is_max else -returns),
    )


def select_panel_metrics(curves: list[Curve], drawn_names: list[str]) -> list[str]:
    """Return the names of the metrics in the small panels, user metrics first.

    A metric is omitted if its finite values are all equal, unless every curve has a single point.
    Entries of `info` with a slash in their name are omitted as well.

    Args:
        curves: Curves of the overview.
        drawn_names: Metrics that are drawn elsewhere.
    """
    user_metrics = [name for curve in curves for name in curve.run.user_metrics]
    info = [
        name
        for curve in curves
        for name in curve.run.eval_metrics
        if name.startswith("info/") and name.count("/") == 1
    ]
    logged = [name for curve in curves for name in curve.run.metrics]
    names = dict.fromkeys([*user_metrics, *METRIC_TITLES, *info, *logged])
    drawn_elsewhere = {
        *METRICS_WITHOUT_PANEL,
        *drawn_names,
        secondary_metric(curves),
        *(f"info/{name}" for name in TRIAL_END_NAMES),
    } - set(user_metrics)
    return [
        name
        for name in names
        if name not in drawn_elsewhere
        and _has_variation([_curve_values(curve, name) for curve in curves])
    ]


def _curve_values(curve: Curve, name: str) -> np.ndarray:
    """Return the values of a training or evaluation metric, `[K, p]`."""
    return (
        metric_series(curve, name).values
        if name in curve.run.eval_metrics
        else training_metric(curve, name)
    )


def _has_variation(values: list[np.ndarray]) -> bool:
    """Return whether finite values differ, or every curve has a single point."""
    finite = np.concatenate([curve_values[np.isfinite(curve_values)] for curve_values in values])
    return bool(finite.size and (finite.min() < finite.max() or max(map(len, values)) == 1))


def secondary_metric(curves: list[Curve]) -> str:
    """Return the name of the metric that is drawn below the evaluation return.

    It is the QD score if all runs have a QD score, and the training return otherwise.
    """
    has_qd_score = all(has_metric(curve.run, "qd_score") for curve in curves)
    return "qd_score" if has_qd_score else TRAINING_RETURN


def describe_lines(curves: list[Curve]) -> str:
    """Return the subtitle of the figure, which describes its lines and bands."""
    num_members = sorted({len(curve.members) for curve in curves})
    num_episodes = sorted(
        {curve.run.returns.shape[2] for curve in curves if curve.run.eval_step.size}
    )
    is_closed_form = all(curve.run.is_closed_form for curve in curves)
    estimates = []
    if num_members[0] == 1 and num_episodes and not is_closed_form:
        unit = "trials" if all(curve.run.trials.size for curve in curves) else "episodes"
        estimates.append(f"mean of {_join_numbers(num_episodes)} {unit}")
    if num_members[-1] > 1:
        unit = "members" if any(curve.run.spec.evolve for curve in curves) else "seeds"
        several = [number for number in num_members if number > 1]
        estimates.append(f"interquartile mean of {_join_numbers(several)} {unit}")
    if not estimates:
        return "best elite, scored in closed form without episodes" if is_closed_form else ""
    quartiles = f"; {_describe_quartiles(curves)}" if num_members[-1] > 1 else ""
    exclusions = "".join(f"; {exclusion}" for exclusion in describe_exclusions(curves))
    return f"{', '.join(estimates)}{_describe_interval(curves)}{quartiles}{exclusions}"


def _join_numbers(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))


def _describe_quartiles(curves: list[Curve]) -> str:
    panels = (
        "training return and small panels"
        if secondary_metric(curves) == TRAINING_RETURN
        else "small panels"
    )
    return f"{panels}: band from the first to the third quartile"


def _describe_interval(curves: list[Curve]) -> str:
    """Describe the interval of the evaluation return, and the curves without an interval."""
    shared = [curve.run.founders for curve in curves if curve.has_shared_founders]
    founders = sorted({number for number in shared if number is not None})
    interval = "" if len(shared) == len(curves) else ", with its 95 % bootstrap interval"
    if not founders:
        return interval
    source = f"{_join_numbers(founders)} founder{'s' * (founders[-1] > 1)}"
    return f"{interval}, without an interval over members from {source}, which are not independent"


def describe_exclusions(curves: list[Curve], names: tuple[str, ...] = ()) -> list[str]:
    """Describe the lines whose estimates exclude non-finite values of members or episodes.

    Args:
        curves: Curves to check.
        names: Metrics to check. If empty, the evaluation return and, for several members, training
            metrics are checked.

    Returns:
        At most `MAX_EXCLUSIONS` descriptions. If there are more, the last item states how many
        are omitted.
    """
    has_several_labels = len({curve.label for curve in curves}) > 1
    exclusions = list[str]()
    for curve in curves:
        label = f"{curve.label}: " if has_several_labels else ""
        for name in names or (RETURN_METRIC,):
            if fewest := _describe_fewest_finite(curve, name):
                exclusions.append(f"{label}{name if names else 'evaluations'} {fewest}")
        if not names and len(curve.members) > 1:
            in_training = [
                _describe_fewest_finite(curve, name)
                for name in METRIC_TITLES
                if name in curve.run.metrics and name not in EPISODE_METRICS
            ]
            first = next(filter(None, in_training), None)
            exclusions += [] if first is None else [f"{label}training {first}"]
    num_omitted = len(exclusions) - MAX_EXCLUSIONS
    omitted = [f"and {num_omitted} more"] if num_omitted > 0 else []
    return [*exclusions[:MAX_EXCLUSIONS], *omitted]


def _describe_fewest_finite(curve: Curve, name: str) -> str:
    """Describe the point with the fewest finite values, or return "" if all values are finite."""
    run, has_members = curve.run, len(curve.members) > 1
    is_evaluated = name in (RETURN_METRIC, *run.eval_metrics)
    x = run.eval_step if is_evaluated else run.step
    if not len(x):
        return ""
    is_finite = _find_finite_values(curve, name).reshape(len(x), -1)
    count, total = is_finite.sum(axis=1), is_finite.shape[1]
    incomplete = np.flatnonzero((count > 0) & (count < total))
    if not incomplete.size:
        return ""
    point = incomplete[np.argmin(count[incomplete])]
    unit = ("members" if run.spec.evolve else "seeds") if has_members else "episodes"
    # Curves over time have float positions.
    position = f"{x[point]:,}" if x.dtype.kind in "iu" else f"{x[point]:.4g}"
    return f"of {format_finite_count(int(count[point]), total, unit)} at {position}"


def _find_finite_values(curve: Curve, name: str) -> np.ndarray:
    """Return a mask of finite values, bool `[K, p]`, or `[K, N]` over episodes of one member."""
    run = curve.run
    if name not in (RETURN_METRIC, *run.eval_metrics):
        return np.isfinite(training_metric(curve, name))
    values = run.returns if name == RETURN_METRIC else run.eval_metrics[name]
    is_finite = np.isfinite(values[:, curve.members])
    if len(curve.members) == 1:
        return is_finite[:, 0]
    return np.all(is_finite, axis=2) if name == RETURN_METRIC else np.any(is_finite, axis=2)


def describe_adaptation(curves: list[Curve], shows_earlier: bool) -> str:
    """Return the note of the chart that shows the returns of successive episodes in a trial.

    Args:
        curves: Curves of the chart.
        shows_earlier: Whether the chart also shows earlier evaluations.
    """
    is_shared = all(curve.has_shared_founders for curve in curves)
    interval = "" if is_shared else " with its 95 % bootstrap interval"
    earlier = ", lighter lines are earlier evaluations" if shows_earlier else ""
    return f"last evaluation{interval}{earlier}"


def earlier_evaluations(count: int) -> list[int]:
    """Return indices of evenly spaced evaluations before the last, including the first.

    Args:
        count: Number of evaluations, including the last.
    """
    return sorted(
        {
            round(index)
            for index in np.linspace(0, count - 2, min(NUM_EARLIER_EVALUATIONS, count - 1))
        }
    )


def should_use_log_scale(lines: list[np.ndarray]) -> bool:
    """Return whether the values are positive and their range is too wide for a linear axis."""
    values = np.concatenate([*lines, np.zeros(0)])
    values = values[np.isfinite(values)]
    return bool(
        values.size > 1
        and values.min() > 0
        and np.quantile(values, 0.95) > 50 * np.quantile(values, 0.05)
    )
