"""Algorithms over several environments in one picture: interquartile means, performance profiles, improvement."""

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollax.errors import UnknownNameError, UsageError
from rollax.host import aggregates
from rollax.host.evaluation import digits
from rollax.host.statistics import interquartile_mean

if TYPE_CHECKING:
    from rollax.view.curves import Curve
    from rollax.view.paper import Line

POINTS = 201  # thresholds of a profile
MOST_PAIRS = 10


class Scored(NamedTuple):
    """What algorithms, or whatever the labels tell apart, reached at the end in the environments that all have."""

    environments: list[str]
    curves: "dict[str, Curve]"  # by label: its color and dash
    scores: dict[str, list[np.ndarray]]  # by label: [n] normalized scores in each environment
    notes: list[str]


def scores_of(lines: "list[Line]", normalize: tuple[str, ...]) -> Scored:
    """The last point of each line of the first metric, normalized. Raises UsageError when no environment is of all labels."""
    lines = [line for line in lines if line.metric == lines[0].metric]
    by_label: dict[str, dict[str, Line]] = {}
    for line in lines:
        by_label.setdefault(line.curve.label, {})[line.environment] = line
    everywhere = list(dict.fromkeys(line.environment for line in lines))
    environments = [name for name in everywhere if all(name in of_label for of_label in by_label.values())]
    if not environments:
        raise UsageError(
            f"--aggregate compares {', '.join(by_label)} in environments that all have been trained in: there is none"
        )
    notes = [f"left out of aggregates: {x}, where not all were trained" for x in everywhere if x not in environments]
    ends = _ends(lines, environments, normalize)
    said = "; ".join(f"{name} {low:g} to {high:g}" for name, (low, high, _) in ends.items())
    reached = [name for name, (*_, is_given) in ends.items() if not is_given]
    how = (
        f" (of {', '.join(reached)} the lowest and highest that was reached: --normalize NAME=LOW,HIGH sets it)"
        if reached
        else ""
    )
    notes.append(f"scores are normalized, 0 to 1: {said}{how}")
    scores = {
        label: [aggregates.normalized(of_label[name].values[-1], *ends[name][:2]) for name in environments]
        for label, of_label in by_label.items()
    }
    counts = {len(x) for each in scores.values() for x in each}
    if len(counts) > 1:
        notes.append(f"numbers of seeds differ ({min(counts)} to {max(counts)}): more seeds count more in interquartile means")
    if 1 in counts:
        notes.append("where there is one seed in an environment there are no intervals: train with --seeds 5 or more")
    curves = {label: next(iter(of_label.values())).curve for label, of_label in by_label.items()}
    return Scored(environments, curves, scores, notes)


def _ends(lines: "list[Line]", environments: list[str], normalize: tuple[str, ...]) -> dict[str, tuple[float, float, bool]]:
    """What counts as 0 and as 1 in each environment, and whether that was given."""
    given = {}
    for text in normalize:
        name, _, numbers = text.rpartition("=")
        matching = [each for each in environments if name in (each, each.rpartition("/")[2])]
        if not matching:
            raise UnknownNameError("environment of --normalize", name or text, environments)
        try:
            low, high = (float(number) for number in numbers.split(","))
        except ValueError:
            raise UsageError(f"--normalize takes ENVIRONMENT=LOW,HIGH such as {matching[0]}=0,500, not {text!r}") from None
        given |= dict.fromkeys(matching, (low, high, True))
    reached = {}
    for name in environments:
        values = np.concatenate([line.values.ravel() for line in lines if line.environment == name])
        reached[name] = float(values.min()), float(values.max()), False
    return {name: given.get(name, reached[name]) for name in environments}


def _pairs(scored: Scored) -> list[tuple[str, str]]:
    """Each two labels, the one with the higher scores first."""
    means = {label: float(interquartile_mean(np.concatenate(scores))) for label, scores in scored.scores.items()}
    return list(itertools.combinations(sorted(means, key=lambda label: -means[label]), 2))[:MOST_PAIRS]


def height(scored: Scored, columns: int) -> float:
    """Inches that the panels take: side by side over two columns, one above the other in one."""
    bars, pairs = 0.45 + 0.22 * len(scored.scores), 0.45 + 0.22 * len(_pairs(scored))
    if columns == 2:
        return max(1.6, bars, pairs)
    return bars + 1.7 + (pairs if _pairs(scored) else 0)


def fill(part: Any, scored: Scored, columns: int) -> tuple[dict[str, bytes], list[str]]:
    """Draws the panels. Returns their numbers as a table, and in words what a reader has to know."""
    pairs = _pairs(scored)
    means = {label: aggregates.interquartile(scores) for label, scores in scored.scores.items()}
    chances = {pair: aggregates.improvement(*(scored.scores[label] for label in pair)) for pair in pairs}
    number = 3 if pairs else 2
    if columns == 2:
        axes = part.subplots(1, number)
    else:
        ratios = [0.45 + 0.22 * len(means), 1.7, 0.45 + 0.22 * len(pairs)][:number]
        axes = part.subplots(number, 1, height_ratios=ratios)
    _means(axes[0], scored, means)
    _profiles(axes[1], scored)
    if pairs:
        _improvement(axes[2], scored, chances)
    words = [f"{label}: interquartile mean {_told(mean)}" for label, mean in means.items()]
    words += [f"P({first} > {second}) = {_told(chance)}" for (first, second), chance in chances.items()]
    intervals = f"intervals: 95 %, by the stratified bootstrap over the seeds of each of: {', '.join(scored.environments)}"
    rows = ["what,label,value,low,high"]
    rows += [_row("interquartile mean", label, mean) for label, mean in means.items()]
    rows += [_row("probability of improvement", f"{first} > {second}", each) for (first, second), each in chances.items()]
    return {"-aggregate": "\n".join([*rows, ""]).encode()}, [*scored.notes, *words, intervals]


def _told(estimate: aggregates.Estimate) -> str:
    interval = f" [{digits(float(estimate.low))}, {digits(float(estimate.high))}]" if np.isfinite(estimate.low) else ""
    return f"{digits(float(estimate.value))}{interval}"


def _row(what: str, label: str, estimate: aggregates.Estimate) -> str:
    numbers = [f"{float(x):.9g}" if np.isfinite(x) else "" for x in estimate]
    return ",".join([what, '"' + label.replace('"', '""') + '"', *numbers])


def _bar(axis: Any, place: int, estimate: aggregates.Estimate, color: Any) -> None:
    """An interval as a bar, with a stroke where the estimate is."""
    if np.isfinite(estimate.low):
        axis.barh(place, estimate.high - estimate.low, 0.6, estimate.low, color=color, alpha=0.35, linewidth=0)
    axis.plot([float(estimate.value)] * 2, [place - 0.3, place + 0.3], color=color, linewidth=1.6, solid_capstyle="butt")


def _rows(axis: Any, labels: list[str]) -> None:
    axis.set_yticks(range(len(labels)), labels)
    spare = max(0.0, 3 - len(labels)) / 2  # so that two bars are no wider than three
    axis.set_ylim(len(labels) - 0.4 + spare, -0.6 - spare)
    axis.grid(False, axis="y")
    axis.tick_params(axis="y", length=0)


def _means(axis: Any, scored: Scored, means: dict[str, aggregates.Estimate]) -> None:
    for place, (label, mean) in enumerate(means.items()):
        _bar(axis, place, mean, scored.curves[label].color)
    _rows(axis, list(means))
    axis.use_sticky_edges = False  # of the bars, which would end at the frame
    axis.margins(x=0.08)
    axis.set_xlabel("interquartile mean of scores")


def _profiles(axis: Any, scored: Scored) -> None:
    values = np.concatenate([x for scores in scored.scores.values() for x in scores])
    margin = 0.02 * (np.ptp(values) or 1.0)
    thresholds = np.linspace(min(0.0, values.min()) - margin, values.max() + margin, POINTS)
    for label, scores in scored.scores.items():
        found, curve = aggregates.profile(scores, thresholds), scored.curves[label]
        axis.plot(thresholds, found.value, curve.dash, color=curve.color, linewidth=1.2)
        if np.isfinite(found.low).any():
            axis.fill_between(thresholds, found.low, found.high, color=curve.color, alpha=0.18, linewidth=0)
    axis.set_xlabel("normalized score \u03c4")
    axis.set_ylabel("share of runs above \u03c4")
    axis.set_ylim(-0.02, 1.02)


def _improvement(axis: Any, scored: Scored, chances: dict[tuple[str, str], aggregates.Estimate]) -> None:
    for place, ((first, _), chance) in enumerate(chances.items()):
        _bar(axis, place, chance, scored.curves[first].color)
    axis.axvline(0.5, color="#666666", linewidth=0.8, linestyle=":")
    _rows(axis, [f"{first} > {second}" for first, second in chances])
    axis.set_xlim(-0.02, 1.02)
    axis.set_xlabel("probability of improvement")
