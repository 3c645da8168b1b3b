"""A study in its folder: what it compares, the trials that Optuna has drawn, and the batches in which they train.

    study.yaml      the run that all trials are, the search space, how to search, and the study's name in Optuna's storage
    journal.log     Optuna's storage, unless a database was named
    batches/0003/   trials that train in one program: batch.json says which, run/ is the run, a run folder like any other

Several processes, on one machine or on several with this folder in common, may work on it. Trials are drawn under a lock and
stand in a batch when it is released; a batch is trained by the process that has its lock, which ends with the process.
"""

import contextlib
import dataclasses
import datetime
import itertools
import json
import math
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rollax.errors import UsageError
from rollax.host import run_folder
from rollax.host.files import write_atomically
from rollax.host.options import RunOptions, check_path
from rollax.host.run_folder import STUDY
from rollax.host.settings import plain
from rollax.host.spec_file import document_of
from rollax.studies import optuna_study as drawing
from rollax.studies.space import Settings, Space, label
from rollax.studies.spec import StudySpec, of_dictionary
from rollax.typed import typed
from rollax.version import __version__

JOURNAL, BATCHES, BATCH = "journal.log", "batches", "batch.json"
FORMAT = 1
NAME = "optuna_study"  # in study.yaml: what the study is called in Optuna's storage
POLL_SECONDS = 0.5


class Trial(NamedTuple):
    """One setting of a study, trained with all seeds."""

    number: int
    settings: Settings  # by full name


class Batch(NamedTuple):
    """Trials that differ in traced settings alone, so that they train in one program."""

    folder: Path
    trials: tuple[Trial, ...]
    runs: tuple[tuple[str, tuple[int, ...]], ...]  # names of run folders, one after the other, each with its trials' numbers

    def write(self) -> None:
        body = {"trials": [trial._asdict() for trial in self.trials], "runs": [list(run) for run in self.runs]}
        write_atomically(self.folder / BATCH, json.dumps(body, indent=1).encode())


class Study:
    """A study that is in a folder."""

    def __init__(self, folder: Path) -> None:
        """Raises UsageError when there is none, or it cannot be read."""
        self.folder = Path(folder)
        self.spec, name = _read(self.folder / STUDY)
        self.space = self.spec.space
        self.base = self.spec.base
        self.metric, self.mode = self.base.options.best_metric, self.base.options.best_mode
        if name is None:  # of a study from before it had one of its own
            name = f"rollax {self.folder.resolve().name}" if self.spec.search.storage else "rollax"
        self.drawn = drawing.opened(self._storage, name, self.spec.search.pruner)
        self._check_trials()

    @property
    def _storage(self) -> str:
        return self.spec.search.storage or str(self.folder / JOURNAL)

    def _check_trials(self) -> None:
        """Raises UsageError where Optuna's storage lacks trials that were drawn, as an older copy of it does."""
        trials = [trial.number for batch in self.batches() for trial in batch.trials]  # each is in the storage before its batch
        states = drawing.states(self.drawn)
        lost = [number for number in trials if states.get(number, "WAITING") == "WAITING"]
        if lost:
            raise UsageError(
                f"the storage {drawing.shown(self._storage)} lacks {len(lost)} of the {len(trials)} trials in "
                f"{self.folder / BATCHES}, such as {lost[0]}: bring a newer copy of it back, {drawing.ANEW}"
            )

    def batches(self) -> list[Batch]:
        """Those that are written whole, in the order in which they were drawn."""
        paths = sorted((self.folder / BATCHES).glob(f"*/{BATCH}"))
        return [_batch(path) for path in paths]

    def is_open(self, batch: Batch) -> bool:
        """Whether one of its trials has no result yet."""
        states = drawing.states(self.drawn)
        return any(states.get(trial.number) == "RUNNING" for trial in batch.trials)

    def steps_taken(self) -> int:
        """Steps that all trials have taken with their seeds; one without a result counts as if it were not to stop early."""
        steps, one = drawing.steps(self.drawn), self.spec.steps_of_one
        trials = [trial.number for batch in self.batches() for trial in batch.trials]
        return sum(one if steps.get(number) is None else steps[number] * self.base.options.seeds for number in trials)

    def _left(self, drawn: int) -> int:
        """How many trials there are yet to draw, after so many."""
        left = self.spec.num_trials - drawn
        if self.spec.search.budget is not None:
            left = min(left, (self.spec.search.budget - self.steps_taken()) // self.spec.steps_of_one)
        return max(0, left)

    def is_done(self) -> bool:
        """Whether every trial that was drawn has a result, and no more are to be drawn."""
        batches = self.batches()
        return not any(map(self.is_open, batches)) and self._left(sum(len(batch.trials) for batch in batches)) == 0

    def draw(self) -> list[Batch]:
        """New batches of the next trials, none when all have been drawn. One process draws at a time."""
        with self._alone():
            batches = self.batches()
            known = {trial.number for batch in batches for trial in batch.trials}
            drawing.draw_again(self.drawn, known)  # what a process had drawn that ended before its batch was written
            left = self._left(len(known))
            number, search = min(left, self._together()), (self.spec.method, self.spec.search.search_seed)
            # Those of a population that evolves have the settings that it ends with.
            given = (Space(), left) if self.spec.evolves else (self.space, number)
            trials = drawing.ask(self.drawn, *given, *search)
            return self._batches([Trial(number, settings) for number, settings in trials], len(batches))

    def _together(self) -> int:
        """How many trials to draw at once: of a grid those that train in one program, in parts as equal as can be."""
        most, waiting = self.spec.largest_batch, drawing.waiting(self.drawn) if self.spec.method == "grid" else []
        if not waiting:
            return most
        static = [one.name for one in self.space if not one.is_traced]
        first = [waiting[0].get(name) for name in static]
        group = sum(1 for _ in itertools.takewhile(lambda each: [each.get(name) for name in static] == first, waiting))
        return math.ceil(group / math.ceil(group / most))

    def _batches(self, trials: list[Trial], first: int) -> list[Batch]:
        """The trials by what they have in common, each group in a folder of its own."""
        traced = {one.name for one in self.space if one.is_traced}
        groups: dict[str, list[Trial]] = {}
        for trial in trials:
            static: dict[str, Any] = {name: label(value) for name, value in trial.settings.items() if name not in traced}
            if not traced & set(trial.settings) and not self.spec.evolves:
                static["trial"] = trial.number  # nothing by which members could differ
            groups.setdefault(json.dumps(static, sort_keys=True), []).append(trial)
        made = []
        for group in groups.values():
            # A folder may be there already, of a process that ended before it wrote the batch.
            while (folder := self.folder / BATCHES / f"{first:04d}").exists():
                first += 1
            folder.mkdir(parents=True)
            batch = Batch(folder, tuple(group), (("run", tuple(trial.number for trial in group)),))
            batch.write()
            made.append(batch)
        return made

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Waits until no other process draws trials."""
        while True:
            with contextlib.ExitStack() as held:
                try:
                    held.enter_context(run_folder.alone(self.folder))
                except run_folder.Held:
                    time.sleep(POLL_SECONDS)
                    continue
                yield
                return


def create(spec: StudySpec, folder: Path | None, trains_here: bool = False) -> Path:
    """A new study in a folder that is empty or not there; by default in `studies/`. Raises UsageError for any other, and where
    this process is to train it and cannot."""
    spec.check()
    if trains_here:
        spec.check_here()
    if folder is not None:
        check_path("study_dir", folder)
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{spec.algorithm}-{now}-{secrets.token_hex(2)}"
    folder = Path("studies") / run_folder.folder_name(spec.environment) / name if folder is None else folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        more = f", or go on with it: rollax sweep {folder}" if (folder / STUDY).exists() else ""
        raise UsageError(f"{folder} exists and is not empty: choose another --study-dir{more}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(spec, folder)
    except (OSError, UsageError) as error:
        with contextlib.suppress(OSError):
            (folder / JOURNAL).unlink(missing_ok=True)
            folder.rmdir()  # it would be in the way of the next try
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):  # a database that cannot be used
            raise
        raise UsageError(f"the study's folder {folder} cannot be written ({cause}): choose another --study-dir") from error
    return folder


def _write(spec: StudySpec, folder: Path) -> None:
    """Optuna's study, with all trials of a grid; then study.yaml, with which the folder is a study."""
    # Of its own: other studies in the same database may be in a folder of this name, and this folder may get another.
    name = f"rollax {folder.resolve().name} {secrets.token_hex(4)}"
    mode = RunOptions(**spec.options).best_mode
    drawn = drawing.created(spec.search.storage or str(folder / JOURNAL), name, mode)
    if spec.method == "grid":
        drawing.enqueue(drawn, spec.space.grid()[: spec.num_trials])
    document = {"rollax": __version__, "format": FORMAT, NAME: name, **dataclasses.asdict(spec)}
    text = yaml.safe_dump(json.loads(json.dumps(plain("study", document))), sort_keys=False)
    write_atomically(folder / STUDY, text.encode())


def read(path: Path) -> StudySpec:
    """What a study is, from its own file or from one that a user wrote. Raises UsageError that names what is wrong in it."""
    return _read(path)[0]


def _read(path: Path) -> tuple[StudySpec, str | None]:
    """What a study is, and its name in Optuna's storage, which a user's own file lacks."""
    if not path.is_file():
        raise UsageError(f"{path.parent} is no study: it has no {path.name}; give a folder that `rollax sweep` named")
    document = document_of(path)
    version, name = (document.pop("rollax", __version__), document.pop("format", FORMAT)), document.pop(NAME, None)
    if version[1] != FORMAT:
        raise UsageError(f"{path} was written by rollax {version[0]} in another format: install that version to go on with it")
    try:
        return of_dictionary(document), typed(NAME, name, str | None)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _batch(path: Path) -> Batch:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        trials = tuple(Trial(trial["number"], trial["settings"]) for trial in body["trials"])
        return Batch(path.parent, trials, tuple((name, tuple(numbers)) for name, numbers in body["runs"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is damaged ({type(error).__name__}): bring a copy of it back, or begin a new study"
        ) from error
