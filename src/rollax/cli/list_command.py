"""Command `rollax ls`."""

import dataclasses
import datetime
import json
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollax.cli.parsing.dynamic_options import parse_options
from rollax.cli.parsing.shared_options import SharedOptions
from rollax.errors import UsageError
from rollax.runtime.printing import escape_to_one_line, print_line
from rollax.training.evaluation.metrics import format_number
from rollax.training.run_folder.run_summary import summarize_run
from rollax.training.run_folder.tables import find_runs
from rollax.types import Record

DEFAULT_FOLDER = Path("runs")


@dataclasses.dataclass(frozen=True)
class ListOptions:
    """List runs, newest last, with algorithm, environment, progress, best evaluation and status."""

    folders: tyro.conf.Positional[tuple[Path, ...]] = (DEFAULT_FOLDER,)
    """Folders that contain runs, runs, or patterns such as "runs/*"."""
    json: bool = False
    """Print JSON."""


def ls(arguments: list[str], shared: SharedOptions) -> int:
    """Run `rollax ls` and return its exit code."""
    options = parse_options(ListOptions, arguments, "rollax ls")
    if options.folders == (DEFAULT_FOLDER,) and not DEFAULT_FOLDER.exists():
        raise UsageError(
            f"The folder {DEFAULT_FOLDER} does not exist. Run `rollax ls FOLDER` to list another."
        )
    rows = sorted(
        (summarize_run(folder) for folder in find_runs(options.folders)),
        key=lambda row: row["changed"],
    )
    if options.json:
        print_line(json.dumps(rows))
        return 0
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200, no_color=True)
    with console.capture() as captured:
        console.print(_make_run_table(rows))
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
    return 0


def _make_run_table(rows: list[Record]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in (
        "run",
        "algorithm",
        "environment",
        "members",
        "steps",
        "best",
        "status",
        "changed",
    ):
        table.add_column(
            name,
            justify="right" if name in ("members", "steps") else "left",
            no_wrap=name != "run",
            overflow="fold",
        )
    for row in rows:
        best = "-" if row["best"] is None else f"{row['best_metric']} {format_number(row['best'])}"
        done = "-" if row["steps"] is None else f"{row['steps']:,}"
        done += (
            ""
            if row["total_steps"] is None or row["status"] == "done"
            else f" of {row['total_steps']:,}"
        )
        members = "" if row["members"] is None else str(row["members"])
        cells = (
            row["run"],
            row["algorithm"],
            row["environment"],
            members,
            done,
            best,
            row["status"],
            _format_date(row["changed"]),
        )
        # `Text` keeps rich from parsing the cells as markup.
        table.add_row(*(Text(escape_to_one_line(cell)) for cell in cells))
    return table


def _format_date(seconds: float) -> str:
    """Format seconds since the epoch as a date, or as `-` if the date is not representable."""
    try:
        return datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return "-"
