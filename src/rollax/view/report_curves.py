"""The charts of a report that are of curves and evaluations: the lines of `rollax plot`, to be zoomed, with every member."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollax.host.logging import in_section
from rollax.host.settings import entry
from rollax.view import estimates, lines
from rollax.view.curves import Curve, Run, experiment, has, metric, title
from rollax.view.page import Chart, Name, Section, heading, legend, numbers, paragraph, text
from rollax.view.style import frames

MOST_POINTS = 2000  # of a line; a run usually writes 500
MOST_PANELS = 60
MOST_MEMBERS = 64  # of a line that are drawn one by one
MOST_BINS = 40
MOST_NAMED = 3  # lines of a run
MOST_HISTOGRAMS = 4  # of lines; of more there are boxes
DASHES = {"-": ("solid", "solid"), "--": ("dash", "dashed"), ":": ("dot", "dotted"), "-.": ("dashdot", "dashed")}
EVALUATIONS = {"first": "#999999", "best": "#E69F00", "last": "#0072B2"}
HOW = "Drag over a chart to zoom, double-click to see all of it again{}."
MEMBERS = "members"  # the group of their lines
SECTIONS = {"train": "In training", "losses": "Losses", "time": "Speed"}


def color(value: Any) -> str:
    from matplotlib.colors import to_hex

    return to_hex(value)


def section(curves: list[Curve]) -> tuple[Section, list[str]]:
    """All that is drawn over steps, and what is left out, in words."""
    names, notes = _names(curves), list[str]()
    parts = list[str | list[Chart]]([paragraph(HOW.format("; a name hides its lines in all charts" if names else ""))])
    parts += [legend(names)] if names else []
    environments = list(dict.fromkeys(curve.run.spec.environment for curve in curves))
    for environment in environments:
        chosen = [curve for curve in curves if curve.run.spec.environment == environment]
        parts += [heading(environment)] if len(environments) > 1 else []
        if words := lines.what_lines_are(chosen):
            parts.append(paragraph(f"Lines and bands: {words}."))
        parts.append(_returns(chosen))
    if len(environments) == 1:
        panels, left_out = _panels(curves)
        parts += panels
        notes += left_out
    large = {len(curve.members) for curve in curves if len(curve.members) > MOST_MEMBERS}
    if large:
        notes.append(f"of more than {MOST_MEMBERS} members ({max(large):,}) the lines are not drawn one by one")
    return Section("Curves", parts), notes


def groups(curves: list[Curve]) -> dict[str, str]:
    """By label, the group of its lines."""
    return {label: f"line-{index}" for index, label in enumerate(dict.fromkeys(curve.label for curve in curves))}


def lines_of(run: Run, curves: list[Curve]) -> str:
    """The labels of the lines that a run is in, also together with runs of other seeds."""
    own = [c.label for c in curves if c.run.folder == run.folder or repr(experiment(c.run)) == repr(experiment(run))]
    found = list(dict.fromkeys(own))
    return "; ".join(found) if len(found) <= MOST_NAMED else f"{len(found)} lines"


def _names(curves: list[Curve]) -> list[Name]:
    """The legend: lines by their labels, where there are several, and members."""
    known, unique = groups(curves), {curve.label: curve for curve in curves}
    names = [Name(known[label], label, color(each.color), _dash(each)[1]) for label, each in unique.items()]
    alone = [curve for curve in curves if 1 < len(curve.members) <= MOST_MEMBERS]
    return (names if len(names) > 1 else []) + ([Name(MEMBERS, "each member", "#999999")] if alone else [])


def _dash(curve: Curve) -> tuple[str, str]:
    """For plotly and for CSS."""
    return DASHES.get(curve.dash if isinstance(curve.dash, str) else "-", DASHES["-"])


def _returns(curves: list[Curve]) -> list[Chart]:
    """Return in evaluation, that in training or the QD score, and how the return changes within trials."""
    known, axis = groups(curves), " or ".join(dict.fromkeys(curve.run.axis for curve in curves))
    name, label = lines.below(curves)
    found = []
    if any(curve.run.eval_step.size for curve in curves):
        own = [trace for c in curves for trace in _members(c, c.run.eval_step, c.run.returns[:, c.members].mean(axis=2), known)]
        found.append(_chart("Evaluation return", lines.of_evaluations(curves), known, axis, own, "lines+markers", 380))
    if any(has(curve.run, name) for curve in curves):
        own = [trace for curve in curves for trace in _members(curve, curve.run.step, metric(curve, name), known)]
        found.append(
            _chart(label.capitalize() if label.islower() else label, lines.of_training(curves), known, axis, own, "", 300)
        )
    if any(curve.run.trials.size for curve in curves):
        found.append(_adaptation(curves, known))
    return [chart._replace(is_wide=True) for chart in found]


def _panels(curves: list[Curve]) -> tuple[list[str | list[Chart]], list[str]]:
    """The small charts, in the sections that dashboards show metrics in."""
    known, axis = groups(curves), " or ".join(dict.fromkeys(curve.run.axis for curve in curves))
    run, is_single = curves[0].run, len({curve.run.folder for curve in curves}) == 1
    elsewhere = [f"evolve/{name}" for name in run.spec.evolve] if is_single and lines.evolution(run) else []
    names, unit = lines.panels_of(curves, elsewhere), entry(curves[0].run.spec.algorithm).unit
    parts, sections = list[str | list[Chart]](), dict[str, list[Chart]]()
    for name in names[:MOST_PANELS]:
        found = lines.of_metric(curves, name)
        chart = _chart(title(name, unit), found, known, axis, [], "", 210)
        if lines.spans_decades([line.middle for line in found]):
            is_large = min(line.middle.min() for line in found) >= 1
            chart.layout["yaxis"] = {"type": "log", **({"tickformat": "~s"} if is_large else {})}
        sections.setdefault(in_section(name).partition("/")[0], []).append(chart)
    for key, words in SECTIONS.items():
        parts += [heading(words), sections[key]] if key in sections else []
    others = names[MOST_PANELS:]
    return parts, [f"not drawn, for want of space: {', '.join(others)}"] if others else []


def _chart(
    name: str, found: list[lines.Line], known: dict[str, str], axis: str, members: list[dict[str, Any]], mode: str, height: int
) -> Chart:
    """Bands beneath members beneath lines."""
    bands = [_band(line, known) for line in found if len(line.x) > 1 and np.any(line.high > line.low)]
    is_large = max((np.abs(line.middle).max() for line in found), default=0.0) >= 1e4
    layout = {"xaxis": {"title": {"text": text(axis)}}, "yaxis": {"exponentformat": "B"} if is_large else {}}
    return Chart(name, [*bands, *members, *(_line(line, known, mode) for line in found)], layout, height=height)


def _line(line: lines.Line, known: dict[str, str], mode: str) -> dict[str, Any]:
    curve, is_single = line.curve, len(line.x) == 1
    found = {
        "type": "scatter",
        "mode": mode or ("markers" if is_single else "lines"),
        "x": numbers(line.x),
        "y": numbers(line.middle),
        "name": text(curve.label),
        "line": {"color": color(curve.color), "dash": _dash(curve)[0], "width": 2.2 if line.has_episodes else 1.7},
        "marker": {"size": 5, "color": color(curve.color)},
        "meta": [known[curve.label]],
    }
    if is_single and np.isfinite(line.low).all():
        above, below = numbers(line.high - line.middle), numbers(line.middle - line.low)
        found["error_y"] = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
    return found


def _band(line: lines.Line, known: dict[str, str]) -> dict[str, Any]:
    """From the upper side to the right and along the lower one back."""
    from matplotlib.colors import to_rgb

    at = np.isfinite(line.low) & np.isfinite(line.high)
    shade = ",".join(str(round(255 * level)) for level in to_rgb(line.curve.color))
    return {
        "type": "scatter",
        "mode": "lines",
        "x": numbers(np.concatenate([line.x[at], line.x[at][::-1]])),
        "y": numbers(np.concatenate([line.high[at], line.low[at][::-1]])),
        "fill": "toself",
        "fillcolor": f"rgba({shade},0.18)",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "meta": [known[line.curve.label]],
    }


def _members(curve: Curve, steps: np.ndarray, values: np.ndarray, known: dict[str, str]) -> list[dict[str, Any]]:
    """A thin line each, of values `[K, p]`; none where there is one member, or one value for all."""
    if not 1 < len(curve.members) <= MOST_MEMBERS or values.shape[1] != len(curve.members):
        return []
    alike = {
        "type": "scatter",
        "mode": "lines",
        "line": {"color": color(curve.color), "width": 0.8},
        "opacity": 0.4,
        "meta": [known[curve.label], MEMBERS],
    }
    own = curve.run.spec.members() if len(curve.run.spec.members()) == curve.run.size else [{}] * curve.run.size
    found = []
    for index, member in enumerate(curve.members.tolist()):
        at = np.isfinite(values[:, index])
        told = ", ".join(f"{name} {value:g}" for name, value in own[member].items()) or f"member {member}"
        found.append({**alike, "x": numbers(steps[at]), "y": numbers(values[at, index]), "name": text(told)})
    return found


def _adaptation(curves: list[Curve], known: dict[str, str]) -> Chart:
    """The return of each episode of a trial, at the last evaluation; of a single line, fainter, at some before it."""
    found = list[dict[str, Any]]()
    for curve in (curve for curve in curves if curve.run.trials.size):
        trials = curve.run.trials[:, curve.members].transpose(0, 3, 1, 2)  # [K, E, p, N]
        episodes, last = np.arange(1, trials.shape[1] + 1), len(trials) - 1
        for index in (*(lines.earlier(len(trials)) if len(curves) == 1 else ()), last):
            line = lines.line(curve, episodes, trials[index], estimates.interval if index == last else estimates.middle)
            if line is None:
                continue
            drawn = _line(line, known, "lines+markers")
            drawn["name"] = f"{drawn['name']}, step {frames(float(curve.run.eval_step[index]))}"
            drawn["opacity"] = 1.0 if index == last else 0.25 + 0.45 * (index + 1) / len(trials)
            found += [_band(line, known), drawn] if index == last else [drawn]
    layout = {"xaxis": {"title": {"text": "episode of the trial"}, "dtick": 1}, "yaxis": {}}
    note = "last evaluation with its 95 % bootstrap interval" + (", fainter those before" if len(curves) == 1 else "")
    return Chart("Return of the episode within a trial", found, layout, note, 300)


def evaluations(curves: list[Curve], best: dict[Path, int | None]) -> list[str | list[Chart]]:
    """How returns and lengths of episodes are distributed, in the first, the best and the last evaluation.

    `best`: by run, the step of its best evaluation.
    """
    played = [curve for curve in curves if curve.run.eval_step.size and not curve.run.is_closed_form]
    if not played:
        return []
    environments = dict.fromkeys(curve.run.spec.environment for curve in curves)
    if len(played) > MOST_HISTOGRAMS:
        places = [[c for c in played if c.run.spec.environment == name] for name in environments]
        boxes = [_boxes(alike, len(environments) > 1) for alike in places if alike]
        return [paragraph("The last evaluation: each box has the middle half of the episodes of all members."), boxes]
    parts = list[list[Chart]]()
    drawn = set[tuple[Path, int]]()  # lengths are those of all types of agents
    for curve in played:
        label = f": {curve.label}" if len(curves) > 1 else ""
        where = f" on {curve.run.spec.environment}" if len(environments) > 1 else ""
        which = _chosen(curve, best.get(curve.run.folder))
        charts = [_histogram(f"Return{label}{where}", curve, curve.run.returns, which)]
        key = curve.run.folder, int(curve.members[0])
        if "length" in curve.run.evaluated and key not in drawn:
            label = "" if curve.run.kind else label
            charts.append(_histogram(f"Length{label}{where}", curve, curve.run.evaluated["length"], which))
        drawn.add(key)
        parts.append(charts)
    used = {trace["meta"][0] for charts in parts for chart in charts for trace in chart.data}
    return [
        legend([Name(which, f"{which} evaluation", shade) for which, shade in EVALUATIONS.items() if which in used]),
        *parts,
    ]


def _chosen(curve: Curve, best: int | None) -> dict[str, int]:
    """The places of the first, the best and the last evaluation, as far as there is a best one."""
    last = len(curve.run.eval_step) - 1
    found = np.flatnonzero(curve.run.eval_step == best)
    return {"first": 0, **({"best": int(found[-1])} if found.size else {}), "last": last}


def _histogram(name: str, curve: Curve, values: np.ndarray, which: dict[str, int]) -> Chart:
    """Counts of episodes, with the same bins for all three; an evaluation that is two of them is drawn once."""
    distinct = {index: key for key, index in which.items()}  # as the last of the two
    samples = {key: values[index][curve.members].ravel() for index, key in distinct.items()}
    samples = {key: sample[np.isfinite(sample)] for key, sample in samples.items()}
    every = np.concatenate([*samples.values(), np.zeros(0)])
    edges = _edges(every)
    traces, middle = [], (edges[1:] + edges[:-1]) / 2
    for key, sample in samples.items():
        counts = np.histogram(sample, edges)[0]
        also = [other for other, index in which.items() if index == which[key] and other != key]
        told = " and ".join([*also, key]) + f", step {curve.run.eval_step[which[key]]:,}"
        spans = [f"{a:.5g} to {b:.5g}: {n} episodes" for a, b, n in zip(edges[:-1], edges[1:], counts.tolist(), strict=True)]
        traces.append(
            {
                "type": "bar",
                "x": numbers(middle),
                "y": counts.tolist(),
                "width": numbers(np.diff(edges)),
                "name": told,
                "hovertext": spans,
                "hoverinfo": "text+name",
                "marker": {"color": EVALUATIONS[key], "line": {"width": 0}},
                "opacity": 0.6,
                "meta": [key],
            }
        )
    words = "; ".join(f"{trace['name']}: mean {samples[trace['meta'][0]].mean():.5g}" for trace in traces if sum(trace["y"]))
    layout = {"barmode": "overlay", "xaxis": {}, "yaxis": {"title": {"text": "episodes"}}, "bargap": 0}
    return Chart(name, traces, layout, words, 300)


def _edges(values: np.ndarray) -> np.ndarray:
    """The ends of bins; of whole numbers that are few a bin each."""
    if not values.size:
        return np.array([0.0, 1.0])
    low, high = float(values.min()), float(values.max())
    if np.array_equal(values, np.round(values)) and high - low < MOST_BINS:
        return np.arange(low - 0.5, high + 1.0)
    return np.linspace(low, high, MOST_BINS + 1) if high > low else np.array([low - 0.5, low + 0.5])


def _boxes(curves: Sequence[Curve], is_named: bool) -> Chart:
    """Quartiles of the last evaluation, from the lowest to the highest episode."""
    known, traces = groups(list(curves)), []
    for curve in curves:
        values = curve.run.returns[-1][curve.members].ravel()
        values = values[np.isfinite(values)]
        if not values.size:
            continue
        low, first, median, third, high = np.percentile(values, (0, 25, 50, 75, 100))
        ends = {"lowerfence": low, "q1": first, "median": median, "q3": third, "upperfence": high, "mean": values.mean()}
        traces.append(
            {
                "type": "box",
                "name": text(curve.label),
                **{name: numbers([value]) for name, value in ends.items()},
                "x": [text(curve.label)],
                "marker": {"color": color(curve.color)},
                "meta": [known[curve.label]],
            }
        )
    where = f" on {curves[0].run.spec.environment}" if is_named else ""
    return Chart(f"Return of episodes{where}", traces, {"yaxis": {"title": {"text": "return"}}}, is_wide=True, height=380)
