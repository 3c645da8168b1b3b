"""Formatting of tables as aligned text, LaTeX, Markdown and CSV.

Text may come from untrusted run folders. Each format escapes its special characters. Control
characters are escaped, and passwords in URLs are masked.
"""

import csv
import io
import math
import re
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollax.runtime.printing import escape_to_one_line, mask_secrets
from rollax.visualization.plots.intervals import Estimate, format_estimate

Scalar: TypeAlias = str | int | float | bool | None
Cell: TypeAlias = Scalar | Estimate
Rows: TypeAlias = Sequence[Sequence[Cell]]

MAX_TEXT_CHARACTERS = 200  # of a cell, except in CSV
UNLIMITED_WIDTH = 1_000_000  # columns of text, if lines must not be folded
LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{character: f"\\{character}" for character in "_%&#${}"},
}
# A `*` or `[` after the end of a row would be read as an argument of the line break.
LATEX_LINE_BREAK_ARGUMENTS = ("*", "[")
MARKDOWN_ESCAPES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    **{character: f"\\{character}" for character in "\\|`*~$"},
}
# Underscores inside words do not start emphasis, and a bracket without an address is not a link.
_MARKDOWN_EMPHASIS = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
# Spreadsheets execute text that starts with these characters, or their full-width variants.
FORMULA_STARTS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")


class Column(NamedTuple):
    """Column of a table.

    Attributes:
        name: Name in CSV files and data frames.
        title: Title in text, LaTeX and Markdown.
        has_interval: Whether the cells are estimates. In CSV files and data frames, an estimate has
            three columns: `<name>`, `<name>_low` and `<name>_high`.
    """

    name: str
    title: str
    has_interval: bool = False


def clean_text(text: str) -> str:
    """Return the text as one line, with control characters escaped and passwords masked."""
    return mask_secrets(escape_to_one_line(text))


def format_cell(cell: Cell) -> str:
    """Format a cell for text, LaTeX and Markdown. A missing value is "-"."""
    if cell is None:
        return "-"
    if isinstance(cell, Estimate):
        return format_estimate(cell)
    if isinstance(cell, str):
        text = clean_text(cell)
        cut = text[:MAX_TEXT_CHARACTERS]
        return text if len(text) <= MAX_TEXT_CHARACTERS else f"{cut} ..."
    if isinstance(cell, bool):
        return str(cell)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.6g}"


def format_text(columns: Sequence[Column], rows: Rows, width: int = UNLIMITED_WIDTH) -> str:
    """Format a table as aligned text.

    Args:
        columns: Columns.
        rows: Cells of each row.
        width: Maximum number of characters per line. Long cells are folded to fit.

    Returns:
        The text, with a line break at the end.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column, is_numeric in zip(columns, _numeric_columns(columns, rows), strict=True):
        table.add_column(
            Text(format_cell(column.title)),
            justify="right" if is_numeric else "left",
            overflow="fold",
        )
    for row in rows:
        # `Text` keeps rich from parsing the cells as markup.
        table.add_row(*(Text(format_cell(cell)) for cell in row))
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def format_latex(columns: Sequence[Column], rows: Rows) -> str:
    """Format a table as a LaTeX `tabular` that uses the package booktabs.

    Args:
        columns: Columns.
        rows: Cells of each row.

    Returns:
        The text, with a line break at the end.
    """
    alignment = "".join("r" if each else "l" for each in _numeric_columns(columns, rows))
    head = _latex_row([escape_latex(format_cell(column.title)) for column in columns])
    body = [_latex_row([_format_latex_cell(cell) for cell in row]) for row in rows]
    lines = [
        "% Add \\usepackage{booktabs} to the preamble.",
        f"\\begin{{tabular}}{{{alignment}}}",
        "\\toprule",
        head,
        "\\midrule",
        *body,
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return "".join(f"{line}\n" for line in lines)


def escape_latex(text: str) -> str:
    """Return the text with the special characters of LaTeX escaped."""
    return "".join(LATEX_ESCAPES.get(character, character) for character in text)


def _latex_row(cells: list[str]) -> str:
    if cells[0].startswith(LATEX_LINE_BREAK_ARGUMENTS):
        cells = [f"{{}}{cells[0]}", *cells[1:]]
    return f"{' & '.join(cells)} \\\\"


def _format_latex_cell(cell: Cell) -> str:
    """Format a cell for LaTeX, with numbers in math mode."""
    text = format_cell(cell)
    if isinstance(cell, str | bool):
        return escape_latex(text)
    if text == "-":
        return "--"
    text = re.sub(r"(?<=\d),(?=\d{3})", "{,}", text)
    text = re.sub(r"([\d.]+)e([+-])0*(\d+)", _format_latex_power, text)
    return f"${text.replace(' [', chr(92) + '; [').replace('inf', chr(92) + 'infty')}$"


def _format_latex_power(match: re.Match[str]) -> str:
    """Convert a matched number such as `2.5e-05` to LaTeX: a product with a power of ten."""
    mantissa, sign, exponent = match.groups()
    power = f"10^{{{sign if sign == '-' else ''}{exponent}}}"
    return power if mantissa == "1" else f"{mantissa} \\times {power}"


def format_markdown(columns: Sequence[Column], rows: Rows) -> str:
    """Format a table as Markdown.

    Args:
        columns: Columns.
        rows: Cells of each row.

    Returns:
        The text, with a line break at the end.
    """
    rules = ["---:" if each else "---" for each in _numeric_columns(columns, rows)]
    lines = [
        [escape_markdown(format_cell(column.title)) for column in columns],
        rules,
        *([escape_markdown(format_cell(cell)) for cell in row] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def escape_markdown(text: str) -> str:
    """Return the text with the special characters of Markdown tables and of HTML escaped."""
    escaped = "".join(MARKDOWN_ESCAPES.get(character, character) for character in text)
    return _MARKDOWN_EMPHASIS.sub(r"\\_", escaped).replace("](", "]\\(")


def format_csv(columns: Sequence[Column], rows: Rows) -> str:
    """Format a table as CSV, with numbers in full precision and empty cells for missing values.

    Text that a spreadsheet would read as a formula is prefixed with an apostrophe.

    Args:
        columns: Columns.
        rows: Cells of each row.

    Returns:
        The text, with a line break at the end.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(_format_csv_cell, expand_names(columns)))
    for row in rows:
        writer.writerow(map(_format_csv_cell, expand_row(columns, row)))
    return buffer.getvalue()


def _format_csv_cell(cell: Scalar) -> str | int | float:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if not isinstance(cell, str):
        return cell
    text = clean_text(cell)
    return f"'{text}" if text.lstrip().startswith(FORMULA_STARTS) else text


def expand_names(columns: Sequence[Column]) -> list[str]:
    """Return the CSV column names. A column of estimates has three: value, low and high end."""
    endings = {True: ("", "_low", "_high"), False: ("",)}
    return [f"{column.name}{end}" for column in columns for end in endings[column.has_interval]]


def expand_row(columns: Sequence[Column], row: Sequence[Cell]) -> list[Scalar]:
    """Return the CSV values of a row. An estimate becomes three values: value, low and high end."""
    values: list[Scalar] = []
    for column, cell in zip(columns, row, strict=True):
        if isinstance(cell, Estimate):
            values += [*cell]
        else:
            values += [None] * 3 if column.has_interval else [cell]
    return values


def _numeric_columns(columns: Sequence[Column], rows: Rows) -> list[bool]:
    """Return whether each column contains only numbers and missing values. False without rows."""
    return [
        bool(rows) and not any(isinstance(row[index], str | bool) for row in rows)
        for index in range(len(columns))
    ]
