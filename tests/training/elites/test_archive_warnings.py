"""Tests of warnings about archives: fitness below thresholds, and negative QD scores."""

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollax
from rollax.errors import UsageError
from rollax.training.elites import selection
from rollax.training.elites.archive_warnings import (
    describe_negative_qd_score,
    describe_unreached_threshold,
    suggest_threshold,
)

SMALL: dict[str, Any] = {"batch_size": 32, "num_iterations": 2, "num_emitters": 4, "grid": (6, 6)}
OPTIONS = {"eval_count": 1, "eval_episodes": 4, "tensorboard": False}


def train(
    folder: Path, algorithm: str = "cma_mae", seed: int = 0, **settings: Any
) -> rollax.Policy:
    options = OPTIONS | {"run_dir": folder}
    environment = "task/arm" if algorithm == "cma_mae" else "task/sphere"
    result = rollax.train(
        algorithm,
        environment,
        config=SMALL | settings,
        total_steps=640,
        options=options,
        seed=seed,
        quiet=True,
    )
    return rollax.load(result.folder)


def test_elites_do_not_need_to_exceed_a_threshold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Thresholds start at 0, which the fitness of the arm never exceeds.

    The run has elites, and a warning names a suitable start.
    """
    policy = train(tmp_path / "run")
    table = policy.elites()
    assert len(table["fitness"]) > 3 and np.all(table["fitness"] <= 0)
    told = "".join(capsys.readouterr())
    assert (
        "warning: No solution of the first update has a fitness above threshold_start (0)" in told
    )
    assert told.count("Set config.threshold_start below the lowest fitness, such as -") == 1
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    lines = [line for line in lines if "new" in line]
    assert lines[0]["below_threshold"] == 64 and lines[0]["new"] > 3 and lines[0]["coverage"] > 0
    assert lines[-1]["fitness_lowest"] == pytest.approx(table["fitness"].min())


@pytest.mark.parametrize(("metric", "is_warned"), [("qd_score", True), ("fitness_best", False)])
def test_selection_by_a_negative_qd_score_is_warned_of(
    metric: str, is_warned: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It falls with every elite, so members with few elites would be copied."""
    rollax.train(
        "me_es",
        "task/arm",
        config={"batch_size": 12, "num_iterations": 2, "grid": (6, 6)},
        total_steps=48,
        seeds=2,
        evolve={"sigma": (0.1, 0.5)},
        options=OPTIONS | {"eval_count": 0, "run_dir": tmp_path / "run", "evolve_metric": metric},
        quiet=True,
    )
    told = "".join(capsys.readouterr())
    assert ("warning: qd_score is negative" in told) == is_warned


def test_which_qd_scores_are_negative() -> None:
    assert describe_negative_qd_score({"qd_score": np.array([3.0, -0.1])}) is not None
    assert describe_negative_qd_score({"qd_score": np.array([3.0, 0.0])}) is None
    assert describe_negative_qd_score({"moqd_score": -1.0}) is None


@pytest.mark.parametrize("algorithm", ["cma_mae", "cma_maega"])
def test_without_rejections_there_is_no_warning(
    algorithm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run", algorithm, threshold_start=-200.0)
    assert "threshold" not in "".join(capsys.readouterr())


def test_the_threshold_warning_of_ask_and_tell() -> None:
    """It is raised once, after the first batch, and names a suitable start."""

    def score(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return -np.sum(x**2, axis=1) - 1, np.tanh(x[:, :2])

    search = rollax.AskTell("cma_mae", 5, (-1, -1), (1, 1))
    with pytest.warns(UserWarning, match=r"above threshold_start \(0\).*such as -\d") as told:
        values = search.tell(*score(search.ask()))
    assert values["below_threshold"] == 540 and values["new"] == len(search.elites()["fitness"]) > 3
    start = float(str(told[0].message).split("such as ")[1].split(" ")[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search.tell(*score(search.ask()))
        other = rollax.AskTell("cma_mae", 5, (-1, -1), (1, 1), config={"threshold_start": start})
        values = other.tell(*score(other.ask()))
        assert values["below_threshold"] == 0
        rollax.AskTell("cma_me", 5, (-1, -1), (1, 1)).ask()


def test_the_suggested_threshold_is_below_the_lowest_fitness() -> None:
    for lowest in (-1e6, -13.2, -1.0, -1e-4, 0.0, 0.3, 250.0):
        assert suggest_threshold(lowest) < lowest
    assert suggest_threshold(-13.2) == -15
    assert describe_unreached_threshold({"coverage": 0.1}, 0.0, 64) is None
    first = {
        "below_threshold": np.array([64, 60]),
        "nonfinite": np.array([0, 4]),
        "fitness_lowest": np.array([-3.0, -7.0]),
    }
    assert "such as -7.7 (the lowest so far is -7)" in str(
        describe_unreached_threshold(first, None, 64)
    )
    assert (
        describe_unreached_threshold(first | {"below_threshold": np.array([10, 20])}, 0.0, 64)
        is None
    )
    nothing = {"below_threshold": 0.0, "nonfinite": 64.0, "fitness_lowest": np.nan}
    assert describe_unreached_threshold(nothing, 0.0, 64) is None, "thresholds are not the cause"


def test_merged_thresholds_are_the_largest(tmp_path: Path) -> None:
    """Compare each cell, also after loading, and if one of the archives has no thresholds."""
    settings = {"threshold_start": -3.0, "archive_learning_rate": 0.2}
    a, b = (train(tmp_path / f"run-{seed}", seed=seed, **settings) for seed in (0, 1))
    merged = rollax.merge_archives([a, b], folder=tmp_path / "merged")
    expected = np.maximum(a.state.archive.threshold, b.state.archive.threshold)
    assert np.any(expected > a.state.archive.threshold) and np.any(expected > -3.0)
    for policy in (merged, rollax.load(tmp_path / "merged")):
        archive, state = selection.get_archive(policy)
        np.testing.assert_array_equal(archive.thresholds(state), expected)
    plain = {name: value for name, value in SMALL.items() if name != "num_emitters"}
    options = OPTIONS | {"run_dir": tmp_path / "plain"}
    other = rollax.train(
        "map_elites", "task/arm", config=plain, total_steps=640, options=options, quiet=True
    )
    both = rollax.merge_archives([a, other.folder])
    np.testing.assert_array_equal(both.state.archive.threshold, a.state.archive.threshold)
    assert len(both.elites()["place"]) >= len(a.elites()["place"])


def test_the_error_of_an_empty_archive_names_the_cause(tmp_path: Path) -> None:
    """No solution is finite, or no solution was evaluated."""
    policy = train(tmp_path / "run")
    archive, state = selection.get_archive(policy)
    empty = policy.algorithm.archived.with_archive(policy.state, archive.empty(state))
    for step, message in (
        (640, "no solution had a finite fitness and descriptor. Check the rewards"),
        (0, "Load a later"),
    ):
        with pytest.raises(UsageError, match=message):
            dataclasses.replace(policy, state=empty, step=step).elites()
