"""Command `rollax table`."""

import dataclasses
import os
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console

from rollax.cli.parsing.dynamic_options import parse_options
from rollax.cli.parsing.shared_options import SharedOptions
from rollax.errors import UsageError
from rollax.runtime.printing import print_line, print_note
from rollax.training.options import check_path
from rollax.training.run_folder.files import write_output_file
from rollax.visualization.tables.paper_tables import TABLE_KINDS, TableKind, make_tables
from rollax.visualization.tables.run_table import RunTable

TableFormat = Literal["text", "latex", "markdown", "csv"]
FORMATS_BY_SUFFIX: dict[str, TableFormat] = {
    ".tex": "latex",
    ".md": "markdown",
    ".csv": "csv",
    ".txt": "text",
}


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """Print the results of runs with intervals, and their hyperparameters, as tables for a paper.

    Runs that differ only in their seeds are one row of the results and one column of the
    hyperparameters. The notes for the caption are printed to standard error.

      rollax table runs/* --latex --out tables.tex
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs, folders that contain runs, or patterns such as "runs/*"."""
    latex: bool = False
    """Print LaTeX for the package booktabs."""
    markdown: bool = False
    """Print Markdown."""
    csv: bool = False
    """Print CSV with all digits."""
    kind: TableKind | None = None
    """Table to print. Defaults to both."""
    all_settings: bool = False
    """Include settings that have their default value in all groups."""
    label: tuple[str, ...] = ()
    """Labels of the groups, in order."""
    out: Path | None = None
    """File to write (.tex, .md, .csv or .txt). CSV writes the second table to another file."""
    overwrite: bool = False
    """Replace an existing file."""


def table(arguments: list[str], shared: SharedOptions) -> int:
    """Run `rollax table` and return its exit code."""
    options = parse_options(TableOptions, arguments, "rollax table")
    if not options.runs:
        raise UsageError("table needs one or more run folders. Run `rollax table RUN`.")
    kind = _choose_format(options)
    kinds = TABLE_KINDS if options.kind is None else (options.kind,)
    targets = [] if options.out is None else _list_targets(options.out, kind, kinds)
    _check_targets(targets, options.overwrite)
    tables = make_tables(options.runs, kinds, options.all_settings, options.label)
    width = _terminal_width() if options.out is None else None
    texts = [_format_table(each, kind, width) for each in tables]
    if targets:
        _write_files(targets, texts)
    else:
        print_line("\n".join(texts).removesuffix("\n"))
    for note in dict.fromkeys(note for each in tables for note in each.notes):
        print_note(note)
    return 0


def _choose_format(options: TableOptions) -> TableFormat:
    """Return the requested format, or the format that matches the suffix of the output file."""
    formats: dict[TableFormat, bool] = {
        "latex": options.latex,
        "markdown": options.markdown,
        "csv": options.csv,
    }
    chosen: list[TableFormat] = [name for name, is_chosen in formats.items() if is_chosen]
    if len(chosen) > 1:
        names = " and ".join(f"--{name}" for name in chosen)
        raise UsageError(f"{names} exclude each other. Choose one of them.")
    if chosen:
        return chosen[0]
    if options.out is None:
        return "text"
    if options.out.suffix.lower() not in FORMATS_BY_SUFFIX:
        raise UsageError(
            f"--out must end in .tex, .md, .csv or .txt, got {options.out}. "
            "Choose one of them, or add --latex, --markdown or --csv."
        )
    return FORMATS_BY_SUFFIX[options.out.suffix.lower()]


def _list_targets(out: Path, table_format: TableFormat, kinds: tuple[TableKind, ...]) -> list[Path]:
    """Return the paths of the output files: one file, or for CSV one file per table."""
    if table_format != "csv":
        return [out]
    return [out, *(out.with_name(f"{out.stem}-{name}{out.suffix}") for name in kinds[1:])]


def _check_targets(targets: list[Path], overwrite: bool) -> None:
    """Raise UsageError if a path is invalid, or if a file exists and `overwrite` is False."""
    for path in targets:
        check_path("out", path)
        if os.path.lexists(path) and not overwrite:
            raise UsageError(
                f"{path} already exists. Choose another --out, or replace it with --overwrite."
            )


def _write_files(targets: list[Path], texts: list[str]) -> None:
    """Write one text to each file, or all texts to a single file, and print the paths."""
    contents = texts if len(targets) == len(texts) else ["\n".join(texts)]
    for path, content in zip(targets, contents, strict=True):
        write_output_file(path, content.encode(), ". Choose another --out.")
        print_line(path)


def _terminal_width() -> int | None:
    """Return the width of the terminal, or None if the output is not a terminal."""
    console = Console()
    return console.width if console.is_terminal else None


def _format_table(table: RunTable, table_format: TableFormat, width: int | None) -> str:
    if table_format == "latex":
        return table.to_latex()
    if table_format == "markdown":
        return table.to_markdown()
    return table.to_csv() if table_format == "csv" else table.to_string(width)
