"""Learning curves: recorded metrics of runs, and their grouping into lines of figures."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rollax.errors import UsageError
from rollax.runtime.shell import format_command_line
from rollax.synonyms.lookup import UnknownSettingError
from rollax.training.run_folder.layout import EVALUATIONS_FILE, METRICS_FILE, read_spec
from rollax.training.run_folder.lineage import num_founders
from rollax.training.run_folder.metric_sinks import read_metrics
from rollax.training.run_folder.recorder import read_evaluations
from rollax.training.spec import Spec, get_algorithm_entry
from rollax.types import JsonValue, Record
from rollax.visualization.plots.evaluation_curves import episode_metrics, finite_mean, user_metrics
from rollax.visualization.plots.labels import (
    LINE_COLORS,
    LINE_STYLES,
    LabelFields,
    LineStyle,
    has_numeric_scale,
    make_colors,
    make_labels,
)

# Returns of the episodes within a trial, in evaluations.npz.
TRIAL_RETURNS_KEY = "info/episode_returns"
# Titles of metrics in the order of their panels. Other metrics follow under their own names.
METRIC_TITLES = {
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
    "steps_per_second": "{unit} per second",  # steps or evaluations
}
STEP_AXIS_LABEL = "environment steps"
# The return of evaluations. Other evaluation metrics are named as in evaluations.npz.
RETURN_METRIC = "return"
EVALUATION_TITLES = {RETURN_METRIC: "evaluation return", "length": "episode length"}
TIME_UNITS = ((3600, "hours"), (60, "minutes"), (1, "seconds"))
EPISODE_METRICS = ("episode_return", "episode_length")  # of episodes that ended since the last line
# Counters in a metrics line, which are not drawn as metrics.
COUNTER_FIELDS = ("step", "updates", "wall_time", "episodes")


class RunCurves(NamedTuple):
    """Recorded metrics of a run: K evaluations of N episodes, M metric lines and P members.

    Metric lines are the records of training metrics in metrics.jsonl. P is 1 for a single run. If
    `resampling.use_wall_time` created the object, `eval_step` and `step` contain times instead of
    steps.

    Attributes:
        folder: Run folder.
        spec: Specification of the run.
        eval_step: Steps of the evaluations, int `[K]`.
        returns: Evaluation returns, float `[K, P, N]`.
        trials: Returns of each episode of a trial in environments where an agent keeps its memory
            for E episodes of one task (`rl2/...`), float `[K, P, N, E]`. E is 0 in all other
            environments.
        step: Steps of the metric lines, int `[M]`.
        metrics: Training metrics, keyed by name, float `[M, P]` each, or `[M, 1]` for a metric with
            one value for all members.
        agent_type: Agent type of the returns, or an empty string for a single type.
        is_closed_form: Whether solutions are scored by the score function of the environment
            (`ClosedFormEnvironment`) instead of episodes. All N returns are then equal.
        eval_time: Wall time of the evaluations in seconds, summed over all sessions, float `[K]`.
            NaN if unknown.
        time: Wall time of the metric lines in seconds, float `[M]`.
        eval_metrics: Evaluation metrics other than the return, keyed by name, float `[K, P, N]`
            each, or `[K, P, 1]` for metrics of the user's `metrics` function.
        axis: Label of the horizontal axis.
        founders: Number of distinct initial members that are ancestors of the current members of
            an evolved population. None if all members are independent.
        user_metrics: Names in `eval_metrics` that come from the user's `metrics` function.
    """

    folder: Path
    spec: Spec
    eval_step: np.ndarray
    returns: np.ndarray
    trials: np.ndarray
    step: np.ndarray
    metrics: dict[str, np.ndarray]
    agent_type: str = ""
    is_closed_form: bool = False
    eval_time: np.ndarray = np.zeros(0)
    time: np.ndarray = np.zeros(0)
    eval_metrics: dict[str, np.ndarray] = {}
    axis: str = STEP_AXIS_LABEL
    founders: int | None = None
    user_metrics: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of members."""
        return self.returns.shape[1]


class Curve(NamedTuple):
    """One line of a figure: members of a run that differ only in their seeds.

    Attributes:
        run: Run that contains the members.
        members: Indices of the members, int `[p]`.
        label: Label in the legend.
        color: Color in hexadecimal notation.
        line_style: One of `LINE_STYLES`.
    """

    run: RunCurves
    members: np.ndarray
    label: str
    color: str
    line_style: LineStyle

    @property
    def has_shared_founders(self) -> bool:
        """Whether members may have common ancestors, so that an interval over them is not valid.

        This is true for several members of an evolved population (see `RunCurves.founders`).
        """
        return self.run.founders is not None and self.members.size > 1


def phase_steps(curves: list[Curve]) -> list[int]:
    """Return the steps at which resumes changed settings of the runs, without wall-time curves."""
    runs = [curve.run for curve in curves if curve.run.axis == STEP_AXIS_LABEL]
    return sorted({phase.step for run in runs for phase in run.spec.phases})


def read_run(folder: Path | str) -> list[RunCurves]:
    """Read the recorded metrics of a run.

    Args:
        folder: Run folder.

    Returns:
        A list with one entry, or with one entry per agent type.

    Raises:
        UsageError: If the folder is not a run, has no recorded data, or has a damaged file.
    """
    folder = Path(folder)
    spec = read_spec(folder)
    num_members = len(spec.members())
    evaluations = _read_evaluations(folder / EVALUATIONS_FILE, num_members)
    path = folder / METRICS_FILE
    records = read_metrics(path) if path.exists() else []
    lines = [record for record in records if "event" not in record]
    if not lines and not evaluations.step.size:
        raise UsageError(
            f"{folder} has recorded nothing yet. Continue training with: "
            f"{format_command_line('rollax', 'resume', folder)}"
        )
    step = np.array([line["step"] for line in lines], int)
    custom_metrics = user_metrics(records, evaluations.step, num_members)
    metrics = _read_training_metrics(lines, num_members)
    is_biased = step < spec.derived_settings.num_envs * _first_episode_length(evaluations.metrics)
    metrics |= {
        name: np.where(is_biased[:, None], math.nan, metrics[name])
        for name in EPISODE_METRICS
        if name in metrics and not is_biased.all()
    }
    last_step = max([*evaluations.step.tolist(), *step.tolist()])
    unit = get_algorithm_entry(spec.algorithm).unit
    return [
        RunCurves(
            folder=folder,
            spec=spec,
            eval_step=evaluations.step,
            returns=returns,
            trials=evaluations.trials,
            step=step,
            metrics=_select_agent_type(metrics, agent_type, list(evaluations.returns)),
            agent_type=agent_type,
            is_closed_form=evaluations.has_identical_episodes and unit == "evaluations",
            eval_time=_read_evaluation_times(records, evaluations.step),
            time=_metric_array([line.get("wall_time") for line in lines], 1)[:, 0],
            eval_metrics=evaluations.metrics | custom_metrics,
            axis=STEP_AXIS_LABEL if unit == "steps" else unit,
            founders=num_founders(folder, last_step) if spec.evolve else None,
            user_metrics=tuple(custom_metrics),
        )
        for agent_type, returns in evaluations.returns.items()
    ]


def _read_training_metrics(lines: list[Record], num_members: int) -> dict[str, np.ndarray]:
    """Return the training metrics, keyed by name, float `[M, P]` or `[M, 1]` each."""
    names = dict.fromkeys(name for line in lines for name in line if name not in COUNTER_FIELDS)
    return {name: _metric_array([line.get(name) for line in lines], num_members) for name in names}


def _read_evaluation_times(records: list[Record], steps: np.ndarray) -> np.ndarray:
    """Return the wall times of evaluations, `[K]`, NaN if unknown."""
    times = {
        record["step"]: record.get("wall_time")
        for record in records
        if record.get("event") == "evaluation"
    }
    return np.array([_parse_numbers(times.get(int(step)), 1)[0] for step in steps])


def _first_episode_length(metrics: dict[str, np.ndarray]) -> float:
    """Return the number of steps of the longest episode in the first evaluation.

    Until every training environment has taken this many steps, only short episodes have ended, so
    training returns are biased: upward if episodes end with success, and downward otherwise.
    """
    length = metrics.get("length", np.zeros((0, 1, 1)))
    return float(length[0].max()) if len(length) else 0.0


def _select_agent_type(
    metrics: dict[str, np.ndarray], agent_type: str, all_types: list[str]
) -> dict[str, np.ndarray]:
    """Return the metrics of an agent type, and the metrics that are common to all agents.

    The training return averaged over all agents is omitted.
    """
    if not agent_type:
        return metrics
    common = {
        name: values
        for name, values in metrics.items()
        if name.partition("/")[0] not in all_types and name != "episode_return"
    }
    return common | {
        name.partition("/")[2]: values
        for name, values in metrics.items()
        if name.startswith(f"{agent_type}/")
    }


class _Evaluations(NamedTuple):
    """Content of evaluations.npz.

    Attributes:
        step: Steps, int `[K]`.
        returns: Mean returns over the agents of a type, keyed by agent type, `[K, P, N]` each.
        trials: Returns of the episodes of each trial, `[K, P, N, E]` (see `RunCurves.trials`).
        metrics: Episode metrics other than the return, keyed by name, `[K, P, N]` each.
        has_identical_episodes: Whether all episodes of an evaluation are equal and one step long.
    """

    step: np.ndarray
    returns: dict[str, np.ndarray]
    trials: np.ndarray
    metrics: dict[str, np.ndarray]
    has_identical_episodes: bool


def _read_evaluations(path: Path, num_members: int) -> _Evaluations:
    """Read evaluations.npz, or return empty arrays if it does not exist."""
    if not path.exists():
        return _Evaluations(
            step=np.zeros(0, int),
            returns={"": np.zeros((0, num_members, 1))},
            trials=np.zeros((0, num_members, 1, 0)),
            metrics={},
            has_identical_episodes=False,
        )
    try:
        return _parse_evaluations(read_evaluations(path), num_members)
    except (ValueError, IndexError) as error:
        reason = str(error).rstrip(".")
        raise UsageError(f"{reason}. Move the file away to plot the rest of the run.") from error


def _parse_evaluations(arrays: dict[str, np.ndarray], num_members: int) -> _Evaluations:
    """Convert the arrays of evaluations.npz, or raise ValueError or IndexError."""
    step, length = arrays["step"], arrays["length"]
    returns = arrays["returns"].astype(float).reshape(*length.shape, -1)
    agent_types = (
        arrays["agent_types"][0] if "agent_types" in arrays else np.array([""] * returns.shape[-1])
    )
    shape = (len(step), num_members, length.shape[-1])
    trials = (
        arrays[TRIAL_RETURNS_KEY].astype(float)
        if TRIAL_RETURNS_KEY in arrays
        else np.zeros((*length.shape, 0))
    )
    is_one_step = bool(length.size) and bool(np.all(length == 1))
    return _Evaluations(
        step=step,
        returns={
            str(name): returns[..., agent_types == name].mean(axis=-1).reshape(shape)
            for name in dict.fromkeys(agent_types)
        },
        trials=trials.reshape(*shape, trials.shape[-1]),
        metrics=episode_metrics(arrays, num_members),
        has_identical_episodes=is_one_step and bool(np.all(returns == returns[..., :1, :])),
    )


def _metric_array(values: list[JsonValue], num_members: int) -> np.ndarray:
    """Convert the values of a metric in all metric lines to an array `[M, P]` or `[M, 1]`.

    Missing and invalid values are NaN.
    """
    width = num_members if any(isinstance(value, list) for value in values) else 1
    if not values:
        return np.zeros((0, width))
    return np.stack([_parse_numbers(value, width) for value in values])


def _parse_numbers(value: JsonValue, width: int) -> np.ndarray:
    """Convert a list of `width` numbers, or one repeated number, to an array `[width]`.

    Invalid numbers, and all numbers of a list of another length, are NaN.
    """
    parts = value if isinstance(value, list) else [value] * width
    numbers = [float(part) if isinstance(part, int | float) else math.nan for part in parts]
    return np.array(numbers) if len(numbers) == width else np.full(width, math.nan)


def make_curves(runs: list[RunCurves], names: tuple[str, ...] = ()) -> list[Curve]:
    """Split each run into one curve per swept value, and assign labels, colors and line styles.

    Args:
        runs: Recorded metrics of the runs.
        names: Labels in the order of the legend. If empty, labels are generated.

    Returns:
        One curve for each run and swept value, in the order of the runs.

    Raises:
        UsageError: If the number of names differs from the number of labels.
    """
    groups = [group for run in runs for group in _split_by_swept_value(run)]
    all_fields = [group.fields for group in groups]
    labels = make_labels(all_fields, [group.run.folder for group in groups])
    distinct = list(dict.fromkeys(labels))
    if names and len(names) != len(distinct):
        count = f"{len(distinct)} name{'s' * (len(distinct) > 1)}"
        raise UsageError(
            f"--label must have {count} in the order: {'; '.join(distinct)}. Got {len(names)}."
        )
    shown_labels = dict(zip(distinct, names or distinct, strict=True))
    colors = dict(
        zip(distinct, make_colors(len(distinct), has_numeric_scale(all_fields)), strict=True)
    )
    line_styles: dict[str, LineStyle] = {
        label: LINE_STYLES[index // len(LINE_COLORS) % len(LINE_STYLES)]
        for index, label in enumerate(distinct)
    }
    return [
        Curve(
            run=group.run,
            members=group.members,
            label=shown_labels[label],
            color=colors[label],
            line_style=line_styles[label],
        )
        for group, label in zip(groups, labels, strict=True)
    ]


class _MemberGroup(NamedTuple):
    """Members of a run with equal settings, and the fields that their legend label may contain."""

    run: RunCurves
    members: np.ndarray
    fields: LabelFields


def _split_by_swept_value(run: RunCurves) -> list[_MemberGroup]:
    """Group the members of a run by swept settings."""
    settings = run.spec.swept_settings()
    members = np.arange(run.size).reshape(len(settings), -1)
    return [
        _MemberGroup(run, indices, _label_fields(run, setting))
        for indices, setting in zip(members, settings, strict=True)
    ]


def _label_fields(run: RunCurves, swept_settings: dict[str, float]) -> LabelFields:
    """Return the settings that a legend label may contain, in the order of the label."""
    spec = run.spec
    network = {} if isinstance(spec.network, str) else vars(spec.network)
    options = {
        "total_steps": spec.options.total_steps,
        "seed": spec.options.seed,
        "seeds": run.size,
    }
    return {
        "environment": spec.environment,
        "algorithm": spec.algorithm,
        "agents": run.agent_type,
        **swept_settings,
        **spec.arguments,
        **vars(spec.config),
        **network,
        **options,
        **swept_settings,
    }


def has_metric(run: RunCurves, name: str) -> bool:
    """Return whether a run has finite values of a training metric."""
    return name in run.metrics and bool(np.isfinite(run.metrics[name]).any())


def training_metric(curve: Curve, name: str) -> np.ndarray:
    """Return a training metric of a curve.

    Args:
        curve: Curve to read.
        name: Name of the metric.

    Returns:
        Values `[M, p]`, or `[M, 1]` for a metric with one value for all members. NaN if the run
        lacks the metric.
    """
    values = curve.run.metrics.get(name, np.full((curve.run.step.size, 1), math.nan))
    return values if values.shape[1] == 1 else values[:, curve.members]


def metric_title(name: str, unit: str = "steps") -> str:
    """Return the title of a metric in figures.

    Args:
        name: Name of the metric.
        unit: Unit of training progress in the plural ("steps" or "evaluations"), for titles such as
            "steps per second".
    """
    if name == "episode_return":
        return "training return"
    title = EVALUATION_TITLES.get(name) or METRIC_TITLES.get(name)
    if title is not None:
        return title.format(unit=unit)
    return name.removeprefix("info/").replace("_", " ").replace("/", " ")


class MetricSeries(NamedTuple):
    """Values of a metric `[K, p]` at steps `[K]`."""

    steps: np.ndarray
    values: np.ndarray


def metric_series(curve: Curve, name: str) -> MetricSeries:
    """Return the steps and values of a metric. Evaluation metrics are averaged over episodes.

    Episodes with a non-finite value are excluded, except from the return of several members.
    Episode metrics of training keep their value until the next episode ends. Call
    `resolve_metric_names` first to check that a run has the metric.

    Args:
        curve: Curve to read.
        name: Name of the metric.

    Returns:
        Steps `[K]` and values `[K, p]`.
    """
    run = curve.run
    if name == RETURN_METRIC and len(curve.members) > 1:
        return MetricSeries(run.eval_step, run.returns[:, curve.members].mean(axis=2))
    if name == RETURN_METRIC or name in run.eval_metrics:
        episodes = run.returns if name == RETURN_METRIC else run.eval_metrics[name]
        return MetricSeries(run.eval_step, finite_mean(episodes[:, curve.members], axis=2))
    values = np.broadcast_to(training_metric(curve, name), (run.step.size, curve.members.size))
    return MetricSeries(run.step, _forward_fill(values) if name in EPISODE_METRICS else values)


def _forward_fill(values: np.ndarray) -> np.ndarray:
    """Replace NaN in `values` `[M, p]` by the previous finite value along the first axis."""
    indices = np.where(np.isfinite(values), np.arange(len(values))[:, None], 0)
    return np.take_along_axis(values, np.maximum.accumulate(indices, axis=0), axis=0)


def metric_names(runs: list[RunCurves]) -> list[str]:
    """Return the names of all metrics that have values in a run, evaluation metrics first."""
    names = [RETURN_METRIC] if any(run.eval_step.size for run in runs) else []
    names += [name for run in runs for name in run.eval_metrics]
    titled = ["episode_return", *METRIC_TITLES]
    names += [name for name in titled if any(has_metric(run, name) for run in runs)]
    names += [name for run in runs for name in run.metrics if has_metric(run, name)]
    return list(dict.fromkeys(names))


def resolve_metric_names(runs: list[RunCurves], names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the full names of metrics. `names` may omit the prefix "info/".

    Args:
        runs: Recorded metrics of the runs.
        names: Names to resolve.

    Raises:
        UsageError: If no run has a metric with this name. The message lists the known metrics.
    """
    known_names = metric_names(runs)
    full_names = tuple(
        f"info/{name}" if name not in known_names and f"info/{name}" in known_names else name
        for name in names
    )
    for name in full_names:
        if name == RETURN_METRIC and name not in known_names:
            raise UsageError(
                "The runs have no evaluations yet. Choose a training metric: "
                f"{', '.join(known_names)}."
            )
        if name not in known_names:
            message = str(UnknownSettingError("metric", name, known_names))
            is_complete = "known are" in message
            raise UsageError(
                message if is_complete else f"{message} Known are: {', '.join(known_names)}"
            )
    return full_names
