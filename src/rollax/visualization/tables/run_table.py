"""Table of runs, with conversion to text, LaTeX, Markdown, CSV and data frames."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from rollax.training.run_folder.files import write_output_file
from rollax.training.run_folder.metric_sinks import missing_package_error
from rollax.user_input.coercion import format_repr
from rollax.visualization.tables import table_formats
from rollax.visualization.tables.table_formats import Cell, Column

if TYPE_CHECKING:
    import pandas


@dataclasses.dataclass(frozen=True, repr=False)
class RunTable:
    """Table of runs. Its conversion methods are named as in `pandas.DataFrame`.

    Attributes:
        columns: Name and title of each column, and whether its cells have intervals.
        rows: Cells of each row. A cell is a value, an `Estimate` with an interval, or None.
        notes: Notes for the caption, such as the meaning of intervals and the skipped runs.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def to_string(self, width: int | None = None) -> str:
        """Return the table as aligned text.

        Args:
            width: Maximum number of characters per line. Long cells are folded to fit. None
                disables folding.
        """
        return table_formats.format_text(
            self.columns, self.rows, table_formats.UNLIMITED_WIDTH if width is None else width
        )

    def to_latex(self, path: Path | str | None = None) -> str:
        """Return the table as a LaTeX `tabular` that uses the package booktabs.

        Args:
            path: Output file for the text, or None for no file. An existing file is replaced.
        """
        return _write(table_formats.format_latex(self.columns, self.rows), path)

    def to_markdown(self, path: Path | str | None = None) -> str:
        """Return the table as Markdown.

        Args:
            path: Output file for the text, or None for no file. An existing file is replaced.
        """
        return _write(table_formats.format_markdown(self.columns, self.rows), path)

    def to_csv(self, path: Path | str | None = None) -> str:
        """Return the table as CSV in full precision. An estimate has three columns.

        Args:
            path: Output file for the text, or None for no file. An existing file is replaced.
        """
        return _write(table_formats.format_csv(self.columns, self.rows), path)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the table as a data frame with the columns of `to_csv`.

        Raises:
            UsageError: If pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise missing_package_error("pandas") from error
        names = table_formats.expand_names(self.columns)
        rows = [table_formats.expand_row(self.columns, row) for row in self.rows]
        return pandas.DataFrame(rows, columns=pandas.Index(names))

    def __str__(self) -> str:
        """Return the table as text, followed by its notes."""
        notes = "".join(f"\n{table_formats.clean_text(note)}" for note in self.notes)
        return f"{self.to_string()}{notes}"

    def __repr__(self) -> str:
        return format_repr("RunTable", rows=len(self.rows), columns=len(self.columns))

    def _repr_markdown_(self) -> str:
        """Return the table as Markdown, for display in notebooks."""
        return self.to_markdown()


def _write(text: str, path: Path | str | None) -> str:
    """Return the text, after writing it to a file if `path` is not None."""
    if path is not None:
        write_output_file(Path(path), text.encode(), ". Choose another path.")
    return text
