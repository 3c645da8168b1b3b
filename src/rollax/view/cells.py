"""Values over the cells of an archive: a heat map of a grid, filled Voronoi cells, or lines across an axis a dimension."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.archives.core import Elites
from rollax.archives.voronoi import binned, nearest

COLORS, EMPTY = "viridis", "#ECECEC"
RASTER = 800  # pixels to a side by which Voronoi cells are drawn
MOST_BORDERS = 2500  # cells beyond which the lines between them would hide what they are filled with
MOST_LINES = 3000  # elites beyond which lines across axes would take long and hide each other


class Layout(NamedTuple):
    """Where cells are: those of a grid, in row-major order, or around their centers."""

    low: np.ndarray  # [K]: bounds of descriptors
    high: np.ndarray  # [K]
    shape: tuple[int, ...] | None  # of the grid
    center: np.ndarray | None = None  # [C, K], where there is no grid


def of_elites(found: Elites, shape: tuple[int, ...] | None, bounds: tuple[Any, Any] | None = None) -> Layout:
    """The layout of an archive. `bounds`: of its descriptors; those of its cells without."""
    center = np.asarray(found.center, float)
    low, high = bounds if bounds is not None else (center.min(axis=0), center.max(axis=0))
    if bounds is None and shape is not None:  # beyond the centers there is half a cell
        half = (high - low) / np.maximum(np.asarray(shape) - 1, 1) / 2
        low, high = low - half, high + half
    return Layout(np.asarray(low, float), np.asarray(high, float), shape, None if shape is not None else center)


def draw(axis: Any, layout: Layout, values: np.ndarray, empty: str | None = EMPTY, **colors: Any) -> Any:
    """Draws values by cell `[C]`, nothing where they are NaN, and returns what a color bar is made of.

    `empty`: the color of cells without a value; None leaves what was drawn there before. `colors`: `cmap`, `norm` and the like.
    """
    if layout.shape is not None:
        return _grid(axis, layout, values, empty, colors)
    assert layout.center is not None
    if len(layout.low) <= 2:
        return _voronoi(axis, layout, values, empty, colors)
    mask = np.isfinite(values)
    return lines(axis, layout, layout.center[mask], values[mask], **colors)


def name_axes(axis: Any, layout: Layout) -> None:
    """Labels and limits of up to two dimensions."""
    axis.set_xlabel("descriptor 0")
    axis.set_xlim(layout.low[0], layout.high[0])
    if len(layout.low) == 2:
        axis.set_ylabel("descriptor 1")
        axis.set_ylim(layout.low[1], layout.high[1])
    else:
        axis.set_yticks([])


def _image(axis: Any, image: np.ndarray, empty: str | None, colors: dict[str, Any], extent: Any = None) -> Any:
    drawn = axis.imshow(
        np.ma.masked_invalid(image), origin="lower", aspect="auto", extent=extent, interpolation="nearest", **colors
    )
    drawn.set_cmap(drawn.get_cmap().with_extremes(bad=(1, 1, 1, 0) if empty is None else empty))
    return drawn


def image_of(shape: tuple[int, ...], values: np.ndarray) -> np.ndarray:
    """Values by cell of a grid as rows upwards: the first dimension to the right, the second upwards; each further pair within
    every cell of the pair before."""
    cells = values.reshape(*shape, *(1,) * (len(shape) % 2))
    order = [*range(1, cells.ndim, 2), *range(0, cells.ndim, 2)]
    height, width = (int(np.prod(cells.shape[start::2])) for start in (1, 0))
    return cells.transpose(order).reshape(height, width)


def _grid(axis: Any, layout: Layout, values: np.ndarray, empty: str | None, colors: dict[str, Any]) -> Any:
    shape = layout.shape
    assert shape is not None
    image = image_of(shape, values)
    if len(shape) <= 2:
        drawn = _image(axis, image, empty, colors, _extent(layout))
        name_axes(axis, layout)
        return drawn
    drawn = _image(axis, image, empty, colors)
    for dimension in (0, 1):
        inner = image.shape[1 - dimension] // shape[dimension]
        across = axis.axvline if dimension == 0 else axis.axhline
        for k in range(1, shape[dimension]):
            across(k * inner - 0.5, color="white", linewidth=0.8)
    axis.set_xlabel("descriptors " + ", ".join(map(str, range(0, len(shape), 2))) + ", each within the one before")
    axis.set_ylabel("descriptors " + ", ".join(map(str, range(1, len(shape), 2))))
    axis.set_xticks([])
    axis.set_yticks([])
    return drawn


def _extent(layout: Layout) -> tuple[float, ...]:
    up = (layout.low[1], layout.high[1]) if len(layout.low) == 2 else (0, 1)
    return layout.low[0], layout.high[0], *up


def _voronoi(axis: Any, layout: Layout, values: np.ndarray, empty: str | None, colors: dict[str, Any]) -> Any:
    """Every pixel within the bounds has the value of its nearest center."""
    assert layout.center is not None
    cell = raster(layout)
    drawn = _image(axis, values[cell], empty, colors, _extent(layout))
    if len(layout.center) <= MOST_BORDERS and empty is not None:
        is_border = np.zeros(cell.shape, bool)
        is_border[:, 1:] |= cell[:, 1:] != cell[:, :-1]
        is_border[1:] |= cell[1:] != cell[:-1]
        white = np.ones((*cell.shape, 4)) * np.array([1, 1, 1, 0.55]) * is_border[..., None]
        axis.imshow(white, origin="lower", aspect="auto", extent=_extent(layout), interpolation="nearest")
    name_axes(axis, layout)
    return drawn


def raster(layout: Layout) -> np.ndarray:
    """The nearest center of every pixel within the bounds, int [pixels upwards, pixels to the right]."""
    assert layout.center is not None
    dimensions = len(layout.low)
    centroids = jnp.asarray((layout.center - layout.low) / (layout.high - layout.low), jnp.float32)
    along = (jnp.arange(RASTER) + 0.5) / RASTER

    def of_row(y: jax.Array) -> jax.Array:
        points = jnp.stack([along, jnp.broadcast_to(y, along.shape)], axis=-1)[:, :dimensions]
        return nearest(binned(centroids), points)

    rows = along if dimensions == 2 else along[:1]
    return np.asarray(jax.jit(lambda rows: jax.lax.map(of_row, rows))(rows))


def lines(axis: Any, layout: Layout, places: np.ndarray, values: np.ndarray, **colors: Any) -> Any:
    """Parallel axes, one a dimension: every place `[N, K]` is a line across them, the highest value on top.

    Of very many a part is drawn, evenly spread over the values.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection

    order = np.argsort(values, kind="stable")
    if len(order) > MOST_LINES:
        order = order[np.linspace(0, len(order) - 1, MOST_LINES).round().astype(int)]
    heights = (places[order] - layout.low) / (layout.high - layout.low)
    dimensions = heights.shape[1]
    points = np.stack([np.broadcast_to(np.arange(dimensions, dtype=float), heights.shape), heights], axis=-1)
    opacity = float(np.clip(60 / max(len(order), 1), 0.12, 0.8))
    drawn = axis.add_collection(LineCollection(list(points), array=values[order], linewidths=0.9, alpha=opacity, **colors))
    for k in range(dimensions):
        axis.plot((k, k), (0, 1), color="#666666", linewidth=1)
        for y, bound in ((-0.015, layout.low[k]), (1.015, layout.high[k])):
            axis.text(k, y, f"{bound:.3g}", fontsize=7, color="#444444", ha="center", va="bottom" if y > 1 else "top")
    axis.set_xlim(-0.1, dimensions - 0.9)
    axis.set_ylim(-0.05, 1.05)
    axis.set_xticks(range(dimensions), [f"descriptor {k}" for k in range(dimensions)])
    axis.set_yticks([])
    axis.spines[:].set_visible(False)
    return ScalarMappable(drawn.norm, drawn.get_cmap())  # its colors are not transparent
