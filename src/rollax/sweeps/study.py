"""Study in a folder: specification, trials drawn by Optuna, and batches that train together.

    study.yaml      specification, and the name of the study in Optuna's storage
    journal.log     Optuna's storage, unless a database is used
    batches/0003/   trials that train in one program: batch.json lists them, run/ is a run folder

Several processes on one or more machines with a shared folder may work on a study. Trials are
drawn under a lock and assigned to batches before the lock is released. Each batch also has a lock,
which a process holds while it trains the batch. Locks are released when their process ends.
"""

import contextlib
import dataclasses
import datetime
import itertools
import json
import math
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rollax.environments import registry
from rollax.errors import UsageError
from rollax.runtime.printing import escape_control_characters, mask_address
from rollax.runtime.shell import format_command_line
from rollax.runtime.user_modules import IMPORT_OPTION
from rollax.sweeps import optuna_study
from rollax.sweeps.search_space import SearchSpace, Settings, to_storage_label
from rollax.sweeps.sweep_spec import StudySpec, parse_study_spec
from rollax.training import user_imports
from rollax.training.options import RunOptions, check_path
from rollax.training.run_folder import layout
from rollax.training.run_folder.files import (
    MAX_SMALL_FILE_BYTES,
    check_not_symlink,
    read_regular_file,
    write_atomically,
)
from rollax.training.run_folder.layout import JOURNAL_FILE, STUDY_FILE
from rollax.training.spec import explain_missing_imports, to_plain_value
from rollax.training.spec_file import read_yaml_document
from rollax.user_input.coercion import coerce
from rollax.version import __version__

BATCHES_FOLDER, BATCH_FILE = "batches", "batch.json"
FORMAT_VERSION = 1
OPTUNA_NAME_KEY = "optuna_study"  # key in study.yaml: name of the study in Optuna's storage
POLL_SECONDS = 0.5
RUN_NAME_PATTERN = re.compile(r"run(-\d{1,6})?")
MAX_TRIAL_NUMBER = 10**9


class Trial(NamedTuple):
    """Number and settings of a trial. A trial is trained with all seeds of the study."""

    number: int
    settings: Settings


class BatchRun(NamedTuple):
    """Name of the folder of a run, and the numbers of the trials that it trains."""

    name: str
    numbers: tuple[int, ...]


class Batch(NamedTuple):
    """Trials that differ only in traced settings, so that they train in one program.

    Attributes:
        folder: Folder of the batch.
        trials: Trials of the batch.
        runs: Runs of the batch. Each run continues the remaining trials of the previous run.
    """

    folder: Path
    trials: tuple[Trial, ...]
    runs: tuple[BatchRun, ...]

    def write(self) -> None:
        """Write batch.json to the folder of the batch."""
        body = {
            "trials": [trial._asdict() for trial in self.trials],
            "runs": [list(run) for run in self.runs],
        }
        write_atomically(self.folder / BATCH_FILE, json.dumps(body, indent=1).encode())


class Study:
    """Study loaded from its folder.

    Attributes:
        folder: Folder of the study.
        spec: Specification of the study.
        space: Search space.
        base: Run specification shared by all trials.
        metric: Name of the metric that ranks the trials.
        mode: `max` if higher values of the metric are better, or `min` if lower ones are.
        optuna_study: The `optuna.Study` with all drawn trials.
    """

    def __init__(self, folder: Path) -> None:
        """Load the study in `folder`.

        Args:
            folder: Folder of the study.

        Raises:
            UsageError: If the study does not exist or cannot be read.
        """
        self.folder = Path(folder)
        check_not_symlink(self.folder / STUDY_FILE)
        self.spec, name = _read_study_file(self.folder / STUDY_FILE)
        with explain_missing_imports(list_study_modules(self.spec)):
            self.space = self.spec.space
            self.base = self.spec.base
        self.metric, self.mode = self.base.options.best_metric, self.base.options.best_mode
        if name is None:  # study files of older versions do not contain the name
            name = f"rollax {self.folder.resolve().name}" if self.spec.search.storage else "rollax"
        if self.spec.search.storage is not None:
            optuna_study.check_storage_trusted(self.spec.search.storage)
        self.optuna_study = optuna_study.load_optuna_study(
            self._storage, name, self.spec.search.pruner
        )
        self._check_trials()

    @property
    def _storage(self) -> str:
        return self.spec.search.storage or str(self.folder / JOURNAL_FILE)

    def _check_trials(self) -> None:
        """Raise UsageError if a trial of a batch has invalid settings or is not in the storage."""
        for batch in self.list_batches():
            if not all(map(self._is_in_space, batch.trials)):
                raise UsageError(
                    f"{batch.folder / BATCH_FILE} must contain only settings of the study. "
                    "Restore a copy of it."
                )
        # A trial is in the storage before its batch is written.
        trials = [trial.number for batch in self.list_batches() for trial in batch.trials]
        states = optuna_study.trial_states(self.optuna_study)
        lost_numbers = [number for number in trials if states.get(number, "WAITING") == "WAITING"]
        if lost_numbers:
            raise UsageError(
                f"The storage {mask_address(self._storage)} lacks {len(lost_numbers)} of the "
                f"{len(trials)} trials in {self.folder / BATCHES_FOLDER}, for example "
                f"{lost_numbers[0]}. Restore a newer copy of it, {optuna_study.NEW_STUDY_REMEDY}"
            )

    def _is_in_space(self, trial: Trial) -> bool:
        """Return whether the settings of a trial are in the search space."""
        dimensions = {dimension.name: dimension for dimension in self.space}
        return all(
            name in dimensions and dimensions[name].has_value(value)
            for name, value in trial.settings.items()
        )

    def list_batches(self) -> list[Batch]:
        """Return all batches in drawing order. Folders without batch.json are skipped."""
        check_not_symlink(self.folder / BATCHES_FOLDER)
        paths = sorted((self.folder / BATCHES_FOLDER).glob(f"*/{BATCH_FILE}"))
        for path in paths:
            check_not_symlink(path.parent)
        return [_read_batch(path) for path in paths]

    @property
    def resume_command(self) -> str:
        """Command line that continues the study in another process."""
        modules = [
            word for module in list_study_modules(self.spec) for word in (IMPORT_OPTION, module)
        ]
        return format_command_line(
            "rollax",
            "sweep",
            self.folder,
            *modules,
            *([user_imports.TRUST_OPTION] if self.spec.search.storage else []),
        )

    @property
    def is_created_here(self) -> bool:
        """Whether this process created the study in its storage."""
        return self._storage in optuna_study.CREATED_STORAGES

    def is_open(self, batch: Batch) -> bool:
        """Return whether a trial of the batch has no result yet."""
        states = optuna_study.trial_states(self.optuna_study)
        return any(states.get(trial.number) == "RUNNING" for trial in batch.trials)

    def count_steps(self) -> int:
        """Return the total number of steps of all trials and seeds.

        For trials without a result, the maximum number of steps is used.
        """
        steps, seeds = optuna_study.trial_steps(self.optuna_study), self.base.options.seeds
        numbers = [trial.number for batch in self.list_batches() for trial in batch.trials]
        return sum(
            steps[number] * seeds if number in steps else self.spec.steps_per_trial
            for number in numbers
        )

    def _num_remaining_trials(self, num_drawn: int) -> int:
        """Return the number of trials that can still be drawn after `num_drawn` trials."""
        remaining, budget = self.spec.num_trials - num_drawn, self.spec.search.budget
        if budget is not None:
            affordable = (budget - self.count_steps()) // self.spec.steps_per_trial
            remaining = min(remaining, affordable)
        return max(0, remaining)

    def is_done(self) -> bool:
        """Return whether all trials are drawn and have a result."""
        batches = self.list_batches()
        return (
            not any(map(self.is_open, batches))
            and self._num_remaining_trials(sum(len(batch.trials) for batch in batches)) == 0
        )

    def draw(self) -> list[Batch]:
        """Draw the next trials, group them into batches, write the batches and return them.

        The list is empty if all trials have been drawn. A lock ensures that only one process draws
        at a time.
        """
        with self._wait_for_lock():
            batches = self.list_batches()
            known_numbers = {trial.number for batch in batches for trial in batch.trials}
            # Requeue trials of a process that ended before it wrote their batch.
            optuna_study.requeue_lost_trials(self.optuna_study, known_numbers)
            remaining = self._num_remaining_trials(len(known_numbers))
            # Trials of an evolving population have no settings until the end of training.
            is_evolving = self.spec.is_evolving
            drawn_trials = optuna_study.ask_trials(
                self.optuna_study,
                SearchSpace() if is_evolving else self.space,
                num_trials=remaining if is_evolving else min(remaining, self._next_batch_size()),
                method=self.spec.method,
                seed=self.spec.search.search_seed,
            )
            trials = [Trial(trial.number, trial.settings) for trial in drawn_trials]
            return self._make_batches(trials, len(batches))

    def _next_batch_size(self) -> int:
        """Return the number of trials to draw at once.

        For a grid, the trials that can train in one program are divided into batches of nearly
        equal size.
        """
        max_size = self.spec.max_batch_trials
        waiting = (
            optuna_study.waiting_settings(self.optuna_study) if self.spec.method == "grid" else []
        )
        if not waiting:
            return max_size
        static = [dimension.name for dimension in self.space if not dimension.is_traced]
        _, program_trials = next(
            itertools.groupby(waiting, lambda settings: [settings.get(name) for name in static])
        )
        num_trials = len(list(program_trials))
        return math.ceil(num_trials / math.ceil(num_trials / max_size))

    def _make_batches(self, trials: list[Trial], first: int) -> list[Batch]:
        """Write one batch for each group of trials with the same static settings."""
        traced = {dimension.name for dimension in self.space if dimension.is_traced}
        groups: dict[str, list[Trial]] = {}
        for trial in trials:
            static: dict[str, Any] = {
                name: to_storage_label(value)
                for name, value in trial.settings.items()
                if name not in traced
            }
            if not traced & set(trial.settings) and not self.spec.is_evolving:
                static["trial"] = trial.number  # no traced setting distinguishes the members
            groups.setdefault(json.dumps(static, sort_keys=True), []).append(trial)
        batches = []
        for group in groups.values():
            # The folder may exist already if a process ended before it wrote the batch.
            while (folder := self.folder / BATCHES_FOLDER / f"{first:04d}").exists():
                first += 1
            folder.mkdir(parents=True)
            run = BatchRun("run", tuple(trial.number for trial in group))
            batch = Batch(folder, tuple(group), (run,))
            batch.write()
            batches.append(batch)
        return batches

    @contextlib.contextmanager
    def _wait_for_lock(self) -> Iterator[None]:
        """Acquire the lock for drawing trials, and hold it within the context."""
        while True:
            with contextlib.ExitStack() as lock:
                try:
                    lock.enter_context(layout.lock_folder(self.folder))
                except layout.FolderLockedError:
                    time.sleep(POLL_SECONDS)
                    continue
                yield
                return


def create_study(spec: StudySpec, folder: Path | None, is_trained_here: bool = False) -> Path:
    """Create a study in a folder that is empty or does not exist.

    Args:
        spec: Specification of the study.
        folder: Folder of the study. None creates one in `studies/`.
        is_trained_here: Whether this process trains the study, so that its devices and packages are
            checked.

    Returns:
        The folder.

    Raises:
        UsageError: If the specification is invalid, or if the folder is not empty or cannot be
            written.
    """
    spec = spec.with_ranking_metric()
    spec.check()
    if is_trained_here:
        spec.check_trainable_here()
    if folder is not None:
        check_path("study_dir", folder)
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{spec.algorithm}-{now}-{secrets.token_hex(2)}"
    folder = (
        Path("studies") / layout.environment_folder_name(spec.environment) / name
        if folder is None
        else folder
    )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        is_study = (folder / STUDY_FILE).exists()
        command = format_command_line("rollax", "sweep", folder)
        remedy = f", or continue it with: {command}" if is_study else ""
        raise UsageError(f"{folder} exists and is not empty. Choose another --study-dir{remedy}.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_study(spec, folder)
    except (OSError, UsageError) as error:
        with contextlib.suppress(OSError):
            (folder / JOURNAL_FILE).unlink(missing_ok=True)
            folder.rmdir()  # otherwise the next attempt fails
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):  # an error of the database
            raise
        raise UsageError(
            f"The study folder {folder} cannot be written ({cause}). Choose another --study-dir."
        ) from error
    return folder


def _write_study(spec: StudySpec, folder: Path) -> None:
    """Create the study in Optuna's storage, enqueue all trials of a grid, and write study.yaml."""
    # A database may contain studies of other folders with the same name, so the name has a token.
    name = f"rollax {folder.resolve().name} {secrets.token_hex(4)}"
    mode = RunOptions(**spec.options).best_mode
    drawn = optuna_study.create_optuna_study(
        spec.search.storage or str(folder / JOURNAL_FILE), name, mode
    )
    if spec.method == "grid":
        optuna_study.enqueue_trials(drawn, spec.space.grid()[: spec.num_trials])
    document = {
        "rollax": __version__,
        "format": FORMAT_VERSION,
        OPTUNA_NAME_KEY: name,
        **dataclasses.asdict(spec),
    }
    text = yaml.safe_dump(
        json.loads(json.dumps(to_plain_value("study", document))), sort_keys=False
    )
    write_atomically(folder / STUDY_FILE, text.encode())


def read_study_spec(path: Path) -> StudySpec:
    """Read the specification of a study from study.yaml or from a file written by the user.

    Args:
        path: Path of the file.

    Returns:
        The specification.

    Raises:
        UsageError: If the file is missing or invalid.
    """
    return _read_study_file(path)[0]


def _read_study_file(path: Path) -> tuple[StudySpec, str | None]:
    """Return the specification, and the name of the study in Optuna's storage.

    The name is None in files written by users.
    """
    if not path.exists():
        raise UsageError(
            f"{path.parent} is not a study, because {path.name} is missing. "
            "Use a folder that `rollax sweep` printed."
        )
    document = read_yaml_document(path)
    user_imports.import_trusted_modules(document.get("imports"), document.get("environment"))
    version = document.pop("rollax", __version__)
    format_version = document.pop("format", FORMAT_VERSION)
    name = document.pop(OPTUNA_NAME_KEY, None)
    if format_version != FORMAT_VERSION:
        raise UsageError(
            f"{path} was written by rollax {version} in another format. "
            "Install that version to continue."
        )
    try:
        return parse_study_spec(document), coerce(OPTUNA_NAME_KEY, name, str | None)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def list_study_modules(spec: StudySpec) -> tuple[str, ...]:
    """Return the names of the modules that register environments or algorithms of a study.

    The names include the package in an environment id such as "gymnasium/PACKAGE:NAME".
    """
    return tuple(dict.fromkeys((*spec.imports, *registry.parse_packages(spec.environment))))


def _read_batch(path: Path) -> Batch:
    """Read a batch.json, or raise UsageError if it is damaged."""
    try:
        body = json.loads(read_regular_file(path, MAX_SMALL_FILE_BYTES))
        trials = tuple(
            Trial(_parse_trial_number(trial["number"]), _parse_settings(trial["settings"]))
            for trial in body["trials"]
        )
        runs = tuple(
            BatchRun(_parse_run_name(name), tuple(map(_parse_trial_number, numbers)))
            for name, numbers in body["runs"]
        )
        known = {trial.number for trial in trials}
        if (
            not trials
            or not runs
            or not all(run.numbers and known.issuperset(run.numbers) for run in runs)
        ):
            raise ValueError("a batch must have trials and runs of these trials")
        return Batch(path.parent, trials, runs)
    except UsageError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"{path} is damaged ({type(error).__name__}). "
            "Restore a copy of it, or start a new study."
        ) from error


def _parse_trial_number(value: object) -> int:
    """Convert `value` to a trial number, or raise ValueError if it is invalid."""
    if not isinstance(value, int) or not 0 <= value < MAX_TRIAL_NUMBER:
        raise ValueError(value)
    return value


def _parse_run_name(value: object) -> str:
    """Return `value` if it is a valid name of a run folder, otherwise raise ValueError."""
    if not isinstance(value, str) or not RUN_NAME_PATTERN.fullmatch(value):
        raise ValueError(value)
    return value


def _parse_settings(value: object) -> Settings:
    """Return `value` if it is a dictionary without control characters, else raise ValueError."""
    if not isinstance(value, dict) or escape_control_characters(
        json.dumps(value, ensure_ascii=False)
    ) != json.dumps(value, ensure_ascii=False):
        raise ValueError(value)
    return value
