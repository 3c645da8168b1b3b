"""Figures of multi-objective archives: objectives of all elites, and hypervolume per cell."""

import io

import jax
import jax.numpy as jnp
import numpy as np

from rollax.archives.archive import Elites
from rollax.archives.pareto_fronts import hypervolume
from rollax.policy import Policy
from rollax.training.elites import selection
from rollax.visualization.archives import cell_charts
from rollax.visualization.plots.style import STYLE


def fronts_png(policy: Policy, title: str) -> bytes:
    """Draw a figure with the first two objectives of all elites and the hypervolume of each cell.

    Args:
        policy: Policy of a multi-objective quality-diversity run.
        title: Title of the figure.

    Returns:
        The figure, encoded as PNG.
    """
    import matplotlib
    from matplotlib.figure import Figure

    settings, elites = selection.archive_settings(policy), selection.get_elites(policy)
    volume = cell_hypervolumes(elites, settings.reference)
    archive, _ = selection.get_archive(policy)
    bounds = cell_charts.Bounds(np.asarray(archive.low), np.asarray(archive.high))
    best = selection.best_per_cell(elites)
    layout = cell_charts.make_layout(best, settings.grid if elites.is_grid else None, bounds)
    buffer = io.BytesIO()
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(11.5, 5), layout="constrained")
        front_axis, map_axis = figure.subplots(1, 2)
        indices = np.flatnonzero(elites.mask)
        values = np.asarray(elites.solutions.extras)[indices]
        front_axis.scatter(
            values[:, 0],
            values[:, 1 % values.shape[1]],
            c=volume[indices // int(elites.num_per_cell)],
            cmap=cell_charts.COLORMAP,
            s=9,
        )
        if values.shape[1] == 2:
            front = pareto_front(values)
            front_axis.step(
                front[:, 0],
                front[:, 1],
                where="pre",
                color="black",
                linewidth=1,
                label="Pareto front",
            )
            front_axis.legend(loc="lower left")
        front_axis.set_xlabel(settings.objectives[0])
        front_axis.set_ylabel(settings.objectives[1 % len(settings.objectives)])
        front_axis.set_title(f"{len(indices):,} elites in {np.isfinite(volume).sum():,} cells")
        figure.colorbar(
            cell_charts.draw_cells(map_axis, layout, volume),
            ax=map_axis,
            label="hypervolume of the front",
        )
        map_axis.set_title(f"MOQD score {np.nansum(volume):.5g}")
        figure.suptitle(title)
        figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def cell_hypervolumes(elites: Elites, reference: tuple[float, ...]) -> np.ndarray:
    """Return the hypervolume of the Pareto front in each cell.

    Args:
        elites: All elites of a multi-objective archive.
        reference: Reference point, one value per objective.

    Returns:
        Hypervolume of each of C cells, `[C]`. NaN for empty cells.
    """
    per_cell = int(elites.num_per_cell)
    objectives = np.asarray(elites.solutions.extras).reshape(-1, per_cell, len(reference))
    mask = np.asarray(elites.mask).reshape(-1, per_cell)
    measure = jax.jit(jax.vmap(lambda front, mask: hypervolume(front, mask, reference)))
    return np.where(mask.any(axis=1), measure(jnp.asarray(objectives), jnp.asarray(mask)), np.nan)


def pareto_front(values: np.ndarray) -> np.ndarray:
    """Return the points on the Pareto front of two maximized objectives.

    Args:
        values: Objectives of N points, `[N, 2]`.

    Returns:
        Nondominated points, `[M, 2]`, in ascending order of the first objective. Equal points are
        returned once.
    """
    ranked = values[np.lexsort((-values[:, 1], -values[:, 0]))]
    highest = np.maximum.accumulate(np.concatenate([[-np.inf], ranked[:-1, 1]]))
    return ranked[ranked[:, 1] > highest][::-1]
