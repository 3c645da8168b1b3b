"""The archive of a run as a picture of fitness over descriptors, and as a table."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rollax.archives.core import Elites
from rollax.host import elites
from rollax.host.api import Policy, load
from rollax.host.evaluation import digits
from rollax.host.files import write
from rollax.host.run_folder import read_spec
from rollax.host.settings import entry
from rollax.view import cells, fronts
from rollax.view.style import STYLE


def silent(warning: str) -> None:
    """Tells nobody."""


def has_archive(folder: Path) -> bool:
    """Whether a run has an archive that its folder alone tells of."""
    spec = read_spec(folder)
    return entry(spec.algorithm).unit == "evaluations" and not spec.own_environment


def draw_if_any(folder: Path, tell: Callable[[str], object] = silent) -> list[Path]:
    """Draws the archive at the last checkpoint of a run into its figures/, and writes its table there; no file for a run
    without one, or with an empty one. `tell` is called with the warnings of `load`."""
    if not has_archive(folder):
        return []
    policy, figures = load(folder), Path(folder) / "figures"
    for warning in policy.warnings:
        tell(warning)
    archive, state = elites.archive_of(policy)
    if not int(archive.num_elites(state)):
        return []
    drawn = [draw(policy, figures / "archive.png"), write_table(policy, figures / "archive.csv")]
    if getattr(policy.spec.config, "objectives", ()):
        drawn.insert(1, write(figures / "fronts.png", fronts.picture(policy, title_of(policy))))
    return drawn


def draw(policy: Policy, target: Path) -> Path:
    """Writes the picture of a policy's archive. Raises UsageError when there is none, or when it cannot be written."""
    found = elites.best_of_cells(elites.of_policy(policy))
    title = f"{title_of(policy)}\n{filled(policy, found)}"
    return write(target, picture(found, shape_of(policy, found), title, bounds_of(policy)))


def filled(policy: Policy, found: Elites) -> str:
    """How many cells have elites; of a population how many elites it has, and how many cells of its metrics they fill."""
    if not elites.is_population(found):
        return f"elites in {found.mask.mean():.1%} of {found.mask.size:,} cells"
    archive, state = elites.archive_of(policy)
    coverage = float(archive.metrics(state, 0.0)["coverage"])
    shape = " x ".join(map(str, policy.spec.config.grid))
    return f"{found.mask.sum():,} elites in {coverage:.1%} of {shape} cells"


def title_of(policy: Policy) -> str:
    """What a picture of a policy's archive shows; of a population also which member, by what tells it from the others."""
    title = f"{policy.spec.algorithm} on {policy.spec.environment}, {policy.step:,} evaluations"
    if policy.member is None:
        return title
    told = ", ".join(f"{name} {value:g}" for name, value in policy.spec.members()[policy.member].items())
    return f"{title}\nmember {policy.member} ({told})"


def write_table(policy: Policy, target: Path) -> Path:
    """Writes the elites of a policy's archive as CSV, the best first: the columns of `Policy.elites`.

    Raises UsageError when there is no archive, or when it cannot be written.
    """
    table = policy.elites()
    rows = [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
    return write(target, "\n".join([",".join(table), *rows, ""]).encode())


def shape_of(policy: Policy, found: Elites) -> tuple[int, ...] | None:
    """The shape of the archive's grid, if it has one."""
    return policy.spec.config.grid if found.is_grid else None


def bounds_of(policy: Policy) -> tuple[Any, Any]:
    """The bounds of the archive's descriptors."""
    archive, _ = elites.archive_of(policy)
    return archive.low, archive.high


def picture(found: Elites, shape: tuple[int, ...] | None, title: str, bounds: tuple[Any, Any] | None = None) -> bytes:
    """A PNG: cells of a grid `shape`, more than two dimensions as grids within grids; without a shape Voronoi cells, and the
    elites of a population as dots; more than two dimensions of these as lines across parallel axes.

    `bounds`: of descriptors, `[K]` each.
    """
    import matplotlib
    from matplotlib.figure import Figure

    buffer, layout = io.BytesIO(), cells.of_elites(found, shape, bounds)
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(7, 5.6), layout="constrained")
        axis = figure.subplots()
        figure.colorbar(draw_elites(axis, found, layout, cmap=cells.COLORS), ax=axis, label="fitness")
        axis.set_title(f"{title}, best fitness {digits(float(np.max(found.scored.fitness[found.mask])))}")
        figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def draw_elites(axis: Any, found: Elites, layout: cells.Layout, **colors: Any) -> Any:
    """Draws the fitness of elites, and returns what a color bar is made of."""
    fitness, descriptor = (np.asarray(x)[found.mask] for x in (found.scored.fitness, found.scored.descriptor))
    if len(layout.low) > 2 and layout.shape is None:
        return cells.lines(axis, layout, descriptor, fitness, **colors)
    if not elites.is_population(found):
        return cells.draw(axis, layout, np.where(found.mask, found.scored.fitness, np.nan), **colors)
    second = descriptor[:, 1] if descriptor.shape[1] > 1 else np.zeros(len(descriptor))
    cells.name_axes(axis, layout)
    return axis.scatter(descriptor[:, 0], second, c=fitness, s=9, clip_on=False, **colors)
