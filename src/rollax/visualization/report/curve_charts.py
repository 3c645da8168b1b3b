"""Charts of learning curves in a report, with separate lines for members of a population."""

from typing import NamedTuple

import numpy as np

from rollax.training.run_folder.metric_sinks import add_section_prefix
from rollax.training.spec import get_algorithm_entry
from rollax.visualization.plots import curve_estimates, intervals
from rollax.visualization.plots.learning_curves import (
    Curve,
    RunCurves,
    has_metric,
    metric_title,
    phase_steps,
    training_metric,
)
from rollax.visualization.plots.run_merging import experiment_settings
from rollax.visualization.plots.style import format_count
from rollax.visualization.report.html_page import (
    Chart,
    LegendButton,
    PlotlyValues,
    Section,
    SectionPart,
    escape_html,
    heading_html,
    legend_html,
    paragraph_html,
    to_json_numbers,
)

MAX_POINTS = 2000  # per line. A run usually writes 500.
MAX_PANELS = 60
MAX_MEMBERS = 64  # per line that are drawn individually
MAX_NAMED_LINES = 3  # in the table row of a run
PLOTLY_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
CSS_LINE_STYLES = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dashed"}
ZOOM_HINT = "Drag over a chart to zoom and double-click to reset{}."
MEMBER_GROUP = "members"  # legend group of the lines of single members
SECTION_TITLES = {
    "eval": "In evaluation",
    "train": "In training",
    "losses": "Losses",
    "time": "Speed",
}


class CurvesSection(NamedTuple):
    """Report section with learning curves, and notes on omitted curves."""

    section: Section
    notes: list[str]


def curves_section(curves: list[Curve]) -> CurvesSection:
    """Build the report section with learning curves.

    Args:
        curves: Curves to draw.

    Returns:
        The section, and notes on omitted curves.
    """
    buttons, notes = _legend_buttons(curves), list[str]()
    legend_hint = ". Click a name to hide its lines in all charts" if buttons else ""
    parts: list[SectionPart] = [paragraph_html(ZOOM_HINT.format(legend_hint))]
    parts += [legend_html(buttons)] if buttons else []
    environments = list(dict.fromkeys(curve.run.spec.environment for curve in curves))
    for environment in environments:
        group = [curve for curve in curves if curve.run.spec.environment == environment]
        parts += [heading_html(environment)] if len(environments) > 1 else []
        if description := curve_estimates.describe_lines(group):
            parts.append(paragraph_html(f"Lines and bands: {description}."))
        parts.append(_return_charts(group))
    if len(environments) == 1:
        panels, panel_notes = _metric_charts(curves)
        parts += panels
        notes += panel_notes
    large = {len(curve.members) for curve in curves if len(curve.members) > MAX_MEMBERS}
    if large:
        notes.append(
            f"lines of single members are not drawn for more than {MAX_MEMBERS} members "
            f"(there are up to {max(large):,})"
        )
    return CurvesSection(Section("Curves", parts), notes)


def legend_groups(curves: list[Curve]) -> dict[str, str]:
    """Return the name of the legend group of each curve label, keyed by label."""
    return {
        label: f"line-{index}"
        for index, label in enumerate(dict.fromkeys(curve.label for curve in curves))
    }


def format_line_labels(run: RunCurves, curves: list[Curve]) -> str:
    """Return text with the labels of the lines that contain a run.

    Args:
        run: Recorded metrics of the run, before runs with different seeds are merged.
        curves: Curves of the report, after merging.

    Returns:
        The labels, or the number of labels if there are more than `MAX_NAMED_LINES`.
    """
    settings = repr(experiment_settings(run))
    labels = dict.fromkeys(
        curve.label
        for curve in curves
        if curve.run.folder == run.folder or repr(experiment_settings(curve.run)) == settings
    )
    return "; ".join(labels) if len(labels) <= MAX_NAMED_LINES else f"{len(labels)} lines"


def _legend_buttons(curves: list[Curve]) -> list[LegendButton]:
    """Return a legend button for each label if there are several, and one for member lines."""
    groups, curves_by_label = legend_groups(curves), {curve.label: curve for curve in curves}
    buttons = [
        LegendButton(groups[label], label, curve.color, CSS_LINE_STYLES[curve.line_style])
        for label, curve in curves_by_label.items()
    ]
    has_members = any(1 < len(curve.members) <= MAX_MEMBERS for curve in curves)
    member_button = [LegendButton(MEMBER_GROUP, "each member", "#999999")] if has_members else []
    return (buttons if len(buttons) > 1 else []) + member_button


def _join_axis_labels(curves: list[Curve]) -> str:
    return " or ".join(dict.fromkeys(curve.run.axis for curve in curves))


def _return_charts(curves: list[Curve]) -> list[Chart]:
    """Return charts of the evaluation return, the secondary metric, and returns within trials."""
    groups, axis = legend_groups(curves), _join_axis_labels(curves)
    metric, charts = curve_estimates.secondary_metric(curves), []
    if any(curve.run.eval_step.size for curve in curves):
        estimates = curve_estimates.estimate_evaluation_returns(curves)
        traces = _band_traces(estimates, groups)
        for curve in curves:
            values = curve.run.returns[:, curve.members].mean(axis=2)
            traces += _member_traces(curve, curve.run.eval_step, values, groups)
        traces += [_line_trace(estimate, groups, "lines+markers") for estimate in estimates]
        charts.append(_curve_chart("Evaluation return", traces, estimates, axis, 380))
    if any(has_metric(curve.run, metric) for curve in curves):
        estimates = curve_estimates.estimate_secondary_metric(curves)
        traces = _band_traces(estimates, groups)
        for curve in curves:
            values = training_metric(curve, metric)
            traces += _member_traces(curve, curve.run.step, values, groups)
        traces += [_line_trace(estimate, groups) for estimate in estimates]
        title = metric_title(metric)
        title = title.capitalize() if title.islower() else title
        charts.append(_curve_chart(title, traces, estimates, axis, 300))
    if any(curve.run.trials.size for curve in curves):
        charts.append(_adaptation_chart(curves, groups))
    return [chart._replace(is_wide=True) for chart in charts]


def _metric_charts(curves: list[Curve]) -> tuple[list[SectionPart], list[str]]:
    """Return small charts under the headings of `SECTION_TITLES`, and notes on omitted charts."""
    groups, axis = legend_groups(curves), _join_axis_labels(curves)
    run, is_single = curves[0].run, len({curve.run.folder for curve in curves}) == 1
    elsewhere = (
        [f"evolve/{name}" for name in run.spec.evolve]
        if is_single and curve_estimates.read_evolution(run)
        else []
    )
    names = curve_estimates.select_panel_metrics(curves, elsewhere)
    unit = get_algorithm_entry(run.spec.algorithm).unit
    charts_by_section = dict[str, list[Chart]]()
    for name in names[:MAX_PANELS]:
        estimates = curve_estimates.estimate_metric(curves, name)
        lines = [_line_trace(estimate, groups) for estimate in estimates]
        traces = [*_band_traces(estimates, groups), *lines]
        chart = _curve_chart(metric_title(name, unit), traces, estimates, axis, 210)
        if curve_estimates.should_use_log_scale([estimate.middle for estimate in estimates]):
            is_large = min(estimate.middle.min() for estimate in estimates) >= 1
            chart.layout["yaxis"] = {"type": "log", **({"tickformat": "~s"} if is_large else {})}
        is_evaluated = any(name in curve.run.eval_metrics for curve in curves)
        section = "eval" if is_evaluated else add_section_prefix(name).partition("/")[0]
        charts_by_section.setdefault(section, []).append(chart)
    parts = list[SectionPart]()
    for section, title in SECTION_TITLES.items():
        if section in charts_by_section:
            parts += [heading_html(title), charts_by_section[section]]
    omitted = names[MAX_PANELS:]
    return parts, [f"not drawn for lack of space: {', '.join(omitted)}"] if omitted else []


def _curve_chart(
    title: str,
    traces: list[PlotlyValues],
    estimates: list[curve_estimates.CurveEstimate],
    axis: str,
    height: int,
) -> Chart:
    """Return a chart of traces. If estimates are large, vertical tick labels have SI prefixes."""
    largest = max((np.abs(estimate.middle).max() for estimate in estimates), default=0.0)
    layout: PlotlyValues = {
        "xaxis": {"title": {"text": escape_html(axis)}},
        "yaxis": {"exponentformat": "B"} if largest >= 1e4 else {},
    }
    if marks := _phase_marks([estimate.curve for estimate in estimates]):
        layout["shapes"] = marks
    return Chart(title, traces, layout, height=height)


def _phase_marks(curves: list[Curve]) -> list[PlotlyValues]:
    """Return a dotted vertical line at each step at which a resume changed settings."""
    line = {"color": "#888888", "width": 1, "dash": "dot"}
    return [
        {"type": "line", "x0": step, "x1": step, "yref": "paper", "y0": 0, "y1": 1, "line": line}
        for step in phase_steps(curves)
    ]


def _line_trace(
    estimate: curve_estimates.CurveEstimate, groups: dict[str, str], mode: str = ""
) -> PlotlyValues:
    """Return the plotly trace of an estimate: a line, or a single point with error bars."""
    curve, is_point = estimate.curve, len(estimate.x) == 1
    trace: PlotlyValues = {
        "type": "scatter",
        "mode": mode or ("markers" if is_point else "lines"),
        "x": to_json_numbers(estimate.x),
        "y": to_json_numbers(estimate.middle),
        "name": escape_html(curve.label),
        "line": {
            "color": curve.color,
            "dash": PLOTLY_DASHES[curve.line_style],
            "width": 2.2 if estimate.has_episodes else 1.7,
        },
        "marker": {"size": 5, "color": curve.color},
        "meta": [groups[curve.label]],
    }
    if is_point and np.isfinite(estimate.low).all():
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": to_json_numbers(estimate.high - estimate.middle),
            "arrayminus": to_json_numbers(estimate.middle - estimate.low),
        }
    return trace


def _band_traces(
    estimates: list[curve_estimates.CurveEstimate], groups: dict[str, str]
) -> list[PlotlyValues]:
    """Return a plotly trace of the band of each estimate that has an interval."""
    return [
        _band_trace(estimate, groups)
        for estimate in estimates
        if len(estimate.x) > 1 and np.any(estimate.high > estimate.low)
    ]


def _band_trace(estimate: curve_estimates.CurveEstimate, groups: dict[str, str]) -> PlotlyValues:
    """Return a plotly trace that fills the area between the lower and upper end of a band."""
    from matplotlib.colors import to_rgb

    is_finite = np.isfinite(estimate.low) & np.isfinite(estimate.high)
    x, low, high = (part[is_finite] for part in (estimate.x, estimate.low, estimate.high))
    rgb = ",".join(str(round(255 * level)) for level in to_rgb(estimate.curve.color))
    return {
        "type": "scatter",
        "mode": "lines",
        "x": to_json_numbers(np.concatenate([x, x[::-1]])),
        "y": to_json_numbers(np.concatenate([high, low[::-1]])),
        "fill": "toself",
        "fillcolor": f"rgba({rgb},0.18)",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "meta": [groups[estimate.curve.label]],
    }


def _member_traces(
    curve: Curve, steps: np.ndarray, values: np.ndarray, groups: dict[str, str]
) -> list[PlotlyValues]:
    """Return one thin line per member from values `[K, p]`.

    The list is empty for a single member, for more than `MAX_MEMBERS` members, and for a metric
    with one value for all members.
    """
    if not 1 < len(curve.members) <= MAX_MEMBERS or values.shape[1] != len(curve.members):
        return []
    settings = curve.run.spec.members()
    if len(settings) != curve.run.size:  # merged runs
        settings = [{}] * curve.run.size
    traces = []
    for index, member in enumerate(curve.members.tolist()):
        is_finite = np.isfinite(values[:, index])
        name = ", ".join(f"{name} {value:g}" for name, value in settings[member].items())
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "line": {"color": curve.color, "width": 0.8},
                "opacity": 0.4,
                "meta": [groups[curve.label], MEMBER_GROUP],
                "x": to_json_numbers(steps[is_finite]),
                "y": to_json_numbers(values[is_finite, index]),
                "name": escape_html(name or f"member {member}"),
            }
        )
    return traces


def _adaptation_chart(curves: list[Curve], groups: dict[str, str]) -> Chart:
    """Return a chart of the returns of successive episodes within trials at the last evaluation.

    For a single curve, earlier evaluations are added in lighter colors.
    """
    is_single = len(curves) == 1
    traces = [
        trace
        for curve in curves
        if curve.run.trials.size
        for trace in _adaptation_traces(curve, groups, shows_earlier=is_single)
    ]
    layout = {"xaxis": {"title": {"text": "episode of the trial"}, "dtick": 1}, "yaxis": {}}
    note = curve_estimates.describe_adaptation(curves, shows_earlier=is_single)
    return Chart("Return of the episode within a trial", traces, layout, note, 300)


def _adaptation_traces(
    curve: Curve, groups: dict[str, str], shows_earlier: bool
) -> list[PlotlyValues]:
    """Return plotly traces of episode returns within trials. The last evaluation is on top."""
    trials = curve.run.trials[:, curve.members].transpose(0, 3, 1, 2)  # [K, E, p, N]
    episodes, last = np.arange(1, trials.shape[1] + 1), len(trials) - 1
    earlier = curve_estimates.earlier_evaluations(len(trials)) if shows_earlier else []
    traces = []
    for index in (*earlier, last):
        is_last = index == last
        estimator = (
            curve_estimates.select_estimator(curve)
            if is_last
            else intervals.estimate_without_interval
        )
        estimate = curve_estimates.estimate_curve(curve, episodes, trials[index], estimator)
        if estimate is None:
            continue
        line = _line_trace(estimate, groups, "lines+markers")
        step = format_count(float(curve.run.eval_step[index]))
        line["name"] = f"{line['name']}, step {step}"
        line["opacity"] = 1.0 if is_last else 0.25 + 0.45 * (index + 1) / len(trials)
        traces += [_band_trace(estimate, groups), line] if is_last else [line]
    return traces
