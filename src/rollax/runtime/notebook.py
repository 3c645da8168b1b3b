"""Display of results in notebooks: tables, animations and figures."""

import base64
import dataclasses
import html
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollax.runtime.printing import escape_control_characters

MAX_CELL_CHARACTERS = 200
PAGE_HEIGHT = 480  # pixels of an HTML page in a notebook


def format_html_table(title: str, values: Mapping[str, object]) -> str:
    """Return an HTML table with one row per value, for `_repr_html_`.

    Names and values are escaped, and long values are shortened.

    Args:
        title: Title of the table.
        values: Values, keyed by name. Values of None are omitted.
    """
    rows = "".join(
        f'<tr><th style="text-align:left">{_format_cell(name)}</th>'
        f'<td style="text-align:left">{_format_cell(value)}</td></tr>'
        for name, value in values.items()
        if value is not None
    )
    heading = f'<th colspan="2" style="text-align:left">{_format_cell(title)}</th>'
    return f"<table><thead><tr>{heading}</tr></thead><tbody>{rows}</tbody></table>"


def _format_cell(value: object) -> str:
    """Return the escaped text of a value. Floats have six significant digits."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if len(text) > MAX_CELL_CHARACTERS:
        text = f"{text[:MAX_CELL_CHARACTERS]}..."
    return html.escape(escape_control_characters(text))


@dataclasses.dataclass(frozen=True)
class Animation:
    """Path of an animation or image file, displayed in notebooks.

    `os.fspath` returns the path, so functions that take a path accept the object.

    Attributes:
        path: Path of the file.
    """

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        """Return HTML with the content of the file embedded."""
        try:
            content = self.path.read_bytes()
        except OSError as error:
            return f"<p>{_format_cell(self.path)} cannot be read: {_format_cell(error)}</p>"
        suffix = self.path.suffix.lower()
        if suffix in (".html", ".htm"):
            page = html.escape(content.decode(errors="replace"))
            style = f"width:100%;height:{PAGE_HEIGHT}px;border:0"
            return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="{style}"></iframe>'
        encoded = base64.b64encode(content).decode("ascii")
        if suffix == ".mp4":
            source = f"data:video/mp4;base64,{encoded}"
            return f'<video src="{source}" controls autoplay loop muted></video>'
        kind = "png" if suffix == ".png" else "gif"
        return (
            f'<img src="data:image/{kind};base64,{encoded}" alt="{_format_cell(self.path.name)}">'
        )


def enable_figure_display() -> None:
    """Make IPython display matplotlib figures, unless it already does.

    The inline backend of notebooks displays figures only after `matplotlib.pyplot` was used.
    """
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return
    from IPython.core.pylabtools import select_figure_formats
    from matplotlib.figure import Figure

    formatters = shell.display_formatter.formatters
    if not any(Figure in formatter.type_printers for formatter in formatters.values()):
        select_figure_formats(shell, {"png"})
