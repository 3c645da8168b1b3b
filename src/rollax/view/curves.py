"""What learning curves are made of: runs as they lie on disk, and what tells one from another."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollax.errors import UsageError
from rollax.host.logging import read_metrics
from rollax.host.record import read_evaluations
from rollax.host.run_folder import EVALUATIONS, METRICS, read_spec
from rollax.host.settings import Spec, entry

WITHIN = "info/episode_returns"  # of the evaluations: the returns of the episodes within a trial
# The metrics that are drawn in small panels, in this order, where a run has them.
PANELS = {
    "coverage": "coverage",
    "qd_score": "QD score",
    "fitness_best": "best fitness",
    "moqd_score": "MOQD score",
    "hypervolume": "hypervolume",
    "num_elites": "elites",
    "critic_loss": "critic loss",
    "value_loss": "value loss",
    "policy_loss": "policy loss",
    "entropy": "entropy",
    "approx_kl": "KL estimate",
    "explained_variance": "explained variance",
    "clip_fraction": "clipped fraction",
    "learning_rate": "learning rate",
    "steps_per_second": "{unit} per second",  # steps, or evaluations
}
# Okabe and Ito (2008): eight colors that remain apart for color-blind eyes; yellow is left out, being too light for a line.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")


class Run(NamedTuple):
    """What is drawn of a run, for K evaluations of N episodes and M lines of metrics; P is 1 where there is no population."""

    folder: Path
    spec: Spec
    eval_step: np.ndarray  # int [K]
    returns: np.ndarray  # float [K, P, N]
    trials: np.ndarray  # float [K, P, N, E]: returns of the E episodes within a trial; E is 0 where episodes are no trials
    step: np.ndarray  # int [M]
    metrics: dict[str, np.ndarray]  # float [M, P], or [M, 1] for what all members have in common
    kind: str = ""  # the type of agents that this is about, where there are several
    is_closed_form: bool = False  # evaluations are of one step each and all alike


class Curve(NamedTuple):
    """One line: the members of a run that differ in their seeds only."""

    run: Run
    members: np.ndarray  # int [p]
    label: str
    color: Any
    dash: Any  # a line style of matplotlib


def read_run(folder: Path | str) -> list[Run]:
    """The curves of a run, of each type of agents. Raises UsageError when it is none, or has recorded nothing yet."""
    folder = Path(folder)
    spec = read_spec(folder)
    count = len(spec.members())
    eval_step, by_kind, trials, is_closed_form = _evaluations(folder / EVALUATIONS, count)
    is_closed_form &= entry(spec.algorithm).unit == "evaluations"
    records = read_metrics(folder / METRICS) if (folder / METRICS).exists() else []
    lines = [record for record in records if "event" not in record]
    if not lines and not eval_step.size:
        raise UsageError(f"{folder} has recorded nothing yet: train it for longer, with rollax resume {folder}")
    step = np.array([line["step"] for line in lines], int)
    runs = []
    for kind, returns in by_kind.items():
        # What parameters of this type's own did, where it has some; the return in training is that of all agents together.
        of_kind = {
            name: f"{kind}/{name}" if kind and any(f"{kind}/{name}" in line for line in lines) else name for name in PANELS
        }
        wanted = of_kind if kind else {"episode_return": "episode_return", **of_kind}
        found = {name: label for name, label in wanted.items() if any(label in line for line in lines)}
        metrics = {name: _column([line.get(label) for line in lines], count) for name, label in found.items()}
        runs.append(Run(folder, spec, eval_step, returns, trials, step, metrics, kind, is_closed_form))
    return runs


def _evaluations(path: Path, count: int) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray, bool]:
    """Steps `[K]`, returns `[K, P, N]` by type of agents, averaged over those, returns within trials `[K, P, N, E]`, and
    whether all episodes of an evaluation are one and the same step."""
    if not path.exists():
        return np.zeros(0, int), {"": np.zeros((0, count, 1))}, np.zeros((0, count, 1, 0)), False
    try:
        arrays = read_evaluations(path)
        steps, returns, length = arrays["step"], arrays["returns"].astype(float), arrays["length"]
        returns = returns.reshape(*length.shape, -1)
        kinds = arrays["agent_types"][0] if "agent_types" in arrays else np.array([""] * returns.shape[-1])
        by_kind = {
            str(kind): returns[..., kinds == kind].mean(axis=-1).reshape(len(steps), count, -1) for kind in dict.fromkeys(kinds)
        }
        within = arrays[WITHIN].astype(float) if WITHIN in arrays else np.zeros((*length.shape, 0))
        is_one = bool(length.size and np.all(length == 1) and np.all(returns == returns[..., :1, :]))
        return steps, by_kind, within.reshape(len(steps), count, length.shape[-1], within.shape[-1]), is_one
    except (ValueError, IndexError) as error:
        raise UsageError(f"{error}: move it away to plot the rest of the run") from error


def _column(values: list[Any], count: int) -> np.ndarray:
    """One metric over all lines, `[M, P]` or `[M, 1]`; NaN where a line lacks it or has something else in its place."""
    width = count if any(isinstance(value, list) for value in values) else 1
    return np.stack([_numbers(value, width) for value in values])


def _numbers(value: Any, width: int) -> np.ndarray:
    parts = value if isinstance(value, list) else [value] * width
    numbers = [float(part) if isinstance(part, int | float) else math.nan for part in parts]
    return np.array(numbers) if len(numbers) == width else np.full(width, math.nan)


def curves_of(runs: list[Run]) -> list[Curve]:
    """The lines of all runs, with labels and colors that tell them apart."""
    groups = [(run, members, facts) for run in runs for members, facts in _groups(run)]
    all_facts = [facts for *_, facts in groups]
    names = labels(all_facts, [run.folder for run, *_ in groups])
    distinct = list(dict.fromkeys(names))
    colors = _colors(len(distinct), _is_one_scale(all_facts))
    return [
        Curve(run, members, label, colors[distinct.index(label)], DASHES[distinct.index(label) // len(COLORS) % len(DASHES)])
        for (run, members, _), label in zip(groups, names, strict=True)
    ]


def _groups(run: Run) -> list[tuple[np.ndarray, dict[str, Any]]]:
    """The members of a run by swept values, each with everything that may tell them from others."""
    by_values: dict[tuple[float, ...], list[int]] = {}
    for index, member in enumerate(run.spec.members()):
        by_values.setdefault(tuple(member[name] for name in run.spec.sweep), []).append(index)
    return [
        (np.array(members), _facts(run, dict(zip(run.spec.sweep, values, strict=True))))
        for values, members in by_values.items()
    ]


def _facts(run: Run, swept: dict[str, float]) -> dict[str, Any]:
    """The names and values that a label may be made of, the more telling first."""
    spec = run.spec
    network = {} if isinstance(spec.network, str) else vars(spec.network)
    others = {**spec.arguments, **vars(spec.config), **network, "seed": spec.options.seed, "seeds": spec.options.seeds}
    about = {"environment": spec.environment, "algorithm": spec.algorithm, "agents": run.kind}
    return {**about, **swept, **(others | swept)}


def labels(facts: list[dict[str, Any]], folders: list[Path]) -> list[str]:
    """What differs between the lines of one environment, or the runs' folders where nothing does or too much."""
    environments = {each["environment"] for each in facts}
    parts = [[each for each in facts if each["environment"] == environment] for environment in environments]
    found = {name for part in parts for name in _differing(part)}
    names = [name for name in dict.fromkeys(name for each in facts for name in each) if name in found]
    if "algorithm" in found:  # the settings of two algorithms differ by nature
        names = ["algorithm", *(["agents"] if "agents" in found else [])]
    labels = [", ".join(_fact(name, each.get(name)) for name in names) or each["algorithm"] for each in facts]
    places = [(each["environment"], label) for each, label in zip(facts, labels, strict=True)]
    if len(names) <= 4 and len(set(places)) == len(places):
        return labels
    return [_folder_label(index, facts, folders) for index in range(len(facts))]


def _folder_label(index: int, facts: list[dict[str, Any]], folders: list[Path]) -> str:
    """A folder's name, with what tells the lines of that one run apart."""
    siblings = [each for each, folder in zip(facts, folders, strict=True) if folder == folders[index]]
    parts = [_fact(name, facts[index][name]) for name in _differing(siblings)]
    return ", ".join([folders[index].resolve().name, *parts])


def _differing(facts: list[dict[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for each in facts for name in each)
    return [name for name in names if len({repr(each.get(name)) for each in facts}) > 1]


def _fact(name: str, value: Any) -> str:
    if name in ("algorithm", "agents"):
        return str(value)
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def _is_one_scale(facts: list[dict[str, Any]]) -> bool:
    """Whether the lines differ in one number only, so that their colors may be a scale."""
    names = _differing(facts)
    return len(names) == 1 and len(facts) > 2 and all(isinstance(each.get(names[0]), int | float) for each in facts)


def _colors(count: int, is_scale: bool) -> list[Any]:
    from matplotlib import colormaps

    if is_scale or count > len(COLORS) * len(DASHES):
        return list(colormaps["viridis"](np.linspace(0.0, 0.88, count)))
    return [COLORS[i % len(COLORS)] for i in range(count)]
