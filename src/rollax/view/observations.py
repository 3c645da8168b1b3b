"""Pictures of observations: boards and images as such, everything else as bars."""

from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from rollax.environments.core import agent_names
from rollax.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from rollax.view.scene import BLUE, BOARD, CHANNELS, GAP, GREY, HEIGHT, INK, LIGHT, NIGHT, PAPER, RED, WIDTH, font, shortened

MOST_BOARDS, MOST_ROWS, MOST_BARS = 4, 6, 64
LABEL = 16  # pixels above a board, for the name of what it is


def cells(colors: np.ndarray, gap: bool = True) -> Image.Image:
    """A board of colored cells `[H, W, 3]`, as large as fits, with a thin line between them where there is room."""
    size = max(1, BOARD // max(colors.shape[:2]))
    board = np.repeat(np.repeat(colors.astype(np.uint8), size, axis=0), size, axis=1)
    if gap and size >= 12:
        board[::size] = board[:, ::size] = GAP
    return Image.fromarray(board)


def observation(environment: Any, state: Any, obs: Any) -> Image.Image:
    """Any observation: boards and pictures as such, everything else as bars; agents beneath or beside each other."""
    space = environment.observation_space
    parts = _parts(space, obs, "")
    if environment.num_agents is not None:
        parts = [
            (f"{agent} {name}".strip(), part, np.asarray(value)[index])
            for index, agent in enumerate(agent_names(environment))
            for name, part, value in parts
        ]
    boards = [(name, part, np.asarray(value)) for name, part, value in parts if np.ndim(value) in (2, 3)]
    if boards:
        left_out = [name for name, *_ in boards[MOST_BOARDS:]]
        return _side_by_side([(name, _board_of(part, value)) for name, part, value in boards[:MOST_BOARDS]], left_out)
    return _bars([(name, part, np.atleast_1d(value)) for name, part, value in parts])


def _parts(space: Space, obs: Any, name: str) -> list[tuple[str, Space, Any]]:
    if isinstance(space, Dict):
        return [found for key, part in space.items for found in _parts(part, obs[key], f"{name} {key}".strip())]
    return [(name, space, obs)]


def _board_of(space: Space, values: np.ndarray) -> Image.Image:
    """A grid `[H, W]`, a picture `[H, W, 1 or 3]` of pixels, or a grid of channels `[H, W, C]`."""
    if values.ndim == 2:
        values = values[..., None]
    pixels = min(values.shape[:2]) >= 32 or (values.dtype == np.uint8 and isinstance(space, Box) and np.max(space.high) == 255)
    if pixels and values.shape[2] in (1, 3):
        levels = values if values.dtype == np.uint8 else np.clip(values, 0, 1) * 255
        return cells(np.broadcast_to(levels, (*values.shape[:2], 3)), gap=False)
    high = np.broadcast_to(space.high, values.shape).max() if isinstance(space, Box) else 1.0
    strength = np.clip(values / high if 0 < high < 1e6 else values / max(np.abs(values).max(), 1), 0, 1)
    strength = np.where(strength > 0, 0.4 + 0.6 * strength, 0)  # what is there is seen, also where levels could be much higher
    colors = np.full((*values.shape[:2], 3), NIGHT, float)
    for channel in reversed(range(values.shape[2])):
        share = strength[..., channel, None]
        colors = share * np.array(CHANNELS[channel % len(CHANNELS)]) + (1 - share) * colors
    return cells(colors)


def _side_by_side(boards: list[tuple[str, Image.Image]], left_out: list[str]) -> Image.Image:
    """Boards with their names above them, where there are several, and the names of those that there is no room for beneath."""
    if len(boards) == 1:
        return boards[0][1]
    width, gap = BOARD // 2, 8
    small = [board.resize((width, width * board.height // board.width)) for _, board in boards]
    below = LABEL + max(board.height for board in small)
    row = Image.new("RGB", (len(small) * (width + gap) - gap, below + (LABEL if left_out else 0)), PAPER)
    pen = ImageDraw.Draw(row)
    for index, ((name, _), board) in enumerate(zip(boards, small, strict=True)):
        row.paste(board, (index * (width + gap), LABEL))
        pen.text((index * (width + gap), 0), shortened(name, font(11), width), GREY, font(11))
    if left_out:
        pen.text((0, below + 2), shortened(_not_shown(left_out), font(11), row.width), GREY, font(11))
    return row


def _not_shown(names: list[str]) -> str:
    return f"not shown: {', '.join(names)}"


def _bars(rows: list[tuple[str, Space, np.ndarray]]) -> Image.Image:
    """Vectors as rows of bars around zero, with their numbers where there is room for them."""
    left_out = [name for name, *_ in rows[MOST_ROWS:]]
    rows = rows[:MOST_ROWS]
    height = max(70, min(HEIGHT - 40, 240 // len(rows)))
    picture = Image.new("RGB", (WIDTH, height * len(rows) + 10 + (LABEL if left_out else 0)), PAPER)
    draw = ImageDraw.Draw(picture)
    for index, (name, space, values) in enumerate(rows):
        _row_of_bars(draw, name or "observation", space, values, 5 + index * height, height)
    if left_out:
        draw.text((8, height * len(rows) + 6), shortened(_not_shown(left_out), font(11), WIDTH - 16), GREY, font(11))
    return picture


def _row_of_bars(draw: ImageDraw.ImageDraw, name: str, space: Space, values: np.ndarray, top: int, height: int) -> None:
    shown = values.ravel()[:MOST_BARS].astype(float)
    lengths = _lengths(space, values)[: shown.size]
    more = f", the first {MOST_BARS} of {values.size}" if values.size > MOST_BARS else ""
    draw.text((8, top), shortened(name + more, font(11), WIDTH - 16), GREY, font(11))
    start, end = top + 18, top + height - 16
    zero = end if lengths.min() >= 0 and _low(space) >= 0 else (start + end) / 2
    reach = zero - start
    width = min((WIDTH - 16) / shown.size, 60.0)
    draw.line((8, zero, 8 + width * shown.size, zero), LIGHT)
    for i, (value, length) in enumerate(zip(shown, lengths, strict=True)):
        x, y = 8 + i * width, zero - length * reach
        gap = 1 if width < 12 else 4
        draw.rectangle((x + gap, min(y, zero), x + width - gap, max(y, zero)), BLUE if value >= 0 else RED)
        if width >= 34:
            draw.text((x + width / 2, end + 2), _digits(value, width - 4), INK, font(10), anchor="ma")


def _digits(value: float, room: float) -> str:
    """As many digits as there is room for, up to three."""
    written = [f"{value:.3g}", f"{value:.2g}", f"{value:.1g}"]
    return next((words for words in written if font(10).getlength(words) <= room), "")


def _low(space: Space) -> float:
    return float(np.min(space.low)) if isinstance(space, Box) else 0.0


def _lengths(space: Space, values: np.ndarray) -> np.ndarray:
    """Between -1 and 1: in shares of the bounds where they are near, or else x / (1 + |x|), which shows all there is."""
    numbers = np.nan_to_num(values.ravel().astype(float))
    if isinstance(space, Box):
        reach = np.broadcast_to(np.maximum(np.abs(space.low), np.abs(space.high)), values.shape).ravel()
        squashed = numbers / (1 + np.abs(numbers))
        return np.where((reach > 0) & (reach < 100), np.clip(numbers / np.maximum(reach, 1e-9), -1, 1), squashed)
    sizes = np.asarray(space.sizes if isinstance(space, MultiDiscrete) else space.n if isinstance(space, Discrete) else 1)
    return np.clip(numbers / np.maximum(sizes - 1, 1), 0, 1)
