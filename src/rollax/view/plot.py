"""Learning curves of one run, or of several compared."""

import io
import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollax.errors import UsageError
from rollax.host.files import write_atomically
from rollax.host.lineage import read as read_lineage
from rollax.host.settings import entry
from rollax.host.statistics import bootstrap_interval, interquartile_mean
from rollax.view import lineage
from rollax.view.curves import PANELS, Curve, Run, curves_of, read_run

FORMATS = (".png", ".pdf", ".svg")
TRAINING = "episode_return", "training return"
EARLIER = 5  # evaluations before the last whose adaptation is shown
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "svg.fonttype": "none",
}


def plot(runs: Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Draws the learning curves of the runs and returns the file.

    Evaluation return: the mean over a single run's episodes, or the interquartile mean over the seeds of a population, each
    with its 95 % bootstrap interval; a swept value has a line of its own. Runs in several environments get a column each.
    Where episodes are trials, a further panel shows how the return rises from one episode of a trial to the next.
    `out` ends in .png, .pdf or .svg; without it, `figures/curves.png` in the run or a new `comparison.png` here.

    Raises UsageError when a folder is no run, when there is nothing to draw, or when `out` cannot be written.
    """
    if not runs:
        raise UsageError("there is nothing to plot: name one run or more")
    target = _target([Path(run) for run in runs], out)
    curves = curves_of([part for run in runs for part in read_run(run)])
    image = _image(curves, target.suffix.lower()[1:])
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, image)
    except OSError as error:
        raise UsageError(f"{target} cannot be written ({error}): choose another --out") from error
    return target


def _target(runs: list[Path], out: Path | str | None) -> Path:
    """Where to write: what was asked for, our own figure of the run, or a name that is still free."""
    if out is not None:
        if Path(out).suffix.lower() not in FORMATS:
            raise UsageError(f"--out ({out}) must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
        return Path(out)
    if len(runs) == 1:
        return runs[0] / "figures" / "curves.png"
    number = 1
    while (free := Path("comparison.png" if number == 1 else f"comparison-{number}.png")).exists():
        number += 1
    return free


def _image(curves: list[Curve], suffix: str) -> bytes:
    """The whole figure as a file's content. No state of matplotlib's outside it is touched."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    environments = list(dict.fromkeys(curve.run.spec.environment for curve in curves))
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure = Figure(layout=ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.06))
        if len(environments) == 1:
            _one_environment(figure, curves)
        else:
            _several_environments(figure, curves, environments)
        _legend(figure, curves)
        figure.savefig(buffer, format=suffix, dpi=150)
    return buffer.getvalue()


def _one_environment(figure: Any, curves: list[Curve]) -> None:
    """Returns above, the small panels of metrics beneath, and of a single run that evolves its settings under those."""
    large = _below(curves)[0]
    panels = [name for name in PANELS if name != large and any(_has(curve.run, name) for curve in curves)]
    rows = -(-len(panels) // 4)
    has_trials = _have_trials(curves)
    run, is_single = curves[0].run, len({curve.run.folder for curve in curves}) == 1
    told = lineage.history(read_lineage(run.folder), run.spec.evolve) if is_single and run.spec.evolve else None
    heights = 6.0, max(1.9 * rows, 0.01), *((2.1 * lineage.rows(run.spec.evolve) + 0.2,) if told else ())
    figure.set_size_inches(13 if has_trials else 10, 0.4 + sum(heights))
    returns, small, *under = figure.subfigures(len(heights), 1, height_ratios=heights)
    if told:
        last = run.returns[-1].mean(axis=-1) if run.eval_step.size else np.zeros(0)
        end = int(max(run.step.max(initial=0), told.step[-1]))
        chosen = lineage.best(told, last if run.spec.options.best_mode == "max" else -last)
        lineage.draw(under[0], told, run.spec.evolve, end, chosen, lambda axis: _finish(axis, "", small=True))
    if has_trials:
        returns, adaptation = returns.subfigures(1, 2, width_ratios=(8, 5))
        _adaptation(adaptation.subplots(), curves, is_wide=True)
    _returns(returns.subplots(2, 1, height_ratios=(3, 2), sharex=True, squeeze=False)[:, 0], curves, is_wide=True)
    figure.suptitle(f"{_algorithms(curves)} on {curves[0].run.spec.environment}", fontsize=12, fontweight="bold")
    if not panels:
        return
    axes = small.subplots(rows, 4, squeeze=False).ravel()
    for axis, name in zip(axes, panels, strict=False):
        _panel(axis, curves, name)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)


def _several_environments(figure: Any, curves: list[Curve], environments: list[str]) -> None:
    """Returns only, a column for each environment: returns of different environments do not compare."""
    columns = min(len(environments), 4)
    rows = -(-len(environments) // columns)
    has_trials = _have_trials(curves)
    figure.set_size_inches(3.6 * columns + 1, (7.6 if has_trials else 5.2) * rows + 0.6)
    figure.suptitle(_algorithms(curves), fontsize=12, fontweight="bold")
    parts = np.ravel(figure.subfigures(rows, columns, squeeze=False))
    for part, environment in zip(parts, environments, strict=False):
        chosen = [curve for curve in curves if curve.run.spec.environment == environment]
        part.suptitle(environment, fontsize=11, fontweight="bold")
        if has_trials:
            part, adaptation = part.subfigures(2, 1, height_ratios=(5.2, 2.4))
            if _have_trials(chosen):
                _adaptation(adaptation.subplots(), chosen, is_wide=False)
        _returns(part.subplots(2, 1, height_ratios=(3, 2), sharex=True, squeeze=False)[:, 0], chosen, is_wide=False)


def _algorithms(curves: list[Curve]) -> str:
    return ", ".join(dict.fromkeys(curve.run.spec.algorithm for curve in curves))


def _below(curves: list[Curve]) -> tuple[str, str]:
    """The metric beneath the return in evaluation, and what it is called."""
    return ("qd_score", "QD score") if all(_has(curve.run, "qd_score") for curve in curves) else TRAINING


def _returns(axes: Sequence[Any], curves: list[Curve], is_wide: bool) -> None:
    """Return in evaluation and, beneath it, in training, or the QD score where there is an archive."""
    above, below = axes
    name, label = _below(curves)
    for curve in curves:
        _draw(above, curve, curve.run.eval_step, curve.run.returns[:, curve.members], _interval, "o")
        band = _middle_half if name in TRAINING else _interval
        _draw(below, curve, curve.run.step, _metric(curve, name)[:, :, None], band, "")
    above.set_title(textwrap.fill(_what_lines_are(curves), 110 if is_wide else 52), fontsize=8, color="#555555", loc="left")
    above.set_ylabel("evaluation return")
    below.set_ylabel(label)
    _finish(above, "no evaluations")
    _finish(below, "not told by type of agent" if any(curve.run.kind for curve in curves) else "no finished episodes")
    below.set_xlabel("environment frames" if name in TRAINING else "evaluations")


def _what_lines_are(curves: list[Curve]) -> str:
    """In words, for every reader of the figure."""
    counts = sorted({len(curve.members) for curve in curves})
    episodes = sorted({curve.run.returns.shape[2] for curve in curves if curve.run.eval_step.size})
    words, is_closed_form = [], all(curve.run.is_closed_form for curve in curves)
    if counts[0] == 1 and episodes and not is_closed_form:
        what = "trials" if all(curve.run.trials.size for curve in curves) else "episodes"
        words.append(f"mean of {' or '.join(map(str, episodes))} {what}")
    if counts[-1] > 1:
        what = "members" if any(curve.run.spec.evolve for curve in curves) else "seeds"
        words.append(f"interquartile mean of {' or '.join(str(n) for n in counts if n > 1)} {what}")
    if not words:
        return "the best elite by a closed form, which plays no episodes" if is_closed_form else ""
    others = "training return and small panels" if _below(curves) == TRAINING else "small panels"
    quartiles = f"; {others}: with the middle half" if counts[-1] > 1 else ""
    return f"{', '.join(words)}, with its 95 % bootstrap interval{quartiles}"


def _have_trials(curves: list[Curve]) -> bool:
    return any(curve.run.trials.size > 0 for curve in curves)


def _adaptation(axis: Any, curves: list[Curve], is_wide: bool) -> None:
    """The return of each episode of a trial: at the last evaluation and, of a single line, fainter at some before it."""
    is_single = is_wide and len(curves) == 1
    for curve in curves:
        trials = curve.run.trials[:, curve.members].transpose(0, 3, 1, 2)  # [K, E, p, N]
        if not trials.size:
            continue
        episodes, labels = np.arange(1, trials.shape[1] + 1), [frames(float(f"{step:.3g}")) for step in curve.run.eval_step]
        # An evaluation right before the one at the end would have the same label and the same line.
        for index in (i for i in _earlier(len(trials)) if is_single and labels[i] != labels[-1]):
            faint = curve._replace(color=_faint(curve.color, 0.25 + 0.45 * (index + 1) / len(trials)))
            _draw(axis, faint, episodes, trials[index], _middle, "", labels[index])
        _draw(axis, curve, episodes, trials[-1], _interval, "o", labels[-1])
    words = "last evaluation with its 95 % bootstrap interval" + (", fainter those before" if is_single else "")
    axis.set_title(textwrap.fill(words, 80 if is_wide else 52), fontsize=8, color="#555555", loc="left")
    axis.set_xlabel("episode of the trial")
    axis.set_ylabel("return of the episode")
    _finish(axis, "no trials")
    most = max(curve.run.trials.shape[-1] for curve in curves)
    axis.set_xticks(range(1, most + 1, max(1, -(-most // 8))))
    if is_single and axis.lines:
        place: Any = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        axis.legend(title="environment\nframes", fontsize=8, title_fontsize=8, reverse=True, **place)


def _earlier(count: int) -> list[int]:
    """Evaluations before the last of `count`, evenly spread and the first among them."""
    return sorted({round(index) for index in np.linspace(0, count - 2, min(EARLIER, count - 1))})


def _faint(color: Any, share: float) -> tuple[float, ...]:
    """That much of the color on white: transparent lines would show each other."""
    from matplotlib.colors import to_rgb

    return tuple(1 - share * (1 - level) for level in to_rgb(color))


def _panel(axis: Any, curves: list[Curve], name: str) -> None:
    drawn: list[Path] = []
    for curve in curves:
        values = _metric(curve, name)
        is_common = name in curve.run.metrics and curve.run.metrics[name].shape[1] < len(curve.run.spec.members())
        if is_common and curve.run.folder in drawn:
            continue
        drawn.append(curve.run.folder)
        is_of_all = is_common and len(curve.members) < len(curve.run.spec.members())
        shown = curve._replace(color="#555555", dash="-") if is_of_all else curve
        _draw(axis, shown, curve.run.step, values[:, :, None], _middle_half, "")
    unit = entry(curves[0].run.spec.algorithm).unit
    axis.set_title(PANELS[name].format(unit=unit), loc="left", fontsize=9)
    if _spans_decades(axis):
        axis.set_yscale("log")
    _finish(axis, "no finite values", small=True, is_count=name == "steps_per_second")


def _has(run: Run, name: str) -> bool:
    return name in run.metrics and bool(np.isfinite(run.metrics[name]).any())


def _metric(curve: Curve, name: str) -> np.ndarray:
    """A metric of the curve's members, `[M, p]` (`[M, 1]` for what all have in common); NaN where the run lacks it."""
    values = curve.run.metrics.get(name, np.full((curve.run.step.size, 1), math.nan))
    return values if values.shape[1] == 1 else values[:, curve.members]


Estimate = tuple[float, float, float]  # the line and the two sides of its band


def _draw(
    axis: Any,
    curve: Curve,
    steps: np.ndarray,
    values: np.ndarray,
    of: Callable[[np.ndarray], Estimate],
    marker: str,
    label: str | None = None,
) -> None:
    """One line with its band, from values `[K, p, N]`; points without any finite value are left out."""
    finite = [k for k in range(len(steps)) if np.isfinite(values[k]).any()]
    if not finite:
        return
    line, low, high = np.array([of(values[k]) for k in finite]).T
    x = steps[finite]
    marker = marker or ("o" if len(finite) == 1 else "")
    width = 1.8 if values.shape[2] > 1 else 1.2
    style: Any = {"color": curve.color, "linewidth": width, "marker": marker, "markersize": 3.5}
    axis.plot(x, line, curve.dash, **style, zorder=3, label=label)
    if len(finite) == 1:
        axis.vlines(x, low, high, color=curve.color, alpha=0.5, linewidth=2)
    elif np.any(high > low):
        axis.fill_between(x, low, high, color=curve.color, alpha=0.18, linewidth=0)


def _interval(values: np.ndarray) -> Estimate:
    """Of one evaluation `[p, N]`: over the mean returns of several members, or over the episodes of a single one."""
    if values.shape[0] > 1:
        means = values.mean(axis=1)
        means = means[np.isfinite(means)]
        if not means.size:
            return math.nan, math.nan, math.nan
        low, high = bootstrap_interval(means)
        return float(interquartile_mean(means)), low, high
    episodes = values[np.isfinite(values)]
    draws = np.random.default_rng(0).integers(episodes.size, size=(1000, episodes.size))
    low, high = np.percentile(episodes[draws].mean(axis=1), (2.5, 97.5))
    return float(episodes.mean()), float(low), float(high)


def _middle(values: np.ndarray) -> Estimate:
    """The line alone of `_interval`."""
    line, *_ = _interval(values)
    return line, line, line


def _middle_half(values: np.ndarray) -> Estimate:
    """Of one line of metrics `[p, 1]`: the interquartile mean over members, with the quartiles as its band."""
    finite = values[np.isfinite(values)]
    low, high = np.percentile(finite, (25, 75))
    return float(interquartile_mean(finite)), float(low), float(high)


def _spans_decades(axis: Any) -> bool:
    """Whether a panel's values are positive and so far apart that a linear axis would show the largest only."""
    values = np.concatenate([np.asarray(line.get_ydata(), float) for line in axis.lines] or [np.zeros(0)])
    values = values[np.isfinite(values)]
    return bool(values.size > 1 and values.min() > 0 and np.quantile(values, 0.95) > 50 * np.quantile(values, 0.05))


def _finish(axis: Any, when_empty: str, small: bool = False, is_count: bool = False) -> None:
    """Ticks that can be read, and a word where there is no line."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(4 if small else 7, steps=[1, 2, 2.5, 5, 10]))
    axis.xaxis.set_major_formatter(lambda value, _: frames(value))
    if not axis.lines:
        axis.text(0.5, 0.5, when_empty, transform=axis.transAxes, ha="center", va="center", color="#888888")
        axis.set_yticks([])
    if small and axis.lines:
        axis.tick_params(labelsize=7)
        if is_count:
            axis.yaxis.set_major_formatter(lambda value, _: frames(value))
        elif axis.get_yscale() == "linear":
            axis.ticklabel_format(axis="y", scilimits=(-3, 4))
        axis.yaxis.get_offset_text().set_fontsize(7)


def frames(value: float) -> str:
    """A number of frames in few characters: 0, 500, 10k, 1.5M, 2B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.6g}{unit}"
    return f"{value:.6g}"


def _legend(figure: Any, curves: list[Curve]) -> None:
    """One legend for all panels, beneath them; none for a single line."""
    from matplotlib.lines import Line2D

    unique = {curve.label: curve for curve in curves}
    if len(unique) < 2:
        return
    handles = [Line2D([], [], color=curve.color, linestyle=curve.dash, linewidth=2) for curve in unique.values()]
    characters = 11 * figure.get_size_inches()[0]
    columns = max(1, min(len(unique), 5, int(characters / (max(map(len, unique)) + 6))))
    figure.legend(handles, list(unique), loc="outside lower center", ncols=columns)
