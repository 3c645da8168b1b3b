"""Tests of cameras: one place for an episode, or a smooth path along the ground."""

import json
import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from PIL import Image

import rollax
from rollax.canvas import bodies
from rollax.canvas.camera import smooth_camera_path
from rollax.canvas.scene import SCENE_HEIGHT, SCENE_WIDTH, fit_camera
from rollax.environments.suites.brax import drawing as brax
from rollax.environments.suites.jaxmarl.particle_drawing import particle_cameras
from rollax.visualization.render.bodies_page import build_bodies_page
from rollax.visualization.render.drawings import draw_episode, find_drawing
from support.browser import needs_browser, opened

SIDE = np.asarray([[1.0, 0.0], [0.0, 0.0]])
ROOM = np.asarray([0.8, 0.5])


def gait(steps, speed, jitter):
    """Return the path of a body that moves to the right and sways."""
    time = np.arange(steps)
    return np.stack([speed * time + jitter * np.sin(time), np.zeros(steps)], axis=1)


def test_a_short_path_has_a_fixed_camera():
    path = gait(300, 0.002, 0.2)
    looked_at = smooth_camera_path(path, SIDE, ROOM)
    assert np.all(looked_at == looked_at[0]) and np.all(np.abs(path - looked_at)[:, 0] <= ROOM[0])


def test_a_long_path_is_followed_without_its_swaying():
    path = gait(300, 0.05, 0.2)
    looked_at = smooth_camera_path(path, SIDE, ROOM)
    away, shaken = np.abs(path - looked_at)[:, 0], np.abs(np.diff(looked_at[:, 0], 2))
    assert away.max() <= ROOM[0] and np.all(np.diff(looked_at[:, 0]) >= 0)
    assert shaken.max() < 0.01 * np.abs(np.diff(path[:, 0], 2)).max()


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_short_episodes_and_nonfinite_positions_have_a_camera(steps):
    path = gait(steps, 5.0, 0.1)
    path[0] = np.nan
    assert (
        smooth_camera_path(path, SIDE, ROOM).shape == (steps, 2)
        and np.isfinite(smooth_camera_path(path, SIDE, ROOM)).all()
    )


def test_a_camera_shows_the_whole_box():
    camera = fit_camera([-3, 0], [5, 1])
    assert camera.center == (1.0, 0.5) and camera.unit == pytest.approx(0.9 * SCENE_WIDTH / 8)
    assert fit_camera([0, 0], [1, 4]).unit == pytest.approx(0.9 * SCENE_HEIGHT / 4)


def test_particles_stay_in_the_image():
    """One camera shows the particles at all times."""
    places = np.random.default_rng(0).normal(scale=3, size=(20, 3, 2))
    environment = SimpleNamespace(dynamics=SimpleNamespace(rad=np.asarray([0.1, 0.2, 0.1])))
    cameras = particle_cameras(environment, [SimpleNamespace(p_pos=each) for each in places])
    assert len(cameras) == 20 and set(cameras) == {cameras[0]}
    across, upwards = (
        np.abs((places - cameras[0].center) * cameras[0].unit).reshape(-1, 2).max(axis=0)
    )
    assert across < SCENE_WIDTH / 2 and upwards < SCENE_HEIGHT / 2


def body_at(state, x):
    """Return a Brax state, moved along the ground."""
    links = state.suite_state.pipeline_state.x
    moved = links.replace(pos=np.asarray(links.pos) + np.asarray([x, 0.0, 0.0], np.float32))
    return state._replace(
        suite_state=state.suite_state.replace(
            pipeline_state=state.suite_state.pipeline_state.replace(x=moved)
        )
    )


@pytest.fixture(scope="module")
def hopper():
    with jax.numpy_rank_promotion("allow"):
        environment = rollax.make("brax/hopper")
        state, obs = jax.device_get(environment.reset(jax.random.key(0)))
    return environment, state, obs


def test_the_ground_moves_with_the_body(hopper):
    environment, state, obs = hopper
    drawing = find_drawing(environment)
    two = [body_at(state, x) for x in (0.0, 0.1)]
    still = draw_episode(drawing, environment, two, [obs, obs])
    ground = [np.asarray(image)[250:] for image in still]  # below the feet
    assert np.array_equal(*ground) and still[0].tobytes() != still[1].tobytes()
    states = [body_at(state, 0.1 * i) for i in range(100)]
    places = np.asarray(drawing.cameras(environment, states))[:, 0]
    assert np.all(np.diff(places) >= 0) and places[-1] - places[0] > 8


def test_a_page_has_every_state_and_its_time(hopper):
    environment, state, _ = hopper
    states = [body_at(state, x) for x in (0.0, 1.0, 2.0)]
    drawing = find_drawing(environment)
    for fps, seconds in ((None, 2 * environment.dynamics.dt), (10, 0.1)):
        page = build_bodies_page(
            environment.name, drawing.page_data_fn(environment, states, fps, 2)
        )
        scene = json.loads(re.search(r'id="data">(.+?)</script>', page)[1])
        xs = [frame[0][0] for frame in scene["frames"]]
        assert np.allclose(np.diff(xs), 1.0) and scene["seconds"] == pytest.approx(seconds)
        assert scene["steps"] == [0, 2, 4] and len(scene["targets"]) == 3
        assert not re.search(r"https?://", page), "the page loads nothing"


def test_the_shapes_of_a_page_are_those_of_the_image(hopper):
    """Seen from the side, the capsules of the page end where those of the image end."""
    environment, state, _ = hopper
    poses = brax.body_poses(environment, state)
    model, places, turns = poses
    expected = [rod for _, *rod in bodies.project_capsules(poses, bodies.SIDE_VIEW)]
    shapes = bodies.body_shapes(model)
    assert len(shapes) == len(expected) > 3
    for shape, (start, end, radius, color) in zip(shapes, expected, strict=True):
        ends = [
            places[shape["body"]] + bodies.rotate_vector(turns[shape["body"]], np.asarray(point))
            for point in shape["points"]
        ]
        np.testing.assert_allclose(
            [bodies.SIDE_VIEW @ point for point in ends], [start, end], atol=2e-3
        )
        assert (shape["radius"], shape["color"]) == (radius, "#{:02x}{:02x}{:02x}".format(*color))


def test_a_box_has_its_eight_corners():
    mujoco = pytest.importorskip("mujoco")
    body = '<body><freejoint/><geom type="box" size=".1 .2 .3" pos="1 0 0" euler="0 0 90"/></body>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{body}</worldbody></mujoco>")
    (shape,) = bodies.body_shapes(model)
    assert shape["body"] == 0 and "radius" not in shape
    corners = np.asarray(shape["points"])
    np.testing.assert_allclose(corners.max(axis=0), [1.2, 0.1, 0.3], atol=1e-4)
    np.testing.assert_allclose(corners.min(axis=0), [0.8, -0.1, -0.3], atol=1e-4)


@needs_browser
def test_a_browser_animates_the_bodies(hopper, tmp_path):
    """It needs no network, prints nothing to the console, and moves the bodies between frames."""
    environment, state, _ = hopper
    path = tmp_path / "page.html"
    states = [body_at(state, 0.1 * i) for i in range(20)]
    data = find_drawing(environment).page_data_fn(environment, states, 10, 1)
    path.write_text(build_bodies_page(environment.name, data))
    pictures = []
    for number in (0, 12):
        elements = opened(path, tmp_path, 1000, at=f"#{number}").stdout
        assert (
            f'data-frame="{number}"' in elements
            and f"step {number}, {number / 10:.2f} s</output>" in elements
        )
        opened(path, tmp_path, 1000, tmp_path / f"{number}.png", f"#{number}")
        pictures.append(np.asarray(Image.open(tmp_path / f"{number}.png").convert("RGB"))[:500])
    for _, _, color in bodies.drawable_geoms(brax.body_poses(environment, state).model):
        assert all((picture == color).all(axis=-1).sum() > 100 for picture in pictures)
    assert (pictures[0] != pictures[1]).any(), "the bodies have moved"
