"""Pictures of the bodies of brax and of MuJoCo Playground: spheres, rods and boxes, seen from the side or from above."""

import math
from typing import Any

import numpy as np
from PIL import Image

from rollax.view.following import followed
from rollax.view.scene import BLUE, BROWN, GREEN, GREY, HEIGHT, INK, LIGHT, ORANGE, RED, WIDTH, Color, Scene

_SPHERE, _CAPSULE, _CYLINDER, BOX = 2, 3, 5, 6  # of mujoco.mjtGeom; 4 is an ellipsoid
SIDE = np.asarray([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])  # rows: which direction of the world is right, and which is up
ABOVE = np.asarray([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
OBLIQUE = np.asarray([[0.94, 0.34, 0.0], [-0.17, 0.47, 0.87]])

SQUARES = (240, 240, 240)  # of the ground, on white

# Of each world: the direction of sight, the width of the picture in metres, how far beneath the middle of the picture the
# ground is where one looks at it, in shares of its height, and whether the picture follows the first body.
_VIEWS = {
    "ant": (OBLIQUE, 5.0, 0.12, True),
    "halfcheetah": (SIDE, 4.0, 0.38, True),
    "hopper": (SIDE, 3.6, 0.38, True),
    "humanoid": (OBLIQUE, 4.6, 0.25, True),
    "humanoidstandup": (OBLIQUE, 4.6, 0.25, True),
    "inverted_pendulum": (SIDE, 2.6, 0.12, False),
    "inverted_double_pendulum": (SIDE, 4.0, 0.12, False),
    "pusher": (ABOVE, 2.4, 0.0, False),
    "reacher": (ABOVE, 0.7, 0.0, False),
    "swimmer": (ABOVE, 5.0, 0.0, True),
    "walker2d": (SIDE, 3.6, 0.38, True),
}
# Of Playground, by the beginning of a task's name.
_PLAYGROUND = {
    "Acrobot": (SIDE, 8.0, -0.3, False),
    "BallInCup": (SIDE, 1.4, 0.2, False),
    "Cartpole": (SIDE, 5.0, 0.29, False),  # the cart is a metre above the ground, and the pole a metre long
    "Cheetah": (SIDE, 4.0, 0.38, True),
    "Finger": (SIDE, 1.2, -0.3, False),
    "Fish": (ABOVE, 1.4, 0.0, False),
    "Hopper": (SIDE, 3.6, 0.38, True),
    "Humanoid": (OBLIQUE, 4.6, 0.25, True),
    "Pendulum": (SIDE, 2.4, 0.0, False),
    "PointMass": (ABOVE, 0.8, 0.0, False),
    "Reacher": (ABOVE, 0.7, 0.0, False),
    "Swimmer": (ABOVE, 5.0, 0.0, True),
    "Walker": (SIDE, 3.6, 0.38, True),
}
_COLORS = (BLUE, ORANGE, (86, 180, 233), RED, (204, 121, 167), BROWN)
_MARKED = {"target": GREEN, "goal": GREEN, "ball": RED, "object": RED, "fingertip": INK}


def drawn(environment: Any, state: Any, obs: Any, camera: Any = None) -> Image.Image:
    """Every body in a color of its own, the nearest in front, and the ground in stripes or squares of a metre, which show how
    it moves. `camera`: the place on the ground `[2]` in the middle of the picture."""
    place = cameras(environment, [state])[0] if camera is None else np.asarray(camera)
    view, across, below, follows = view_of(environment)
    model, places, turns = poses(environment, state)
    # The ground stays where it is in the picture; only falls and jumps move a body up and down.
    middle = view[:, :2] @ place + np.asarray([0.0, below * across * HEIGHT / WIDTH])
    scene = Scene(WIDTH / across, (float(middle[0]), float(middle[1])))
    if follows or view is ABOVE:
        _ground(scene, view, place, across)
    for _, start, end, radius, color in sorted(rods(model, places, turns, view), key=lambda rod: rod[0]):
        if np.allclose(start, end):
            scene.disc(start, radius, color)
        else:
            scene.rod(start, end, color, 2 * radius)
    return scene.picture()


def cameras(environment: Any, states: list[Any]) -> list[np.ndarray]:
    """The places on the ground `[2]` to look at: one for all states where the body does not go far, else a smooth path."""
    view, across, _, follows = view_of(environment)
    if not follows:
        return [np.zeros(2)] * len(states)
    path = np.asarray([poses(environment, state)[1][0, :2] for state in states], float)
    if view is SIDE:
        path = path * np.asarray([1.0, 0.0])
    return list(followed(path, view[:, :2], across * np.asarray([0.22, 0.12 * HEIGHT / WIDTH])))


def view_of(environment: Any) -> tuple[np.ndarray, float, float, bool]:
    name = environment.name.split("/")[1]
    of_playground = (view for start, view in _PLAYGROUND.items() if name.startswith(start))
    return _VIEWS.get(name) or next(of_playground, _VIEWS["ant"])


def poses(environment: Any, state: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """MuJoCo's model, and where bodies are and how they are turned: `[bodies, 3]`, `[bodies, 4]`, without the world."""
    if hasattr(state.raw, "data"):  # of Playground
        model, found = environment.dynamics.mj_model, (state.raw.data.xpos[1:], state.raw.data.xquat[1:])
    else:
        links = state.raw.pipeline_state.x
        model, found = environment.dynamics.sys.mj_model, (links.pos, links.rot)
    places, turns = (np.nan_to_num(np.asarray(each, float)) for each in found)
    return model, places, turns


def _ground(scene: Scene, view: np.ndarray, place: np.ndarray, across: float) -> None:
    """Stripes under a line from the side, else squares as of a chessboard: a metre wide, in small pictures a tenth of one."""
    size = 1.0 if across > 2 else 0.1
    reach = math.ceil(across / size) * (2 if view is OBLIQUE else 1)  # what lies far behind is seen in little height
    first_x, first_y = (round(float(value) / size) for value in place)
    if view is SIDE:
        for x in range(first_x - reach, first_x + reach + 1):
            scene.box((x + 0.5) * size, -0.02 * across, size, 0.04 * across, GREY if x % 2 else LIGHT)
        scene.line([((first_x - reach) * size, 0.0), ((first_x + reach) * size, 0.0)], INK, 1)
        return
    for x in range(first_x - reach, first_x + reach + 1):
        for y in range(first_y - reach, first_y + reach + 1):
            if (x + y) % 2:
                corners = [(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)]
                scene.polygon([(size * view[:, :2] @ corner).tolist() for corner in corners], SQUARES)


def rods(model: Any, places: np.ndarray, turns: np.ndarray, view: np.ndarray) -> list[Any]:
    """(nearness, start, end, radius, color) of every sphere and capsule, ends in the coordinates of the picture."""
    towards = np.cross(view[0], view[1])  # the viewer
    found = []
    for geom, body, color in solids(model):
        place, turn = (places[body - 1], turns[body - 1]) if body else (np.zeros(3), np.asarray([1.0, 0.0, 0.0, 0.0]))
        along, half, radius = rod(int(geom.type[0]), np.asarray(geom.size, float))
        middle = place + rotated(turn, geom.pos)
        axis = half * rotated(turn, rotated(geom.quat, along))
        found.append((float(towards @ middle), view @ (middle - axis), view @ (middle + axis), radius, color))
    return found


def solids(model: Any) -> list[tuple[Any, int, Color]]:
    """What can be drawn, with the number of its body (0 is the world) and a color: no planes, fields of heights or meshes."""
    found = []
    for index in range(model.ngeom):
        geom = model.geom(index)
        if _SPHERE <= int(geom.type[0]) <= BOX:
            body = int(geom.bodyid[0])
            name = str(geom.name) if geom.name in _MARKED else str(model.body(body).name)
            found.append((geom, body, _MARKED.get(name, _COLORS[(body - 1) % len(_COLORS)] if body else GREY)))
    return found


def rod(kind: int, size: np.ndarray) -> tuple[np.ndarray, float, float]:
    """The axis, half the length between the ends, and the radius of a rod that looks like the body."""
    if kind in (_SPHERE, _CAPSULE, _CYLINDER):
        return np.asarray([0.0, 0.0, 1.0]), 0.0 if kind == _SPHERE else float(size[1]), float(size[0])
    longest, radius = int(np.argmax(size)), float(np.sort(size)[1])
    return np.eye(3)[longest], float(size[longest]) - radius, radius


def rotated(turn: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """A vector turned by a quaternion (w, x, y, z)."""
    across = 2 * np.cross(turn[1:], vector)
    return vector + turn[0] * across + np.cross(turn[1:], across)
