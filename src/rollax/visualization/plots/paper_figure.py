"""Figures in print size: one panel per metric and environment, with tables of the values."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollax.training.spec import get_algorithm_entry
from rollax.visualization.plots import algorithm_comparison
from rollax.visualization.plots.algorithm_comparison import format_csv_numbers, quote_csv
from rollax.visualization.plots.curve_estimates import (
    PanelLine,
    count_independent_seeds,
    describe_exclusions,
    describe_missing_intervals,
    estimate_lines,
)
from rollax.visualization.plots.figure_options import FigureOptions
from rollax.visualization.plots.labels import short_environment_names
from rollax.visualization.plots.learning_curves import (
    RETURN_METRIC,
    Curve,
    metric_series,
    metric_title,
)
from rollax.visualization.plots.overview import draw_legend
from rollax.visualization.plots.style import escape_mathtext, set_step_ticks

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

FIGURE_WIDTHS = {1: 3.3, 2: 6.9}  # inches, for one or two columns of a page
MAX_PANELS_PER_ROW = {1: 2, 2: 4}
PANEL_ASPECT, LEGEND_HEIGHT = 0.72, 0.3  # height / width; inches


class PaperFigure(NamedTuple):
    """Tables and notes of a figure.

    Attributes:
        tables: CSV tables, keyed by the ending that is appended to the stem of the figure's file
            name.
        notes: Notes for the caption.
    """

    tables: dict[str, bytes]
    notes: list[str]


class _Panel(NamedTuple):
    """Panel of one metric in one environment."""

    metric: str
    environment: str
    lines: list[PanelLine]


def draw_paper_figure(
    figure: "matplotlib.figure.Figure", curves: list[Curve], options: FigureOptions
) -> PaperFigure:
    """Draw the selected metrics and, with `aggregate`, the comparison of algorithms.

    Args:
        figure: Empty matplotlib figure.
        curves: Curves to draw.
        options: Content and layout.

    Returns:
        CSV tables of the drawn values, and notes for the caption.
    """
    lines, columns = estimate_lines(curves, options.only), options.columns or 2
    has_curves = bool(options.only or not options.aggregate)
    panels = _group_panels(lines) if has_curves else []
    panels_per_row = _num_panels_per_row(panels, columns)
    width = FIGURE_WIDTHS[columns]
    min_panels = 1.6 if columns == 1 else 2.4  # a single panel does not fill the width
    row_height = width / max(panels_per_row, min_panels) * PANEL_ASPECT + 0.12
    panels_height = -(-len(panels) // panels_per_row) * row_height
    scores = (
        algorithm_comparison.normalize_scores(lines, options.normalize)
        if options.aggregate
        else None
    )
    scores_height = algorithm_comparison.panels_height(scores, columns) if scores else 0.0
    has_legend = len({line.curve.label for line in lines}) > 1
    figure.set_size_inches(width, panels_height + scores_height + LEGEND_HEIGHT * has_legend)
    subfigures = [figure]
    if panels and scores:
        heights = (panels_height, scores_height)
        subfigures = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)[:, 0]
    if panels:
        _draw_panels(subfigures[0], panels, panels_per_row)
    tables, notes = make_csv_tables(lines), _describe_lines(lines, options.smooth)
    if scores:
        comparison = algorithm_comparison.draw_comparison(subfigures[-1], scores, columns)
        tables |= comparison.tables
        notes = (notes if has_curves else []) + comparison.notes
    draw_legend(figure, [line.curve for line in lines])
    omitted = _describe_omitted_points(curves, options.only or (RETURN_METRIC,))
    return PaperFigure(tables, [*notes, *omitted])


def _group_panels(lines: list[PanelLine]) -> list[_Panel]:
    """Group lines into panels: one row per metric and one column per environment."""
    environments = dict.fromkeys(line.environment for line in lines)
    metrics = dict.fromkeys(line.metric for line in lines)
    return [
        _Panel(
            metric,
            environment,
            [line for line in lines if (line.metric, line.environment) == (metric, environment)],
        )
        for metric in metrics
        for environment in environments
    ]


def _num_panels_per_row(panels: list[_Panel], columns: int) -> int:
    """Return the number of panels in a row, at most `MAX_PANELS_PER_ROW`."""
    num_environments = len({panel.environment for panel in panels})
    number = num_environments if num_environments > 1 else len(panels)
    return max(1, min(number, MAX_PANELS_PER_ROW[columns]))


def _draw_panels(
    figure: "matplotlib.figure.Figure | matplotlib.figure.SubFigure",
    panels: list[_Panel],
    panels_per_row: int,
) -> None:
    """Draw the panels row by row and hide the unused axes."""
    num_rows = -(-len(panels) // panels_per_row)
    axes = figure.subplots(num_rows, panels_per_row, squeeze=False).ravel()
    short_names = short_environment_names([panel.environment for panel in panels])
    has_several_environments = len(short_names) > 1
    has_several_metrics = len({panel.metric for panel in panels}) > 1
    # One column per environment and one row per metric.
    is_grid = has_several_environments and panels_per_row == len(short_names)
    for index, (axis, panel) in enumerate(zip(axes, panels, strict=False)):
        for line in panel.lines:
            draw_line(axis, line)
        if has_several_environments and (not is_grid or index < panels_per_row):
            axis.set_title(short_names[panel.environment])
        if index % panels_per_row == 0 or (has_several_metrics and not is_grid):
            axis.set_ylabel(_panel_title(panel))
        if panel.lines and index >= len(panels) - panels_per_row:
            labels = dict.fromkeys(line.curve.run.axis for line in panel.lines)
            axis.set_xlabel(" or ".join(labels))
        set_step_ticks(axis, 4)
        axis.set_visible(bool(panel.lines))
    for axis in axes[len(panels) :]:
        axis.set_visible(False)


def _panel_title(panel: _Panel) -> str:
    units = {get_algorithm_entry(line.curve.run.spec.algorithm).unit for line in panel.lines}
    return escape_mathtext(metric_title(panel.metric, " or ".join(sorted(units))))


def draw_line(axis: "matplotlib.axes.Axes", line: PanelLine) -> None:
    """Draw a line and, if it has an interval, its band."""
    curve = line.curve
    axis.plot(
        line.x,
        line.middle,
        curve.line_style,
        color=curve.color,
        linewidth=1.2,
        marker="o" if line.x.size == 1 else "",
        markersize=2.5,
        zorder=3,
    )
    if np.isfinite(line.low).any():
        axis.fill_between(line.x, line.low, line.high, color=curve.color, alpha=0.18, linewidth=0)


def _describe_lines(lines: list[PanelLine], smooth: int) -> list[str]:
    """Return caption notes that describe lines, bands and missing intervals."""
    numbers = sorted({line.values.shape[1] for line in lines if not line.curve.has_shared_founders})
    several = " or ".join(str(number) for number in numbers if number > 1)
    description = (
        "lines: one seed, without an interval"
        if numbers
        else "lines: interquartile mean over members"
    )
    if several:
        description = (
            f"lines: interquartile mean over {several} seeds; "
            "bands: its 95 % bootstrap interval over seeds"
        )
    description += f"; each point is the mean of the {smooth} around it" if smooth > 1 else ""
    # The description already states that there is no interval if every line has one seed.
    curves = [line.curve for line in lines if several or line.curve.has_shared_founders]
    return [description, *describe_missing_intervals(curves)]


def _describe_omitted_points(curves: list[Curve], names: tuple[str, ...]) -> list[str]:
    """Return caption notes on omitted points, and on means that exclude episodes.

    A point of several seeds is omitted if the value of a seed is not finite.
    """
    notes = list[str]()
    for name in names:
        for curve in (curve for curve in curves if len(curve.members) > 1):
            is_finite = np.isfinite(metric_series(curve, name).values)
            count = int(np.sum(is_finite.any(axis=1) & ~is_finite.all(axis=1)))
            if count:
                notes.append(
                    f"{name}: {count} of {len(is_finite)} points left out because not all seeds "
                    f"are finite: {curve.label} on {curve.run.spec.environment}"
                )
    single = [curve for curve in curves if len(curve.members) == 1]
    return notes + [f"values left out: {text}" for text in describe_exclusions(single, names)]


def make_csv_tables(lines: list[PanelLine]) -> dict[str, bytes]:
    """Return the values of all lines as a CSV table, keyed by the file name ending "".

    Args:
        lines: Lines of the figure.
    """
    rows = [",".join(("environment", "metric", "label", "x", "seeds", "iqm", "low", "high"))]
    for line in lines:
        names = [quote_csv(text) for text in (line.environment, line.metric, line.curve.label)]
        for x, *values in zip(line.x.tolist(), line.middle, line.low, line.high, strict=True):
            numbers = [
                f"{x:.12g}",
                str(count_independent_seeds(line.curve)),
                *format_csv_numbers(values),
            ]
            rows.append(",".join([*names, *numbers]))
    return {"": "\n".join([*rows, ""]).encode()}
