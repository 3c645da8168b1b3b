"""What pictures are drawn with: sizes, colors, a font, and scenes in the coordinates of a world."""

import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT, BOARD = 400, 280, 320
SOFT = 2  # scenes are drawn so many times larger and then reduced, for soft edges

PAPER, INK, GREY, LIGHT = (255, 255, 255), (51, 51, 51), (150, 150, 150), (225, 225, 225)
BLUE, ORANGE, GREEN, RED, BROWN = (0, 114, 178), (230, 159, 0), (0, 158, 115), (213, 94, 0), (166, 118, 82)
NIGHT, GAP = (24, 26, 32), (46, 49, 58)
CHANNELS = (BLUE, RED, GREEN, ORANGE, (204, 121, 167), (86, 180, 233), (240, 228, 66), BROWN, (117, 112, 179), (170, 170, 170))
PALETTE = tuple(dict.fromkeys((PAPER, INK, GREY, LIGHT, NIGHT, GAP, *CHANNELS)))

Color = tuple[int, int, int]


@functools.cache
def font(size: float) -> Any:
    """Pillow's own font, so that nothing depends on what the machine has."""
    return ImageFont.load_default(size)


def fitting(words: str, size: int, room: float) -> Any:
    """The font of that size, or the largest in which the words fit."""
    sizes = [each for each in range(size, 7, -1) if font(each).getlength(words) <= room]
    return font(sizes[0] if sizes else 7)


def shortened(words: str, style: Any, room: float) -> str:
    """The words, or as many of their letters as there is room for, with three dots after them."""
    if style.getlength(words) <= room:
        return words
    kept = next((n for n in range(len(words) - 1, 0, -1) if style.getlength(words[:n].rstrip() + "...") <= room), 0)
    return words[:kept].rstrip() + "..." if kept else ""


class Sign(NamedTuple):
    """An entry of a legend: what a shape in a color stands for."""

    label: str
    color: Color
    shape: Literal["disc", "ring", "line"] = "disc"
    outline: Color | None = None


class Camera(NamedTuple):
    """What a scene shows: `unit` pixels to a length of 1, `center` in the middle of the picture."""

    unit: float
    center: tuple[float, float] = (0.0, 0.0)


def framing(low: Any, high: Any, margin: float = 0.05) -> Camera:
    """The camera that shows a box of the world `[2]`, `[2]`, with so much around it, in shares of the picture."""
    sides = np.maximum(np.asarray(high, float) - np.asarray(low, float), 1e-6)
    unit = (1 - 2 * margin) * float(np.min(np.asarray([WIDTH, HEIGHT]) / sides))
    x, y = ((np.asarray(low, float) + np.asarray(high, float)) / 2).tolist()
    return Camera(unit, (x, y))


class Scene:
    """A picture in the coordinates of a world; arguments are those of a `Camera`."""

    def __init__(self, unit: float, center: tuple[float, float] = (0.0, 0.0)) -> None:
        self._image = Image.new("RGB", (WIDTH * SOFT, HEIGHT * SOFT), PAPER)
        self._draw = ImageDraw.Draw(self._image)
        self._unit, self._center = unit * SOFT, center

    def _at(self, point: Sequence[float]) -> tuple[float, float]:
        x = WIDTH * SOFT / 2 + (point[0] - self._center[0]) * self._unit
        return x, HEIGHT * SOFT / 2 - (point[1] - self._center[1]) * self._unit

    def line(self, points: Sequence[Sequence[float]], color: Color, width: float = 2) -> None:
        """`width` in pixels of the finished picture."""
        self._draw.line([self._at(point) for point in points], color, round(width * SOFT), joint="curve")

    def polygon(self, points: Sequence[Sequence[float]], color: Color) -> None:
        self._draw.polygon([self._at(point) for point in points], color)

    def box(self, x: float, y: float, width: float, height: float, color: Color) -> None:
        """An upright box around (x, y)."""
        w, h = width / 2, height / 2
        self.polygon([(x - w, y - h), (x + w, y - h), (x + w, y + h), (x - w, y + h)], color)

    def disc(self, center: Sequence[float], radius: float, color: Color, outline: Color | None = None) -> None:
        x, y = self._at(center)
        r = radius * self._unit
        self._draw.ellipse((x - r, y - r, x + r, y + r), color, outline, SOFT if outline else 0)

    def rod(self, start: Sequence[float], end: Sequence[float], color: Color, thickness: float) -> None:
        """A line with round ends; `thickness` in lengths of the world."""
        self.line((start, end), color, thickness * self._unit / SOFT)
        for point in (start, end):
            self.disc(point, thickness / 2, color)

    def picture(self) -> Image.Image:
        return self._image.reduce(SOFT)
