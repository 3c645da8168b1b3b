"""Tests of the documentation site: its navigation, and a build without warnings."""

import fnmatch
import pkgutil
import runpy
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MADE = "repository/"  # pages that docs/hooks.py makes of files outside of docs/
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md"))


def entries(part: Any) -> Iterator[str]:
    """Yield the pages and patterns of a navigation."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict) and "glob" in part:
        yield part["glob"]
    else:
        for inner in part.values() if isinstance(part, dict) else part:
            yield from entries(inner)


def listed() -> list[str]:
    return list(entries(yaml.safe_load((DOCS / ".nav.yml").read_text())["nav"]))


def test_entries_of_the_navigation_exist() -> None:
    """Pages exist, patterns match a page, and README.md is the first page."""
    names = listed()
    assert (
        names[0] == "index.md"
        and not (DOCS / "index.md").exists()
        and (ROOT / "README.md").exists()
    )
    missing = [
        name for name in names[1:] if not name.startswith(MADE) and not list(DOCS.glob(name))
    ]
    missing += [
        name
        for name in names
        if name.startswith(MADE) and not (ROOT / name.removeprefix(MADE)).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_in_the_navigation(page: str) -> None:
    """It is listed by its name, or by a pattern of its folder."""
    matching = [
        name
        for name in listed()
        if fnmatch.fnmatchcase(page, name) and name.count("/") == page.count("/")
    ]
    assert matching


@pytest.mark.parametrize(
    "page", sorted(p.relative_to(ROOT).as_posix() for p in (DOCS / "reference").glob("*.md"))
)
def test_names_in_the_reference_have_docstrings(page: str) -> None:
    """Each name is a module or a public name of one."""
    shown = [
        line.split()[1] for line in (ROOT / page).read_text().splitlines() if line.startswith(":::")
    ]
    assert shown
    assert [name for name in shown if not pkgutil.resolve_name(name).__doc__] == []


@pytest.mark.skipif(
    find_spec("mkdocs") is None or find_spec("mkdocstrings") is None,
    reason="needs the extra docs",
)
def test_site_builds(tmp_path: Path) -> None:
    """Invalid links, anchors and reference names are errors. Linked files are pages."""
    # With --quiet, warnings would not be counted.
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "CartPole" in (tmp_path / "site" / "index.html").read_text()
    assert (
        tmp_path / "site" / "repository" / "src" / "rollax" / "algorithms" / "ppo.py" / "index.html"
    ).exists()
    # Fonts, scripts and styles are part of the site, so pages load nothing from the network.
    page = (tmp_path / "site" / "runs" / "index.html").read_text()
    assert 'src="http' not in page and 'rel="stylesheet" href="http' not in page


@pytest.mark.skipif(find_spec("latex2mathml") is None, reason="needs the extra docs")
def test_math_is_converted_to_mathml() -> None:
    """No LaTeX commands remain."""
    pytest.importorskip("mkdocs")
    hooks = runpy.run_path(str(DOCS / "hooks.py"))
    formula = '<span class="arithmatex">\\(a &lt; \\frac{1}{2} \\epsilon\\)</span>'
    page = hooks["on_page_content"](formula, None, None, None)
    assert page.startswith("<math") and "<mfrac>" in page and "\\" not in page
