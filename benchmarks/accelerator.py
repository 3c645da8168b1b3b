"""Speed of training on a GPU, a TPU or another accelerator, within a time limit.

Usage: `python benchmarks/accelerator.py [ROW ...] [--limit 480] [--out FOLDER] [--small]`.

The rows are measured one after the other, the most telling ones first, until the time limit is
reached. Each row is a steady speed over 20 seconds, the time that the whole task would take at this
speed, compile times, the memory that the compiler predicted and that the device used, and shares of
the limits of the device: a large matrix product and a copy, measured in the first row. Each row
runs in a separate process.

A row is appended to FOLDER/accelerator-<time>.jsonl as soon as it ends, and the Markdown table and
the picture next to the file are then updated. They are complete when the program is stopped by the
time limit or a signal. `--resume FILE` continues with the rows that are not in a file yet.

The machine needs neither a network nor an installation of rollax (see carry_wheels.py):

    PYTHONPATH=src:CARRIED python benchmarks/accelerator.py --peers PEERS

PEERS is a folder with the packages of rejax and distrax, and a copy of luchris429/purejaxrl in
PEERS/purejaxrl. Rows whose packages cannot be imported are skipped. `--small` uses small sizes and
one second per row, to test the program on a CPU.
"""

import argparse
import json
import queue
import signal
import statistics
import subprocess
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path
from types import FrameType
from typing import Any

from accelerator_report import write_report
from accelerator_rows import ROWS, Row
from carried_programs import Child, Failure, start
from peers import check_names

FOLDER = Path(__file__).resolve().parent
SMALLEST_REST = 15.0  # seconds below which no row is started
Record = dict[str, Any]


class Stopped(Exception):
    """Signal that asks the program to stop."""


def main() -> int:
    arguments = parsed()
    # A signal during its import would leave modules that cannot be imported again.
    import matplotlib.pyplot  # noqa: F401

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    records = read(arguments.resume)
    path = arguments.resume or arguments.out / f"accelerator-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    session = Session(arguments, path, records)
    try:
        session.measure_all()
    except Stopped as stopped:
        session.end(f"stopped by {stopped}")
        return 1
    finally:
        session.close()
    print(f"{path.with_suffix('.md')} and {path.with_suffix('.png')} show the results.")
    return 0


def stop(number: int, frame: FrameType | None) -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # the report is written without interruption
    raise Stopped(signal.Signals(number).name)


def read(path: Path | None) -> list[Record]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path else []


class Session:
    """Measurement of rows until a deadline.

    Args:
        arguments: Arguments of the command line.
        path: File of the results.
        records: Records that the file already has.
    """

    def __init__(self, arguments: argparse.Namespace, path: Path, records: list[Record]) -> None:
        self.arguments, self.path, self.records = arguments, path, records
        self.deadline = time.monotonic() + arguments.limit
        self.waiting: dict[str, Child] = {}  # programs that have been started for later rows

    def measure_all(self) -> None:
        """Measure the selected rows, and write a record for each of them."""
        done = {one["row"] for one in self.records if one["status"] == "measured"} - {"limits"}
        names = [name for name in self.arguments.rows if name not in done]
        for place, name in enumerate(names):
            left = self.deadline - time.monotonic()
            missing = self.find_missing(ROWS[name])
            if missing:
                self.write(name, {"status": "skipped", "reason": missing})
            elif left < SMALLEST_REST:
                self.end(f"time limit of {self.arguments.limit:g} s")
                return
            else:
                child = self.waiting.pop(name, None) or self.start(name)
                self.prepare(names[place + 1 :])
                self.write(name, self.measure(name, child, left))
            if name == "limits":
                self.check_device()

    def check_device(self) -> None:
        """Exit if a file that is resumed has results of another device."""
        known = [one for one in self.records if "device" in one]
        if not known:
            return
        first, last = known[0], known[-1]
        for what in ("device", "jax", "rollax"):
            if first.get(what) != last.get(what):
                sys.exit(
                    f"{self.path} has results with {what} {first.get(what)}, not {last.get(what)}. "
                    "Run without --resume."
                )

    def find_missing(self, row: Row) -> str:
        """Return why a row cannot be measured, or an empty string."""
        peers = self.arguments.peers
        if row.kind == "peer" and peers is None:
            return "--peers is not given"
        path = [*([str(peers)] if row.kind == "peer" else []), *sys.path]
        missing = [name for name in row.packages if PathFinder.find_spec(name, path) is None]
        if row.kind == "peer" and "purejaxrl" in row.title.lower() and not self.find_purejaxrl():
            missing.append("purejaxrl")
        return f"{', '.join(missing)} cannot be imported" if missing else ""

    def find_purejaxrl(self) -> str:
        """Return the folder with ppo.py of PureJaxRL, or an empty string."""
        root = self.arguments.peers / "purejaxrl"
        found = [folder for folder in (root / "purejaxrl", root) if (folder / "ppo.py").exists()]
        return str(found[0]) if found else ""

    def start(self, name: str) -> Child:
        """Start the program of a row. It imports its packages and waits."""
        row = ROWS[name]
        task = row.settings(self.size(row))
        if row.kind == "peer":
            return start(task, self.arguments.peers, self.find_purejaxrl())
        return start(task | {"kind": row.kind, "rounds": self.seconds})

    @property
    def seconds(self) -> int:
        return 1 if self.arguments.small else self.arguments.seconds

    def size(self, row: Row) -> int:
        return row.small if self.arguments.small else row.size

    def prepare(self, names: list[str]) -> None:
        """Start the program of the next row of rollax early, so that imports take no time.

        On a CPU this would disturb the measurement of the current row.
        """
        platforms = {one["platform"] for one in self.records if "platform" in one}
        mine = [x for x in names if ROWS[x].kind != "peer" and not self.find_missing(ROWS[x])]
        if platforms - {"cpu"} and mine and mine[0] == names[0]:
            self.waiting[mine[0]] = self.start(mine[0])

    def measure(self, name: str, child: Child, left: float) -> Record:
        """Return the record of a row, whose program is ended."""
        row, limit = ROWS[name], min(left, self.arguments.row_limit)
        started, found = time.monotonic(), Record()
        try:
            source = child.take_turns if row.kind == "peer" else child.results
            for found in source(self.seconds, started + limit):  # noqa: B007 - the last one counts
                pass
            status = {"status": "measured"}
        except Failure as failure:
            status = {"status": "measured" if found else "failed", "reason": str(failure)}
        except queue.Empty:
            reason = f"ended after {limit:.0f} s"
            status = {"status": "measured" if found else "cut off", "reason": reason}
        except Stopped as stopped:
            status = {"status": "measured" if found else "cut off"}
            self.write(name, status | found | {"reason": f"stopped by {stopped}"})
            raise
        finally:
            child.end()
        return status | found | {"wall_seconds": round(time.monotonic() - started, 1)}

    def write(self, name: str, record: Record) -> None:
        """Append the record of a row to the file, and update the table and the picture."""
        row = ROWS[name]
        fields = {
            "row": name,
            "title": row.title.format(size=f"{self.size(row):,}"),
            "small": self.arguments.small,
            "frames": row.frames,
            "published": row.published,
            "reference": row.reference,
            "task": row.settings(self.size(row)),
            "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        if name == "limits":
            fields["commit"] = commit()
        self.records.append(fields | record)
        with self.path.open("a") as file:
            file.write(json.dumps(self.records[-1]) + "\n")
        rates = record.get("rates")
        told = f"{statistics.median(rates):,.0f}/s" if rates else record.get("reason", "")
        print(f"{fields['title']}: {record['status']}{told and ', '}{told}", flush=True)
        write_report(self.records, self.path)

    def end(self, reason: str) -> None:
        """Write a record for each row that has none."""
        done = {one["row"] for one in self.records}
        for name in self.arguments.rows:
            if name not in done:
                self.records.append(
                    {"row": name, "title": ROWS[name].title.format(size=f"{ROWS[name].size:,}")}
                    | {"status": "not measured", "reason": reason}
                )
        print(f"Ended before all rows were measured: {reason}")
        write_report(self.records, self.path)

    def close(self) -> None:
        for child in self.waiting.values():
            child.end()


def commit() -> str | None:
    """Return the commit of the checkout, or None outside of a repository."""
    command = ["git", "-C", str(FOLDER), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; by default all")
    parser.add_argument("--limit", type=float, default=480, help="seconds for all rows [480]")
    parser.add_argument("--row-limit", type=float, default=150, help="seconds for one row [150]")
    parser.add_argument("--seconds", type=int, default=20, help="seconds of measurement [20]")
    parser.add_argument("--out", type=Path, default=FOLDER / "results", help="folder of the files")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="file to continue")
    parser.add_argument("--peers", type=Path, metavar="PEERS", help="folder of other libraries")
    parser.add_argument("--small", action="store_true", help="small sizes, for a test on a CPU")
    arguments = parser.parse_args()
    check_names(parser, "row", arguments.rows, ROWS)
    rows = arguments.rows or list(ROWS)
    arguments.rows = ["limits", *(name for name in rows if name != "limits")]
    return arguments


if __name__ == "__main__":
    sys.exit(main())
