"""The picture of a study: curves by setting, settings beside their results, and which of them matter."""

import io
import math
from pathlib import Path
from typing import Any

import numpy as np

from rollax.host.files import write_atomically
from rollax.host.logging import read_metrics
from rollax.host.run_folder import METRICS, read_spec
from rollax.host.settings import entry
from rollax.studies import results
from rollax.studies.results import Row
from rollax.studies.study import Study
from rollax.view.curves import STEPS

PICTURE = "study.png"
MAP = "viridis"
MOST_TICKS = 8  # of a setting with values to choose from


def draw(study: Study) -> Path | None:
    """Draws what is known of the study into its folder: the picture, None where fewer than two settings have a result."""
    rows = [row for row in results.rows(study) if row.value is not None and row.state in ("COMPLETE", "PRUNED")]
    if len(rows) < 2:
        return None
    # Late: they take a second to import. No window is asked for.
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    from rollax.view.style import STYLE

    names = [one.name for one in study.space]
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(5 + 4 + 1.1 * len(names), 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        curves, parallel, bars = figure.subplots(1, 3, width_ratios=(4, 1.5 + 1.1 * len(names), 3))
        values = np.array([row.value for row in rows], float)
        low, high = np.nanmin(values), np.nanmax(values)
        colors = ScalarMappable(Normalize(low, high if high > low else low + 1), MAP)
        _curves(curves, study, rows, colors)
        _parallel(parallel, study, rows, colors)
        figure.colorbar(colors, ax=parallel, label=study.metric)
        _bars(bars, results.importance(study))
        path = study.folder / PICTURE
        written = io.BytesIO()
        figure.savefig(written, format="png", dpi=144)
    write_atomically(path, written.getvalue())
    return path


def _curves(axis: Any, study: Study, rows: list[Row], colors: Any) -> None:
    """Mean return over seeds of every setting, the best ones on top."""
    for row in rows[::-1]:
        steps, means = _returns(study, row)
        axis.plot(steps, means, color=colors.to_rgba(row.value), linewidth=2 if row is rows[0] else 0.8)
    unit = entry(study.base.algorithm).unit
    axis.set(xlabel=STEPS if unit == "steps" else unit, ylabel="return of evaluations", title=f"{len(rows)} settings")


def _returns(study: Study, row: Row) -> tuple[list[int], list[float]]:
    """The mean return of a setting over its seeds, by step, over all runs that it was in."""
    found: dict[int, float] = {}
    batch = next(each for each in study.batches() if row.number in {trial.number for trial in each.trials})
    for name, numbers in batch.runs:
        folder = batch.folder / name
        if row.number not in numbers or not (folder / METRICS).is_file():
            continue
        seeds = 1 if study.spec.evolves else read_spec(folder).options.seeds  # whose seeds are its members
        first = numbers.index(row.number) * seeds
        for line in read_metrics(folder / METRICS):
            if line.get("event") == "evaluation":
                members = line.get("return_members", [line.get("return_mean", math.nan)])
                found[line["step"]] = float(np.mean(members[first : first + seeds]))
    return list(found), list(found.values())


def _parallel(axis: Any, study: Study, rows: list[Row], colors: Any) -> None:
    """A line for each setting through its values, each axis from its lowest value to its highest."""
    scales = [_scale(study, name) for name in (one.name for one in study.space)]
    for row in rows[::-1]:
        heights = [scale(row.settings.get(one.name)) for one, (scale, _) in zip(study.space, scales, strict=True)]
        best = {"linewidth": 2.5, "zorder": 3} if row is rows[0] else {"linewidth": 0.8}
        axis.plot(range(len(heights)), heights, color=colors.to_rgba(row.value), marker=".", **best)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # or lines run through the words
    for index, (_, ticks) in enumerate(scales):
        axis.axvline(index, color="0.7", linewidth=0.8, zorder=0)
        for height, text in ticks:
            axis.annotate(
                text, (index, height), (5, 0), textcoords="offset points", fontsize=7, va="center", zorder=4, bbox=box
            )
    names = [one.name.removeprefix("config.").replace("_", "\n") for one in study.space]
    axis.set(xticks=range(len(names)), xticklabels=names, yticks=[], xlim=(-0.2, len(names) - 0.5), title="settings")
    axis.set_ylim(-0.04, 1.04)  # also where no setting comes near an end: its word is drawn all the same


def _scale(study: Study, name: str) -> tuple[Any, list[tuple[float, str]]]:
    """From a value of a setting to its height, NaN where it does not apply; and heights with a word."""
    one = next(each for each in study.space if each.name == name)
    if one.span is None:
        choices = [list(value) if isinstance(value, tuple) else value for value in one.choices]
        places = np.linspace(0, 1, len(choices)) if len(choices) > 1 else np.array([0.5])
        every = max(1, math.ceil(len(choices) / MOST_TICKS))
        ticks = [(float(place), results.plain(value)) for place, value in zip(places, choices, strict=True)][::every]
        return lambda value: float(places[choices.index(value)]) if value in choices else math.nan, ticks
    change = math.log if one.span.scale == "log" else float
    low, high = change(one.span.low), change(one.span.high)
    ticks = [(0.0, results.plain(one.span.low)), (1.0, results.plain(one.span.high))]
    return lambda value: math.nan if value is None else (change(value) - low) / (high - low), ticks


def _bars(axis: Any, importance: dict[str, float]) -> None:
    """The share of the result that each setting accounts for."""
    axis.set(title="importance (PED-ANOVA)")
    if not importance:
        axis.set(xticks=[], yticks=[])
        axis.text(0.5, 0.5, "not known:\ntoo few results", ha="center", va="center", transform=axis.transAxes)
        return
    names = list(importance)[::-1]
    axis.barh([name.removeprefix("config.") for name in names], [importance[name] for name in names], color="0.4")
    axis.set(xlim=(0, 1))
