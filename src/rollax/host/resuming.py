"""What must hold before a run is loaded or resumed; all of it is looked at before anything is compiled or written."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollax.config import LARGEST_FLOAT
from rollax.errors import UnknownNameError, UsageError
from rollax.host import logging, record, run_folder
from rollax.host.checkpoint import Checkpoints
from rollax.host.run_folder import CHECKPOINTS, CONFIG, CUSTOM, EVALUATIONS, LINEAGE, METRICS
from rollax.host.settings import Spec, options_on_devices
from rollax.host.spec_file import LATER
from rollax.scale import processes
from rollax.typed import typed

CHANGEABLE = (
    "on_nonfinite",
    "devices",
    "env_workers",
    "env_timeout",
    "checkpoint_minutes",
    "checkpoint_steps",
    "keep_last",
    "keep_best",
    "tensorboard",
    "wandb",
    "trackio",
)


def resumed(spec: Spec, total_steps: int | None, changes: dict[str, Any]) -> Spec:
    """The specification with another end or other options of the host; its rhythm of lines and evaluations stays.

    Raises UsageError for an option that a run cannot change on its way.
    """
    for name in changes:
        if name not in CHANGEABLE:
            raise UnknownNameError("option to change at a resume", name, CHANGEABLE)
    if processes.count() > 1:
        changes = {"devices": 1} | changes  # all of theirs, whatever number it was before
    options = options_on_devices(dataclasses.replace(spec.options, **changes))
    if total_steps is not None:
        options = dataclasses.replace(options, total_steps=total_steps)
    options.check()
    return dataclasses.replace(spec, options=options)


@contextlib.contextmanager
def checkpoints_of(folder: Path, spec: Spec) -> Iterator[Checkpoints]:
    """The checkpoints of a run, to be read. Raises UsageError when something else has their place."""
    path, options = folder / CHECKPOINTS, spec.options
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is not a folder: move it away, and bring the run's checkpoints back")
    with contextlib.closing(
        Checkpoints(path, options.keep_last, options.keep_best, options.best_metric, options.best_mode)
    ) as checkpoints:
        yield checkpoints


def check_learning_rate(spec: Spec, learning_rate: float | None) -> float | None:
    """The rate as a number. Raises UsageError where the algorithm has none of that name, or it is out of its range."""
    if learning_rate is None:
        return None
    fields = {field.name: field for field in dataclasses.fields(spec.config)}
    if "learning_rate" not in fields or fields["learning_rate"].metadata.get("static"):
        raise UsageError(f"{spec.algorithm} has no learning rate that could be held: leave learning_rate ({learning_rate}) out")
    value = typed("learning_rate", learning_rate, float)
    if not 0 < value < LARGEST_FLOAT:
        raise UsageError(f"learning_rate ({value:g}) must be more than 0")
    return value


def _is_constant(folder: Path) -> bool:
    """Whether the learning rate has stopped changing: one that an earlier resume holds is in the state, not in config.yaml."""
    lines = logging.read_metrics(folder / METRICS) if (folder / METRICS).exists() else []
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line][-2:]
    return len(rates) == 2 and rates[0] == rates[1]


def _of_the_learning_rate(spec: Spec, before: Spec, step: int) -> list[str]:
    """A warning where another end raises the learning rate of a run again that has annealed it."""
    final = getattr(spec.config, "learning_rate_final_fraction", 1.0)
    ends = [each.total_updates * spec.config.steps_per_update for each in (before, spec)]
    then, now = (spec.config.learning_rate * (1 + (final - 1) * min(step / end, 1.0)) if final < 1 else 0.0 for end in ends)
    if now <= 1.01 * then:
        return []
    return [
        f"the learning rate had come down to {then:.3g} at step {step:,}, is {now:.3g} now, and comes down to "
        f"{spec.config.learning_rate * final:.3g} at step {ends[1]:,}: what was learnt may get worse at first "
        "(--learning-rate RATE holds one, such as a tenth of that)"
    ]


def check(
    folder: Path, spec: Spec, before: Spec, environment: Any, network: Any, learning_rate: float | None = None
) -> list[str]:
    """Raises UsageError when a run cannot go on as what it is; returns warnings of what is other than it was `before`.

    That is: when it is finished, when it was made from an id and another object is passed, when its checkpoints are gone or all
    damaged, or when config.yaml was changed since.
    """
    _check_network(spec, network)
    if environment is not None and not spec.own_environment:
        raise UsageError(
            f"the environment of this run is made from its id ({spec.environment}): leave environment=... out, or train a new "
            "run in the one that you pass"
        )
    if environment is not None and environment.name != spec.environment:
        raise UsageError(f"this run is in the environment {spec.environment}, not in {environment.name}: pass that one")
    for name in (METRICS, EVALUATIONS, LINEAGE):
        if (folder / name).exists() and not (folder / name).is_file():
            raise UsageError(f"{folder / name} is not a file: move it away, and bring the run's own back")
    with checkpoints_of(folder, spec) as checkpoints:
        if not checkpoints.steps():
            _check_not_begun(folder)
            return []
        intact = checkpoints.newest_intact()
        newest = next(checkpoints.readable())
        warnings = _check_same(folder, spec, newest.settings)
        end = spec.total_updates * spec.config.steps_per_update
        if newest.step >= end:
            _check_unfinished(folder, intact.step, end)
    is_held = learning_rate is not None or _is_constant(folder)
    return warnings if is_held else [*warnings, *_of_the_learning_rate(spec, before, newest.step)]


def check_to_load(folder: Path, spec: Spec, network: Any) -> list[str]:
    """Raises UsageError when a policy cannot be that of the run: for a network that it did not have, or another config.yaml.

    Returns warnings of what is other than it was.
    """
    _check_network(spec, network)
    with checkpoints_of(folder, spec) as checkpoints:
        newest = next(checkpoints.readable(), None)
        return [] if newest is None else _check_same(folder, spec, newest.settings)


def _check_network(spec: Spec, network: Any) -> None:
    if network is not None and spec.network != CUSTOM:
        raise UsageError("the network of this run is made from its settings: leave network=... out, or train a new run with it")


def _check_same(folder: Path, spec: Spec, made_with: dict[str, Any]) -> list[str]:
    """Raises UsageError when config.yaml is no longer what a checkpoint was made with.

    Arguments of the environment may be others, such as the path of a file that was moved: they hold, and a warning says so.
    """
    now, before = _flat(run_folder.made_with(spec)), _flat({"options": LATER}) | _flat(made_with)
    changed = [name for name in now | before if now.get(name) != before.get(name)]
    told = {name: f"{name} is {now.get(name)!r}, and was {before.get(name)!r}" for name in changed}
    fixed = [words for name, words in told.items() if not name.startswith(("arguments", "eval_arguments"))]
    if fixed:
        raise UsageError(
            f"{folder / CONFIG} was changed since the checkpoint was made: {'; '.join(fixed)}. A run keeps its settings: put "
            "them back, or train a new run with others"
        )
    return [f"{words} when the checkpoint was made ({folder / CONFIG})" for words in told.values()]


def _flat(document: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Every value by its path, such as config.learning_rate."""
    flat = {}
    for name, value in document.items():
        is_branch = isinstance(value, dict) and value
        flat |= _flat(value, f"{before}{name}.") if is_branch else {before + name: value}
    return flat


def _check_not_begun(folder: Path) -> None:
    """Raises UsageError when a run has no checkpoint, but must have had one.

    One that was killed while it wrote the first has that unfinished, and begins again.
    """
    lines = logging.read_metrics(folder / METRICS) if (folder / METRICS).exists() else []
    furthest = max((line["step"] for line in lines), default=0)
    is_first_unfinished = (folder / CHECKPOINTS / f"step_{0:012d}.writing").exists()
    if furthest > 0 and not is_first_unfinished:
        raise UsageError(
            f"{folder} was trained for {furthest:,} steps, but has no checkpoint: bring {folder / CHECKPOINTS} back; or move "
            f"{METRICS} away to train it again from the start"
        )


def _check_unfinished(folder: Path, step: int, end: int) -> None:
    if step > end or (step == end and step in record.evaluated_steps(folder)):
        more = f"rollax resume {folder} --total-steps {2 * end}"
        raise UsageError(f"{folder} is finished at {step:,} steps: give --total-steps more than that to go on: {more}")
