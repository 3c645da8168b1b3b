"""Tests of finding runs, and of reading them as tables."""

import json
import re
import shutil
import sys

import numpy as np
import pytest

import rollax
from rollax.errors import UsageError
from rollax.runtime.installation import install_command
from rollax.training.run_folder.metric_sinks import read_metrics
from rollax.training.run_folder.tables import Tables, find_runs


@pytest.fixture
def runs(undisturbed, tmp_path):
    """Return a folder with two runs among other files. One has policies of opponents."""
    for name in ("a/first", "b/deeper/second"):
        shutil.copytree(undisturbed, tmp_path / name, ignore=shutil.ignore_patterns("checkpoints"))
    shutil.copytree(
        undisturbed,
        tmp_path / "a/first/opponents/other",
        ignore=shutil.ignore_patterns("checkpoints"),
    )
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "b" / "circle").symlink_to(tmp_path)
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_runs_are_found_by_folder_and_pattern(runs, monkeypatch):
    first, second = runs / "a" / "first", runs / "b" / "deeper" / "second"
    assert find_runs([first]) == [first]
    assert find_runs([runs]) == [first, second]
    # In the given order, without duplicates.
    assert find_runs([runs / "b", first, runs / "a"]) == [second, first]
    monkeypatch.chdir(runs)
    notes = []
    assert [path.resolve() for path in find_runs(["*"], notes.append)] == [first, second]
    assert len(notes) == 1 and "empty" in notes[0] and "notes.txt" in notes[0]


def test_a_link_to_a_run_is_a_run(runs):
    (runs / "empty" / "link").symlink_to(runs / "a" / "first")
    assert find_runs([runs / "empty"]) == [runs / "empty" / "link"]
    assert len(find_runs([runs])) == 2  # without duplicates


@pytest.mark.parametrize("name", ["empty", "notes.txt"])
def test_folders_without_runs_raise_usage_error(runs, name):
    with pytest.raises(UsageError, match=f"{name} is not a run and contains no runs"):
        find_runs([runs / name])
    with pytest.raises(UsageError, match="the folder does not exist"):
        find_runs([runs, runs / "nowhere"])
    with pytest.raises(UsageError, match="the folder does not exist"):
        find_runs([runs / "n*where"])


def test_tables_of_a_single_run(undisturbed):
    settings, metrics, evaluations = rollax.read(undisturbed)
    (row,) = settings.to_dict("records")
    assert (row["run"], row["algorithm"], row["environment"]) == (
        str(undisturbed),
        "ppo",
        "probe/memory",
    )
    assert row["config.num_envs"] > 0 and "network.hidden" in row and row["seed"] == 0
    lines = [line for line in read_metrics(undisturbed / "metrics.jsonl") if "event" not in line]
    assert metrics["step"].tolist() == [line["step"] for line in lines]
    assert metrics["entropy"].tolist() == [line["entropy"] for line in lines]
    with np.load(undisturbed / "evaluations.npz") as file:
        returns, steps = file["returns"], file["step"]
    assert evaluations["return"].to_numpy() == pytest.approx(returns.ravel())
    assert evaluations["step"].tolist() == np.repeat(steps, returns.shape[1]).tolist()
    assert evaluations["episode"].tolist() == list(range(returns.shape[1])) * len(steps)
    assert evaluations["wall_time"].notna().all() and evaluations["length"].gt(0).all()


def test_tables_of_members_and_of_several_runs(train, undisturbed):
    folder = train("sweep", updates=2, sweep={"learning_rate": [0.001, 0.01]}, seeds=2).folder
    settings, metrics, evaluations = rollax.read([folder, undisturbed])
    own = settings[settings["run"] == str(folder)]
    assert own[["config.learning_rate", "seed"]].to_numpy().tolist() == [
        [0.001, 0],
        [0.001, 1],
        [0.01, 0],
        [0.01, 1],
    ]
    lines = [line for line in read_metrics(folder / "metrics.jsonl") if "event" not in line]
    of_third = metrics[(metrics["run"] == str(folder)) & (metrics["member"] == 2)]
    assert of_third["entropy"].tolist() == [line["entropy"][2] for line in lines]
    # The numbers of updates are common to all members.
    assert of_third["updates"].tolist() == [line["updates"] for line in lines]
    with np.load(folder / "evaluations.npz") as file:
        returns = file["returns"]  # [K, members, episodes]
    found = evaluations[(evaluations["run"] == str(folder)) & (evaluations["member"] == 3)]
    assert found["return"].to_numpy() == pytest.approx(returns[:, 3].ravel())
    assert set(evaluations["run"]) == {str(folder), str(undisturbed)}


def test_each_agent_has_a_column(tmp_path):
    options = rollax.RunOptions(
        total_steps=64, run_dir=tmp_path / "hunt", eval_episodes=3, eval_count=1, tensorboard=False
    )
    config = {
        "num_envs": 4,
        "num_steps": 8,
        "num_minibatches": 2,
        "num_epochs": 1,
        "sharing": "type",
    }
    own = {
        "options": options,
        "config": config,
        "network": {"hidden": (8,)},
        "arguments": {"time_limit": 5},
    }
    folder = rollax.train("ppo", "hunting/3-players", quiet=True, **own).folder
    evaluations = rollax.read(folder).evaluations
    with np.load(folder / "evaluations.npz") as file:
        returns = file["returns"].reshape(-1, 3)
    assert evaluations[["return/0", "return/1", "return/2"]].to_numpy() == pytest.approx(returns)
    assert evaluations["return"].to_numpy() == pytest.approx(returns.mean(axis=1))


def test_an_incomplete_run(runs):
    """There is no evaluation yet, the last line is incomplete, and some values are missing."""
    folder = runs / "a" / "first"
    (folder / "evaluations.npz").unlink()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [{"step": 1, "wall_time": 0.5, "loss": None}, {**lines[-1], "step": 2, "loss": 3.0}]
    kept[1].pop("event", None)
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in kept) + '{"step": 3, "lo'
    )
    settings, metrics, evaluations = rollax.read(folder)
    assert len(settings) == 1 and len(evaluations) == 0
    assert (
        metrics["step"].tolist() == [1, 2]
        and np.isnan(metrics["loss"][0])
        and metrics["loss"][1] == 3.0
    )
    (folder / "metrics.jsonl").unlink()
    assert len(rollax.read(folder).metrics) == 0


def test_missing_pandas_raises_usage_error(undisturbed, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=re.escape(install_command("pandas"))):
        rollax.read(undisturbed)


def test_history_joins_evaluations_and_training() -> None:
    """Nonfinite episodes are left out, agents have columns, and missing values are NaN."""
    pandas = pytest.importorskip("pandas")
    metrics = pandas.DataFrame(
        {"run": ["a"] * 2, "member": [0, 0], "step": [32, 64], "wall_time": [1.0, 2.0], "loss": 0.5}
    )
    evaluations = pandas.DataFrame(
        {
            "run": ["a"] * 6,
            "member": [0] * 6,
            "step": [0, 0, 64, 64, 64, 96],
            "wall_time": [0.5, 0.5, 2.5, 2.5, 2.5, 3.0],
            "return": [1.0, 3.0, 5.0, 7.0, float("inf"), 9.0],
            "return/0": [0.0, 2.0, 4.0, 6.0, float("inf"), 8.0],
            "length": [10] * 6,
        }
    )
    table = Tables(pandas.DataFrame(), metrics, evaluations).history()
    assert list(table) == [
        *metrics,
        *("return_mean", "return_std", "length_mean", "return_mean/0"),
    ]
    assert table["step"].tolist() == [0, 32, 64, 96]
    assert table["wall_time"].tolist() == [0.5, 1.0, 2.0, 3.0]
    np.testing.assert_allclose(table["return_mean"], [2, np.nan, 6, 9])
    np.testing.assert_allclose(table["return_std"], [2**0.5, np.nan, 2**0.5, 0])
    np.testing.assert_allclose(table["return_mean/0"], [1, np.nan, 5, 8])
    np.testing.assert_allclose(table["loss"], [np.nan, 0.5, 0.5, np.nan])
    nothing = pandas.DataFrame()
    assert Tables(nothing, metrics, nothing).history() is metrics
    assert Tables(nothing, nothing, evaluations).history()["step"].tolist() == [0, 64, 96]
