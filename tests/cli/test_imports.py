"""Tests of `--import MODULE`.

Every command accepts it. config.yaml stores it, but reading the file does not import it.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.test_mistakes import refused
from rollax.environments import registry
from rollax.training.run_folder.layout import read_spec
from support.runs import FRAMES, SMALL_WORDS

Rollax = Callable[..., Any]
MODULE = """
import rollax
print("a module may print")
rollax.register("mine/Memory", lambda delay=3: rollax.make("probe/memory", delay=delay))
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Return a function that removes the module as in a new process.

    It also runs after each test.
    """

    def forget() -> None:
        sys.modules.pop("my_module", None)
        registry._registered_factories.clear()

    monkeypatch.setattr(registry, "_registered_factories", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield forget
    forget()


def test_a_run_with_an_imported_module(
    rollax: Rollax, tmp_path: Path, forgotten: Callable[[], None]
) -> None:
    """The run stores the module's name.

    Suggested commands include it, and an error without it suggests it.
    """
    (tmp_path / "my_module.py").write_text(MODULE)
    words = [
        "train",
        "ppo",
        "mine/Memory",
        "--total-steps",
        4 * FRAMES,
        "--eval-count",
        2,
        *SMALL_WORDS,
        "--run-dir",
        "run",
    ]
    outcome = rollax("--import", "my_module", *words)
    assert outcome.code == 0, outcome.err
    assert "a module may print" not in outcome.out and outcome.object["run"] == "run"
    for command in ("resume", "eval", "plot", "render"):
        assert f"{command} run --import my_module" in outcome.out
    assert yaml.safe_load(Path("run/config.yaml").read_text())["imports"] == ["my_module"]
    assert read_spec(Path("run")).imports == ("my_module",)
    forgotten()
    for words in (
        ["eval", "run"],
        ["resume", "run", "--total-steps", 8 * FRAMES],
        ["render", "run"],
    ):
        outcome = rollax(*words)
        assert outcome.code == 2 and "unknown environment 'mine/Memory'" in outcome.err, outcome.err
        assert "add --import my_module" in outcome.err and "my_module" not in sys.modules
    outcome = rollax("eval", "run", "--episodes", 2, "--import=my_module")
    assert outcome.code == 0, outcome.err
    assert "my_module" in sys.modules


def test_a_study_with_an_imported_module(
    rollax: Rollax, tmp_path: Path, forgotten: Callable[[], None]
) -> None:
    """It is stored with the modules of the study's file, and continuing without it is refused."""
    pytest.importorskip("optuna")
    (tmp_path / "my_module.py").write_text(MODULE)
    text = (
        "{algorithm: ppo, environment: mine/Memory, "
        "sweep: {num_minibatches: [3, 5]}, imports: [json]}"
    )
    (tmp_path / "study.yaml").write_text(text)
    outcome = rollax("sweep", "study.yaml", "--import", "my_module", "--study-dir", "study")
    assert "has a result" in outcome.err, outcome.err
    assert yaml.safe_load(Path("study/study.yaml").read_text())["imports"] == ["json", "my_module"]
    forgotten()
    outcome = rollax("sweep", "study")
    assert outcome.code == 2 and "add --import my_module" in outcome.err


@pytest.mark.parametrize("command", ["envs", "algorithms", "doctor"])
def test_every_command_accepts_import(rollax: Rollax, tmp_path: Path, command: str) -> None:
    (tmp_path / "my_module.py").write_text(MODULE)
    outcome = rollax(command, "--import", "my_module", "--import", "json")
    assert outcome.code == 0, outcome.err
    assert ("mine/Memory" in outcome.out) == (command == "envs")


@pytest.mark.parametrize(
    ("content", "words", "parts"),
    [
        (None, ["--import", "my_module"], ["--import my_module: there is no such module in"]),
        (None, ["--import", "my_module.inner"], ["there is no such module"]),
        (None, ["--import"], ["--import needs the name of a module"]),
        (None, ["--import", "--json"], ["--import needs the name of a module"]),
        (
            None,
            ["--import", "there/my_module.py"],
            ["got 'there/my_module.py'. Use my_module, from its folder."],
        ),
        (None, ["--import="], ["must be the dotted name of a module, got ''"]),
        (
            "import no_such_thing",
            ["--import", "my_module"],
            ["the module imports no_such_thing, which is not installed"],
        ),
        (
            "1 / 0",
            ["--import", "my_module"],
            ["importing it failed with ZeroDivisionError: division by zero"],
        ),
        ("def", ["--import", "my_module"], ["importing it failed with SyntaxError"]),
        ("exit(5)", ["--import", "my_module"], ["importing it failed with SystemExit: 5"]),
    ],
)
def test_invalid_modules_are_refused(
    rollax: Rollax, tmp_path: Path, content: str | None, words: list[str], parts: list[str]
) -> None:
    if content is not None:
        (tmp_path / "my_module.py").write_text(content)
    outcome = rollax("algorithms", *words)
    (tmp_path / "my_module.py").unlink(missing_ok=True)
    refused(outcome, *parts)


def test_local_files_do_not_shadow_installed_modules(rollax: Rollax, tmp_path: Path) -> None:
    """This holds for the named module and for modules imported later."""
    (tmp_path / "my_module.py").write_text(MODULE)
    for name in ("this", "cmaes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    assert rollax("algorithms", "--import", "my_module").code == 0
    assert sys.path[0] != str(tmp_path) and str(tmp_path) in sys.path
    sys.path.remove(str(tmp_path))
    outcome = rollax("algorithms", "--import", "this")
    assert outcome.code == 2 and "Rename yours" in outcome.err


PLANT = """
import gymnasium

class Plant(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}

gymnasium.register("Plant-v0", entry_point=Plant, max_episode_steps=5)
"""


def test_an_environment_of_gymnasium_from_the_current_folder(
    rollax: Rollax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id may name the module itself, which is imported as with `--import`."""
    gymnasium = pytest.importorskip("gymnasium")
    # The command is not started in this folder by Python, so it is not in the path.
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    refused(rollax("envs", "gymnasium/my_plant:Plant-v0"), "(module my_plant): there is no such")
    (tmp_path / "my_plant.py").write_text(PLANT)
    importlib.invalidate_caches()
    for words in (["gymnasium/my_plant:Plant-v0"], ["--import", "my_plant", "gymnasium/Plant-v0"]):
        outcome = rollax("envs", *words)
        assert outcome.code == 0 and "3 numbers" in outcome.out, outcome.err
        gymnasium.registry.pop("Plant-v0")
        sys.modules.pop("my_plant")
