"""What tells the lines of a figure apart: labels and colors."""

from pathlib import Path
from typing import Any

import numpy as np

# Okabe and Ito (2008): eight colors that remain apart for color-blind eyes; yellow is left out, being too light for a line.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
CHANCE = ("seed", "seeds")  # what a label says only where nothing else tells lines apart
MOST_FACTS = 4  # in a label


def labels(facts: list[dict[str, Any]], folders: list[Path]) -> list[str]:
    """What differs between the lines of one environment, or the runs' folders where nothing does or too much.

    The settings of two algorithms differ by nature: what differs between lines of one algorithm tells these apart.
    """
    environments = _parts(facts, ("environment",))
    about = {name for part in environments for name in ("algorithm", "agents") if name in _differing(part)}
    own: dict[str, set[str]] = {}
    for part in _parts(facts, ("environment", "algorithm")):
        own.setdefault(part[0]["algorithm"], set()).update(_differing(part))
    names = [[name for name in each if name in about | own[each["algorithm"]]] for each in facts]
    for left_out in (CHANCE, ()):
        shown = [[name for name in row if name not in left_out] for row in names]
        labels = [
            ", ".join(_fact(n, each[n]) for n in row) or each["algorithm"] for row, each in zip(shown, facts, strict=True)
        ]
        places = {(each["environment"], label) for each, label in zip(facts, labels, strict=True)}
        if max(map(len, shown)) <= MOST_FACTS and len(places) == len(labels):
            return labels
    return [_folder_label(index, facts, folders) for index in range(len(facts))]


def _parts(facts: list[dict[str, Any]], names: tuple[str, ...]) -> list[list[dict[str, Any]]]:
    """The lines that have all of these facts in common, together."""
    keys = [tuple(each.get(name) for name in names) for each in facts]
    return [[each for each, own in zip(facts, keys, strict=True) if own == key] for key in dict.fromkeys(keys)]


def _folder_label(index: int, facts: list[dict[str, Any]], folders: list[Path]) -> str:
    """A folder's name, with what tells the lines of that one run apart."""
    siblings = [each for each, folder in zip(facts, folders, strict=True) if folder == folders[index]]
    parts = [_fact(name, facts[index].get(name)) for name in _differing(siblings)]
    return ", ".join([folders[index].resolve().name, *parts])


def _differing(facts: list[dict[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for each in facts for name in each)
    return [name for name in names if len({repr(each.get(name)) for each in facts}) > 1]


def _fact(name: str, value: Any) -> str:
    if name in ("algorithm", "agents"):
        return str(value)
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def is_one_scale(facts: list[dict[str, Any]]) -> bool:
    """Whether the lines differ in one number only, so that their colors may be a scale."""
    names = _differing(facts)
    return len(names) == 1 and len(facts) > 2 and all(isinstance(each.get(names[0]), int | float) for each in facts)


def colors(count: int, is_scale: bool) -> list[Any]:
    from matplotlib import colormaps

    if is_scale or count > len(COLORS) * len(DASHES):
        return list(colormaps["viridis"](np.linspace(0.0, 0.88, count)))
    return [COLORS[i % len(COLORS)] for i in range(count)]
