"""What the documents show works: examples in docstrings, the example programs, links."""

import doctest
import importlib
import pkgutil
import re
import runpy
import shlex
import sys
from pathlib import Path

import jax
import pytest

import rollax
from rollax.algorithms import registry
from rollax.cli.main import main
from rollax.environments import registry as environment_registry
from rollax.host import run_folder

ROOT = Path(__file__).parents[1]
MODULES = sorted(m.name for m in pkgutil.walk_packages(rollax.__path__, "rollax.") if not m.name.endswith("__main__"))


def test_docstrings() -> None:
    """Every example in a docstring gives what it says; there are some."""
    results = [doctest.testmod(importlib.import_module(name)) for name in MODULES]
    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) >= 5


def test_own_loop(capsys: pytest.CaptureFixture[str]) -> None:
    """The example of the pure layer learns CartPole."""
    # The check of key reuse takes keys that are split, vmapped over and scanned for used twice.
    with jax.debug_key_reuse(False):
        runpy.run_path(str(ROOT / "examples" / "own_loop.py"))
    returns = [float(x) for x in re.findall(r"return +([0-9.]+)", capsys.readouterr().out)]
    assert len(returns) == 5
    assert returns[-1] > 400 > returns[0]


PAGES = sorted(str(p.relative_to(ROOT)) for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


TAUGHT = ["README.md", *(page for page in PAGES if page.startswith(("docs/tutorials/", "docs/own/")))]


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
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(environment_registry, "_registered", {})
    with jax.debug_key_reuse(False), jax.numpy_rank_promotion("allow"):  # a reader's own arithmetic is not held to our rules
        for program in programs_of(page):
            exec(program, {"__name__": "__main__"})


class Accepted(BaseException):
    """What a command would do is all checked: the next thing is the folder of its run."""


SHOWN = [words for page in TAUGHT for words in commands_of(page) if words[0] == "train" and "--help" not in words]


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_shown_commands(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `rollax train` of README and tutorials is accepted: names, options, sizes."""

    def create(spec: object) -> None:
        raise Accepted

    monkeypatch.setattr(run_folder, "create", create)
    with pytest.raises(Accepted), jax.numpy_rank_promotion("allow"):  # of suites
        main(words)


def test_names_of_commands() -> None:
    """What else README and tutorials call is a command; there are some of each kind."""
    words = [words[0] for page in TAUGHT for words in commands_of(page)]
    assert {"train", "eval", "plot", "render", "resume", "envs"} == set(words)
    assert len(SHOWN) >= 8


@pytest.mark.parametrize("name", ["td3", "map_elites", "cma_me", "cma_mega", "me_es", "mome"])
def test_algorithms(name: str) -> None:
    """The examples in the pages of algorithms run as they stand."""
    programs = programs_of(f"docs/algorithms/{name}.md")
    with jax.debug_key_reuse(False):  # as above
        for program in programs:
            exec(program, {"__name__": "__main__"})
    assert programs


def test_quality_diversity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So do the examples with archives."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})  # one of them registers an algorithm
    programs = programs_of("docs/quality-diversity.md")
    with jax.debug_key_reuse(False):  # as above
        for program in programs:
            exec(program, {"__name__": "__main__"})
    assert len(programs) >= 4


def test_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So do the examples with an exported policy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    programs = programs_of("docs/export.md")
    with jax.debug_key_reuse(False):  # as above
        for program in programs:
            exec(program, {"__name__": "__main__"})
    assert len(programs) == 2


def test_imports() -> None:
    """Whatever a page imports from rollax is there."""
    shown = [pair for page in PAGES for pair in re.findall(r"from (rollax[\w.]*) import ([\w, ]+)", (ROOT / page).read_text())]
    assert ("rollax.host.lineage", "read") in shown
    for module, names in shown:
        assert [name for name in names.split(", ") if not hasattr(importlib.import_module(module), name.strip())] == []


@pytest.mark.parametrize("page", PAGES)
def test_links(page: str) -> None:
    """Every link to a file of the project leads to one."""
    text = (ROOT / page).read_text()
    targets = [t.split("#")[0] for t in re.findall(r"\]\(([^)]+)\)", text) if "://" not in t and not t.startswith("#")]
    assert [t for t in targets if not ((ROOT / page).parent / t).exists()] == []
