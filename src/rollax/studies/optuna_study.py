"""What is asked of Optuna: a study in a storage, trials to try, and what became of them."""

import contextlib
import errno
import importlib.util
import os
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rollax.errors import UsageError
from rollax.host.checkpoint import SaveFailed
from rollax.studies.space import Settings, Space

LOST = "lost"  # of a trial whose process ended before its batch was written: the same settings are drawn again
BLOCK = 65536  # bytes
FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG  # a disk, a quota, a file that may be no larger
MOST_NAMES = 5  # of studies, in an error
FEWEST_RESULTS = 16  # from which on importance is told: the best tenth is compared with all
ANEW = "or begin a new study (the runs in batches/ are whole: rollax plot, eval and report work on them)"


@contextlib.contextmanager
def _optuna() -> Iterator[Any]:
    """Optuna, without what it logs and without warnings of features that it calls experimental."""
    try:
        import optuna
    except ImportError as error:
        raise UsageError('a study needs Optuna: pip install "rollax[sweep]"') from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield optuna


def created(storage: str, name: str, mode: str) -> Any:
    """A new `optuna.Study` in a database, or in a file where `storage` is a path. Raises UsageError where that cannot be."""
    with _backend(storage) as (optuna, backend):
        return optuna.create_study(storage=backend, study_name=name, direction="maximize" if mode == "max" else "minimize")


def opened(storage: str, name: str, pruner: str) -> Any:
    """The `optuna.Study` of this name. Raises UsageError where the storage cannot be used, or has none: it is never made here,
    as it would lack the trials of the study's batches."""
    if "://" not in storage and not Path(storage).is_file():
        raise UsageError(f"{storage} is missing, which holds the trials of the study: bring a copy of it back, {ANEW}")
    with _backend(storage) as (optuna, backend):
        names = optuna.get_all_study_names(backend)
        if name not in names:
            found = f"only {', '.join(map(repr, names[:MOST_NAMES]))}" if names else "none at all"
            raise UsageError(
                f"the storage {shown(storage)} has no study {name!r}, {found}: bring back the one in which it was, {ANEW}"
            )
        return optuna.load_study(storage=backend, study_name=name, pruner=_pruner(optuna, pruner))


@contextlib.contextmanager
def _backend(storage: str) -> Iterator[tuple[Any, Any]]:
    """Optuna, and a database or a file as it takes it. Raises UsageError for what goes wrong with it."""
    with _optuna() as optuna:
        try:
            journal = optuna.storages.journal
            in_file = "://" not in storage
            yield optuna, optuna.storages.JournalStorage(_journal(journal, storage)) if in_file else storage
        except UsageError:
            raise
        except Exception as error:  # a database may fail in ways of its own
            told = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no more is said'}"
            raise UsageError(f"the storage {shown(storage)} cannot be used ({told})") from error


def _journal(journal: Any, path: str) -> Any:
    """Optuna's journal in a file, in which no half line stays that a full disk or the end of a process has left: the next line
    would be written behind it, and nothing after it could be read."""

    class Mending(journal.JournalFileSymlinkLock):
        """Held while lines are written, and only then."""

        def acquire(self) -> bool:
            held = super().acquire()
            _drop_half_line(Path(path))
            return held

        def release(self) -> None:
            try:
                _drop_half_line(Path(path))
            finally:
                super().release()

    return journal.JournalFileBackend(path, lock_obj=Mending(path))


def _drop_half_line(path: Path) -> None:
    with path.open("r+b") as file:
        end = size = file.seek(0, os.SEEK_END)
        while end > 0:  # backwards, as a journal is long
            begin = max(0, end - BLOCK)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            end = begin if found < 0 else begin + found + 1
            if found >= 0:
                break
        if end < size:
            file.truncate(end)


@contextlib.contextmanager
def answering(folder: Path) -> Iterator[None]:
    """Around work on a study. Raises UsageError where its storage, such as a database elsewhere, answers no more; what a full
    disk raises says how to go on."""
    with _optuna() as optuna:
        try:
            yield
        except OSError as error:
            if error.errno not in FULL:
                raise
            where = str(error.filename or folder)
            raise OSError(
                error.errno, f"{error.strerror} (with room again, go on with: rollax sweep {folder})", where
            ) from error
        except SaveFailed as error:
            raise SaveFailed(f"{error} (with room again, go on with: rollax sweep {folder})") from error
        except Exception as error:
            of_database = type(error).__module__.partition(".")[0] == "sqlalchemy"
            if not of_database and not isinstance(error, optuna.exceptions.OptunaError):
                raise
            cause = str(error.__cause__ or error).strip().splitlines()[0]
            raise UsageError(
                f"the study's storage answers no more ({cause}): what is trained is kept; when it does again, go on with: "
                f"rollax sweep {folder}"
            ) from error


def shown(storage: str) -> str:
    """Without the password of a database."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", storage)


def check_method(method: str) -> None:
    """Raises UsageError for a sampler that needs a package which is not there: Optuna looks for it when it draws."""
    needed = {"gp": "torch", "cmaes": "cmaes"}.get(method)
    if needed is not None and importlib.util.find_spec(needed) is None:
        raise UsageError(f"--method {method} needs the package {needed}: pip install {needed}, or choose another")


def _sampler(optuna: Any, method: str, seed: int, drawn: int) -> Any:
    """The sampler after so many trials. Of a grid, whose trials wait already, it has nothing to do."""
    varied = (seed * 1_000_003 + drawn) % 2**32  # every process has a sampler of its own
    samplers: dict[str, Callable[[], Any]] = {
        "evolve": lambda: optuna.samplers.RandomSampler(seed=varied),
        "grid": lambda: optuna.samplers.RandomSampler(seed=varied),
        "random": lambda: optuna.samplers.RandomSampler(seed=varied),
        "qmc": lambda: optuna.samplers.QMCSampler(seed=seed, scramble=True),
        "tpe": lambda: optuna.samplers.TPESampler(seed=varied, constant_liar=True),
        "gp": lambda: optuna.samplers.GPSampler(seed=varied),
        "cmaes": lambda: optuna.samplers.CmaEsSampler(seed=varied),
    }
    return samplers[method]()


def _pruner(optuna: Any, name: str) -> Any:
    pruners = {
        "median": optuna.pruners.MedianPruner,
        "percentile": lambda: optuna.pruners.PercentilePruner(25.0),
        "successive_halving": optuna.pruners.SuccessiveHalvingPruner,
        "hyperband": optuna.pruners.HyperbandPruner,
    }
    return pruners.get(name, optuna.pruners.NopPruner)()


def enqueue(study: Any, settings: list[dict[str, Any]]) -> None:
    """Trials that wait, to be drawn in this order."""
    with _optuna():
        for each in settings:
            study.enqueue_trial(each)


def waiting(study: Any) -> list[Settings]:
    """Of the trials that wait, in the order in which they are drawn, what stands for their settings in the storage."""
    with _optuna() as optuna:
        trials = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,))
        return [trial.system_attrs.get("fixed_params", {}) for trial in trials]


def ask(study: Any, space: Space, number: int, method: str, seed: int) -> list[tuple[int, Settings]]:
    """The next trials, by number. What is drawn follows from the seed and the trials there are."""
    with _optuna() as optuna:
        study.sampler = _sampler(optuna, method, seed, len(study.get_trials(deepcopy=False)))
        trials = [study.ask() for _ in range(max(number, 0))]
        return [(trial.number, space.ask(trial)) for trial in trials]


def draw_again(study: Any, known: set[int]) -> None:
    """Trials that run but are none of the `known` ones fail, and wait again with the same settings."""
    with _optuna() as optuna:
        trials = study.get_trials(deepcopy=False)
        again = {trial.user_attrs.get(LOST) for trial in trials}
        for trial in trials:
            if trial.state != optuna.trial.TrialState.RUNNING or trial.number in known:
                continue
            if trial.number not in again:  # as of a process that ended before the trial had failed
                # All that it was to have: it may have ended before each of them was asked for.
                fixed = trial.system_attrs.get("fixed_params", {}) | trial.params
                study.enqueue_trial(fixed, user_attrs={LOST: trial.number})
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)


def states(study: Any) -> dict[int, str]:
    """By number of a trial: WAITING, RUNNING, COMPLETE, PRUNED or FAIL."""
    return {trial.number: trial.state.name for trial in study.get_trials(deepcopy=False)}


def steps(study: Any) -> dict[int, int]:
    """How many steps each trial has taken that has a result, of every seed; 0 of one that could not be trained."""
    ended = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    return {trial.number: trial.user_attrs.get("steps", 0) for trial in ended}


def report(study: Any, number: int, step: int, value: float, prune: bool) -> bool:
    """Notes a value during training. Whether the study's pruner ends the trial here, where `prune` asks for that."""
    with _optuna() as optuna:
        trial = optuna.trial.Trial(study, _id(study, number))
        if step not in study.get_trials(deepcopy=False)[number].intermediate_values:
            trial.report(value, step)
        return prune and trial.should_prune()


def tell(study: Any, number: int, value: float | None, facts: dict[str, Any], pruned: bool = False) -> None:
    """The result of a trial, unless it has one; None: it failed."""
    with _optuna() as optuna:
        if states(study)[number] != "RUNNING":
            return
        trial = optuna.trial.Trial(study, _id(study, number))
        for name, fact in facts.items():
            trial.set_user_attr(name, fact)
        state = optuna.trial.TrialState
        if pruned:
            study.tell(number, state=state.PRUNED)
        elif value is None:
            study.tell(number, state=state.FAIL)
        else:
            study.tell(number, value)


def _id(study: Any, number: int) -> int:
    return study.get_trials(deepcopy=False)[number]._trial_id


def importance(study: Any) -> dict[str, float]:
    """How much of the result each parameter accounts for; empty where Optuna cannot tell, or of fewer than FEWEST_RESULTS."""
    if list(states(study).values()).count("COMPLETE") < FEWEST_RESULTS:
        return {}
    with _optuna() as optuna, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # by which Optuna says that it tells them all the same
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
        except (ValueError, RuntimeError, UserWarning):  # of few results, or of those that are all the same
            return {}
