"""Drawing of Overcooked kitchens with the tiles of JaxMARL."""

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from rollax.canvas.scene import (
    DARK_GRAY,
    SCENE_WIDTH,
    Color,
    LegendEntry,
)
from rollax.environments.suites.output_capture import suppress_output
from rollax.types import Observation, State

if TYPE_CHECKING:
    import rollax.environments.suites.jaxmarl.adapter

OVERCOOKED_ACTIONS = ("up", "down", "right", "left", "stay", "interact")
OVERCOOKED_V2_ACTIONS = ("right", "down", "left", "up", "stay", "interact")


def draw_overcooked(
    environment: "rollax.environments.suites.jaxmarl.adapter.JaxMARL",
    state: State,
    obs: Observation,
) -> Image.Image:
    """Draw an Overcooked kitchen with the tiles of JaxMARL. Cooks show the objects they carry."""
    with suppress_output():
        from jaxmarl.viz.overcooked_visualizer import OvercookedVisualizer

    # The padding of the map, which agents at the border observe as walls.
    around = environment.dynamics.agent_view_size - 1
    tiles = np.asarray(state.maze_map)[around:-around, around:-around]
    cooks = {
        "agent_dir_idx": np.asarray(state.agent_dir_idx),
        "agent_inv": np.asarray(state.agent_inv),
    }
    drawn = OvercookedVisualizer._render_grid(
        tiles, SCENE_WIDTH // max(tiles.shape[:2]), highlight_mask=None, **cooks
    )
    return Image.fromarray(np.asarray(drawn, np.uint8))


def draw_overcooked_v2(
    environment: "rollax.environments.suites.jaxmarl.adapter.JaxMARL",
    state: State,
    obs: Observation,
) -> Image.Image:
    """Draw an OvercookedV2 kitchen, including its recipe indicators."""
    drawn = _overcooked_v2_visualizer(SCENE_WIDTH // max(state.grid.shape[:2]))._render_state(
        jax.tree.map(jnp.asarray, state)
    )
    return Image.fromarray(np.asarray(drawn, np.uint8))


@functools.cache
def _overcooked_v2_visualizer(tile_size: int) -> Any:
    """Return the visualizer for a tile size, cached so that its programs are compiled once."""
    with suppress_output():
        from jaxmarl.viz.overcooked_v2_visualizer import OvercookedV2Visualizer

    return OvercookedV2Visualizer(tile_size)


_COOK_COLORS: tuple[Color, ...] = (
    (255, 0, 0),
    (0, 0, 255),
    (0, 255, 0),
    (160, 32, 240),
    (255, 255, 0),
    (230, 180, 0),
)
_FOOD_COLORS: tuple[Color, ...] = ((255, 255, 0), (0, 150, 0), (160, 32, 240))
_SOUP_COLOR, _SERVING_COLOR = (230, 180, 0), (0, 255, 0)


def overcooked_legend(
    environment: "rollax.environments.suites.jaxmarl.adapter.JaxMARL",
    state: State,
    obs: Observation,
) -> list[LegendEntry]:
    """Return the legend of cooks, ingredients, plates and serving locations in JaxMARL's colors."""
    cooks = [
        LegendEntry(name, color)
        for name, color in zip(environment.dynamics.agents, _COOK_COLORS, strict=False)
    ]
    number = getattr(environment.dynamics.layout, "num_ingredients", 1)
    names = ["onions"] if number == 1 else [f"ingredient {index}" for index in range(number)]
    foods = [
        LegendEntry(name, color, outline=DARK_GRAY)
        for name, color in zip(names, _FOOD_COLORS, strict=False)
    ]
    return [
        *cooks,
        *foods,
        LegendEntry("plates", (255, 255, 255), outline=DARK_GRAY),
        LegendEntry("soup", _SOUP_COLOR),
        LegendEntry("served here", _SERVING_COLOR),
    ]
