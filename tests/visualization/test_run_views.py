"""Tests of `rollax.plot`, `rollax.render` and `rollax.report` in Python."""

import csv
import os
from pathlib import Path

import pytest

import rollax
from rollax.cli.main import main
from rollax.errors import UsageError


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> rollax.Result:
    folder = tmp_path_factory.mktemp("archive") / "run"
    options = rollax.RunOptions(
        total_steps=64, run_dir=folder, eval_episodes=4, eval_count=1, tensorboard=False
    )
    config = {"batch_size": 16, "grid": (4, 4)}
    return rollax.train("map_elites", "task/arm", config=config, options=options, quiet=True)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_figure_writes_no_file(run: Path, tmp_path: Path) -> None:
    before = sorted(run.rglob("*"))
    assert len(rollax.plot(run).axes) > 3
    assert len(rollax.plot([run], only="return", columns=1).axes) == 1
    assert sorted(run.rglob("*")) == before and list(tmp_path.iterdir()) == []


def test_a_figure_is_saved_to_the_given_path(run: Path, sweep: Path, tmp_path: Path) -> None:
    """The table is saved too, with the given labels."""
    figure = rollax.plot(
        [run, str(sweep)], path="figure.svg", only=["return"], label=["a", "b", "c"], csv=True
    )
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "c"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.csv", "figure.svg"]
    with open("figure.csv") as file:
        assert {row["label"] for row in csv.DictReader(file)} == {"a", "b", "c"}


def test_the_command_saves_the_same_figure(run: Path, tmp_path: Path) -> None:
    assert main(["plot", str(run), "--only", "return", "--out", "command.png"]) == 0
    rollax.plot(run, only="return", path="python.png")
    assert (tmp_path / "command.png").read_bytes() == (tmp_path / "python.png").read_bytes()


def test_bounds_of_aggregates_are_reported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rollax.plot(run, aggregate=True, normalize={"gymnax/CartPole-v1": (0, 500)})
    assert "normalized to [0, 1] from: gymnax/CartPole-v1 0 to 500" in capsys.readouterr().err
    rollax.plot(run, aggregate=True, quiet=True)
    assert capsys.readouterr().err == ""


def test_an_episode_is_rendered(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    animation = rollax.render(run, path="episode.gif", max_frames=4)
    assert animation.path == Path("episode.gif") and os.path.getsize(animation)
    assert animation._repr_html_().startswith("<img src=")
    assert "Using the checkpoint of" in capsys.readouterr().err
    rollax.render(run, path="episode.gif", max_frames=4, quiet=True)
    assert capsys.readouterr().err == ""


def test_a_report_is_written(run: Path, sweep: Path) -> None:
    page = rollax.report([run, sweep], path="page.html", label=["one", "two", "three"])
    assert page == Path("page.html") and "three" in page.read_text()


def test_archives_are_plotted_and_compared(
    archive: rollax.Result, run: Path, tmp_path: Path
) -> None:
    """One archive has a figure, two are compared, and runs without archives raise an error."""
    one = rollax.plot(archive, archive=True, path="archive.pdf")
    assert "elites in" in one.axes[0].get_title()
    assert (tmp_path / "archive.pdf").read_bytes().startswith(b"%PDF")
    assert "second minus first" in rollax.plot([archive] * 2, archive=True).axes[2].get_title()
    with pytest.raises(UsageError, match="ppo has no archive"):
        rollax.plot(run, archive=True)
    with pytest.raises(UsageError, match="archive draws no curves"):
        rollax.plot(archive, archive=True, only="return")
    assert rollax.compare_archives(archive, archive.folder).numbers()["better_a"] == 0
    merged = rollax.merge_archives([archive, archive.policy()])
    assert len(merged.elites()["fitness"]) == len(archive.policy().elites()["fitness"])
