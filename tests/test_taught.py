"""What README, tutorials and the pages on things of one's own teach works: their programs run, their commands are accepted."""

import re
import shlex
from pathlib import Path

import jax
import pytest

from rollax import api
from rollax.algorithms import registry
from rollax.cli.main import main
from rollax.environments import registry as environment_registry
from rollax.training.run_folder import creation

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/tutorials/*.md")),
    *sorted(ROOT.glob("docs/own/*.md")),
]
TAUGHT = [str(page.relative_to(ROOT)) for page in PAGES]


def programs_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def commands_of(page: str) -> list[list[str]]:
    """The words of each `rollax ...` that a block of commands of a page shows."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("rollax ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pytest.mark.parametrize("page", [page for page in TAUGHT if programs_of(page)])
def test_taught(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of README and tutorials run as they stand, each by itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered_entries", {})
    monkeypatch.setattr(environment_registry, "_registered_factories", {})
    with (
        jax.debug_key_reuse(False),
        jax.numpy_rank_promotion("allow"),
    ):  # a reader's own arithmetic is not held to our rules
        for program in programs_of(page):
            exec(program, {"__name__": "__main__"})


class Accepted(BaseException):
    """What a command would do is all checked: the next thing is the folder of its run."""


SHOWN = [
    words
    for page in TAUGHT
    for words in commands_of(page)
    if words[0] == "train" and "--help" not in words
]
SWEPT = [
    words
    for page in (*TAUGHT, "docs/studies.md")
    for words in commands_of(page)
    if words[:2] == ["sweep", "ppo"]
]


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_shown_commands(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `rollax train` of README and tutorials is accepted: names, options, sizes."""

    def create(spec: object, environment: object) -> None:
        raise Accepted

    monkeypatch.setattr(creation, "create_run_folder", create)
    with pytest.raises(Accepted), jax.numpy_rank_promotion("allow"):  # of suites
        main(words)


@pytest.mark.parametrize("page", ["docs/environments.md", "docs/suites.md"])
def test_shown_environments(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of every `rollax train` of the pages of environments are known; environments of other packages are not made."""

    def train(*args: object, **options: object) -> None:
        raise Accepted

    monkeypatch.setattr(api, "train", train)
    shown = [words for words in commands_of(page) if words[0] == "train" and ":" not in words[2]]
    assert len(shown) >= 8
    for words in shown:
        with pytest.raises(Accepted):
            main(words)


@pytest.mark.parametrize("words", SWEPT, ids=" ".join)
def test_shown_studies(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `rollax sweep` that names its settings is accepted: a study is made of it."""

    def launch(*args: object) -> None:
        raise Accepted

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rollax.sweeps.sweep_session.launch_workers", launch)
    with pytest.raises(Accepted), jax.numpy_rank_promotion("allow"):
        main(words)


@pytest.mark.quick
def test_names_of_commands() -> None:
    """What else README and tutorials call is a command; there are some of each kind."""
    words = [words[0] for page in TAUGHT for words in commands_of(page)]
    assert {
        "train",
        "eval",
        "plot",
        "report",
        "render",
        "resume",
        "export",
        "envs",
        "sweep",
        "table",
    } == set(words)
    assert len(SHOWN) >= 8 and len(SWEPT) >= 2
