"""Tests of the notebooks: they run, and are stored with small outputs without absolute paths."""

import ast
import base64
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
# limit of one notebook, below that of a test, because machines that run tests are busy
SECONDS = 560
FOLDERS = re.compile(r"(?<![\w./])/(?:home|root|tmp|work|Users|usr|opt|var|content)/|[A-Z]:\\\\")
MAX_BYTES = {"png": 100_000, "gif": 300_000}
MAX_NOTEBOOK_BYTES = 1_000_000
MAX_CELL_LINES = 20
MAX_ERROR_LINES = 3
INTERRUPT_MESSAGE = "Stopping once the state is saved. Press Ctrl-C again to abort."
EXTRAS = {"recurrent_xland_minigrid": "xland,pandas"}  # extras of the first cell, by default pandas


def read_cells(path: Path, kind: str) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text())["cells"]
    return [
        {**cell, "source": "".join(cell["source"])} for cell in cells if cell["cell_type"] == kind
    ]


def texts_of(cell: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the type and the content of every output of a cell. Errors have the type "error"."""
    for output in cell["outputs"]:
        if output["output_type"] == "error":
            yield "error", "\n".join(output["traceback"])
        if "text" in output:
            yield output["name"], "".join(output["text"])
        yield from ((kind, "".join(text)) for kind, text in output.get("data", {}).items())


def pictures_of(cell: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the format and the content of every image in the outputs of a cell."""
    for kind, text in texts_of(cell):
        if kind == "image/png":
            yield "png", base64.b64decode(text)
        for name, content in re.findall(r"data:image/(\w+);base64,([\w+/=]+)", text):
            yield name, base64.b64decode(content)


def shows_value(source: str) -> bool:
    """Return whether a cell ends with an expression or a call of print."""
    if re.search(r"^\s*%", source, re.MULTILINE):
        return False
    return isinstance(ast.parse(source).body[-1], ast.Expr)


@pytest.mark.skipif(
    find_spec("nbclient") is None or find_spec("ipykernel") is None, reason="needs the extra test"
)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    """A copy runs without an error, and has outputs of the same types as the stored notebook."""
    program = str(ROOT / "tests" / "support" / "execute_notebooks.py")
    command = [sys.executable, program, str(NOTEBOOKS[name]), "--output", str(tmp_path)]
    # Programs are compiled as for users, because training takes more time than compiling.
    environment = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=SECONDS, env=environment
    )
    assert done.returncode == 0, done.stderr
    executed, stored = (
        [{kind for kind, _ in texts_of(cell)} - {"stderr"} for cell in read_cells(path, "code")]
        for path in (tmp_path / NOTEBOOKS[name].name, NOTEBOOKS[name])
    )
    assert executed == stored


@pytest.mark.quick
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_stored_outputs_are_complete(name: str) -> None:
    """All cells were executed in order, without warnings or absolute paths.

    Only cells with the tag "raises-exception" have errors, which are one or a few lines.
    """
    cells = read_cells(NOTEBOOKS[name], "code")
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    empty = [
        cell["source"] for cell in cells if shows_value(cell["source"]) and not cell["outputs"]
    ]
    assert empty == []
    shown = [(kind, text) for cell in cells for kind, text in texts_of(cell)]
    failed = [cell for cell in cells if "error" in dict(texts_of(cell))]
    assert failed == [
        cell for cell in cells if "raises-exception" in cell["metadata"].get("tags", ())
    ]
    errors = [text for kind, text in shown if kind == "error"]
    assert [text for text in errors if len(text.splitlines()) > MAX_ERROR_LINES] == []
    told = [text for kind, text in shown if kind == "stderr"]
    assert [text for text in told if text.strip() != INTERRUPT_MESSAGE] == []
    readable = [text for kind, text in shown if kind != "image/png" and ";base64," not in text]
    assert [text for text in readable if FOLDERS.search(text)] == []


@pytest.mark.quick
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_stored_outputs_are_small(name: str) -> None:
    cells = read_cells(NOTEBOOKS[name], "code")
    assert NOTEBOOKS[name].stat().st_size < MAX_NOTEBOOK_BYTES
    pictures = [picture for cell in cells for picture in pictures_of(cell)]
    assert pictures
    assert [(kind, len(data)) for kind, data in pictures if len(data) > MAX_BYTES[kind]] == []
    lengths = {cell["source"]: len(cell["source"].splitlines()) for cell in cells}
    assert [source for source, length in lengths.items() if length > MAX_CELL_LINES] == []


@pytest.mark.quick
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_first_cell_installs_rollax(name: str) -> None:
    """It uses the address in pyproject.toml, and only runs if rollax is missing."""
    source = read_cells(NOTEBOOKS[name], "code")[0]["source"]
    address = re.search(
        r'^repository = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert address is not None
    requirement = f"rollax[{EXTRAS.get(name, 'pandas')}] @ git+{address[1]}"
    condition, install = source.splitlines()[-2:]
    assert condition == 'if importlib.util.find_spec("rollax") is None:'
    assert install == f'    %pip install -q "{requirement}"'


@pytest.mark.quick
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_links_of_a_notebook(name: str) -> None:
    """The documentation links to the notebook, and links of the notebook lead to files."""
    assert f"(../notebooks/{name}.ipynb)" in (ROOT / "docs" / "notebooks.md").read_text()
    text = "\n".join(cell["source"] for cell in read_cells(NOTEBOOKS[name], "markdown"))
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)]
    assert [link for link in links if not (ROOT / "notebooks" / link).exists()] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_site_has_a_page_of_the_notebook(name: str) -> None:
    """The page has all cells and images."""
    pytest.importorskip("mkdocs")
    hooks = runpy.run_path(str(ROOT / "docs" / "hooks.py"))
    page = hooks["text_of"](f"notebooks/{name}.ipynb")
    for kind in ("code", "markdown"):
        assert [
            cell for cell in read_cells(NOTEBOOKS[name], kind) if cell["source"] not in page
        ] == []
    pictures = [
        picture for cell in read_cells(NOTEBOOKS[name], "code") for picture in pictures_of(cell)
    ]
    assert page.count(";base64,") == len(pictures)


@pytest.mark.quick
def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 6
