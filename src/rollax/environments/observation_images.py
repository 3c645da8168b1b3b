"""Rendering of observations: grids and images as boards of cells, and vectors as bars."""

from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from rollax.canvas.boards import draw_cell_board
from rollax.canvas.scene import (
    BACKGROUND,
    BLUE,
    BOARD_BACKGROUND,
    BOARD_SIZE,
    CHANNEL_COLORS,
    DARK_GRAY,
    GRAY,
    LIGHT_GRAY,
    RED,
    SCENE_HEIGHT,
    SCENE_WIDTH,
    load_font,
    truncate_text,
)
from rollax.environments.capabilities import capabilities
from rollax.environments.environment import Environment
from rollax.environments.image_layouts import arrange_image
from rollax.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from rollax.types import Observation, State

MAX_BOARDS, MAX_ROWS, MAX_BARS = 4, 6, 64
LABEL_HEIGHT = 16  # pixels


def draw_observation(environment: Environment, state: State, obs: Observation) -> Image.Image:
    """Draw an observation: grids and images as boards of cells, and vectors as bars.

    In multi-agent environments, each agent has separate boards or bars.

    Args:
        environment: Environment with the observation space.
        state: State (unused).
        obs: Observation.

    Returns:
        RGB image.
    """
    space = environment.observation_space
    parts = _flatten_observation(space, obs, "")
    if environment.num_agents is not None:
        parts = [
            (f"{agent} {name}".strip(), part, np.asarray(value)[index])
            for index, agent in enumerate(capabilities(environment).agent_names)
            for name, part, value in parts
        ]
    boards = [
        (name, part, np.asarray(value)) for name, part, value in parts if np.ndim(value) in (2, 3)
    ]
    if boards:
        left_out = [name for name, *_ in boards[MAX_BOARDS:]]
        return _join_boards(
            [(name, _draw_board(part, value)) for name, part, value in boards[:MAX_BOARDS]],
            left_out,
        )
    return _draw_bars([(name, part, np.atleast_1d(value)) for name, part, value in parts])


def _flatten_observation(space: Space, obs: Observation, name: str) -> list[tuple[str, Space, Any]]:
    if isinstance(space, Dict):
        return [
            entry
            for key, part in space.items
            for entry in _flatten_observation(part, obs[key], f"{name} {key}".strip())
        ]
    return [(name, space, arrange_image(space, np.asarray(obs)) if isinstance(space, Box) else obs)]


def _draw_board(space: Space, values: np.ndarray) -> Image.Image:
    """Draw a grid `[H, W]`, an image `[H, W, 1 or 3]` or a grid with channels `[H, W, C]`."""
    if values.ndim == 2:
        values = values[..., None]
    pixels = min(values.shape[:2]) >= 32 or (
        values.dtype == np.uint8 and isinstance(space, Box) and np.max(space.high) == 255
    )
    if pixels and values.shape[2] in (1, 3):
        levels = values if values.dtype == np.uint8 else np.clip(values, 0, 1) * 255
        return draw_cell_board(np.broadcast_to(levels, (*values.shape[:2], 3)), gap=False)
    high = np.max(space.high) if isinstance(space, Box) else 1.0
    strength = np.clip(
        values / high if 0 < high < 1e6 else values / max(np.abs(values).max(), 1), 0, 1
    )
    # The offset keeps small positive values visible if the upper bound is much larger.
    strength = np.where(strength > 0, 0.4 + 0.6 * strength, 0)
    colors = np.full((*values.shape[:2], 3), BOARD_BACKGROUND, float)
    for channel in reversed(range(values.shape[2])):
        share = strength[..., channel, None]
        colors = (
            share * np.array(CHANNEL_COLORS[channel % len(CHANNEL_COLORS)]) + (1 - share) * colors
        )
    return draw_cell_board(colors)


def _join_boards(boards: list[tuple[str, Image.Image]], omitted: list[str]) -> Image.Image:
    """Join boards in a row, with their names above and the names of omitted boards below."""
    if len(boards) == 1:
        return boards[0][1]
    width, gap = BOARD_SIZE // 2, 8
    resized = [board.resize((width, width * board.height // board.width)) for _, board in boards]
    footer_top = LABEL_HEIGHT + max(board.height for board in resized)
    row = Image.new(
        "RGB",
        (len(resized) * (width + gap) - gap, footer_top + (LABEL_HEIGHT if omitted else 0)),
        BACKGROUND,
    )
    pen = ImageDraw.Draw(row)
    for index, ((name, _), board) in enumerate(zip(boards, resized, strict=True)):
        row.paste(board, (index * (width + gap), LABEL_HEIGHT))
        pen.text(
            (index * (width + gap), 0),
            truncate_text(name, load_font(11), width),
            GRAY,
            load_font(11),
        )
    if omitted:
        pen.text(
            (0, footer_top + 2),
            truncate_text(_omitted_note(omitted), load_font(11), row.width),
            GRAY,
            load_font(11),
        )
    return row


def _omitted_note(names: list[str]) -> str:
    return f"not shown: {', '.join(names)}"


def _draw_bars(rows: list[tuple[str, Space, np.ndarray]]) -> Image.Image:
    """Draw each vector as a row of bars around zero. Wide bars are labeled with their values."""
    omitted = [name for name, *_ in rows[MAX_ROWS:]]
    rows = rows[:MAX_ROWS]
    height = max(70, min(SCENE_HEIGHT - 40, 240 // len(rows)))
    picture = Image.new(
        "RGB",
        (SCENE_WIDTH, height * len(rows) + 10 + (LABEL_HEIGHT if omitted else 0)),
        BACKGROUND,
    )
    draw = ImageDraw.Draw(picture)
    for index, (name, space, values) in enumerate(rows):
        _draw_bar_row(draw, name or "observation", space, values, 5 + index * height, height)
    if omitted:
        draw.text(
            (8, height * len(rows) + 6),
            truncate_text(_omitted_note(omitted), load_font(11), SCENE_WIDTH - 16),
            GRAY,
            load_font(11),
        )
    return picture


def _draw_bar_row(
    draw: ImageDraw.ImageDraw, name: str, space: Space, values: np.ndarray, top: int, height: int
) -> None:
    shown_values = values.ravel()[:MAX_BARS].astype(float)
    lengths = _bar_lengths(space, values)[: shown_values.size]
    suffix = f", the first {MAX_BARS} of {values.size}" if values.size > MAX_BARS else ""
    draw.text(
        (8, top), truncate_text(name + suffix, load_font(11), SCENE_WIDTH - 16), GRAY, load_font(11)
    )
    start, end = top + 18, top + height - 16
    is_nonnegative = lengths.min() >= 0 and not (isinstance(space, Box) and np.min(space.low) < 0)
    zero = end if is_nonnegative else (start + end) / 2
    max_length = zero - start
    width = min((SCENE_WIDTH - 16) / shown_values.size, 60.0)
    draw.line((8, zero, 8 + width * shown_values.size, zero), LIGHT_GRAY)
    for i, (value, length) in enumerate(zip(shown_values, lengths, strict=True)):
        x, y = 8 + i * width, zero - length * max_length
        gap = 1 if width < 12 else 4
        draw.rectangle(
            (x + gap, min(y, zero), x + width - gap, max(y, zero)), BLUE if value >= 0 else RED
        )
        if width >= 34:
            draw.text(
                (x + width / 2, end + 2),
                _format_to_width(value, width - 4),
                DARK_GRAY,
                load_font(10),
                anchor="ma",
            )


def _format_to_width(value: float, max_width: float) -> str:
    """Format a number with the most digits, at most 3, that fit into `max_width` pixels.

    The result is "" if one digit does not fit.
    """
    candidates = [f"{value:.3g}", f"{value:.2g}", f"{value:.1g}"]
    return next((text for text in candidates if load_font(10).getlength(text) <= max_width), "")


def _bar_lengths(space: Space, values: np.ndarray) -> np.ndarray:
    """Return bar lengths in [-1, 1].

    The length of a value x is x divided by its bound if the bound is below 100, and x / (1 + |x|)
    otherwise.
    """
    entries = np.nan_to_num(values.ravel().astype(float))
    if isinstance(space, Box):
        bounds = np.broadcast_to(
            np.maximum(np.abs(space.low), np.abs(space.high)), values.shape
        ).ravel()
        squashed = entries / (1 + np.abs(entries))
        return np.where(
            (bounds > 0) & (bounds < 100),
            np.clip(entries / np.maximum(bounds, 1e-9), -1, 1),
            squashed,
        )
    sizes = np.asarray(
        space.sizes
        if isinstance(space, MultiDiscrete)
        else space.n
        if isinstance(space, Discrete)
        else 1
    )
    return np.clip(entries / np.maximum(sizes - 1, 1), 0, 1)
