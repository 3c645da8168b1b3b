"""Pictures that suites draw themselves."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageDraw

from rollax.view.scene import BLUE, BOARD, GREY, INK, ORANGE, Sign

_BLOCK = 32  # pixels of a block of Craftax
_JUMANJI = 400  # pixels that a picture of Jumanji has at most along an edge

# Those of Craftax-Classic are the first of them.
# fmt: off
CRAFTAX_ACTIONS = (
    "noop", "left", "right", "up", "down", "do", "sleep", "place stone", "place table", "place furnace", "place plant",
    "make wood pickaxe", "make stone pickaxe", "make iron pickaxe", "make wood sword", "make stone sword",
    "make iron sword", "rest", "descend", "ascend", "make diamond pickaxe", "make diamond sword", "make iron armour",
    "make diamond armour", "shoot arrow", "make arrow", "cast fireball", "cast iceball", "place torch", "drink potion red",
    "drink potion green", "drink potion blue", "drink potion pink", "drink potion cyan", "drink potion yellow",
    "read book", "enchant sword", "enchant armour", "make torch", "level up dexterity", "level up strength",
    "level up intelligence", "enchant bow",
)
# fmt: on


def craftax(environment: Any, state: Any, obs: Any) -> Image.Image:
    """What the player sees, in the suite's own textures, with health, needs and inventory beneath."""
    from rollax.environments.suites.craftax import renderer

    drawn = np.asarray(renderer(environment, _BLOCK)(state))
    return Image.fromarray(np.clip(drawn, 0, 255).astype(np.uint8))


JUMANJI_MOVES = ("up", "right", "down", "left")


def jumanji(environment: Any, state: Any, obs: Any) -> Image.Image:
    """The suite's own picture, which matplotlib draws."""
    from jumanji.viewer import MatplotlibViewer

    drawn: list[np.ndarray] = []

    def keep(figure: Any) -> None:  # not all viewers return what they display, and none may open a window
        for axes in figure.axes:
            if axes.name == "rectilinear" and axes.get_autoscale_on() and not np.isfinite(axes.dataLim.max).all():  # in MMST
                axes.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1))
        drawn.append(np.array(viewer._display_rgb_array(figure)))

    (viewer,) = (part for part in vars(environment.dynamics).values() if isinstance(part, MatplotlibViewer))
    viewer._display = keep
    environment.dynamics.render(jax.tree.map(jnp.asarray, state.raw))
    viewer.close()  # or a figure of every environment stays open
    picture = Image.fromarray(drawn[-1][..., :3].astype(np.uint8))
    picture.thumbnail((_JUMANJI, _JUMANJI))
    return picture


_WOOD, _STONES = (238, 222, 190), (BLUE, ORANGE)


def stones(environment: Any, state: Any, obs: Any) -> Image.Image:
    """A board of Pgx as its first player sees it: this player's stones, and those of the other."""
    board = np.asarray(obs["observation"])[0][..., :2] > 0
    size = BOARD // max(board.shape[:2])
    picture = Image.new("RGB", (size * board.shape[1] + 1, size * board.shape[0] + 1), _WOOD)
    pen, gap = ImageDraw.Draw(picture), max(1, size // 12)
    for row, column in np.ndindex(*board.shape[:2]):
        left, top = size * column, size * row
        pen.rectangle((left, top, left + size, top + size), outline=GREY)
        for player in np.flatnonzero(board[row, column]).tolist():
            pen.ellipse((left + gap, top + gap, left + size - gap, top + size - gap), _STONES[player], INK)
    return picture


def moved(environment: Any, agent: int, action: Any) -> str:
    """A player's move; of an opponent that the environment plays only how it chooses, as the policy passes there."""
    if agent > 0 and environment.opponent != "agents":
        return environment.opponent  # in a column where more words are cut off
    return "waits" if int(action) == environment.action_space.n - 1 else str(int(action))


def stone_signs(environment: Any, state: Any, obs: Any) -> list[Sign]:
    return [Sign(name, color, outline=INK) for name, color in zip(environment.agent_types, _STONES, strict=True)]
