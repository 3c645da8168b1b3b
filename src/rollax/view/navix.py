"""The worlds of NAVIX, in the suite's own tiles, with the mission and what the agent carries in words."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rollax.view.scene import BOARD, PAPER

ACTIONS = ("turn left", "turn right", "forward", "pick up", "drop", "toggle", "done")
COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
_TILES = {1: "floor", 2: "wall", 4: "door", 5: "key", 6: "ball", 7: "box", 8: "goal", 9: "lava", 10: "player"}
_DOORS, _DIRECTIONS = ("open", "closed", "locked"), ("east", "south", "west", "north")
_STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))  # (row, column) of a step into each direction


def picture(environment: Any, state: Any, obs: Any) -> Image.Image:
    """The whole world, lighter where an agent that does not see all of it looks."""
    from rollax.environments.suites.navix import symbols

    cells = np.asarray(symbols(state.raw))
    size = max(8, BOARD // max(cells.shape[:2]))
    drawn = Image.new("RGB", (size * cells.shape[1], size * cells.shape[0]))
    seen = (
        _seen(state, cells.shape[:2]) if environment.observation.endswith("first_person") else np.zeros(cells.shape[:2], bool)
    )
    for row, column in np.ndindex(*cells.shape[:2]):
        entity, color, form = cells[row, column].tolist()
        drawn.paste(_tile(_file(entity, color, form), bool(seen[row, column]), size), (size * column, size * row))
    return drawn


def _seen(state: Any, shape: tuple[int, int]) -> np.ndarray:
    """Which cells `[H, W]` lie in the square in front of the agent that it looks at."""
    from rollax.environments.suites.navix import observations

    player = state.raw.entities["player"]
    down, right = _STEPS[int(player.direction[0])]
    rows, columns = (at - int(own) for at, own in zip(np.indices(shape), player.position[0], strict=True))
    ahead, aside = rows * down + columns * right, rows * right - columns * down
    return (ahead >= 0) & (ahead <= 2 * observations.RADIUS) & (abs(aside) <= observations.RADIUS)


def _file(entity: int, color: int, form: int) -> str:
    """The name of the suite's picture of an entity."""
    name = _TILES[entity]
    if name == "player":
        return f"player_{_DIRECTIONS[form]}"
    if name == "door":
        return f"door_{_DOORS[form]}_{COLORS[color]}"
    return f"{name}_{COLORS[color]}" if name in ("key", "ball", "box") else name


@functools.cache
def _tile(file: str, is_seen: bool, size: int) -> Image.Image:
    from rollax.environments.suites.navix import SPRITES

    with Image.open(Path(SPRITES) / f"{file}.png") as found:
        tile = found.convert("RGB").resize(
            (size, size), Image.Resampling.BOX if size < found.width else Image.Resampling.NEAREST
        )
    return Image.blend(tile, Image.new("RGB", tile.size, PAPER), 0.2) if is_seen else tile


def notes(environment: Any, state: Any, obs: Any) -> list[str]:
    """What the task names, and what the agent carries."""
    lines = []
    if "mission" in obs:
        lines.append("mission: " + ", ".join(map(_words, np.asarray(obs["mission"])[0].tolist())))
    if "pocket" in obs:
        held = np.asarray(obs["pocket"])[0, 0].tolist()
        lines.append(f"carries {_words(held) if held[0] else 'nothing'}")
    return lines


def _words(symbols: list[int]) -> str:
    return f"the {COLORS[symbols[1]]} {_TILES[symbols[0]]}"
