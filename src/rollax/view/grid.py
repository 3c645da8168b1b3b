"""The grids of XLand-MiniGrid, in the suite's own tiles and characters, with their tasks in words."""

import functools
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from rich.text import Text

from rollax.environments.suites.xminigrid import rulesets

WIDTH = 360
MOST_CELLS = 36  # along an edge
MARGIN = 6  # cells that are shown beyond the agent, where there are so many
MOST_RULES = 6
FINE = 96  # pixels of a tile before it is reduced: the suite draws them point by point, a second each if they were larger

ACTIONS = ("forward", "turn right", "turn left", "pick up", "put down", "toggle")
STYLES = {
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


def picture(environment: Any, state: Any, obs: Any, camera: tuple[range, range] | None = None) -> Image.Image:
    """The grid, lighter where the agent observes it; of a very large one the part around the agent."""
    from xminigrid.rendering.rgb_render import get_highlight_mask

    rows, columns = camera or window(state)
    size = WIDTH // max(len(rows), len(columns))
    observed = get_highlight_mask(state.grid, state.agent, environment.params.view_size)
    board = Image.new("RGB", (size * len(columns), size * len(rows)))
    for line, row in enumerate(_cells(state, rows, columns)):
        for place, (cell, direction) in enumerate(row):
            is_observed = bool(observed[rows[line], columns[place]])
            board.paste(tile(cell, direction, is_observed, size), (place * size, line * size))
    return board


def palette() -> list[Color]:
    """The colors of objects, outside and inside what the agent observes."""
    from xminigrid.rendering.rgb_render import COLORS_MAP
    from xminigrid.rendering.utils import highlight_img

    plain = np.array([list(COLORS_MAP.values())], np.uint8)
    lighter = plain.copy()
    highlight_img(lighter, alpha=0.2)
    return [(red, green, blue) for red, green, blue in (*plain[0].tolist(), *lighter[0].tolist())]


@functools.cache
def tile(cell: tuple[int, int], direction: int | None, is_observed: bool, size: int) -> Image.Image:
    """One of the suite's tiles; `direction`: of the agent, where it stands there."""
    from xminigrid.rendering.rgb_render import render_tile

    fine = render_tile(cell, direction, is_observed, tile_size=min(FINE, 4 * size), subdivs=1)
    drawn = Image.fromarray(fine.astype(np.uint8)).resize((size, size), Image.Resampling.BOX)
    if direction is not None:  # framed, as there are objects that look like an agent
        ImageDraw.Draw(drawn).rectangle((0, 0, size - 1, size - 1), outline="white", width=max(1, size // 20))
    return drawn


def text(environment: Any, state: Any, obs: Any) -> Text:
    """The grid in the suite's characters, each two columns wide."""
    from xminigrid.rendering.text_render import PLAYER_STR, TILE_STR

    # Of the suite's wall terminals disagree whether it has two columns, and many fonts lack its ball.
    own = {rulesets.TILES.index("wall"): "██", rulesets.TILES.index("ball"): "● "}
    glyphs = {tile: f"{glyph} " for tile, glyph in TILE_STR.items()} | own
    lines = []
    for row in _cells(state, *window(state)):
        line = Text()
        for cell, direction in row:
            if direction is None:
                line.append(glyphs[cell[0]], STYLES[rulesets.COLORS[cell[1]]])
            else:
                line.append(PLAYER_STR[direction], AGENT_STYLE).append(" ")
        lines.append(line)
    return Text("\n").join(lines)


def notes(environment: Any, state: Any, obs: Any) -> list[str]:
    """The task in words, and what the agent holds."""
    pocket = tuple(int(number) for number in state.agent.pocket)
    held = "nothing" if pocket == (0, 0) else f"the {rulesets.COLORS[pocket[1]]} {rulesets.TILES[pocket[0]]}"
    return [*_task(state), f"holds {held}"]


def _task(state: Any) -> list[str]:
    """Goal and rules. No goal is in words where an environment has one of its own kind, such as a door to be opened."""
    goal = rulesets.GOALS[int(state.goal_encoding[0])]
    only = rulesets.Rulesets(state.goal_encoding[None], state.rule_encoding[None], np.zeros((1, 0, 2), np.uint8))
    first, *others = rulesets.describe(only, 0).splitlines()
    rules = [line for line in others if line.startswith("rule")]
    more = [f"and {len(rules) - MOST_RULES} rules more"] if len(rules) > MOST_RULES else []
    return [*([] if goal in ("Empty", "TileOnPosition") else [first]), *rules[:MOST_RULES], *more]


def window(state: Any) -> tuple[range, range]:
    """The rows and columns that are shown, the agent's among them."""
    rows, columns = (_around(int(at), size) for at, size in zip(state.agent.position, state.grid.shape[:2], strict=True))
    return rows, columns


def cameras(environment: Any, states: list[Any]) -> list[tuple[range, range]]:
    """The rows and columns that are shown of each state: they move on only where the agent comes near to their end."""
    shown = [window(states[0])]
    for state in states[1:]:
        near = [_moved(seen, int(at)) for seen, at in zip(shown[-1], state.agent.position, strict=True)]
        shown.append((_within(near[0], state.grid.shape[0]), _within(near[1], state.grid.shape[1])))
    return shown


def _moved(seen: range, position: int) -> range:
    """A window that shows some cells on both sides of a position."""
    margin = min(MARGIN, (len(seen) - 1) // 2)
    shift = min(0, position - margin - seen.start) + max(0, position + margin - seen[-1])
    return range(seen.start + shift, seen.stop + shift)


def _within(seen: range, size: int) -> range:
    first = min(max(seen.start, 0), size - len(seen))
    return range(first, first + len(seen))


def _around(position: int, size: int) -> range:
    number = min(size, MOST_CELLS)
    first = min(max(position - number // 2, 0), size - number)
    return range(first, first + number)


def _cells(state: Any, rows: range, columns: range) -> list[list[tuple[tuple[int, int], int | None]]]:
    """Tile and color of every cell, and the agent's direction where it stands there."""
    grid, place = state.grid.tolist(), tuple(state.agent.position.tolist())
    direction = int(state.agent.direction)
    return [[(tuple(grid[row][column]), direction if (row, column) == place else None) for column in columns] for row in rows]
