"""Drawing of Craftax environments with the textures of Craftax."""

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from rollax.canvas.drawing import Drawing
from rollax.types import Observation, State

if TYPE_CHECKING:
    import rollax.environments.suites.craftax.adapter

_BLOCK_SIZE = 32  # pixels per block


# The actions of Craftax-Classic are the first ones of this list.
# fmt: off
ACTION_NAMES = (
    "noop", "left", "right", "up", "down", "do", "sleep", "place stone", "place table",
    "place furnace", "place plant", "make wood pickaxe", "make stone pickaxe", "make iron pickaxe",
    "make wood sword", "make stone sword", "make iron sword", "rest", "descend", "ascend",
    "make diamond pickaxe", "make diamond sword", "make iron armour", "make diamond armour",
    "shoot arrow", "make arrow", "cast fireball", "cast iceball", "place torch", "drink potion red",
    "drink potion green", "drink potion blue", "drink potion pink", "drink potion cyan",
    "drink potion yellow", "read book", "enchant sword", "enchant armour", "make torch",
    "level up dexterity", "level up strength", "level up intelligence", "enchant bow",
)
# fmt: on


def draw_craftax(
    environment: "rollax.environments.suites.craftax.adapter.Craftax",
    state: State,
    obs: Observation,
) -> Image.Image:
    """Draw the player's view with the textures of Craftax, and the status and inventory below."""
    from rollax.environments.suites.craftax.adapter import make_renderer

    drawn = np.asarray(make_renderer(environment, _BLOCK_SIZE)(state))
    return Image.fromarray(np.clip(drawn, 0, 255).astype(np.uint8))


DRAWINGS: dict[str, Drawing] = {
    "*": Drawing(draw_craftax, 5, action_names=ACTION_NAMES),
}
