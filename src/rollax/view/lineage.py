"""The settings of a population that evolves over time: a line a member, and who was copied from whom."""

import math
from typing import Any, NamedTuple

import numpy as np

from rollax.populations.evolution import Range

OTHERS = "#B8B8B8"  # of members that have no descendant at the end
COLUMNS = 4
WORDS = "settings that evolve: colored what the members of the end come from, black the best of them; dots are new copies"


class Piece(NamedTuple):
    """A member from one generation to the next, or to the end."""

    steps: tuple[int, int]
    value: float  # of a setting
    before: float | None  # of the parent, where the member is a new copy
    heirs: np.ndarray  # the members of the end that come from it


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
    for axis, (name, span) in zip(axes, ranges.items(), strict=False):
        _settings(axis, told, told.settings[name], end, chosen)
        axis.set_yscale(span.scale)
        axis.set_title(name.replace("_", " "), loc="left", fontsize=9)
        label(axis)
    _fitness(axes[count - 1], told, chosen)
    axes[count - 1].set_title("return in training", loc="left", fontsize=9)
    label(axes[count - 1])
    for axis in axes[count:]:
        axis.set_visible(False)
    figure.suptitle(WORDS, fontsize=8, color="#555555", x=0.01, ha="left")


def pieces(told: History, values: np.ndarray, end: int) -> list[Piece]:
    """Of a setting `[G, P]` what each member had while it lived."""
    ends, line, found = np.append(told.step[1:], max(end, told.step[-1])), ancestors(told.parent), list[Piece]()
    for number, member in np.ndindex(*values.shape):
        source = told.parent[number, member]
        before = float(values[number - 1, source]) if number and source != member else None
        steps = int(told.step[number]), int(ends[number])
        found.append(Piece(steps, float(values[number, member]), before, np.flatnonzero(line[number] == member)))
    return found


def scores(told: History) -> list[Piece]:
    """The fitness of each member at the end of each generation."""
    line, number = ancestors(told.parent), len(told.step)
    # Members before a generation are those after the one before it.
    return [
        Piece((int(told.step[k]), int(told.step[k])), float(told.fitness[k, m]), None, np.flatnonzero(line[k - 1] == m))
        for k in range(1, number)
        for m in range(told.fitness.shape[1])
    ]


def of_best(told: History, chosen: int) -> np.ndarray:
    """The fitness of the ancestors of a member at the end of each generation, `[G - 1]`."""
    line = ancestors(told.parent)
    return np.array([told.fitness[number, line[number - 1, chosen]] for number in range(1, len(told.step))])


def _settings(axis: Any, told: History, values: np.ndarray, end: int, chosen: int) -> None:
    """Level while a member lives; where it becomes a copy, from its parent's value to its own."""
    colors = founders(told)
    for piece in pieces(told, values, end):
        line = style(piece.heirs, chosen, colors)
        axis.plot(piece.steps, (piece.value,) * 2, **line)
        if piece.before is not None:
            axis.plot((piece.steps[0],) * 2, (piece.before, piece.value), **{**line, "linewidth": line["linewidth"] / 2})
            axis.plot(piece.steps[0], piece.value, marker="o", markersize=2, **line)


def _fitness(axis: Any, told: History, chosen: int) -> None:
    """What selection went by: points, because a place may hold another member at each generation."""
    colors = founders(told)
    for piece in scores(told):
        axis.plot(piece.steps[0], piece.value, ".", **{**style(piece.heirs, chosen, colors), "markersize": 4})
    axis.plot(told.step[1:], of_best(told, chosen), color="black", linewidth=1.2, zorder=4)


def style(heirs: np.ndarray, chosen: int, colors: dict[int, Any]) -> dict[str, Any]:
    """How a member is drawn of which these come, in the words of matplotlib."""
    if chosen in heirs:
        return {"color": "black", "linewidth": 1.8, "zorder": 4}
    if heirs.size:
        return {"color": colors[int(heirs[0])], "linewidth": 1.1, "zorder": 3}
    return {"color": OTHERS, "linewidth": 0.7, "zorder": 2}


def founders(told: History) -> dict[int, Any]:
    """By member of the end, a color for each first member that several may come from."""
    from matplotlib import colormaps

    first = ancestors(told.parent)[0].tolist()
    distinct = list(dict.fromkeys(first))
    colors = colormaps["viridis"](np.linspace(0.1, 0.9, len(distinct)))
    return {member: colors[distinct.index(founder)] for member, founder in enumerate(first)}
