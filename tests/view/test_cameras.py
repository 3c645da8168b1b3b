"""Views hold still: one for an episode, or a smooth path along the ground."""

import base64
import json
import re
import zlib
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import rollax
from rollax.view import agents, bodies, draw
from rollax.view.following import followed
from rollax.view.scene import HEIGHT, WIDTH, framing

SIDE = np.asarray([[1.0, 0.0], [0.0, 0.0]])
ROOM = np.asarray([0.8, 0.5])


def gait(steps, speed, jitter):
    """A body that goes to the right and rocks as it goes."""
    time = np.arange(steps)
    return np.stack([speed * time + jitter * np.sin(time), np.zeros(steps)], axis=1)


def test_what_does_not_go_far_is_seen_from_one_place():
    path = gait(300, 0.002, 0.2)
    looked_at = followed(path, SIDE, ROOM)
    assert np.all(looked_at == looked_at[0]) and np.all(np.abs(path - looked_at)[:, 0] <= ROOM[0])


def test_what_goes_far_is_followed_without_its_rocking():
    path = gait(300, 0.05, 0.2)
    looked_at = followed(path, SIDE, ROOM)
    away, shaken = np.abs(path - looked_at)[:, 0], np.abs(np.diff(looked_at[:, 0], 2))
    assert away.max() <= ROOM[0] and np.all(np.diff(looked_at[:, 0]) >= 0)
    assert shaken.max() < 0.01 * np.abs(np.diff(path[:, 0], 2)).max()


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_short_episodes_and_numbers_that_are_not_finite_have_a_camera(steps):
    path = gait(steps, 5.0, 0.1)
    path[0] = np.nan
    assert followed(path, SIDE, ROOM).shape == (steps, 2) and np.isfinite(followed(path, SIDE, ROOM)).all()


def test_a_frame_has_all_of_a_box():
    camera = framing([-3, 0], [5, 1])
    assert camera.center == (1.0, 0.5) and camera.unit == pytest.approx(0.9 * WIDTH / 8)
    assert framing([0, 0], [1, 4]).unit == pytest.approx(0.9 * HEIGHT / 4)


def test_particles_stay_in_one_picture():
    """Whatever their places over time, all are seen from one camera."""
    places = np.random.default_rng(0).normal(scale=3, size=(20, 3, 2))
    environment = SimpleNamespace(dynamics=SimpleNamespace(rad=np.asarray([0.1, 0.2, 0.1])))
    cameras = agents.particle_cameras(environment, [SimpleNamespace(p_pos=each) for each in places])
    assert len(cameras) == 20 and set(cameras) == {cameras[0]}
    across, upwards = np.abs((places - cameras[0].center) * cameras[0].unit).reshape(-1, 2).max(axis=0)
    assert across < WIDTH / 2 and upwards < HEIGHT / 2


def body_at(state, x):
    """A state of brax, moved along the ground."""
    links = state.raw.pipeline_state.x
    moved = links.replace(pos=np.asarray(links.pos) + np.asarray([x, 0.0, 0.0], np.float32))
    return state._replace(raw=state.raw.replace(pipeline_state=state.raw.pipeline_state.replace(x=moved)))


@pytest.fixture(scope="module")
def hopper():
    with jax.numpy_rank_promotion("allow"):
        environment = rollax.make("brax/hopper")
        state, obs = jax.device_get(environment.reset(jax.random.key(0)))
    return environment, state, obs


def test_the_ground_moves_by_as_much_as_the_body_goes(hopper):
    environment, state, obs = hopper
    drawing = draw.drawing_of(environment)
    still = drawing.drawn(environment, [body_at(state, x) for x in (0.0, 0.1)], [obs, obs])
    ground = [np.asarray(image)[250:] for image in still]  # beneath the feet
    assert np.array_equal(*ground) and still[0].tobytes() != still[1].tobytes()
    states = [body_at(state, 0.1 * i) for i in range(100)]
    places = np.asarray(bodies.cameras(environment, states))[:, 0]
    assert np.all(np.diff(places) >= 0) and places[-1] - places[0] > 8


def test_a_page_has_every_state_and_the_time_between_them(hopper):
    environment, state, _ = hopper
    states = [body_at(state, x) for x in (0.0, 1.0, 2.0)]
    drawing = draw.drawing_of(environment)
    for fps, seconds in ((None, 2 * environment.dynamics.dt), (10, 0.1)):
        page = drawing.page(environment, states, fps, 2)
        packed = re.search(r'var system = "([^"]+)"', page)[1]
        system = json.loads(zlib.decompress(base64.b64decode(packed)))
        xs = [each["pos"][0][0] for each in system["states"]["x"]]
        assert np.allclose(np.diff(xs), 1.0) and system["opt"]["timestep"] == pytest.approx(seconds)
