"""The figure of runs by themselves: returns above, and small panels of all that the algorithm logs beneath."""

import textwrap
from typing import Any

import numpy as np

from rollax.host.settings import entry
from rollax.view import estimates, lineage, lines
from rollax.view.curves import Curve, has, title
from rollax.view.style import frames, ticks_of_steps

MOST_PANELS = 20


def fill(figure: Any, curves: list[Curve]) -> list[str]:
    """Draws the overview into an empty figure, and returns what it leaves out, in words."""
    environments = list(dict.fromkeys(curve.run.spec.environment for curve in curves))
    if len(environments) > 1:
        _several_environments(figure, curves, environments)
        notes = []
    else:
        notes = _one_environment(figure, curves)
    legend(figure, curves)
    return notes


def _one_environment(figure: Any, curves: list[Curve]) -> list[str]:
    """Returns above, the small panels of metrics beneath, and of a single run that evolves its settings under those."""
    run, is_single = curves[0].run, len({curve.run.folder for curve in curves}) == 1
    evolved = lines.evolution(run) if is_single else None
    found = lines.panels_of(curves, [f"evolve/{name}" for name in run.spec.evolve] if evolved else [])
    panels, others = found[:MOST_PANELS], found[MOST_PANELS:]
    rows = -(-len(panels) // 4)
    has_trials = _have_trials(curves)
    heights = 6.0, max(1.9 * rows, 0.01), *((2.1 * lineage.rows(run.spec.evolve) + 0.2,) if evolved else ())
    figure.set_size_inches(13 if has_trials else 10, 0.4 + sum(heights))
    returns, small, *under = figure.subfigures(len(heights), 1, height_ratios=heights)
    if evolved:
        lineage.draw(under[0], *evolved, lambda axis: _finish(axis, "", small=True))
    if has_trials:
        returns, adaptation = returns.subfigures(1, 2, width_ratios=(8, 5))
        _adaptation(adaptation.subplots(), curves, is_wide=True)
    _returns(returns, curves, is_wide=True)
    figure.suptitle(f"{_algorithms(curves)} on {curves[0].run.spec.environment}", fontsize=12, fontweight="bold")
    axes = small.subplots(rows, 4, squeeze=False).ravel() if panels else []
    for axis, name in zip(axes, panels, strict=False):
        _panel(axis, curves, name)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    return [f"not drawn, for want of space: {', '.join(others)}; --only NAME... draws what it names"] if others else []


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
        _returns(part, chosen, is_wide=False)


def _algorithms(curves: list[Curve]) -> str:
    return ", ".join(dict.fromkeys(curve.run.spec.algorithm for curve in curves))


def _returns(figure: Any, curves: list[Curve], is_wide: bool) -> None:
    """Return in evaluation and, beneath it, in training, or the QD score where there is an archive; whichever there is."""
    name, label = lines.below(curves)
    parts = [any(curve.run.eval_step.size for curve in curves), any(has(curve.run, name) for curve in curves)]
    number = max(1, sum(parts))
    axes = figure.subplots(number, 1, height_ratios=(3, 2)[:number], sharex=True, squeeze=False)[:, 0]
    if parts[0] or not parts[1]:
        for line in lines.of_evaluations(curves):
            _draw(axes[0], line, "o")
        axes[0].set_ylabel("evaluation return")
        _finish(axes[0], "nothing to draw yet")
    if parts[1]:
        for line in lines.of_training(curves):
            _draw(axes[-1], line)
        axes[-1].set_ylabel(label)
        _finish(axes[-1], "nothing to draw yet")
    axes[0].set_title(
        textwrap.fill(lines.what_lines_are(curves), 110 if is_wide else 52), fontsize=8, color="#555555", loc="left"
    )
    axes[-1].set_xlabel(" or ".join(dict.fromkeys(curve.run.axis for curve in curves)))


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
        for index in (i for i in lines.earlier(len(trials)) if is_single and labels[i] != labels[-1]):
            faint = curve._replace(color=_faint(curve.color, 0.25 + 0.45 * (index + 1) / len(trials)))
            _draw(axis, lines.line(faint, episodes, trials[index], estimates.middle), label=labels[index])
        _draw(axis, lines.line(curve, episodes, trials[-1], estimates.interval), "o", labels[-1])
    words = "last evaluation with its 95 % bootstrap interval" + (", fainter those before" if is_single else "")
    axis.set_title(textwrap.fill(words, 80 if is_wide else 52), fontsize=8, color="#555555", loc="left")
    axis.set_xlabel("episode of the trial")
    axis.set_ylabel("return of the episode")
    _finish(axis, "no trials")
    most = max(curve.run.trials.shape[-1] for curve in curves)
    axis.set_xticks(range(1, most + 1, max(1, -(-most // 8))))
    if is_single and axis.lines:
        place: Any = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        axis.legend(title=textwrap.fill(curves[0].run.axis, 14), fontsize=8, title_fontsize=8, reverse=True, **place)


def _faint(color: Any, share: float) -> tuple[float, ...]:
    """That much of the color on white: transparent lines would show each other."""
    from matplotlib.colors import to_rgb

    return tuple(1 - share * (1 - level) for level in to_rgb(color))


def _panel(axis: Any, curves: list[Curve], name: str) -> None:
    found = lines.of_metric(curves, name)
    for line in found:
        _draw(axis, line)
    unit = entry(curves[0].run.spec.algorithm).unit
    axis.set_title(title(name, unit), loc="left", fontsize=9)
    if lines.spans_decades([line.middle for line in found]):
        axis.set_yscale("log")
    _finish(axis, "no finite values", small=True, is_count=name == "steps_per_second")


def _draw(axis: Any, line: lines.Line | None, marker: str = "", label: str | None = None) -> None:
    """One line with its band, if there is any."""
    if line is None:
        return
    curve, is_single = line.curve, len(line.x) == 1
    width = 1.8 if line.has_episodes else 1.2
    style: Any = {"color": curve.color, "linewidth": width, "marker": marker or ("o" if is_single else ""), "markersize": 3.5}
    axis.plot(line.x, line.middle, curve.dash, **style, zorder=3, label=label)
    if is_single:
        axis.vlines(line.x, line.low, line.high, color=curve.color, alpha=0.5, linewidth=2)
    elif np.any(line.high > line.low):
        axis.fill_between(line.x, line.low, line.high, color=curve.color, alpha=0.18, linewidth=0)


def _finish(axis: Any, when_empty: str, small: bool = False, is_count: bool = False) -> None:
    """Ticks that can be read, and a word where there is no line."""
    ticks_of_steps(axis, 4 if small else 7)
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


def legend(figure: Any, curves: list[Curve]) -> None:
    """One legend for all panels, beneath them; none for a single line."""
    from matplotlib.lines import Line2D

    unique = {curve.label: curve for curve in curves}
    if len(unique) < 2:
        return
    handles = [Line2D([], [], color=curve.color, linestyle=curve.dash, linewidth=2) for curve in unique.values()]
    characters = 11 * figure.get_size_inches()[0]
    columns = max(1, min(len(unique), 5, int(characters / (max(map(len, unique)) + 6))))
    figure.legend(handles, list(unique), loc="outside lower center", ncols=columns)
