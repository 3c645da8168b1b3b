"""Tests of the trials of a study, which are stored under a unique name in Optuna's storage."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
import yaml

from rollax.cli.main import main
from rollax.errors import UsageError
from rollax.sweeps import optuna_study as drawing
from rollax.sweeps import results
from rollax.sweeps.study import (
    JOURNAL_FILE,
    OPTUNA_NAME_KEY,
    STUDY_FILE,
    Study,
    create_study,
    read_study_spec,
)
from rollax.sweeps.sweep_spec import SearchOptions, StudySpec

CONFIG = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "num_epochs": 1}
OPTIONS = {"total_steps": 256, "eval_episodes": 8, "tensorboard": False}
GAMMAS = (0.5, 0.9)


def spec(gammas: tuple[float, ...] = GAMMAS, **search: object) -> StudySpec:
    search = {"batch": 1, **search}
    return StudySpec(
        *("ppo", "probe/memory"),
        sweep={"gamma": gammas},
        config=CONFIG,
        options=OPTIONS,
        search=SearchOptions(**search),  # pyright: ignore[reportArgumentType]
    )


def database(folder: Path) -> str:
    return f"sqlite:///{folder}/trials.db"


def gammas(folder: Path) -> list[float]:
    return sorted(
        trial.settings["config.gamma"]
        for batch in Study(folder).list_batches()
        for trial in batch.trials
    )


def drawn(folder: Path) -> Path:
    """Draw all trials of a study, give each a result, and return the folder."""
    study = Study(folder)
    while study.draw():
        pass
    for batch in study.list_batches():
        for trial in batch.trials:
            drawing.tell_result(
                study.optuna_study, trial.number, 1.0, {"run": "run", "steps": 256, "scores": [1.0]}
            )
    return folder


def test_studies_with_the_same_folder_name_in_a_database(tmp_path: Path) -> None:
    """Studies in folders of the same name have separate trials, also if they run concurrently."""
    one = create_study(spec(storage=database(tmp_path)), tmp_path / "one" / "study")
    running = Study(one).draw()
    other = create_study(
        spec((0.1, 0.2, 0.3), storage=database(tmp_path)), tmp_path / "other" / "study"
    )
    assert gammas(drawn(other)) == [0.1, 0.2, 0.3]
    assert Study(one).list_batches() == running and Study(one).is_open(running[0])
    assert gammas(drawn(one)) == list(GAMMAS)
    shutil.rmtree(one)
    again = create_study(spec((0.7,), storage=database(tmp_path)), one)
    assert gammas(drawn(again)) == [0.7]
    assert [row.state for row in results.list_trial_results(Study(other))] == ["COMPLETE"] * 3


@pytest.mark.parametrize("in_database", [True, False])
def test_a_moved_study_continues(tmp_path: Path, in_database: bool) -> None:
    """It has another name, and other machines see the same trials."""
    before = create_study(
        spec(storage=database(tmp_path) if in_database else None), tmp_path / "before"
    )
    assert len(Study(before).draw()) == 1
    after = before.rename(tmp_path / "after")
    (tmp_path / "mounted").symlink_to(after)
    assert [len(study.draw()) for study in (Study(after), Study(tmp_path / "mounted"))] == [1, 0]
    assert gammas(drawn(after)) == list(GAMMAS)


def test_a_study_without_a_recorded_name(tmp_path: Path) -> None:
    """Its name in the storage is that of its folder."""
    folder = create_study(spec(storage=database(tmp_path)), tmp_path / "study")
    document = yaml.safe_load((folder / STUDY_FILE).read_text())
    optuna.delete_study(study_name=document.pop(OPTUNA_NAME_KEY), storage=database(tmp_path))
    (folder / STUDY_FILE).write_text(yaml.safe_dump(document))
    drawing.enqueue_trials(
        drawing.create_optuna_study(database(tmp_path), "rollax study", "max"),
        [{"config.gamma": gamma} for gamma in GAMMAS],
    )
    assert gammas(drawn(folder)) == list(GAMMAS)


def test_the_file_of_a_study_makes_another_study(tmp_path: Path) -> None:
    """It has a different name in the storage."""
    first = create_study(spec(storage=database(tmp_path)), tmp_path / "first")
    second = create_study(read_study_spec(first / STUDY_FILE), tmp_path / "second")
    assert gammas(drawn(second)) == list(GAMMAS)
    assert results.list_trial_results(Study(first)) == []


def test_a_missing_journal_raises_usage_error(tmp_path: Path) -> None:
    """It is not created again, because the batches would lack their trials.

    After it is restored, the study continues.
    """
    folder = drawn(create_study(spec(), tmp_path / "study"))
    copy = (folder / JOURNAL_FILE).rename(tmp_path / "copy")
    message = (
        f"{JOURNAL_FILE}, which contains the trials of the study, is missing.*Restore "
        "a copy of it, or start a new study"
    )
    with pytest.raises(UsageError, match=message):
        Study(folder)
    assert not (folder / JOURNAL_FILE).exists()
    copy.rename(folder / JOURNAL_FILE)
    assert [row.state for row in results.list_trial_results(Study(folder))] == ["COMPLETE"] * 2


@pytest.mark.parametrize("method", ["grid", "random"])
def test_an_old_copy_of_the_journal_raises_usage_error(tmp_path: Path, method: str) -> None:
    """It is from before a trial was drawn, which is then waiting or missing."""
    folder = create_study(spec(method=method, trials=2), tmp_path / "study")
    Study(folder).draw()
    copy = (folder / JOURNAL_FILE).read_bytes()
    drawn(folder)
    (folder / JOURNAL_FILE).write_bytes(copy)
    with pytest.raises(
        UsageError, match="lacks 1 of the 2 trials in .*, for example 1. Restore a newer copy of it"
    ):
        Study(folder)
    assert (folder / JOURNAL_FILE).read_bytes() == copy


def test_a_database_without_the_study_raises_usage_error(tmp_path: Path) -> None:
    """The error lists the existing studies, and no study is created."""
    folder = drawn(create_study(spec(storage=database(tmp_path)), tmp_path / "study"))
    (tmp_path / "trials.db").unlink()
    with pytest.raises(
        UsageError, match="does not contain the study 'rollax study .*', it is empty. Restore"
    ):
        Study(folder)
    create_study(spec(storage=database(tmp_path)), tmp_path / "another")
    with pytest.raises(
        UsageError,
        match="does not contain the study 'rollax study .*', only 'rollax another .*'. Restore",
    ):
        Study(folder)
    assert len(optuna.get_all_study_names(database(tmp_path))) == 1


# A study with a limit on the size of files, which fails as on a full disk.
FULL = """
import resource, signal, sys
from rollax.cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.name != "posix", reason="limits of files are of POSIX")
@pytest.mark.parametrize(("limit", "folders"), [(3_000, 0), (20_000, 1)])
def test_a_full_disk_during_a_study(tmp_path: Path, limit: int, folders: int) -> None:
    """The journal is cut within a line, or a run cannot be written.

    With space again, all settings are trained.
    """
    words = (
        "ppo probe/memory --num-envs 4 --num-steps 8 --num-minibatches 2 --total-steps "
        "256 --eval-episodes 4 --no-tensorboard"
    )
    words += (
        " --sweep.gamma 0.5 0.9 0.95 --sweep.hidden 256,256 4 --no-picture "
        f"--study-dir {tmp_path / 'study'}"
    )
    command = [sys.executable, "-c", FULL.format(limit=limit), "sweep", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert f"free some space, then continue with: rollax sweep {tmp_path / 'study'}" in done.stderr
    assert len(list((tmp_path / "study" / "batches").glob("*/batch.json"))) >= folders
    assert main(["sweep", str(tmp_path / "study"), "--no-picture"]) == 0
    found = results.list_trial_results(Study(tmp_path / "study"))
    assert [row.state for row in found] == ["COMPLETE"] * 6
    assert len({json.dumps(row.settings) for row in found}) == 6


@pytest.mark.parametrize("half", [b'{"op_code":5,"wor', b"x" * 70_000])
def test_an_incomplete_line_is_dropped(tmp_path: Path, half: bytes) -> None:
    """A process may end while it writes. New lines come after the last complete one."""
    folder = create_study(spec(), tmp_path / "study")
    with (folder / JOURNAL_FILE).open("ab") as file:
        file.write(half)
    assert gammas(drawn(folder)) == list(GAMMAS)
    assert all(json.loads(line) for line in (folder / JOURNAL_FILE).read_text().splitlines())


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:p4ss@p4ss@localhost:1/db",
        "postgresql://localhost:1/db?user=me&password=p4ss",
        "mysql+pymysql://me:p4ss/p4ss@localhost:1/db",
    ],
)
def test_the_password_of_a_database_is_not_printed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    address: str,
) -> None:
    """It may be anywhere in the address."""
    monkeypatch.chdir(tmp_path)
    words = (
        "ppo probe/memory --sweep.gamma 0.5 0.9 --total-steps 256 --num-envs 4 "
        "--num-steps 8 --num-minibatches 2"
    )
    assert main(["sweep", *words.split(), "--study-dir", "study", "--storage", address]) == 2
    told = "".join(capsys.readouterr())
    assert "localhost" in told or "://***" in told
    assert "p4ss" not in told
