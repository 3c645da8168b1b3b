"""The figure that goes into a paper: the metrics that were asked for, a panel each, in print's size, and their numbers."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollax.errors import UsageError
from rollax.host.settings import entry
from rollax.view import estimates, summary
from rollax.view.curves import RETURN, Curve, series, title
from rollax.view.overview import legend
from rollax.view.style import ticks_of_steps

if TYPE_CHECKING:
    from rollax.view.plot import Figure

WIDTHS = {1: 3.3, 2: 6.9}  # inches, of one column and of both of a usual page
PANELS_IN_A_ROW = {1: 2, 2: 4}
HIGH, OF_LEGEND = 0.72, 0.3  # a panel's height as a share of its width; inches


class Line(NamedTuple):
    """One line of one panel, of p seeds at K points."""

    environment: str
    metric: str
    curve: Curve
    x: np.ndarray  # [K]
    values: np.ndarray  # [K, p]
    middle: np.ndarray  # [K]: the interquartile mean over seeds
    low: np.ndarray  # [K]: of its 95 % bootstrap interval; NaN where there is one seed
    high: np.ndarray


def lines_of(curves: list[Curve], names: tuple[str, ...]) -> list[Line]:
    """The lines of these metrics (by default of the return in evaluation), without those that have no number."""
    found = []
    for name in names or (RETURN,):
        for curve in curves:
            x, values = series(curve, name)
            at = np.isfinite(values).all(axis=1)
            if at.any():
                about = curve.run.spec.environment, name, curve
                found.append(Line(*about, x[at], values[at], *estimates.over_seeds(values[at])))
    if not found:
        raise UsageError(f"there is nothing to draw of {', '.join(names or (RETURN,))} yet: train for longer")
    return found


def fill(canvas: Any, curves: list[Curve], figure: "Figure") -> tuple[dict[str, bytes], list[str]]:
    """Draws into an empty figure. Returns its tables and what a caption has to say."""
    lines = lines_of(curves, figure.only)
    tables, notes, columns = tables_of(lines), _caption(lines, figure.smooth), figure.columns or 2
    has_curves = bool(figure.only or not figure.aggregate)
    panels = _places(lines) if has_curves else {}
    across = _across(panels, columns)
    down = -(-len(panels) // across) if panels else 0
    width = WIDTHS[columns]
    of_curves = down * (width / max(across, 1.6 if columns == 1 else 2.4) * HIGH + 0.12) if panels else 0.0
    scores = summary.scores_of(lines, figure.normalize) if figure.aggregate else None
    under = summary.height(scores, columns) if scores else 0.0
    has_legend = len({line.curve.label for line in lines}) > 1
    canvas.set_size_inches(width, of_curves + under + OF_LEGEND * has_legend)
    parts = [canvas]
    if panels and scores:
        parts = list(canvas.subfigures(2, 1, height_ratios=(of_curves, under)))
    if panels:
        _draw_panels(parts[0], panels, across)
    if scores:
        aggregated, words = summary.fill(parts[-1], scores, columns)
        tables, notes = tables | aggregated, (notes if has_curves else []) + words
    legend(canvas, [line.curve for line in lines])
    return tables, notes


def _places(lines: list[Line]) -> dict[tuple[str, str], list[Line]]:
    """The lines of each panel, by metric and environment: rows of metrics, columns of environments."""
    environments = dict.fromkeys(line.environment for line in lines)
    metrics = dict.fromkeys(line.metric for line in lines)
    keys = [(metric, environment) for metric in metrics for environment in environments]
    return {key: [line for line in lines if (line.metric, line.environment) == key] for key in keys}


def _across(panels: dict[tuple[str, str], list[Line]], columns: int) -> int:
    """How many panels are side by side: all environments of a metric, as far as there is room."""
    environments = len({environment for _, environment in panels})
    return max(1, min(environments if environments > 1 else len(panels), PANELS_IN_A_ROW[columns]))


def _draw_panels(part: Any, panels: dict[tuple[str, str], list[Line]], across: int) -> None:
    axes = part.subplots(-(-len(panels) // across), across, squeeze=False).ravel()
    short = _short_names([environment for _, environment in panels])
    is_grid = across == len(short) > 1  # a column for each environment, a row for each metric
    for index, (axis, ((name, environment), lines)) in enumerate(zip(axes, panels.items(), strict=False)):
        for line in lines:
            draw_line(axis, line.curve, line.x, line.middle, line.low, line.high)
        if len(short) > 1 and (not is_grid or index < across):
            axis.set_title(short[environment])
        if index % across == 0 or len({metric for metric, _ in panels}) > 1 and not is_grid:
            axis.set_ylabel(_title_of(name, lines))
        if lines and (index >= len(panels) - across):
            axis.set_xlabel(" or ".join(dict.fromkeys(line.curve.run.axis for line in lines)))
        ticks_of_steps(axis, 4)
        if not lines:
            axis.set_visible(False)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)


def _title_of(name: str, lines: Iterable[Line]) -> str:
    units = {entry(line.curve.run.spec.algorithm).unit for line in lines}
    return title(name, " or ".join(sorted(units)))


def _short_names(environments: list[str]) -> dict[str, str]:
    """Environments without their suite, where that leaves them apart."""
    names = {environment: environment.rpartition("/")[2] for environment in environments}
    return names if len(set(names.values())) == len(names) else {environment: environment for environment in environments}


def draw_line(axis: Any, curve: Curve, x: np.ndarray, middle: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """A line and its band, if there is one."""
    marker = "o" if x.size == 1 else ""
    axis.plot(x, middle, curve.dash, color=curve.color, linewidth=1.2, marker=marker, markersize=2.5, zorder=3)
    if np.isfinite(low).any():
        axis.fill_between(x, low, high, color=curve.color, alpha=0.18, linewidth=0)


def _caption(lines: list[Line], smooth: int) -> list[str]:
    """What the lines and bands are, which a caption says, and whom it does not hold for."""
    numbers = sorted({line.values.shape[1] for line in lines})
    several = " or ".join(str(number) for number in numbers if number > 1)
    words = "lines: one seed, without an interval"
    if several:
        words = f"lines: interquartile mean over {several} seeds; bands: its 95 % bootstrap interval over seeds"
    words += f"; each point is the mean of the {smooth} around it" if smooth > 1 else ""
    alone = dict.fromkeys(f"{line.curve.label} on {line.environment}" for line in lines if line.values.shape[1] == 1)
    return [words, *([f"one seed, and therefore no interval: {'; '.join(alone)}"] if alone and several else [])]


def tables_of(lines: list[Line]) -> dict[str, bytes]:
    """The numbers of all lines as CSV, by what is added to the figure's name."""
    rows = [",".join(("environment", "metric", "label", "x", "seeds", "iqm", "low", "high"))]
    for line in lines:
        about = [_quoted(text) for text in (line.environment, line.metric, line.curve.label)]
        for x, *values in zip(line.x.tolist(), line.middle, line.low, line.high, strict=True):
            numbers = [f"{value:.9g}" if np.isfinite(value) else "" for value in values]
            rows.append(",".join([*about, f"{x:.12g}", str(line.values.shape[1]), *numbers]))
    return {"": "\n".join([*rows, ""]).encode()}


def _quoted(text: str) -> str:
    """A text as CSV has it, which may have commas in it."""
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n') else text
