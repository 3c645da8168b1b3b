"""Tests of the commands for archives, and of their errors for other algorithms."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

import rollax as library
from rollax.cli.main import main
from rollax.cli.parsing.dynamic_options import split_number_lists

Rollax = Callable[..., Any]
SMALL = [
    "--config.batch-size",
    "32",
    "--config.num-iterations",
    "2",
    "--config.grid",
    "6",
    "6",
    "--total-steps",
    "320",
]
SMALL += ["--eval-episodes", "4", "--eval-count", "1", "--no-tensorboard"]
MAZE = [
    "control/point-maze",
    "--env.time-limit",
    "20",
    "--env.start-spread",
    "0.15",
    "--network.hidden",
    "8",
]


@pytest.fixture(scope="module")
def folders(compile_once: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("archives")
    kinds = {
        "maze": ["map_elites", *MAZE],
        "again": ["map_elites", *MAZE, "--seed", "5"],
        "arm": ["dns", "task/arm"],
    }
    for name, words in kinds.items():
        assert main(["train", *words, *SMALL, "--run-dir", str(base / name)]) == 0
    return {name: base / name for name in kinds}


def test_eval_reports_the_corrected_archive(rollax: Rollax, folders: dict[str, Path]) -> None:
    """Both the text and the JSON object have it. The numbers of the policy are unchanged."""
    outcome = rollax("eval", folders["maze"], "--episodes", "3", "--seed", "7")
    assert outcome.code == 0 and outcome.err == ""
    numbers = outcome.object
    policy = library.load(folders["maze"])
    expected, _ = policy.correct_archive(3, jax.random.key(7))
    assert {name: numbers[name] for name in expected} == pytest.approx(expected)
    assert (
        numbers["coverage"] == pytest.approx(len(policy.elites()["place"]) / 36)
        and numbers["episodes"] == 3
    )
    text = "\n".join(outcome.lines[:-1])
    assert f"corrected archive ({numbers['elites']} elites, 3 episodes each)" in text
    assert (
        f"{numbers['kept_cell']:.1%} of elites kept their cell" in text
        and "  archive  coverage" in text
    )
    alone = rollax(
        "eval", folders["maze"], "--episodes", "3", "--seed", "7", "--json", "--no-archive"
    ).object
    assert "corrected_qd_score" not in alone and alone["return_mean"] == numbers["return_mean"]


def test_default_numbers_of_episodes_of_eval(
    rollax: Rollax, folders: dict[str, Path], finished: Path
) -> None:
    numbers = rollax("eval", folders["maze"], "--json").object
    assert (numbers["episodes"], numbers["episodes_per_elite"]) == (128, 16)
    exact = rollax("eval", folders["arm"], "--json").object
    assert exact["episodes_per_elite"] == 1 and exact["corrected_qd_score"] == pytest.approx(
        exact["qd_score"]
    )
    assert "corrected_qd_score" not in rollax("eval", finished, "--json").object


def test_eval_of_a_closed_form_reports_no_episodes(
    rollax: Rollax, folders: dict[str, Path]
) -> None:
    """This holds for the best elite and for the archive."""
    text = rollax("eval", folders["arm"]).lines[:-1]
    assert text[0].endswith(": a closed form, without episodes") and text[1].startswith(
        "  return   "
    )
    assert not [
        line
        for line in text
        if "length" in line or "interquartile" in line or "episodes each" in line
    ]
    assert any("elites, a closed form)" in line for line in text)


def test_an_empty_archive(rollax: Rollax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start there is nothing to correct, and only curves are plotted."""
    words = [
        "train",
        "map_elites",
        *MAZE,
        *SMALL,
        "--run-dir",
        tmp_path / "kept",
        "--keep-last",
        "9",
    ]
    assert rollax(*words).code == 0
    numbers = rollax("eval", tmp_path / "kept", "--checkpoint", "0", "--json").object
    assert numbers["coverage"] == 0 and "corrected_qd_score" not in numbers
    monkeypatch.setattr(
        "rollax.visualization.archives.archive_figure.load",
        lambda folder: library.load(folder, checkpoint=0),
    )
    outcome = rollax("plot", tmp_path / "kept")
    assert outcome.code == 0 and [Path(line).name for line in outcome.lines] == ["curves.png"]


@pytest.mark.quick
def test_plot_draws_archives(rollax: Rollax, folders: dict[str, Path], finished: Path) -> None:
    one = rollax("plot", folders["maze"])
    assert [Path(line).name for line in one.lines] == ["curves.png", "archive.png", "archive.csv"]
    two = rollax("plot", folders["maze"], folders["again"])
    assert two.lines == ["comparison.png", "comparison-archives.png"] and all(
        Path(line).exists() for line in two.lines
    )
    others = rollax("plot", folders["maze"], folders["arm"])  # other environments: curves only
    assert others.lines == ["comparison-2.png"] and len(others.err.splitlines()) == 1
    assert others.err.startswith("warning: The archives are not drawn side by side: ")
    assert rollax("plot", folders["maze"], finished).lines == ["comparison-3.png"]
    assert rollax("plot", folders["maze"], folders["again"], "--out", "curves.svg").lines == [
        "curves.svg"
    ]


def test_render_writes_a_contact_sheet(rollax: Rollax, folders: dict[str, Path]) -> None:
    outcome = rollax("render", folders["maze"], "--sheet", 4)
    assert outcome.code == 0 and Path(outcome.lines[0]) == folders["maze"] / "figures" / "sheet.png"
    assert rollax("render", folders["maze"], "--sheet", 4, "--out", "mine.png").lines == [
        "mine.png"
    ]


@pytest.mark.parametrize(
    ("run", "words", "message"),
    [
        ("maze", ["--sheet", "0"], "sheet must be between 1 and 144 elites, got 0"),
        ("maze", ["--sheet", "4", "--out", "sheet.gif"], "must end in .png"),
        ("maze", ["--sheet", "4", "--text"], "Remove --text"),
        ("maze", ["--sheet", "4", "--cell", "1", "2"], "Remove cell"),
        ("maze", ["--sheet", "4", "--descriptor", "1", "2"], "Remove descriptor"),
        ("maze", ["--sheet", "4", "--episodes", "2"], "Remove episodes"),
        ("arm", ["--sheet", "4"], "task/arm cannot be drawn"),
        ("ppo", ["--sheet", "4"], "ppo has no archive"),
    ],
)
def test_sheets_that_cannot_be_drawn_are_refused(
    rollax: Rollax,
    folders: dict[str, Path],
    finished: Path,
    run: str,
    words: list[str],
    message: str,
) -> None:
    outcome = rollax("render", folders.get(run, finished), *words)
    assert (
        outcome.code == 2
        and message in outcome.err
        and outcome.out == ""
        and list(Path().iterdir()) == []
    )


def test_numbers_of_a_cell_may_have_commas(rollax: Rollax, folders: dict[str, Path]) -> None:
    """Commas are split like spaces in these options only."""
    assert split_number_lists(["a,b", "--cell", "3,4", "--descriptor", "-0.5,1e-3", "1,2/run"]) == (
        ["a,b", "--cell", "3", "4", "--descriptor", "-0.5", "1e-3", "1,2/run"]
    )
    outcome = rollax("render", folders["maze"], "--descriptor", "0.5,0.5", "--out", "apart.gif")
    assert outcome.code == 0, outcome.err
