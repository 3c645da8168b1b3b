"""Reproduction of the learning results in docs/benchmarks.md.

    python benchmarks/learning.py --fast             rows that take a few minutes each
    python benchmarks/learning.py --only Pendulum    rows with this word in task, algorithm or flags
    python benchmarks/learning.py --list             list the rows without training

Each row is a run of `rollax train` with its preset, in its own folder under --out. Finished runs
are read, and interrupted runs are resumed. The last line contains the number of rows that hold. The
exit status is 1 if a row does not hold.
"""

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml
from peers import processor

from rollax.training.run_folder import metric_sinks, tables
from rollax.training.run_folder.layout import METRICS_FILE, read_spec

TABLE = Path(__file__).with_suffix(".yaml")
KEYS = {"task", "algorithm", "seeds", "bar", "fast", "published", "steps", "flags", "column"}
COLUMNS = (
    "task",
    "algorithm",
    "steps",
    "seeds",
    "reached",
    "lowest to highest",
    "bar",
    "",
    "minutes",
)


def rows(table: Path, only: list[str], fast: bool) -> list[dict[str, Any]]:
    """Return the selected rows of a table. Exit if no row is selected or a row has unknown keys.

    Args:
        table: YAML file of rows.
        only: Words that a row must contain.
        fast: Whether to select only fast rows.
    """
    known = yaml.safe_load(table.read_text())
    for row in known:
        if set(row) - KEYS or not {"task", "algorithm", "seeds", "bar"} <= set(row):
            sys.exit(
                f"{table}: {row} must have task, algorithm, seeds and bar, and may have "
                f"{', '.join(sorted(KEYS))}"
            )
    words = [word.lower() for word in only]
    found = [
        row
        for row in known
        if all(word in f"{row['algorithm']} {task_of(row)}".lower() for word in words)
    ]
    found = [row for row in found if row.get("fast") or not fast]
    if not found:
        sys.exit(f"no row has {' and '.join(only) or 'fast'}: see --list")
    return found


def task_of(row: dict[str, Any]) -> str:
    """Return the environment of a row with its flags."""
    return " ".join(map(str, [row["task"], *row.get("flags", [])]))


def folder_of(row: dict[str, Any], out: Path) -> Path:
    flags = "".join(f"-{word.strip('-')}" for word in map(str, row.get("flags", [])))
    return out / f"{row['algorithm']}-{row['task']}{flags}".replace("/", "-")


def trained(row: dict[str, Any], out: Path) -> Path | None:
    """Train or resume the run of a row unless it is finished.

    Returns:
        Folder of the finished run, or None if training failed, which is printed.
    """
    folder = folder_of(row, out)
    command = [sys.executable, "-m", "rollax"]
    if (folder / "config.yaml").exists():
        if last_step(folder) >= read_spec(folder).options.total_steps:
            return folder
        command += ["resume", str(folder)]
    else:
        command += [
            "train",
            row["algorithm"],
            row["task"],
            "--seeds",
            str(row["seeds"]),
            "--run-dir",
            str(folder),
        ]
        command += ["--total-steps", str(row["steps"])] if "steps" in row else []
        command += ["--no-tensorboard", *map(str, row.get("flags", []))]
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        print(f"{' '.join(command)} failed:\n{done.stderr}", file=sys.stderr, flush=True)
    return None if done.returncode else folder


def records_of(folder: Path) -> list[dict[str, Any]]:
    return (
        metric_sinks.read_metrics(folder / METRICS_FILE) if (folder / METRICS_FILE).exists() else []
    )


def last_step(folder: Path) -> int:
    """Return the step of the last evaluation of a run, or 0 without one."""
    return max(
        (record["step"] for record in records_of(folder) if record.get("event") == "evaluation"),
        default=0,
    )


def reached(row: dict[str, Any], folder: Path) -> np.ndarray:
    """Return the result of the last evaluation as the mean over episodes, `[seeds]`.

    The result is the return, unless the row has another column.
    """
    columns = tables.make_evaluation_columns(folder, read_spec(folder), records_of(folder))
    last = columns["step"] == columns["step"].max()
    value, member = columns[row.get("column", "return")][last], columns["member"][last]
    return np.asarray([value[member == each].mean() for each in np.unique(member)])


def line(row: dict[str, Any], folder: Path) -> tuple[str, bool]:
    """Return the Markdown table row of a finished run, and whether its result reaches the bar."""
    values, spec = reached(row, folder), read_spec(folder)
    holds = bool(values.mean() >= row["bar"])
    minutes = max(record.get("wall_time", 0) for record in records_of(folder)) / 60
    span = "" if len(values) == 1 else f"{values.min():.4g} to {values.max():.4g}"
    said = "holds" if holds else f"**misses by {row['bar'] - values.mean():.3g}**"
    bar = f"{row['bar']:g} ({row['published']})" if "published" in row else f"{row['bar']:g}"
    about = (
        task_of(row),
        row["algorithm"],
        f"{spec.options.total_steps:,}",
        str(len(values)),
        f"**{values.mean():.4g}**",
    )
    return joined([*about, span, bar, said, f"{minutes:.1f}"]), holds


def joined(cells: Iterable[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def show(wanted: list[dict[str, Any]]) -> None:
    for row in wanted:
        fast = " (fast)" if row.get("fast") else ""
        print(
            f"{row['algorithm']:<8} {task_of(row):<72} {row['seeds']} seeds, at least "
            f"{row['bar']}{fast}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fast", action="store_true", help="only rows of a few minutes")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="only rows with all of these words"
    )
    parser.add_argument("--list", action="store_true", help="print the rows and train nothing")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/learning"),
        help="where the runs are kept: %(default)s",
    )
    parser.add_argument(
        "--table", type=Path, default=TABLE, help="another table than benchmarks/learning.yaml"
    )
    arguments = parser.parse_args()
    wanted = rows(arguments.table, arguments.only, arguments.fast)
    if arguments.list:
        show(wanted)
        return 0
    print(
        f"{processor()}, {os.cpu_count()} processors, Python {platform.python_version()}, jax "
        f"{jax.__version__}\n"
    )
    print(f"{joined(COLUMNS)}\n{'|---' * len(COLUMNS)}|", flush=True)
    held = 0
    for row in wanted:
        folder = trained(row, arguments.out)
        failed = joined([row["task"], row["algorithm"], "", "", "failed", "", "", "", ""])
        text, holds = line(row, folder) if folder else (failed, False)
        held += holds
        print(text, flush=True)
    print(f"\n{held} of {len(wanted)} rows hold")
    return int(held < len(wanted))


if __name__ == "__main__":
    sys.exit(main())
