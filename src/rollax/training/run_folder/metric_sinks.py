"""Metric sinks: JSON lines, TensorBoard, Weights & Biases and Trackio."""

import contextlib
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rollax.errors import UsageError, add_path_to_errors
from rollax.runtime.installation import install_command
from rollax.runtime.printing import escape_control_characters, escape_to_one_line
from rollax.training.run_folder import files
from rollax.types import JsonValue, Leaf, MetricValues, Record, SettingValues


class MetricSink(NamedTuple):
    """Destination of metrics.

    Attributes:
        write: Function that writes metrics. It takes `(step, metrics)`.
        close: Function that closes the sink. It is called once.
        sync: Function that flushes written metrics to disk.
    """

    write: Callable[[int, MetricValues], None]
    close: Callable[[], None]
    sync: Callable[[], None] = lambda: None


def combine_sinks(sinks: Sequence[MetricSink]) -> MetricSink:
    """Return one sink that writes to all `sinks`."""

    def write(step: int, metrics: MetricValues) -> None:
        for sink in sinks:
            sink.write(step, metrics)

    def close() -> None:
        for sink in sinks:
            sink.close()

    return MetricSink(write, close)


def make_json_lines_sink(path: str | Path, resume_from: int | None = None) -> MetricSink:
    """Make a sink that appends one JSON object per line and flushes it.

    NaN and infinity become null. Existing lines are never rewritten.

    Args:
        path: Path of the file.
        resume_from: Step at which a resumed run continues, or None for a new run. The step is
            written as a resume marker, so that `read_metrics` drops later steps of the earlier
            session.

    Returns:
        The sink.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    has_partial_line = _has_partial_last_line(path)
    file = io.TextIOWrapper(files.open_for_append(path), encoding="utf-8")
    files.fsync_path(path.parent)

    def append(record: Record) -> None:
        values = {name: _to_json_value(value) for name, value in record.items()}
        with add_path_to_errors(path):
            file.write(json.dumps(values, allow_nan=False) + "\n")
            file.flush()

    def write(step: int, metrics: MetricValues) -> None:
        append({"step": int(step)} | metrics | {"step": int(step)})

    def close() -> None:
        with add_path_to_errors(path):
            file.close()

    def sync() -> None:
        with add_path_to_errors(path):
            files.fsync_path(path)

    if has_partial_line:
        file.write("\n")
    if resume_from is not None:
        append({"event": "resume", "step": int(resume_from)})
    return MetricSink(write, close, sync)


def read_metrics(path: str | Path) -> list[Record]:
    """Return the records of a metrics file in order.

    Resume markers and damaged lines are dropped. If a resumed session repeated steps, only the
    later records of these steps are returned.

    Args:
        path: File written by `make_json_lines_sink`.

    Returns:
        One record per remaining line.

    Raises:
        UsageError: If the file does not exist or cannot be read.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"There are no metrics at {path}. Use the metrics file of a run.")
    records: list[Record] = []
    for record in read_all_records(path):
        if record.get("event") == "resume":
            records = [earlier for earlier in records if earlier["step"] <= record["step"]]
        else:
            records.append(record)
    return records


def read_all_records(path: str | Path) -> list[Record]:
    """Return all valid records, including resume markers and steps that were repeated later."""
    return [record for line in _read_lines(path) if (record := _parse_record(line)) is not None]


def count_unreadable_lines(path: str | Path) -> int:
    """Return the number of lines that are not valid records."""
    return sum(bool(line.strip()) and _parse_record(line) is None for line in _read_lines(path))


def _read_lines(path: str | Path) -> list[bytes]:
    """Return the lines of a file, or raise UsageError if it cannot be read."""
    try:
        return files.read_regular_file(Path(path)).splitlines()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error}). Restore a copy, or move it away."
        ) from error


TIME_METRICS = ("updates", "wall_time", "steps_per_second")
# Metrics of optimization. All others describe results, such as returns, archives and schedules.
LOSS_METRICS = (
    *(
        "loss",
        "entropy",
        "temperature",
        "approx_kl",
        "clip_fraction",
        "rho_clipped",
        "explained_variance",
        "grad_norm",
    ),
    *("td_error", "value", "selected_q", "epochs"),
)


def add_section_prefix(name: str) -> str:
    """Prefix the name of a metric with its dashboard section: `time/`, `losses/` or `train/`."""
    if name in TIME_METRICS:
        return f"time/{name}"
    base_name = name.rpartition("/")[2]
    is_loss = base_name in LOSS_METRICS or base_name.endswith("_loss")
    return f"losses/{name}" if is_loss else f"train/{name}"


def make_tensorboard_sink(
    folder: str | Path, resume_from: int | None = None, settings: MetricValues | None = None
) -> MetricSink:
    """Make a sink that writes TensorBoard event files.

    Args:
        folder: Folder of the files.
        resume_from: Step at which a resumed run continues, or None for a new run. TensorBoard hides
            later steps of the earlier session.
        settings: Hyperparameters (numbers and strings), keyed by name, for the HPARAMS tab. None
            omits the tab.

    Returns:
        The sink.
    """
    import logging

    from tensorboardX import SummaryWriter
    from tensorboardX.summary import hparams

    # Metrics without a value, such as the best of an empty archive, are NaN. Suppress the warning.
    logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)
    first_new_step = None if resume_from is None else int(resume_from) + 1
    writer = SummaryWriter(str(folder), purge_step=first_new_step)
    if settings and resume_from is None:
        plain = {
            name: value
            for name, value in settings.items()
            if isinstance(value, str | bool | int | float)
        }
        for summary in hparams(plain, {"eval/return_mean": 0.0}):
            writer.file_writer.add_summary(summary)  # pyright: ignore[reportOptionalMemberAccess]

    def write(step: int, metrics: MetricValues) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, float(value), int(step))
        writer.flush()

    return MetricSink(write, writer.close)


def make_wandb_sink(
    project: str,
    name: str,
    folder: str | Path,
    config: SettingValues,
    resume: bool = False,
    group: str | None = None,
    quiet: bool = False,
) -> MetricSink:
    """Make a sink that logs to Weights & Biases.

    Args:
        project: Name of the project.
        name: Name and id of the run. A resumed run with the same id continues the same record.
        folder: Folder for files of wandb.
        config: Settings of the run, keyed by name.
        resume: Whether to continue the record if it exists.
        group: Name of the group that the runs of all members share. These runs are open at the same
            time. None for a single run.
        quiet: Whether to suppress output.

    Returns:
        The sink.

    Raises:
        UsageError: If the package is not installed.
    """
    try:
        import wandb as package
    except ImportError as error:
        raise missing_package_error("wandb") from error
    run = package.init(
        project=project,
        name=name,
        id=name,
        dir=str(folder),
        config=dict(config),
        resume="allow" if resume else None,
        settings=package.Settings(silent=True) if quiet else None,
        **({} if group is None else {"group": group, "reinit": "create_new"}),
    )
    # The internal step of wandb must increase, but the environment step may decrease after a
    # resume. It is therefore logged as a metric and used as the x-axis of all other metrics.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")

    def write(step: int, metrics: MetricValues) -> None:
        run.log({"step": int(step), **metrics})

    return MetricSink(write, run.finish)


def make_trackio_sink(
    project: str,
    name: str,
    config: SettingValues,
    resume: bool = False,
    group: str | None = None,
    quiet: bool = False,
) -> MetricSink:
    """Make a sink that logs to Trackio on this machine.

    Args:
        project: Name of the project.
        name: Name of the run.
        config: Settings of the run, keyed by name.
        resume: Whether to continue the record if it exists.
        group: Name of the group that the runs of all members share, or None for a single run.
        quiet: Whether to suppress output.

    Returns:
        The sink.

    Raises:
        UsageError: If the package is not installed.
    """
    try:
        import trackio as package
    except ImportError as error:
        raise missing_package_error("trackio") from error
    with suppress_stdout(quiet):
        run = package.init(
            project=project,
            name=name,
            config=dict(config),
            resume="allow" if resume else "never",
            **({} if group is None else {"group": group}),
        )

    def write(step: int, metrics: MetricValues) -> None:
        run.log(dict(metrics), step=int(step))

    def finish() -> None:
        with suppress_stdout(quiet), contextlib.suppress(RuntimeError):
            run.finish()
            # Otherwise Trackio finishes its current run again at exit, with a message.
            package.finish()

    return MetricSink(write, finish)


@contextlib.contextmanager
def suppress_stdout(quiet: bool) -> Iterator[None]:
    """Return a context manager that discards standard output if `quiet` is True."""
    with contextlib.redirect_stdout(io.StringIO()) if quiet else contextlib.nullcontext():
        yield


def missing_package_error(package: str, extra: str | None = None) -> UsageError:
    """Return the error for a package that is not installed.

    `extra` is the optional dependency group of rollax to install. It defaults to the package name.
    """
    return UsageError(
        f"The package {package} is not installed. Run: {install_command(extra or package)}"
    )


def _has_partial_last_line(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with files.open_regular_file(path) as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"


def _to_json_value(value: Leaf) -> JsonValue:
    """Convert a value to JSON types. NaN and infinity become null."""
    if isinstance(value, list):
        return [_to_json_value(element) for element in value]
    if isinstance(value, dict):
        return {name: _to_json_value(element) for name, element in value.items()}
    if value is None or isinstance(value, str | bool | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


MAX_INT_DIGITS = 18  # longer integers become floats, because NumPy has 64-bit integers


def _parse_record(line: bytes) -> Record | None:
    """Parse a line of JSON. Return None if it is not a dictionary with an integer `step`."""
    try:
        record = json.loads(line, parse_int=_parse_int)
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            return None
        return {
            escape_to_one_line(name): _to_printable_value(value) for name, value in record.items()
        }
    except (ValueError, RecursionError):
        return None


def _parse_int(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_INT_DIGITS else float(digits)


def _to_printable_value(value: JsonValue) -> JsonValue:
    """Return a value with control characters escaped in all strings."""
    if isinstance(value, str):
        return escape_control_characters(value)
    if isinstance(value, list):
        return [_to_printable_value(element) for element in value]
    if isinstance(value, dict):
        return {
            escape_to_one_line(name): _to_printable_value(element)
            for name, element in value.items()
        }
    return value
