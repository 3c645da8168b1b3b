"""Tests of received studies.

No command runs their code, writes elsewhere, hangs, or shows a password.
"""

import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml

import rollax
from fuzz.hostile import DEEP, ESCAPE, FORBIDDEN, contents, in_time
from rollax import api
from rollax.cli.main import main
from rollax.sweeps import launchers
from rollax.sweeps import optuna_study as drawing
from rollax.sweeps.study import Study, create_study
from rollax.sweeps.sweep_spec import SearchOptions, StudySpec

EVIL = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n"
CONFIG = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "num_epochs": 1}
OPTIONS = {"total_steps": 256, "eval_episodes": 8, "tensorboard": False}
pytestmark = pytest.mark.skipif(os.name != "posix", reason="links and pipes are of POSIX")


class Trained(Exception):
    """Raised where a worker would start."""


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with a working folder, whose module leaves a file when it is imported.

    Nothing is trained.
    """
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "evil_module.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(str(tmp_path / "here"))

    def trained(*_: Any, **__: Any) -> Any:
        raise rollax.UsageError("a run would have been trained here, which this test does not need")

    monkeypatch.setattr(api, "train", trained)
    monkeypatch.setattr(api, "resume", trained)
    yield tmp_path
    sys.modules.pop("evil_module", None)


@pytest.fixture
def outside(nowhere: Path) -> Path:
    (nowhere / "outside").mkdir()
    (nowhere / "outside" / "precious").write_text("precious")
    return nowhere / "outside"


def made(folder: Path, **search: Any) -> Path:
    """Return the folder of a new study with a batch that has not run."""
    spec = StudySpec(
        *("ppo", "probe/memory"),
        range={"gamma": (0.5, 0.9), "gae_lambda": (0.5, 0.9)},
        config=CONFIG,
        options=OPTIONS,
    )
    search = {"method": "random", "trials": 4, "batch": 2, **search}
    create_study(StudySpec(**{**vars(spec), "search": SearchOptions(**search)}), folder)
    Study(folder).draw()
    drawing.CREATED_STORAGES.clear()  # as in another process
    return folder


@pytest.fixture
def study(nowhere: Path) -> Path:
    return made(nowhere / "received" / "study")


def change(folder: Path, **values: Any) -> None:
    path = folder / "study.yaml"
    document = yaml.safe_load(path.read_text())
    document["search"] |= values.pop("search", {})
    path.write_text(yaml.safe_dump(document | values))


def change_batch(folder: Path, **values: Any) -> None:
    path = folder / "batches" / "0000" / "batch.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.fixture
def sweep(capsys: pytest.CaptureFixture, nowhere: Path) -> Callable[..., tuple[int, str]]:
    """Return a function that continues a study and returns its exit code and output.

    It fails if the command runs code, prints escape sequences or has a traceback.
    """

    def run(*words: Any) -> tuple[int, str]:
        capsys.readouterr()
        with in_time(60):
            code = main(["sweep", *map(str, words), "--no-picture"])
        out, err = capsys.readouterr()
        assert code in (0, 1, 2) and "Traceback" not in err, (code, err)
        assert not [letter for letter in FORBIDDEN if letter in out + err], out + err
        assert not (nowhere / "here" / "ran").exists(), "code ran"
        return code, out + err

    return run


def linked(name: str) -> Callable[[Path, Path], None]:
    def attack(folder: Path, outside: Path) -> None:
        target = outside / Path(name).name
        if (folder / name).exists():
            (folder / name).rename(target)
        (folder / name).symlink_to(target)

    return attack


def pipe(name: str) -> Callable[[Path, Path], None]:
    def attack(folder: Path, outside: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return attack


def foreign_run(folder: Path, outside: Path) -> None:
    """Make the batch's run a folder elsewhere, which must not be renamed."""
    path = os.path.relpath(outside, folder / "batches" / "0000")
    change_batch(folder, runs=[[path, [0]]])


def huge(folder: Path, outside: Path) -> None:
    os.truncate(folder / "batches" / "0000" / "batch.json", 20 * 10**9)


ATTACKS: dict[str, Callable[[Path, Path], None]] = {
    **{
        f"link {name}": linked(name)
        for name in ("journal.log", "study.yaml", ".lock", "batches", "batches/0000")
    },
    **{
        f"link {name}": linked(name)
        for name in ("batches/0000/run", "batches/0000/.lock", "batches/0000/batch.json")
    },
    "lock that leads nowhere": lambda folder, outside: (folder / "journal.log.lock").symlink_to(
        outside / "none"
    ),
    **{
        f"pipe {name}": pipe(name)
        for name in ("journal.log", "study.yaml", ".lock", "batches/0000/batch.json")
    },
    "foreign run": foreign_run,
    "huge journal": lambda folder, outside: os.truncate(folder / "journal.log", 20 * 10**9),
    "huge batch": huge,
    "deep batch": lambda folder, outside: (
        (folder / "batches" / "0000" / "batch.json").write_text(DEEP) and None
    ),
    "trials of others": lambda folder, outside: change_batch(
        folder, trials=[{"number": "x", "settings": []}]
    ),
    "no runs": lambda folder, outside: change_batch(folder, runs=[]),
    "escape in a setting": lambda folder, outside: change_batch(
        folder, trials=[{"number": 0, "settings": {"config.gamma": ESCAPE}}], runs=[["run", [0]]]
    ),
    "escape in the journal": lambda folder, outside: drawing.tell_result(
        Study(folder).optuna_study,
        0,
        None,
        {"problem": ESCAPE, "scores": {"a": 1}, "steps": "x", "run": 3, "settings": [ESCAPE]},
    ),
    "hard link": lambda folder, outside: os.link(folder / "journal.log", outside / "journal.log"),
}


@pytest.mark.parametrize("name", ATTACKS, ids=lambda name: name.replace(" ", "-"))
def test_attacks_on_studies(
    name: str, study: Path, outside: Path, sweep: Callable[..., tuple[int, str]]
) -> None:
    ATTACKS[name](study, outside)
    before = contents(outside)
    sweep(study)
    with in_time():
        try:
            rollax.sweep(study, quiet=True)
        except rollax.UsageError as error:
            assert len(str(error)) > 25
    assert contents(outside) == before


@pytest.mark.parametrize("name", ["workers", "workers/0.log"])
def test_output_of_workers_is_not_written_elsewhere(
    name: str, study: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder or file of the output is a link."""
    monkeypatch.setattr(
        launchers.subprocess, "Popen", lambda *_, **__: pytest.fail("a worker is started")
    )
    (study / name).parent.mkdir(exist_ok=True)
    (study / name).symlink_to(outside / "precious" if name.endswith(".log") else outside)
    before = contents(outside)
    assert main(["sweep", str(study), "--workers", "2"]) == 2
    assert contents(outside) == before


class Planted:
    """Object whose pickle creates a folder when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def ended(folder: Path) -> Study:
    """Return the study with a result for each of its trials."""
    study = Study(folder)
    for batch in study.list_batches():
        for trial in batch.trials:
            facts = {"run": "run", "steps": 256, "scores": [1.0]}
            drawing.tell_result(
                study.optuna_study, trial.number, sum(trial.settings.values()), facts
            )
    return study


@pytest.mark.parametrize("prefix", ["cma", "sepcma", "cmawm"])
def test_pickles_in_a_journal_are_not_read(nowhere: Path, prefix: str) -> None:
    """Optuna would unpickle the state of CMA-ES."""
    folder = made(nowhere / "study", method="cmaes", trials=64)
    planted = pickle.dumps(Planted(nowhere / "ran")).hex()
    study = Study(folder)
    for trial in study.optuna_study.get_trials(deepcopy=False):
        study.optuna_study._storage.set_trial_system_attr(
            trial._trial_id, f"{prefix}:optimizer:0", planted
        )
    for _ in range(3):
        ended(folder)
        assert Study(folder).draw()
    assert not (nowhere / "ran").exists()


def test_cma_es_learns_without_pickles(nowhere: Path) -> None:
    """Its state follows from the trials, so that no pickle is stored and processes agree."""
    folder = made(nowhere / "study", method="cmaes", trials=90, batch=6)
    for _ in range(14):
        study = ended(folder)
        assert study.draw()
    trials = study.optuna_study.get_trials(deepcopy=False)
    generations = [
        trial.system_attrs["cma:generation"]
        for trial in trials
        if "cma:generation" in trial.system_attrs
    ]
    assert max(generations) >= 8 and generations == sorted(generations)
    assert not [name for trial in trials for name in trial.system_attrs if "optimizer" in name]
    assert (
        min(sum(trial.params.values()) for trial in trials[-20:]) > 1.6
    )  # the largest sum of both is 1.8


@pytest.mark.parametrize("workers", ["1", "2"])
def test_modules_of_a_study_are_not_imported(
    study: Path,
    sweep: Callable[..., tuple[int, str]],
    workers: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither this process nor a worker imports modules because the study names them."""
    monkeypatch.setattr(
        launchers.subprocess, "Popen", lambda *_, **__: pytest.fail("a worker is started")
    )
    change(study, imports=["evil_module"])
    code, told = sweep(study, "--workers", workers)
    assert code == 2 and "--import evil_module" in told
    file = shutil.copy(study / "study.yaml", "study.yaml")
    document = yaml.safe_load(Path(file).read_text())
    del document["optuna_study"]
    Path(file).write_text(yaml.safe_dump(document))
    code, told = sweep(file, "--workers", workers)
    assert code == 2 and "--import evil_module" in told
    change(study, imports=[], environment="gymnasium/evil_module:Name-v0")
    code, told = sweep(study, "--workers", workers)
    assert code == 2 and "evil_module" not in sys.modules


@pytest.mark.parametrize(
    "words", [["--import", "evil_module"], ["--trust"]], ids=["import", "trust"]
)
def test_workers_import_modules_that_the_user_names(
    study: Path, nowhere: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = []

    class Ended:
        returncode = 0

        def __init__(self, command: list[str], **_: Any) -> None:
            commands.append(command)

        def poll(self) -> int:
            return 0

        def wait(self, seconds: float) -> int:
            return 0

    monkeypatch.setattr(launchers.subprocess, "Popen", Ended)
    monkeypatch.setattr(launchers, "_list_gpus", list)
    change(study, imports=["evil_module"])
    main(["sweep", str(study), "--workers", "2", "--no-picture", *words])
    assert (nowhere / "here" / "ran").exists() and len(commands) == 2
    for command in commands:
        assert command[command.index("--import") + 1] == "evil_module" and command[1] == "-P"
        assert ("--trust" in command) == ("--trust" in words)


def test_a_foreign_database_is_not_opened(
    study: Path, outside: Path, sweep: Callable[..., tuple[int, str]]
) -> None:
    """A database named by a folder is neither opened nor created.

    With --trust, a study in a database continues.
    """
    (outside / "journal.log").write_bytes((study / "journal.log").read_bytes())
    for storage in (
        f"sqlite:///{outside}/precious",
        f"sqlite:///{outside}/new.db",
        f"{outside}/journal.log",
        f"{outside}/new",
    ):
        change(study, search={"storage": storage})
        document = yaml.safe_load((study / "study.yaml").read_text())
        del document["optuna_study"]
        Path("study.yaml").write_text(yaml.safe_dump(document))
        before = contents(outside)
        for place in (study, "study.yaml"):
            code, told = sweep(place)
            assert code == 2 and "--trust" in told
        assert contents(outside) == before
    change(study, search={"storage": "postgresql://me:s3cret@localhost:1/db?password=s3cret"})
    code, told = sweep(study, "--workers", "2")
    assert code == 2 and "s3cret" not in told and "--trust" in told
    code, told = sweep(study, "--trust")
    assert code == 2 and "s3cret" not in told
    own = made(outside.parent / "own", storage=f"sqlite:///{outside / 'own.db'}")
    assert sweep(own)[0] == 2
    code, told = sweep(own, "--trust")
    assert "--trust" not in told
    assert optuna.get_all_study_names(f"sqlite:///{outside / 'own.db'}")


def test_the_command_that_creates_a_study_trusts_its_database(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers also do.

    Their arguments do not contain the address, which may have a password.
    """
    commands: list[list[str]] = []

    def started(command: list[str], **_: Any) -> None:
        commands.append(command)
        raise Trained

    monkeypatch.setattr(launchers, "_list_gpus", list)
    monkeypatch.setattr(launchers.subprocess, "Popen", started)
    words = (
        "ppo probe/memory --sweep.gamma 0.5 0.9 --study-dir study --workers 2 "
        "--num-envs 4 --num-steps 8 --num-minibatches 2"
    )
    with pytest.raises(Trained):
        main(
            [
                "sweep",
                *words.split(),
                "--total-steps",
                "256",
                "--storage",
                f"sqlite:///{nowhere}/trials.db",
            ]
        )
    assert "--trust" in commands[0] and not [word for word in commands[0] if "trials.db" in word]
