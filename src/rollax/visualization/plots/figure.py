"""Figures of runs: an overview, or selected metrics in the format of a paper."""

import dataclasses
import io
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from rollax.coercion import coerce_arguments, format_value
from rollax.errors import UsageError, describe_error
from rollax.runtime.numerics import standard_numerics
from rollax.training.run_folder.files import write_output_file
from rollax.training.run_folder.tables import find_runs, ignore_message, to_folder_list
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

FIGURE_SUFFIXES = (".png", ".pdf", ".svg")
OUTPUT_ENDINGS = (".png", ".csv", "-aggregate.csv")  # of files that are written together


@standard_numerics()
@coerce_arguments(out=Path | None)
def plot(
    runs: Iterable[Path | str],
    out: Path | str | None = None,
    figure: FigureOptions | None = None,
    notify_fn: Callable[[str], object] = ignore_message,
) -> Path:
    """Draw runs and write the figure and its tables, like `write_figure`.

    Args:
        runs: Run folders, folders that contain runs, or glob patterns.
        out: Output file ending in .png, .pdf or .svg. Defaults to a file in `figures/` of a single
            run, or to a new file in the current folder.
        figure: Content and layout. Defaults to an overview.
        notify_fn: Function called with notes that belong in the caption.

    Returns:
        Path of the figure.

    Raises:
        UsageError: If a folder is not a run, there is nothing to draw, the options are invalid, or
            a file cannot be written.
    """
    return write_figure(runs, out, figure, notify_fn)[0]


@standard_numerics()
@coerce_arguments(out=Path | None)
def write_figure(
    runs: Iterable[Path | str],
    out: Path | str | None = None,
    figure: FigureOptions | None = None,
    notify_fn: Callable[[str], object] = ignore_message,
) -> list[Path]:
    """Draw runs and write the figure and its tables.

    Runs that differ only in their seeds become one line with an interval over the seeds. Runs in
    several environments get one panel per environment. The default figure is an overview of the
    evaluation return and all logged metrics. The evaluation return is the mean over the episodes of
    a single run or the interquartile mean over seeds, with its 95 % bootstrap interval.

    Args:
        runs: Run folders, folders that contain runs, or glob patterns.
        out: Output file ending in .png, .pdf or .svg. Defaults to a file in `figures/` of a single
            run, or to a new file in the current folder.
        figure: Content and layout. Defaults to an overview.
        notify_fn: Function called with notes that belong in the caption.

    Returns:
        Paths of the figure and of its tables.

    Raises:
        UsageError: If a folder is not a run, there is nothing to draw, the options are invalid, or
            a file cannot be written.
    """
    if figure is not None and not isinstance(figure, FigureOptions):
        raise UsageError(f"figure must be a FigureOptions or None, got {format_value(figure)}.")
    options, paths = figure or FigureOptions(), to_folder_list(runs)
    options.check()
    if not paths:
        raise UsageError("There is nothing to plot. Name at least one run.")
    folders = find_runs(paths, notify_fn)
    target = _resolve_output_path(folders, out, "paper.png" if options.is_for_paper else "")
    run_curves = merge_runs(read_runs(folders, notify_fn), notify_fn)
    options = dataclasses.replace(options, only=resolve_metric_names(run_curves, options.only))
    if options.x == "time":
        run_curves = use_wall_time(run_curves)
    run_curves = [smooth_run(run, options.smooth) for run in run_curves]
    encoded = _encode_figure(
        make_curves(run_curves, options.label), options, target.suffix.lower()[1:]
    )
    for note in encoded.notes:
        notify_fn(note)
    files = {target: encoded.image}
    for name, table in encoded.tables.items():
        files[target.with_name(f"{target.stem}{name}.csv")] = table
    for path, content in files.items():
        write_output_file(path, content, ". Choose another --out.")
    return list(files)


def read_runs(folders: list[Path], notify_fn: Callable[[str], object]) -> list[RunCurves]:
    """Read all runs. Unreadable or empty runs are skipped if any other run can be read.

    Args:
        folders: Run folders.
        notify_fn: Function called with a note for each skipped run.

    Returns:
        Curves of the runs. Runs with several types of agents have one entry per type.

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
    """Return the chosen output path, the default path in a single run, or an unused path."""
    if out is not None:
        if Path(out).suffix.lower() not in FIGURE_SUFFIXES:
            raise UsageError(
                f"--out must end in {', '.join(FIGURE_SUFFIXES[:-1])} or {FIGURE_SUFFIXES[-1]}, "
                f"got {out}."
            )
        return Path(out)
    if len(runs) == 1:
        return runs[0] / "figures" / (name or "curves.png")
    return unused_path(Path(name or "comparison.png"), OUTPUT_ENDINGS)


def unused_path(path: Path, endings: tuple[str, ...]) -> Path:
    """Return an unused path, which has a number in its name if necessary.

    Args:
        path: Preferred path.
        endings: Endings in place of the suffix, one for each file that must not exist.
    """
    stems = (path.stem if number == 1 else f"{path.stem}-{number}" for number in itertools.count(1))
    unused_stem = next(
        stem
        for stem in stems
        if not any(path.with_name(stem + ending).exists() for ending in endings)
    )
    return path.with_name(unused_stem + path.suffix)


class EncodedFigure(NamedTuple):
    """Encoded figure with its tables and notes.

    Attributes:
        image: Content of the figure.
        tables: Tables as CSV, by the ending that is added to the figure's name.
        notes: Notes for the caption.
    """

    image: bytes
    tables: dict[str, bytes]
    notes: list[str]


def _encode_figure(curves: list[Curve], options: FigureOptions, suffix: str) -> EncodedFigure:
    """Draw and encode a figure without pyplot, which has global state."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    buffer, is_for_paper = io.BytesIO(), options.is_for_paper
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
        figure.savefig(buffer, format=suffix, dpi=300 if is_for_paper else 150)
    return EncodedFigure(buffer.getvalue(), tables if options.csv else {}, notes)
