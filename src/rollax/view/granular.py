"""Pictures of the granular worlds, from above: spheres, their goals, and how they roll."""

from typing import Any

import numpy as np
from PIL import Image

from rollax.view.scene import BLUE, CHANNELS, GREEN, GREY, HEIGHT, INK, LIGHT, ORANGE, PAPER, RED, Scene, Sign

_HAVEN = (190, 226, 214)  # light green


def _box(side: float) -> Any:
    """An empty square from 0 to `side` with its walls."""
    scene = Scene((HEIGHT - 12) / side, (side / 2, side / 2))
    scene.line([(0, 0), (side, 0), (side, side), (0, side), (0, 0)], GREY)
    return scene


def navigator(environment: Any, state: Any, obs: Any) -> Image.Image:
    """The goal with the radius that counts as reached, the sphere, and its velocity: where it would be in half a second.

    In three dimensions this is the view along the third axis.
    """
    scene = _box(float(environment.side))
    place, velocity = np.asarray(state.spheres.position)[0, :2], np.asarray(state.spheres.velocity)[0, :2]
    scene.disc(np.asarray(state.goal)[:2].tolist(), float(environment.goal_radius), _HAVEN, GREEN)
    scene.disc(place.tolist(), float(environment.radius), BLUE, INK)
    scene.line((place.tolist(), (place + velocity / 2).tolist()), INK)
    return scene.picture()


def navigators(environment: Any, state: Any, obs: Any) -> Image.Image:
    """Every agent in one of a few colors, its goal as a ring of that color, and a line between them."""
    scene = _box(float(environment.side))
    goals, places = np.asarray(state.goal).tolist(), np.asarray(state.spheres.position).tolist()
    for place, goal in zip(places, goals, strict=True):
        scene.line((place, goal), LIGHT, 1)
    for index, goal in enumerate(goals):
        scene.disc(goal, float(environment.goal_radius), CHANNELS[index % len(CHANNELS)])
        scene.disc(goal, 0.75 * float(environment.goal_radius), PAPER)
    for index, place in enumerate(places):
        scene.disc(place, float(environment.radius), CHANNELS[index % len(CHANNELS)], INK)
    return scene.picture()


def navigator_signs(environment: Any, state: Any, obs: Any) -> list[Sign]:
    """Agents and goals; which belong together is told by colors and lines."""
    goal = Sign("goal, in its navigator's color", BLUE, "ring")
    return [Sign("navigator", BLUE, outline=INK), goal, Sign("line to its goal", LIGHT, "line")]


def roller(environment: Any, state: Any, obs: Any) -> Image.Image:
    """The goal, and the sphere with three great circles painted on it, which turn as it rolls; the upper half is seen."""
    radius, place = float(environment.radius), np.asarray(state.spheres.position)[0, :2]
    scene = _box(float(environment.side))
    scene.disc(np.asarray(state.goal).tolist(), float(environment.goal_radius), _HAVEN, GREEN)
    scene.disc(place.tolist(), radius, PAPER, INK)
    turned = rotation(np.asarray(state.orientation))
    angles = np.linspace(0, 2 * np.pi, 49)
    for axis, color in enumerate((BLUE, ORANGE, RED)):
        circle = np.insert(np.stack([np.cos(angles), np.sin(angles)], axis=1), axis, 0.0, axis=1) @ turned.T
        for start, end in zip(circle[:-1], circle[1:], strict=True):
            if start[2] + end[2] > 0:
                scene.line(((place + radius * start[:2]).tolist(), (place + radius * end[:2]).tolist()), color, 3)
    return scene.picture()


def rotation(quaternion: np.ndarray) -> np.ndarray:
    """The matrix `[3, 3]` of a unit quaternion `[4]`, real part first."""
    w, v = quaternion[0], quaternion[1:]
    cross = np.cross(np.eye(3), v)  # cross @ u is v x u
    return np.eye(3) + 2 * w * cross + 2 * cross @ cross
