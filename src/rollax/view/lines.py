"""The lines of the overview as numbers: what is estimated of which metric, and how they are told apart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollax.host.lineage import read as read_lineage
from rollax.view import estimates, lineage
from rollax.view.curves import PANELS, STEPS, Curve, Run, has, metric

TRAINING = "episode_return", "training return"
EARLIER = 5  # evaluations before the last whose adaptation is shown
ELSEWHERE = ("episode_return", "gradient_steps")  # drawn above, or a count that says little


class Line(NamedTuple):
    """A line with its band, at the K points where there is a number."""

    curve: Curve  # whose label, color and dash it has
    x: np.ndarray  # [K]
    middle: np.ndarray  # [K]
    low: np.ndarray  # [K]
    high: np.ndarray  # [K]
    has_episodes: bool = False  # whether it is of many episodes at each point


def line(curve: Curve, steps: np.ndarray, values: np.ndarray, of: Callable[[np.ndarray], estimates.Estimate]) -> Line | None:
    """What `of` estimates of values `[K, p, N]`, without the points that have no finite one; None where none has."""
    finite = [k for k in range(len(steps)) if np.isfinite(values[k]).any()]
    if not finite:
        return None
    middle, low, high = np.array([of(values[k]) for k in finite]).T
    return Line(curve, steps[finite], middle, low, high, values.shape[2] > 1)


def of_evaluations(curves: list[Curve]) -> list[Line]:
    """The return in evaluation."""
    found = [line(curve, curve.run.eval_step, curve.run.returns[:, curve.members], estimates.interval) for curve in curves]
    return [each for each in found if each is not None]


def of_training(curves: list[Curve]) -> list[Line]:
    """What is beneath the return in evaluation: that in training, or the QD score."""
    name, _ = below(curves)
    band = estimates.middle_half if name in TRAINING else estimates.interval
    found = [line(curve, curve.run.step, metric(curve, name)[:, :, None], band) for curve in curves]
    return [each for each in found if each is not None]


def of_metric(curves: list[Curve], name: str) -> list[Line]:
    """A small panel. What all members of a run have in common is one line, grey where the run has several."""
    found, drawn = list[Line | None](), list[Path]()
    for curve in curves:
        values = metric(curve, name)
        is_common = name in curve.run.metrics and curve.run.metrics[name].shape[1] < curve.run.size
        if is_common and curve.run.folder in drawn:
            continue
        drawn.append(curve.run.folder)
        is_of_all = is_common and len(curve.members) < curve.run.size
        shown = curve._replace(color="#555555", dash="-") if is_of_all else curve
        found.append(line(shown, curve.run.step, values[:, :, None], estimates.middle_half))
    return [each for each in found if each is not None]


def evolution(run: Run) -> tuple[lineage.History, dict[str, Any], int, int] | None:
    """What is drawn of a run that evolves: its history, the ranges of settings, its end in steps, and the best member."""
    told = lineage.history(read_lineage(run.folder), run.spec.evolve) if run.spec.evolve and run.axis == STEPS else None
    if told is None:
        return None
    last = run.returns[-1].mean(axis=-1) if run.eval_step.size else np.zeros(0)
    chosen = lineage.best(told, last if run.spec.options.best_mode == "max" else -last)
    return told, run.spec.evolve, int(max(run.step.max(initial=0), told.step[-1])), chosen


def panels_of(curves: list[Curve], drawn: list[str]) -> list[str]:
    """The metrics that have something to show: finite numbers that are not the same all along."""
    names = dict.fromkeys([*PANELS, *(name for curve in curves for name in curve.run.metrics)])
    elsewhere = {*ELSEWHERE, *drawn, below(curves)[0]}
    return [name for name in names if name not in elsewhere and _changes([metric(curve, name) for curve in curves])]


def _changes(values: list[np.ndarray]) -> bool:
    """Whether there is more to see than one number; a run of one line has no more than that."""
    finite = np.concatenate([each[np.isfinite(each)] for each in values])
    return bool(finite.size and (finite.min() < finite.max() or max(map(len, values)) == 1))


def below(curves: list[Curve]) -> tuple[str, str]:
    """The metric beneath the return in evaluation, and what it is called."""
    return ("qd_score", "QD score") if all(has(curve.run, "qd_score") for curve in curves) else TRAINING


def what_lines_are(curves: list[Curve]) -> str:
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
    others = "training return and small panels" if below(curves) == TRAINING else "small panels"
    quartiles = f"; {others}: with the middle half" if counts[-1] > 1 else ""
    return f"{', '.join(words)}, with its 95 % bootstrap interval{quartiles}"


def earlier(count: int) -> list[int]:
    """Evaluations before the last of `count`, evenly spread and the first among them."""
    return sorted({round(index) for index in np.linspace(0, count - 2, min(EARLIER, count - 1))})


def spans_decades(lines: list[np.ndarray]) -> bool:
    """Whether values are positive and so far apart that a linear axis would show the largest only."""
    values = np.concatenate([*lines, np.zeros(0)])
    values = values[np.isfinite(values)]
    return bool(values.size > 1 and values.min() > 0 and np.quantile(values, 0.95) > 50 * np.quantile(values, 0.05))
