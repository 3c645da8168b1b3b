"""Figures that compare the archives of two runs."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollax.archives.archive import Elites
from rollax.errors import UsageError
from rollax.loading import load
from rollax.policy import Policy
from rollax.training.elites import selection
from rollax.training.elites.merging import Comparison, compare_archives
from rollax.training.evaluation.metrics import format_number
from rollax.training.run_folder.files import write_output_file
from rollax.training.run_folder.tables import ignore_message
from rollax.visualization.archives import cell_charts
from rollax.visualization.archives.archive_figure import (
    ARCHIVE_STYLE,
    descriptor_bounds,
    draw_elites,
    encode_figure,
    grid_shape,
    has_archive,
)
from rollax.visualization.archives.cell_charts import ColorScale

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

DIFFERENCE_COLORMAP = "RdBu"  # red where the first is fitter, blue where the second is
EXCLUSIVE_COLORS = "#E69F00", "#009E73"  # cells that only the first or only the second fills
EMPTY_COLOR = "#CCCCCC"  # distinct from small differences, which are nearly white
SCALE_PERCENTILE = 98  # of absolute differences, at the end of the color scale


class ArchivePanel(NamedTuple):
    """One archive of a comparison.

    Attributes:
        name: Title of the panel.
        elites: Elites, at most one per cell.
        layout: Layout of the cells.
    """

    name: str
    elites: Elites
    layout: cell_charts.CellLayout


def write_archive_comparison(
    first: Path, second: Path, target: Path, notify_fn: Callable[[str], object] = ignore_message
) -> list[Path]:
    """Write a figure that compares the archives at the last checkpoints of two runs.

    Args:
        first: Folder of the first run.
        second: Folder of the second run.
        target: Output file ending in .png.
        notify_fn: Function that receives warnings from loading the policies, and the reason if the
            archives cannot be compared.

    Returns:
        Path of the figure, or an empty list if the archives cannot be compared.
    """
    if not (has_archive(first) and has_archive(second)):
        return []
    policies = load(first), load(second)
    for warning in [*policies[0].warnings, *policies[1].warnings]:
        notify_fn(warning)
    try:
        figure = draw_archive_comparison(*policies)
    except UsageError as error:  # the archives are empty or of different environments
        notify_fn(f"The archives are not drawn side by side: {error}")
        return []
    return [write_output_file(target, encode_figure(figure, "png"))]


def draw_archive_comparison(first: Policy, second: Policy) -> "matplotlib.figure.Figure":
    """Draw the archives of two policies and their difference in one figure.

    Args:
        first: Policy of the first run.
        second: Policy of the second run.

    Returns:
        The figure.

    Raises:
        UsageError: If a run has no archive, or the archives cannot be compared.
    """
    comparison = compare_archives(first, second)
    a, b = (
        make_panel(policy, "" if policy.folder is None else policy.folder.resolve().name)
        for policy in (first, second)
    )
    return draw_comparison_panels(a, b, comparison, comparison_layout(first))


def make_panel(policy: Policy, name: str) -> ArchivePanel:
    """Return the panel data for the archive of a policy.

    Args:
        policy: Policy of a quality-diversity run.
        name: Name of the run.

    Returns:
        Panel with the best elite of each cell.
    """
    elites = selection.best_per_cell(selection.get_elites(policy))
    return ArchivePanel(
        name=f"{name}\n{policy.spec.algorithm}, {policy.step:,} evaluations",
        elites=elites,
        layout=cell_charts.make_layout(
            elites, grid_shape(policy, elites), descriptor_bounds(policy)
        ),
    )


def comparison_layout(policy: Policy) -> cell_charts.CellLayout:
    """Return the cell layout for comparisons with the archive of a policy.

    For an archive without cells, the layout is the grid on which its metrics are computed.
    """
    elites = selection.best_per_cell(selection.get_elites(policy))
    has_grid = selection.has_no_cells(elites) or elites.is_grid
    shape = selection.archive_settings(policy).grid if has_grid else None
    return cell_charts.make_layout(elites, shape, descriptor_bounds(policy))


def draw_comparison_panels(
    first: ArchivePanel,
    second: ArchivePanel,
    comparison: Comparison,
    layout: cell_charts.CellLayout,
) -> "matplotlib.figure.Figure":
    """Draw two archives with a common color scale, and the difference of their fitness.

    Args:
        first: Panel data of the first archive.
        second: Panel data of the second archive.
        comparison: Comparison of the archives.
        layout: Cell layout of the comparison.

    Returns:
        The figure.
    """
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    fitness = np.concatenate(
        [panel.elites.solutions.fitness[panel.elites.mask] for panel in (first, second)]
    )
    scale = Normalize(float(fitness.min()), float(fitness.max()))
    with matplotlib.rc_context(ARCHIVE_STYLE):
        figure = Figure(figsize=(16, 5.6), layout="constrained")
        axes = figure.subplots(1, 3)
        numbers = comparison.numbers()
        for axis, panel, suffix in zip(axes[:2], (first, second), "ab", strict=True):
            draw_elites(axis, panel.elites, panel.layout, ColorScale(norm=scale))
            score, best = numbers[f"qd_score_{suffix}"], numbers[f"fitness_best_{suffix}"]
            note = "" if _has_same_cells(panel.layout, layout) else " in the cells on the right"
            axis.set_title(
                f"{panel.name}\nQD score {format_number(score)}{note}, "
                f"best fitness {format_number(best)}"
            )
        figure.colorbar(
            ScalarMappable(scale, cell_charts.COLORMAP), ax=axes[:2], label="fitness", pad=0.01
        )
        _draw_difference(figure, axes[2], comparison, layout)
    return figure


def _has_same_cells(first: cell_charts.CellLayout, second: cell_charts.CellLayout) -> bool:
    """Return whether two layouts have the same cells."""
    center_a, center_b = (
        np.zeros(0) if layout.center is None else layout.center for layout in (first, second)
    )
    return first.shape == second.shape and np.array_equal(center_a, center_b)


class CellDifferences(NamedTuple):
    """Differences between two archives in C cells.

    Attributes:
        difference: Fitness in the second archive minus fitness in the first archive, `[C]`. NaN
            unless both archives fill the cell.
        exclusive: 0.0 for cells that only the first archive fills, 1.0 for cells that only the
            second archive fills, and NaN for other cells, `[C]`.
        scale: Upper end of the color scale of differences, which is symmetric around 0.
    """

    difference: np.ndarray
    exclusive: np.ndarray
    scale: float


def cell_differences(comparison: Comparison, layout: cell_charts.CellLayout) -> CellDifferences:
    """Return the differences between two archives per cell.

    Args:
        comparison: Comparison of the archives.
        layout: Cell layout of the comparison.

    Returns:
        Fitness differences, cells that only one archive fills, and the end of the color scale.
    """
    if layout.shape is not None:
        num_cells = int(np.prod(layout.shape))
    else:
        num_cells = 0 if layout.center is None else len(layout.center)
    difference, exclusive = np.full((2, num_cells), np.nan)
    difference[comparison.cell] = comparison.fitness_b - comparison.fitness_a
    is_in_first, is_in_second = ~np.isnan(comparison.fitness_a), ~np.isnan(comparison.fitness_b)
    exclusive[comparison.cell] = np.where(
        is_in_first & is_in_second, np.nan, np.where(is_in_first, 0.0, 1.0)
    )
    sizes = np.abs(difference[np.isfinite(difference)])
    scale = np.percentile(sizes, SCALE_PERCENTILE) or sizes.max() if sizes.size else 0.0
    return CellDifferences(difference, exclusive, float(scale or 1.0))


def describe_comparison(comparison: Comparison) -> str:
    """Return two lines: number of common cells, and in how many of them each archive is fitter."""
    numbers = comparison.numbers()
    return (
        f"{numbers['both']:,} cells in both\nthe first is fitter in {numbers['better_a']:,}, "
        f"the second in {numbers['better_b']:,}"
    )


def _draw_difference(
    figure: "matplotlib.figure.Figure",
    axis: "matplotlib.axes.Axes",
    comparison: Comparison,
    layout: cell_charts.CellLayout,
) -> None:
    """Draw the difference of the fitness, with fixed colors for cells of only one archive."""
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.patches import Patch

    differences = cell_differences(comparison, layout)
    scale = Normalize(-differences.scale, differences.scale)
    image = cell_charts.draw_cells(
        axis,
        layout,
        differences.difference,
        ColorScale(DIFFERENCE_COLORMAP, scale),
        empty_color=EMPTY_COLOR,
    )
    exclusive_colors = ColorScale(ListedColormap(EXCLUSIVE_COLORS), Normalize(0, 1))
    cell_charts.draw_cells(axis, layout, differences.exclusive, exclusive_colors, empty_color=None)
    figure.colorbar(
        image, ax=axis, label="fitness of the second minus that of the first", extend="both"
    )
    values = comparison.numbers()
    axis.set_title(f"second minus first\n{describe_comparison(comparison)}")
    labels = [
        f"only in the {name}: {values[key]:,}"
        for name, key in (("first", "only_a"), ("second", "only_b"))
    ]
    handles = [
        Patch(color=color, label=label)
        for color, label in zip(EXCLUSIVE_COLORS, labels, strict=True)
    ]
    axis.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, fontsize=8
    )
