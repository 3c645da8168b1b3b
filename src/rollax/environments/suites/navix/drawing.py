"""Drawings of NAVIX environments with the tiles of NAVIX, and captions with the mission."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from rollax.canvas.drawing import Drawing
from rollax.canvas.scene import BACKGROUND, BOARD_SIZE
from rollax.types import Observation, State

if TYPE_CHECKING:
    import rollax.environments.suites.navix.adapter

ACTION_NAMES = ("turn left", "turn right", "forward", "pick up", "drop", "toggle", "done")
COLOR_NAMES = ("red", "green", "blue", "purple", "yellow", "grey")
_ENTITY_NAMES = {
    1: "floor",
    2: "wall",
    4: "door",
    5: "key",
    6: "ball",
    7: "box",
    8: "goal",
    9: "lava",
    10: "player",
}
_DOOR_STATES, _DIRECTION_NAMES = ("open", "closed", "locked"), ("east", "south", "west", "north")
_DIRECTION_STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))  # (row, column) offset of each direction


def draw_navix(
    environment: "rollax.environments.suites.navix.adapter.Navix", state: State, obs: Observation
) -> Image.Image:
    """Draw the whole grid and highlight the field of view of an agent with partial observations."""
    from rollax.environments.suites.navix.adapter import grid_symbols

    cells = np.asarray(grid_symbols(state.suite_state))
    size = max(8, BOARD_SIZE // max(cells.shape[:2]))
    picture = Image.new("RGB", (size * cells.shape[1], size * cells.shape[0]))
    is_visible = (
        _visible_cells(state, cells.shape[:2])
        if environment.observation.endswith("first_person")
        else np.zeros(cells.shape[:2], bool)
    )
    for row, column in np.ndindex(*cells.shape[:2]):
        entity, color, state_index = cells[row, column].tolist()
        picture.paste(
            _load_tile(
                _sprite_name(entity, color, state_index), bool(is_visible[row, column]), size
            ),
            (size * column, size * row),
        )
    return picture


def _visible_cells(state: State, shape: tuple[int, int]) -> np.ndarray:
    """Return a mask `[H, W]` of the cells in the square field of view in front of the agent."""
    from rollax.environments.suites.navix.adapter import observations

    player = state.suite_state.entities["player"]
    down, right = _DIRECTION_STEPS[int(player.direction[0])]
    rows, columns = (
        indices - int(player_index)
        for indices, player_index in zip(np.indices(shape), player.position[0], strict=True)
    )
    ahead, lateral = rows * down + columns * right, rows * right - columns * down
    return (ahead >= 0) & (ahead <= 2 * observations.RADIUS) & (abs(lateral) <= observations.RADIUS)


def _sprite_name(entity: int, color: int, form: int) -> str:
    """Return the file name of the NAVIX image of an entity, without suffix."""
    name = _ENTITY_NAMES[entity]
    if name == "player":
        return f"player_{_DIRECTION_NAMES[form]}"
    if name == "door":
        return f"door_{_DOOR_STATES[form]}_{COLOR_NAMES[color]}"
    return f"{name}_{COLOR_NAMES[color]}" if name in ("key", "ball", "box") else name


@functools.cache
def _load_tile(file: str, is_visible: bool, size: int) -> Image.Image:
    from rollax.environments.suites.navix.adapter import SPRITES_FOLDER

    with Image.open(Path(SPRITES_FOLDER) / f"{file}.png") as found:
        tile = found.convert("RGB").resize(
            (size, size), Image.Resampling.BOX if size < found.width else Image.Resampling.NEAREST
        )
    return Image.blend(tile, Image.new("RGB", tile.size, BACKGROUND), 0.2) if is_visible else tile


def task_notes(
    environment: "rollax.environments.suites.navix.adapter.Navix", state: State, obs: Observation
) -> list[str]:
    """Return lines of text about the mission and the object that the agent carries."""
    lines = []
    if "mission" in obs:
        lines.append(
            "mission: " + ", ".join(map(_describe_entity, np.asarray(obs["mission"])[0].tolist()))
        )
    if "pocket" in obs:
        held = np.asarray(obs["pocket"])[0, 0].tolist()
        lines.append(f"carries {_describe_entity(held) if held[0] else 'nothing'}")
    return lines


def _describe_entity(symbols: list[int]) -> str:
    return f"the {COLOR_NAMES[symbols[1]]} {_ENTITY_NAMES[symbols[0]]}"


DRAWINGS: dict[str, Drawing] = {
    "*": Drawing(draw_navix, 8, notes=task_notes, action_names=ACTION_NAMES),
}
