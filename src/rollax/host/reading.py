"""Runs as they lie on disk: which there are, and what they recorded as tables."""

import glob
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollax.errors import UsageError
from rollax.host import logging
from rollax.host.options import check_path
from rollax.host.record import read_evaluations
from rollax.host.run_folder import CONFIG, EVALUATIONS, METRICS, no_run, read_spec
from rollax.host.settings import Spec

GENERAL = ("run", "member", "step", "wall_time")  # the first columns of metrics


def silent(note: str) -> None:
    """Tells nobody."""


def find(given: Iterable[Path | str], tell: Callable[[str], object] = silent) -> list[Path]:
    """The folders of runs among these: runs, folders that contain runs however deep, and patterns such as `runs/*`.

    `tell` is called with what is passed over, as long as there is a run besides. Raises UsageError when there is none.
    """
    found: dict[Path, Path] = {}
    others = []
    for name in given:
        paths = _expanded(Path(name))
        runs = [run for path in paths for run in _inside(path)]
        found |= {run.resolve(): run for run in runs if run.resolve() not in found}
        others += [path for path in paths if not runs or (len(paths) > 1 and not _inside(path))]
    if others and not found:
        more = f" (nor have {len(others) - 1} others)" if len(others) > 1 else ""
        raise UsageError(no_run(others[0], f"is not a run and contains none: no {CONFIG} is in it{more}"))
    if others:
        tell(f"passed over, as neither runs nor folders of runs: {', '.join(map(str, others))}")
    return list(found.values())


def _expanded(path: Path) -> list[Path]:
    """A path itself, or what a pattern matches, for where no shell has done that. Raises UsageError when nothing is there."""
    check_path("the folder", path)
    if path.exists():
        return [path]
    matches = [Path(match) for match in sorted(glob.glob(str(path)))]
    if not matches:
        raise UsageError(f"{path} is not a run: there is no such folder; give the folder that `rollax train` named")
    return matches


def _inside(folder: Path) -> list[Path]:
    """A run, or the runs in a folder; a run's own folders, such as those of its opponents, are not looked into."""
    if (folder / CONFIG).is_file():
        return [folder]
    if not folder.is_dir():
        return []
    # A link may lead to a run, but elsewhere none is followed: there may be a circle.
    inner = [path for path in sorted(folder.iterdir()) if not path.is_symlink() or (path / CONFIG).is_file()]
    return [run for path in inner for run in _inside(path)]


class Tables(NamedTuple):
    """Runs as pandas data frames. `run` and `member` (0 of a single run) tell what a row is of."""

    settings: Any  # a row for each member: algorithm, environment, seed, total_steps, config.<name>, network.<name>, env.<name>
    metrics: Any  # a row for each line and member: run, member, step, wall_time, and whatever was logged
    evaluations: Any  # a row for each episode: run, member, step, episode, return, length, terminated, truncated, info/<name>


def read(runs: Path | str | Iterable[Path | str]) -> Tables:
    """What runs recorded, as data frames. `runs`: folders of runs, folders that contain runs, or patterns such as "runs/*".

    A run that is still being written is read as far as it is. Of several agents `return` is the mean, and `return/0`,
    `return/1` and so on are those of each; what has several numbers an episode, such as descriptors, is numbered so too.

    Raises UsageError when there is no run, when one cannot be read, or when pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise logging.missing("pandas") from error
    folders = find([runs] if isinstance(runs, Path | str) else runs)
    tables: tuple[list[Any], ...] = ([], [], [])
    for folder in folders:
        spec = read_spec(folder)
        records = logging.read_metrics(folder / METRICS) if (folder / METRICS).exists() else []
        of_run = settings(folder, spec), metrics(folder, spec, records), evaluations(folder, spec, records)
        for table, columns in zip(tables, of_run, strict=True):
            table.append(pandas.DataFrame(columns))
    return Tables(*(pandas.concat([each for each in table if len(each)] or table, ignore_index=True) for table in tables))


def settings(folder: Path, spec: Spec) -> dict[str, list[Any]]:
    """Columns with a value for each member; a swept setting has the member's own."""
    members = spec.members()
    network = {} if isinstance(spec.network, str) else vars(spec.network)
    groups = {"config": vars(spec.config), "network": network, "env": spec.arguments}
    common = {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}
    common = {"algorithm": spec.algorithm, "environment": spec.environment, "total_steps": spec.options.total_steps, **common}
    own = {("seed" if name == "seed" else f"config.{name}"): [member[name] for member in members] for name in members[0]}
    about = {"run": [str(folder)] * len(members), "member": list(range(len(members))), "seed": own["seed"]}
    return about | {name: [value] * len(members) for name, value in common.items()} | own


def metrics(folder: Path, spec: Spec, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Columns with a value for each line and member: what all members have in common is repeated."""
    lines, count = [record for record in records if "event" not in record], len(spec.members())
    names = dict.fromkeys(name for line in lines for name in line)
    columns: dict[str, Any] = {
        "run": [str(folder)] * (len(lines) * count),
        "member": np.tile(np.arange(count), len(lines)),
        "step": np.repeat([line["step"] for line in lines], count).astype(int),
    }
    others = [name for name in names if name not in GENERAL]
    return columns | {name: _column(lines, name, count) for name in ["wall_time", *others] if name in names}


def _column(lines: list[dict[str, Any]], name: str, count: int) -> np.ndarray:
    values = [value if isinstance(value := line.get(name), list) else [value] * count for line in lines]
    numbers = [[x if isinstance(x, int | float) else np.nan for x in row] for row in values]
    return np.array([row if len(row) == count else [np.nan] * count for row in numbers], float).ravel()


def evaluations(folder: Path, spec: Spec, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Columns with a value for each episode. Raises UsageError when the file is damaged."""
    if not (folder / EVALUATIONS).exists():
        return {}
    arrays, count = read_evaluations(folder / EVALUATIONS), len(spec.members())
    steps, length = arrays["step"], arrays["length"]
    episodes = length.shape[-1]
    if length.size != steps.size * count * episodes:
        raise UsageError(f"{folder / EVALUATIONS} is not of {count} members: move it away to read the rest of the run")
    times = {record["step"]: record.get("wall_time") for record in records if record.get("event") == "evaluation"}
    each = np.repeat(np.arange(steps.size), count * episodes)
    columns: dict[str, Any] = {
        "run": [str(folder)] * each.size,
        "member": np.tile(np.repeat(np.arange(count), episodes), steps.size),
        "step": steps[each],
        "wall_time": np.array([times.get(int(step), np.nan) for step in steps], float)[each],
        "episode": np.tile(np.arange(episodes), steps.size * count),
    }
    returns = arrays["returns"].reshape(each.size, -1)
    columns["return"] = returns.mean(axis=1)
    if arrays["returns"].ndim > length.ndim:
        columns |= {f"return/{agent}": returns[:, agent] for agent in range(returns.shape[1])}
    others = {name: array for name, array in arrays.items() if name not in ("returns", "agent_types")}
    own = {name: array for name, array in others.items() if array.shape[: length.ndim] == length.shape}
    for name, array in own.items():
        flat = array.reshape(each.size, -1)
        names = [name] if array.ndim == length.ndim else [f"{name}/{index}" for index in range(flat.shape[1])]
        columns |= dict(zip(names, flat.T, strict=True))
    return columns
