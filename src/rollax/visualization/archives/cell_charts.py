"""Charts of one value per archive cell: heat maps, Voronoi cells or parallel axes."""

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.archives.archive import Elites
from rollax.archives.voronoi import bin_centroids, nearest_centroids

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.cm
    import matplotlib.colors
    import matplotlib.image

COLORMAP, EMPTY_COLOR = "viridis", "#ECECEC"
RASTER_SIZE = 800  # width and height in pixels of rasterized Voronoi cells
MAX_BORDERED_CELLS = 2500  # with more cells, borders would hide the colors
MAX_LINES = 3000  # more lines across parallel axes would be slow and hide each other


class CellLayout(NamedTuple):
    """Positions of the C cells of an archive.

    Attributes:
        low: Lower bounds of the descriptors, `[K]`.
        high: Upper bounds of the descriptors, `[K]`.
        shape: Shape of the grid, or None without a grid. Grid cells are in row-major order.
        center: Centers of the cells, `[C, K]`, or None for a grid.
    """

    low: np.ndarray
    high: np.ndarray
    shape: tuple[int, ...] | None
    center: np.ndarray | None = None


class Bounds(NamedTuple):
    """Lower and upper bounds of descriptors, `[K]` each."""

    low: np.ndarray
    high: np.ndarray


class ColorScale(NamedTuple):
    """Mapping from values to colors.

    Attributes:
        colormap: Matplotlib colormap or its name.
        norm: Matplotlib normalization, or None to span the range of the drawn values.
    """

    colormap: "str | matplotlib.colors.Colormap" = COLORMAP
    norm: "matplotlib.colors.Normalize | None" = None


DEFAULT_COLORS = ColorScale()


def make_layout(
    elites: Elites, shape: tuple[int, ...] | None, bounds: Bounds | None = None
) -> CellLayout:
    """Return the cell layout of an archive.

    Args:
        elites: Elites of the archive.
        shape: Shape of the grid, or None for an archive without a grid.
        bounds: Lower and upper bounds of the descriptors. None uses the range of the cells.
    """
    center = np.asarray(elites.center, float)
    low, high = bounds if bounds is not None else (center.min(axis=0), center.max(axis=0))
    if bounds is None and shape is not None:  # cells extend half a cell beyond their centers
        half = (high - low) / np.maximum(np.asarray(shape) - 1, 1) / 2
        low, high = low - half, high + half
    return CellLayout(
        low=np.asarray(low, float),
        high=np.asarray(high, float),
        shape=shape,
        center=None if shape is not None else center,
    )


def draw_cells(
    axis: "matplotlib.axes.Axes",
    layout: CellLayout,
    values: np.ndarray,
    colors: ColorScale = DEFAULT_COLORS,
    empty_color: str | None = EMPTY_COLOR,
) -> "matplotlib.cm.ScalarMappable":
    """Draw one value per cell and return the mappable for a color bar.

    Args:
        axis: Matplotlib axes.
        layout: Layout of the cells.
        values: Values of the cells, `[C]`. NaN for empty cells.
        colors: Mapping from values to colors.
        empty_color: Color of empty cells, or None for transparent cells.
    """
    if layout.shape is not None:
        return _draw_grid(axis, layout.shape, layout, values, colors, empty_color)
    assert layout.center is not None
    if len(layout.low) <= 2:
        return _draw_voronoi(axis, layout, values, colors, empty_color)
    mask = np.isfinite(values)
    return draw_parallel_axes(axis, layout, layout.center[mask], values[mask], colors)


def label_axes(axis: "matplotlib.axes.Axes", layout: CellLayout) -> None:
    """Set labels and limits of matplotlib axes for one or two descriptor dimensions."""
    axis.set_xlabel("descriptor 0")
    axis.set_xlim(layout.low[0], layout.high[0])
    if len(layout.low) == 2:
        axis.set_ylabel("descriptor 1")
        axis.set_ylim(layout.low[1], layout.high[1])
    else:
        axis.set_yticks([])


def _draw_image(
    axis: "matplotlib.axes.Axes",
    image: np.ndarray,
    colors: ColorScale,
    empty_color: str | None,
    extent: tuple[float, float, float, float] | None = None,
) -> "matplotlib.image.AxesImage":
    """Draw an image with its first row at the bottom. NaN has the color `empty_color`."""
    drawn_image = axis.imshow(
        np.ma.masked_invalid(image),
        origin="lower",
        aspect="auto",
        extent=extent,
        interpolation="nearest",
        cmap=colors.colormap,
        norm=colors.norm,
    )
    bad_color = (1, 1, 1, 0) if empty_color is None else empty_color
    drawn_image.set_cmap(drawn_image.get_cmap().with_extremes(bad=bad_color))
    return drawn_image


def grid_image(shape: tuple[int, ...], values: np.ndarray) -> np.ndarray:
    """Arrange the values of grid cells as an image with the first row at the bottom.

    The first grid dimension is horizontal and the second is vertical. Each further pair of
    dimensions is nested within the cells of the previous pair.

    Args:
        shape: Shape of the grid.
        values: Values of the cells in row-major order, `[C]`.

    Returns:
        Image `[H, W]`.
    """
    cells = values.reshape(*shape, *(1,) * (len(shape) % 2))
    order = [*range(1, cells.ndim, 2), *range(0, cells.ndim, 2)]
    height, width = (int(np.prod(cells.shape[start::2])) for start in (1, 0))
    return cells.transpose(order).reshape(height, width)


def _draw_grid(
    axis: "matplotlib.axes.Axes",
    shape: tuple[int, ...],
    layout: CellLayout,
    values: np.ndarray,
    colors: ColorScale,
    empty_color: str | None,
) -> "matplotlib.image.AxesImage":
    """Draw grid cells as a heat map, or as nested heat maps for more than two dimensions."""
    image = grid_image(shape, values)
    if len(shape) <= 2:
        drawn_image = _draw_image(axis, image, colors, empty_color, _extent(layout))
        label_axes(axis, layout)
        return drawn_image
    drawn_image = _draw_image(axis, image, colors, empty_color)
    for dimension in (0, 1):
        block_size = image.shape[1 - dimension] // shape[dimension]
        draw_border = axis.axvline if dimension == 0 else axis.axhline
        for k in range(1, shape[dimension]):
            draw_border(k * block_size - 0.5, color="white", linewidth=0.8)
    horizontal, vertical = nested_axis_labels(shape)
    axis.set_xlabel(horizontal)
    axis.set_ylabel(vertical)
    axis.set_xticks([])
    axis.set_yticks([])
    return drawn_image


def nested_axis_labels(shape: tuple[int, ...]) -> tuple[str, str]:
    """Return the labels `(horizontal, vertical)` of a grid drawn as nested heat maps."""
    horizontal, vertical = (", ".join(map(str, range(first, len(shape), 2))) for first in (0, 1))
    return f"descriptors {horizontal} (outer to inner)", f"descriptors {vertical} (outer to inner)"


def _extent(layout: CellLayout) -> tuple[float, float, float, float]:
    """Return the extent `(left, right, bottom, top)` of an image of cells in descriptor units."""
    has_vertical_axis = len(layout.low) == 2
    bottom, top = (layout.low[1], layout.high[1]) if has_vertical_axis else (0.0, 1.0)
    return layout.low[0], layout.high[0], bottom, top


def _draw_voronoi(
    axis: "matplotlib.axes.Axes",
    layout: CellLayout,
    values: np.ndarray,
    colors: ColorScale,
    empty_color: str | None,
) -> "matplotlib.image.AxesImage":
    """Draw Voronoi cells. Each pixel has the value of its nearest center."""
    assert layout.center is not None
    cell = rasterize_cells(layout)
    drawn_image = _draw_image(axis, values[cell], colors, empty_color, _extent(layout))
    if len(layout.center) <= MAX_BORDERED_CELLS and empty_color is not None:
        is_border = np.zeros(cell.shape, bool)
        is_border[:, 1:] |= cell[:, 1:] != cell[:, :-1]
        is_border[1:] |= cell[1:] != cell[:-1]
        white_border = np.ones((*cell.shape, 4)) * np.array([1, 1, 1, 0.55]) * is_border[..., None]
        axis.imshow(
            white_border,
            origin="lower",
            aspect="auto",
            extent=_extent(layout),
            interpolation="nearest",
        )
    label_axes(axis, layout)
    return drawn_image


def rasterize_cells(layout: CellLayout) -> np.ndarray:
    """Return the index of the nearest cell center for each pixel.

    Args:
        layout: Layout without a grid, with one or two descriptor dimensions.

    Returns:
        Indices, int `[H, W]`, with the first row at the bottom. H is 1 for a single descriptor.
    """
    assert layout.center is not None
    dimensions = len(layout.low)
    centroids = jnp.asarray((layout.center - layout.low) / (layout.high - layout.low), jnp.float32)
    pixels = (jnp.arange(RASTER_SIZE) + 0.5) / RASTER_SIZE

    def rasterize_row(y: jax.Array) -> jax.Array:
        points = jnp.stack([pixels, jnp.broadcast_to(y, pixels.shape)], axis=-1)[:, :dimensions]
        return nearest_centroids(bin_centroids(centroids), points)

    rows = pixels if dimensions == 2 else pixels[:1]
    return np.asarray(jax.jit(lambda rows: jax.lax.map(rasterize_row, rows))(rows))


def draw_parallel_axes(
    axis: "matplotlib.axes.Axes",
    layout: CellLayout,
    descriptors: np.ndarray,
    values: np.ndarray,
    colors: ColorScale = DEFAULT_COLORS,
) -> "matplotlib.cm.ScalarMappable":
    """Draw each descriptor as a line across parallel axes, one axis per descriptor dimension.

    If there are more than `MAX_LINES` descriptors, a subset that is evenly spaced in the order of
    values is drawn. Lines with higher values are drawn on top.

    Args:
        axis: Matplotlib axes.
        layout: Layout with the bounds of the descriptors.
        descriptors: Descriptors, `[N, K]`.
        values: Values that determine the colors of the lines, `[N]`.
        colors: Mapping from values to colors.

    Returns:
        Mappable for a color bar.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection

    order = np.argsort(values, kind="stable")
    if len(order) > MAX_LINES:
        order = order[np.linspace(0, len(order) - 1, MAX_LINES).round().astype(int)]
    heights = (descriptors[order] - layout.low) / (layout.high - layout.low)
    dimensions = heights.shape[1]
    points = np.stack(
        [np.broadcast_to(np.arange(dimensions, dtype=float), heights.shape), heights], axis=-1
    )
    opacity = float(np.clip(60 / max(len(order), 1), 0.12, 0.8))
    lines = LineCollection(
        list(points),
        array=values[order],
        linewidths=0.9,
        alpha=opacity,
        cmap=colors.colormap,
        norm=colors.norm,
    )
    axis.add_collection(lines)
    for k in range(dimensions):
        axis.plot((k, k), (0, 1), color="#666666", linewidth=1)
        for y, bound in ((-0.015, layout.low[k]), (1.015, layout.high[k])):
            axis.text(
                k,
                y,
                f"{bound:.3g}",
                fontsize=7,
                color="#444444",
                ha="center",
                va="bottom" if y > 1 else "top",
            )
    axis.set_xlim(-0.1, dimensions - 0.9)
    axis.set_ylim(-0.05, 1.05)
    axis.set_xticks(range(dimensions), [f"descriptor {k}" for k in range(dimensions)])
    axis.set_yticks([])
    axis.spines[:].set_visible(False)
    return ScalarMappable(lines.norm, lines.get_cmap())  # without the transparency of the lines
