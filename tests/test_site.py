"""The documentation as a site: its navigation, and that it builds without a warning."""

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
MADE = "repository/"  # what docs/hooks.py makes of files outside of docs/
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md"))


def entries(part: Any) -> Iterator[str]:
    """The pages and patterns of a navigation."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict) and "glob" in part:
        yield part["glob"]
    else:
        for inner in part.values() if isinstance(part, dict) else part:
            yield from entries(inner)


def listed() -> list[str]:
    return list(entries(yaml.safe_load((DOCS / ".nav.yml").read_text())["nav"]))


def test_navigation_exists() -> None:
    """What the navigation names is there, patterns match something, and README.md is the first page."""
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
def test_navigation_is_whole(page: str) -> None:
    """Every page is in the navigation: by its name, or by the pattern of its folder."""
    matching = [
        name
        for name in listed()
        if fnmatch.fnmatchcase(page, name) and name.count("/") == page.count("/")
    ]
    assert matching


@pytest.mark.parametrize(
    "page", sorted(p.relative_to(ROOT).as_posix() for p in (DOCS / "reference").glob("*.md"))
)
def test_reference(page: str) -> None:
    """What the reference shows is a module or a public name of one, which its docstring explains."""
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
    """Links, anchors, names of the reference: any that does not hold is an error. Files outside of docs/ are pages as well."""
    # Not --quiet, with which warnings are not counted.
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
    # Fonts, scripts and styles come with the site: a page loads nothing from elsewhere.
    page = (tmp_path / "site" / "runs" / "index.html").read_text()
    assert 'src="http' not in page and 'rel="stylesheet" href="http' not in page


@pytest.mark.skipif(find_spec("latex2mathml") is None, reason="needs the extra docs")
def test_math() -> None:
    """Formulas of the pages become MathML without LaTeX commands that were not understood."""
    pytest.importorskip("mkdocs")
    hooks = runpy.run_path(str(DOCS / "hooks.py"))
    formula = '<span class="arithmatex">\\(a &lt; \\frac{1}{2} \\epsilon\\)</span>'
    page = hooks["on_page_content"](formula, None, None, None)
    assert page.startswith("<math") and "<mfrac>" in page and "\\" not in page
