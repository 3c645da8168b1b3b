"""Where metrics go: functions of a step and its numbers."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollax.errors import UsageError, naming
from rollax.host import files

Metrics = dict[str, Any]


class Sink(NamedTuple):
    """`write(step, metrics)` takes the numbers of one step, in environment frames; `close()` is called once, at the end."""

    write: Callable[[int, Metrics], None]
    close: Callable[[], None]
    sync: Callable[[], None] = lambda: None  # returns when what was written is on disk


def every(sinks: Sequence[Sink]) -> Sink:
    """One sink that writes to all of `sinks`."""

    def write(step: int, metrics: Metrics) -> None:
        for sink in sinks:
            sink.write(step, metrics)

    def close() -> None:
        for sink in sinks:
            sink.close()

    return Sink(write, close)


def json_lines(path: str | Path, resume_from: int | None = None) -> Sink:
    """One JSON object a line, appended and flushed; NaN and infinities become null. What is there is never rewritten.

    `resume_from`: the step a resumed run goes on from. It writes a marker, by which `read_metrics` drops what the earlier
    session wrote for later steps.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    broken = _ends_inside_a_line(path)
    file = path.open("a", encoding="utf-8")
    files.sync(path.parent)

    def append(record: dict[str, Any]) -> None:
        with naming(path):
            file.write(json.dumps({name: _as_json(value) for name, value in record.items()}, allow_nan=False) + "\n")
            file.flush()

    def close() -> None:
        with naming(path):
            file.close()

    def sync() -> None:
        with naming(path):
            files.sync(path)

    if broken:
        file.write("\n")
    if resume_from is not None:
        append({"event": "resume", "step": int(resume_from)})
    return Sink(lambda step, metrics: append({"step": int(step)} | metrics | {"step": int(step)}), close, sync)


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The metrics that `json_lines` wrote, as one run: without markers, broken lines, and what a resumed session did again."""
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"there are no metrics at {path}: give the file that a run wrote")
    records: list[dict[str, Any]] = []
    for record in all_records(path):
        if record.get("event") == "resume":
            records = [earlier for earlier in records if earlier["step"] <= record["step"]]
        else:
            records.append(record)
    return records


def all_records(path: str | Path) -> list[dict[str, Any]]:
    """Every line that is whole, markers and what is superseded among them."""
    return [record for line in Path(path).read_bytes().splitlines() if (record := _parsed(line)) is not None]


def unreadable_lines(path: str | Path) -> int:
    """How many lines are no records: cut short by a kill, or damaged."""
    return sum(bool(line.strip()) and _parsed(line) is None for line in Path(path).read_bytes().splitlines())


TIME = ("updates", "wall_time", "steps_per_second")
# What an update reports of learning; other metrics are of what is learnt: returns, archives, schedules.
LOSSES = (
    *("loss", "entropy", "temperature", "approx_kl", "clip_fraction", "rho_clipped", "explained_variance", "grad_norm"),
    *("td_error", "value", "selected_q", "epochs"),
)


def in_section(name: str) -> str:
    """A metric's name with the section that dashboards show it in: `time/`, `losses/` or `train/`."""
    last = name.rpartition("/")[2]
    if name in TIME:
        return f"time/{name}"
    return f"losses/{name}" if last in LOSSES or last.endswith("_loss") else f"train/{name}"


def tensorboard(folder: str | Path, resume_from: int | None = None, settings: Metrics | None = None) -> Sink:
    """Event files. What an earlier session wrote for steps after `resume_from` is hidden.

    `settings`: numbers and texts by name, which the tab of hyperparameters compares runs by.
    """
    import logging

    from tensorboardX import SummaryWriter
    from tensorboardX.summary import hparams

    # What has no value yet, such as the best of an empty archive, is NaN, and there is nothing to warn of each time.
    logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)
    first_new_step = None if resume_from is None else int(resume_from) + 1
    writer = SummaryWriter(str(folder), purge_step=first_new_step)
    if settings and resume_from is None:
        plain = {name: value for name, value in settings.items() if isinstance(value, str | bool | int | float)}
        for summary in hparams(plain, {"eval/return_mean": 0.0}):
            writer.file_writer.add_summary(summary)  # pyright: ignore[reportOptionalMemberAccess]

    def write(step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, float(value), int(step))
        writer.flush()

    return Sink(write, writer.close)


def wandb(
    project: str, name: str, folder: str | Path, config: dict[str, Any], resume: bool = False, group: str | None = None
) -> Sink:
    """Weights & Biases. `name` is the run's name and identity, so that a resumed run goes on in the same place.

    `group`: of runs that belong together, and may be under way at the same time.

    Raises: `UsageError` when the package is missing.
    """
    try:
        import wandb as package
    except ImportError as error:
        raise missing("wandb") from error
    run = package.init(
        project=project,
        name=name,
        id=name,
        dir=str(folder),
        config=config,
        resume="allow" if resume else None,
        **({} if group is None else {"group": group, "reinit": "create_new"}),
    )
    # Their own step must rise; after a resume ours may step back, so it is a metric that the others are drawn over.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return Sink(lambda step, metrics: run.log({"step": int(step), **metrics}), run.finish)


def trackio(project: str, name: str, config: dict[str, Any], resume: bool = False, group: str | None = None) -> Sink:
    """Trackio, on this machine. `group`: of runs that belong together.

    Raises: `UsageError` when the package is missing.
    """
    try:
        import trackio as package
    except ImportError as error:
        raise missing("trackio") from error
    more = {} if group is None else {"group": group}
    run = package.init(project=project, name=name, config=config, resume="allow" if resume else "never", **more)
    return Sink(lambda step, metrics: run.log(dict(metrics), step=int(step)), run.finish)


def missing(package: str, extra: str | None = None) -> UsageError:
    """What to raise when a package is not installed. `extra`: what installs it, where that has another name."""
    return UsageError(f'the package {package} is not installed: pip install "rollax[{extra or package}]"')


def _ends_inside_a_line(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"


def _as_json(value: Any) -> Any:
    """Numbers as JSON knows them: lists as lists, numpy scalars as Python numbers, NaN and infinities as null."""
    if isinstance(value, list):
        return [_as_json(element) for element in value]
    if isinstance(value, dict):
        return {name: _as_json(element) for name, element in value.items()}
    if value is None or isinstance(value, str | bool | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A record with an integer step, or None: a line cut short by a kill, or not ours."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    valid = isinstance(record, dict) and isinstance(record.get("step"), int) and abs(record["step"]) < 2**62
    return record if valid else None
