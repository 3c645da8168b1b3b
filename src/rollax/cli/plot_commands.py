"""Commands `rollax plot` and `rollax report`."""

import dataclasses
import webbrowser
from pathlib import Path

import tyro

from rollax.cli.parsing.dynamic_options import parse_options
from rollax.cli.parsing.shared_options import SharedOptions
from rollax.errors import UsageError
from rollax.runtime.printing import print_line, print_note, print_warning
from rollax.training.run_folder.tables import find_runs
from rollax.visualization import run_views
from rollax.visualization.archives import archive_comparison, archive_figure
from rollax.visualization.plots.figure import write_figure
from rollax.visualization.plots.figure_options import FigureOptions


@dataclasses.dataclass(frozen=True)
class PlotOptions:
    """Plot the learning curves of one run or of several runs together.

    Runs that differ only in their seeds are one line with an interval over the seeds. Each
    environment has one panel. The default is an overview of all metrics. With --only, --columns or
    --aggregate, the command draws a figure for a paper:

      rollax plot runs/* --only return --columns 2 --aggregate --out figure.pdf

    For a run with an archive, it also draws the archive and writes it as a table (archive.csv). For
    two such runs with the same descriptors, it draws both archives and their difference.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs, folders that contain runs, or patterns such as "runs/*"."""
    figure: tyro.conf.OmitArgPrefixes[FigureOptions] = dataclasses.field(
        default_factory=FigureOptions
    )
    out: Path | None = None
    """File to write (.png, .pdf or .svg). Defaults to figures/ of the run, or here for several."""


def plot(arguments: list[str], shared: SharedOptions) -> int:
    """Run `rollax plot` and return its exit code."""
    options = parse_options(PlotOptions, arguments, "rollax plot")
    if not options.runs:
        raise UsageError("plot needs one or more run folders. Run `rollax plot RUN`.")
    drawn = write_figure(options.runs, options.out, options.figure, print_note)
    for path in drawn:
        print_line(path)
    is_alone = options.out is None and not options.figure.is_for_paper
    for path in draw_archives(list(options.runs), drawn[0]) if is_alone else ():
        print_line(path)
    return 0


def draw_archives(runs: list[Path], curves_file: Path) -> list[Path]:
    """Draw the archives of one run, or compare the archives of two runs.

    Args:
        runs: Run folders or patterns. For three or more runs, nothing is drawn.
        curves_file: File with the learning curves. A comparison is written to the same folder.

    Returns:
        The written files.
    """
    runs = find_runs(runs)
    if len(runs) == 2:
        return archive_comparison.write_archive_comparison(
            runs[0],
            runs[1],
            curves_file.with_name(f"{curves_file.stem}-archives.png"),
            print_warning,
        )
    return archive_figure.write_archive_files(runs[0], print_warning) if len(runs) == 1 else []


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Build a self-contained HTML report of one or more runs, without network access.

    The report has zoomable curves, evaluations, videos of episodes, archives, settings that differ
    from the preset, versions, and the command that repeats each run.

      rollax report RUN --render --open
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs, folders that contain runs, or patterns such as "runs/*"."""
    out: Path | None = None
    """File to write (.html). Defaults to figures/report.html of the run, or here for several."""
    render: bool = False
    """Render an episode with the best checkpoint of each run first."""
    label: tuple[str, ...] = ()
    """Names in the legend, in order."""
    open: bool = False
    """Open the report in a browser."""


def report(arguments: list[str], shared: SharedOptions) -> int:
    """Run `rollax report` and return its exit code."""
    options = parse_options(ReportOptions, arguments, "rollax report")
    if not options.runs:
        raise UsageError("report needs one or more run folders. Run `rollax report RUN`.")
    path = run_views.report(
        options.runs, path=options.out, render=options.render, label=options.label
    )
    print_line(path)
    if options.open:
        _open_in_browser(path)
    return 0


def _open_in_browser(path: Path) -> None:
    """Open a file in a browser. Print a note if no browser can be started."""
    try:
        is_open = webbrowser.open(path.resolve().as_uri())
    except webbrowser.Error:
        is_open = False
    if not is_open:
        print_note(f"No browser can be started here. Open {path} in a browser.")
