"""Tests of the end of a study: table, figure, and the metric of its ranking."""

from pathlib import Path
from typing import Any

import pytest

import rollax
from rollax import RunOptions, UsageError, api
from rollax.cli.main import main
from rollax.sweeps.study import Study
from rollax.sweeps.sweep_spec import StudySpec

CONFIG = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "num_epochs": 1}
OPTIONS = {"total_steps": 64, "eval_episodes": 8, "eval_count": 1, "tensorboard": False}
GIVEN: dict[str, Any] = {"config": CONFIG, "network": {"hidden": (8,)}, "options": OPTIONS}
MEMORY = ("ppo", "probe/memory")
ARCHIVE = StudySpec("map_elites", "task/arm", sweep={"iso_sigma": [0.1, 0.2]})


def test_a_sweep_in_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output is that of the command, and empty with quiet=True."""
    folder = tmp_path / "study"
    found = rollax.sweep(*MEMORY, sweep={"gamma": (0.5, 0.9)}, folder=folder, **GIVEN)
    told = capsys.readouterr().out
    assert f"study {folder}" in told and "return_mean by setting:" in told and "gamma 0.5" in told
    assert (
        f"  {folder / 'study.png'}" in told.splitlines()
        and (folder / "study.png").stat().st_size > 10_000
    )
    assert main(["sweep", str(folder), "--no-picture"]) == 0
    again = capsys.readouterr().out
    table = told[
        told.index("return_mean by setting:") : told.index(str(folder / "study.png"))
    ].rstrip()
    assert table in again and "study.png" not in again
    (folder / "study.png").unlink()
    assert rollax.sweep(folder, quiet=True, picture=False).best == found.best
    assert capsys.readouterr().out == "" and not (folder / "study.png").exists()
    with pytest.raises(UsageError, match=r"picture \('no'\) must be True or False"):
        rollax.sweep(folder, picture="no")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_studies_have_quiet_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    """Dashboards such as Weights & Biases print in the runs of a study."""
    train, received = api.train, []

    def train_and_record(*arguments: Any, **keywords: Any) -> Any:
        received.append(keywords["quiet"])
        return train(*arguments, **keywords)

    monkeypatch.setattr(api, "train", train_and_record)
    rollax.sweep(
        *MEMORY, sweep={"gamma": (0.5,)}, folder=tmp_path / "s", quiet=quiet, picture=False, **GIVEN
    )
    assert received == [quiet]


def metric_of(folder: Path, **given: Any) -> str:
    """Return the metric of a new study, which trains nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rollax.sweeps.sweep_session.launch_workers", lambda *_: None)
        rollax.sweep(
            "map_elites", "task/arm", sweep=ARCHIVE.sweep, folder=folder, quiet=True, **given
        )
    return Study(folder).metric


def test_archives_are_ranked_by_their_score(tmp_path: Path) -> None:
    assert ARCHIVE.with_ranking_metric().options == {"best_metric": "qd_score"}
    assert StudySpec("mome", "task/rastrigin-multi").with_ranking_metric().options == {
        "best_metric": "moqd_score"
    }
    assert StudySpec(*MEMORY).with_ranking_metric() == StudySpec(*MEMORY)
    assert metric_of(tmp_path / "default") == "qd_score"
    assert metric_of(tmp_path / "options", options=RunOptions(total_steps=8192)) == "qd_score"
    assert metric_of(tmp_path / "given", options={"best_metric": "return_mean"}) == "return_mean"


def test_how_to_continue_an_unfinished_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python code prints a call, and the command line prints a command."""
    monkeypatch.setattr("rollax.sweeps.sweep_session.launch_workers", lambda *_: None)
    folder = tmp_path / "study"
    swept = rollax.sweep(*MEMORY, sweep={"gamma": (0.5, 0.9)}, folder=folder, **GIVEN)
    assert f"Continue with: rollax.sweep({str(folder)!r})" in capsys.readouterr().out
    assert rollax.sweep(swept, quiet=True).folder == folder and Path(swept) == folder
    assert main(["sweep", str(folder)]) == 1  # no trial has a result
    assert f"Continue with: rollax sweep {folder}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "metric"), [((), "qd_score"), (("--best-metric", "return_mean"), "return_mean")]
)
def test_the_default_metric_of_archives_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], metric: str
) -> None:
    monkeypatch.setattr("rollax.sweeps.sweep_session.launch_workers", lambda *_: None)
    folder = tmp_path / "study"
    assert (
        main(
            [
                "sweep",
                "map_elites",
                "task/arm",
                "--sweep.iso-sigma",
                "0.1",
                "0.2",
                "--study-dir",
                str(folder),
                *words,
            ]
        )
        == 1
    )
    assert Study(folder).metric == metric


def test_a_study_file_without_a_metric(tmp_path: Path) -> None:
    """Such studies were ranked by the return of the best elite."""
    assert metric_of(tmp_path / "study") == "qd_score"
    path = tmp_path / "study" / "study.yaml"
    path.write_text(path.read_text().replace("  best_metric: qd_score\n", "  eval_count: 10\n"))
    assert Study(tmp_path / "study").metric == "return_mean"
