"""Pictures that suites draw themselves."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageDraw

from rollax.environments.suites.silence import silenced
from rollax.view.scene import BLUE, BOARD, GREY, INK, ORANGE, WIDTH, Color, Sign

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


KITCHEN_MOVES = ("up", "down", "right", "left", "stay", "interact")
KITCHEN_V2_MOVES = ("right", "down", "left", "up", "stay", "interact")


def kitchen(environment: Any, state: Any, obs: Any) -> Image.Image:
    """The kitchen of Overcooked in the suite's own tiles; what a cook carries lies upon it."""
    with silenced():
        from jaxmarl.viz.overcooked_visualizer import OvercookedVisualizer

    around = environment.dynamics.agent_view_size - 1  # further walls, beyond what an agent at the edge could see
    tiles = np.asarray(state.maze_map)[around:-around, around:-around]
    cooks = {"agent_dir_idx": np.asarray(state.agent_dir_idx), "agent_inv": np.asarray(state.agent_inv)}
    drawn = OvercookedVisualizer._render_grid(tiles, WIDTH // max(tiles.shape[:2]), highlight_mask=None, **cooks)
    return Image.fromarray(np.asarray(drawn, np.uint8))


def kitchen_v2(environment: Any, state: Any, obs: Any) -> Image.Image:
    """The same of OvercookedV2, with the indicators of its recipes."""
    drawn = _kitchen_v2(WIDTH // max(state.grid.shape[:2]))._render_state(jax.tree.map(jnp.asarray, state))
    return Image.fromarray(np.asarray(drawn, np.uint8))


@functools.cache
def _kitchen_v2(tile_size: int) -> Any:
    """One object for all pictures, so that they are compiled once."""
    with silenced():
        from jaxmarl.viz.overcooked_v2_visualizer import OvercookedV2Visualizer

    return OvercookedV2Visualizer(tile_size)


_COOKS: tuple[Color, ...] = ((255, 0, 0), (0, 0, 255), (0, 255, 0), (160, 32, 240), (255, 255, 0), (230, 180, 0))
_FOODS: tuple[Color, ...] = ((255, 255, 0), (0, 150, 0), (160, 32, 240))
_SOUP, _SERVED = (230, 180, 0), (0, 255, 0)


def kitchen_signs(environment: Any, state: Any, obs: Any) -> list[Sign]:
    """Cooks, what they cook, plates, and where soups are served, in the suite's colors."""
    cooks = [Sign(name, color) for name, color in zip(environment.dynamics.agents, _COOKS, strict=False)]
    number = getattr(environment.dynamics.layout, "num_ingredients", 1)
    names = ["onions"] if number == 1 else [f"ingredient {index}" for index in range(number)]
    foods = [Sign(name, color, outline=INK) for name, color in zip(names, _FOODS, strict=False)]
    return [*cooks, *foods, Sign("plates", (255, 255, 255), outline=INK), Sign("soup", _SOUP), Sign("served here", _SERVED)]


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
