"""Figures of runs: an overview, or what a paper shows of them."""

import dataclasses
import io
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from rollax.errors import UsageError
from rollax.host.files import write
from rollax.host.reading import find, silent
from rollax.view import overview, paper
from rollax.view.curves import Curve, Run, check_names, curves_of, over_time, read_run, smooth, together
from rollax.view.style import PAPER, STYLE

FORMATS = (".png", ".pdf", ".svg")
ENDINGS = (".png", ".csv", "-aggregate.csv")  # of what is written beside one another


@dataclasses.dataclass(frozen=True)
class Figure:
    """What a figure shows, and how."""

    only: tuple[str, ...] = ()
    """Metrics to draw, a panel each: return (of evaluations), length, or any that the run logged (episode_return, ...)."""
    columns: Literal[1, 2] | None = None
    """Make it as wide as one column of a two-column page (3.3 inches), or as both (6.9), with letters that fit."""
    label: tuple[str, ...] = ()
    """Names for the legend, in its order."""
    x: Literal["steps", "time"] = "steps"
    """Draw over environment steps, or over the time since the start of the run."""
    smooth: int = 1
    """Draw the mean of so many neighboring points."""
    aggregate: bool = False
    """Over all environments: interquartile means, performance profiles, probabilities of improvement; of normalized scores."""
    normalize: tuple[str, ...] = ()
    """ENVIRONMENT=LOW,HIGH...: the returns that count as 0 and as 1; default: the lowest and the highest that was reached."""
    csv: bool = False
    """Write the numbers of the lines into a table (.csv) beside the figure."""

    @property
    def is_for_paper(self) -> bool:
        """Whether it shows what was asked for alone, in print's size."""
        return bool(self.only or self.columns or self.aggregate)

    def check(self) -> None:
        """Raises UsageError for what does not go together."""
        if not 1 <= self.smooth <= 10**6:
            raise UsageError(f"smooth ({self.smooth}) must be at least 1, the number of points that are averaged")
        if self.normalize and not self.aggregate:
            raise UsageError("--normalize is for --aggregate: give both, or leave it out")


def plot(
    runs: Iterable[Path | str],
    out: Path | str | None = None,
    figure: Figure | None = None,
    tell: Callable[[str], object] = silent,
) -> Path:
    """Draws runs and returns the figure's file: the first of those of `draw`."""
    return draw(runs, out, figure, tell)[0]


def draw(
    runs: Iterable[Path | str],
    out: Path | str | None = None,
    figure: Figure | None = None,
    tell: Callable[[str], object] = silent,
) -> list[Path]:
    """Draws runs and returns the files: the figure first, then tables.

    `runs`: folders of runs, folders that contain runs, or patterns. Runs that differ in their seeds only become one line, with
    an interval over the seeds; runs in several environments get a panel each. By default an overview: evaluation return (the
    mean over a single run's episodes, the interquartile mean over seeds, each with its 95 % bootstrap interval) and what the
    algorithm logs. `out` ends in .png, .pdf or .svg; without it, the run's figures/ or a new file here. `tell` is called with
    what a reader of the figure should know.

    Raises UsageError when a folder is no run, when there is nothing to draw, or when `out` cannot be written.
    """
    figure, given = figure or Figure(), list(runs)
    figure.check()
    if not given:
        raise UsageError("there is nothing to plot: name one run or more")
    folders = find(given, tell)
    target = _target(folders, out, "paper.png" if figure.is_for_paper else "")
    found = together(read(folders, tell), tell)
    check_names(found, figure.only)
    found = [smooth(run, figure.smooth) for run in (over_time(found) if figure.x == "time" else found)]
    curves = curves_of(found, figure.label)
    image, tables, notes = _drawn(curves, figure, target.suffix.lower()[1:])
    for note in notes:
        tell(note)
    files = {target: image, **{target.with_name(f"{target.stem}{name}.csv"): table for name, table in tables.items()}}
    for path, content in files.items():
        write(path, content, ": choose another --out")
    return list(files)


def read(folders: list[Path], tell: Callable[[str], object]) -> list[Run]:
    """All runs; one that cannot be read, or that has only just begun, is passed over as long as there are others."""
    read, errors = list[Run](), list[UsageError]()
    for folder in folders:
        try:
            read += read_run(folder)
        except UsageError as error:
            errors.append(error)
    if not read:
        raise errors[0]
    for error in errors:
        tell(f"passed over: {error}")
    return read


def _target(runs: list[Path], out: Path | str | None, name: str) -> Path:
    """Where to write: what was asked for, our own figure of the run, or a name that is still free."""
    if out is not None:
        if Path(out).suffix.lower() not in FORMATS:
            raise UsageError(f"--out ({out}) must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
        return Path(out)
    if len(runs) == 1:
        return runs[0] / "figures" / (name or "curves.png")
    return free(Path(name or "comparison.png"), ENDINGS)


def free(path: Path, endings: tuple[str, ...]) -> Path:
    """The path, or with a number in its name the first of which no file is there yet that ends in one of these."""
    names = (path.stem if number == 1 else f"{path.stem}-{number}" for number in itertools.count(1))
    stem = next(each for each in names if not any(path.with_name(each + ending).exists() for ending in endings))
    return path.with_name(stem + path.suffix)


def _drawn(curves: list[Curve], figure: Figure, suffix: str) -> tuple[bytes, dict[str, bytes], list[str]]:
    """The figure as a file's content, tables by what their names end in, and notes. No state of matplotlib's is touched."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    buffer = io.BytesIO()
    with matplotlib.rc_context(PAPER if figure.is_for_paper else STYLE):
        if figure.is_for_paper:
            canvas = Canvas(layout=ConstrainedLayoutEngine(h_pad=0.03, w_pad=0.03))
            tables, notes = paper.fill(canvas, curves, figure)
        else:
            canvas = Canvas(layout=ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.06))
            notes = overview.fill(canvas, curves)
            tables = paper.tables_of(paper.lines_of(curves, figure.only)) if figure.csv else {}
        canvas.savefig(buffer, format=suffix, dpi=300 if figure.is_for_paper else 150)
    return buffer.getvalue(), tables if figure.csv else {}, notes
