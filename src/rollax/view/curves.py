"""What learning curves are made of: runs as they lie on disk, those of one experiment together, and the lines they make."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollax.errors import UnknownNameError, UsageError
from rollax.host.logging import read_metrics
from rollax.host.reading import silent
from rollax.host.record import read_evaluations
from rollax.host.run_folder import EVALUATIONS, METRICS, read_spec
from rollax.host.settings import Spec, entry
from rollax.view.estimates import smoothed
from rollax.view.labels import COLORS, DASHES, colors, is_one_scale, labels

WITHIN = "info/episode_returns"  # of the evaluations: the returns of the episodes within a trial
# Metrics by what a figure calls them, in the order in which it shows them; others come after these, by their own names.
PANELS = {
    "coverage": "coverage",
    "qd_score": "QD score",
    "fitness_best": "best fitness",
    "moqd_score": "MOQD score",
    "hypervolume": "hypervolume",
    "num_elites": "elites",
    "loss": "loss",
    "critic_loss": "critic loss",
    "value_loss": "value loss",
    "policy_loss": "policy loss",
    "td_error": "TD error",
    "value": "mean value",
    "selected_q": "Q of actions taken",
    "entropy": "entropy",
    "temperature": "temperature",
    "approx_kl": "KL estimate",
    "explained_variance": "explained variance",
    "clip_fraction": "clipped fraction",
    "grad_norm": "gradient norm",
    "epsilon": "epsilon",
    "learning_rate": "learning rate",
    "episode_length": "training episode length",
    "steps_per_second": "{unit} per second",  # steps, or evaluations
}
STEPS = "environment steps"
RETURN = "return"  # in evaluation; the names of an evaluation's other numbers are those of evaluations.npz
OF_EVALUATION = {RETURN: "evaluation return", "length": "episode length"}
TIMES = ((3600, "hours"), (60, "minutes"), (1, "seconds"))
OF_EPISODES = ("episode_return", "episode_length")  # that ended within a line of metrics
BOOKS = ("step", "updates", "wall_time", "episodes")  # what a line of metrics counts, which is no result


class Run(NamedTuple):
    """What is drawn of a run, for K evaluations of N episodes and M lines of metrics; P is 1 where there is no population."""

    folder: Path
    spec: Spec
    eval_step: np.ndarray  # int [K]; a time where curves are over time
    returns: np.ndarray  # float [K, P, N]
    trials: np.ndarray  # float [K, P, N, E]: returns of the E episodes within a trial; E is 0 where episodes are no trials
    step: np.ndarray  # int [M]; a time where curves are over time
    metrics: dict[str, np.ndarray]  # float [M, P], or [M, 1] for what all members have in common
    kind: str = ""  # the type of agents that this is about, where there are several
    is_closed_form: bool = False  # evaluations are of one step each and all alike
    eval_time: np.ndarray = np.zeros(0)  # float [K]: seconds of all sessions; NaN where that is not known
    time: np.ndarray = np.zeros(0)  # float [M]
    evaluated: dict[str, np.ndarray] = {}  # float [K, P, N]: further numbers of episodes
    axis: str = STEPS  # what steps count

    @property
    def size(self) -> int:
        """How many members there are."""
        return self.returns.shape[1]


class Curve(NamedTuple):
    """One line: the members of a run, or of several, that differ in their seeds only."""

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
    eval_step, by_kind, trials, evaluated, is_closed_form = _evaluations(folder / EVALUATIONS, count)
    is_closed_form &= entry(spec.algorithm).unit == "evaluations"
    records = read_metrics(folder / METRICS) if (folder / METRICS).exists() else []
    lines = [record for record in records if "event" not in record]
    if not lines and not eval_step.size:
        raise UsageError(f"{folder} has recorded nothing yet: train it for longer: rollax resume {folder}")
    step = np.array([line["step"] for line in lines], int)
    times = {record["step"]: record.get("wall_time") for record in records if record.get("event") == "evaluation"}
    eval_time = np.array([_numbers(times.get(int(each)), 1)[0] for each in eval_step])
    time = _column([line.get("wall_time") for line in lines], 1)[:, 0] if lines else np.zeros(0)
    logged = dict.fromkeys(name for line in lines for name in line if name not in BOOKS)
    columns = {name: _column([line.get(name) for line in lines], count) for name in logged}
    is_biased = step < getattr(spec.config, "num_envs", 0) * _first_length(evaluated)
    if not is_biased.all():
        columns |= {name: np.where(is_biased[:, None], math.nan, columns[name]) for name in OF_EPISODES if name in columns}
    return [
        Run(
            folder,
            spec,
            eval_step,
            returns,
            trials,
            step,
            _of_kind(columns, kind, list(by_kind)),
            kind,
            is_closed_form,
            eval_time,
            time,
            evaluated,
            STEPS if entry(spec.algorithm).unit == "steps" else entry(spec.algorithm).unit,
        )
        for kind, returns in by_kind.items()
    ]


def _first_length(evaluated: dict[str, np.ndarray]) -> float:
    """The longest episode of the first evaluation, in steps.

    Until every environment has taken so many in training, the episodes that have ended are those that ended early: where that
    means success, the first returns would look far too good, and where it means failure far too bad.
    """
    length = evaluated.get("length", np.zeros((0, 1, 1)))
    return float(length[0].max()) if len(length) else 0.0


def _of_kind(columns: dict[str, np.ndarray], kind: str, kinds: list[str]) -> dict[str, np.ndarray]:
    """The metrics of a type of agents: those of its own parameters, where it has some, in place of those of all agents.

    The return in training is that of all agents together.
    """
    if not kind:
        return columns
    common = {n: x for n, x in columns.items() if n.partition("/")[0] not in kinds and n != "episode_return"}
    return common | {name.partition("/")[2]: x for name, x in columns.items() if name.startswith(f"{kind}/")}


def _evaluations(path: Path, count: int) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray, dict[str, np.ndarray], bool]:
    """Steps `[K]`, returns `[K, P, N]` by type of agents, averaged over those, returns within trials `[K, P, N, E]`, further
    numbers `[K, P, N]` of episodes, and whether all episodes of an evaluation are one and the same step."""
    if not path.exists():
        return np.zeros(0, int), {"": np.zeros((0, count, 1))}, np.zeros((0, count, 1, 0)), {}, False
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
        others = {name: x for name, x in arrays.items() if x.shape == length.shape and x.dtype.kind in "fiub"}
        evaluated = {name: x.astype(float).reshape(len(steps), count, -1) for name, x in others.items() if name != "returns"}
        trials = within.reshape(len(steps), count, length.shape[-1], within.shape[-1])
        return steps, by_kind, trials, evaluated, is_one
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


def together(runs: list[Run], tell: Callable[[str], object] = silent) -> list[Run]:
    """Runs of one experiment, alike in all but their seeds, as one with the members of all.

    Runs that share a seed are not: they are meant to be compared, as before and after a change of a program. `tell` is called
    with steps that are left out because not all of an experiment have them.
    """
    experiments: dict[str, list[Run]] = {}
    for index, run in enumerate(runs):
        key = repr(experiment(run)) if not run.spec.evolve else str(index)  # members that evolve depend on each other
        experiments.setdefault(key, []).append(run)
    alike = {id(run): group for group in experiments.values() for run in group}
    found: dict[int, Run] = {}
    for run in runs:
        group = alike[id(run)]
        seeds = [member["seed"] for other in group for member in other.spec.members()[: other.spec.options.seeds]]
        if len(group) == 1 or len(set(seeds)) < len(seeds):
            found[id(run)] = run
        elif run is group[0]:
            found[id(run)] = _joined(group, tell)
    return list(found.values())


def experiment(run: Run) -> dict[str, Any]:
    """All that runs of one experiment have in common."""
    spec = run.spec
    common = ("algorithm", "environment", "arguments", "config", "network", "sweep", "eval_arguments", "opponents")
    return {**{name: getattr(spec, name) for name in common}, "steps": spec.options.total_steps, "kind": run.kind}


def _joined(group: list[Run], tell: Callable[[str], object]) -> Run:
    """One run of the members of all, at the steps that all have. A swept value comes first with all of its seeds."""
    first, seeds = group[0], [run.spec.options.seeds for run in group]
    at = [_where([run.eval_step for run in group]), _where([run.step for run in group])]
    for run, where in itertools.product(group, (0, 1)):
        had, kept = (run.eval_step, run.step)[where].size, at[where][0].size
        if had > kept:
            what = ("evaluations", "lines of metrics")[where]
            tell(f"{run.folder}: {kept} of its {had} {what} are drawn, at the steps that all runs of {_name(run)} have")
    members, offset = list[tuple[float, int]](), 0
    for number, run in zip(seeds, group, strict=True):
        members += [(index // number, offset + index) for index in range(run.size)]
        offset += run.size
    order = [place for _, place in sorted(members, key=lambda pair: pair[0])]
    is_equal = len({run.returns.shape[2] for run in group}) == 1
    parts = [_at(run, rows, lines, is_equal) for run, rows, lines in zip(group, at[0][1], at[1][1], strict=True)]
    join = lambda arrays: np.concatenate(arrays, axis=1)[:, order]  # noqa: E731
    return first._replace(
        eval_step=at[0][0],
        step=at[1][0],
        returns=join([part.returns for part in parts]),
        trials=join([part.trials for part in parts]),
        metrics={name: join([p.metrics[name] for p in parts]) for name in _common([p.metrics for p in parts])},
        evaluated={name: join([p.evaluated[name] for p in parts]) for name in _common([p.evaluated for p in parts])},
        eval_time=np.mean([part.eval_time for part in parts], axis=0),
        time=np.mean([part.time for part in parts], axis=0),
    )


def _name(run: Run) -> str:
    return f"{run.spec.algorithm} on {run.spec.environment}"


def _where(steps: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The steps that all have, and where each has them."""
    common = steps[0]
    for each in steps[1:]:
        common = np.intersect1d(common, each)
    return common, [np.searchsorted(each, common) for each in steps]


def _common(tables: list[dict[str, np.ndarray]]) -> list[str]:
    return [name for name in tables[0] if all(name in table for table in tables)]


def _at(run: Run, evaluations: np.ndarray, lines: np.ndarray, is_equal: bool) -> Run:
    """A run at some of its steps, every metric with all members; episodes as their mean where runs have not equally many."""
    of_episodes = (lambda x: x[evaluations]) if is_equal else (lambda x: x[evaluations].mean(axis=2, keepdims=True))
    return run._replace(
        returns=of_episodes(run.returns),
        trials=of_episodes(run.trials),
        metrics={name: np.broadcast_to(x[lines], (lines.size, run.size)) for name, x in run.metrics.items()},
        evaluated={name: of_episodes(x) for name, x in run.evaluated.items()},
        eval_time=run.eval_time[evaluations],
        time=run.time[lines],
    )


def over_time(runs: list[Run]) -> list[Run]:
    """Runs with the time since their start in place of steps, without what has none."""
    longest = max((float(time) for run in runs for time in (*run.eval_time, *run.time) if math.isfinite(time)), default=0.0)
    seconds, unit = next((size, unit) for size, unit in TIMES if longest >= 3 * size or size == 1)
    found = []
    for run in runs:
        at, lines = np.flatnonzero(np.isfinite(run.eval_time)), np.flatnonzero(np.isfinite(run.time))
        cut = _at(run, at, lines, is_equal=True)
        found.append(cut._replace(eval_step=cut.eval_time / seconds, step=cut.time / seconds, axis=f"wall time ({unit})"))
    return found


def thinned(run: Run, most: int) -> Run:
    """A run with at most so many of its lines of metrics, evenly spread, the first and the last among them."""
    if run.step.size <= most:
        return run
    lines = np.linspace(0, run.step.size - 1, most).round().astype(int)
    return run._replace(step=run.step[lines], time=run.time[lines], metrics={n: x[lines] for n, x in run.metrics.items()})


def smooth(run: Run, number: int) -> Run:
    """A run whose numbers are means of so many neighboring points."""
    return run._replace(
        returns=smoothed(run.returns, number),
        metrics={name: smoothed(x, number) for name, x in run.metrics.items()},
        evaluated={name: smoothed(x, number) for name, x in run.evaluated.items()},
    )


def curves_of(runs: list[Run], names: tuple[str, ...] = ()) -> list[Curve]:
    """The lines of all runs, with labels and colors that tell them apart.

    `names`: for the labels, in their order. Raises UsageError when they are not as many.
    """
    groups = [(run, members, facts) for run in runs for members, facts in _groups(run)]
    all_facts = [facts for *_, facts in groups]
    own = labels(all_facts, [run.folder for run, *_ in groups])
    distinct = list(dict.fromkeys(own))
    if names and len(names) != len(distinct):
        told = f"{len(distinct)} name{'s' * (len(distinct) > 1)}, in this order for: {'; '.join(distinct)}"
        raise UsageError(f"--label has {len(names)}, and takes {told}")
    shown = dict(zip(distinct, names or distinct, strict=True))
    palette = colors(len(distinct), is_one_scale(all_facts))
    style = {label: (palette[i], DASHES[i // len(COLORS) % len(DASHES)]) for i, label in enumerate(distinct)}
    return [Curve(run, members, shown[label], *style[label]) for (run, members, _), label in zip(groups, own, strict=True)]


def _groups(run: Run) -> list[tuple[np.ndarray, dict[str, Any]]]:
    """The members of a run by swept values, each with everything that may tell them from others."""
    swept = run.spec.swept()
    members = np.arange(run.size).reshape(len(swept), -1)
    return [(own, _facts(run, setting)) for own, setting in zip(members, swept, strict=True)]


def _facts(run: Run, swept: dict[str, float]) -> dict[str, Any]:
    """The names and values that a label may be made of, the more telling first."""
    spec = run.spec
    network = {} if isinstance(spec.network, str) else vars(spec.network)
    options = {"total_steps": spec.options.total_steps, "seed": spec.options.seed, "seeds": run.size}
    others = {**spec.arguments, **vars(spec.config), **network, **options}
    about = {"environment": spec.environment, "algorithm": spec.algorithm, "agents": run.kind}
    return {**about, **swept, **(others | swept)}


def has(run: Run, name: str) -> bool:
    """Whether a run has finite numbers of a metric."""
    return name in run.metrics and bool(np.isfinite(run.metrics[name]).any())


def metric(curve: Curve, name: str) -> np.ndarray:
    """A metric of the curve's members, `[M, p]` (`[M, 1]` for what all have in common); NaN where the run lacks it."""
    values = curve.run.metrics.get(name, np.full((curve.run.step.size, 1), math.nan))
    return values if values.shape[1] == 1 else values[:, curve.members]


def title(name: str, unit: str = "steps") -> str:
    """What a figure calls a metric."""
    known = OF_EVALUATION.get(name) or PANELS.get(name) or ("training return" if name == "episode_return" else None)
    return known.format(unit=unit) if known else name.removeprefix("info/").replace("_", " ").replace("/", " ")


def series(curve: Curve, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps `[K]` and numbers `[K, p]` of a metric, of evaluations averaged over their episodes.

    A number that is of episodes stays until the next one ends. Whether any run has the metric, `check_names` says before.
    """
    run = curve.run
    if name == RETURN or name in run.evaluated:
        values = run.returns if name == RETURN else run.evaluated[name]
        return run.eval_step, values[:, curve.members].mean(axis=2)
    values = np.broadcast_to(metric(curve, name), (run.step.size, curve.members.size))
    return run.step, _latest(values) if name in OF_EPISODES else values


def _latest(values: np.ndarray) -> np.ndarray:
    """Numbers `[M, p]`, where a line has none with the one before: episodes do not end within every line of every seed."""
    at = np.where(np.isfinite(values), np.arange(len(values))[:, None], 0)
    return np.take_along_axis(values, np.maximum.accumulate(at, axis=0), axis=0)


def names_of(runs: list[Run]) -> list[str]:
    """The metrics that any of the runs has numbers of: of evaluations, then of training."""
    of_evaluations = [RETURN] if any(run.eval_step.size for run in runs) else []
    of_evaluations += [name for run in runs for name in run.evaluated]
    ordered = ["episode_return", *PANELS]
    known = [name for name in ordered if any(has(run, name) for run in runs)]
    return list(dict.fromkeys([*of_evaluations, *known, *(n for run in runs for n in run.metrics if has(run, n))]))


def check_names(runs: list[Run], wanted: tuple[str, ...]) -> None:
    """Raises UsageError for a metric that none of the runs has, with those that there are."""
    known = names_of(runs)
    for name in wanted:
        if name == RETURN and name not in known:
            raise UsageError(f"there are no evaluations yet: of training there are {', '.join(known)}")
        if name not in known:
            near = str(UnknownNameError("metric", name, known))
            raise UsageError(near if "known are" in near else f"{near} Known are: {', '.join(known)}")
