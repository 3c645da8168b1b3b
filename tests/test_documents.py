"""Tests of the documentation: examples in docstrings and pages, example programs, and links."""

import doctest
import importlib
import pkgutil
import pydoc
import re
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import rollax
from rollax.algorithms import registry
from rollax.environments.suites.table import SUITES, missing_python_version

ROOT = Path(__file__).parents[1]
# Adapters that require a newer Python.
TOO_NEW = {entry.adapter for entry in SUITES.values() if missing_python_version(entry)}
ALL = {
    m.name
    for m in pkgutil.walk_packages(rollax.__path__, "rollax.")
    if not m.name.endswith("__main__")
}
MODULES = sorted(ALL - TOO_NEW)


def test_examples_in_docstrings() -> None:
    """There are examples, and all have the documented output."""
    results = [doctest.testmod(importlib.import_module(name)) for name in MODULES]
    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) >= 5


def test_the_example_of_a_custom_loop_learns_cartpole(capsys: pytest.CaptureFixture[str]) -> None:
    """It uses the pure functions of the library."""
    # The check against key reuse rejects keys that are split, vmapped over and scanned.
    with jax.debug_key_reuse(False):
        runpy.run_path(str(ROOT / "examples" / "own_loop.py"))
    returns = [float(x) for x in re.findall(r"return +([0-9.]+)", capsys.readouterr().out)]
    assert len(returns) == 5
    assert returns[-1] > 400 > returns[0]


@pytest.mark.parametrize("program", ["quality_diversity", "startup"])
def test_help_of_benchmarks(program: str) -> None:
    """The help describes the benchmark without running it."""
    command = [sys.executable, str(ROOT / "benchmarks" / f"{program}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith(f"usage: {program}.py")


PAGES = sorted(str(p.relative_to(ROOT)) for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def programs_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("host", ["unpkg.com", "cdn.jsdelivr.net"])
def test_no_page_mentions_a_host_of_scripts(host: str) -> None:
    """Files of `render` and `report` load nothing from the network."""
    assert [page for page in PAGES if host in (ROOT / page).read_text()] == []


@pytest.mark.parametrize("name", ["td3", "map_elites", "cma_me", "cma_mega", "me_es", "mome"])
def test_examples_in_the_pages_of_algorithms(name: str) -> None:
    """They run without changes."""
    programs = programs_of(f"docs/algorithms/{name}.md")
    with jax.debug_key_reuse(False):  # as above
        for program in programs:
            exec(program, {"__name__": "__main__"})
    assert programs


def test_examples_of_quality_diversity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run without changes."""
    monkeypatch.chdir(tmp_path)
    # because one of them registers an algorithm
    monkeypatch.setattr(registry, "_registered_entries", {})
    programs = programs_of("docs/quality-diversity.md")
    with jax.debug_key_reuse(False):  # as above
        for program in programs:
            exec(program, {"__name__": "__main__"})
    assert len(programs) >= 4


def test_examples_of_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run without changes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    programs = programs_of("docs/export.md")
    with jax.debug_key_reuse(False):  # as above
        for program in programs:
            exec(program, {"__name__": "__main__"})
    assert len(programs) == 2


def test_examples_of_callbacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run in order, as one program."""
    monkeypatch.chdir(tmp_path)
    programs = programs_of("docs/callbacks.md")
    with jax.debug_key_reuse(False), jax.numpy_rank_promotion("allow"):
        exec("\n".join(programs), {"__name__": "__main__"})
    assert len(programs) == 5


def test_examples_of_warm_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run in order, as one program."""
    monkeypatch.chdir(tmp_path)
    programs = programs_of("docs/warm-start.md")
    with jax.debug_key_reuse(False), jax.numpy_rank_promotion("allow"):
        exec("\n".join(programs), {"__name__": "__main__"})
    assert len(programs) == 2


@pytest.mark.parametrize(
    ("page", "number"), [("continue", 3), ("curriculum", 4), ("optimizers", 3), ("self-play", 1)]
)
def test_examples_of_settings_and_phases(
    page: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run in order, as one program."""
    monkeypatch.chdir(tmp_path)
    programs = programs_of(f"docs/{page}.md")
    with jax.debug_key_reuse(False):  # as above
        exec("\n".join(programs), {"__name__": "__main__"})
    assert len(programs) == number


def test_example_of_slow_simulators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example trains in the module that the page shows, in the main process."""
    pytest.importorskip("gymnasium")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module, program = programs_of("docs/slow-simulators.md")
    (tmp_path / "plant.py").write_text(module.replace("seconds=0.005", "seconds=0.0"))
    program = program.replace('"env_workers": 2, ', "")  # processes cannot import this program
    with jax.debug_key_reuse(False):  # as above
        exec(program, {"__name__": "__main__"})
    assert len(list(tmp_path.glob("runs/*/*/evaluations.npz"))) == 1
    sys.modules.pop("plant")


def test_example_of_pettingzoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example trains in the module that the page shows, in the main process."""
    pytest.importorskip("gymnasium")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module, program = programs_of("docs/pettingzoo.md")
    (tmp_path / "crossing.py").write_text(module)
    program = program.replace(', "env_workers": 2', "")  # processes cannot import this program
    with jax.debug_key_reuse(False):  # as above
        exec(program, {"__name__": "__main__"})
    assert len(list(tmp_path.glob("runs/*/*/evaluations.npz"))) == 1
    sys.modules.pop("crossing")


def test_examples_of_python_and_notebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run without changes."""
    monkeypatch.chdir(tmp_path)
    programs = programs_of("docs/notebooks.md")
    with jax.debug_key_reuse(False):  # as above
        for program in programs:
            exec(program, {"__name__": "__main__"})
    assert len(programs) == 2
    assert {"return.pdf", "comparison.html"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.quick
def test_commands_in_pages_fit_into_their_block() -> None:
    """A block of the site has 100 columns at a window of 1280 px; longer lines are cut off."""
    shown = [
        (page, line)
        for page in PAGES
        if not page.startswith("docs/days/")  # recorded as they were typed
        for line in re.findall(r"^ *rollax [^\n]*$", (ROOT / page).read_text(), re.MULTILINE)
    ]
    assert len(shown) > 100
    assert [(page, line) for page, line in shown if len(line) > 100] == []


@pytest.mark.quick
def test_imports_in_pages_exist() -> None:
    """Every name that a page imports from rollax exists."""
    shown = [
        pair
        for page in PAGES
        for pair in re.findall(r"from (rollax[\w.]*) import ([\w, ]+)", (ROOT / page).read_text())
    ]
    assert ("rollax.training.run_folder.lineage", "read_lineage") in shown
    for module, names in shown:
        assert [
            name
            for name in names.split(", ")
            if not hasattr(importlib.import_module(module), name.strip())
        ] == []


@pytest.mark.quick
def test_qualified_names_in_pages_exist() -> None:
    """For example, pages use `rollax.environments.default_arguments`."""
    pattern = re.compile(r"(?<![\w/.-])rollax(?:\.[A-Za-z_]\w*)+")
    shown = sorted({name for page in PAGES for name in pattern.findall((ROOT / page).read_text())})
    assert "rollax.environments.default_arguments" in shown
    assert [name for name in shown if not is_there(name)] == []


def is_there(name: str) -> bool:
    """Return whether the name is a module, or a member of one."""
    module, _, member = name.rpartition(".")
    if name in ALL | {"rollax"}:
        return True
    return module != "" and is_there(module) and hasattr(pydoc.locate(module), member)


@pytest.mark.quick
@pytest.mark.parametrize("page", PAGES)
def test_links_in_pages_exist(page: str) -> None:
    """Every relative link leads to a file of the project."""
    text = (ROOT / page).read_text()
    targets = [
        t.split("#")[0]
        for t in re.findall(r"\]\(([^)]+)\)", text)
        if "://" not in t and not t.startswith("#")
    ]
    assert [t for t in targets if not ((ROOT / page).parent / t).exists()] == []
