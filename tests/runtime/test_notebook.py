"""Tests of notebook output: tables with escaped markup, files, and figures."""

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rollax
from rollax.runtime.notebook import Animation, format_html_table

pytestmark = pytest.mark.quick
MARKUP = '<script>alert("no")</script>'


def test_a_table_escapes_markup() -> None:
    table = format_html_table(
        MARKUP, {MARKUP: MARKUP, "none": None, "escape": "\x1b[31m", "x": 0.5}
    )
    assert "<script" not in table and table.count("&lt;script&gt;") == 3
    assert table.count("<tr>") == 4 and "none" not in table and "\x1b" not in table
    assert ">0.5<" in table
    assert len(format_html_table("long", {"text": "x" * 10_000})) < 1000


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("a.gif", '<img src="data:image/gif;base64,'),
        ("a.GIF", '<img src="data:image/gif;base64,'),
        ("a.png", '<img src="data:image/png;base64,'),
        ("a.mp4", '<video src="data:video/mp4;base64,'),
    ],
)
def test_a_file_is_embedded(tmp_path: Path, name: str, start: str) -> None:
    (tmp_path / name).write_bytes(b"content")
    shown = Animation(tmp_path / name)._repr_html_()
    assert shown.startswith(start) and base64.b64encode(b"content").decode() in shown
    assert Path(Animation(tmp_path / name)) == tmp_path / name


def test_a_page_is_embedded_in_a_sandbox(tmp_path: Path) -> None:
    """Its scripts cannot reach the notebook."""
    (tmp_path / "a.html").write_text('<p title="x">"quoted"</p>')
    shown = Animation(tmp_path / "a.html")._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;p title=&quot;x&quot;&gt;')
    assert 'sandbox="allow-scripts"' in shown


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    shown = Animation(tmp_path / f"{'<b>'}.gif")._repr_html_()
    assert "&lt;b&gt;.gif cannot be read" in shown and "<b>" not in shown


SESSION = """
from IPython.core.interactiveshell import InteractiveShell
from matplotlib.figure import Figure

from rollax.runtime.notebook import enable_figure_display

enable_figure_display()  # without a shell, this does nothing
shell = InteractiveShell.instance()
enable_figure_display()
figure = Figure()
figure.subplots().plot([1, 2])
shown, _ = shell.display_formatter.format(figure)
assert "image/png" in shown
printers = shell.display_formatter.formatters["image/png"].type_printers
before = printers[Figure]
enable_figure_display()
assert printers[Figure] is before
shell.run_cell("import rollax")
shell.run_cell("rollax.make('gymnax/CartPole-v7')")
shell.run_cell("1 / 0")
"""


def test_a_session_of_ipython(tmp_path: Path) -> None:
    """Figures are shown without pyplot, and errors of rollax have one line instead of a traceback.

    It runs in a separate process, because a shell changes its process.
    """
    pytest.importorskip("IPython")
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    environment.pop("ROLLAX_TRACEBACK", None)
    environment["PYTHONPATH"] = str(Path(rollax.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.splitlines()
    assert first == (
        "UnknownNameError: unknown environment 'gymnax/CartPole-v7': did you mean "
        "gymnax/CartPole-v1 or gymnasium/CartPole-v0 or gymnasium/CartPole-v1?"
    )
    assert "Traceback" in others[1] and "division by zero" in others[-1]
