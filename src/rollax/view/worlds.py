"""Pictures of the native worlds in the plane: hunts and the point maze."""

from typing import Any

import numpy as np
from PIL import Image

from rollax.view.scene import BLUE, GREEN, GREY, HEIGHT, INK, LIGHT, RED, Scene, Sign

_REACH, _HAVEN = (246, 222, 210), (190, 226, 214)  # light red and light green
_BODY = 0.022  # radius of a player, in sides of the square


def _square() -> Any:
    """A scene of the unit square."""
    return Scene(HEIGHT - 12, (0.5, 0.5))


def _framed(scene: Any) -> Image.Image:
    """The picture of the scene, with the edge of the square above all else."""
    scene.line([(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)], GREY)
    return scene.picture()


def hunting(environment: Any, state: Any, obs: Any) -> Image.Image:
    """The prey (blue), the predators (red) with their reach, and where each one went last."""
    scene = _square()
    players = np.asarray(state.positions).tolist()
    reach = float(environment.catch_radius)
    for predator in players[1:]:
        scene.disc(predator, reach, _REACH, LIGHT)
    for index, (place, heading) in enumerate(zip(players, np.asarray(state.headings).tolist(), strict=True)):
        tip = (place[0] + 3 * _BODY * heading[0], place[1] + 3 * _BODY * heading[1])
        scene.line((place, tip), INK)
        scene.disc(place, _BODY, RED if index else BLUE, INK)
    return _framed(scene)


def hunting_signs(environment: Any, state: Any, obs: Any) -> list[Sign]:
    """Prey, predators, their reach and the last moves."""
    players = [Sign("prey", BLUE, outline=INK), Sign("predator", RED, outline=INK)]
    return [*players, Sign("reach of a predator", _REACH, outline=LIGHT), Sign("last heading", INK, "line")]


def point_maze(environment: Any, state: Any, obs: Any) -> Image.Image:
    """The walls, the start, the circle around the goal, and the point."""
    scene = _square()
    scene.disc(np.asarray(environment.start).tolist(), _BODY, LIGHT)
    scene.disc(np.asarray(environment.goal).tolist(), float(environment.goal_radius), _HAVEN, GREEN)
    for left, bottom, right, top in np.asarray(environment.walls).tolist():
        scene.box((left + right) / 2, (bottom + top) / 2, right - left, top - bottom, INK)
    scene.disc(np.asarray(state.position).tolist(), _BODY, BLUE, INK)
    return _framed(scene)
