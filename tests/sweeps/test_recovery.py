"""Tests of studies that continue after their worker ended or their disk was full."""

import errno
import fcntl
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

import rollax
from rollax.cli.main import main
from rollax.errors import UsageError
from rollax.sweeps import optuna_study as drawing
from rollax.sweeps import results
from rollax.sweeps.study import Study, create_study
from rollax.sweeps.sweep_spec import StudySpec
from rollax.training.checkpoints.store import Checkpoints, CheckpointSaveError
from rollax.training.run_folder import layout
from rollax.training.run_folder.layout import CONFIG_FILE
from rollax.training.run_folder.metric_sinks import read_metrics

CONFIG = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "num_epochs": 1}
OPTIONS = {"total_steps": 256, "eval_episodes": 8, "eval_count": 4, "tensorboard": False}
MEMORY, CONTINUOUS = ("ppo", "probe/memory"), ("ppo", "probe/continuous")


@pytest.fixture
def study(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes a study of two values of gamma, trained in one program."""

    def made(task: tuple[str, str] = MEMORY, **changed: Any) -> Path:
        given = {
            "sweep": {"gamma": (0.9, 0.99)},
            "config": CONFIG,
            "network": {"hidden": (8,)},
            "options": OPTIONS,
        }
        return create_study(StudySpec(*task, **given | changed), tmp_path / "study")

    return made


@pytest.mark.parametrize(
    "batch", [{"gamma": (0.9, 0.99)}, {"num_epochs": (1,)}], ids=["population", "single"]
)
def test_a_last_checkpoint_that_was_not_written(
    study: Any, monkeypatch: pytest.MonkeyPatch, batch: dict[str, Any]
) -> None:
    """The evaluation is recorded before, so a trial has the score of its last policy."""
    config = {name: value for name, value in CONFIG.items() if name not in batch} | {
        "learning_rate": 0.003
    }
    folder = study(
        CONTINUOUS, sweep=batch, config=config, options=OPTIONS | {"checkpoint_steps": 224}
    )
    write = Checkpoints._write_files

    def ends(self: Checkpoints, summary: Any, arrays: Any) -> None:
        if summary.step == 256:
            raise OSError("the process ends here")
        write(self, summary, arrays)

    with monkeypatch.context() as patched, pytest.raises(CheckpointSaveError):
        patched.setattr(Checkpoints, "_write_files", ends)
        rollax.sweep(folder, quiet=True)
    found = rollax.sweep(folder, quiet=True)
    (run,) = {row.run for row in found.rows}
    told = [
        line
        for line in read_metrics(folder / str(run) / "metrics.jsonl")
        if line.get("event") == "evaluation"
    ]
    assert [line["step"] for line in told] == [0, 64, 128, 192, 256]
    last = told[-1].get("return_members", [told[-1]["return_mean"]])
    assert {
        row.number: row.value for row in results.list_trial_results(Study(folder))
    } == pytest.approx(dict(enumerate(last)))


def test_a_full_disk_when_a_run_starts(
    study: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The settings do not fail. With space again they are trained."""
    folder = study()

    def full(run: Path, spec: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(run / CONFIG_FILE))

    with monkeypatch.context() as patched:
        patched.setattr(layout, "write_spec", full)
        assert main(["sweep", str(folder), "--no-picture"]) == 1
    assert f"free some space, then continue with: rollax sweep {folder}" in capsys.readouterr().err
    assert [row.state for row in results.list_trial_results(Study(folder))] == ["RUNNING"] * 2
    assert [row.state for row in rollax.sweep(folder, quiet=True).rows] == ["COMPLETE"] * 2


def test_a_run_folder_without_config(study: Any) -> None:
    """The process ended between the lock and config.yaml. The folder is renamed."""
    folder = study()
    (batch,) = Study(folder).draw()
    (batch.folder / "run").mkdir()
    (batch.folder / "run" / ".lock").touch()
    assert [row.state for row in rollax.sweep(folder, quiet=True).rows] == ["COMPLETE"] * 2
    assert (batch.folder / "unfinished_run" / ".lock").is_file() and (
        batch.folder / "run" / CONFIG_FILE
    ).is_file()


@pytest.mark.parametrize(
    "moment", ["between two suggestions", "between the new trial and the end of the old one"]
)
def test_no_combination_of_a_grid_is_lost(
    study: Any, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The process ends while it draws a trial, or while it draws a lost trial again."""
    values = {"gamma": (0.1, 0.5, 0.9), "gae_lambda": (0.91, 0.95)}
    folder = study(sweep=values)
    one = Study(folder)
    trial, (first, *_) = one.optuna_study.ask(), one.space
    trial.suggest_categorical(first.name, list(first.labels))
    if moment != "between two suggestions":
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(optuna.Study, "tell", interrupted)
            one.draw()
    while Study(folder).draw():
        pass
    drawn = [trial.settings for batch in Study(folder).list_batches() for trial in batch.trials]
    combinations = itertools.product(*values.values())
    assert sorted((each["config.gamma"], each["config.gae_lambda"]) for each in drawn) == sorted(
        combinations
    )


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_trials_without_a_batch_are_drawn_again(tmp_path: Path) -> None:
    """Their process ended before it wrote the batch."""
    spec = StudySpec(*MEMORY, sweep={"gamma": (0.1, 0.5, 0.9)}, config=CONFIG, options=OPTIONS)
    folder = create_study(spec, tmp_path / "study")
    study = Study(folder)
    drawing.ask_trials(study.optuna_study, study.space, 2, "grid", 0)
    (batch,) = Study(folder).draw()
    assert sorted(trial.settings["config.gamma"] for trial in batch.trials) == [0.1, 0.5, 0.9]
    assert [
        trial.state.name for trial in Study(folder).optuna_study.get_trials(deepcopy=False)
    ].count("FAIL") == 2


def test_a_worker_without_a_package_draws_no_trials(
    study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would fail, while other workers can train them."""
    monkeypatch.setattr("rollax.training.loop.installed_version", lambda package: "1.0")
    folder = study(options=OPTIONS | {"wandb": "project"})
    with (
        monkeypatch.context() as patched,
        pytest.raises(UsageError, match="wandb is not installed"),
    ):
        patched.setattr("rollax.training.loop.installed_version", lambda package: None)
        rollax.sweep(folder, quiet=True)
    assert results.list_trial_results(Study(folder)) == []


def test_a_file_system_without_locks_raises_usage_error(
    study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for a lock would never end."""
    folder = study()

    def refuses(file: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuses)
    with pytest.raises(UsageError, match=r"cannot be locked .* No locks available"):
        rollax.sweep(folder, quiet=True)
