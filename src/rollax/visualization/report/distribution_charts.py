"""Charts of the distributions of episode returns and lengths in a report."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rollax.training.evaluation.metrics import format_finite_count
from rollax.visualization.plots.learning_curves import Curve
from rollax.visualization.report.curve_charts import legend_groups
from rollax.visualization.report.html_page import (
    Chart,
    LegendButton,
    PlotlyValues,
    SectionPart,
    escape_html,
    legend_html,
    paragraph_html,
    to_json_numbers,
)

MAX_BINS = 40
MAX_HISTOGRAMS = 4  # more lines are drawn as box plots
EVALUATION_COLORS = {"first": "#999999", "best": "#E69F00", "last": "#0072B2"}


def evaluation_charts(curves: list[Curve], best_steps: dict[Path, int | None]) -> list[SectionPart]:
    """Return distributions of episode returns and lengths at the first, best and last evaluation.

    If there are more than `MAX_HISTOGRAMS` curves, only box plots of the returns at the last
    evaluation are drawn.

    Args:
        curves: Curves of the report.
        best_steps: Step of the best evaluation (or None), keyed by run folder.

    Returns:
        Section parts: HTML strings and lists of charts.
    """
    evaluated_curves = [
        curve for curve in curves if curve.run.eval_step.size and not curve.run.is_closed_form
    ]
    if not evaluated_curves:
        return []
    environments = dict.fromkeys(curve.run.spec.environment for curve in curves)
    if len(evaluated_curves) > MAX_HISTOGRAMS:
        groups = [
            [curve for curve in evaluated_curves if curve.run.spec.environment == name]
            for name in environments
        ]
        boxes = [_box_chart(group, len(environments) > 1) for group in groups if group]
        return [
            paragraph_html(
                "Last evaluation: each box spans the quartiles over the episodes of all members."
            ),
            boxes,
        ]
    rows = list[list[Chart]]()
    drawn_lengths = set[tuple[Path, int]]()  # all types of agents share the episode lengths
    for curve in evaluated_curves:
        label = f": {curve.label}" if len(curves) > 1 else ""
        environment_text = f" on {curve.run.spec.environment}" if len(environments) > 1 else ""
        indices = _select_evaluations(curve, best_steps.get(curve.run.folder))
        charts = [
            _histogram_chart(f"Return{label}{environment_text}", curve, curve.run.returns, indices)
        ]
        key = curve.run.folder, int(curve.members[0])
        if "length" in curve.run.eval_metrics and key not in drawn_lengths:
            length_label = "" if curve.run.agent_type else label
            lengths = curve.run.eval_metrics["length"]
            charts.append(
                _histogram_chart(f"Length{length_label}{environment_text}", curve, lengths, indices)
            )
        drawn_lengths.add(key)
        rows.append(charts)
    used_roles = {trace["meta"][0] for charts in rows for chart in charts for trace in chart.data}
    buttons = [
        LegendButton(role, f"{role} evaluation", color)
        for role, color in EVALUATION_COLORS.items()
        if role in used_roles
    ]
    return [legend_html(buttons), *rows]


def _select_evaluations(curve: Curve, best_step: int | None) -> dict[str, int]:
    """Return evaluation indices keyed by role: "first", "best" (if there is one) and "last"."""
    best = np.flatnonzero(curve.run.eval_step == best_step)
    last = len(curve.run.eval_step) - 1
    return {"first": 0, **({"best": int(best[-1])} if best.size else {}), "last": last}


def _histogram_chart(
    title: str, curve: Curve, values: np.ndarray, indices: dict[str, int]
) -> Chart:
    """Return a chart of one histogram per evaluation, with common bins.

    An evaluation with two roles, for example best and last, is drawn once.
    """
    # A later role replaces an earlier one.
    distinct = {index: role for role, index in indices.items()}
    samples = {role: values[index][curve.members].ravel() for index, role in distinct.items()}
    samples = {role: sample[np.isfinite(sample)] for role, sample in samples.items()}
    edges = _bin_edges(np.concatenate([*samples.values(), np.zeros(0)]))
    total = values[0][curve.members].size
    traces, means = [], []
    for role, sample in samples.items():
        roles = [name for name, index in indices.items() if index == indices[role]]
        name = f"{' and '.join(roles)}, step {curve.run.eval_step[indices[role]]:,}"
        traces.append(_histogram_trace(name, role, sample, edges))
        if sample.size:
            means.append(f"{name}: mean {_format_mean(sample, total)}")
    layout = {
        "barmode": "overlay",
        "xaxis": {},
        "yaxis": {"title": {"text": "episodes"}},
        "bargap": 0,
    }
    return Chart(title, traces, layout, "; ".join(means), 300)


def _histogram_trace(name: str, role: str, sample: np.ndarray, edges: np.ndarray) -> PlotlyValues:
    """Return a plotly bar trace with the number of episodes in each bin."""
    counts = np.histogram(sample, edges)[0]
    texts = [
        f"{low:.5g} to {high:.5g}: {count} episodes"
        for low, high, count in zip(edges[:-1], edges[1:], counts.tolist(), strict=True)
    ]
    return {
        "type": "bar",
        "x": to_json_numbers((edges[1:] + edges[:-1]) / 2),
        "y": counts.tolist(),
        "width": to_json_numbers(np.diff(edges)),
        "name": name,
        "hovertext": texts,
        "hoverinfo": "text+name",
        "marker": {"color": EVALUATION_COLORS[role], "line": {"width": 0}},
        "opacity": 0.6,
        "meta": [role],
    }


def _format_mean(sample: np.ndarray, total: int) -> str:
    """Format the mean of the finite values, followed by their count if it is less than `total`."""
    mean = f"{sample.mean():.5g}"
    if sample.size == total:
        return mean
    return f"{mean} over {format_finite_count(sample.size, total, 'episodes')}"


def _bin_edges(values: np.ndarray) -> np.ndarray:
    """Return the edges of histogram bins. Integers in a small range have one bin each."""
    if not values.size:
        return np.array([0.0, 1.0])
    low, high = float(values.min()), float(values.max())
    if np.array_equal(values, np.round(values)) and high - low < MAX_BINS:
        return np.arange(low - 0.5, high + 1.0)
    return np.linspace(low, high, MAX_BINS + 1) if high > low else np.array([low - 0.5, low + 0.5])


def _box_chart(curves: Sequence[Curve], is_named: bool) -> Chart:
    """Return box plots of the returns in the last evaluation. Whiskers are minimum and maximum."""
    groups, traces, notes = legend_groups(list(curves)), [], []
    for curve in curves:
        values = curve.run.returns[-1][curve.members].ravel()
        finite = values[np.isfinite(values)]
        if not finite.size:
            continue
        if finite.size < values.size:
            count = format_finite_count(finite.size, values.size, "episodes")
            notes.append(f"{curve.label}: {count}")
        low, first_quartile, median, third_quartile, high = np.percentile(
            finite, (0, 25, 50, 75, 100)
        )
        traces.append(
            {
                "type": "box",
                "name": escape_html(curve.label),
                "lowerfence": to_json_numbers([low]),
                "q1": to_json_numbers([first_quartile]),
                "median": to_json_numbers([median]),
                "q3": to_json_numbers([third_quartile]),
                "upperfence": to_json_numbers([high]),
                "mean": to_json_numbers([finite.mean()]),
                "x": [escape_html(curve.label)],
                "marker": {"color": curve.color},
                "meta": [groups[curve.label]],
            }
        )
    place = f" on {curves[0].run.spec.environment}" if is_named else ""
    return Chart(
        f"Return of episodes{place}",
        traces,
        {"yaxis": {"title": {"text": "return"}}},
        "; ".join(notes),
        height=380,
        is_wide=True,
    )
