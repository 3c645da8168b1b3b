"""Interface to Optuna: studies in a storage, trials, and results."""

import contextlib
import errno
import functools
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from rollax.errors import UsageError
from rollax.runtime.installation import install_command, package_command
from rollax.runtime.printing import mask_address, mask_secrets
from rollax.runtime.shell import format_command_line
from rollax.sweeps import cma_sampler
from rollax.sweeps.search_space import SearchSpace, Settings
from rollax.training.checkpoints.store import CheckpointSaveError
from rollax.training.run_folder.files import (
    MAX_FILE_BYTES,
    check_not_symlink,
    open_for_append,
    open_regular_file,
)
from rollax.training.user_imports import TRUST_OPTION, is_trusted
from rollax.types import Record

if TYPE_CHECKING:
    import optuna
    import optuna.storages.journal

CREATED_STORAGES = set[str]()  # storages of studies created by this process
# Attribute of a requeued trial: number of the lost trial with the same settings. A trial is lost if
# its process ends before the process writes the batch.
LOST_TRIAL_KEY = "lost"
READ_BLOCK_BYTES = 65536
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # disk, quota, file size limit
MAX_LISTED_NAMES = 5  # study names in an error message
# PED-ANOVA compares the best tenth of the results with all results, so it needs at least this many.
MIN_RESULTS_FOR_IMPORTANCE = 16
NEW_STUDY_REMEDY = (
    "or start a new study (the runs in batches/ remain valid for rollax plot, eval and report)."
)


@contextlib.contextmanager
def _quiet_optuna() -> Iterator[ModuleType]:
    """Import Optuna, and suppress its log messages and warnings about experimental features."""
    try:
        import optuna
    except ImportError as error:
        raise UsageError(
            "The package optuna is not installed, and studies need it. Run: "
            f"{install_command('sweep')}"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield optuna


def create_optuna_study(storage: str, name: str, mode: str) -> "optuna.Study":
    """Create an `optuna.Study` in a storage.

    Afterward, `check_storage_trusted` accepts the storage in this process.

    Args:
        storage: Address of a database, or path of a journal file.
        name: Name of the study.
        mode: `max` or `min`.

    Returns:
        The study.

    Raises:
        UsageError: If the storage cannot be used.
    """
    CREATED_STORAGES.add(storage)
    with _open_storage(storage) as (optuna, backend):
        return optuna.create_study(
            storage=backend, study_name=name, direction="maximize" if mode == "max" else "minimize"
        )


def check_storage_trusted(storage: str) -> None:
    """Check that this process may open a trial storage.

    The address is read from a study file, and can refer to a database or file elsewhere. It is
    accepted if this process created the storage, or with `trust=True` or `--trust`.

    Args:
        storage: Address of a database, or path of a journal file.

    Raises:
        UsageError: If the storage is not accepted.
    """
    if storage not in CREATED_STORAGES and not is_trusted():
        raise UsageError(
            f"The study keeps its trials in {mask_address(storage)}, outside its folder. If you "
            f"created the study or trust its author, add {TRUST_OPTION} (in Python: trust=True)."
        )


def load_optuna_study(storage: str, name: str, pruner: str) -> "optuna.Study":
    """Load an existing `optuna.Study`.

    A missing study is not created, because it would lack the trials of existing batches.

    Args:
        storage: Address of a database, or path of a journal file.
        name: Name of the study.
        pruner: Name of the pruner.

    Returns:
        The study.

    Raises:
        UsageError: If the storage cannot be used or does not contain the study.
    """
    if "://" not in storage and not os.path.lexists(storage):
        raise UsageError(
            f"{storage}, which contains the trials of the study, is missing. "
            f"Restore a copy of it, {NEW_STUDY_REMEDY}"
        )
    with _open_storage(storage) as (optuna, backend):
        names = optuna.get_all_study_names(backend)
        if name not in names:
            content = (
                f"only {', '.join(map(repr, names[:MAX_LISTED_NAMES]))}" if names else "it is empty"
            )
            raise UsageError(
                f"The storage {mask_address(storage)} does not contain the study "
                f"{name!r}, {content}. "
                f"Restore the storage of the study, {NEW_STUDY_REMEDY}"
            )
        return optuna.load_study(
            storage=backend, study_name=name, pruner=_make_pruner(optuna, pruner)
        )


@contextlib.contextmanager
def _open_storage(
    storage: str,
) -> "Iterator[tuple[ModuleType, str | optuna.storages.BaseStorage]]":
    """Yield the module optuna and a storage. Storage errors in the context become UsageError."""
    with _quiet_optuna() as optuna:
        try:
            if "://" in storage:
                yield optuna, storage
            else:
                backend = _make_journal_backend(optuna.storages.journal, storage)
                yield optuna, optuna.storages.JournalStorage(backend)
        except UsageError:
            raise
        except Exception as error:  # databases have many error types
            text = mask_secrets(str(error).replace(storage, mask_address(storage))).strip()
            first_line = text.splitlines()[0] if text else "no message"
            raise UsageError(
                f"The storage {mask_address(storage)} cannot be used "
                f"({type(error).__name__}: {first_line})."
            ) from error


def _make_journal_backend(
    journal: ModuleType, path: str
) -> "optuna.storages.journal.JournalFileBackend":
    """Make a journal backend that removes partial lines.

    A full disk or a killed process can leave a partial line. Optuna would append the next record to
    this line, and could then read neither this record nor later ones.
    """

    class RepairingLock(journal.JournalFileOpenLock):
        """Lock of the journal file, held while lines are written."""

        def acquire(self) -> bool:
            check_not_symlink(Path(f"{path}.lock"))  # Optuna would wait forever for a dangling link
            is_acquired = super().acquire()
            _truncate_partial_line(Path(path))
            return is_acquired

        def release(self) -> None:
            try:
                _truncate_partial_line(Path(path))
            finally:
                super().release()

    # This raises an error for a link or pipe, because Optuna opens the path by name.
    with open_for_append(Path(path)) as file:
        if file.tell() > MAX_FILE_BYTES:
            raise UsageError(
                f"{path} must have at most {MAX_FILE_BYTES:,} bytes. "
                f"Restore a copy of it, {NEW_STUDY_REMEDY}"
            )
    return journal.JournalFileBackend(path, lock_obj=RepairingLock(path))


def _truncate_partial_line(path: Path) -> None:
    with open_regular_file(path, os.O_RDWR) as file:
        end = size = file.seek(0, os.SEEK_END)
        while end > 0:  # from the end, because a journal can be long
            begin = max(0, end - READ_BLOCK_BYTES)
            file.seek(begin)
            position = file.read(end - begin).rfind(b"\n")
            end = begin if position < 0 else begin + position + 1
            if position >= 0:
                break
        if end < size:
            file.truncate(end)


@contextlib.contextmanager
def convert_storage_errors(folder: Path) -> Iterator[None]:
    """Add the command that continues the study to the messages of storage errors in the context.

    Args:
        folder: Folder of the study.

    Raises:
        UsageError: If the storage, such as a remote database, does not respond.
        OSError: If the disk is full.
        CheckpointSaveError: If a checkpoint cannot be saved.
    """
    resume = format_command_line("rollax", "sweep", folder)
    with _quiet_optuna() as optuna:
        try:
            yield
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS:
                raise
            where = str(error.filename or folder)
            raise OSError(
                error.errno,
                f"{error.strerror} (free some space, then continue with: {resume})",
                where,
            ) from error
        except CheckpointSaveError as error:
            raise CheckpointSaveError(
                f"{error} (free some space, then continue with: {resume})"
            ) from error
        except Exception as error:
            is_database_error = type(error).__module__.partition(".")[0] == "sqlalchemy"
            if not is_database_error and not isinstance(error, optuna.exceptions.OptunaError):
                raise
            cause = mask_secrets(str(error.__cause__ or error)).strip().splitlines()[0]
            raise UsageError(
                f"The storage of the study does not respond ({cause}). Finished runs are kept. "
                f"When it responds again, continue with: {resume}"
            ) from error


def check_sampler_installed(method: str) -> None:
    """Check that the package of a sampler is installed.

    Optuna imports the package only when it samples the first trial.

    Args:
        method: Search method.

    Raises:
        UsageError: If the package is missing.
    """
    package = {"gp": "torch", "cmaes": "cmaes"}.get(method)
    if package is not None and importlib.util.find_spec(package) is None:
        raise UsageError(
            f"The package {package} is not installed, and --method {method} needs it. Choose "
            "another method, or run: "
            f"{package_command(package)}"
        )


def _make_sampler(
    optuna: ModuleType, method: str, seed: int, num_drawn: int
) -> "optuna.samplers.BaseSampler":
    """Make the sampler that draws the next trials after `num_drawn` trials.

    A grid does not use a sampler, because its trials are enqueued.
    """
    # The seed differs between the samplers of all processes.
    sampler_seed = (seed * 1_000_003 + num_drawn) % 2**32
    if method == "qmc":
        return optuna.samplers.QMCSampler(seed=seed, scramble=True)
    if method == "tpe":
        return optuna.samplers.TPESampler(seed=sampler_seed, constant_liar=True)
    if method == "gp":
        return optuna.samplers.GPSampler(seed=sampler_seed)
    if method == "cmaes":
        return cma_sampler.make_cma_sampler(sampler_seed)
    return optuna.samplers.RandomSampler(seed=sampler_seed)


def _make_pruner(optuna: ModuleType, name: str) -> "optuna.pruners.BasePruner":
    pruners: dict[str, Callable[[], Any]] = {
        "median": optuna.pruners.MedianPruner,
        "percentile": functools.partial(optuna.pruners.PercentilePruner, 25.0),
        "successive_halving": optuna.pruners.SuccessiveHalvingPruner,
        "hyperband": optuna.pruners.HyperbandPruner,
    }
    return pruners[name]() if name in pruners else optuna.pruners.NopPruner()


def enqueue_trials(study: "optuna.Study", settings: Sequence[Settings]) -> None:
    """Enqueue one trial per element of `settings`. Trials are drawn in this order."""
    with _quiet_optuna():
        for each in settings:
            study.enqueue_trial(each)


def waiting_settings(study: "optuna.Study") -> list[Settings]:
    """Return the settings of all enqueued trials in drawing order.

    Values are storage labels (see `to_storage_label`).
    """
    with _quiet_optuna() as optuna:
        trials = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,))
        return [trial.system_attrs.get("fixed_params", {}) for trial in trials]


class DrawnTrial(NamedTuple):
    """Number and settings of a trial that Optuna has drawn."""

    number: int
    settings: Settings


def ask_trials(
    study: "optuna.Study", space: SearchSpace, num_trials: int, method: str, seed: int
) -> list[DrawnTrial]:
    """Draw the next trials of a study. The seed and the existing trials determine the result.

    Args:
        study: The `optuna.Study`.
        space: Search space.
        num_trials: Number of trials.
        method: Search method.
        seed: Random seed.

    Returns:
        The trials.

    Raises:
        UsageError: If the trials in the storage are invalid.
    """
    with _quiet_optuna() as optuna:
        study.sampler = _make_sampler(optuna, method, seed, len(study.get_trials(deepcopy=False)))
        try:
            trials = [study.ask() for _ in range(max(num_trials, 0))]
            return [DrawnTrial(trial.number, space.ask(trial)) for trial in trials]
        except (
            AssertionError,
            AttributeError,
            LookupError,
            TypeError,
        ) as error:  # raised for trials that rollax did not write
            raise UsageError(
                f"No settings can be drawn from the trials of the study ({type(error).__name__}: "
                f"{error}). Restore a copy of its storage, {NEW_STUDY_REMEDY}"
            ) from error


def requeue_lost_trials(study: "optuna.Study", known_numbers: set[int]) -> None:
    """Mark running trials without a batch as failed, and enqueue their settings.

    Args:
        study: The `optuna.Study`.
        known_numbers: Numbers of the trials that belong to a batch.
    """
    with _quiet_optuna() as optuna:
        trials = study.get_trials(deepcopy=False)
        requeued_numbers = {trial.user_attrs.get(LOST_TRIAL_KEY) for trial in trials}
        for trial in trials:
            if trial.state != optuna.trial.TrialState.RUNNING or trial.number in known_numbers:
                continue
            if (
                trial.number not in requeued_numbers
            ):  # otherwise a process ended between these two calls
                # Include suggestions that the process had not asked for before it ended.
                fixed = trial.system_attrs.get("fixed_params", {}) | trial.params
                study.enqueue_trial(fixed, user_attrs={LOST_TRIAL_KEY: trial.number})
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)


def trial_states(study: "optuna.Study") -> dict[int, str]:
    """Return the state of each trial, such as COMPLETE or FAIL, keyed by trial number."""
    return {trial.number: trial.state.name for trial in study.get_trials(deepcopy=False)}


def trial_steps(study: "optuna.Study") -> dict[int, int]:
    """Return the steps per seed of complete, pruned and failed trials, keyed by trial number.

    Trials without a recorded number of steps have 0 steps.
    """
    finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    steps = {trial.number: trial.user_attrs.get("steps", 0) for trial in finished}
    return {number: value if isinstance(value, int) else 0 for number, value in steps.items()}


def report_value(
    study: "optuna.Study", trial_number: int, step: int, value: float, is_pruning_enabled: bool
) -> bool:
    """Report an intermediate value of a trial to Optuna.

    Args:
        study: The `optuna.Study`.
        trial_number: Number of the trial.
        step: Environment step of the evaluation.
        value: Mean of the ranking metric over seeds.
        is_pruning_enabled: Whether to query the pruner.

    Returns:
        Whether the pruner stops the trial. Always False if `is_pruning_enabled` is False.
    """
    with _quiet_optuna() as optuna:
        trial = optuna.trial.Trial(study, _trial_id(study, trial_number))
        if step not in study.get_trials(deepcopy=False)[trial_number].intermediate_values:
            trial.report(value, step)
        return is_pruning_enabled and trial.should_prune()


def tell_result(
    study: "optuna.Study",
    trial_number: int,
    value: float | None,
    attributes: Record,
    is_pruned: bool = False,
) -> None:
    """Store the result of a running trial. Trials in other states are left unchanged.

    Args:
        study: The `optuna.Study`.
        trial_number: Number of the trial.
        value: Mean of the ranking metric over seeds. None marks the trial as failed.
        attributes: User attributes to store with the trial.
        is_pruned: Whether the pruner stopped the trial.
    """
    with _quiet_optuna() as optuna:
        if trial_states(study)[trial_number] != "RUNNING":
            return
        trial = optuna.trial.Trial(study, _trial_id(study, trial_number))
        for name, attribute in attributes.items():
            trial.set_user_attr(name, attribute)
        state = optuna.trial.TrialState
        if is_pruned:
            study.tell(trial_number, state=state.PRUNED)
        elif value is None:
            study.tell(trial_number, state=state.FAIL)
        else:
            study.tell(trial_number, value)


def _trial_id(study: "optuna.Study", trial_number: int) -> int:
    return study.get_trials(deepcopy=False)[trial_number]._trial_id


def parameter_importance(study: "optuna.Study") -> dict[str, float]:
    """Return the PED-ANOVA importance of each parameter.

    Args:
        study: The `optuna.Study`.

    Returns:
        Importance of each parameter, keyed by name. The values sum to 1. Empty with fewer than
        `MIN_RESULTS_FOR_IMPORTANCE` results, or if Optuna cannot compute the importance.
    """
    if list(trial_states(study).values()).count("COMPLETE") < MIN_RESULTS_FOR_IMPORTANCE:
        return {}
    with _quiet_optuna() as optuna, warnings.catch_warnings():
        # Optuna emits this warning when it computes importances that are not reliable.
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
        except (
            ValueError,
            RuntimeError,
            UserWarning,
        ):  # raised for too few or identical results
            return {}
