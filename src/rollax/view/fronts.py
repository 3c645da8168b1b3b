"""Archives of fronts as a picture: objectives of all elites, the front of them all, and what the front of each cell covers."""

import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.archives.core import Elites
from rollax.archives.fronts import hypervolume
from rollax.host import elites
from rollax.view import cells
from rollax.view.style import STYLE


def picture(policy: Any, title: str) -> bytes:
    """A PNG: the first two objectives of every elite, colored by its cell's hypervolume, and these over descriptors."""
    import matplotlib
    from matplotlib.figure import Figure

    config, found = policy.spec.config, elites.of_policy(policy)
    volume = volumes(found, config.reference)
    archive, _ = elites.archive_of(policy)
    best = elites.best_of_cells(found)
    layout = cells.of_elites(best, config.grid if found.is_grid else None, (archive.low, archive.high))
    buffer, each = io.BytesIO(), int(found.per_cell)
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(11.5, 5), layout="constrained")
        left, right = figure.subplots(1, 2)
        places = np.flatnonzero(found.mask)
        values = np.asarray(found.scored.extras)[places]
        left.scatter(values[:, 0], values[:, 1 % values.shape[1]], c=volume[places // each], cmap=cells.COLORS, s=9)
        if values.shape[1] == 2:
            corner = front_of(values)
            left.step(corner[:, 0], corner[:, 1], where="pre", color="black", linewidth=1, label="front of all")
            left.legend(loc="lower left")
        left.set_xlabel(config.objectives[0])
        left.set_ylabel(config.objectives[1 % len(config.objectives)])
        left.set_title(f"{len(places):,} elites in {np.isfinite(volume).sum():,} cells")
        figure.colorbar(cells.draw(right, layout, volume, cmap=cells.COLORS), ax=right, label="hypervolume of the front")
        right.set_title(f"MOQD score {np.nansum(volume):.5g}")
        figure.suptitle(title)
        figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def volumes(found: Elites, reference: tuple[float, ...]) -> np.ndarray:
    """The hypervolume of the front of every cell `[C]`, NaN where there is none."""
    each = int(found.per_cell)
    objectives = np.asarray(found.scored.extras).reshape(-1, each, len(reference))
    mask = np.asarray(found.mask).reshape(-1, each)
    measure = jax.jit(jax.vmap(lambda front, mask: hypervolume(front, mask, reference)))
    return np.where(mask.any(axis=1), measure(jnp.asarray(objectives), jnp.asarray(mask)), np.nan)


def front_of(values: np.ndarray) -> np.ndarray:
    """Of points `[N, 2]` those that no other is as good as in both, by the first number, rising."""
    ranked = values[np.lexsort((-values[:, 1], -values[:, 0]))]
    highest = np.maximum.accumulate(np.concatenate([[-np.inf], ranked[:-1, 1]]))
    return ranked[ranked[:, 1] > highest][::-1]
