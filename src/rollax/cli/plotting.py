"""The command that draws runs."""

import dataclasses
import sys
from pathlib import Path

import tyro

from rollax.cli.runs import warn
from rollax.cli.shared import Shared
from rollax.cli.words import parse
from rollax.errors import UsageError
from rollax.view.plot import Figure, draw


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draws the learning curves of one run, or of several together.

    Runs that differ in nothing but their seeds are one line, with an interval over the seeds; environments have a panel each.
    By default an overview of all that the algorithm logs; with --only, --columns or --aggregate a figure for a paper:

      rollax plot runs/* --only return --columns 2 --aggregate --out figure.pdf

    Of a run with an archive also this, as a picture and as a table (archive.csv); of two such runs with the same descriptors
    both side by side and their difference.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs, folders that contain runs, or patterns such as "runs/*"."""
    figure: tyro.conf.OmitArgPrefixes[Figure] = dataclasses.field(default_factory=Figure)
    out: Path | None = None
    """Picture to write, whose name ends in .png, .pdf or .svg; default: in the run's figures/, of several runs here."""


def plot(arguments: list[str], shared: Shared) -> int:
    given = parse(Plot, arguments, "rollax plot")
    if not given.runs:
        raise UsageError("plot takes one or more run folders: rollax plot RUN")
    drawn = draw(given.runs, given.out, given.figure, tell)
    for path in drawn:
        print(path)
    is_alone = given.out is None and not given.figure.is_for_paper
    for path in of_archives(list(given.runs), drawn[0]) if is_alone else ():
        print(path)
    return 0


def tell(note: str) -> None:
    """What a reader of the figure should know, beside what other programs read."""
    print(note, file=sys.stderr)


def of_archives(runs: list[Path], curves: Path) -> list[Path]:
    """Pictures of the archives of one run or of two. `curves`: the file that is beside the latter."""
    from rollax.host.reading import find
    from rollax.view import archive, compared

    runs = find(runs)
    if len(runs) == 2:
        return compared.draw_if_both(runs[0], runs[1], curves.with_name(f"{curves.stem}-archives.png"), warn)
    return archive.draw_if_any(runs[0], warn) if len(runs) == 1 else []
