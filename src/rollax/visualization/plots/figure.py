"""Figures of runs: an overview, or selected metrics in print size for a paper."""

import dataclasses
import io
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rollax.errors import UsageError, describe_error
from rollax.runtime.numerics import standard_numerics
from rollax.training.run_folder.files import write_output_file
from rollax.training.run_folder.layout import figures_folder
from rollax.training.run_folder.tables import find_runs, ignore_message, to_folder_list
from rollax.types import RunPath
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import format_value
from rollax.visualization.plots import overview, paper_figure
from rollax.visualization.plots.curve_estimates import estimate_lines
from rollax.visualization.plots.figure_options import FigureOptions
from rollax.visualization.plots.learning_curves import (
    Curve,
    RunCurves,
    make_curves,
    read_run,
    resolve_metric_names,
)
from rollax.visualization.plots.resampling import smooth_run, use_wall_time
from rollax.visualization.plots.run_merging import merge_runs
from rollax.visualization.plots.style import PAPER_STYLE, STYLE

if TYPE_CHECKING:
    import matplotlib.figure

FIGURE_SUFFIXES = (".png", ".pdf", ".svg")
OUTPUT_ENDINGS = (".png", ".csv", "-aggregate.csv")  # of files that are written together


class DrawnFigure(NamedTuple):
    """Drawn figure with the values of its lines.

    Attributes:
        figure: Matplotlib figure.
        tables: CSV tables, keyed by the ending that is appended to the stem of the figure's file
            name. Empty unless the option `csv` is set.
        is_for_paper: Whether the figure has print size for a paper.
    """

    figure: "matplotlib.figure.Figure"
    tables: dict[str, bytes]
    is_for_paper: bool


@standard_numerics()
@coerce_arguments(out=Path | None)
def write_figure(
    runs: RunPath | Iterable[RunPath],
    out: Path | str | None = None,
    figure: FigureOptions | None = None,
    notify_fn: Callable[[str], object] = ignore_message,
) -> list[Path]:
    """Draw runs with `draw_figure` and write the figure and its tables.

    Args:
        runs: Results of runs, run folders, folders that contain runs, or glob patterns.
        out: Output file ending in .png, .pdf or .svg. Defaults to a file in `figures/` of a single
            run, or to a new file in the current folder.
        figure: Content and layout. Defaults to an overview.
        notify_fn: Function that receives notes for the caption and warnings.

    Returns:
        Paths of the figure and of its tables.

    Raises:
        UsageError: If a folder is not a run, there is nothing to draw, the options are invalid, or
            a file cannot be written.
    """
    options = validate_options(figure)
    folders = find_folders(runs, notify_fn)
    target = _resolve_output_path(folders, out, "paper.png" if options.is_for_paper else "")
    return save_figure(draw_figure(folders, options, notify_fn), target)


@standard_numerics()
def draw_figure(
    runs: RunPath | Iterable[RunPath],
    figure: FigureOptions | None = None,
    notify_fn: Callable[[str], object] = ignore_message,
) -> DrawnFigure:
    """Draw learning curves of runs. The global state of pyplot is not used.

    Runs that differ only in their seeds are merged into one line with an interval over the seeds.
    Each environment has a separate panel. The default figure is an overview of the evaluation
    return and all logged metrics. The evaluation return is the mean over episodes for one seed, and
    the interquartile mean over several seeds. Both have a 95 % bootstrap interval.

    Args:
        runs: Results of runs, run folders, folders that contain runs, or glob patterns.
        figure: Content and layout. Defaults to an overview.
        notify_fn: Function that receives notes for the caption and warnings.

    Returns:
        The figure and its tables.

    Raises:
        UsageError: If a folder is not a run, there is nothing to draw, or the options are invalid.
    """
    options = validate_options(figure)
    run_curves = merge_runs(read_runs(find_folders(runs, notify_fn), notify_fn), notify_fn)
    options = dataclasses.replace(options, only=resolve_metric_names(run_curves, options.only))
    if options.x == "time":
        run_curves = use_wall_time(run_curves)
    run_curves = [smooth_run(run, options.smooth) for run in run_curves]
    return _draw_curves(make_curves(run_curves, options.label), options, notify_fn)


def save_figure(drawn: DrawnFigure, target: Path) -> list[Path]:
    """Write a figure and its tables.

    Args:
        drawn: Figure and tables.
        target: Output file ending in .png, .pdf or .svg.

    Returns:
        Paths of the figure and of its tables.

    Raises:
        UsageError: If the suffix is unknown or a file cannot be written.
    """
    import matplotlib

    check_figure_path(target)
    buffer, suffix = io.BytesIO(), target.suffix.lower()[1:]
    with matplotlib.rc_context(PAPER_STYLE if drawn.is_for_paper else STYLE):
        drawn.figure.savefig(buffer, format=suffix, dpi=300 if drawn.is_for_paper else 150)
    files = {target: buffer.getvalue()}
    for ending, table in drawn.tables.items():
        files[target.with_name(f"{target.stem}{ending}.csv")] = table
    for path, content in files.items():
        write_output_file(path, content, ". Choose another output file.")
    return list(files)


def validate_options(figure: FigureOptions | None) -> FigureOptions:
    """Validate figure options. None gives the default options, which draw an overview.

    Raises:
        UsageError: If the options are invalid.
    """
    if figure is not None and not isinstance(figure, FigureOptions):
        raise UsageError(f"figure must be a FigureOptions or None, got {format_value(figure)}.")
    options = figure or FigureOptions()
    options.check()
    return options


def check_figure_path(path: Path) -> None:
    """Raise UsageError if a path does not end in .png, .pdf or .svg."""
    if path.suffix.lower() not in FIGURE_SUFFIXES:
        raise UsageError(
            f"The output file must end in {', '.join(FIGURE_SUFFIXES[:-1])} or "
            f"{FIGURE_SUFFIXES[-1]}, got {path}."
        )


def find_folders(
    runs: RunPath | Iterable[RunPath], notify_fn: Callable[[str], object] = ignore_message
) -> list[Path]:
    """Find the folders of the runs to draw (see `find_runs`).

    Raises:
        UsageError: If no run is found.
    """
    paths = to_folder_list(runs)
    if not paths:
        raise UsageError("There is nothing to plot. Name at least one run.")
    return find_runs(paths, notify_fn)


def read_runs(folders: list[Path], notify_fn: Callable[[str], object]) -> list[RunCurves]:
    """Read all runs. Unreadable or empty runs are skipped if any other run can be read.

    Args:
        folders: Run folders.
        notify_fn: Function that receives a note for each skipped run.

    Returns:
        Recorded curves, one entry per run. A run with several agent types has one entry per type.

    Raises:
        UsageError: If no run can be read.
    """
    runs, errors = list[RunCurves](), list[UsageError]()
    for folder in folders:
        try:
            runs += read_run(folder)
        except UsageError as error:
            errors.append(error)
        except Exception as error:  # one damaged or hostile folder must not end the command
            errors.append(UsageError(f"{folder} cannot be read ({describe_error(error)})."))
            errors[-1].__cause__ = error
    if not runs:
        raise errors[0]
    for error in errors:
        notify_fn(f"Skipped: {error}")
    return runs


def _resolve_output_path(runs: list[Path], out: Path | str | None, name: str) -> Path:
    """Return the path that the user chose, or a default path.

    The default is a file in `figures/` of a single run, or a new file in the current folder.
    """
    if out is not None:
        check_figure_path(Path(out))
        return Path(out)
    if len(runs) == 1:
        return figures_folder(runs[0]) / (name or "curves.png")
    return unused_path(Path(name or "comparison.png"), OUTPUT_ENDINGS)


def unused_path(path: Path, endings: tuple[str, ...]) -> Path:
    """Return a path for new files. If files exist, a number is appended to the stem.

    Args:
        path: Preferred path.
        endings: Endings of the new files, which are appended to the stem of the returned path. None
            of these files exists.
    """
    stems = (path.stem if number == 1 else f"{path.stem}-{number}" for number in itertools.count(1))
    unused_stem = next(
        stem
        for stem in stems
        if not any(path.with_name(stem + ending).exists() for ending in endings)
    )
    return path.with_name(unused_stem + path.suffix)


def _draw_curves(
    curves: list[Curve], options: FigureOptions, notify_fn: Callable[[str], object]
) -> DrawnFigure:
    """Draw curves as an overview, or in print size for a paper."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    is_for_paper = options.is_for_paper
    padding = 0.03 if is_for_paper else 0.06
    with matplotlib.rc_context(PAPER_STYLE if is_for_paper else STYLE):
        figure = Figure(layout=ConstrainedLayoutEngine(h_pad=padding, w_pad=padding))
        if is_for_paper:
            tables, notes = paper_figure.draw_paper_figure(figure, curves, options)
        else:
            notes = overview.draw_overview(figure, curves)
            tables = (
                paper_figure.make_csv_tables(estimate_lines(curves, options.only))
                if options.csv
                else {}
            )
    for note in notes:
        notify_fn(note)
    return DrawnFigure(figure, tables if options.csv else {}, is_for_paper)
