"""Drawing of the point maze."""

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


DRAWINGS: dict[str, Drawing] = {
    "point-maze": Drawing(draw_point_maze, 10),
}
