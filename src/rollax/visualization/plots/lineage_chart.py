"""Charts of the settings of an evolving population over time, with the lineage of its members."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import numpy as np

from rollax.populations.evolution import Range
from rollax.types import Record
from rollax.visualization.plots.labels import sample_colormap

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

BEST_COLOR = "#000000"  # of the ancestors of the best final member
EXTINCT_COLOR = "#B8B8B8"  # of members without descendants at the end
MAX_COLUMNS = 4
CHART_DESCRIPTION = (
    "evolved settings: colored lines are ancestors of the final members, "
    "the black line leads to the best of them, dots are new copies"
)


class MemberSegment(NamedTuple):
    """Line segment of one member, from one generation to the next or to the last step.

    Attributes:
        steps: First and last step of the segment.
        value: Value of the setting, or fitness, of the member.
        parent_value: Value of the parent if the member is a new copy, otherwise None.
        descendants: Indices of the final members that descend from the member.
    """

    steps: tuple[int, int]
    value: float
    parent_value: float | None
    descendants: np.ndarray


class LineageHistory(NamedTuple):
    """History of G generations of P members. The first generation has the initial settings.

    Attributes:
        step: Step of each generation, int `[G]`.
        fitness: Fitness of the members before the generation, float `[G, P]`. NaN if unknown.
        parent: Index of the parent of each member, int `[G, P]`.
        settings: Values after the generation, keyed by setting name, float `[G, P]` each.
        fitness_name: Display name of the fitness metric.
    """

    step: np.ndarray
    fitness: np.ndarray
    parent: np.ndarray
    settings: dict[str, np.ndarray]
    fitness_name: str = "return in training"


class LineStyle(TypedDict):
    """Matplotlib arguments of a line."""

    color: str
    linewidth: float
    zorder: int


def parse_history(records: list[Record], ranges: dict[str, Range]) -> LineageHistory | None:
    """Convert the records of lineage.jsonl to a history.

    Args:
        records: Records, one per generation.
        ranges: Range of each evolved setting, keyed by setting name.

    Returns:
        The history, or None if a record is invalid or the first record is not generation 0.
    """
    try:
        is_complete = bool(records) and records[0].get("generation") == 0
        history = _parse_records(records, ranges) if is_complete else None
    except (AttributeError, KeyError, OverflowError, StopIteration, TypeError, ValueError):
        return None
    return history if history is not None and _is_consistent(history) else None


def _is_consistent(history: LineageHistory) -> bool:
    """Return whether all arrays have the shape `[G, P]`, and all parent indices are valid."""
    parent = history.parent
    arrays = (history.fitness, *history.settings.values())
    if parent.ndim != 2 or any(array.shape != parent.shape for array in arrays):
        return False
    return bool(np.all((parent >= 0) & (parent < parent.shape[1])))


def _parse_records(records: list[Record], ranges: dict[str, Range]) -> LineageHistory:
    """Convert records to a history. Invalid records raise an error that `parse_history` catches."""
    size = len(next(iter(records[0]["settings"].values())))
    fitness = [
        [math.nan if value is None else value for value in record["fitness"] or [None] * size]
        for record in records
    ]
    parent = [record["parent"] or list(range(size)) for record in records]
    return LineageHistory(
        step=np.array([record["step"] for record in records], int),
        fitness=np.array(fitness, float),
        parent=np.array(parent, int),
        settings={
            name: np.array([record["settings"][name] for record in records], float)
            for name in ranges
        },
    )


def trace_ancestors(parent: np.ndarray) -> np.ndarray:
    """Return the ancestor of each final member at every generation, int `[G, P]`.

    Args:
        parent: Index of the parent of each member, int `[G, P]`.
    """
    members = np.arange(parent.shape[1])
    ancestors = [members]
    for row in parent[:0:-1]:
        members = row[members]
        ancestors.append(members)
    return np.array(ancestors[::-1])


def best_member(history: LineageHistory, returns: np.ndarray) -> int:
    """Return the index of the member with the highest return, or fitness if returns are unknown.

    Args:
        history: History of the population.
        returns: Returns of the last evaluation, `[P]`. Higher is better. Empty if unknown.

    Returns:
        Index of the member. 0 if neither returns nor fitness are known.
    """
    rows = (returns, *history.fitness[::-1])
    newest = next((row for row in rows if row.size and np.isfinite(row).any()), None)
    return 0 if newest is None else int(np.nanargmax(newest))


def num_panel_rows(ranges: dict[str, Range]) -> int:
    """Return the number of panel rows. There is one panel per setting and one for the fitness."""
    return -(-(len(ranges) + 1) // MAX_COLUMNS)


def draw_lineage(
    figure: "matplotlib.figure.Figure | matplotlib.figure.SubFigure",
    history: LineageHistory,
    ranges: dict[str, Range],
    last_step: int,
    best: int,
    format_axis: "Callable[[matplotlib.axes.Axes], None]",
) -> None:
    """Draw one panel over steps for each setting, and one for the fitness.

    Ancestors of the final members have one color per initial member, and the ancestors of `best`
    are black. A thin line connects a parent with its copy.

    Args:
        figure: Empty matplotlib figure or subfigure.
        history: History of the population.
        ranges: Range of each evolved setting, keyed by setting name.
        last_step: Last step of the chart.
        best: Index of the best final member.
        format_axis: Function that formats the axes of a panel.
    """
    count = len(ranges) + 1
    axes = figure.subplots(
        num_panel_rows(ranges), min(MAX_COLUMNS, count), squeeze=False, sharex=True
    ).ravel()
    for axis, (name, span) in zip(axes, ranges.items(), strict=False):
        _draw_setting(axis, history, history.settings[name], last_step, best)
        axis.set_yscale(span.scale)
        axis.set_title(name.replace("_", " "), loc="left", fontsize=9)
        format_axis(axis)
    _draw_fitness(axes[count - 1], history, best)
    axes[count - 1].set_title(history.fitness_name, loc="left", fontsize=9)
    format_axis(axes[count - 1])
    for axis in axes[count:]:
        axis.set_visible(False)
    figure.suptitle(CHART_DESCRIPTION, fontsize=8, color="#555555", x=0.01, ha="left")


def setting_segments(
    history: LineageHistory, values: np.ndarray, last_step: int
) -> list[MemberSegment]:
    """Return the segments of a setting, one per member and generation.

    Args:
        history: History of the population.
        values: Values of the setting, `[G, P]`.
        last_step: Last step of the chart.
    """
    ends = np.append(history.step[1:], max(last_step, history.step[-1]))
    ancestors = trace_ancestors(history.parent)
    segments = []
    for generation, member in np.ndindex(*values.shape):
        parent = history.parent[generation, member]
        is_copy = generation > 0 and parent != member
        segments.append(
            MemberSegment(
                steps=(int(history.step[generation]), int(ends[generation])),
                value=float(values[generation, member]),
                parent_value=float(values[generation - 1, parent]) if is_copy else None,
                descendants=np.flatnonzero(ancestors[generation] == member),
            )
        )
    return segments


def fitness_segments(history: LineageHistory) -> list[MemberSegment]:
    """Return a segment of zero length for the fitness of each member at generations 1 to G - 1."""
    ancestors = trace_ancestors(history.parent)
    # The fitness of generation k belongs to the members after generation k - 1.
    return [
        MemberSegment(
            steps=(int(history.step[k]), int(history.step[k])),
            value=float(history.fitness[k, member]),
            parent_value=None,
            descendants=np.flatnonzero(ancestors[k - 1] == member),
        )
        for k in range(1, len(history.step))
        for member in range(history.fitness.shape[1])
    ]


def ancestor_fitness(history: LineageHistory, best: int) -> np.ndarray:
    """Return the fitness of the ancestors of final member `best` over generations, `[G - 1]`."""
    ancestors = trace_ancestors(history.parent)
    return np.array(
        [history.fitness[k, ancestors[k - 1, best]] for k in range(1, len(history.step))]
    )


def _draw_setting(
    axis: "matplotlib.axes.Axes",
    history: LineageHistory,
    values: np.ndarray,
    last_step: int,
    best: int,
) -> None:
    """Draw members as horizontal segments, with a vertical line from each parent to its copy."""
    colors = founder_colors(history)
    for segment in setting_segments(history, values, last_step):
        style = segment_style(segment.descendants, best, colors)
        axis.plot(segment.steps, (segment.value,) * 2, **style)
        if segment.parent_value is not None:
            start = segment.steps[0]
            thin_style: LineStyle = {**style, "linewidth": style["linewidth"] / 2}
            axis.plot((start, start), (segment.parent_value, segment.value), **thin_style)
            axis.plot(start, segment.value, marker="o", markersize=2, **style)


def _draw_fitness(axis: "matplotlib.axes.Axes", history: LineageHistory, best: int) -> None:
    """Draw the fitness as points, with a line for the ancestors of the best final member."""
    colors = founder_colors(history)
    for segment in fitness_segments(history):
        style = segment_style(segment.descendants, best, colors)
        axis.plot(segment.steps[0], segment.value, ".", markersize=4, **style)
    fitness = ancestor_fitness(history, best)
    axis.plot(history.step[1:], fitness, color=BEST_COLOR, linewidth=1.2, zorder=4)


def segment_style(descendants: np.ndarray, best: int, colors: dict[int, str]) -> LineStyle:
    """Return the matplotlib style of a member.

    Args:
        descendants: Indices of the final members that descend from the member.
        best: Index of the best final member.
        colors: Color of each final member, keyed by its index.
    """
    if best in descendants:
        return {"color": BEST_COLOR, "linewidth": 1.8, "zorder": 4}
    if descendants.size:
        return {"color": colors[int(descendants[0])], "linewidth": 1.1, "zorder": 3}
    return {"color": EXTINCT_COLOR, "linewidth": 0.7, "zorder": 2}


def founder_colors(history: LineageHistory) -> dict[int, str]:
    """Return colors keyed by the index of the final member, one color per initial ancestor."""
    founders = trace_ancestors(history.parent)[0].tolist()
    distinct = list(dict.fromkeys(founders))
    colors = dict(zip(distinct, sample_colormap(np.linspace(0.1, 0.9, len(distinct))), strict=True))
    return {member: colors[founder] for member, founder in enumerate(founders)}
