"""Drawings of the granular environments from above: spheres, goals and rolling motion."""

import numpy as np
from PIL import Image

from rollax.canvas.drawing import Drawing
from rollax.canvas.scene import (
    BACKGROUND,
    BLUE,
    CHANNEL_COLORS,
    DARK_GRAY,
    GREEN,
    LIGHT_GRAY,
    ORANGE,
    RED,
    LegendEntry,
    Scene,
    draw_square_border,
    square_scene,
)
from rollax.environments.native.granular.many import ManyNavigators, ManyState
from rollax.environments.native.granular.worlds import SingleNavigator, SingleRoller, SingleState
from rollax.types import Observation

_GOAL_COLOR = (190, 226, 214)  # light green


def _walled_scene(environment: SingleNavigator | SingleRoller | ManyNavigators) -> Scene:
    """Return a scene with the walls of the environment."""
    side = float(environment.side)
    return draw_square_border(square_scene(side), side)


def draw_navigator(
    environment: SingleNavigator, state: SingleState, obs: Observation
) -> Image.Image:
    """Draw the goal region, the sphere, and its motion in the next half second as a line.

    Three-dimensional environments are projected along the third axis.
    """
    scene = _walled_scene(environment)
    position, velocity = (
        np.asarray(state.spheres.position)[0, :2],
        np.asarray(state.spheres.velocity)[0, :2],
    )
    scene.disc(
        np.asarray(state.goal)[:2].tolist(), float(environment.goal_radius), _GOAL_COLOR, GREEN
    )
    scene.disc(position.tolist(), float(environment.radius), BLUE, DARK_GRAY)
    scene.line((position.tolist(), (position + velocity / 2).tolist()), DARK_GRAY)
    return scene.picture()


def draw_navigators(environment: ManyNavigators, state: ManyState, obs: Observation) -> Image.Image:
    """Draw each agent as a disc and its goal as a ring of the same color, joined by a line."""
    scene = _walled_scene(environment)
    goals, positions = np.asarray(state.goal).tolist(), np.asarray(state.spheres.position).tolist()
    for position, goal in zip(positions, goals, strict=True):
        scene.line((position, goal), LIGHT_GRAY, 1)
    for index, goal in enumerate(goals):
        scene.disc(
            goal, float(environment.goal_radius), CHANNEL_COLORS[index % len(CHANNEL_COLORS)]
        )
        scene.disc(goal, 0.75 * float(environment.goal_radius), BACKGROUND)
    for index, position in enumerate(positions):
        scene.disc(
            position,
            float(environment.radius),
            CHANNEL_COLORS[index % len(CHANNEL_COLORS)],
            DARK_GRAY,
        )
    return scene.picture()


def navigator_legend(
    environment: ManyNavigators, state: ManyState, obs: Observation
) -> list[LegendEntry]:
    """Return the legend of `draw_navigators`."""
    goal = LegendEntry("goal, in its navigator's color", BLUE, "ring")
    return [
        LegendEntry("navigator", BLUE, outline=DARK_GRAY),
        goal,
        LegendEntry("line to its goal", LIGHT_GRAY, "line"),
    ]


def draw_roller(environment: SingleRoller, state: SingleState, obs: Observation) -> Image.Image:
    """Draw the goal and the sphere from above, with great circles that show how it rolls."""
    radius, position = float(environment.radius), np.asarray(state.spheres.position)[0, :2]
    scene = _walled_scene(environment)
    scene.disc(np.asarray(state.goal).tolist(), float(environment.goal_radius), _GOAL_COLOR, GREEN)
    scene.disc(position.tolist(), radius, BACKGROUND, DARK_GRAY)
    rotation = rotation_matrix(np.asarray(state.orientation))
    angles = np.linspace(0, 2 * np.pi, 49)
    for axis, color in enumerate((BLUE, ORANGE, RED)):
        circle = (
            np.insert(np.stack([np.cos(angles), np.sin(angles)], axis=1), axis, 0.0, axis=1)
            @ rotation.T
        )
        for start, end in zip(circle[:-1], circle[1:], strict=True):
            if start[2] + end[2] > 0:
                scene.line(
                    (
                        (position + radius * start[:2]).tolist(),
                        (position + radius * end[:2]).tolist(),
                    ),
                    color,
                    3,
                )
    return scene.picture()


def rotation_matrix(quaternion: np.ndarray) -> np.ndarray:
    """Return the rotation matrix `[3, 3]` of a unit quaternion `[4]`, real part first."""
    w, v = quaternion[0], quaternion[1:]
    cross = np.cross(np.eye(3), v)  # cross @ u is v x u
    return np.eye(3) + 2 * w * cross + 2 * cross @ cross


DRAWINGS: dict[str, Drawing] = {
    "single-navigator": Drawing(draw_navigator, 15),
    "many-navigators": Drawing(draw_navigators, 15, legend=navigator_legend),
    "single-roller": Drawing(draw_roller, 15),
}
