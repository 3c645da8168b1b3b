"""One process' share of a study: batches, one after the other, until every trial has a result."""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rollax.errors import UsageError
from rollax.host import api, forking, lineage, listing, resuming, run_folder
from rollax.host.files import set_aside
from rollax.host.memory import is_exhausted
from rollax.host.progress import Display
from rollax.host.result import Evaluated, Result
from rollax.host.signals import StopRequest, stop_on_signals
from rollax.scale.processes import line
from rollax.studies import optuna_study as drawing
from rollax.studies import results
from rollax.studies.study import POLL_SECONDS, Batch, Study

HALVINGS = 3  # of the pruner of that name
FORK_BELOW = 0.5  # share of the settings in a program, of which the others no longer train, with which they go on alone
ENDS = {"nonfinite": "the run is no longer finite", "failed": "a simulator on the host failed"}


class _Quiet:
    """A run of a study on the screen: its progress, and what it warns of."""

    def __init__(self, show: Display, name: str) -> None:
        self._show, self._name = show, name

    def message(self, text: str) -> None:
        if text.startswith(("warning:", "error:")):
            self._show.message(f"{self._name}: {text}")

    def status(self, text: str) -> None:
        self._show.status(f"{self._name}: {text}")

    def progress(self, done: int, total: int, figures: dict[str, str]) -> None:
        self._show.progress(done, total, {"batch": self._name, **figures})

    def picture(self, make: Callable[[], Any]) -> None: ...

    def close(self) -> None: ...


def work(folder: Path, show: Display, hours: float | None = None) -> int | None:
    """Trains batches of the study in `folder` until every trial has a result. The number of the signal that stopped it, if one
    did: also where the hours were over."""
    study = Study(folder)
    study.spec.check_here()  # else each trial would fail
    with stop_on_signals() as request, _deadline(hours, request):
        while not request.number and (batch := _next(study, request)) is not None:
            _train_alone(study, batch, show, request)
    return request.number


def _train_alone(study: Study, batch: Batch, show: Display, request: StopRequest) -> None:
    """Trains a batch, unless another process was faster."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(run_folder.alone(batch.folder))
        except run_folder.Held:
            return
        try:
            _train(study, batch, show, request)
        except run_folder.Unwritable as error:  # nobody chooses the folders of a study's runs: what the system says is enough
            raise error.__cause__ or error from None


@contextlib.contextmanager
def _deadline(hours: float | None, request: StopRequest) -> Iterator[None]:
    """Asks for a stop after so many hours, as a signal from outside would, which only a main thread could catch."""
    timer = threading.Timer((hours or 0) * 3600, setattr, (request, "number", int(signal.SIGTERM)))
    timer.daemon = True
    if hours is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _next(study: Study, request: StopRequest) -> Batch | None:
    """A batch that nobody trains; None when there is no trial without a result, or this process has to stop.

    While others train the last ones it waits: one of them may end before its work is done.
    """
    while not request.number:
        unfinished = [batch for batch in study.batches() if study.is_open(batch)]
        free = [batch for batch in unfinished if not run_folder.is_held(batch.folder)]
        if not free:
            free = study.draw()
        if free:
            return free[0]
        if not unfinished:
            return None
        time.sleep(POLL_SECONDS)
    return None


def _train(study: Study, batch: Batch, show: Display, request: StopRequest) -> None:
    """Trains a batch from where it is to its end, and notes the result of each trial."""
    while study.is_open(batch) and not request.number:
        watch = _Watch(study, batch)
        try:
            result = _run(study, batch, watch, _Quiet(show, batch.folder.name))
        except UsageError as error:  # such as sizes that do not divide, of some values of the space
            has_begun = (batch.folder / batch.runs[-1][0] / run_folder.CONFIG).is_file()
            if has_begun or isinstance(error, run_folder.Unwritable):
                raise  # it can be mended, and gone on with
            _tell_problem(study, batch, watch.live, show, str(error))
            return
        except (jax.errors.JaxRuntimeError, MemoryError) as error:
            if not is_exhausted(error):
                raise
            remedy = ": fewer of them (--batch) may fit" if len(watch.live) > 1 else ""
            problem = f"the memory is not enough for {len(watch.live)} of these settings in one program ({line(error)}){remedy}"
            _tell_problem(study, batch, watch.live, show, problem)
            return
        if result.exit_code >= 128:
            request.number = request.number or result.exit_code - 128
            return
        if result.status == "stopped":  # by the pruner
            batch = _survivors(study, batch, watch)
            continue
        _tell(study, batch, result)
        show.message(f"batch {batch.folder.name}: {results.progress(study)}")


def _tell_problem(study: Study, batch: Batch, numbers: list[int], show: Display, problem: str) -> None:
    """These trials of a batch have failed, by what ends none of the others."""
    show.message(f"batch {batch.folder.name} cannot be trained: {problem}")
    for number in numbers:
        drawing.tell(study.drawn, number, None, {"problem": problem, "batch": batch.folder.name})


def _run(study: Study, batch: Batch, watch: "_Watch", show: _Quiet) -> Result:
    """The batch's newest run, begun, resumed, or as it ended."""
    name, numbers = batch.runs[-1]
    folder = batch.folder / name
    spec, trials = study.spec, [trial for trial in batch.trials if trial.number in numbers]
    parts = _parts(study, trials)
    devices = _devices(study, len(trials), parts["config"])
    if (folder / run_folder.CONFIG).is_file():
        done = _ended(folder)
        return done or api.resume(folder, devices=devices, stop_when=watch, show=show)
    if folder.is_dir() and any(folder.iterdir()):  # of a process that ended before it had begun the run
        show.message(f"warning: {folder} has no {run_folder.CONFIG}: it is {set_aside(folder, 'unfinished').name} now")
    return api.train(
        spec.algorithm,
        spec.environment,
        config=spec.config | parts["config"],
        network=spec.network | parts["network"],
        arguments=spec.arguments | parts["env"],
        eval_arguments=spec.eval_arguments,
        sweep=parts["sweep"],
        evolve={one.name.partition(".")[2]: one.span for one in study.space} if spec.evolves else None,
        options=spec.options
        | {"run_dir": folder, "sweep_paired": bool(parts["sweep"]), "devices": devices}
        | ({"seeds": len(trials)} if spec.evolves else {}),
        imports=spec.imports,
        stop_when=watch,
        show=show,
    )


def _parts(study: Study, trials: list[Any]) -> dict[str, dict[str, Any]]:
    """What the trials of a batch have in common, by group, and what they differ in, as a sweep over paired values."""
    parts: dict[str, dict[str, Any]] = {"config": {}, "network": {}, "env": {}, "sweep": {}}
    for one in study.space:
        if not any(one.name in trial.settings for trial in trials):
            continue
        group, _, name = one.name.partition(".")
        if one.is_traced:
            base = getattr(study.base.config, name)  # of a trial to which it does not apply
            parts["sweep"][name] = [trial.settings.get(one.name, base) for trial in trials]
        else:
            parts[group][name] = trials[0].settings[one.name]
    return parts


def _devices(study: Study, number: int, config: dict[str, Any]) -> int:
    """How many devices a run of so many trials is split over: the most, up to those asked for, that divide its members evenly,
    or the environments (the solutions of quality-diversity) of a single one. Batches are of any size."""
    members = number if study.spec.evolves else number * study.base.options.seeds
    sizes = vars(study.base.config) | config
    size = members if members > 1 else sizes.get("num_envs", sizes.get("batch_size", 1))
    return max(d for d in range(1, int(study.base.options.devices) + 1) if size % d == 0)


def _ended(folder: Path) -> Result | None:
    """How a run ended that is done; None of one that goes on."""
    row = listing.of_run(folder)
    if row["status"] != "done":
        return None
    spec = run_folder.read_spec(folder)
    with resuming.checkpoints_of(folder, spec) as checkpoints:
        summary = next(checkpoints.readable(), None)
    # Checkpoints are written in the background: a process may end with its last evaluation told and the state of it lost.
    if summary is None or summary.step < row["total_steps"]:
        return None
    return Result(folder, "done", 0, row["steps"], dict(summary.metrics), 0.0, 0.0, None, summary.scores)


def _values(study: Study, evaluated: Result | Evaluated, number: int) -> np.ndarray:
    """The best metric of every member, NaN where it is not known, `[number of trials, seeds]`."""
    if evaluated.scores is not None:
        values = [np.nan if value is None else value for value in evaluated.scores.values]
    else:
        found = evaluated.evaluation if isinstance(evaluated, Result) else evaluated.values
        values = [found.get(study.metric, np.nan)]
    return np.array(values, float).reshape(number, -1)


def _tell(study: Study, batch: Batch, result: Result) -> None:
    """The results of a run's trials. One of which a seed is not known has failed."""
    name, numbers = batch.runs[-1]
    # As its last checkpoint has them: without those of members that are no longer finite.
    ended = _ended(batch.folder / name) if result.status == "done" else None
    scores = np.full((len(numbers), 1), np.nan) if ended is None else _values(study, ended, len(numbers))
    unknown = f"{study.metric} of a seed is not known, or not finite" if ended else ENDS[result.status]
    settings = _evolved(batch.folder / name) if study.spec.evolves else [{} for _ in numbers]
    for number, values, given in zip(numbers, scores, settings, strict=True):
        is_known = bool(np.isfinite(values).all())
        drawing.tell(
            study.drawn,
            number,
            float(values.mean()) if is_known else None,
            _facts(batch, result.steps, values) | given | ({} if is_known else {"problem": unknown}),
        )


def _evolved(folder: Path) -> list[dict[str, Any]]:
    """The settings that the members of a population ended with."""
    last = lineage.read(folder)[-1]["settings"]
    return [
        {"settings": {f"config.{name}": value for name, value in zip(last, values, strict=True)}}
        for values in zip(*last.values(), strict=True)
    ]


def _facts(batch: Batch, step: int, scores: np.ndarray) -> dict[str, Any]:
    """What is kept of a trial beside its result."""
    known = [float(score) if np.isfinite(score) else None for score in scores]
    return {"batch": batch.folder.name, "run": batch.runs[-1][0], "steps": step, "scores": known}


class _Watch:
    """What the pruner says after each evaluation of a run."""

    def __init__(self, study: Study, batch: Batch) -> None:
        self._study, self._batch = study, batch
        self._numbers = batch.runs[-1][1]
        states = drawing.states(study.drawn)
        self.live = [number for number in self._numbers if states[number] == "RUNNING"]

    def __call__(self, evaluated: Evaluated) -> bool:
        """Whether the run ends here, because few of its trials go on, or none."""
        if self._study.spec.search.pruner == "none" or evaluated.step == 0:
            return False
        values = dict(zip(self._numbers, _values(self._study, evaluated, len(self._numbers)), strict=True))
        for number in self._pruned({number: float(values[number].mean()) for number in self.live}, evaluated.step):
            facts = _facts(self._batch, evaluated.step, values[number])
            drawing.tell(self._study.drawn, number, None, facts, pruned=True)
            self.live.remove(number)
        return len(self.live) <= FORK_BELOW * len(self._numbers)

    def _pruned(self, values: dict[int, float], step: int) -> list[int]:
        """Which trials end, by number."""
        study = self._study
        for number, value in values.items():
            drawing.report(study.drawn, number, step, value, prune=False)
        if study.spec.search.pruner != "halving":
            return [number for number, value in values.items() if drawing.report(study.drawn, number, step, value, prune=True)]
        passed = sum(step >= (study.base.options.total_steps or 0) / 2**k for k in range(1, HALVINGS + 1))
        kept = math.ceil(len(self._batch.trials) / 2**passed)
        sign = 1 if study.mode == "max" else -1
        best_first = sorted(values, key=lambda number: -sign * values[number] if np.isfinite(values[number]) else np.inf)
        return best_first[kept:]


def _survivors(study: Study, batch: Batch, watch: _Watch) -> Batch:
    """The batch with a run of those alone that go on, if there are any."""
    name, numbers = batch.runs[-1]
    if not watch.live:
        return batch
    index = len(batch.runs) + 1
    while (batch.folder / f"run-{index}").exists():  # of a process that ended before it was whole
        index += 1
    kept = [numbers.index(number) for number in watch.live]
    forking.fork(batch.folder / name, kept, batch.folder / f"run-{index}")
    batch = batch._replace(runs=(*batch.runs, (f"run-{index}", tuple(watch.live))))
    batch.write()
    return batch
