"""The charts of a report that are of archives, of fronts, and of populations that evolve."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rollax.archives.core import Elites
from rollax.errors import UsageError
from rollax.host import elites
from rollax.host.api import Policy, load
from rollax.host.archive_map import blocks
from rollax.host.evaluation import digits
from rollax.host.merging import compare_archives
from rollax.view import archive, cells, compared, fronts, lineage, lines
from rollax.view.curves import Run
from rollax.view.page import Chart, numbers, text
from rollax.view.report_curves import color

MOST_HOVERED = 20_000  # cells that say which they are
MOST_CELLS = 90_000  # of more the best of blocks of cells is drawn
MOST_DOTS, FEW_DOTS = 4000, 1200
BLOCKS = 300, 300
HIGH = 430


def charts(folder: Path, tell: Callable[[str], object]) -> tuple[Policy | None, list[Chart]]:
    """The archive at the last checkpoint of a run, and its fronts where it has some; nothing of a run without one.

    `tell` is called with warnings, and with why an archive cannot be drawn.
    """
    try:
        if not archive.has_archive(folder):
            return None, []
        policy = load(folder)
        found = elites.of_policy(policy)
    except UsageError as error:
        tell(f"the archive is not drawn: {error}")
        return None, []
    for warning in policy.warnings:
        tell(warning)
    best = elites.best_of_cells(found)
    layout = cells.of_elites(best, archive.shape_of(policy, best), archive.bounds_of(policy))
    top = digits(float(np.max(best.scored.fitness[best.mask])))
    title = f"{archive.title_of(policy)}: {archive.filled(policy, best)}, best fitness {top}".replace("\n", ", ")
    fitness = np.where(best.mask, best.scored.fitness, np.nan)
    drawn = over_descriptors(title, best, layout, fitness, "fitness")
    return policy, drawn + (_fronts(policy, found, best, layout) if getattr(policy.spec.config, "objectives", ()) else [])


def over_descriptors(
    title: str, found: Elites, layout: cells.Layout, values: np.ndarray, name: str, **scale: Any
) -> list[Chart]:
    """Values by cell `[C]`: a heat map of a grid, else a dot for each elite at the first two descriptors, the next two, ...

    `found`: what is said of a cell, where it has as many. `name`: what the values are. `scale`: of colors, in plotly's words.
    """
    scale = {"colorscale": "Viridis", "colorbar": {"title": {"text": text(name)}, "thickness": 12}} | scale
    if layout.shape is not None:
        return [_heat_map(title, found, layout, values, name, scale)]
    order = np.flatnonzero(np.isfinite(values))
    order = order[np.argsort(values[order], kind="stable")]  # the highest on top
    note = f"{len(order):,} dots"
    if len(order) > MOST_DOTS:
        note = f"{MOST_DOTS:,} of {len(order):,} elites, evenly spread over the {name}"
        order = order[np.linspace(0, len(order) - 1, MOST_DOTS).round().astype(int)]
    places = np.asarray(found.scored.descriptor)[order]
    told = [_told(descriptor, name, value) for descriptor, value in zip(places, values[order], strict=True)]
    dots = {"type": "scatter", "mode": "markers", "text": told, "hoverinfo": "text"}
    dots |= {"marker": {"color": numbers(values[order]), "size": 8 if len(order) <= FEW_DOTS else 5, **scale}}
    dimensions = places.shape[1]
    if dimensions == 1:
        axes = {"xaxis": _axis(layout, 0), "yaxis": {"title": {"text": text(name)}}}
        return [Chart(title, [{**dots, "x": numbers(places[:, 0]), "y": numbers(values[order])}], axes, note, HIGH)]
    pairs = [(min(first, dimensions - 2), min(first, dimensions - 2) + 1) for first in range(0, dimensions, 2)]
    return [
        Chart(
            title,
            [{**dots, "x": numbers(places[:, first]), "y": numbers(places[:, second])}],
            {"xaxis": _axis(layout, first), "yaxis": _axis(layout, second)},
            note,
            HIGH,
        )
        for first, second in pairs
    ]


def _axis(layout: cells.Layout, dimension: int) -> dict[str, Any]:
    ends = [float(layout.low[dimension]), float(layout.high[dimension])]
    margin = 0.02 * (ends[1] - ends[0])
    return {"title": {"text": f"descriptor {dimension}"}, "range": [ends[0] - margin, ends[1] + margin], "showgrid": False}


def _told(descriptor: np.ndarray, name: str, value: float) -> str:
    return f"{text(name)} {value:.5g}<br>descriptor {', '.join(f'{x:.4g}' for x in descriptor)}"


def _heat_map(title: str, found: Elites, layout: cells.Layout, values: np.ndarray, name: str, scale: dict[str, Any]) -> Chart:
    """Of two dimensions or one over the descriptors themselves, of more cells within cells."""
    shape, note = layout.shape, ""
    assert shape is not None
    is_plane, is_told = len(shape) <= 2, len(values) == len(found.mask) and len(values) <= min(MOST_HOVERED, MOST_CELLS)
    image = cells.image_of(shape, values)
    if len(values) > MOST_CELLS and is_plane:
        shown = found._replace(scored=found.scored._replace(fitness=values), mask=np.isfinite(values))
        image = blocks(shown, (*shape, 1)[:2], layout.low, layout.high, BLOCKS)
        note = "each dot is the best of several cells"
    sizes = image.shape[::-1]
    trace: dict[str, Any] = {"type": "heatmap", "z": numbers(image), "hoverongaps": False, **scale}
    if is_told:
        told = np.array([_of_cell(shape, place, found, name, value) for place, value in enumerate(values)], object)
        trace |= {"text": cells.image_of(shape, told).tolist(), "hoverinfo": "text"}
    empty = {"plot_bgcolor": cells.EMPTY}
    if not is_plane:
        inner = ", each within the one before"
        across, up = (", ".join(map(str, range(first, len(shape), 2))) for first in (0, 1))
        hidden: dict[str, Any] = {"showticklabels": False, "showgrid": False}
        names = {
            "xaxis": {"title": {"text": f"descriptors {across}{inner}"}},
            "yaxis": {"title": {"text": f"descriptors {up}"}},
        }
        return Chart(title, [trace], empty | {axis: words | hidden for axis, words in names.items()}, note, HIGH)
    for axis, number, dimension in (("x", sizes[0], 0), ("y", sizes[1], 1)):
        low, high = (layout.low[dimension], layout.high[dimension]) if dimension < len(shape) else (0.0, 1.0)
        trace[axis] = numbers(low + (np.arange(number) + 0.5) / number * (high - low))
    axes: dict[str, Any] = {"xaxis": _axis(layout, 0)}
    axes["yaxis"] = _axis(layout, 1) if len(shape) == 2 else {"showticklabels": False, "showgrid": False}
    return Chart(title, [trace], empty | axes, note, HIGH if len(shape) == 2 else 240)


def _of_cell(shape: tuple[int, ...], place: int, found: Elites, name: str, value: float) -> str:
    if not np.isfinite(value):
        return ""
    cell = " ".join(str(int(index)) for index in np.unravel_index(place, shape))
    return f"{_told(np.asarray(found.scored.descriptor[place]), name, value)}<br>cell {cell}"


def _fronts(policy: Policy, found: Elites, best: Elites, layout: cells.Layout) -> list[Chart]:
    """The first two objectives of every elite, by the hypervolume of its cell, and these over descriptors."""
    config, each = policy.spec.config, int(found.per_cell)
    volume = fronts.volumes(found, config.reference)
    places = np.flatnonzero(found.mask)
    values = np.asarray(found.scored.extras)[places]
    shown = np.linspace(0, len(places) - 1, min(len(places), MOST_DOTS)).round().astype(int)
    names = [text(config.objectives[index]) for index in (0, 1 % len(config.objectives))]
    up = values[:, 1 % values.shape[1]]
    marker = {
        "color": numbers(volume[places[shown] // each]),
        "size": 5,
        "colorscale": "Viridis",
        "colorbar": {"title": {"text": "hypervolume"}, "thickness": 12},
    }
    dots = {"type": "scatter", "mode": "markers", "x": numbers(values[shown, 0]), "y": numbers(up[shown]), "marker": marker}
    traces = [{**dots, "name": "elite"}]
    if values.shape[1] == 2:
        corner = fronts.front_of(values)
        line = {"color": "#000000", "width": 1.2, "shape": "vh"}
        front = {"x": numbers(corner[:, 0]), "y": numbers(corner[:, 1]), "line": line, "name": "front of all"}
        traces.append({"type": "scatter", "mode": "lines", **front})
    layout_of = {"xaxis": {"title": {"text": names[0]}}, "yaxis": {"title": {"text": names[1]}}}
    note = f"{len(places):,} elites in {np.isfinite(volume).sum():,} cells" + (
        f", of which {len(shown):,} are drawn" if len(shown) < len(places) else ""
    )
    of_cells = over_descriptors(
        f"Hypervolume of the front, MOQD score {np.nansum(volume):.5g}", best, layout, volume, "hypervolume"
    )
    return [Chart("Objectives of all elites, and the front of them all", traces, layout_of, note, HIGH), *of_cells]


def comparison(first: Policy, second: Policy, names: tuple[str, str], tell: Callable[[str], object]) -> list[Chart]:
    """Where the archive of the second run is fitter than that of the first; nothing of archives that cannot be compared."""
    try:
        found = compare_archives(first, second)
    except UsageError as error:
        tell(f"the archives are not compared: {error}")
        return []
    layout = compared.layout_of_cells(first)
    difference, only, reach = compared.differences(found, layout)
    where = elites.best_of_cells(elites.of_policy(first))
    if layout.center is not None:  # dots are in the middle of the cells
        where = where._replace(scored=where.scored._replace(descriptor=np.asarray(layout.center)))
    scale = {
        "colorscale": compared.DIFFERENCE,
        "reversescale": True,
        **({"cmin": -reach, "cmax": reach} if layout.shape is None else {}),
    }
    scale |= {"zmin": -reach, "zmax": reach} if layout.shape is not None else {}
    (chart, *_) = over_descriptors(f"{names[1]} minus {names[0]}", where, layout, difference, "difference", **scale)
    words = compared.told_of(found).replace("\n", ", ")
    number = [int(np.sum(only == which)) for which in (0.0, 1.0)]
    return [chart._replace(note=f"{words}; cells that only the first has: {number[0]:,}, only the second: {number[1]:,}")]


def evolution(run: Run) -> list[Chart]:
    """The settings of a population that evolves, and what selection went by; nothing of another run."""
    evolved = lines.evolution(run)
    if evolved is None:
        return []
    told, ranges, end, chosen = evolved
    axis = {"title": {"text": run.axis}}
    found = []
    for name, span in ranges.items():
        traces = _by_style(told, lineage.pieces(told, told.settings[name], end), chosen)
        layout = {"xaxis": axis, "yaxis": {"type": span.scale}}
        found.append(Chart(f"{name.replace('_', ' ')} of each member", traces, layout, height=300))
    known = lineage.of_best(told, chosen)
    best = {"x": numbers(told.step[1:]), "y": numbers(known), "line": {"color": "#000000", "width": 1.6}, "name": "best"}
    traces = [*_by_style(told, lineage.scores(told), chosen), {"type": "scatter", "mode": "lines", **best}]
    return [*found, Chart("Return in training, by which members are selected", traces, {"xaxis": axis}, height=300)]


def _by_style(told: lineage.History, pieces: list[lineage.Piece], chosen: int) -> list[dict[str, Any]]:
    """A trace for all pieces of one look, in the order of what covers what."""
    colors = lineage.founders(told)
    looks: dict[tuple[int, str, float], list[lineage.Piece]] = {}
    for piece in pieces:
        look = lineage.style(piece.heirs, chosen, colors)
        looks.setdefault((look["zorder"], color(look["color"]), look["linewidth"]), []).append(piece)
    traces = []
    for (_, shade, width), alike in sorted(looks.items(), key=lambda pair: pair[0][0]):
        x, y = list[Any](), list[Any]()
        for piece in alike:
            x += [*([piece.steps[0]] if piece.before is not None else []), *dict.fromkeys(piece.steps), None]
            y += numbers(
                np.array([*([piece.before] if piece.before is not None else []), *[piece.value] * len(set(piece.steps))])
            )
            y.append(None)
        is_points = all(piece.steps[0] == piece.steps[1] for piece in alike)
        mode = {"mode": "markers", "marker": {"color": shade, "size": 5}} if is_points else {"mode": "lines"}
        hover = "best" if shade == "#000000" else "without descendants" if shade.upper() == lineage.OTHERS else "ancestors"
        traces.append({"type": "scatter", "x": x, "y": y, **mode, "line": {"color": shade, "width": width}, "name": hover})
    return traces
