"""Tables of runs, which can be converted to text, LaTeX, Markdown, CSV and data frames."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from rollax.coercion import format_repr
from rollax.training.run_folder.files import write_output_file
from rollax.training.run_folder.metric_sinks import missing_package_error
from rollax.visualization.tables import table_formats
from rollax.visualization.tables.table_formats import Cell, Column

if TYPE_CHECKING:
    import pandas


@dataclasses.dataclass(frozen=True, repr=False)
class RunTable:
    """Table of runs. The methods have the names that data frames of pandas use.

    Attributes:
        columns: Columns.
        rows: Cells of each row. An estimate has a value and the ends of its interval.
        notes: Facts for the caption, such as the meaning of intervals and the skipped runs.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def to_string(self, width: int | None = None) -> str:
        """Return the table as aligned text.

        Args:
            width: Number of characters per line. Longer cells are folded. None does not fold.
        """
        return table_formats.format_text(
            self.columns, self.rows, table_formats.UNLIMITED_WIDTH if width is None else width
        )

    def to_latex(self, path: Path | str | None = None) -> str:
        """Return the table as a LaTeX `tabular` with the rules of the package booktabs.

        Args:
            path: File to write as well, or None. An existing file is replaced.
        """
        return _write(table_formats.format_latex(self.columns, self.rows), path)

    def to_markdown(self, path: Path | str | None = None) -> str:
        """Return the table as Markdown.

        Args:
            path: File to write as well, or None. An existing file is replaced.
        """
        return _write(table_formats.format_markdown(self.columns, self.rows), path)

    def to_csv(self, path: Path | str | None = None) -> str:
        """Return the table as CSV with all digits, and with three columns for each estimate.

        Args:
            path: File to write as well, or None. An existing file is replaced.
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
        """Return the table for notebooks."""
        return self.to_markdown()


def _write(text: str, path: Path | str | None) -> str:
    """Write the text to a file if there is a path, and return it."""
    if path is not None:
        write_output_file(Path(path), text.encode(), ". Choose another path.")
    return text
