"""Drawings of the point maze and of the row of platforms."""

import numpy as np
from PIL import Image

from rollax.canvas.drawing import Drawing
from rollax.canvas.scene import (
    BLUE,
    DARK_GRAY,
    GREEN,
    LIGHT_GRAY,
    draw_square_border,
    square_scene,
)
from rollax.environments.native.control.platforms import Platforms, PlatformsState
from rollax.environments.native.control.point_maze import MazeState, PointMaze
from rollax.types import Observation

_GOAL_COLOR = (190, 226, 214)  # light green
_AGENT_RADIUS = 0.022  # as a fraction of the side of the square


def draw_point_maze(environment: PointMaze, state: MazeState, obs: Observation) -> Image.Image:
    """Draw the walls, the start, the goal region and the agent of a point maze."""
    scene = square_scene()
    scene.disc(np.asarray(environment.start).tolist(), _AGENT_RADIUS, LIGHT_GRAY)
    scene.disc(
        np.asarray(environment.goal).tolist(), float(environment.goal_radius), _GOAL_COLOR, GREEN
    )
    for left, bottom, right, top in np.asarray(environment.walls).tolist():
        scene.box((left + right) / 2, (bottom + top) / 2, right - left, top - bottom, DARK_GRAY)
    scene.disc(np.asarray(state.position).tolist(), _AGENT_RADIUS, BLUE, DARK_GRAY)
    return draw_square_border(scene).picture()


def draw_platforms(environment: Platforms, state: PlatformsState, obs: Observation) -> Image.Image:
    """Draw the platform of the agent, the next platform, and the length of the last jump."""
    scene, half = square_scene(), float(environment.tolerance) / 10
    gap, landing = float(state.gap), float(state.landing)
    for middle, color in ((0.05, DARK_GRAY), (0.05 + gap, GREEN)):
        scene.box(middle, 0.2, 2 * half, 0.1, color)
    scene.box(0.05 + landing / 2, 0.6, landing, 0.02, LIGHT_GRAY)
    scene.disc([0.05, 0.25 + _AGENT_RADIUS], _AGENT_RADIUS, BLUE, DARK_GRAY)
    return draw_square_border(scene).picture()


DRAWINGS: dict[str, Drawing] = {
    "platforms": Drawing(draw_platforms, 2),
    "point-maze": Drawing(draw_point_maze, 10),
}
