"""Tests of `repr` and notebook tables, which are short for objects of any size."""

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollax
from rollax import RunOptions
from rollax.sweeps.results import TrialResult
from rollax.training.elites import selection
from rollax.training.result import Evaluated
from rollax.training.run_folder.tables import Tables

LONGEST = 500  # characters
OPTIONS: dict[str, Any] = {"eval_episodes": 8, "eval_count": 1, "tensorboard": False}


def check(value: Any, *parts: str) -> None:
    """Check that the text is short, also in a list, and has these parts."""
    assert len(repr(value)) < LONGEST and len(repr([value])) < LONGEST, repr(value)
    assert [part for part in parts if part not in repr(value)] == [], repr(value)
    assert "0x" not in repr(value)


@pytest.fixture(scope="module")
def population(tmp_path_factory: pytest.TempPathFactory) -> rollax.Result:
    sizes = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "num_epochs": 1}
    options = OPTIONS | {
        "run_dir": tmp_path_factory.mktemp("reprs") / "run",
        "seeds": 8,
        "total_steps": 32,
    }
    return rollax.train(
        "ppo", "probe/memory", config=sizes, network={"hidden": (8,)}, options=options, quiet=True
    )


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> rollax.Policy:
    options = RunOptions(
        **OPTIONS, run_dir=tmp_path_factory.mktemp("reprs") / "run", total_steps=64
    )
    sizes = {"batch_size": 16}
    run = rollax.train("map_elites", "task/arm", config=sizes, options=options, quiet=True)
    return rollax.load(run.folder)


def test_repr_of_a_run(population: rollax.Result) -> None:
    check(population, "Result(", "status='done'", "steps=32", "run", "return_mean=", "members=8")
    check(
        rollax.load(population.folder, member=2),
        "Policy(",
        "'ppo'",
        "'probe/memory'",
        "step=32",
        "member='2 of 8'",
        "run",
    )
    check(Evaluated(32, dict.fromkeys(map(str, range(500)), 1.0), None), "step=32")
    check(rollax.read(population.folder), "settings: 8 rows")


def test_repr_of_an_archive(archive: rollax.Policy) -> None:
    check(archive, "Policy(", "'map_elites'", "'task/arm'")
    found = selection.get_elites(archive)
    check(found, "Elites(", "places")
    check(found.solutions, "Scored(fitness")
    check(rollax.compare_archives(archive, archive), "Comparison(cells=")


def test_repr_of_a_search() -> None:
    search = rollax.AskTell("map_elites", 300, [0, 0], [1, 1])
    check(search, "AskTell(", "'map_elites'", "dimensions=300", "iterations=0")


def test_repr_of_a_study(tmp_path: Path) -> None:
    row = TrialResult(
        0, "COMPLETE", {"config.gamma": 0.9}, 1.5, [1.5], 64, "batches/0000/run", 0, None
    )
    check(rollax.Swept(tmp_path / "study", [row] * 300, {}), "Swept(", "trials=300", "best=1.5")


@pytest.mark.parametrize(
    "id",
    [
        "gymnax/CartPole-v1",
        "jumanji/Snake-v1",
        "memory/CartPole-v1",
        "gymnasium/CartPole-v1",
        "hunting/2-players",
    ],
)
def test_repr_of_an_environment(id: str) -> None:
    check(rollax.make(id))


def test_repr_of_tables() -> None:
    tables = Tables(*(np.zeros((3, 2)),) * 3)
    check(tables, "settings: 3 rows", "evaluations: 3 rows")


def check_html(value: Any, *parts: str) -> None:
    """Check that the table has a few lines with these parts."""
    table = value._repr_html_()
    assert table.startswith("<table>") and table.count("<tr>") < 12 and len(table) < 3000
    assert [part for part in parts if part not in table] == [], table


def test_html_tables_of_results(population: rollax.Result, archive: rollax.Policy) -> None:
    check_html(population, "Result", "done", "members", str(population.folder))
    check_html(rollax.load(population.folder, member=2), "Policy", "probe/memory", "2 of 8")
    functions, _ = selection.get_archive(archive)
    check(functions, "Archive(size=")
    check_html(functions, "Archive", "size")


def test_html_tables_of_environments() -> None:
    for id in ("gymnax/CartPole-v1", "gymnasium/CartPole-v1", "memory/CartPole-v1"):
        check_html(rollax.make(id), id, "Discrete(2)", "time_limit")
    missing = [
        id
        for suite in ("probe", "memory", "hunting", "control", "task", "granular")
        for id in rollax.list_environments(suite)
        if id not in rollax.make(id)._repr_html_()
    ]
    assert missing == []


def test_html_tables_escape_markup(tmp_path: Path) -> None:
    named = tmp_path / "<b>bold"
    for value in (
        rollax.Result(named, "done", 0, 1, {}, 1.0, 1.0),
        rollax.Swept(named, [], {}),
    ):
        check_html(value, "&lt;b&gt;bold")
        assert "<b>" not in value._repr_html_()
    row = TrialResult(0, "COMPLETE", {"config.gamma": 0.9}, 1.5, [1.5], 64, "run", 0, None)
    check_html(rollax.Swept(tmp_path, [row], {}), "config.gamma", "0.9", "1.5")


def test_a_missing_attribute_is_answered_with_a_name() -> None:
    result = rollax.Result(Path("run"), "done", 0, 1, {}, 1.0, 1.0)
    for owner, name, hint in (
        (rollax, "trian", "did you mean train"),
        (rollax, "evaluate", "It is an attribute of results"),
        (result, "resume", "Use rollax.resume(result, ...)"),
    ):
        with pytest.raises(AttributeError, match=re.escape(hint)):
            getattr(owner, name)
    assert not hasattr(rollax, "_private") and not hasattr(result, "unknown")
    assert copy.copy(result) == result
