"""Overview figure of runs: returns at the top, and small panels of all logged metrics below."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rollax.training.spec import get_algorithm_entry
from rollax.visualization.plots import curve_estimates, intervals, lineage_chart
from rollax.visualization.plots.learning_curves import (
    Curve,
    has_metric,
    metric_title,
    phase_steps,
)
from rollax.visualization.plots.style import escape_mathtext, format_count, set_step_ticks

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

MAX_PANELS = 20
NUM_PANEL_COLUMNS = 4
NOTE_COLOR = "#555555"
# Width of the figure in inches: alone, and with the panel of adaptation within trials.
WIDTH, WIDTH_WITH_TRIALS = 10, 13
RETURNS_HEIGHT = 6.0  # inches


def draw_overview(figure: "matplotlib.figure.Figure", curves: list[Curve]) -> list[str]:
    """Draw the overview of runs with a legend.

    Args:
        figure: Empty matplotlib figure.
        curves: Curves to draw.

    Returns:
        Caption notes on omitted panels and excluded values.
    """
    environments = list(dict.fromkeys(curve.run.spec.environment for curve in curves))
    if len(environments) > 1:
        _draw_multiple_environments(figure, curves, environments)
        notes = []
    else:
        notes = _draw_single_environment(figure, curves)
    draw_legend(figure, curves)
    return [
        *notes,
        *(f"values left out: {text}" for text in curve_estimates.describe_exclusions(curves)),
    ]


def _draw_single_environment(figure: "matplotlib.figure.Figure", curves: list[Curve]) -> list[str]:
    """Draw returns, small panels of metrics and, for a single evolved run, its settings."""
    run, is_single = curves[0].run, len({curve.run.folder for curve in curves}) == 1
    evolution = curve_estimates.read_evolution(run) if is_single else None
    drawn_elsewhere = [f"evolve/{name}" for name in run.spec.evolve] if evolution else []
    metrics = curve_estimates.select_panel_metrics(curves, drawn_elsewhere)
    drawn_metrics, omitted = metrics[:MAX_PANELS], metrics[MAX_PANELS:]
    num_rows = -(-len(drawn_metrics) // NUM_PANEL_COLUMNS)
    has_trials = _has_trials(curves)
    heights = [RETURNS_HEIGHT, max(1.9 * num_rows, 0.01)]
    if evolution:
        heights.append(2.1 * lineage_chart.num_panel_rows(evolution.ranges) + 0.2)
    figure.set_size_inches(WIDTH_WITH_TRIALS if has_trials else WIDTH, 0.4 + sum(heights))
    parts = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)
    top, middle, *bottom = parts[:, 0]
    if has_trials:
        top, adaptation = top.subfigures(1, 2, width_ratios=(8, 5))
        _draw_adaptation(adaptation.subplots(), curves, is_wide=True)
    _draw_returns(top, curves, is_wide=True)
    if drawn_metrics:
        axes = middle.subplots(num_rows, NUM_PANEL_COLUMNS, squeeze=False).ravel()
        _draw_panels(axes, curves, drawn_metrics)
    if evolution:
        lineage_chart.draw_lineage(
            bottom[0],
            evolution.history,
            evolution.ranges,
            evolution.last_step,
            evolution.best_member,
            format_axis=_format_small_axis,
        )
    figure.suptitle(
        f"{_join_algorithm_names(curves)} on {run.spec.environment}",
        fontsize=12,
        fontweight="bold",
    )
    if not omitted:
        return []
    return [
        f"not drawn for lack of space: {', '.join(omitted)}; "
        "--only NAME... draws the metrics it names"
    ]


def _draw_panels(
    axes: "Sequence[matplotlib.axes.Axes]", curves: list[Curve], metrics: list[str]
) -> None:
    """Draw one metric per panel and hide the unused panels."""
    for axis, name in zip(axes, metrics, strict=False):
        _draw_panel(axis, curves, name)
    for axis in axes[len(metrics) :]:
        axis.set_visible(False)


def _draw_multiple_environments(
    figure: "matplotlib.figure.Figure", curves: list[Curve], environments: list[str]
) -> None:
    """Draw only returns, with one panel per environment, because their scales differ."""
    columns = min(len(environments), 4)
    rows = -(-len(environments) // columns)
    has_trials = _has_trials(curves)
    figure.set_size_inches(3.6 * columns + 1, (7.6 if has_trials else 5.2) * rows + 0.6)
    figure.suptitle(_join_algorithm_names(curves), fontsize=12, fontweight="bold")
    subfigures = np.ravel(figure.subfigures(rows, columns, squeeze=False))
    for subfigure, environment in zip(subfigures, environments, strict=False):
        group = [curve for curve in curves if curve.run.spec.environment == environment]
        subfigure.suptitle(environment, fontsize=11, fontweight="bold")
        if has_trials:
            subfigure, adaptation = subfigure.subfigures(2, 1, height_ratios=(5.2, 2.4))
            if _has_trials(group):
                _draw_adaptation(adaptation.subplots(), group, is_wide=False)
        _draw_returns(subfigure, group, is_wide=False)


def _join_algorithm_names(curves: list[Curve]) -> str:
    return ", ".join(dict.fromkeys(curve.run.spec.algorithm for curve in curves))


def _draw_returns(
    figure: "matplotlib.figure.SubFigure", curves: list[Curve], is_wide: bool
) -> None:
    """Draw the evaluation return and, below it, the secondary metric.

    A panel without values is omitted.
    """
    metric = curve_estimates.secondary_metric(curves)
    has_metrics = any(has_metric(curve.run, metric) for curve in curves)
    has_evaluations = any(curve.run.eval_step.size for curve in curves) or not has_metrics
    number = has_evaluations + has_metrics
    axes = figure.subplots(number, 1, height_ratios=(3, 2)[:number], sharex=True, squeeze=False)
    top, bottom = axes[0, 0], axes[-1, 0]
    if has_evaluations:
        for estimate in curve_estimates.estimate_evaluation_returns(curves):
            _draw_line(top, estimate, "o")
        top.set_ylabel("evaluation return")
        _format_axis(top, "nothing to draw yet")
        _mark_phases(top, curves)
    if has_metrics:
        for estimate in curve_estimates.estimate_secondary_metric(curves):
            _draw_line(bottom, estimate)
        bottom.set_ylabel(metric_title(metric))
        _format_axis(bottom, "nothing to draw yet")
        _mark_phases(bottom, curves)
    _draw_note(top, curve_estimates.describe_lines(curves), 110 if is_wide else 52)
    bottom.set_xlabel(" or ".join(dict.fromkeys(curve.run.axis for curve in curves)))


def _draw_note(axis: "matplotlib.axes.Axes", text: str, width: int) -> None:
    """Draw a note above matplotlib axes, wrapped at `width` characters."""
    axis.set_title(textwrap.fill(text, width), fontsize=8, color=NOTE_COLOR, loc="left")


def _has_trials(curves: list[Curve]) -> bool:
    return any(curve.run.trials.size > 0 for curve in curves)


def _draw_adaptation(axis: "matplotlib.axes.Axes", curves: list[Curve], is_wide: bool) -> None:
    """Draw the returns of successive episodes within trials at the last evaluation.

    For a single curve in a wide figure, earlier evaluations are added in lighter colors.
    """
    shows_earlier = is_wide and len(curves) == 1
    for curve in curves:
        _draw_trials(axis, curve, shows_earlier)
    note = curve_estimates.describe_adaptation(curves, shows_earlier)
    _draw_note(axis, note, 80 if is_wide else 52)
    axis.set_xlabel("episode of the trial")
    axis.set_ylabel("return of the episode")
    _format_axis(axis, "no trials")
    num_episodes = max(curve.run.trials.shape[-1] for curve in curves)
    axis.set_xticks(range(1, num_episodes + 1, max(1, -(-num_episodes // 8))))
    if shows_earlier and axis.lines:
        axis.legend(
            title=textwrap.fill(curves[0].run.axis, 14),
            fontsize=8,
            title_fontsize=8,
            reverse=True,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
        )


def _draw_trials(axis: "matplotlib.axes.Axes", curve: Curve, shows_earlier: bool) -> None:
    """Draw episode returns within trials at the last evaluation, and optionally at earlier ones."""
    trials = curve.run.trials[:, curve.members].transpose(0, 3, 1, 2)  # [K, E, p, N]
    if not trials.size:
        return
    episodes = np.arange(1, trials.shape[1] + 1)
    labels = [format_count(float(f"{step:.3g}")) for step in curve.run.eval_step]
    earlier = curve_estimates.earlier_evaluations(len(trials)) if shows_earlier else []
    for index in earlier:
        if labels[index] == labels[-1]:  # the legend would list it like the last evaluation
            continue
        share = 0.25 + 0.45 * (index + 1) / len(trials)
        estimate = curve_estimates.estimate_curve(
            curve._replace(color=_lighten_color(curve.color, share)),
            episodes,
            trials[index],
            intervals.estimate_without_interval,
        )
        _draw_line(axis, estimate, label=labels[index])
    last = curve_estimates.estimate_curve(
        curve, episodes, trials[-1], curve_estimates.select_estimator(curve)
    )
    _draw_line(axis, last, "o", labels[-1])


def _lighten_color(color: str, share: float) -> str:
    """Return a blend of white and a color. `share` is the weight of the color, from 0 to 1."""
    from matplotlib.colors import to_hex, to_rgb

    red, green, blue = (1 - share * (1 - level) for level in to_rgb(color))
    return to_hex((red, green, blue))


def _draw_panel(axis: "matplotlib.axes.Axes", curves: list[Curve], name: str) -> None:
    estimates = curve_estimates.estimate_metric(curves, name)
    for estimate in estimates:
        _draw_line(axis, estimate)
    unit = get_algorithm_entry(curves[0].run.spec.algorithm).unit
    axis.set_title(escape_mathtext(metric_title(name, unit)), loc="left", fontsize=9)
    if curve_estimates.should_use_log_scale([estimate.middle for estimate in estimates]):
        axis.set_yscale("log")
        # The default formatter writes formulas, which the style does not render.
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.yaxis.set_minor_formatter(lambda value, _: "")
    _format_small_axis(axis, "no finite values", is_count=name == "steps_per_second")
    _mark_phases(axis, curves)


def _mark_phases(axis: "matplotlib.axes.Axes", curves: list[Curve]) -> None:
    """Draw a vertical line at each step at which a resume changed settings."""
    for step in phase_steps(curves):
        axis.axvline(step, color=NOTE_COLOR, linewidth=0.7, linestyle=":", zorder=1)


def _draw_line(
    axis: "matplotlib.axes.Axes",
    estimate: curve_estimates.CurveEstimate | None,
    marker: str = "",
    label: str | None = None,
) -> None:
    """Draw the line and band of an estimate. Do nothing if it is None."""
    if estimate is None:
        return
    curve, x, low, high = estimate.curve, estimate.x, estimate.low, estimate.high
    is_point = len(x) == 1
    axis.plot(
        x,
        estimate.middle,
        curve.line_style,
        color=curve.color,
        linewidth=1.8 if estimate.has_episodes else 1.2,
        marker=marker or ("o" if is_point else ""),
        markersize=3.5,
        zorder=3,
        label=label,
    )
    if is_point:
        axis.vlines(x, low, high, color=curve.color, alpha=0.5, linewidth=2)
    elif np.any(high > low):
        axis.fill_between(x, low, high, color=curve.color, alpha=0.18, linewidth=0)


def _format_axis(axis: "matplotlib.axes.Axes", empty_text: str, num_ticks: int = 7) -> None:
    """Set readable ticks, and show `empty_text` on axes without lines."""
    set_step_ticks(axis, num_ticks)
    if not axis.lines:
        axis.text(
            0.5,
            0.5,
            empty_text,
            transform=axis.transAxes,
            ha="center",
            va="center",
            color="#888888",
        )
        axis.set_yticks([])


def _format_small_axis(
    axis: "matplotlib.axes.Axes", empty_text: str = "", is_count: bool = False
) -> None:
    """Format the axes of a small panel. If `is_count` is True, ticks are written like 10k."""
    _format_axis(axis, empty_text, num_ticks=4)
    if not axis.lines:
        return
    axis.tick_params(labelsize=7)
    if is_count:
        axis.yaxis.set_major_formatter(lambda value, _: format_count(value))
    elif axis.get_yscale() == "linear":
        axis.ticklabel_format(axis="y", scilimits=(-3, 4))
    axis.yaxis.get_offset_text().set_fontsize(7)


def draw_legend(figure: "matplotlib.figure.Figure", curves: list[Curve]) -> None:
    """Draw one legend below all panels if the curves have more than one label.

    Args:
        figure: Matplotlib figure.
        curves: Curves of the figure.
    """
    from matplotlib.lines import Line2D

    curves_by_label = {curve.label: curve for curve in curves}
    if len(curves_by_label) < 2:
        return
    handles = [
        Line2D([], [], color=curve.color, linestyle=curve.line_style, linewidth=2)
        for curve in curves_by_label.values()
    ]
    num_characters = 11 * figure.get_size_inches()[0]
    longest = max(map(len, curves_by_label))
    num_columns = min(len(curves_by_label), 5, int(num_characters / (longest + 6)))
    figure.legend(
        handles, list(curves_by_label), loc="outside lower center", ncols=max(1, num_columns)
    )
