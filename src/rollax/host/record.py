"""What a run writes while it goes: metrics by line, evaluations by episode."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from rollax.algorithm import Finite, Metrics
from rollax.errors import UsageError
from rollax.host import logging, members
from rollax.host.files import set_aside, write_atomically
from rollax.host.run_folder import EVALUATIONS, LINEAGE, METRICS
from rollax.host.settings import Spec

# What is no longer finite, or so large that what follows from it is not, by the fields of `Finite`.
CULPRITS = {
    "observation": "an observation of the environment became NaN, infinite or too large",
    "reward": "a reward of the environment became NaN, infinite or too large",
    "advantage": "an advantage became NaN or infinite (values or rewards are too large)",
    "loss": "the loss became NaN or infinite (try a smaller learning rate)",
    "parameters": "the parameters became NaN or infinite (try a smaller learning rate or max_grad_norm)",
}


def line(rows: Metrics, first: int, stop: int) -> dict[str, Any]:
    """One line of metrics from the updates `first` to `stop` of `[n]` or `[n, P]`: means, and means per episode that ended."""
    count, total_return, total_length = (values[first:stop].sum(axis=0) for values in rows.episodes[:3])
    of_types = {name: [values[first:stop].sum(axis=0) for values in sums] for name, sums in rows.episodes.by_type.items()}
    with np.errstate(invalid="ignore", divide="ignore"):
        episodes = {"episode_return": total_return / count, "episode_length": total_length / count, "episodes": count}
        episodes |= {f"{name}/episode_return": total / number for name, (number, total) in of_types.items()}
    means = {name: values[first:stop].mean(axis=0) for name, values in rows.values.items()}
    return {name: value.tolist() for name, value in {**episodes, **means}.items()}


def first_nonfinite(rows: Metrics) -> tuple[int, str] | None:
    """The first update and what went bad in it, the cause before its effects; None while all is well.

    Of a population, members that are still well hide those that are not: it takes all of them.
    """
    well = np.stack([values.reshape(len(values), -1) for values in rows.finite], axis=1)  # [n, checks, P]
    bad = ~np.any(np.all(well, axis=1), axis=1)
    if not np.any(bad):
        return None
    update = int(np.argmax(bad))
    return update, Finite._fields[int(np.argmin(np.all(well[update], axis=1)))]


def bad_members(rows: Metrics) -> np.ndarray:
    """Which members `[P]` are no longer finite after the last of these updates."""
    return ~np.all(np.stack([values[-1] for values in rows.finite]), axis=0)


_GROUPS = ("info", "state_metrics")  # fields of `Episodes` that are arrays by name


class Recorder:
    """The sinks of a run, and its evaluations in one file. `resume_from`: the step that a resumed run goes on from.

    `warnings` says what of a resumed run is missing or damaged. A file of evaluations that cannot be gone on with is set aside.
    """

    def __init__(self, folder: Path, spec: Spec, resume_from: int | None) -> None:
        self._path = folder / EVALUATIONS
        self._evaluations, self.warnings = ({}, []) if resume_from is None else _recovered(folder, resume_from)
        self._lines = logging.json_lines(folder / METRICS, resume_from)
        # A generation comes after the checkpoint of its step, so a resumed run does that of the same step again.
        again = None if resume_from is None else resume_from - 1
        self._lineage = logging.json_lines(folder / LINEAGE, again) if spec.evolve else logging.every([])
        self._others = dashboards(folder, spec, resume_from)

    def has_evaluation(self, step: int) -> bool:
        return step in self._evaluations.get("step", [])

    def metrics(self, step: int, values: dict[str, Any]) -> None:
        self._lines.write(step, values)
        told = {logging.in_section(name): value for name, value in values.items()}
        for member, sink in self._others.items():
            sink.write(step, _numbers(told, member))

    def evaluation(self, step: int, values: dict[str, Any], episodes: dict[str, Any]) -> str | None:
        """`episodes`: arrays of one evaluation, kept for all evaluations under a leading axis.

        Evaluations of other shapes cannot be in one file: those before are set aside then, and a warning is returned.
        """
        for member, sink in self._others.items():
            own = values if member is None else {**_timing(values), **members.numbers(episodes, member)}
            sink.write(step, _numbers({_of_evaluation(name): value for name, value in own.items()}))
        arrays = {name: value for name, value in episodes.items() if name not in _GROUPS and value is not None}
        arrays |= {f"{group}/{name}": value for group in _GROUPS for name, value in episodes.get(group, {}).items()}
        row = {name: np.asarray(value) for name, value in {"step": step, **arrays}.items()}
        warning = self._make_room(row)
        for name, value in row.items():
            self._evaluations.setdefault(name, []).append(value)
        buffer = io.BytesIO()
        stacked: dict[str, Any] = {name: np.stack(values) for name, values in self._evaluations.items()}
        np.savez_compressed(buffer, **stacked)
        write_atomically(self._path, buffer.getvalue())
        # Last, because its line is what says that an evaluation is complete.
        self._lines.write(step, {**values, "event": "evaluation"})
        return warning

    def _make_room(self, row: dict[str, np.ndarray]) -> str | None:
        before = {name: rows[-1].shape for name, rows in self._evaluations.items() if rows}
        if not before or before == {name: value.shape for name, value in row.items()}:
            return None
        self._evaluations = {}
        return f"earlier evaluations have other shapes: they were set aside as {set_aside(self._path, 'earlier').name}"

    def sync(self) -> None:
        """Returns when every line is on disk."""
        self._lines.sync()
        self._lineage.sync()

    def generation(self, step: int, values: dict[str, Any]) -> None:
        """What members became, for the history of every lineage."""
        self._lineage.write(step, values)

    def close(self) -> None:
        self._lines.close()
        self._lineage.close()
        logging.every(list(self._others.values())).close()


class Unwritten:
    """What a process has in place of a `Recorder` that is not the one that writes. `known`: steps of evaluations so far."""

    warnings: tuple[str, ...] = ()

    def __init__(self, known: Iterable[int]) -> None:
        self._known = set(known)

    def has_evaluation(self, step: int) -> bool:
        return step in self._known

    def evaluation(self, step: int, values: dict[str, Any], episodes: dict[str, Any]) -> None:
        self._known.add(step)

    def after(self, step: int) -> "Unwritten":
        """That of a run that goes back to `step`."""
        return Unwritten(known for known in self._known if known <= step)

    def metrics(self, step: int, values: dict[str, Any]) -> None: ...
    def generation(self, step: int, values: dict[str, Any]) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


MOST_MEMBERS = 16  # of a population that dashboards show as a run each; of more they have the means


def dashboards(folder: Path, spec: Spec, resume_from: int | None) -> dict[int | None, logging.Sink]:
    """What shows a run elsewhere, by member, each with its own settings; by None where it is one run for all of them."""
    options, own, resumed = spec.options, folder.resolve().name, resume_from is not None
    alike, found = spec.members(), dict[int | None, logging.Sink]()
    plain = {"algorithm": spec.algorithm, "environment": spec.environment, **vars(spec.config), **spec.arguments}
    are_apart = 1 < len(alike) <= MOST_MEMBERS
    for index, member in enumerate(alike) if are_apart else [(None, {"seed": options.seed})]:
        name = ",".join(f"{key}={value:g}" for key, value in member.items()) if are_apart else ""
        whole, group = (f"{own}-{name}", own) if are_apart else (own, None)
        config, sinks = {**plain, **member}, []
        if options.tensorboard:
            sinks.append(logging.tensorboard(folder / "tensorboard" / name, resume_from, config))
        if options.wandb:
            sinks.append(logging.wandb(options.wandb, _identity(whole), folder, config, resumed, group))
        if options.trackio:
            sinks.append(logging.trackio(options.trackio, whole, config, resumed, group))
        if sinks:
            found[index] = logging.every(sinks)
    return found


def _identity(name: str) -> str:
    """A name as Weights & Biases takes it for an identity, which must be without some characters."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)


def _timing(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in logging.TIME}


def _of_evaluation(name: str) -> str:
    return logging.in_section(name) if name in logging.TIME else f"eval/{name}"


def _numbers(values: dict[str, Any], member: int | None = None) -> dict[str, float]:
    """Finite numbers: a member's own where there is one for each, else means. Of what is no number, dashboards complain."""
    own = {
        n: x[member] if member is not None and isinstance(x, list) else x for n, x in values.items() if not isinstance(x, str)
    }
    numbers = {name: _scalar(value) for name, value in own.items()}
    return {name: value for name, value in numbers.items() if np.isfinite(value)}


def _scalar(value: Any) -> float:
    finite = np.asarray(value, float)
    finite = finite[np.isfinite(finite)]
    return float(finite.mean()) if finite.size else float("nan")


def is_begun(folder: Path) -> bool:
    """Whether a run has recorded anything."""
    return any((folder / name).exists() for name in (METRICS, EVALUATIONS, LINEAGE))


def evaluated_steps(folder: Path) -> set[int]:
    """The steps at which a run was evaluated."""
    path = folder / METRICS
    return _evaluated(logging.read_metrics(path)) if path.exists() else set()


def _evaluated(lines: list[dict[str, Any]]) -> set[int]:
    return {line["step"] for line in lines if line.get("event") == "evaluation"}


def read_evaluations(path: Path) -> dict[str, np.ndarray]:
    """The arrays of evaluations.npz, of K evaluations each. Raises UsageError when they are damaged."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            arrays = dict(file)
        steps, length, returns = arrays["step"], arrays["length"], arrays["returns"]
        same = [arrays["terminated"].shape == arrays["truncated"].shape == length.shape == returns.shape[: length.ndim]]
        same += [array.shape[:1] == steps.shape for array in arrays.values()]
        if steps.dtype.kind not in "iu" or returns.dtype.kind not in "fiu" or length.ndim < 2 or not all(same):
            raise ValueError("its arrays do not belong together")
    except Exception as error:  # whatever a damaged archive makes numpy, zipfile and zlib raise
        raise UsageError(f"{path} cannot be read ({type(error).__name__}: {error})") from error
    return arrays


def _recovered(folder: Path, resume_from: int) -> tuple[dict[str, list[np.ndarray]], list[str]]:
    """The evaluations that a run goes on with, and what was missing or damaged."""
    path, metrics, warnings = folder / EVALUATIONS, folder / METRICS, []
    records = logging.all_records(metrics) if metrics.exists() else []
    ever, furthest = _evaluated(records), max((each["step"] for each in records), default=0)
    valid = {step for step in evaluated_steps(folder) if step <= resume_from}
    if not metrics.exists():
        warnings.append(f"{metrics} is missing: what it had of the steps up to {max(resume_from, 0):,} is lost")
    elif number := logging.unreadable_lines(metrics):
        warnings.append(f"{number} line{'s' if number > 1 else ''} of {metrics} cannot be read, and will be passed over")
    elif furthest < resume_from:
        warnings.append(f"{metrics} ends at step {furthest:,}, before the checkpoint of step {resume_from:,}: lines are lost")
    if not path.exists():
        if valid:
            warnings.append(f"{path} is missing: the episodes of the evaluations up to step {resume_from:,} are lost")
        return {}, warnings
    try:
        arrays = read_evaluations(path)
    except UsageError as error:
        return {}, [*warnings, f"{error}: it was set aside as {set_aside(path, 'damaged').name}"]
    steps = [int(step) for step in arrays["step"]]
    # Without a line in metrics.jsonl: the last when a kill came between the two, to be done again; others when lines are lost.
    untold = [step for step in steps if step not in ever]
    keep = [i for i, step in enumerate(steps) if step in valid or (step in untold and step < resume_from)]
    if sum(step >= resume_from for step in untold) > 1:
        warnings.append(
            f"{path} knows of later evaluations than {metrics}: it was set aside as {set_aside(path, 'later').name}"
        )
    return ({name: [values[i] for i in keep] for name, values in arrays.items()} if keep else {}), warnings
