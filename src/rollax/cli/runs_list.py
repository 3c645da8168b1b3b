"""The command that lists runs."""

import dataclasses
import datetime
import json
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from rollax.cli.shared import Shared
from rollax.cli.words import parse
from rollax.errors import UsageError

FOLDER = Path("runs")


@dataclasses.dataclass(frozen=True)
class List:
    """Lists runs, the newest last: what was trained on what, how far, its best evaluation, and whether it is done."""

    folders: tyro.conf.Positional[tuple[Path, ...]] = (FOLDER,)
    """Folders that contain runs, runs, or patterns such as "runs/*"."""
    json: bool = False
    """As JSON."""


def ls(arguments: list[str], shared: Shared) -> int:
    from rollax.host.listing import of_run
    from rollax.host.reading import find

    given = parse(List, arguments, "rollax ls")
    if given.folders == (FOLDER,) and not FOLDER.exists():
        raise UsageError(f"there is no folder {FOLDER} here: rollax ls FOLDER lists the runs in another")
    rows = sorted((of_run(folder) for folder in find(given.folders)), key=lambda row: row["changed"])
    if given.json:
        print(json.dumps(rows))
        return 0
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200, no_color=True)
    with console.capture() as captured:
        console.print(_table(rows))
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
    return 0


def _table(rows: list[dict[str, Any]]) -> Table:
    from rollax.host.evaluation import digits

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("run", "algorithm", "environment", "members", "steps", "best", "status", "changed"):
        table.add_column(
            name, justify="right" if name in ("members", "steps") else "left", no_wrap=name != "run", overflow="fold"
        )
    for row in rows:
        best = "-" if row["best"] is None else f"{row['best_metric']} {digits(row['best'])}"
        done = "-" if row["steps"] is None else f"{row['steps']:,}"
        done += "" if row["total_steps"] is None or row["status"] == "done" else f" of {row['total_steps']:,}"
        when = datetime.datetime.fromtimestamp(row["changed"]).strftime("%Y-%m-%d %H:%M")
        members = "" if row["members"] is None else str(row["members"])
        table.add_row(row["run"], row["algorithm"], row["environment"], members, done, best, row["status"], when)
    return table
