"""Charts of archives, Pareto fronts and evolving populations in a report."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rollax.archives.archive import Elites
from rollax.errors import UsageError
from rollax.loading import load
from rollax.policy import Policy
from rollax.training.console.archive_map import compute_block_fitness
from rollax.training.elites import selection
from rollax.training.elites.merging import compare_archives
from rollax.training.evaluation.metrics import format_number
from rollax.visualization.archives import (
    archive_comparison,
    archive_figure,
    cell_charts,
    front_charts,
)
from rollax.visualization.plots import curve_estimates, lineage_chart
from rollax.visualization.plots.learning_curves import RunCurves
from rollax.visualization.report.html_page import (
    Chart,
    PlotlyValues,
    escape_html,
    to_json_numbers,
)

MAX_HOVER_CELLS = 20_000  # more cells have no hover text
MAX_CELLS = 90_000  # more cells are drawn in blocks with the best value of each block
MAX_DOTS, MAX_LARGE_DOTS = 4000, 1200
BLOCK_GRID_SHAPE = 300, 300
CHART_HEIGHT = 430


class ArchiveCharts(NamedTuple):
    """Charts of the archive of a run.

    Attributes:
        policy: Policy of the run, or None if the run has no archive that can be drawn.
        charts: Charts of the archive. Empty if `policy` is None.
    """

    policy: Policy | None
    charts: list[Chart]


def make_archive_charts(folder: Path, notify_fn: Callable[[str], object]) -> ArchiveCharts:
    """Return charts of the archive at the last checkpoint of a run, and of its Pareto fronts.

    Args:
        folder: Run folder.
        notify_fn: Function that receives warnings, and the reason if the archive cannot be drawn.

    Returns:
        The policy and the charts, or None and an empty list if the archive cannot be drawn.
    """
    try:
        if not archive_figure.has_archive(folder):
            return ArchiveCharts(None, [])
        policy = load(folder)
        elites = selection.get_elites(policy)
    except UsageError as error:
        notify_fn(f"The archive is not drawn: {error}")
        return ArchiveCharts(None, [])
    for warning in policy.warnings:
        notify_fn(warning)
    best = selection.best_per_cell(elites)
    layout = cell_charts.make_layout(
        best, archive_figure.grid_shape(policy, best), archive_figure.descriptor_bounds(policy)
    )
    best_fitness = format_number(float(np.max(best.solutions.fitness[best.mask])))
    title = (
        f"{archive_figure.archive_title(policy)}: "
        f"{archive_figure.describe_coverage(policy, best)}, best fitness {best_fitness}"
    ).replace("\n", ", ")
    fitness = np.where(best.mask, best.solutions.fitness, np.nan)
    charts = descriptor_charts(title, best, layout, CellValues("fitness", fitness))
    if selection.objective_names(policy):
        charts += _objective_charts(policy, elites, best, layout)
    return ArchiveCharts(policy, charts)


class CellValues(NamedTuple):
    """One value for each of C archive cells.

    Attributes:
        name: Name of the quantity, such as "fitness".
        values: Values, `[C]`. NaN for empty cells.
    """

    name: str
    values: np.ndarray


def descriptor_charts(
    title: str,
    elites: Elites,
    layout: cell_charts.CellLayout,
    cells: CellValues,
    color_scale: PlotlyValues | None = None,
) -> list[Chart]:
    """Return charts of one value per cell over descriptors.

    Grids are drawn as a heat map. Without a grid, elites are drawn as dots in one chart per pair of
    descriptor dimensions.

    Args:
        title: Title of the charts.
        elites: Elites, one entry per cell. Their descriptors determine positions and hover texts.
        layout: Layout of the cells.
        cells: Values of the cells.
        color_scale: Settings of the plotly color scale that override the defaults.
    """
    scale = {**_color_scale(cells.name), **(color_scale or {})}
    if layout.shape is not None:
        return [_heatmap_chart(title, elites, layout, layout.shape, cells, scale)]
    return _dot_charts(title, elites, layout, cells, scale)


def _color_scale(name: str) -> PlotlyValues:
    """Return plotly settings of the default color scale and its color bar, titled `name`."""
    colorbar = {"title": {"text": escape_html(name)}, "thickness": 12}
    return {"colorscale": "Viridis", "colorbar": colorbar}


def _dot_charts(
    title: str,
    elites: Elites,
    layout: cell_charts.CellLayout,
    cells: CellValues,
    scale: PlotlyValues,
) -> list[Chart]:
    """Return charts of elites as dots, one chart per pair of descriptor dimensions."""
    name, values = cells
    order = np.flatnonzero(np.isfinite(values))
    order = order[np.argsort(values[order], kind="stable")]  # the highest on top
    note = f"{len(order):,} dots"
    if len(order) > MAX_DOTS:
        note = f"{MAX_DOTS:,} of {len(order):,} elites, evenly spaced in the order of {name}"
        order = order[np.linspace(0, len(order) - 1, MAX_DOTS).round().astype(int)]
    descriptors = np.asarray(elites.solutions.descriptor)[order]
    dots: PlotlyValues = {
        "type": "scatter",
        "mode": "markers",
        "text": [
            _hover_text(descriptor, name, value)
            for descriptor, value in zip(descriptors, values[order], strict=True)
        ],
        "hoverinfo": "text",
        "marker": {
            "color": to_json_numbers(values[order]),
            "size": 8 if len(order) <= MAX_LARGE_DOTS else 5,
            **scale,
        },
    }

    def make_chart(x: int, y: np.ndarray, y_axis: PlotlyValues) -> Chart:
        trace = {**dots, "x": to_json_numbers(descriptors[:, x]), "y": to_json_numbers(y)}
        axes = {"xaxis": _descriptor_axis(layout, x), "yaxis": y_axis}
        return Chart(title, [trace], axes, note, CHART_HEIGHT)

    dimensions = descriptors.shape[1]
    if dimensions == 1:
        return [make_chart(0, values[order], {"title": {"text": escape_html(name)}})]
    first_dimensions = [min(first, dimensions - 2) for first in range(0, dimensions, 2)]
    return [
        make_chart(first, descriptors[:, first + 1], _descriptor_axis(layout, first + 1))
        for first in first_dimensions
    ]


def _descriptor_axis(layout: cell_charts.CellLayout, dimension: int) -> PlotlyValues:
    low, high = float(layout.low[dimension]), float(layout.high[dimension])
    margin = 0.02 * (high - low)
    return {
        "title": {"text": f"descriptor {dimension}"},
        "range": [low - margin, high + margin],
        "showgrid": False,
    }


def _hover_text(descriptor: np.ndarray, name: str, value: float) -> str:
    return (
        f"{escape_html(name)} {value:.5g}<br>descriptor {', '.join(f'{x:.4g}' for x in descriptor)}"
    )


def _heatmap_chart(
    title: str,
    elites: Elites,
    layout: cell_charts.CellLayout,
    shape: tuple[int, ...],
    cells: CellValues,
    scale: PlotlyValues,
) -> Chart:
    """Return a heat map over one or two descriptor dimensions, or a nested heat map for more."""
    values, note = cells.values, ""
    is_plane = len(shape) <= 2
    image = cell_charts.grid_image(shape, values)
    if len(values) > MAX_CELLS and is_plane:
        image = _block_image(elites, layout, shape, values)
        note = "each dot shows the best of several cells"
    trace: PlotlyValues = {
        "type": "heatmap",
        "z": to_json_numbers(image),
        "hoverongaps": False,
        **scale,
    }
    if len(values) == len(elites.mask) and len(values) <= min(MAX_HOVER_CELLS, MAX_CELLS):
        texts = [
            _cell_hover_text(shape, cell, elites, cells.name, value)
            for cell, value in enumerate(values)
        ]
        text_image = cell_charts.grid_image(shape, np.array(texts, object))
        trace |= {"text": text_image.tolist(), "hoverinfo": "text"}
    if is_plane:
        trace |= _cell_positions(layout, shape, image)
        axes, height = _plane_axes(layout, shape), CHART_HEIGHT if len(shape) == 2 else 240
    else:
        axes, height = _nested_axes(shape), CHART_HEIGHT
    axes["plot_bgcolor"] = cell_charts.EMPTY_COLOR
    return Chart(title, [trace], axes, note, height)


def _block_image(
    elites: Elites, layout: cell_charts.CellLayout, shape: tuple[int, ...], values: np.ndarray
) -> np.ndarray:
    """Return an image with the best value of each block of cells."""
    solutions = elites.solutions._replace(fitness=values)
    finite_elites = elites._replace(solutions=solutions, mask=np.isfinite(values))
    return compute_block_fitness(
        finite_elites, (*shape, 1)[:2], layout.low, layout.high, BLOCK_GRID_SHAPE
    )


def _cell_positions(
    layout: cell_charts.CellLayout, shape: tuple[int, ...], image: np.ndarray
) -> PlotlyValues:
    """Return the column and row centers of an image in descriptor units, keyed by "x" and "y"."""

    def centers(dimension: int, num_cells: int) -> list[float]:
        is_descriptor = dimension < len(shape)
        low = layout.low[dimension] if is_descriptor else 0.0
        high = layout.high[dimension] if is_descriptor else 1.0
        return to_json_numbers(low + (np.arange(num_cells) + 0.5) / num_cells * (high - low))

    height, width = image.shape
    return {"x": centers(0, width), "y": centers(1, height)}


def _plane_axes(layout: cell_charts.CellLayout, shape: tuple[int, ...]) -> PlotlyValues:
    hidden_axis = {"showticklabels": False, "showgrid": False}
    y_axis = _descriptor_axis(layout, 1) if len(shape) == 2 else hidden_axis
    return {"xaxis": _descriptor_axis(layout, 0), "yaxis": y_axis}


def _nested_axes(shape: tuple[int, ...]) -> PlotlyValues:
    horizontal, vertical = cell_charts.nested_axis_labels(shape)
    hidden = {"showticklabels": False, "showgrid": False}
    return {
        "xaxis": {"title": {"text": horizontal}, **hidden},
        "yaxis": {"title": {"text": vertical}, **hidden},
    }


def _cell_hover_text(
    shape: tuple[int, ...], cell: int, elites: Elites, name: str, value: float
) -> str:
    if not np.isfinite(value):
        return ""
    index = " ".join(str(int(i)) for i in np.unravel_index(cell, shape))
    descriptor = np.asarray(elites.solutions.descriptor[cell])
    return f"{_hover_text(descriptor, name, value)}<br>cell {index}"


def _objective_charts(
    policy: Policy, elites: Elites, best: Elites, layout: cell_charts.CellLayout
) -> list[Chart]:
    """Return charts of the first two objectives of all elites and of hypervolumes per cell."""
    volumes = front_charts.cell_hypervolumes(elites, selection.archive_settings(policy).reference)
    volume_charts = descriptor_charts(
        f"Hypervolume of the front, MOQD score {np.nansum(volumes):.5g}",
        best,
        layout,
        CellValues("hypervolume", volumes),
    )
    return [_front_chart(policy, elites, volumes), *volume_charts]


def _front_chart(policy: Policy, elites: Elites, volumes: np.ndarray) -> Chart:
    """Return a chart of the first two objectives of all elites with their Pareto front."""
    names = selection.archive_settings(policy).objectives
    indices = np.flatnonzero(elites.mask)
    objectives = np.asarray(elites.solutions.extras)[indices]
    drawn_positions = (
        np.linspace(0, len(indices) - 1, min(len(indices), MAX_DOTS)).round().astype(int)
    )
    second = 1 % objectives.shape[1]
    cells = indices[drawn_positions] // int(elites.num_per_cell)
    traces: list[PlotlyValues] = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": to_json_numbers(objectives[drawn_positions, 0]),
            "y": to_json_numbers(objectives[drawn_positions, second]),
            "marker": {
                "color": to_json_numbers(volumes[cells]),
                "size": 5,
                **_color_scale("hypervolume"),
            },
            "name": "elite",
        }
    ]
    if objectives.shape[1] == 2:
        front = front_charts.pareto_front(objectives)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": to_json_numbers(front[:, 0]),
                "y": to_json_numbers(front[:, 1]),
                "line": {"color": "#000000", "width": 1.2, "shape": "vh"},
                "name": "Pareto front",
            }
        )
    note = f"{len(indices):,} elites in {np.isfinite(volumes).sum():,} cells"
    if len(drawn_positions) < len(indices):
        note += f", {len(drawn_positions):,} of them drawn"
    axes = {
        "xaxis": {"title": {"text": escape_html(names[0])}},
        "yaxis": {"title": {"text": escape_html(names[second])}},
    }
    title = "Objectives of all elites with their Pareto front"
    return Chart(title, traces, axes, note, CHART_HEIGHT)


def comparison_charts(
    first: Policy, second: Policy, names: tuple[str, str], notify_fn: Callable[[str], object]
) -> list[Chart]:
    """Return a chart of the fitness difference between two archives.

    Args:
        first: Policy of the first run.
        second: Policy of the second run.
        names: Names of the first and the second run.
        notify_fn: Function that receives the reason if the archives cannot be compared.

    Returns:
        One chart, or an empty list if the archives cannot be compared.
    """
    try:
        comparison = compare_archives(first, second)
    except UsageError as error:
        notify_fn(f"The archives are not compared: {error}")
        return []
    layout = archive_comparison.comparison_layout(first)
    differences = archive_comparison.cell_differences(comparison, layout)
    elites = selection.best_per_cell(selection.get_elites(first))
    if layout.center is not None:  # draw dots at the centers of the cells
        elites = elites._replace(
            solutions=elites.solutions._replace(descriptor=np.asarray(layout.center))
        )
    minimum, maximum = ("cmin", "cmax") if layout.shape is None else ("zmin", "zmax")
    chart, *_ = descriptor_charts(
        f"{names[1]} minus {names[0]}",
        elites,
        layout,
        CellValues("difference", differences.difference),
        {
            "colorscale": archive_comparison.DIFFERENCE_COLORMAP,
            "reversescale": True,
            minimum: -differences.scale,
            maximum: differences.scale,
        },
    )
    description = archive_comparison.describe_comparison(comparison).replace("\n", ", ")
    only_first, only_second = (
        int(np.sum(differences.exclusive == archive_index)) for archive_index in (0.0, 1.0)
    )
    note = (
        f"{description}, cells only in the first: {only_first:,}, only in the second: "
        f"{only_second:,}"
    )
    return [chart._replace(note=note)]


def evolution_charts(run: RunCurves) -> list[Chart]:
    """Return charts of the settings and the fitness of an evolving population.

    Args:
        run: Recorded metrics of the run.

    Returns:
        One chart per evolving setting, and one chart of the fitness. Empty without a valid lineage.
    """
    evolution = curve_estimates.read_evolution(run)
    if evolution is None:
        return []
    history, best = evolution.history, evolution.best_member
    x_axis = {"title": {"text": run.axis}}
    charts = []
    for name, span in evolution.ranges.items():
        segments = lineage_chart.setting_segments(
            history, history.settings[name], evolution.last_step
        )
        charts.append(
            Chart(
                f"{name.replace('_', ' ')} of each member",
                _segment_traces(history, segments, best),
                {"xaxis": x_axis, "yaxis": {"type": span.scale}},
                height=300,
            )
        )
    best_trace = {
        "type": "scatter",
        "mode": "lines",
        "x": to_json_numbers(history.step[1:]),
        "y": to_json_numbers(lineage_chart.ancestor_fitness(history, best)),
        "line": {"color": lineage_chart.BEST_COLOR, "width": 1.6},
        "name": "best",
    }
    member_traces = _segment_traces(history, lineage_chart.fitness_segments(history), best)
    fitness_chart = Chart(
        f"{history.fitness_name.capitalize()}, which selects the members",
        [*member_traces, best_trace],
        {"xaxis": x_axis},
        height=300,
    )
    return [*charts, fitness_chart]


class _SegmentStyle(NamedTuple):
    """Style of lineage segments. Segments with a higher `zorder` are drawn on top."""

    zorder: int
    color: str
    width: float


def _segment_traces(
    history: lineage_chart.LineageHistory, segments: list[lineage_chart.MemberSegment], best: int
) -> list[PlotlyValues]:
    """Return one plotly trace per segment style, in drawing order."""
    colors = lineage_chart.founder_colors(history)
    segments_by_style: dict[_SegmentStyle, list[lineage_chart.MemberSegment]] = {}
    for segment in segments:
        style = lineage_chart.segment_style(segment.descendants, best, colors)
        key = _SegmentStyle(style["zorder"], style["color"], style["linewidth"])
        segments_by_style.setdefault(key, []).append(segment)
    return [
        _segment_trace(style, segments_by_style[style])
        for style in sorted(segments_by_style, key=lambda style: style.zorder)
    ]


def _segment_trace(
    style: _SegmentStyle, segments: list[lineage_chart.MemberSegment]
) -> PlotlyValues:
    """Return a plotly trace of separate line segments, or of points if their length is zero."""
    x: list[float | None] = []
    y: list[float | None] = []
    for segment in segments:
        if segment.parent_value is not None:
            x.append(segment.steps[0])
            y += to_json_numbers([segment.parent_value])
        steps = list(dict.fromkeys(segment.steps))
        x += [*steps, None]
        y += [*to_json_numbers([segment.value] * len(steps)), None]
    has_points = all(segment.steps[0] == segment.steps[1] for segment in segments)
    names = {
        lineage_chart.BEST_COLOR: "best",
        lineage_chart.EXTINCT_COLOR: "without descendants",
    }
    return {
        "type": "scatter",
        "x": x,
        "y": y,
        "mode": "markers" if has_points else "lines",
        **({"marker": {"color": style.color, "size": 5}} if has_points else {}),
        "line": {"color": style.color, "width": style.width},
        "name": names.get(style.color, "ancestors"),
    }
