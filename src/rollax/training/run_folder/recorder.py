"""Recorders of a run: metrics as JSON lines, and evaluations as arrays over episodes."""

import dataclasses
import io
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollax.algorithm import FiniteChecks, Metrics
from rollax.config import UserFunction
from rollax.errors import UsageError
from rollax.runtime.printing import escape_to_one_line
from rollax.training.evaluation import members
from rollax.training.evaluation.metrics import user_metric_names
from rollax.training.run_folder import metric_sinks
from rollax.training.run_folder.files import (
    MAX_FILE_BYTES,
    read_regular_file,
    rename_with_prefix,
    write_atomically,
)
from rollax.training.run_folder.layout import (
    EVALUATIONS_FILE,
    LINEAGE_FILE,
    METRICS_FILE,
    TENSORBOARD_FOLDER,
)
from rollax.training.spec import Spec, get_algorithm_entry
from rollax.types import MetricValues, Record

# Messages for values that are not finite, or too large, by the fields of `FiniteChecks`.
_NONFINITE_MESSAGES = {
    "observation": "an observation of the environment became NaN, infinite or too large",
    "reward": "a reward of the environment became NaN, infinite or too large",
    "advantage": "an advantage became NaN or infinite (values or rewards are too large)",
    "loss": "the loss became NaN or infinite (try a smaller learning rate)",
    "parameters": (
        "the parameters became NaN or infinite (try a smaller learning rate or max_grad_norm)"
    ),
}


def describe_nonfinite(failed_check: str, spec: Spec) -> str:
    """Describe values that are not finite, with a remedy that the algorithm of the run has.

    Args:
        failed_check: Name of a field of `FiniteChecks`, or of a value of a custom algorithm.
        spec: Specification of the run.
    """
    if failed_check == "parameters" and get_algorithm_entry(spec.algorithm).unit == "evaluations":
        names = [field.name for field in dataclasses.fields(spec.config)]
        limits = [name for name in names if name.endswith(("sigma", "learning_rate"))]
        smaller = f", or try a smaller {' or '.join(limits)}" if limits else ""
        return (
            "a solution became NaN or infinite (check that the task and its gradients are "
            f"finite{smaller})"
        )
    return _NONFINITE_MESSAGES.get(failed_check, f"{failed_check} became NaN or infinite")


def make_metrics_record(rows: Metrics, first: int, stop: int) -> MetricValues:
    """Return one record of training metrics: means over updates and over finished episodes.

    Args:
        rows: Metrics of n updates, with leading axes [n] or [n, P] for P members.
        first: Index of the first update.
        stop: Index after the last update.

    Returns:
        Numbers, or lists with one number per member, keyed by metric name.
    """

    def sum_updates(values: np.ndarray) -> np.ndarray:
        return values[first:stop].sum(axis=0)

    count = sum_updates(rows.episodes.number)
    with np.errstate(invalid="ignore", divide="ignore"):
        episodes = {
            "episode_return": sum_updates(rows.episodes.total_return) / count,
            "episode_length": sum_updates(rows.episodes.total_length) / count,
            "episodes": count,
        }
        episodes |= {
            f"{name}/episode_return": sum_updates(total_return) / sum_updates(number)
            for name, (number, total_return) in rows.episodes.agent_type_sums.items()
        }
        episodes |= {
            f"episode_info/{name}": sum_updates(total) / sum_updates(number)
            for name, (number, total) in rows.episodes.info.items()
        }
    means = {name: values[first:stop].mean(axis=0) for name, values in rows.values.items()}
    return {name: value.tolist() for name, value in {**episodes, **means}.items()}


class NonfiniteUpdate(NamedTuple):
    """First update of a segment with nonfinite values in every member.

    Attributes:
        update: Index of the update in the segment.
        failed_check: First field of `FiniteChecks` that is not satisfied.
    """

    update: int
    failed_check: str


def find_first_nonfinite(rows: Metrics) -> NonfiniteUpdate | None:
    """Return the first update with nonfinite values in every member.

    Args:
        rows: Metrics of n updates, with leading axes [n] or [n, P] for P members.

    Returns:
        The update and the check that failed, or None if every update has a finite member.
    """
    is_finite = np.stack(
        [values.reshape(len(values), -1) for values in rows.finite], axis=1
    )  # [n, checks, P]
    is_nonfinite = ~np.any(np.all(is_finite, axis=1), axis=1)
    if not np.any(is_nonfinite):
        return None
    update = int(np.argmax(is_nonfinite))
    failed_check = FiniteChecks._fields[int(np.argmin(np.all(is_finite[update], axis=1)))]
    return NonfiniteUpdate(update, failed_check)


def find_nonfinite_members(rows: Metrics) -> np.ndarray:
    """Return a mask of the members with nonfinite values in the last update, bool [P]."""
    return ~np.all(np.stack([values[-1] for values in rows.finite]), axis=0)


_DICTIONARY_FIELDS = ("info", "state_metrics")  # fields of `Episodes` that are dictionaries


class Recorder:
    """Recorder of a run: metric sinks, and one file with the episodes of all evaluations.

    Attributes:
        warnings: Warnings about missing or damaged files of a resumed run.
    """

    def __init__(
        self, folder: Path, spec: Spec, resume_from: int | None, quiet: bool = False
    ) -> None:
        """Open the files of a run.

        Args:
            folder: Run folder.
            spec: Specification of the run.
            resume_from: Step at which a resumed run continues, or None for a new run.
            quiet: Whether to suppress the output of dashboards.
        """
        self._path = folder / EVALUATIONS_FILE
        recovered = (
            RecoveredEvaluations({}, [])
            if resume_from is None
            else _recover_evaluations(folder, resume_from)
        )
        self._evaluation_arrays, self.warnings = recovered
        self._metrics_sink = metric_sinks.make_json_lines_sink(folder / METRICS_FILE, resume_from)
        # A generation follows the checkpoint of its step, so a resumed run repeats it.
        lineage_resume_from = None if resume_from is None else resume_from - 1
        self._lineage_sink = (
            metric_sinks.make_json_lines_sink(folder / LINEAGE_FILE, lineage_resume_from)
            if spec.evolve
            else metric_sinks.combine_sinks([])
        )
        self._dashboard_sinks = make_dashboard_sinks(folder, spec, resume_from, quiet)

    def has_evaluation(self, step: int) -> bool:
        """Return whether the evaluation at this step is recorded."""
        return step in self._evaluation_arrays.get("step", [])

    def write_metrics(self, step: int, values: MetricValues) -> None:
        """Write training metrics at an environment step."""
        self._metrics_sink.write(step, values)
        prefixed = {metric_sinks.add_section_prefix(name): value for name, value in values.items()}
        for member, sink in self._dashboard_sinks.items():
            sink.write(step, _to_finite_scalars(prefixed, member))

    def write_evaluation(
        self, step: int, values: MetricValues, episodes: MetricValues
    ) -> str | None:
        """Write one evaluation.

        Args:
            step: Environment step.
            values: Metrics of the evaluation, keyed by name.
            episodes: Arrays over episodes, keyed by field of `Episodes`. The file stacks them along
                a leading axis of evaluations.

        Returns:
            A warning if the array shapes differ from those of earlier evaluations, otherwise None.
            If they differ, the file with the earlier evaluations is renamed.
        """
        for member, sink in self._dashboard_sinks.items():
            shown_metrics = (
                values
                if member is None
                else {
                    **{k: v for k, v in values.items() if k in metric_sinks.TIME_METRICS},
                    **_select_member_metrics(values, episodes, member),
                }
            )
            prefixed = {
                _add_evaluation_prefix(name): value for name, value in shown_metrics.items()
            }
            sink.write(step, _to_finite_scalars(prefixed))
        arrays = {
            name: value
            for name, value in episodes.items()
            if name not in _DICTIONARY_FIELDS and value is not None
        }
        arrays |= {
            f"{group}/{name}": value
            for group in _DICTIONARY_FIELDS
            for name, value in episodes.get(group, {}).items()
        }
        row = {name: np.asarray(value) for name, value in {"step": step, **arrays}.items()}
        warning = self._set_aside_if_incompatible(row)
        for name, value in row.items():
            self._evaluation_arrays.setdefault(name, []).append(value)
        buffer = io.BytesIO()
        stacked: dict[str, Any] = {
            name: np.stack(values) for name, values in self._evaluation_arrays.items()
        }
        np.savez_compressed(buffer, **stacked)
        write_atomically(self._path, buffer.getvalue())
        # Written last, because this line marks the evaluation as complete.
        self._metrics_sink.write(step, {**values, "event": "evaluation"})
        return warning

    def _set_aside_if_incompatible(self, row: dict[str, np.ndarray]) -> str | None:
        before = {name: rows[-1].shape for name, rows in self._evaluation_arrays.items() if rows}
        if not before or before == {name: value.shape for name, value in row.items()}:
            return None
        self._evaluation_arrays = {}
        return (
            "Earlier evaluations have other shapes. "
            f"They are renamed to {rename_with_prefix(self._path, 'earlier').name}."
        )

    def sync(self) -> None:
        """Flush all lines to disk."""
        self._metrics_sink.sync()
        self._lineage_sink.sync()

    def write_generation(self, step: int, values: MetricValues) -> None:
        """Write the record of one generation of an evolving population."""
        self._lineage_sink.write(step, values)

    def write_warning(self, step: int, values: MetricValues) -> None:
        """Write a warning about the curves of the run as a line with `"event": "warning"`."""
        self._metrics_sink.write(step, {"event": "warning", **values})

    def close(self) -> None:
        """Close all sinks."""
        self._metrics_sink.close()
        self._lineage_sink.close()
        metric_sinks.combine_sinks(list(self._dashboard_sinks.values())).close()


class NullRecorder:
    """Recorder for processes that write no files. It only stores the steps of evaluations.

    Args:
        evaluated_steps: Steps with a recorded evaluation.
    """

    warnings: tuple[str, ...] = ()

    def __init__(self, evaluated_steps: Iterable[int]) -> None:
        self._evaluated_steps = set(evaluated_steps)

    def has_evaluation(self, step: int) -> bool:
        """Return whether the evaluation at this step is recorded."""
        return step in self._evaluated_steps

    def write_evaluation(self, step: int, values: MetricValues, episodes: MetricValues) -> None:
        """Store the step of an evaluation."""
        self._evaluated_steps.add(step)

    def roll_back(self, step: int) -> "NullRecorder":
        """Return a recorder with the evaluations up to `step`, for a run that rolls back to it."""
        return NullRecorder(earlier for earlier in self._evaluated_steps if earlier <= step)

    def write_metrics(self, step: int, values: MetricValues) -> None: ...
    def write_generation(self, step: int, values: MetricValues) -> None: ...
    def write_warning(self, step: int, values: MetricValues) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


# Largest population whose members are separate runs on dashboards. Larger ones show means.
MAX_DASHBOARD_RUNS = 16


def make_dashboard_sinks(
    folder: Path, spec: Spec, resume_from: int | None, quiet: bool = False
) -> dict[int | None, metric_sinks.MetricSink]:
    """Make the dashboard sinks of a run.

    Args:
        folder: Run folder.
        spec: Specification of the run.
        resume_from: Step at which a resumed run continues, or None for a new run.
        quiet: Whether to suppress the output of dashboards.

    Returns:
        Sinks, keyed by member index, each created with the settings of the member. For a single run
        and for more than `MAX_DASHBOARD_RUNS` members, the only key is None, and its sink logs the
        means over members. Empty if no dashboard is enabled.
    """
    options, is_resumed = spec.options, resume_from is not None
    run_name, all_members = folder.resolve().name, spec.members()
    common_settings = {
        "algorithm": spec.algorithm,
        "environment": spec.environment,
        **{k: str(v) if isinstance(v, UserFunction) else v for k, v in vars(spec.config).items()},
        **spec.arguments,
    }
    are_separate = 1 < len(all_members) <= MAX_DASHBOARD_RUNS
    dashboard_runs = (
        list(enumerate(all_members)) if are_separate else [(None, {"seed": options.seed})]
    )
    sinks_by_member = dict[int | None, metric_sinks.MetricSink]()
    for index, member in dashboard_runs:
        name = ",".join(f"{key}={value:g}" for key, value in member.items()) if are_separate else ""
        full_name, group = (f"{run_name}-{name}", run_name) if are_separate else (run_name, None)
        config, sinks = {**common_settings, **member}, []
        if options.tensorboard:
            sinks.append(
                metric_sinks.make_tensorboard_sink(
                    folder / TENSORBOARD_FOLDER / name, resume_from, config
                )
            )
        if options.wandb:
            sinks.append(
                metric_sinks.make_wandb_sink(
                    options.wandb, _wandb_id(full_name), folder, config, is_resumed, group, quiet
                )
            )
        if options.trackio:
            sinks.append(
                metric_sinks.make_trackio_sink(
                    options.trackio, full_name, config, is_resumed, group, quiet
                )
            )
        if sinks:
            sinks_by_member[index] = metric_sinks.combine_sinks(sinks)
    return sinks_by_member


def _wandb_id(name: str) -> str:
    """Return a name with only the characters that Weights & Biases allows in ids."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)


def _select_member_metrics(
    values: MetricValues, episodes: MetricValues, member: int
) -> MetricValues:
    """Return the default and custom metrics of one member."""
    user = {name: values[name] for name in user_metric_names(values) if name in values}
    return members.compute_member_metrics(episodes, member) | {
        name: value[member] if isinstance(value, list) else value for name, value in user.items()
    }


def _add_evaluation_prefix(name: str) -> str:
    return (
        metric_sinks.add_section_prefix(name)
        if name in metric_sinks.TIME_METRICS
        else f"eval/{name}"
    )


def _to_finite_scalars(values: MetricValues, member: int | None = None) -> dict[str, float]:
    """Return the finite metrics as scalars for a dashboard, keyed by name.

    A list is reduced to the entry of `member`, or to the mean of its finite entries if `member` is
    None. If some entries are not finite, `<name>/count` is the number of finite entries.
    """
    scalars: dict[str, float] = {}
    for name, value in values.items():
        if member is not None and isinstance(value, list):
            value = value[member]
        array = np.asarray(value)
        if array.dtype.kind == "U":
            continue
        array = array.astype(float)
        finite = array[np.isfinite(array)]
        if finite.size:
            scalars[name] = float(finite.mean())
        if 0 < finite.size < array.size:
            scalars[f"{name}/count"] = float(finite.size)
    return scalars


def has_records(folder: Path) -> bool:
    """Return whether a run folder contains metrics, evaluations or generations."""
    return any((folder / name).exists() for name in (METRICS_FILE, EVALUATIONS_FILE, LINEAGE_FILE))


def evaluated_steps(folder: Path) -> set[int]:
    """Return the steps at which a run was evaluated."""
    path = folder / METRICS_FILE
    return _find_evaluated_steps(metric_sinks.read_metrics(path)) if path.exists() else set()


def _find_evaluated_steps(records: list[Record]) -> set[int]:
    return {record["step"] for record in records if record.get("event") == "evaluation"}


def read_evaluations(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of evaluations.npz.

    Args:
        path: Path of the file.

    Returns:
        Arrays of K evaluations, [K, ...] each: `step`, the fields of `Episodes`, and `info/<name>`.

    Raises:
        UsageError: If the file cannot be read, or its arrays have inconsistent shapes or types.
    """
    try:
        content = read_regular_file(path)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_FILE_BYTES:
                raise ValueError(f"the arrays have more than {MAX_FILE_BYTES:,} bytes")
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {escape_to_one_line(name): array for name, array in file.items()}
        if not _are_consistent(arrays):
            raise ValueError("the arrays are inconsistent")
    except Exception as error:  # damaged archives raise many types in numpy, zipfile and zlib
        raise UsageError(f"{path} cannot be read ({type(error).__name__}: {error}).") from error
    return arrays


def _are_consistent(arrays: Mapping[str, np.ndarray]) -> bool:
    """Return whether the arrays of evaluations have the types and shapes that a run writes."""
    steps, length, returns = arrays["step"], arrays["length"], arrays["returns"]
    episode_shapes = (
        arrays["terminated"].shape,
        arrays["truncated"].shape,
        returns.shape[: length.ndim],
    )
    return (
        steps.dtype.kind in "iu"
        and returns.dtype.kind in "fiu"
        and length.ndim >= 2
        and all(shape == length.shape for shape in episode_shapes)
        and all(array.shape[:1] == steps.shape for array in arrays.values())
    )


class RecoveredEvaluations(NamedTuple):
    """Evaluations that a resumed run keeps.

    Attributes:
        arrays: List with one array per evaluation, keyed by array name.
        warnings: Warnings about missing or damaged files of the run.
    """

    arrays: dict[str, list[np.ndarray]]
    warnings: list[str]


def _recover_evaluations(folder: Path, resume_from: int) -> RecoveredEvaluations:
    """Read the evaluations up to a step. Rename a file that cannot be continued."""
    path, metrics_path = folder / EVALUATIONS_FILE, folder / METRICS_FILE
    records = metric_sinks.read_all_records(metrics_path) if metrics_path.exists() else []
    warnings = _describe_lost_lines(metrics_path, records, resume_from)
    valid_steps = {step for step in evaluated_steps(folder) if step <= resume_from}
    if not path.exists():
        if valid_steps:
            warnings.append(
                f"{path} is missing. Episodes of evaluations up to step {resume_from:,} are lost."
            )
        return RecoveredEvaluations({}, warnings)
    try:
        arrays = read_evaluations(path)
    except UsageError as error:
        new_name = rename_with_prefix(path, "damaged").name
        return RecoveredEvaluations({}, [*warnings, f"{error} It is renamed to {new_name}."])
    steps = [int(step) for step in arrays["step"]]
    # Evaluations without a line in metrics.jsonl. If the process was killed between the two writes,
    # this is only the last one, which is repeated. More of them mean that lines are missing.
    recorded_steps = _find_evaluated_steps(records)
    unrecorded = [step for step in steps if step not in recorded_steps]
    kept_indices = [
        index
        for index, step in enumerate(steps)
        if step in valid_steps or (step in unrecorded and step < resume_from)
    ]
    if sum(step >= resume_from for step in unrecorded) > 1:
        warnings.append(
            f"{path} has later evaluations than {metrics_path}. "
            f"It is renamed to {rename_with_prefix(path, 'later').name}."
        )
    if not kept_indices:
        return RecoveredEvaluations({}, warnings)
    kept_arrays = {name: [values[i] for i in kept_indices] for name, values in arrays.items()}
    return RecoveredEvaluations(kept_arrays, warnings)


def _describe_lost_lines(path: Path, records: list[Record], resume_from: int) -> list[str]:
    """Return a warning if the metrics file of a resumed run is missing or incomplete."""
    last_step = max((record["step"] for record in records), default=0)
    if not path.exists():
        return [f"{path} is missing. Metrics up to step {max(resume_from, 0):,} are lost."]
    if number := metric_sinks.count_unreadable_lines(path):
        lines = f"{number} line{'s' if number > 1 else ''}"
        return [f"{lines} of {path} cannot be read and will be skipped."]
    if last_step < resume_from:
        return [
            f"{path} ends at step {last_step:,}, before the checkpoint of step {resume_from:,}. "
            "Lines are lost."
        ]
    return []
