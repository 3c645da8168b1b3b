"""What a study is given: nothing without effect, from Python as from the command line."""

from pathlib import Path
from typing import Any

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
