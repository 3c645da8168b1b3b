"""Tests of programs and commands in README.md, tutorials and the pages of docs/own."""

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
    """Return the words of each `rollax ...` command in the code blocks of a page."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    lines = [
        line
        for block in blocks
        for line in block.replace("\\\n", " ").splitlines()  # a backslash continues a line
        if line.startswith("rollax ")
    ]
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pytest.mark.parametrize("page", [page for page in TAUGHT if programs_of(page)])
def test_programs_in_pages_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program runs alone, without changes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered_entries", {})
    monkeypatch.setattr(environment_registry, "_registered_factories", {})
    # Readers' code may use rank promotion.
    with (
        jax.debug_key_reuse(False),
        jax.numpy_rank_promotion("allow"),
    ):
        for program in programs_of(page):
            exec(program, {"__name__": "__main__"})


class Accepted(BaseException):
    """Raised in place of creating the run folder, after all arguments were checked."""


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
def test_train_commands_in_pages_are_valid(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check includes names, options and sizes."""

    def create(spec: object, environment: object) -> None:
        raise Accepted

    monkeypatch.setattr(creation, "create_run_folder", create)
    # some suites need rank promotion
    with pytest.raises(Accepted), jax.numpy_rank_promotion("allow"):
        main(words)


@pytest.mark.parametrize("page", ["docs/environments.md", "docs/suites.md"])
def test_train_commands_in_pages_of_environments_are_valid(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options are checked, but environments of other packages are not made."""

    def train(*args: object, **options: object) -> None:
        raise Accepted

    monkeypatch.setattr(api, "train", train)
    shown = [words for words in commands_of(page) if words[0] == "train" and ":" not in words[2]]
    assert len(shown) >= 8
    for words in shown:
        with pytest.raises(Accepted):
            main(words)


@pytest.mark.parametrize("words", SWEPT, ids=" ".join)
def test_sweep_commands_in_pages_are_valid(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every `rollax sweep` with settings makes a study."""

    def launch(*args: object) -> None:
        raise Accepted

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rollax.sweeps.sweep_session.launch_workers", launch)
    with pytest.raises(Accepted), jax.numpy_rank_promotion("allow"):
        main(words)


@pytest.mark.quick
def test_commands_in_pages_exist() -> None:
    """The pages use all of these commands."""
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
