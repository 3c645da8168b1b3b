"""Figure of a study: learning curves, parallel coordinates, and importance of settings."""

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollax.sweeps import results
from rollax.sweeps.results import TrialResult
from rollax.sweeps.search_space import Dimension
from rollax.sweeps.study import Study
from rollax.training.run_folder.files import write_atomically
from rollax.training.run_folder.layout import METRICS_FILE, read_spec
from rollax.training.run_folder.metric_sinks import read_metrics
from rollax.training.spec import get_algorithm_entry
from rollax.types import Setting
from rollax.visualization.plots.learning_curves import STEP_AXIS_LABEL

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.cm

FIGURE_FILE = "study.png"
COLOR_MAP = "viridis"
MAX_TICKS = 8  # of a setting with a list of values


def draw_study(study: Study) -> Path | None:
    """Write a figure of a study to the study folder.

    Args:
        study: Loaded study.

    Returns:
        Path of the figure, or None if fewer than two trials have a result.
    """
    rows = [
        row
        for row in results.list_trial_results(study)
        if row.value is not None and row.state in ("COMPLETE", "PRUNED")
    ]
    if len(rows) < 2:
        return None
    # These imports take a second. The Agg canvas needs no window.
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    from rollax.visualization.plots.style import STYLE

    num_settings = len(study.space)
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(9 + 1.1 * num_settings, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        widths = (4, 1.5 + 1.1 * num_settings, 3)
        curves, parallel, bars = figure.subplots(1, 3, width_ratios=widths)
        values = np.array([row.value for row in rows], float)
        low, high = np.nanmin(values), np.nanmax(values)
        colors = ScalarMappable(Normalize(low, high if high > low else low + 1), COLOR_MAP)
        _draw_curves(curves, study, rows, colors)
        _draw_parallel_coordinates(parallel, study, rows, colors)
        figure.colorbar(colors, ax=parallel, label=study.metric)
        _draw_importance(bars, results.setting_importance(study))
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=144)
    path = study.folder / FIGURE_FILE
    write_atomically(path, buffer.getvalue())
    return path


def _draw_curves(
    axis: "matplotlib.axes.Axes",
    study: Study,
    rows: list[TrialResult],
    colors: "matplotlib.cm.ScalarMappable",
) -> None:
    """Draw the learning curve of every trial, averaged over seeds. Better trials are on top."""
    for row in rows[::-1]:
        steps, means = _mean_returns(study, row)
        line_width = 2 if row is rows[0] else 0.8
        axis.plot(steps, means, color=_trial_color(colors, row), linewidth=line_width)
    unit = get_algorithm_entry(study.base.algorithm).unit
    axis.set(
        xlabel=STEP_AXIS_LABEL if unit == "steps" else unit,
        ylabel="evaluation return",
        title=f"{len(rows)} settings",
    )


def _trial_color(
    colors: "matplotlib.cm.ScalarMappable", row: TrialResult
) -> tuple[float, float, float, float]:
    red, green, blue, alpha = colors.to_rgba(np.array([row.value], float))[0]
    return float(red), float(green), float(blue), float(alpha)


def _mean_returns(study: Study, row: TrialResult) -> tuple[list[int], list[float]]:
    """Return the learning curve of a trial as environment steps and mean returns over seeds.

    The curve covers all runs of the batch of the trial.
    """
    means: dict[int, float] = {}
    batch = next(
        batch
        for batch in study.list_batches()
        if row.number in {trial.number for trial in batch.trials}
    )
    for run in batch.runs:
        folder = batch.folder / run.name
        if row.number not in run.numbers or not (folder / METRICS_FILE).is_file():
            continue
        # Each trial of an evolving population is one member.
        seeds = 1 if study.spec.is_evolving else read_spec(folder).options.seeds
        first = run.numbers.index(row.number) * seeds
        for record in read_metrics(folder / METRICS_FILE):
            if record.get("event") == "evaluation":
                members = record.get("return_members", [record.get("return_mean")])
                returns = members[first : first + seeds] if isinstance(members, list) else []
                is_known = returns and all(isinstance(value, int | float) for value in returns)
                means[record["step"]] = float(np.mean(returns)) if is_known else math.nan
    return list(means), list(means.values())


def _draw_parallel_coordinates(
    axis: "matplotlib.axes.Axes",
    study: Study,
    rows: list[TrialResult],
    colors: "matplotlib.cm.ScalarMappable",
) -> None:
    """Draw parallel coordinates: one axis per setting, and one line per trial."""
    scales = [_make_axis_scale(dimension) for dimension in study.space]
    for row in rows[::-1]:
        heights = [
            scale.to_height(row.settings.get(dimension.name))
            for dimension, scale in zip(study.space, scales, strict=True)
        ]
        is_best = row is rows[0]
        axis.plot(
            range(len(heights)),
            heights,
            color=_trial_color(colors, row),
            marker=".",
            linewidth=2.5 if is_best else 0.8,
            zorder=3 if is_best else 2,
        )
    # A box keeps the lines from crossing the labels.
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
    for index, scale in enumerate(scales):
        axis.axvline(index, color="0.7", linewidth=0.8, zorder=0)
        for height, text in scale.ticks:
            axis.annotate(
                text,
                (index, height),
                (5, 0),
                textcoords="offset points",
                fontsize=7,
                va="center",
                zorder=4,
                bbox=box,
            )
    names = [dimension.name.removeprefix("config.").replace("_", "\n") for dimension in study.space]
    axis.set(
        xticks=range(len(names)),
        xticklabels=names,
        yticks=[],
        xlim=(-0.2, len(names) - 0.5),
        title="settings",
    )
    axis.set_ylim(-0.04, 1.04)  # keeps the labels at both ends visible


class AxisScale(NamedTuple):
    """Scale of a parallel axis.

    Attributes:
        to_height: Function from a value to its height on the axis. It returns NaN for an inactive
            setting.
        ticks: Height and label of each tick.
    """

    to_height: Callable[[Any], float]
    ticks: list[tuple[float, str]]


def _make_axis_scale(dimension: Dimension) -> AxisScale:
    """Return the scale of a setting with a list of values or a range."""
    if dimension.value_range is None:
        return _make_choice_scale(dimension.choices)
    span = dimension.value_range
    transform = math.log if span.scale == "log" else float
    low, high = transform(span.low), transform(span.high)

    def to_height(value: float | None) -> float:
        return math.nan if value is None else (transform(value) - low) / (high - low)

    ticks = [(0.0, results.format_value(span.low)), (1.0, results.format_value(span.high))]
    return AxisScale(to_height, ticks)


def _make_choice_scale(values: Sequence[Setting]) -> AxisScale:
    """Return a scale on which values are evenly spaced. At most `MAX_TICKS` values have labels."""
    choices = [list(value) if isinstance(value, tuple) else value for value in values]
    heights = np.linspace(0, 1, len(choices)).tolist() if len(choices) > 1 else [0.5]

    def to_height(value: object) -> float:
        return heights[choices.index(value)] if value in choices else math.nan

    interval = max(1, math.ceil(len(choices) / MAX_TICKS))
    labels = map(results.format_value, choices)
    return AxisScale(to_height, list(zip(heights, labels, strict=True))[::interval])


def _draw_importance(axis: "matplotlib.axes.Axes", importance: dict[str, float]) -> None:
    """Draw a bar chart of the importance of each setting."""
    axis.set(title="importance (PED-ANOVA)")
    if not importance:
        axis.set(xticks=[], yticks=[])
        axis.text(
            0.5,
            0.5,
            "unknown:\ntoo few results",
            ha="center",
            va="center",
            transform=axis.transAxes,
        )
        return
    names = list(importance)[::-1]
    axis.barh(
        [name.removeprefix("config.") for name in names],
        [importance[name] for name in names],
        color="0.4",
    )
    axis.set(xlim=(0, 1))
