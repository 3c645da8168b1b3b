"""Pictures of brax's bodies: spheres and capsules, seen from the side or from above."""

import math
from typing import Any

import numpy as np
from PIL import Image

from rollax.view.scene import BLUE, BROWN, GREEN, GREY, HEIGHT, INK, LIGHT, ORANGE, RED, WIDTH, Scene

_SPHERE, _CAPSULE = 2, 3  # of mujoco.mjtGeom
_SIDE = np.asarray([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])  # rows: which direction of the world is right, and which is up
_ABOVE = np.asarray([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
_OBLIQUE = np.asarray([[0.94, 0.34, 0.0], [-0.17, 0.47, 0.87]])

# Of each world: the direction of sight, the width of the picture in metres, whether the picture follows the first body.
_VIEWS = {
    "ant": (_OBLIQUE, 5.0, True),
    "halfcheetah": (_SIDE, 4.0, True),
    "hopper": (_SIDE, 3.6, True),
    "humanoid": (_OBLIQUE, 4.6, True),
    "humanoidstandup": (_OBLIQUE, 4.6, True),
    "inverted_pendulum": (_SIDE, 2.6, False),
    "inverted_double_pendulum": (_SIDE, 4.0, False),
    "pusher": (_ABOVE, 2.4, False),
    "reacher": (_ABOVE, 0.7, False),
    "swimmer": (_ABOVE, 5.0, True),
    "walker2d": (_SIDE, 3.6, True),
}
_COLORS = (BLUE, ORANGE, (86, 180, 233), RED, (204, 121, 167), BROWN)
_MARKED = {"target": GREEN, "goal": GREEN, "object": RED, "fingertip": INK}


def brax(environment: Any, state: Any, obs: Any) -> Image.Image:
    """Every body in a color of its own, the nearest in front; on the ground a mark at each metre, which shows how it moves."""
    view, across, follows = _VIEWS[environment.name.split("/")[1]]
    model, links = environment.dynamics.sys.mj_model, state.raw.pipeline_state.x
    places, turns = np.nan_to_num(np.asarray(links.pos, float)), np.nan_to_num(np.asarray(links.rot, float))
    torso = places[0] if follows else np.zeros(3)
    # The ground stays where it is in the picture; only falls and jumps move a body up and down.
    middle = view @ np.asarray([torso[0], torso[1], 0.0])
    if view is not _ABOVE:
        middle = middle + np.asarray([0.0, across * HEIGHT / WIDTH * (0.38 if follows else 0.12)])
    scene = Scene(WIDTH / across, (float(middle[0]), float(middle[1])))
    if follows or view is _ABOVE:
        _ground(scene, view, torso, across)
    for _, start, end, radius, color in sorted(_rods(model, places, turns, view), key=lambda rod: rod[0]):
        if np.allclose(start, end):
            scene.disc(start, radius, color)
        else:
            scene.rod(start, end, color, 2 * radius)
    return scene.picture()


def _ground(scene: Scene, view: np.ndarray, torso: np.ndarray, across: float) -> None:
    """A line with marks from the side, else a grid: a metre apart, or a tenth of one in small pictures."""
    spacing = 1.0 if across > 2 else 0.1
    reach = math.ceil(across / spacing)
    xs = spacing * (np.arange(-reach, reach + 1) + round(torso[0] / spacing))
    ys = spacing * (np.arange(-reach, reach + 1) + round(torso[1] / spacing))
    if view is _SIDE:
        scene.line([(xs[0], 0.0), (xs[-1], 0.0)], GREY)
        for x in xs:
            scene.line([(x, 0.0), (x, -0.03 * across)], GREY, 1)
        return
    lines = [((x, ys[0]), (x, ys[-1])) for x in xs] + [((xs[0], y), (xs[-1], y)) for y in ys]
    for ends in lines:
        scene.line([(view[:, :2] @ end).tolist() for end in ends], LIGHT, 1)


def _rods(model: Any, places: np.ndarray, turns: np.ndarray, view: np.ndarray) -> list[Any]:
    """(nearness, start, end, radius, color) of every sphere and capsule, ends in the coordinates of the picture."""
    towards = np.cross(view[0], view[1])  # the viewer
    found = []
    for index in range(model.ngeom):
        geom = model.geom(index)
        if int(geom.type[0]) not in (_SPHERE, _CAPSULE):
            continue
        body = int(geom.bodyid[0])
        place, turn = (places[body - 1], turns[body - 1]) if body else (np.zeros(3), np.asarray([1.0, 0.0, 0.0, 0.0]))
        half = float(geom.size[1]) if int(geom.type[0]) == _CAPSULE else 0.0
        middle = place + _rotated(turn, geom.pos)
        axis = half * _rotated(turn, _rotated(geom.quat, np.asarray([0.0, 0.0, 1.0])))
        name = str(geom.name) if geom.name in _MARKED else str(model.body(body).name)
        color = _MARKED.get(name, _COLORS[(body - 1) % len(_COLORS)] if body else GREY)
        found.append((float(towards @ middle), view @ (middle - axis), view @ (middle + axis), float(geom.size[0]), color))
    return found


def _rotated(turn: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """A vector turned by a quaternion (w, x, y, z)."""
    across = 2 * np.cross(turn[1:], vector)
    return vector + turn[0] * across + np.cross(turn[1:], across)
