"""Comparison of algorithms over several environments by aggregates of normalized scores."""

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollax.errors import UnknownNameError, UsageError
from rollax.training.evaluation import aggregates
from rollax.training.evaluation.statistics import interquartile_mean
from rollax.visualization.plots.curve_estimates import PanelLine
from rollax.visualization.plots.intervals import Estimate, format_estimate
from rollax.visualization.plots.learning_curves import Curve

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

NUM_THRESHOLDS = 201  # of a performance profile
MAX_PAIRS = 10
PROFILE_HEIGHT = 1.7  # inches, in a single column


class AlgorithmScores(NamedTuple):
    """Final scores of each label (usually an algorithm) in the environments that all labels share.

    Attributes:
        environments: Names of the environments.
        curves: One curve of each label, keyed by label. It provides color and line style.
        scores: Normalized scores, keyed by label: for each environment, an array `[n]` over n
            seeds.
        notes: Notes for the caption.
    """

    environments: list[str]
    curves: dict[str, Curve]
    scores: dict[str, list[np.ndarray]]
    notes: list[str]


class NormalizationBounds(NamedTuple):
    """Returns with normalized values 0 (low) and 1 (high) in an environment.

    `is_chosen` states whether the user chose them.
    """

    low: float
    high: float
    is_chosen: bool


class DrawnComparison(NamedTuple):
    """CSV tables of a comparison, keyed by file name ending, and notes for the caption."""

    tables: dict[str, bytes]
    notes: list[str]


def normalize_scores(lines: list[PanelLine], normalize: tuple[str, ...]) -> AlgorithmScores:
    """Normalize the final values of the first metric in the environments that all labels share.

    Args:
        lines: Lines of the figure.
        normalize: Bounds `ENVIRONMENT=LOW,HIGH`: returns with the normalized values 0 and 1.
            Environments without bounds use their lowest and highest value.

    Returns:
        Normalized scores, with notes for the caption.

    Raises:
        UsageError: If no environment is shared by all labels, or bounds are invalid.
        UnknownNameError: If bounds name an unknown environment.
    """
    lines = [line for line in lines if line.metric == lines[0].metric]
    lines_by_label: dict[str, dict[str, PanelLine]] = {}
    for line in lines:
        lines_by_label.setdefault(line.curve.label, {})[line.environment] = line
    all_environments = list(dict.fromkeys(line.environment for line in lines))
    environments = [
        name
        for name in all_environments
        if all(name in label_lines for label_lines in lines_by_label.values())
    ]
    if not environments:
        raise UsageError(
            f"--aggregate requires an environment that {', '.join(lines_by_label)} share. "
            "Name runs that were trained in the same environment."
        )
    bounds = _normalization_bounds(lines, environments, normalize)
    scores = {
        label: [
            aggregates.normalize_returns(
                _independent_final_values(label_lines[name]), bounds[name].low, bounds[name].high
            )
            for name in environments
        ]
        for label, label_lines in lines_by_label.items()
    }
    notes = [
        f"left out of aggregates: {name}, because not all labels were trained there"
        for name in all_environments
        if name not in environments
    ]
    return AlgorithmScores(
        environments=environments,
        curves={
            label: next(iter(label_lines.values())).curve
            for label, label_lines in lines_by_label.items()
        },
        scores=scores,
        notes=[*notes, _describe_bounds(bounds), *_describe_seeds(lines, scores)],
    )


def _describe_bounds(bounds: dict[str, NormalizationBounds]) -> str:
    """Return a note with the normalization bounds of each environment."""
    ranges = "; ".join(
        f"{name} {limits.low:g} to {limits.high:g}" for name, limits in bounds.items()
    )
    derived_names = [name for name, limits in bounds.items() if not limits.is_chosen]
    source = (
        f" (lowest and highest value reached in {', '.join(derived_names)}; "
        "--normalize NAME=LOW,HIGH sets other bounds)"
        if derived_names
        else ""
    )
    return f"scores are normalized to [0, 1] from: {ranges}{source}"


def _describe_seeds(lines: list[PanelLine], scores: dict[str, list[np.ndarray]]) -> list[str]:
    """Return caption notes on evolved populations, and on unequal or single seeds."""
    notes = []
    if any(line.curve.has_shared_founders for line in lines):
        notes.append(
            "an evolved population counts as one seed with the mean of its members, because they "
            "share founders"
        )
    counts = {len(values) for label_scores in scores.values() for values in label_scores}
    if len(counts) > 1:
        notes.append(
            f"numbers of seeds differ ({min(counts)} to {max(counts)}), and labels with more seeds "
            "weigh more in interquartile means"
        )
    if 1 in counts:
        notes.append(
            "environments with a single seed have no intervals; train with --seeds 5 or more"
        )
    return notes


def _independent_final_values(line: PanelLine) -> np.ndarray:
    """Return the last value of each seed, `[n]`, or the mean over an evolved population, `[1]`."""
    values = line.values[-1]
    return values.mean(keepdims=True) if line.curve.has_shared_founders else values


def _normalization_bounds(
    lines: list[PanelLine], environments: list[str], normalize: tuple[str, ...]
) -> dict[str, NormalizationBounds]:
    """Return the bounds of each environment: the user's bounds, or the lowest and highest value."""
    bounds = {}
    for name in environments:
        values = np.concatenate([line.values.ravel() for line in lines if line.environment == name])
        bounds[name] = NormalizationBounds(float(values.min()), float(values.max()), False)
    for text in normalize:
        name, _, bounds_text = text.rpartition("=")
        matches = [
            environment
            for environment in environments
            if name in (environment, environment.rpartition("/")[2])
        ]
        if not matches:
            raise UnknownNameError("environment of --normalize", name or text, environments)
        try:
            low, high = (float(bound) for bound in bounds_text.split(","))
        except ValueError:
            raise UsageError(
                f"--normalize must be ENVIRONMENT=LOW,HIGH such as {matches[0]}=0,500, "
                f"got {text!r}."
            ) from None
        bounds |= dict.fromkeys(matches, NormalizationBounds(low, high, True))
    return bounds


def _algorithm_pairs(scored: AlgorithmScores) -> list[tuple[str, str]]:
    """Return at most `MAX_PAIRS` pairs of labels, each with the higher interquartile mean first."""
    means = {
        label: float(interquartile_mean(np.concatenate(scores)))
        for label, scores in scored.scores.items()
    }
    best_first = sorted(means, key=lambda label: -means[label])
    return list(itertools.islice(itertools.combinations(best_first, 2), MAX_PAIRS))


def panels_height(scored: AlgorithmScores, columns: int) -> float:
    """Return the total height of the comparison panels in inches.

    A figure with two page columns has the panels in one row. Otherwise, the panels are stacked.

    Args:
        scored: Scores to draw.
        columns: Number of page columns, 1 or 2.
    """
    num_pairs = len(_algorithm_pairs(scored))
    means, pairs = _bars_height(len(scored.scores)), _bars_height(num_pairs)
    if columns == 2:
        return max(1.6, means, pairs)
    return means + PROFILE_HEIGHT + (pairs if num_pairs else 0)


def _bars_height(num_bars: int) -> float:
    """Return the height of a panel of bars in inches."""
    return 0.45 + 0.22 * num_bars


def draw_comparison(
    figure: "matplotlib.figure.Figure | matplotlib.figure.SubFigure",
    scored: AlgorithmScores,
    columns: int,
) -> DrawnComparison:
    """Draw interquartile means, performance profiles and probabilities of improvement.

    Args:
        figure: Empty matplotlib figure or subfigure.
        scored: Scores to draw.
        columns: Number of page columns, 1 or 2.

    Returns:
        The drawn values as CSV tables, and notes for the caption.
    """
    means = {
        label: aggregates.estimate_interquartile_mean(scores)
        for label, scores in scored.scores.items()
    }
    probabilities = {
        (first, second): aggregates.estimate_probability_of_improvement(
            scored.scores[first], scored.scores[second]
        )
        for first, second in _algorithm_pairs(scored)
    }
    num_panels = 3 if probabilities else 2
    if columns == 2:
        axes = figure.subplots(1, num_panels)
    else:
        heights = [_bars_height(len(means)), PROFILE_HEIGHT, _bars_height(len(probabilities))]
        axes = figure.subplots(num_panels, 1, height_ratios=heights[:num_panels])
    _draw_means(axes[0], scored, means)
    _draw_profiles(axes[1], scored)
    if probabilities:
        _draw_improvement(axes[2], scored, probabilities)
    notes = [
        f"{label}: interquartile mean {_format_estimate(estimate)}"
        for label, estimate in means.items()
    ]
    notes += [
        f"P({first} > {second}) = {_format_estimate(estimate)}"
        for (first, second), estimate in probabilities.items()
    ]
    intervals = (
        "intervals: 95 %, stratified bootstrap over the seeds of each of: "
        f"{', '.join(scored.environments)}"
    )
    rows = ["what,label,value,low,high"]
    rows += [_csv_row("interquartile mean", label, estimate) for label, estimate in means.items()]
    rows += [
        _csv_row("probability of improvement", f"{first} > {second}", estimate)
        for (first, second), estimate in probabilities.items()
    ]
    table = "\n".join([*rows, ""]).encode()
    return DrawnComparison({"-aggregate": table}, [*scored.notes, *notes, intervals])


def _format_estimate(estimate: aggregates.Estimate) -> str:
    return format_estimate(Estimate(*map(float, estimate)))


def _csv_row(quantity: str, label: str, estimate: aggregates.Estimate) -> str:
    quoted_label = '"' + label.replace('"', '""') + '"'
    return ",".join([quantity, quoted_label, *format_csv_numbers(estimate)])


def format_csv_numbers(values: Iterable[float | np.ndarray]) -> list[str]:
    """Format numbers for CSV. Non-finite numbers are empty cells."""
    return [f"{float(value):.9g}" if np.isfinite(value) else "" for value in values]


def quote_csv(text: str) -> str:
    """Quote text that contains commas, quotes or line breaks for CSV."""
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n') else text


def _draw_interval(
    axis: "matplotlib.axes.Axes", row: int, estimate: aggregates.Estimate, color: str
) -> None:
    """Draw an interval as a bar with a mark at the estimate."""
    if np.isfinite(estimate.low):
        axis.barh(
            row,
            float(estimate.high - estimate.low),
            0.6,
            float(estimate.low),
            color=color,
            alpha=0.35,
            linewidth=0,
        )
    axis.plot(
        [float(estimate.value)] * 2,
        [row - 0.3, row + 0.3],
        color=color,
        linewidth=1.6,
        solid_capstyle="butt",
    )


def _label_rows(axis: "matplotlib.axes.Axes", labels: list[str]) -> None:
    axis.set_yticks(range(len(labels)), labels)
    margin = max(0.0, 3 - len(labels)) / 2  # fewer than three bars keep the height of three
    axis.set_ylim(len(labels) - 0.4 + margin, -0.6 - margin)
    axis.grid(False, axis="y")
    axis.tick_params(axis="y", length=0)


def _draw_means(
    axis: "matplotlib.axes.Axes", scored: AlgorithmScores, means: dict[str, aggregates.Estimate]
) -> None:
    for row, (label, mean) in enumerate(means.items()):
        _draw_interval(axis, row, mean, scored.curves[label].color)
    _label_rows(axis, list(means))
    axis.use_sticky_edges = False  # keeps a margin between the bars and the frame
    axis.margins(x=0.08)
    axis.set_xlabel("interquartile mean of scores")


def _draw_profiles(axis: "matplotlib.axes.Axes", scored: AlgorithmScores) -> None:
    """Draw the share of runs above each threshold of the normalized score, one line per label."""
    values = np.concatenate([row for scores in scored.scores.values() for row in scores])
    margin = 0.02 * (np.ptp(values) or 1.0)
    thresholds = np.linspace(min(0.0, values.min()) - margin, values.max() + margin, NUM_THRESHOLDS)
    for label, scores in scored.scores.items():
        profile = aggregates.estimate_performance_profile(scores, thresholds)
        curve = scored.curves[label]
        axis.plot(thresholds, profile.value, curve.line_style, color=curve.color, linewidth=1.2)
        if np.isfinite(profile.low).any():
            axis.fill_between(
                thresholds, profile.low, profile.high, color=curve.color, alpha=0.18, linewidth=0
            )
    axis.set_xlabel("normalized score \u03c4")
    axis.set_ylabel("share of runs above \u03c4")
    axis.set_ylim(-0.02, 1.02)


def _draw_improvement(
    axis: "matplotlib.axes.Axes",
    scored: AlgorithmScores,
    probabilities: dict[tuple[str, str], aggregates.Estimate],
) -> None:
    for row, ((first, _), probability) in enumerate(probabilities.items()):
        _draw_interval(axis, row, probability, scored.curves[first].color)
    axis.axvline(0.5, color="#666666", linewidth=0.8, linestyle=":")
    _label_rows(axis, [f"{first} > {second}" for first, second in probabilities])
    axis.set_xlim(-0.02, 1.02)
    axis.set_xlabel("probability of improvement")
