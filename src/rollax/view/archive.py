"""The archive of a run as a picture: a heat map of fitness over descriptors."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from rollax.archives.core import Elites
from rollax.errors import UsageError
from rollax.host import elites
from rollax.host.api import Policy, load
from rollax.host.files import write_atomically
from rollax.host.run_folder import read_spec
from rollax.host.settings import entry
from rollax.view.plot import STYLE

COLORS = "viridis"


def draw_if_any(folder: Path) -> list[Path]:
    """Draws the archive at the last checkpoint of a run into its figures/; no file for a run without one."""
    spec = read_spec(folder)
    if entry(spec.algorithm).unit != "evaluations" or spec.own_environment:
        return []
    return [draw(load(folder), Path(folder) / "figures" / "archive.png")]


def draw(policy: Policy, target: Path) -> Path:
    """Writes the picture of a policy's archive. Raises UsageError when there is none, or when it cannot be written."""
    found, config = elites.of_policy(policy), policy.spec.config
    shape = config.grid if found.is_grid else None
    image = picture(found, shape, f"{policy.spec.algorithm} on {policy.spec.environment}, {policy.step:,} evaluations")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, image)
    except OSError as error:
        raise UsageError(f"{target} cannot be written ({error})") from error
    return target


def picture(found: Elites, shape: tuple[int, ...] | None, title: str) -> bytes:
    """A PNG: cells of a grid `shape`, more than two dimensions as grids within grids; without a shape the elites as dots."""
    import matplotlib
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(7, 5.6), layout="constrained")
        axis = figure.subplots()
        drawn = _grid(axis, found, shape) if shape is not None else _dots(axis, found)
        figure.colorbar(drawn, ax=axis, label="fitness")
        share = f"{found.mask.mean():.1%} of {found.mask.size:,} places"
        axis.set_title(f"{title}\n{share}, best fitness {found.scored.fitness[found.mask].max():.4g}")
        figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _grid(axis: Any, found: Elites, shape: tuple[int, ...]) -> Any:
    """The first dimension to the right, the second upwards; each further pair within every cell of the pair before."""
    fitness = np.where(found.mask, found.scored.fitness, np.nan).reshape(shape)
    fitness = fitness.reshape(*shape, *(1,) * (len(shape) % 2))
    order = [*range(1, fitness.ndim, 2), *range(0, fitness.ndim, 2)]
    height, width = (int(np.prod(fitness.shape[start::2])) for start in (1, 0))
    image = fitness.transpose(order).reshape(height, width)
    low, high = found.center.min(axis=0), found.center.max(axis=0)
    half = (high - low) / np.maximum(np.asarray(shape) - 1, 1) / 2
    is_plane = len(shape) <= 2
    edges = np.stack([low - half, high + half], axis=1)
    extent = (*edges[0], *(edges[1] if len(shape) == 2 else (0, 1))) if is_plane else None
    drawn = axis.imshow(image, origin="lower", aspect="auto", extent=extent, cmap=COLORS, interpolation="nearest")
    if is_plane:
        axis.set_xlabel("descriptor 0")
        axis.set_ylabel("descriptor 1" if len(shape) == 2 else "")
        return drawn
    for dimension in (0, 1):
        inner = image.shape[1 - dimension] // shape[dimension]
        lines = axis.axvline if dimension == 0 else axis.axhline
        for k in range(1, shape[dimension]):
            lines(k * inner - 0.5, color="white", linewidth=0.8)
    axis.set_xlabel("descriptors " + ", ".join(map(str, range(0, len(shape), 2))) + ", each within the one before")
    axis.set_ylabel("descriptors " + ", ".join(map(str, range(1, len(shape), 2))))
    axis.set_xticks([])
    axis.set_yticks([])
    return drawn


def _dots(axis: Any, found: Elites) -> Any:
    """Elites at the first two of their descriptors."""
    places = found.center[found.mask]
    second = places[:, 1] if places.shape[1] > 1 else np.zeros(len(places))
    axis.set_xlabel("descriptor 0")
    axis.set_ylabel("descriptor 1" if places.shape[1] > 1 else "")
    return axis.scatter(places[:, 0], second, c=found.scored.fitness[found.mask], cmap=COLORS, s=9)
