"""The archives of two runs side by side, and where one of them is fitter."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollax.archives.core import Elites
from rollax.errors import UsageError
from rollax.host import elites
from rollax.host.api import Policy, load
from rollax.host.evaluation import digits
from rollax.host.files import write
from rollax.host.merging import Comparison, compare_archives
from rollax.view import cells
from rollax.view.archive import bounds_of, draw_elites, has_archive, shape_of, silent
from rollax.view.style import STYLE

DIFFERENCE = "RdBu"  # from the first one's red to the second one's blue
ONLY = "#E69F00", "#009E73"  # cells that only the first has, and only the second
EMPTY = "#CCCCCC"  # no difference is nearly white
MOST = 98  # percentile of differences that the scale reaches to: few are far larger than all others


class Shown(NamedTuple):
    """An archive to draw."""

    name: str
    found: Elites
    layout: cells.Layout


def draw_if_both(first: Path, second: Path, target: Path, tell: Callable[[str], object] = silent) -> list[Path]:
    """Draws the archives of two runs with the same descriptors, at their last checkpoints; no file for others.

    `tell` is called with the warnings of `load`, and with why two archives cannot be compared.
    """
    if not (has_archive(first) and has_archive(second)):
        return []
    policies = load(first), load(second)
    for warning in [*policies[0].warnings, *policies[1].warnings]:
        tell(warning)
    try:
        comparison = compare_archives(*policies)
    except UsageError as error:  # of other environments, or empty: there is nothing to compare
        tell(f"the archives are not drawn side by side: {error}")
        return []
    a, b = (shown(policy, Path(run).resolve().name) for policy, run in zip(policies, (first, second), strict=True))
    return [write(target, picture(a, b, comparison, layout_of_cells(policies[0])))]


def shown(policy: Policy, name: str) -> Shown:
    """A policy's archive with what is said above its picture."""
    found = elites.best_of_cells(elites.of_policy(policy))
    layout = cells.of_elites(found, shape_of(policy, found), bounds_of(policy))
    return Shown(f"{name}\n{policy.spec.algorithm}, {policy.step:,} evaluations", found, layout)


def layout_of_cells(policy: Policy) -> cells.Layout:
    """The cells that a comparison with this policy's archive counts: of a population, those of the grid it is laid on."""
    found = elites.best_of_cells(elites.of_policy(policy))
    shape = policy.spec.config.grid if elites.is_population(found) else shape_of(policy, found)
    return cells.of_elites(found, shape, bounds_of(policy))


def picture(first: Shown, second: Shown, comparison: Comparison, layout: cells.Layout) -> bytes:
    """A PNG of three parts: both archives on one color scale, and the fitness of the second minus that of the first.

    `layout`: of the cells of the comparison.
    """
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    fitness = np.concatenate([each.found.scored.fitness[each.found.mask] for each in (first, second)])
    scale = Normalize(float(fitness.min()), float(fitness.max()))
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(16, 5.6), layout="constrained")
        axes = figure.subplots(1, 3)
        numbers = comparison.numbers()
        for axis, each, which in zip(axes[:2], (first, second), "ab", strict=True):
            draw_elites(axis, each.found, each.layout, cmap=cells.COLORS, norm=scale)
            score, best = numbers[f"qd_score_{which}"], numbers[f"fitness_best_{which}"]
            where = "" if _same_cells(each.layout, layout) else " in the cells on the right"
            axis.set_title(f"{each.name}\nQD score {digits(score)}{where}, best fitness {digits(best)}")
        figure.colorbar(ScalarMappable(scale, cells.COLORS), ax=axes[:2], label="fitness", pad=0.01)
        _difference(figure, axes[2], comparison, layout)
        figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


def _same_cells(a: cells.Layout, b: cells.Layout) -> bool:
    """Whether two layouts are of the same cells."""
    centers = (np.zeros(0) if each.center is None else each.center for each in (a, b))
    return a.shape == b.shape and np.array_equal(next(centers), next(centers))


def differences(comparison: Comparison, layout: cells.Layout) -> tuple[np.ndarray, np.ndarray, float]:
    """By cell `[C]`: by how much fitter the second is, where both have an elite; 0 where only the first has one, 1 where only
    the second has; and how far a scale of the differences reaches."""
    size = int(np.prod(layout.shape)) if layout.shape is not None else len(layout.center if layout.center is not None else ())
    difference, only = np.full(size, np.nan), np.full(size, np.nan)
    difference[comparison.cell] = comparison.fitness_b - comparison.fitness_a
    has = [~np.isnan(fitness) for fitness in (comparison.fitness_a, comparison.fitness_b)]
    only[comparison.cell] = np.where(has[0] & has[1], np.nan, np.where(has[0], 0.0, 1.0))
    sizes = np.abs(difference[np.isfinite(difference)])
    return difference, only, float(np.percentile(sizes, MOST) or sizes.max() or 1.0) if sizes.size else 1.0


def told_of(comparison: Comparison) -> str:
    """In words, which is fitter where."""
    numbers = comparison.numbers()
    fitter = f"the first is fitter in {numbers['better_a']:,}, the second in {numbers['better_b']:,}"
    return f"{numbers['both']:,} cells in both\n{fitter}"


def _difference(figure: Any, axis: Any, comparison: Comparison, layout: cells.Layout) -> None:
    """Cells that both have, by how much fitter the second is; those that only one has in a color of its own."""
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.patches import Patch

    difference, only, reach = differences(comparison, layout)
    drawn = cells.draw(axis, layout, difference, EMPTY, cmap=DIFFERENCE, norm=Normalize(-reach, reach))
    cells.draw(axis, layout, only, None, cmap=ListedColormap(ONLY), norm=Normalize(0, 1))
    figure.colorbar(drawn, ax=axis, label="fitness of the second minus that of the first", extend="both")
    numbers = comparison.numbers()
    axis.set_title(f"second minus first\n{told_of(comparison)}")
    labels = [f"only in the {name}: {numbers[key]:,}" for name, key in (("first", "only_a"), ("second", "only_b"))]
    handles = [Patch(color=color, label=label) for color, label in zip(ONLY, labels, strict=True)]
    axis.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, fontsize=8)
