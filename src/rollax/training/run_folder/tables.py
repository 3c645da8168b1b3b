"""Discovery of runs on disk, and conversion of their records to data frames."""

import contextlib
import glob
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollax.errors import UsageError
from rollax.training.evaluation.metrics import user_metric_names
from rollax.training.options import check_path
from rollax.training.run_folder import metric_sinks
from rollax.training.run_folder.layout import (
    CONFIG_FILE,
    EVALUATIONS_FILE,
    METRICS_FILE,
    not_a_run_message,
    read_spec,
)
from rollax.training.run_folder.recorder import read_evaluations
from rollax.training.spec import Spec
from rollax.types import Record, RunPath
from rollax.user_input.coercion import coerce

if TYPE_CHECKING:
    import pandas

LEADING_COLUMNS = ("run", "member", "step", "wall_time")  # first columns of the metrics table


def ignore_message(note: str) -> None:
    """Do nothing. This is the default for functions that receive notes and warnings."""


def to_folder_list(runs: object) -> list[Path]:
    """Convert a run, folder or pattern, or a sequence of these, to a list of paths.

    Args:
        runs: Result of a run, folder or pattern, or a sequence of these.

    Returns:
        The paths.

    Raises:
        UsageError: If `runs` has another type.
    """
    if isinstance(runs, str | os.PathLike):
        return [Path(runs)]
    return list(coerce("runs", runs, tuple[Path, ...]))


def find_runs(
    paths: Iterable[RunPath], notify_fn: Callable[[str], object] = ignore_message
) -> list[Path]:
    """Find run folders.

    Args:
        paths: Run folders, folders that contain runs at any depth, or patterns such as `runs/*`.
        notify_fn: Function that receives a message about skipped paths.

    Returns:
        The run folders.

    Raises:
        UsageError: If no run is found.
    """
    run_folders: dict[Path, Path] = {}
    paths_without_runs: list[Path] = []
    for pattern in paths:
        for path in _expand_pattern(Path(pattern)):
            runs = _find_runs_inside(path)
            run_folders |= {run.resolve(): run for run in runs if run.resolve() not in run_folders}
            paths_without_runs += [] if runs else [path]
    if paths_without_runs and not run_folders:
        count = len(paths_without_runs) - 1
        note = f" (the same holds for {count} others)" if count else ""
        predicate = f"is not a run and contains no runs with a {CONFIG_FILE}{note}"
        raise UsageError(not_a_run_message(paths_without_runs[0], predicate))
    if paths_without_runs:
        missing_text = ", ".join(map(str, paths_without_runs))
        notify_fn(f"Skipped paths that are not and do not contain runs: {missing_text}")
    return list(run_folders.values())


def _expand_pattern(path: Path) -> list[Path]:
    """Return an existing path, or all paths that match a pattern.

    Raise UsageError if no path matches.
    """
    check_path("the folder", path)
    if path.exists():
        return [path]
    matches = [Path(match) for match in sorted(glob.glob(str(path)))]
    if not matches:
        raise UsageError(
            f"{path} is not a run, because the folder does not exist. "
            "Use a folder that `rollax train` printed."
        )
    return matches


def _find_runs_inside(folder: Path) -> list[Path]:
    """Return the runs in a folder, or the folder itself if it is a run.

    Folders inside runs are not searched. Folders that cannot be read are skipped.
    """
    runs, pending = list[Path](), [folder]
    while pending:
        path = pending.pop()
        with contextlib.suppress(OSError):
            if (path / CONFIG_FILE).is_file():
                runs.append(path)
            # Links to runs are followed. Other links are not, because they may form a cycle.
            elif path.is_dir() and (path == folder or not path.is_symlink()):
                pending += sorted(path.iterdir(), reverse=True)
    return runs


class Tables(NamedTuple):
    """Runs as pandas data frames. The columns `run` and `member` identify the source of a row.

    Attributes:
        settings: One row per member: algorithm, environment, seed, total_steps, config.<name>,
            network.<name>, env.<name>.
        metrics: One row per metric line and member: run, member, step, wall_time, training metrics
            and custom metrics.
        evaluations: One row per episode: run, member, step, episode, return, length, terminated,
            truncated, info/<name>, and custom metrics of the evaluation.
    """

    settings: "pandas.DataFrame"
    metrics: "pandas.DataFrame"
    evaluations: "pandas.DataFrame"

    def __repr__(self) -> str:
        return (
            "Tables("
            f"{', '.join(f'{name}: {len(table)} rows' for name, table in self._asdict().items())})"
        )

    def history(self) -> "pandas.DataFrame":
        """Return the training metrics joined with evaluation means at the same step.

        The added columns are `return_mean`, `return_std` and `length_mean`, computed over episodes
        with finite values. With several agents, `return_mean/0`, `return_mean/1` and so on are the
        means per agent. A step with an evaluation but without training metrics has a separate row.
        """
        import pandas

        keys = ["run", "member", "step"]
        if "return" not in self.evaluations:
            return self.metrics
        finite = self.evaluations.replace([np.inf, -np.inf], np.nan)
        groups = finite.groupby(keys)
        columns = {
            "wall_time": groups["wall_time"].first(),
            "return_mean": groups["return"].mean(),
            "return_std": groups["return"].std().fillna(0.0),
            "length_mean": groups["length"].mean(),
        }
        agents = [name for name in finite if str(name).startswith("return/")]
        columns |= {f"return_mean/{name[7:]}": groups[name].mean() for name in agents}
        evaluated = pandas.DataFrame(columns)
        if not len(self.metrics):
            return evaluated.reset_index()
        history = self.metrics.set_index(keys).combine_first(evaluated).reset_index()
        return history.reindex(columns=list(dict.fromkeys([*self.metrics, *columns])))


def read(runs: RunPath | Iterable[RunPath]) -> Tables:
    """Read the records of runs as data frames.

    A run in progress is read up to its newest record. With several agents, `return` is the mean
    over agents, and `return/0`, `return/1` and so on are the returns of single agents. Other values
    with several numbers per episode, such as descriptors, have numbered columns as well.

    Args:
        runs: Results of runs, run folders, folders that contain runs, or patterns such as "runs/*".

    Returns:
        The tables.

    Raises:
        UsageError: If no run is found, a run cannot be read, or pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise metric_sinks.missing_package_error("pandas") from error
    folders = find_runs(to_folder_list(runs))
    if not folders:
        raise UsageError("runs must name at least one run folder, got none.")
    settings, metrics, evaluations = [], [], []
    for folder in folders:
        spec, path = read_spec(folder), folder / METRICS_FILE
        records = metric_sinks.read_metrics(path) if path.exists() else []
        settings.append(pandas.DataFrame(make_settings_columns(folder, spec)))
        metrics.append(pandas.DataFrame(make_metrics_columns(folder, spec, records)))
        evaluations.append(pandas.DataFrame(make_evaluation_columns(folder, spec, records)))

    def join(tables: list["pandas.DataFrame"]) -> "pandas.DataFrame":
        nonempty = [table for table in tables if len(table)]
        return pandas.concat(nonempty or tables, ignore_index=True)

    return Tables(join(settings), join(metrics), join(evaluations))


def make_settings_columns(folder: Path, spec: Spec) -> dict[str, list[Any]]:
    """Return the settings of a run as columns with one entry per member.

    Args:
        folder: Run folder.
        spec: Specification of the run.

    Returns:
        Columns, keyed by name. Swept settings have the value of each member.
    """
    members = spec.members()
    network = {} if isinstance(spec.network, str) else vars(spec.network)
    groups = {"config": vars(spec.config), "network": network, "env": spec.arguments}
    common = {
        f"{group}.{name}": value
        for group, values in groups.items()
        for name, value in values.items()
    }
    common = {
        "algorithm": spec.algorithm,
        "environment": spec.environment,
        "total_steps": spec.options.total_steps,
        **common,
    }
    varied = {
        ("seed" if name == "seed" else f"config.{name}"): [member[name] for member in members]
        for name in members[0]
    }
    return {
        "run": [str(folder)] * len(members),
        "member": list(range(len(members))),
        "seed": varied["seed"],
        **{name: [value] * len(members) for name, value in common.items()},
        **varied,
    }


def make_metrics_columns(
    folder: Path, spec: Spec, records: list[Record]
) -> dict[str, list[str] | np.ndarray]:
    """Return the training metrics of a run as columns with one entry per line and member.

    Args:
        folder: Run folder.
        spec: Specification of the run.
        records: Records of the metrics file.

    Returns:
        Columns, keyed by name. Values shared by all members are repeated.
    """
    lines, count = _merge_user_metrics(records), len(spec.members())
    names = dict.fromkeys(name for line in lines for name in line)
    columns: dict[str, list[str] | np.ndarray] = {
        "run": [str(folder)] * (len(lines) * count),
        "member": np.tile(np.arange(count), len(lines)),
        "step": np.repeat([line["step"] for line in lines], count).astype(int),
    }
    metrics = [name for name in names if name not in LEADING_COLUMNS]
    return columns | {
        name: _make_metric_column(lines, name, count)
        for name in ["wall_time", *metrics]
        if name in names
    }


def _merge_user_metrics(records: list[Record]) -> list[Record]:
    """Merge lines of training metrics with the custom metrics of evaluations at the same step.

    The custom metrics of an evaluation without training metrics at its step, for example the
    evaluation before training, become a separate line.
    """
    user_lines: dict[int, Record] = {}
    for record in records:
        if record.get("event") == "evaluation" and user_metric_names(record):
            names = [name for name in user_metric_names(record) if name in record]
            user_lines[record["step"]] = {
                "step": record["step"],
                "wall_time": record.get("wall_time"),
                **{name: record[name] for name in names},
            }
    lines = [user_lines.pop(line["step"], {}) | line for line in records if "event" not in line]
    return sorted([*user_lines.values(), *lines], key=lambda line: line["step"])


def _make_metric_column(lines: list[Record], name: str, count: int) -> np.ndarray:
    values = [
        value if isinstance(value := line.get(name), list) else [value] * count for line in lines
    ]
    numbers = [[x if isinstance(x, int | float) else np.nan for x in row] for row in values]
    return np.array(
        [row if len(row) == count else [np.nan] * count for row in numbers], float
    ).ravel()


def make_evaluation_columns(
    folder: Path, spec: Spec, records: list[Record]
) -> dict[str, list[str] | np.ndarray]:
    """Return the evaluations of a run as columns with one entry per episode.

    Args:
        folder: Run folder.
        spec: Specification of the run.
        records: Records of the metrics file.

    Returns:
        Columns, keyed by name. Empty if the run has no evaluation file.

    Raises:
        UsageError: If the evaluation file is damaged, or its number of members differs from `spec`.
    """
    if not (folder / EVALUATIONS_FILE).exists():
        return {}
    arrays, count = read_evaluations(folder / EVALUATIONS_FILE), len(spec.members())
    steps, length = arrays["step"], arrays["length"]
    episodes = length.shape[-1]
    if length.size != steps.size * count * episodes:
        raise UsageError(
            f"{folder / EVALUATIONS_FILE} must have {count} members. "
            "Move it away to read the rest of the run."
        )
    lines = {record["step"]: record for record in records if record.get("event") == "evaluation"}
    evaluations = [lines.get(int(step), {}) for step in steps]
    times = np.array([line.get("wall_time", np.nan) for line in evaluations], float)
    evaluation = np.repeat(np.arange(steps.size), count * episodes)  # index of each row
    columns: dict[str, list[str] | np.ndarray] = {
        "run": [str(folder)] * evaluation.size,
        "member": np.tile(np.repeat(np.arange(count), episodes), steps.size),
        "step": steps[evaluation],
        "wall_time": times[evaluation],
        "episode": np.tile(np.arange(episodes), steps.size * count),
    }
    returns = arrays["returns"].reshape(evaluation.size, -1)
    columns["return"] = returns.mean(axis=1)
    if arrays["returns"].ndim > length.ndim:
        columns |= {f"return/{agent}": returns[:, agent] for agent in range(returns.shape[1])}
    for name, array in arrays.items():
        is_per_episode = array.shape[: length.ndim] == length.shape
        if name in ("returns", "agent_types") or not is_per_episode:
            continue
        flat = array.reshape(evaluation.size, -1)
        names = (
            [name]
            if array.ndim == length.ndim
            else [f"{name}/{index}" for index in range(flat.shape[1])]
        )
        columns |= dict(zip(names, flat.T, strict=True))
    for name in dict.fromkeys(name for line in evaluations for name in user_metric_names(line)):
        columns[name] = np.repeat(_make_metric_column(evaluations, name, count), episodes)
    return columns
