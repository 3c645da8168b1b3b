"""Drawing of MuJoCo bodies as spheres, rods and boxes."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from jax.typing import ArrayLike
from PIL import Image

from rollax.canvas.camera import smooth_camera_path
from rollax.canvas.drawing import Drawing
from rollax.canvas.scene import (
    BLUE,
    BROWN,
    DARK_GRAY,
    GRAY,
    GREEN,
    LIGHT_GRAY,
    ORANGE,
    RED,
    SCENE_HEIGHT,
    SCENE_WIDTH,
    Color,
    Scene,
)
from rollax.types import Observation, State

_SPHERE, _CAPSULE, _CYLINDER, _BOX = 2, 3, 5, 6  # values of mujoco.mjtGeom; 4 is an ellipsoid
_DECIMALS = 4  # of numbers in pages
# The rows of a view are the world directions to the right and upward in the picture.
SIDE_VIEW = np.asarray([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
TOP_VIEW = np.asarray([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
OBLIQUE_VIEW = np.asarray([[0.94, 0.34, 0.0], [-0.17, 0.47, 0.87]])

GROUND_SQUARE_COLOR = (240, 240, 240)

_BODY_COLORS = (BLUE, ORANGE, (86, 180, 233), RED, (204, 121, 167), BROWN)
_SPECIAL_COLORS = {
    "target": GREEN,
    "goal": GREEN,
    "ball": RED,
    "object": RED,
    "fingertip": DARK_GRAY,
}


MujocoModel: TypeAlias = Any
"""Instance of `mujoco.MjModel`. MuJoCo is optional, and its module has no types."""


@runtime_checkable
class BodiesEnvironment(Protocol):
    """Environment whose states contain MuJoCo bodies."""

    @property
    def dynamics(self) -> Any:
        """Brax or MuJoCo Playground environment. Its `dt` is the duration of a step in seconds."""
        ...


BodiesEnv = TypeVar("BodiesEnv", bound=BodiesEnvironment)


class BodyView(NamedTuple):
    """Viewing direction and size of the image of an environment with MuJoCo bodies.

    Attributes:
        directions: World directions to the right and upward in the image, float `[2, 3]`.
        width: Width of the image in meters.
        ground: Distance from the center of the image down to the ground at the camera target, as
            a fraction of the image height.
        follows: Whether the image follows the first body.
    """

    directions: np.ndarray
    width: float
    ground: float
    follows: bool


class BodyPoses(NamedTuple):
    """Poses of all bodies except the world.

    Attributes:
        model: MuJoCo model.
        positions: Positions, float `[num_bodies, 3]`.
        quaternions: Orientations (w, x, y, z), float `[num_bodies, 4]`.
    """

    model: MujocoModel
    positions: np.ndarray
    quaternions: np.ndarray


class DrawableGeom(NamedTuple):
    """Shape (geom) of a MuJoCo model that can be drawn.

    Attributes:
        geom: MuJoCo geom.
        body: Index of the body that the geom belongs to. Body 0 is the world.
        color: Fill color.
    """

    geom: Any
    body: int
    color: Color


class Capsule(NamedTuple):
    """Capsule centered on a geom. A sphere is a capsule of length 0.

    Attributes:
        axis: Direction of the capsule, `[3]`.
        half_length: Half the distance between the centers of the two half spheres.
        radius: Radius of the capsule.
    """

    axis: np.ndarray
    half_length: float
    radius: float


class ProjectedCapsule(NamedTuple):
    """Capsule in the image plane, with positions and lengths in meters.

    Attributes:
        nearness: Coordinate of the center along the axis that points to the viewer.
        start: Center of the first half sphere, `[2]`.
        end: Center of the second half sphere, `[2]`.
        radius: Radius of the capsule.
        color: Fill color.
    """

    nearness: float
    start: np.ndarray
    end: np.ndarray
    radius: float
    color: Color


def make_body_poses(model: MujocoModel, positions: ArrayLike, quaternions: ArrayLike) -> BodyPoses:
    """Build `BodyPoses` with float arrays, and replace non-finite numbers.

    Args:
        model: MuJoCo model.
        positions: Positions, `[num_bodies, 3]`.
        quaternions: Orientations (w, x, y, z), `[num_bodies, 4]`.

    Returns:
        The poses. NaN becomes 0, and infinite numbers become the largest finite floats.
    """
    position_array, quaternion_array = (
        np.nan_to_num(np.asarray(each, float)) for each in (positions, quaternions)
    )
    return BodyPoses(model, position_array, quaternion_array)


def make_bodies_drawing(
    find_view: Callable[[BodiesEnv], BodyView],
    find_poses: Callable[[BodiesEnv, State], BodyPoses],
    fps: int,
) -> Drawing:
    """Build the `Drawing` of environments with MuJoCo bodies.

    Args:
        find_view: Function from an environment to its view.
        find_poses: Function from an environment and a state to the poses of the bodies.
        fps: Number of steps shown per second.

    Returns:
        Drawing with a camera that follows the first body, and with data for HTML pages in 3D.
    """

    def cameras(environment: BodiesEnv, states: list[State]) -> list[np.ndarray]:
        poses = [find_poses(environment, state) for state in states]
        return camera_positions(find_view(environment), poses)

    def draw(
        environment: BodiesEnv,
        state: State,
        obs: Observation,
        camera: np.ndarray | None = None,
    ) -> Image.Image:
        position = cameras(environment, [state])[0] if camera is None else np.asarray(camera)
        return draw_bodies(find_view(environment), find_poses(environment, state), position)

    def make_page_data(
        environment: BodiesEnv, states: list[State], fps: int | None, stride: int
    ) -> dict[str, Any]:
        seconds = environment.dynamics.dt * stride if fps is None else 1 / fps
        poses = [find_poses(environment, state) for state in states]
        return page_data(find_view(environment), poses, float(seconds), stride)

    return Drawing(draw, fps, cameras=cameras, page_data_fn=make_page_data)


def draw_bodies(view: BodyView, poses: BodyPoses, camera: np.ndarray) -> Image.Image:
    """Draw the bodies in different colors.

    The ground (see `_draw_ground`) is drawn if the view follows the first body or is from above.

    Args:
        view: View of the environment.
        poses: Poses of the bodies.
        camera: Position on the ground at the center of the image, `[2]`.

    Returns:
        RGB image.
    """
    directions, width = view.directions, view.width
    # The ground stays at the same height of the picture, so that falls and jumps are visible.
    middle = directions[:, :2] @ camera + np.asarray(
        [0.0, view.ground * width * SCENE_HEIGHT / SCENE_WIDTH]
    )
    scene = Scene(SCENE_WIDTH / width, (float(middle[0]), float(middle[1])))
    if view.follows or directions is TOP_VIEW:
        _draw_ground(scene, directions, camera, width)
    for rod in sorted(project_capsules(poses, directions), key=lambda rod: rod.nearness):
        if np.allclose(rod.start, rod.end):
            scene.disc(rod.start, rod.radius, rod.color)
        else:
            scene.rod(rod.start, rod.end, rod.color, 2 * rod.radius)
    return scene.picture()


def camera_positions(view: BodyView, poses: Sequence[BodyPoses]) -> list[np.ndarray]:
    """Return the camera position on the ground for each state of an episode.

    Args:
        view: View of the environment.
        poses: Poses of the bodies in each state.

    Returns:
        One position `[2]` per state. All positions are 0 if the view does not follow the first
        body, and equal if the body stays in view. Otherwise they form a smooth path.
    """
    if not view.follows:
        return [np.zeros(2)] * len(poses)
    path = np.asarray([each.positions[0, :2] for each in poses], float)
    if view.directions is SIDE_VIEW:
        path = path * np.asarray([1.0, 0.0])
    max_offset = view.width * np.asarray([0.22, 0.12 * SCENE_HEIGHT / SCENE_WIDTH])
    return list(smooth_camera_path(path, view.directions[:, :2], max_offset))


def _draw_ground(scene: Scene, view: np.ndarray, center: np.ndarray, width: float) -> None:
    """Draw the ground as stripes below a line in side views and as a checkerboard otherwise.

    Stripes and squares are one meter wide, or 0.1 m in small scenes.
    """
    size = 1.0 if width > 2 else 0.1
    # The oblique view compresses depth, so more of the ground is visible.
    num_tiles = math.ceil(width / size) * (2 if view is OBLIQUE_VIEW else 1)
    first_x, first_y = (round(float(value) / size) for value in center)
    if view is SIDE_VIEW:
        for x in range(first_x - num_tiles, first_x + num_tiles + 1):
            scene.box(
                (x + 0.5) * size, -0.02 * width, size, 0.04 * width, GRAY if x % 2 else LIGHT_GRAY
            )
        scene.line(
            [((first_x - num_tiles) * size, 0.0), ((first_x + num_tiles) * size, 0.0)], DARK_GRAY, 1
        )
        return
    for x in range(first_x - num_tiles, first_x + num_tiles + 1):
        for y in range(first_y - num_tiles, first_y + num_tiles + 1):
            if (x + y) % 2:
                corners = [(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)]
                scene.polygon(
                    [(size * view[:, :2] @ corner).tolist() for corner in corners],
                    GROUND_SQUARE_COLOR,
                )


def project_capsules(poses: BodyPoses, view: np.ndarray) -> list[ProjectedCapsule]:
    """Project the shapes of a model onto the image plane.

    Args:
        poses: Poses of the bodies.
        view: World directions to the right and upward in the image, `[2, 3]`.

    Returns:
        One capsule for each geom of `drawable_geoms`. Ellipsoids, cylinders and boxes are
        approximated by capsules.
    """
    viewer_direction = np.cross(view[0], view[1])  # direction to the viewer
    rods = []
    for geom, body, color in drawable_geoms(poses.model):
        position, quaternion = (
            (poses.positions[body - 1], poses.quaternions[body - 1])
            if body
            else (np.zeros(3), np.asarray([1.0, 0.0, 0.0, 0.0]))
        )
        capsule = approximate_capsule(int(geom.type[0]), np.asarray(geom.size, float))
        middle = position + rotate_vector(quaternion, geom.pos)
        axis = capsule.half_length * rotate_vector(
            quaternion, rotate_vector(geom.quat, capsule.axis)
        )
        rods.append(
            ProjectedCapsule(
                nearness=float(viewer_direction @ middle),
                start=view @ (middle - axis),
                end=view @ (middle + axis),
                radius=capsule.radius,
                color=color,
            )
        )
    return rods


def drawable_geoms(model: MujocoModel) -> list[DrawableGeom]:
    """Return the spheres, capsules, ellipsoids, cylinders and boxes of a model."""
    geoms = []
    for index in range(model.ngeom):
        geom = model.geom(index)
        if _SPHERE <= int(geom.type[0]) <= _BOX:
            body = int(geom.bodyid[0])
            name = str(geom.name) if geom.name in _SPECIAL_COLORS else str(model.body(body).name)
            body_color = _BODY_COLORS[(body - 1) % len(_BODY_COLORS)] if body else GRAY
            geoms.append(DrawableGeom(geom, body, _SPECIAL_COLORS.get(name, body_color)))
    return geoms


def approximate_capsule(kind: int, size: np.ndarray) -> Capsule:
    """Approximate a geom by a capsule along its longest axis.

    Args:
        kind: Type of the geom (`mujoco.mjtGeom`).
        size: Sizes of the geom as in MuJoCo, `[3]`.

    Returns:
        The capsule in the frame of the geom.
    """
    if kind in (_SPHERE, _CAPSULE, _CYLINDER):
        half_length = 0.0 if kind == _SPHERE else float(size[1])
        return Capsule(np.asarray([0.0, 0.0, 1.0]), half_length, float(size[0]))
    longest, radius = int(np.argmax(size)), float(np.sort(size)[1])
    return Capsule(np.eye(3)[longest], float(size[longest]) - radius, radius)


def rotate_vector(quaternion: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Rotate a vector `[3]` by a unit quaternion (w, x, y, z)."""
    across = 2 * np.cross(quaternion[1:], vector)
    return vector + quaternion[0] * across + np.cross(quaternion[1:], across)


def page_data(
    view: BodyView, poses: Sequence[BodyPoses], seconds: float, stride: int
) -> dict[str, Any]:
    """Return the data of an HTML page that plays an episode in 3D.

    Args:
        view: View of the environment.
        poses: Poses of the bodies in every `stride`-th state of the episode.
        seconds: Playback time between consecutive states in `poses`.
        stride: Number of steps between consecutive states in `poses`.

    Returns:
        JSON-serializable dictionary with the shapes, poses, camera positions, step numbers and
        initial view.
    """
    frames = [np.concatenate([each.positions, each.quaternions], axis=1) for each in poses]
    return {
        "shapes": body_shapes(poses[0].model),
        "frames": [np.round(each, _DECIMALS).tolist() for each in frames],
        "targets": np.round(camera_positions(view, poses), _DECIMALS).tolist(),
        "steps": [stride * number for number in range(len(poses))],
        "seconds": seconds,
        **_initial_page_view(view),
    }


def body_shapes(model: MujocoModel) -> list[dict[str, Any]]:
    """Return the drawable shapes of a model, each in the coordinates of its body.

    Args:
        model: MuJoCo model.

    Returns:
        One dictionary per shape, with its body index, color and points. A box has eight corners.
        Any other shape is a capsule with two end points and a radius. The body index of the world
        is -1.
    """
    shapes = []
    for geom, body, color in drawable_geoms(model):
        size = np.asarray(geom.size, float)
        shape = {"body": body - 1, "color": "#{:02x}{:02x}{:02x}".format(*color)}
        if int(geom.type[0]) == _BOX:
            signs = np.asarray([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
            points = [geom.pos + rotate_vector(geom.quat, size * sign) for sign in signs]
        else:
            capsule = approximate_capsule(int(geom.type[0]), size)
            shape["radius"] = capsule.radius
            axis = capsule.half_length * rotate_vector(geom.quat, capsule.axis)
            points = [geom.pos - axis, geom.pos + axis]
        shapes.append({**shape, "points": np.round(points, _DECIMALS).tolist()})
    return shapes


def _initial_page_view(view: BodyView) -> dict[str, Any]:
    """Return the initial camera of an HTML page and the width of its ground squares in meters.

    The camera of a side view is slightly above the ground.
    """
    azimuth, elevation = 0.35, 0.45
    if view.directions is SIDE_VIEW:
        azimuth, elevation = 0.0, 0.12
    elif view.directions is TOP_VIEW:
        azimuth, elevation = 0.0, np.pi / 2
    initial = {
        "azimuth": azimuth,
        "elevation": elevation,
        "across": 1.2 * view.width,
        "distance": 3.0 * view.width,
        "height": view.ground * view.width * 0.7,
    }
    return {"view": initial, "square": 1.0 if view.width > 2 else 0.1}
