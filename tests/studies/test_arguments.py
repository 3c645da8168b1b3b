"""What a study is given: nothing without effect, from Python as from the command line."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import rollax
from rollax.cli.main import main
from rollax.errors import UsageError
from rollax.studies import launchers
from rollax.studies.study import Search, Study, StudySpec, create

MEMORY = ("ppo", "probe/memory")
CONFIG = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "num_epochs": 1}
OPTIONS = {"total_steps": 256, "eval_episodes": 8, "eval_count": 4, "tensorboard": False}


@pytest.fixture(autouse=True)
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies are made, and nothing is trained."""
    monkeypatch.setattr(launchers, "launch", lambda *_, **__: None)
    monkeypatch.setattr("rollax.studies.api.launch", lambda *_, **__: None)


def test_options_come_before_a_file_also_where_they_are_defaults(tmp_path: Path) -> None:
    file, folder = tmp_path / "study.yaml", tmp_path / "study"
    search = {"pruner": "halving", "method": "random", "trials": 4, "search_seed": 5}
    given = {"range": {"gamma": [0.5, 0.9]}, "config": CONFIG, "options": OPTIONS, "search": search}
    file.write_text(yaml.safe_dump({"algorithm": MEMORY[0], "environment": MEMORY[1], **given}))
    words = ["--pruner", "none", "--method", "auto", "--search-seed", "0", "--batch", "2"]
    assert main(["sweep", str(file), *words, "--study-dir", str(folder)]) == 1
    assert Study(folder).spec.search == Search(trials=4, batch=2)


def test_a_study_that_goes_on_keeps_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = Search(trials=4, method="random")
    spec = StudySpec(*MEMORY, range={"gamma": (0.5, 0.9)}, config=CONFIG, options=OPTIONS, search=search)
    folder = create(spec, tmp_path / "study")
    changes: list[dict[str, Any]] = [{"search": {"trials": 4}}, {"range": {}}, {"imports": ("os",)}, {"folder": tmp_path / "b"}]
    for change in changes:
        with pytest.raises(UsageError, match=f"keeps its settings: leave {next(iter(change))} out"):
            rollax.sweep(folder, **change)
    for words in (["--method", "auto"], ["--trials", "5"], ["--sweep.gamma", "1"], ["--study-dir", str(tmp_path / "b")]):
        assert main(["sweep", str(folder), *words]) == 2
        assert "is a study, which keeps its settings" in capsys.readouterr().err
    assert rollax.sweep(folder).rows == []


@pytest.mark.parametrize(
    ("option", "setting", "other"),
    [
        ("--when.gamma.network.hidden", "config.gamma", "network.hidden"),
        ("--when.config.gamma.hidden", "config.gamma", "network.hidden"),
        ("--when.network.hidden.config.gamma", "network.hidden", "config.gamma"),
        ("--when.env.delay.gamma", "env.delay", "config.gamma"),
    ],
)
def test_a_condition_between_settings_with_their_groups(tmp_path: Path, option: str, setting: str, other: str) -> None:
    words = [*MEMORY, "--sweep.gamma", "0.5", "0.9", "--sweep.hidden", "4,4", "8", "--sweep.env.delay", "1", "2"]
    value = {"network.hidden": "4,4", "config.gamma": "0.5"}[other]
    assert main(["sweep", *words, option, value, "--study-dir", str(tmp_path / "study")]) == 1
    when = {one.name: dict(one.when) for one in Study(tmp_path / "study").space if one.when}
    assert when == {setting: {other: ((4, 4),) if other == "network.hidden" else (0.5,)}}


@pytest.mark.parametrize(
    ("given", "gammas"),
    [
        ({"sweep": {"gamma": [np.float32(0.5), np.float64(0.75)]}}, [0.5, 0.75]),
        ({"sweep": {"gamma": np.array([0.5, 0.75])}}, [0.5, 0.75]),
        ({"sweep": {"gamma": jnp.array([0.5, 0.75])}, "options": OPTIONS | {"total_steps": np.int64(256)}}, [0.5, 0.75]),
        ({"sweep": {"gamma": (0.5,), "num_epochs": [np.int64(1), np.int64(2)]}}, [0.5, 0.5]),
        ({"sweep": {"gamma": (0.5,)}, "config": rollax.PPOConfig(num_envs=4, num_steps=8, num_minibatches=2)}, [0.5]),
        ({"sweep": {"gamma": (0.5,)}, "network": rollax.NetworkConfig(hidden=(8,))}, [0.5]),
        ({"sweep": {"gamma": (0.5,)}, "options": rollax.RunOptions(**OPTIONS), "search": Search(batch=2)}, [0.5]),
    ],
)
def test_values_as_train_takes_them(tmp_path: Path, given: dict[str, Any], gammas: list[float]) -> None:
    """Numbers and arrays of NumPy and JAX, and settings as objects: the study's file has them as plain values."""
    study = Study(rollax.sweep(*MEMORY, folder=tmp_path / "study", **{"config": CONFIG, "options": OPTIONS, **given}).folder)
    while study.draw():
        pass
    assert [trial.settings["config.gamma"] for batch in study.batches() for trial in batch.trials] == gammas
    assert (study.base.config.num_steps, study.base.options.total_steps) == (8, 256)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sweep": {"gamma": [object()]}}, r"sweep.gamma\[0\] .* is a object: it must be a number"),
        ({"config": 3}, "config .3. must be a dictionary"),
        ({"network": lambda key: key}, "network .* must be a dictionary"),
    ],
)
def test_values_that_no_file_can_hold(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        rollax.sweep(*MEMORY, folder=tmp_path / "study", **{"sweep": {"gamma": (0.5,)}, **given})
    assert not (tmp_path / "study").exists()
