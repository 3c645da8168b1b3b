"""Drawings of hunting games."""

import numpy as np
from PIL import Image

from rollax.canvas.drawing import Drawing
from rollax.canvas.scene import (
    BLUE,
    DARK_GRAY,
    LIGHT_GRAY,
    RED,
    LegendEntry,
    draw_square_border,
    square_scene,
)
from rollax.environments.native.hunting.hunting import Hunting, HuntingState
from rollax.types import Observation

_REACH_COLOR = (246, 222, 210)  # light red
_PLAYER_RADIUS = 0.022  # as a fraction of the side of the square


def draw_hunting(environment: Hunting, state: HuntingState, obs: Observation) -> Image.Image:
    """Draw the prey (blue), the predators with their catch radius (red), and the last headings."""
    scene = square_scene()
    players = np.asarray(state.positions).tolist()
    catch_radius = float(environment.catch_radius)
    for predator in players[1:]:
        scene.disc(predator, catch_radius, _REACH_COLOR, LIGHT_GRAY)
    for index, (position, heading) in enumerate(
        zip(players, np.asarray(state.headings).tolist(), strict=True)
    ):
        tip = (
            position[0] + 3 * _PLAYER_RADIUS * heading[0],
            position[1] + 3 * _PLAYER_RADIUS * heading[1],
        )
        scene.line((position, tip), DARK_GRAY)
        scene.disc(position, _PLAYER_RADIUS, RED if index else BLUE, DARK_GRAY)
    return draw_square_border(scene).picture()


def hunting_legend(
    environment: Hunting, state: HuntingState, obs: Observation
) -> list[LegendEntry]:
    """Return the legend of `draw_hunting`."""
    players = [
        LegendEntry("prey", BLUE, outline=DARK_GRAY),
        LegendEntry("predator", RED, outline=DARK_GRAY),
    ]
    return [
        *players,
        LegendEntry("reach of a predator", _REACH_COLOR, outline=LIGHT_GRAY),
        LegendEntry("last heading", DARK_GRAY, "line"),
    ]


DRAWINGS: dict[str, Drawing] = {
    "*": Drawing(draw_hunting, 25, legend=hunting_legend),
}
