"""Labels and colors that distinguish the lines of a figure."""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from rollax.runtime.printing import escape_to_one_line

# Okabe and Ito (2008): colors for color-blind readers. Yellow is left out because it is too light.
LINE_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LineStyle = Literal["-", "--", ":", "-."]
LINE_STYLES: tuple[LineStyle, ...] = ("-", "--", ":", "-.")
# Fields of a line (environment, algorithm, settings), keyed by name. Labels consist of fields.
LabelFields = dict[str, Any]
SEED_FIELDS = ("seed", "seeds")  # included in labels only if nothing else distinguishes lines
MAX_LABEL_FIELDS = 4


def make_labels(fields: list[LabelFields], folders: list[Path]) -> list[str]:
    """Return a label for each line. Labels are distinct within each environment.

    Labels contain the fields that differ between lines of one algorithm. They also contain the
    algorithm and the agent type if these differ. If these fields do not distinguish all lines, or
    there are too many, labels contain the folder name.

    Args:
        fields: Fields of each line (environment, algorithm, settings), keyed by name, in the order
            of their appearance in labels.
        folders: Run folder of each line.
    """
    names = _select_label_fields(fields)
    for left_out in (SEED_FIELDS, ()):
        shown_names = [[name for name in row if name not in left_out] for row in names]
        labels = [
            escape_to_one_line(_join_fields(line, row) or line["algorithm"])
            for row, line in zip(shown_names, fields, strict=True)
        ]
        is_short = max(map(len, shown_names)) <= MAX_LABEL_FIELDS
        places = {(line["environment"], label) for line, label in zip(fields, labels, strict=True)}
        if is_short and len(places) == len(labels):
            return labels
    return [_folder_label(index, fields, folders) for index in range(len(fields))]


def _select_label_fields(fields: list[LabelFields]) -> list[list[str]]:
    """Return the names of the fields that distinguish each line from comparable lines."""
    common_names = {
        name
        for group in _group_by(fields, ("environment",))
        for name in ("algorithm", "agents")
        if name in _differing_fields(group)
    }
    names_by_algorithm: dict[str, set[str]] = {}
    for group in _group_by(fields, ("environment", "algorithm")):
        names = names_by_algorithm.setdefault(group[0]["algorithm"], set())
        names.update(_differing_fields(group))
    return [
        [name for name in line if name in common_names | names_by_algorithm[line["algorithm"]]]
        for line in fields
    ]


def _group_by(fields: list[LabelFields], names: tuple[str, ...]) -> list[list[LabelFields]]:
    """Group the lines by the values of the named fields."""
    groups: dict[tuple[Any, ...], list[LabelFields]] = {}
    for line in fields:
        groups.setdefault(tuple(line.get(name) for name in names), []).append(line)
    return list(groups.values())


def _folder_label(index: int, fields: list[LabelFields], folders: list[Path]) -> str:
    """Return the folder name of line `index`, with fields that distinguish lines of its run."""
    run_lines = [
        line for line, folder in zip(fields, folders, strict=True) if folder == folders[index]
    ]
    distinguishing = _join_fields(fields[index], _differing_fields(run_lines))
    name = folders[index].resolve().name
    return escape_to_one_line(f"{name}, {distinguishing}" if distinguishing else name)


def _differing_fields(fields: list[LabelFields]) -> list[str]:
    names = dict.fromkeys(name for line in fields for name in line)
    return [name for name in names if len({repr(line.get(name)) for line in fields}) > 1]


def _join_fields(line: LabelFields, names: list[str]) -> str:
    return ", ".join(_format_field(name, line.get(name)) for name in names)


def _format_field(name: str, value: object) -> str:
    if name in ("algorithm", "agents"):
        return str(value)
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def short_environment_names(environments: list[str]) -> dict[str, str]:
    """Return display names, keyed by environment id.

    Names omit the suite if they are still distinct.
    """
    names = {environment: environment.rpartition("/")[2] for environment in environments}
    return (
        names
        if len(set(names.values())) == len(names)
        else {environment: environment for environment in environments}
    )


def has_numeric_scale(fields: list[LabelFields]) -> bool:
    """Return whether more than two lines differ in one number only, so that colors form a scale."""
    names = _differing_fields(fields)
    return (
        len(names) == 1
        and len(fields) > 2
        and all(isinstance(line.get(names[0]), int | float) for line in fields)
    )


def make_colors(count: int, uses_scale: bool) -> list[str]:
    """Return `count` colors: from a color scale, or cycling through `LINE_COLORS`.

    The color scale is also used if `LINE_COLORS` and `LINE_STYLES` have too few combinations.
    """
    if uses_scale or count > len(LINE_COLORS) * len(LINE_STYLES):
        return sample_colormap(np.linspace(0.0, 0.88, count))
    return [LINE_COLORS[i % len(LINE_COLORS)] for i in range(count)]


def sample_colormap(positions: np.ndarray) -> list[str]:
    """Return hexadecimal colors of the colormap viridis at positions from 0 to 1."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(color) for color in colormaps["viridis"](positions)]
