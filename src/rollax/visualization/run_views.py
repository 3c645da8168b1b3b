"""Public functions that draw figures, animations and reports of runs."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.loading import load
from rollax.runtime.notebook import Animation, enable_figure_display
from rollax.runtime.printing import print_note, print_warning
from rollax.training.compile import cache
from rollax.training.result import accept_result
from rollax.training.run_folder.files import write_output_file
from rollax.training.run_folder.tables import ignore_message, to_folder_list
from rollax.types import NetworkFn, RunPath, SettingValues
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import coerce, format_value
from rollax.visualization.archives import archive_comparison, archive_figure
from rollax.visualization.plots import figure as figures
from rollax.visualization.plots.figure_options import FigureOptions

if TYPE_CHECKING:
    import matplotlib.figure


@coerce_arguments(
    path=Path | None,
    columns=int | None,
    x=Literal["steps", "time"],
    smooth=int,
    aggregate=bool,
    csv=bool,
    archive=bool,
    quiet=bool,
)
def plot(
    runs: RunPath | Iterable[RunPath],
    *,
    path: str | Path | None = None,
    only: str | Sequence[str] = (),
    columns: Literal[1, 2] | None = None,
    label: str | Sequence[str] = (),
    x: Literal["steps", "time"] = "steps",
    smooth: int = 1,
    aggregate: bool = False,
    normalize: Mapping[str, tuple[float, float]] | None = None,
    csv: bool = False,
    archive: bool = False,
    quiet: bool = False,
) -> "matplotlib.figure.Figure":
    """Draw the learning curves of runs.

    Runs that differ only in their seeds are merged into one line with an interval over the seeds.
    Each environment has a separate panel. The default figure is an overview of all metrics. With
    `only`, `columns` or `aggregate`, the figure has print size for a paper.

    Args:
        runs: Result of a run, a run folder, a folder that contains runs, a pattern such as
            "runs/*", or a sequence of these.
        path: Output file ending in .png, .pdf or .svg. None writes no file.
        only: Metrics to draw in one panel each: "return" (of evaluations), "length", or any logged
            metric.
        columns: Width of the figure in columns of a two-column page: 1 (3.3 inches) or 2 (6.9
            inches).
        label: Labels of the lines in the order of the legend.
        x: Horizontal axis: environment steps, or wall time since the start of the run.
        smooth: Number of neighboring points to average. 1 disables smoothing.
        aggregate: Whether to compare over all environments: interquartile means, performance
            profiles and probabilities of improvement.
        normalize: Returns `(low, high)` with the normalized values 0 and 1 in aggregates, keyed by
            environment. Defaults to the lowest and highest returns that were reached.
        csv: Whether to write the values of all lines to a .csv file next to `path`.
        archive: Whether to draw the archive of one run, or to compare the archives of two runs,
            instead of the curves.
        quiet: Whether to omit notes on standard error.

    Returns:
        The figure. Notebooks display it.

    Raises:
        UsageError: If a folder is not a run, there is nothing to draw, an argument is invalid, or
            the file cannot be written.
    """
    if path is not None:
        figures.check_figure_path(Path(path))
    elif csv:
        raise UsageError("csv requires path, because its file is written next to it. Pass path.")
    notify_fn = ignore_message if quiet else print_note
    options = FigureOptions(
        only=_to_names("only", only),
        columns=columns,
        label=_to_names("label", label),
        x=x,
        smooth=smooth,
        aggregate=aggregate,
        normalize=_to_bounds(normalize),
        csv=csv,
    )
    options.check()
    if archive:
        figure = _draw_archives(runs, options, notify_fn)
        if path is not None:
            suffix = Path(path).suffix.lower()[1:]
            content = archive_figure.encode_figure(figure, suffix)
            write_output_file(Path(path), content, ". Choose another output file.")
    else:
        drawn = figures.draw_figure(runs, options, notify_fn)
        figure = drawn.figure
        if path is not None:
            figures.save_figure(drawn, Path(path))
    enable_figure_display()
    return figure


def _to_names(argument: str, value: object) -> tuple[str, ...]:
    """Convert one name or a sequence of names to a tuple."""
    return (value,) if isinstance(value, str) else coerce(argument, value, tuple[str, ...])


def _to_bounds(normalize: object) -> tuple[str, ...]:
    """Convert `{environment: (low, high)}` to the strings of `FigureOptions.normalize`."""
    try:
        bounds = coerce("normalize", normalize, dict[str, tuple[float, float]] | None) or {}
    except UsageError as error:
        raise UsageError(
            f"normalize ({format_value(normalize)}) must map environments to two numbers "
            '(low, high), such as {"gymnax/CartPole-v1": (0, 500)}.'
        ) from error
    return tuple(f"{name}={low!r},{high!r}" for name, (low, high) in bounds.items())


def _draw_archives(
    runs: RunPath | Iterable[RunPath], options: FigureOptions, notify_fn: Callable[[str], object]
) -> "matplotlib.figure.Figure":
    """Draw the archive of one run, or compare the archives of two runs.

    Raises:
        UsageError: If there are more than two runs, a run has no archive, or a figure option is
            set.
    """
    if options != FigureOptions():
        raise UsageError("archive draws no curves. Remove the other options of the figure.")
    paths = to_folder_list(runs)
    if len(paths) not in (1, 2):
        raise UsageError(f"archive requires one run or two runs, got {len(paths)}.")
    given = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    policies = [load(run) for run in given]
    for warning in [warning for policy in policies for warning in policy.warnings]:
        notify_fn(f"warning: {warning}")
    if len(policies) == 1:
        return archive_figure.draw_archive(policies[0])
    return archive_comparison.draw_archive_comparison(*policies)


@accept_result
@coerce_arguments(path=Path | None, sheet=int | None, quiet=bool)
def render(
    run: RunPath,
    *,
    path: str | Path | None = None,
    checkpoint: str | int | None = None,
    seed: int = 0,
    episodes: int = 1,
    greedy: bool = True,
    max_frames: int = 600,
    fps: int | None = None,
    member: int | None = None,
    descriptor: Sequence[float] | None = None,
    cell: Sequence[int] | None = None,
    sheet: int | None = None,
    environment: Environment | None = None,
    network: NetworkFn | None = None,
    eval_arguments: SettingValues | None = None,
    quiet: bool = False,
) -> Animation:
    """Render episodes of a run as an animation that notebooks display.

    Args:
        run: Result of the run, or its folder.
        path: Output file ending in .gif, .mp4 (requires `rollax[video]`) or, for brax and MuJoCo
            Playground, .html. With `sheet`, it ends in .png. Defaults to a file in `figures/` of
            the run.
        checkpoint: "last", "best", a step, or "all" to show every checkpoint in turn. Defaults to
            the best checkpoint. The last checkpoint is used if none was evaluated or if elites are
            shown.
        seed: Random seed of the episodes.
        episodes: Number of episodes to render in sequence.
        greedy: Whether to take the most likely actions instead of sampling.
        max_frames: Maximum number of frames of the animation.
        fps: Frames per second. Defaults to the rate of the environment.
        member: Index of the member of a population, as in `rollax.load`.
        descriptor: Descriptor that selects an elite of an archive, as in `Policy.elite`.
        cell: Cell that selects an elite of an archive, as in `Policy.elite`.
        sheet: Number of elites to show in one image instead of an animation. The elites are spread
            over their descriptors.
        environment: Environment to play in, as in `rollax.load`.
        network: Function that maps a random key to a network, as in `rollax.load`.
        eval_arguments: Arguments of the evaluation environment, as in `rollax.load`.
        quiet: Whether to omit notes and warnings on standard error.

    Returns:
        The animation. Its attribute `path` is the path of the file.

    Raises:
        UsageError: If the run or the checkpoint does not exist, the environment has no episodes, an
            argument is invalid, or the file cannot be written.
    """
    from rollax.visualization.archives.contact_sheet import write_contact_sheet
    from rollax.visualization.render.render import render as write_animation

    cache.enable()
    warn_fn, notify_fn = (ignore_message, ignore_message) if quiet else (print_warning, print_note)
    if sheet is not None:
        unused = {"descriptor": descriptor, "cell": cell, "fps": fps}
        _check_unused_by_sheet({**unused, "episodes": None if episodes == 1 else episodes})
        written = write_contact_sheet(
            run,
            sheet,
            path,
            checkpoint=checkpoint or "last",
            seed=seed,
            greedy=greedy,
            member=member,
            environment=environment,
            network=network,
            eval_arguments=eval_arguments,
            warn_fn=warn_fn,
        )
        return Animation(written)
    written = write_animation(
        run,
        path,
        checkpoint=checkpoint,
        seed=seed,
        episodes=episodes,
        greedy=greedy,
        max_frames=max_frames,
        fps=fps,
        member=member,
        descriptor=descriptor,
        cell=cell,
        environment=environment,
        network=network,
        eval_arguments=eval_arguments,
        warn_fn=warn_fn,
        notify_fn=notify_fn,
    )
    return Animation(written)


def _check_unused_by_sheet(values: Mapping[str, object]) -> None:
    """Raise UsageError if an argument that has no effect on a contact sheet is not None."""
    for name in (name for name, value in values.items() if value is not None):
        raise UsageError(
            f"sheet renders one episode of each elite, so {name} has no effect. Remove {name}."
        )


@coerce_arguments(path=Path | None, render=bool, quiet=bool)
def report(
    runs: RunPath | Iterable[RunPath],
    *,
    path: str | Path | None = None,
    render: bool = False,
    label: str | Sequence[str] = (),
    quiet: bool = False,
) -> Path:
    """Write a self-contained HTML report of runs with curves, evaluations, episodes and settings.

    Args:
        runs: Result of a run, a run folder, a folder that contains runs, a pattern such as
            "runs/*", or a sequence of these.
        path: Output file ending in .html. Defaults to `figures/report.html` of a single run, or to
            a new file in the current folder.
        render: Whether to render an episode with the best checkpoint of each run before writing
            the report.
        label: Labels of the lines in the order of the legend.
        quiet: Whether to omit notes on standard error. The page always contains these notes.

    Returns:
        Path of the page.

    Raises:
        UsageError: If a folder is not a run, no run has recorded data, plotly is not installed, or
            the file cannot be written.
    """
    from rollax.visualization.report.report import report as write_report

    if render:
        cache.enable()
    notify_fn = ignore_message if quiet else print_note
    names = _to_names("label", label)
    return write_report(runs, path, render=render, label=names, notify_fn=notify_fn)
