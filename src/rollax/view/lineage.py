"""The settings of a population that evolves over time: a line a member, and who was copied from whom."""

import math
from typing import Any, NamedTuple

import numpy as np

from rollax.populations.evolution import Range

OTHERS = "#B8B8B8"  # of members that have no descendant at the end
COLUMNS = 4


class History(NamedTuple):
    """G generations of P members, the first of which is what they drew."""

    step: np.ndarray  # int [G]
    fitness: np.ndarray  # float [G, P]: of the members before the generation; NaN where it is not known
    parent: np.ndarray  # int [G, P]
    settings: dict[str, np.ndarray]  # float [G, P]: after the generation


def history(lines: list[dict[str, Any]], ranges: dict[str, Range]) -> History | None:
    """The history that the lines of lineage.jsonl tell; None where they do not begin at the start."""
    if not lines or lines[0].get("generation") != 0:
        return None
    size = len(next(iter(lines[0]["settings"].values())))
    fitness = [[math.nan if x is None else x for x in line["fitness"] or [None] * size] for line in lines]
    parent = [line["parent"] or list(range(size)) for line in lines]
    settings = {name: np.array([line["settings"][name] for line in lines], float) for name in ranges}
    return History(np.array([line["step"] for line in lines], int), np.array(fitness, float), np.array(parent, int), settings)


def ancestors(parent: np.ndarray) -> np.ndarray:
    """Whose state at every generation each member of the last one comes from, int `[G, P]`."""
    places = np.arange(parent.shape[1])
    found = [places]
    for row in parent[:0:-1]:
        places = row[places]
        found.append(places)
    return np.array(found[::-1])


def best(told: History, returns: np.ndarray) -> int:
    """The member with the best return `[P]` in the last evaluation; without one that with the best fitness."""
    known = [row for row in (returns, *told.fitness[::-1]) if row.size and np.isfinite(row).any()]
    return int(np.nanargmax(known[0])) if known else 0


def rows(ranges: dict[str, Range]) -> int:
    """Rows of panels that a history needs: of each setting, and of the fitness."""
    return -(-(len(ranges) + 1) // COLUMNS)


def draw(figure: Any, told: History, ranges: dict[str, Range], end: int, chosen: int, label: Any) -> None:
    """Panels of the settings and of the fitness, up to `end` frames.

    Colored are the ancestors of the members of the end, a color for each of the first members that they come from; black
    are those of `chosen`. A thin line leads from a parent to its copy. `label(axis)` finishes an axis.
    """
    count = len(ranges) + 1
    axes = figure.subplots(rows(ranges), min(COLUMNS, count), squeeze=False, sharex=True).ravel()
    line = ancestors(told.parent)
    for axis, (name, span) in zip(axes, ranges.items(), strict=False):
        _settings(axis, told, told.settings[name], line, end, chosen)
        axis.set_yscale(span.scale)
        axis.set_title(name.replace("_", " "), loc="left", fontsize=9)
        label(axis)
    _fitness(axes[count - 1], told, line, chosen)
    axes[count - 1].set_title("return in training", loc="left", fontsize=9)
    label(axes[count - 1])
    for axis in axes[count:]:
        axis.set_visible(False)
    words = "settings that evolve: colored what the members of the end come from, black the best of them; dots are new copies"
    figure.suptitle(words, fontsize=8, color="#555555", x=0.01, ha="left")


def _settings(axis: Any, told: History, values: np.ndarray, line: np.ndarray, end: int, chosen: int) -> None:
    """Level while a member lives; where it becomes a copy, from its parent's value to its own."""
    ends, colors = np.append(told.step[1:], max(end, told.step[-1])), _colors(line[0])
    for number in range(len(values)):
        for member in range(values.shape[1]):
            heirs = np.flatnonzero(line[number] == member)
            style = _style(heirs, chosen, colors)
            axis.plot((told.step[number], ends[number]), (values[number, member],) * 2, **style)
            source = told.parent[number, member]
            if number and source != member:
                copied = values[number - 1, source], values[number, member]
                axis.plot((told.step[number],) * 2, copied, **{**style, "linewidth": style["linewidth"] / 2})
                axis.plot(told.step[number], copied[1], marker="o", markersize=2, **style)


def _fitness(axis: Any, told: History, line: np.ndarray, chosen: int) -> None:
    """What selection went by: points, because a place may hold another member at each generation."""
    colors = _colors(line[0])
    for number in range(1, len(told.step)):
        for member in range(told.fitness.shape[1]):
            # Members before this generation are those after the one before it.
            style = _style(np.flatnonzero(line[number - 1] == member), chosen, colors)
            axis.plot(told.step[number], told.fitness[number, member], ".", **{**style, "markersize": 4})
    of_best = [told.fitness[number, line[number - 1, chosen]] for number in range(1, len(told.step))]
    axis.plot(told.step[1:], of_best, color="black", linewidth=1.2, zorder=4)


def _style(heirs: np.ndarray, chosen: int, colors: dict[int, Any]) -> dict[str, Any]:
    if chosen in heirs:
        return {"color": "black", "linewidth": 1.8, "zorder": 4}
    if heirs.size:
        return {"color": colors[int(heirs[0])], "linewidth": 1.1, "zorder": 3}
    return {"color": OTHERS, "linewidth": 0.7, "zorder": 2}


def _colors(first: np.ndarray) -> dict[int, Any]:
    """By member of the end, a color for each first member that several may come from."""
    from matplotlib import colormaps

    founders = list(dict.fromkeys(first.tolist()))
    colors = colormaps["viridis"](np.linspace(0.1, 0.9, len(founders)))
    return {member: colors[founders.index(founder)] for member, founder in enumerate(first.tolist())}
