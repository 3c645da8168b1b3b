"""Worker of a study, which trains batches of trials until every trial has a result."""

import contextlib
import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.text import Text

from rollax import api
from rollax.distributed.processes import first_line
from rollax.errors import UsageError
from rollax.sweeps import optuna_study, results
from rollax.sweeps.search_space import Settings
from rollax.sweeps.study import POLL_SECONDS, Batch, BatchRun, Study, Trial
from rollax.training import unused_settings
from rollax.training.checkpoints import compatibility, fork
from rollax.training.compile.device_memory import is_out_of_memory
from rollax.training.console.progress import ALWAYS_SHOWN_PREFIXES, Display
from rollax.training.console.signals import StopRequest, get_interrupt_result, stop_on_signals
from rollax.training.evaluation.metrics import rank_value
from rollax.training.result import Evaluated, Result
from rollax.training.run_folder import layout, lineage, run_summary
from rollax.training.run_folder.files import check_not_symlink, rename_with_prefix
from rollax.training.spec import get_algorithm_entry
from rollax.types import Setting

NUM_HALVINGS = 3  # of the halving pruner
# Fork the surviving trials into a new run when at most this share of the trials of a program
# still trains.
FORK_THRESHOLD = 0.5
FAILURE_MESSAGES = {
    "nonfinite": "the run is not finite",
    "failed": "a host simulator failed",
}


class _BatchDisplay:
    """Display that adds the name of the batch to the messages and progress of a run."""

    def __init__(self, display: Display, name: str) -> None:
        self._display, self._name = display, name

    def message(self, text: str) -> None:
        if text.startswith(ALWAYS_SHOWN_PREFIXES):
            self._display.message(f"{self._name}: {text}")

    def status(self, text: str) -> None:
        self._display.status(f"{self._name}: {text}")

    def progress(self, num_done: int, num_total: int, metric_texts: dict[str, str]) -> None:
        self._display.progress(num_done, num_total, {"batch": self._name, **metric_texts})

    def picture(self, make: Callable[[], Text | None]) -> None: ...

    def close(self) -> None: ...


def work_on_study(folder: Path, display: Display, hours: float | None = None) -> int | None:
    """Train batches of a study until every trial has a result.

    Args:
        folder: Folder of the study.
        display: Display for progress and warnings.
        hours: Time limit in hours, or None.

    Returns:
        The number of the signal that stopped the work (SIGTERM at the time limit), or None.

    Raises:
        UsageError: If the study cannot be read or cannot be trained by this process.
    """
    study = Study(folder)
    study.spec.check_trainable_here()  # otherwise every trial would fail
    with stop_on_signals(notify_fn=display.message) as request, _stop_after(hours, request):
        while not request.signal_number and (batch := _next_batch(study, request)) is not None:
            _train_batch_if_free(study, batch, display, request)
    return request.signal_number


def _train_batch_if_free(
    study: Study, batch: Batch, display: Display, request: StopRequest
) -> None:
    """Train a batch, or return immediately if another process holds the lock of the batch."""
    with contextlib.ExitStack() as locks:
        for run in batch.runs:
            check_not_symlink(batch.folder / run.name)
        try:
            locks.enter_context(layout.lock_folder(batch.folder))
        except layout.FolderLockedError:
            return
        try:
            _train_batch(study, batch, display, request)
        except layout.UnwritableFolderError as error:
            # Users do not choose the run folders of a study, so the system error is enough.
            raise error.__cause__ or error from None


@contextlib.contextmanager
def _stop_after(hours: float | None, request: StopRequest) -> Iterator[None]:
    """Request a stop with SIGTERM when the given hours have passed within the context."""
    timer = threading.Timer(
        (hours or 0) * 3600, setattr, (request, "signal_number", int(signal.SIGTERM))
    )
    timer.daemon = True
    if hours is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _next_batch(study: Study, request: StopRequest) -> Batch | None:
    """Return an unfinished batch that no process is training, or None.

    The result is None if all trials have a result or a stop is requested. While other processes
    train the last batches, this function waits, because one of them may end early.
    """
    while not request.signal_number:
        unfinished = [batch for batch in study.list_batches() if study.is_open(batch)]
        unlocked = [batch for batch in unfinished if not layout.is_folder_locked(batch.folder)]
        if not unlocked:
            unlocked = study.draw()
        if unlocked:
            return unlocked[0]
        if not unfinished:
            return None
        time.sleep(POLL_SECONDS)
    return None


def _train_batch(study: Study, batch: Batch, display: Display, request: StopRequest) -> None:
    """Train a batch until it is finished or a stop is requested, and store its results."""
    while study.is_open(batch) and not request.signal_number:
        pruning = _PruningCallback(study, batch)
        try:
            result = _run_batch(study, batch, pruning, _BatchDisplay(display, batch.folder.name))
        except KeyboardInterrupt as interrupt:
            request.signal_number, result = signal.SIGINT, get_interrupt_result(interrupt)
        except UsageError as error:  # for example sizes that do not divide for some settings
            has_begun = (batch.folder / batch.runs[-1].name / layout.CONFIG_FILE).is_file()
            if has_begun or isinstance(error, layout.UnwritableFolderError):
                raise  # the user can fix the cause and continue
            _report_problem(study, batch, pruning.live, display, str(error))
            return
        except (jax.errors.JaxRuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            remedy = ". Try a smaller --batch" if len(pruning.live) > 1 else ""
            problem = (
                f"not enough memory for {len(pruning.live)} of these settings in one program "
                f"({first_line(error)}){remedy}"
            )
            _report_problem(study, batch, pruning.live, display, problem)
            return
        if result.exit_code >= 128:
            request.signal_number = request.signal_number or result.exit_code - 128
            return
        if result.status == "stopped":  # by the pruner
            batch = _fork_survivors(study, batch, pruning)
            continue
        _report_results(study, batch, result)
        display.message(f"batch {batch.folder.name}: {results.format_progress(study)}")


def _report_problem(
    study: Study, batch: Batch, numbers: list[int], display: Display, problem: str
) -> None:
    """Mark trials of a batch as failed with the reason `problem`, and print the reason."""
    display.message(f"Batch {batch.folder.name} cannot be trained: {problem}")
    for number in numbers:
        optuna_study.tell_result(
            study.optuna_study, number, None, {"problem": problem, "batch": batch.folder.name}
        )


def _run_batch(
    study: Study, batch: Batch, pruning: "_PruningCallback", display: _BatchDisplay
) -> Result:
    """Train the newest run of a batch and return its result. A finished run is not repeated."""
    run = batch.runs[-1]
    folder = batch.folder / run.name
    spec, trials = study.spec, [trial for trial in batch.trials if trial.number in run.numbers]
    settings = _split_settings(study, trials)
    devices = _choose_num_devices(study, len(trials), settings.config)
    if (folder / layout.CONFIG_FILE).is_file():
        finished = _read_finished_run(folder)
        return finished or api.resume(folder, devices=devices, stop_when=pruning, show=display)
    # A process may have ended before it started the run.
    if folder.is_dir() and any(folder.iterdir()):
        display.message(
            f"warning: {folder} has no {layout.CONFIG_FILE}. "
            f"It is renamed to {rename_with_prefix(folder, 'unfinished').name}."
        )
    # Some settings of a search may disable other settings.
    with unused_settings.allow_unused_settings():
        return api.train(
            spec.algorithm,
            spec.environment,
            config=spec.config | settings.config,
            network=spec.network | settings.network,
            arguments=spec.arguments | settings.arguments,
            eval_arguments=spec.eval_arguments,
            sweep=settings.sweep,
            evolve={
                dimension.name.partition(".")[2]: dimension.value_range for dimension in study.space
            }
            if spec.is_evolving
            else None,
            options={
                **spec.options,
                "run_dir": folder,
                "sweep_paired": bool(settings.sweep),
                "devices": devices,
                **({"seeds": len(trials)} if spec.is_evolving else {}),
            },
            imports=spec.imports,
            stop_when=pruning,
            show=display,
        )


class _RunSettings(NamedTuple):
    """Settings of a run: values shared by its trials, and one value per trial (`sweep`)."""

    config: dict[str, Any]
    network: dict[str, Any]
    arguments: dict[str, Any]
    sweep: dict[str, list[Any]]


def _split_settings(study: Study, trials: list[Trial]) -> _RunSettings:
    """Split settings of trials into shared static settings and per-trial traced settings."""
    run_settings = _RunSettings(config={}, network={}, arguments={}, sweep={})
    groups = {
        "config": run_settings.config,
        "network": run_settings.network,
        "env": run_settings.arguments,
    }
    for dimension in study.space:
        if not any(dimension.name in trial.settings for trial in trials):
            continue
        group, _, name = dimension.name.partition(".")
        if dimension.is_traced:
            # Trials without this setting use the value of the base run.
            base = vars(study.base.config)[name]
            run_settings.sweep[name] = [
                trial.settings.get(dimension.name, base) for trial in trials
            ]
        else:
            groups[group][name] = trials[0].settings[dimension.name]
    return run_settings


def _choose_num_devices(study: Study, num_trials: int, config: dict[str, Setting]) -> int:
    """Return the largest number of devices that divides the number of members of a run.

    For a single member, the number divides the parallel environments or, for quality-diversity, the
    solutions per update.
    """
    members = num_trials if study.spec.is_evolving else num_trials * study.base.options.seeds
    entry = get_algorithm_entry(study.base.algorithm)
    derived = entry.derive_settings(dataclasses.replace(study.base.config, **config))
    batch_size = 1 if derived.archive is None else derived.archive.batch_size
    size = members if members > 1 else derived.num_envs or batch_size
    return max(d for d in range(1, int(study.base.options.devices) + 1) if size % d == 0)


def _read_finished_run(folder: Path) -> Result | None:
    """Return the result of a finished run, or None if the run is not finished."""
    row = run_summary.summarize_run(folder)
    if row["status"] != "done":
        return None
    spec = layout.read_spec(folder)
    with compatibility.open_checkpoints(folder, spec) as checkpoints:
        summary = next(checkpoints.readable_summaries(), None)
    # Checkpoints are written in the background, so a process can end with its last evaluation
    # logged but not saved.
    if summary is None or summary.step < row["total_steps"]:
        return None
    return Result(
        folder=folder,
        status="done",
        exit_code=0,
        steps=row["steps"],
        evaluation=dict(summary.metrics),
        wall_time=0.0,
        steps_per_second=0.0,
        scores=summary.scores,
    )


def _collect_scores(study: Study, evaluated: Result | Evaluated, num_trials: int) -> np.ndarray:
    """Return the ranking metric of every member, float `[trials, seeds]`, NaN if unknown."""
    if evaluated.scores is not None:
        values = [np.nan if value is None else value for value in evaluated.scores.values]
    else:
        is_result = isinstance(evaluated, Result)
        evaluation = evaluated.evaluation if is_result else evaluated.values
        values = [rank_value(study.metric, evaluation)]
    return np.array(values, float).reshape(num_trials, -1)


def _report_results(study: Study, batch: Batch, result: Result) -> None:
    """Store the results of the trials of a run. A trial fails if any seed lacks a finite result."""
    name, numbers = batch.runs[-1]
    # The last checkpoint excludes the scores of members that are not finite.
    finished = _read_finished_run(batch.folder / name) if result.status == "done" else None
    if finished is None:
        scores = np.full((len(numbers), 1), np.nan)
        problem = FAILURE_MESSAGES.get(result.status)
    else:
        scores = _collect_scores(study, finished, len(numbers))
        problem = f"{study.metric} of a seed is unknown or not finite"
    evolved = _read_evolved_settings(batch.folder / name) if study.spec.is_evolving else None
    for index, (number, values) in enumerate(zip(numbers, scores, strict=True)):
        is_known = bool(np.isfinite(values).all())
        attributes = _make_trial_attributes(batch, result.steps, values)
        if evolved is not None:
            attributes["settings"] = evolved[index]
        if not is_known:
            attributes["problem"] = problem
        value = float(values.mean()) if is_known else None
        optuna_study.tell_result(study.optuna_study, number, value, attributes)


def _read_evolved_settings(folder: Path) -> list[Settings]:
    """Return the final settings of the members of an evolving population."""
    try:
        last = lineage.read_lineage(folder)[-1]["settings"]
        return [
            {f"config.{name}": value for name, value in zip(last, values, strict=True)}
            for values in zip(*last.values(), strict=True)
        ]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"{folder / layout.LINEAGE_FILE} is damaged. Restore a copy of it."
        ) from error


def _make_trial_attributes(batch: Batch, step: int, scores: np.ndarray) -> dict[str, Any]:
    """Return the attributes to store with the result of a trial: batch, run, steps and scores."""
    return {
        "batch": batch.folder.name,
        "run": batch.runs[-1].name,
        "steps": step,
        "scores": [float(score) if np.isfinite(score) else None for score in scores],
    }


class _PruningCallback:
    """Callback that prunes trials after each evaluation of a run."""

    def __init__(self, study: Study, batch: Batch) -> None:
        self._study, self._batch = study, batch
        self._numbers = batch.runs[-1].numbers
        states = optuna_study.trial_states(study.optuna_study)
        self.live = [number for number in self._numbers if states[number] == "RUNNING"]

    def __call__(self, evaluated: Evaluated) -> bool:
        """Prune trials, and return whether to stop the run because few trials remain."""
        if self._study.spec.search.pruner == "none" or evaluated.step == 0:
            return False
        scores = _collect_scores(self._study, evaluated, len(self._numbers))
        scores_by_trial = dict(zip(self._numbers, scores, strict=True))
        means = {number: float(scores_by_trial[number].mean()) for number in self.live}
        for number in self._select_pruned(means, evaluated.step):
            attributes = _make_trial_attributes(
                self._batch, evaluated.step, scores_by_trial[number]
            )
            optuna_study.tell_result(
                self._study.optuna_study, number, None, attributes, is_pruned=True
            )
            self.live.remove(number)
        return len(self.live) <= FORK_THRESHOLD * len(self._numbers)

    def _select_pruned(self, values: dict[int, float], step: int) -> list[int]:
        """Return the numbers of the trials to prune. `values` is keyed by trial number."""
        study = self._study
        for number, value in values.items():
            optuna_study.report_value(
                study.optuna_study, number, step, value, is_pruning_enabled=False
            )
        if study.spec.search.pruner != "halving":
            return [
                number
                for number, value in values.items()
                if optuna_study.report_value(
                    study.optuna_study, number, step, value, is_pruning_enabled=True
                )
            ]
        num_halvings = sum(
            step >= (study.base.options.total_steps or 0) / 2**k for k in range(1, NUM_HALVINGS + 1)
        )
        num_kept = math.ceil(len(self._batch.trials) / 2**num_halvings)
        sign = 1 if study.mode == "max" else -1
        best_first = sorted(
            values,
            key=lambda number: -sign * values[number] if np.isfinite(values[number]) else np.inf,
        )
        return best_first[num_kept:]


def _fork_survivors(study: Study, batch: Batch, pruning: _PruningCallback) -> Batch:
    """Add a run with only the remaining trials to a batch, and return the batch.

    Without remaining trials, the batch is returned unchanged.
    """
    name, numbers = batch.runs[-1]
    if not pruning.live:
        return batch
    index = len(batch.runs) + 1
    # A folder may be left over from a process that ended before the fork was complete.
    while (batch.folder / f"run-{index}").exists():
        index += 1
    kept = [numbers.index(number) for number in pruning.live]
    fork.fork_run(batch.folder / name, kept, batch.folder / f"run-{index}")
    batch = batch._replace(runs=(*batch.runs, BatchRun(f"run-{index}", tuple(pruning.live))))
    batch.write()
    return batch
