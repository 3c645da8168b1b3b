"""Figures of the archive of a run (fitness over descriptors), and tables of its elites."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rollax.archives.archive import Elites
from rollax.loading import load
from rollax.policy import Policy
from rollax.training.elites import selection
from rollax.training.evaluation.metrics import format_number
from rollax.training.run_folder.files import write_output_file
from rollax.training.run_folder.layout import figures_folder, read_spec
from rollax.training.run_folder.tables import ignore_message
from rollax.training.spec import get_algorithm_entry
from rollax.visualization.archives import cell_charts, front_charts
from rollax.visualization.archives.cell_charts import DEFAULT_COLORS, Bounds, ColorScale
from rollax.visualization.plots.style import STYLE

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.cm
    import matplotlib.figure

ARCHIVE_STYLE = {**STYLE, "axes.grid": False}


def has_archive(folder: Path) -> bool:
    """Return whether a run has an archive that can be loaded from its folder alone."""
    spec = read_spec(folder)
    return get_algorithm_entry(spec.algorithm).unit == "evaluations" and not spec.own_environment


def write_archive_files(
    folder: Path, warn_fn: Callable[[str], object] = ignore_message
) -> list[Path]:
    """Write figures and a table of the archive at the last checkpoint to `figures/` of the run.

    Args:
        folder: Run folder.
        warn_fn: Function that receives each warning from loading the policy.

    Returns:
        Paths of the files. Empty if the run has no archive or the archive is empty.
    """
    if not has_archive(folder):
        return []
    policy, figures = load(folder), figures_folder(Path(folder))
    for warning in policy.warnings:
        warn_fn(warning)
    archive, state = selection.get_archive(policy)
    if not int(archive.num_elites(state)):
        return []
    paths = [write_archive_png(policy, figures / "archive.png")]
    if selection.objective_names(policy):
        content = front_charts.fronts_png(policy, archive_title(policy))
        paths.append(write_output_file(figures / "fronts.png", content))
    return [*paths, write_table(policy, figures / "archive.csv")]


def write_archive_png(policy: Policy, target: Path) -> Path:
    """Write a figure of the archive of a policy.

    Args:
        policy: Policy of a quality-diversity run.
        target: Output file.

    Returns:
        `target`.

    Raises:
        UsageError: If the policy has no archive or the file cannot be written.
    """
    return write_output_file(target, encode_figure(draw_archive(policy), "png"))


def draw_archive(policy: Policy) -> "matplotlib.figure.Figure":
    """Draw the archive of a policy, with its coverage in the title.

    Args:
        policy: Policy of a quality-diversity run.

    Returns:
        The figure.

    Raises:
        UsageError: If the policy has no archive, or the archive is empty.
    """
    elites = selection.best_per_cell(selection.get_elites(policy))
    title = f"{archive_title(policy)}\n{describe_coverage(policy, elites)}"
    return draw_archive_map(elites, grid_shape(policy, elites), title, descriptor_bounds(policy))


def encode_figure(figure: "matplotlib.figure.Figure", suffix: str) -> bytes:
    """Encode a figure of archives as the content of an image file.

    Args:
        figure: Figure to encode.
        suffix: File format: "png", "pdf" or "svg".
    """
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context(ARCHIVE_STYLE):
        figure.savefig(buffer, format=suffix, dpi=150)
    return buffer.getvalue()


def describe_coverage(policy: Policy, elites: Elites) -> str:
    """Return text with the number of elites and the coverage of the archive.

    For an archive without cells, the coverage refers to the grid on which its metrics are computed.
    """
    if not selection.has_no_cells(elites):
        return f"elites in {elites.mask.mean():.1%} of {elites.mask.size:,} cells"
    archive, state = selection.get_archive(policy)
    coverage = float(archive.metrics(state, 0.0)["coverage"])
    shape = " x ".join(map(str, selection.archive_settings(policy).grid))
    return f"{elites.mask.sum():,} elites in {coverage:.1%} of {shape} cells"


def archive_title(policy: Policy) -> str:
    """Return the title of archive figures. For a member of a population, it lists its settings."""
    title = f"{policy.spec.algorithm} on {policy.spec.environment}, {policy.step:,} evaluations"
    if policy.member is None:
        return title
    settings = ", ".join(
        f"{name} {value:g}" for name, value in policy.spec.members()[policy.member].items()
    )
    return f"{title}\nmember {policy.member} ({settings})"


def write_table(policy: Policy, target: Path) -> Path:
    """Write the elites of a policy as CSV with the columns of `Policy.elites`, best first.

    Args:
        policy: Policy of a quality-diversity run.
        target: Output file.

    Returns:
        `target`.

    Raises:
        UsageError: If the policy has no archive or the file cannot be written.
    """
    table = policy.elites()
    rows = [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
    return write_output_file(target, "\n".join([",".join(table), *rows, ""]).encode())


def grid_shape(policy: Policy, elites: Elites) -> tuple[int, ...] | None:
    """Return the shape of the archive's grid, or None for an archive without a grid."""
    return selection.archive_settings(policy).grid if elites.is_grid else None


def descriptor_bounds(policy: Policy) -> Bounds:
    """Return the lower and upper bounds of the archive's descriptors."""
    archive, _ = selection.get_archive(policy)
    return Bounds(np.asarray(archive.low), np.asarray(archive.high))


def draw_archive_map(
    elites: Elites, shape: tuple[int, ...] | None, title: str, bounds: Bounds | None = None
) -> "matplotlib.figure.Figure":
    """Draw the fitness of elites over their descriptors.

    Grids are drawn as heat maps, or as nested heat maps for more than two descriptor dimensions.
    Archives without a grid are drawn as Voronoi cells, or as dots if they have no cells. With more
    than two descriptor dimensions, they are drawn as lines across parallel axes.

    Args:
        elites: Elites, at most one per cell.
        shape: Shape of the grid, or None for an archive without a grid.
        title: Title of the figure.
        bounds: Lower and upper bounds of the descriptors, `[K]` each. None uses the range of the
            cells.

    Returns:
        The figure.
    """
    import matplotlib
    from matplotlib.figure import Figure

    layout = cell_charts.make_layout(elites, shape, bounds)
    best_fitness = float(np.max(elites.solutions.fitness[elites.mask]))
    with matplotlib.rc_context(ARCHIVE_STYLE):
        figure = Figure(figsize=(7, 5.6), layout="constrained")
        axis = figure.subplots()
        figure.colorbar(draw_elites(axis, elites, layout), ax=axis, label="fitness")
        axis.set_title(f"{title}, best fitness {format_number(best_fitness)}")
    return figure


def draw_elites(
    axis: "matplotlib.axes.Axes",
    elites: Elites,
    layout: cell_charts.CellLayout,
    colors: ColorScale = DEFAULT_COLORS,
) -> "matplotlib.cm.ScalarMappable":
    """Draw the fitness of elites on matplotlib axes and return the mappable for a color bar.

    Args:
        axis: Matplotlib axes.
        elites: Elites, at most one per cell.
        layout: Layout of the cells.
        colors: Mapping from fitness to colors.
    """
    fitness, descriptor = (
        np.asarray(x)[elites.mask] for x in (elites.solutions.fitness, elites.solutions.descriptor)
    )
    if len(layout.low) > 2 and layout.shape is None:
        return cell_charts.draw_parallel_axes(axis, layout, descriptor, fitness, colors)
    if not selection.has_no_cells(elites):
        values = np.where(elites.mask, elites.solutions.fitness, np.nan)
        return cell_charts.draw_cells(axis, layout, values, colors)
    second = descriptor[:, 1] if descriptor.shape[1] > 1 else np.zeros(len(descriptor))
    cell_charts.label_axes(axis, layout)
    return axis.scatter(
        descriptor[:, 0],
        second,
        c=fitness,
        s=9,
        clip_on=False,
        cmap=colors.colormap,
        norm=colors.norm,
    )
