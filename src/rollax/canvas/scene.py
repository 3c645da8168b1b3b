"""Sizes, colors and fonts of images, and scenes in world coordinates."""

import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

SCENE_WIDTH, SCENE_HEIGHT, BOARD_SIZE = 400, 280, 320
SUPERSAMPLING = 2  # scenes are drawn at this scale and then reduced, which smooths edges

BACKGROUND, DARK_GRAY, GRAY, LIGHT_GRAY = (
    (255, 255, 255),
    (51, 51, 51),
    (150, 150, 150),
    (225, 225, 225),
)
BLUE, ORANGE, GREEN, RED, BROWN = (
    (0, 114, 178),
    (230, 159, 0),
    (0, 158, 115),
    (213, 94, 0),
    (166, 118, 82),
)
BOARD_BACKGROUND, CELL_BORDER = (24, 26, 32), (46, 49, 58)
CHANNEL_COLORS = (
    BLUE,
    RED,
    GREEN,
    ORANGE,
    (204, 121, 167),
    (86, 180, 233),
    (240, 228, 66),
    BROWN,
    (117, 112, 179),
    (170, 170, 170),
)
PALETTE = tuple(
    dict.fromkeys(
        (BACKGROUND, DARK_GRAY, GRAY, LIGHT_GRAY, BOARD_BACKGROUND, CELL_BORDER, *CHANNEL_COLORS)
    )
)

Color = tuple[int, int, int]
Point = Sequence[float] | np.ndarray  # coordinates (x, y)
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@functools.cache
def load_font(size: float) -> Font:
    """Load the font that Pillow contains, which does not depend on installed fonts."""
    return ImageFont.load_default(size)


def fit_font(text: str, size: int, max_width: float) -> Font:
    """Return the font of the largest size at which `text` fits into `max_width` pixels.

    Sizes range from 7 to `size`. If the text does not fit at any size, the font has size 7.
    """
    sizes = [each for each in range(size, 7, -1) if load_font(each).getlength(text) <= max_width]
    return load_font(sizes[0] if sizes else 7)


def truncate_text(text: str, style: Font, max_width: float) -> str:
    """Return the text, truncated and followed by three dots if it is wider than `max_width`.

    Args:
        text: Text to truncate.
        style: Font of the text.
        max_width: Available width in pixels.

    Returns:
        The text, its longest prefix that fits followed by "...", or an empty string if nothing
        fits.
    """
    if style.getlength(text) <= max_width:
        return text
    length = next(
        (
            n
            for n in range(len(text) - 1, 0, -1)
            if style.getlength(text[:n].rstrip() + "...") <= max_width
        ),
        0,
    )
    return text[:length].rstrip() + "..." if length else ""


class LegendEntry(NamedTuple):
    """Entry of a legend: a marker and its meaning.

    Attributes:
        label: Text of the entry.
        color: Fill color of the marker.
        shape: Shape of the marker.
        outline: Color of the outline, or None for no outline.
    """

    label: str
    color: Color
    shape: Literal["disc", "ring", "line"] = "disc"
    outline: Color | None = None


class Camera(NamedTuple):
    """Section of the world that a scene shows.

    Attributes:
        unit: Pixels per unit of length.
        center: World coordinates of the middle of the image.
    """

    unit: float
    center: tuple[float, float] = (0.0, 0.0)


def fit_camera(low: npt.ArrayLike, high: npt.ArrayLike, margin: float = 0.05) -> Camera:
    """Return the camera that shows a box of the world.

    Args:
        low: Lower corner of the box, `[2]`.
        high: Upper corner of the box, `[2]`.
        margin: Margin on each side, as a fraction of the image.

    Returns:
        The camera, with the center of the box in the middle of the image.
    """
    sides = np.maximum(np.asarray(high, float) - np.asarray(low, float), 1e-6)
    unit = (1 - 2 * margin) * float(np.min(np.asarray([SCENE_WIDTH, SCENE_HEIGHT]) / sides))
    x, y = ((np.asarray(low, float) + np.asarray(high, float)) / 2).tolist()
    return Camera(unit, (x, y))


class Scene:
    """Image with methods to draw in world coordinates.

    Args:
        unit: Pixels per unit of length.
        center: World coordinates of the middle of the image.
    """

    def __init__(self, unit: float, center: tuple[float, float] = (0.0, 0.0)) -> None:
        self._image = Image.new(
            "RGB", (SCENE_WIDTH * SUPERSAMPLING, SCENE_HEIGHT * SUPERSAMPLING), BACKGROUND
        )
        self._draw = ImageDraw.Draw(self._image)
        self._pixels_per_unit, self._center = unit * SUPERSAMPLING, center

    def _to_pixels(self, point: Point) -> tuple[float, float]:
        x = SCENE_WIDTH * SUPERSAMPLING / 2 + (point[0] - self._center[0]) * self._pixels_per_unit
        y = SCENE_HEIGHT * SUPERSAMPLING / 2 - (point[1] - self._center[1]) * self._pixels_per_unit
        return float(x), float(y)

    def line(self, points: Sequence[Point], color: Color, width: float = 2) -> None:
        """Draw a line. `width` is in pixels of the finished image."""
        self._draw.line(
            [self._to_pixels(point) for point in points],
            color,
            round(width * SUPERSAMPLING),
            joint="curve",
        )

    def polygon(self, points: Sequence[Point], color: Color) -> None:
        """Draw a filled polygon."""
        self._draw.polygon([self._to_pixels(point) for point in points], color)

    def box(self, x: float, y: float, width: float, height: float, color: Color) -> None:
        """Draw a filled axis-aligned rectangle centered at (x, y)."""
        w, h = width / 2, height / 2
        self.polygon([(x - w, y - h), (x + w, y - h), (x + w, y + h), (x - w, y + h)], color)

    def disc(
        self, center: Point, radius: float, color: Color, outline: Color | None = None
    ) -> None:
        """Draw a filled disc. `outline` is the color of its border, or None for no border."""
        x, y = self._to_pixels(center)
        r = radius * self._pixels_per_unit
        self._draw.ellipse(
            (x - r, y - r, x + r, y + r), color, outline, SUPERSAMPLING if outline else 0
        )

    def rod(self, start: Point, end: Point, color: Color, thickness: float) -> None:
        """Draw a line with round ends. `thickness` is in world units."""
        self.line((start, end), color, thickness * self._pixels_per_unit / SUPERSAMPLING)
        for point in (start, end):
            self.disc(point, thickness / 2, color)

    def picture(self) -> Image.Image:
        """Return the RGB image, reduced to `SCENE_WIDTH` by `SCENE_HEIGHT` pixels."""
        return self._image.reduce(SUPERSAMPLING)


def square_scene(side: float = 1.0) -> Scene:
    """Return an empty scene that shows the square from (0, 0) to (side, side)."""
    return Scene((SCENE_HEIGHT - 12) / side, (side / 2, side / 2))


def draw_square_border(scene: Scene, side: float = 1.0) -> Scene:
    """Draw the border of the square from (0, 0) to (side, side) and return the scene."""
    scene.line([(0, 0), (side, 0), (side, side), (0, side), (0, 0)], GRAY)
    return scene
