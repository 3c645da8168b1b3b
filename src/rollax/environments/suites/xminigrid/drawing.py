"""Drawings of XLand-MiniGrid environments with the tiles and characters of xminigrid."""

import functools
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw
from rich.text import Text

from rollax.canvas.drawing import Drawing
from rollax.environments.suites.xminigrid import rulesets
from rollax.types import Observation, State

if TYPE_CHECKING:
    import rollax.environments.suites.xminigrid.adapter

IMAGE_WIDTH = 360
MAX_CELLS = 36  # along each axis
MARGIN_CELLS = 6  # cells shown beyond the agent where the grid continues
MAX_RULES = 6
# Pixels of a tile before it is reduced. xminigrid draws tiles pixel by pixel, and each larger tile
# takes a second.
MAX_TILE_SIZE = 96

ACTION_NAMES = ("forward", "turn right", "turn left", "pick up", "put down", "toggle")
TEXT_STYLES = {
    "empty": "default",
    "red": "red",
    "green": "green",
    "blue": "bright_blue",
    "purple": "magenta",
    "yellow": "yellow",
    "grey": "bright_black",
    "black": "bright_black",
    "orange": "dark_orange",
    "white": "default",
    "brown": "orange4",
    "pink": "deep_pink2",
}
Color = tuple[int, int, int]
AGENT_STYLE = "bold white on red"


def draw_xminigrid(
    environment: "rollax.environments.suites.xminigrid.adapter.XMiniGrid",
    state: State,
    obs: Observation,
    camera: tuple[range, range] | None = None,
) -> Image.Image:
    """Draw the grid and highlight the field of view of the agent.

    Args:
        environment: Innermost environment.
        state: State of the environment.
        obs: Observation (unused).
        camera: Rows and columns to show, by default the window around the agent.

    Returns:
        RGB image.
    """
    from xminigrid.rendering.rgb_render import get_highlight_mask

    rows, columns = camera or visible_window(state)
    size = IMAGE_WIDTH // max(len(rows), len(columns))
    observed = get_highlight_mask(state.grid, state.agent, environment.params.view_size)
    board = Image.new("RGB", (size * len(columns), size * len(rows)))
    for line, row in enumerate(_cells_in_window(state, rows, columns)):
        for place, (cell, direction) in enumerate(row):
            is_observed = bool(observed[rows[line], columns[place]])
            board.paste(draw_tile(cell, direction, is_observed, size), (place * size, line * size))
    return board


def object_colors() -> list[Color]:
    """Return the colors of all objects, plain and highlighted by the field of view."""
    from xminigrid.rendering.rgb_render import COLORS_MAP
    from xminigrid.rendering.utils import highlight_img

    plain = np.array([list(COLORS_MAP.values())], np.uint8)
    lighter = plain.copy()
    highlight_img(lighter, alpha=0.2)
    return [(red, green, blue) for red, green, blue in (*plain[0].tolist(), *lighter[0].tolist())]


@functools.cache
def draw_tile(
    cell: tuple[int, int], direction: int | None, is_observed: bool, size: int
) -> Image.Image:
    """Draw one cell of the grid.

    Args:
        cell: Tile and color of the cell.
        direction: Direction of the agent if it stands on the cell, otherwise None.
        is_observed: Whether the cell is in the field of view of the agent.
        size: Size of the tile in pixels.

    Returns:
        RGB image.
    """
    from xminigrid.rendering.rgb_render import render_tile

    enlarged = render_tile(
        cell, direction, is_observed, tile_size=min(MAX_TILE_SIZE, 4 * size), subdivs=1
    )
    drawn = Image.fromarray(enlarged.astype(np.uint8)).resize((size, size), Image.Resampling.BOX)
    if direction is not None:  # a frame distinguishes the agent from objects of a similar shape
        ImageDraw.Draw(drawn).rectangle(
            (0, 0, size - 1, size - 1), outline="white", width=max(1, size // 20)
        )
    return drawn


def grid_text(environment: object, state: State, obs: Observation) -> Text:
    """Return the visible window of the grid as text, with two characters per cell."""
    from xminigrid.rendering.text_render import PLAYER_STR, TILE_STR

    # Terminals disagree on the width of the xminigrid wall, and many fonts lack the xminigrid ball.
    tile_texts = {rulesets.TILE_NAMES.index("wall"): "██", rulesets.TILE_NAMES.index("ball"): "● "}
    glyphs = {tile: f"{glyph} " for tile, glyph in TILE_STR.items()} | tile_texts
    lines = []
    for row in _cells_in_window(state, *visible_window(state)):
        line = Text()
        for cell, direction in row:
            if direction is None:
                line.append(glyphs[cell[0]], TEXT_STYLES[rulesets.COLOR_NAMES[cell[1]]])
            else:
                line.append(PLAYER_STR[direction], AGENT_STYLE).append(" ")
        lines.append(line)
    return Text("\n").join(lines)


def task_notes(environment: object, state: State, obs: Observation) -> list[str]:
    """Return lines of text about the task and the object that the agent holds."""
    pocket = tuple(int(number) for number in state.agent.pocket)
    held = (
        "nothing"
        if pocket == (0, 0)
        else f"the {rulesets.COLOR_NAMES[pocket[1]]} {rulesets.TILE_NAMES[pocket[0]]}"
    )
    return [*_describe_task(state), f"holds {held}"]


def _describe_task(state: State) -> list[str]:
    """Return lines of text about the goal and the rules.

    The goals "Empty" and "TileOnPosition" are omitted.
    """
    goal = rulesets.GOAL_NAMES[int(state.goal_encoding[0])]
    task_rulesets = rulesets.Rulesets(
        state.goal_encoding[None], state.rule_encoding[None], np.zeros((1, 0, 2), np.uint8)
    )
    first, *others = rulesets.describe_ruleset(task_rulesets, 0).splitlines()
    rules = [line for line in others if line.startswith("rule")]
    omitted_note = [f"and {len(rules) - MAX_RULES} more rules"] if len(rules) > MAX_RULES else []
    return [
        *([] if goal in ("Empty", "TileOnPosition") else [first]),
        *rules[:MAX_RULES],
        *omitted_note,
    ]


def visible_window(state: State) -> tuple[range, range]:
    """Return the rows and columns of a window within the grid, centered at the agent."""
    rows, columns = (
        _center_window(int(at), size)
        for at, size in zip(state.agent.position, state.grid.shape[:2], strict=True)
    )
    return rows, columns


def camera_windows(environment: object, states: list[State]) -> list[tuple[range, range]]:
    """Return the visible rows and columns for each state.

    The window moves only when the agent is near the edge of the window.
    """
    windows = [visible_window(states[0])]
    for state in states[1:]:
        near = [
            _shift_window(window, int(position))
            for window, position in zip(windows[-1], state.agent.position, strict=True)
        ]
        windows.append(
            (
                _clamp_window(near[0], state.grid.shape[0]),
                _clamp_window(near[1], state.grid.shape[1]),
            )
        )
    return windows


def _shift_window(window: range, position: int) -> range:
    """Shift a window of rows or columns so that it has a margin on both sides of a position."""
    margin = min(MARGIN_CELLS, (len(window) - 1) // 2)
    shift = min(0, position - margin - window.start) + max(0, position + margin - window[-1])
    return range(window.start + shift, window.stop + shift)


def _clamp_window(window: range, size: int) -> range:
    first = min(max(window.start, 0), size - len(window))
    return range(first, first + len(window))


def _center_window(position: int, size: int) -> range:
    number = min(size, MAX_CELLS)
    first = min(max(position - number // 2, 0), size - number)
    return range(first, first + number)


def _cells_in_window(
    state: State, rows: range, columns: range
) -> list[list[tuple[tuple[int, int], int | None]]]:
    """Return `((tile, color), direction)` for each cell of a window.

    `direction` is the direction of the agent in the cell of the agent, and None in other cells.
    """
    grid, place = state.grid.tolist(), tuple(state.agent.position.tolist())
    direction = int(state.agent.direction)
    return [
        [
            (tuple(grid[row][column]), direction if (row, column) == place else None)
            for column in columns
        ]
        for row in rows
    ]


DRAWINGS: dict[str, Drawing] = {
    "*": Drawing(
        draw_xminigrid,
        8,
        text=grid_text,
        notes=task_notes,
        action_names=ACTION_NAMES,
        palette=object_colors,
        cameras=camera_windows,
    ),
}
