"""Tests of the MuJoCo Playground adapter: dynamics, time limits, and physics as leaves."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("mujoco_playground")

from rollax.environments import default_arguments, list_environments, make
from rollax.environments.suites.playground import adapter
from rollax.errors import UnknownNameError, UsageError
from rollax.visualization.render.drawings import draw_episode, find_drawing

pytestmark = pytest.mark.usefixtures("as_free_with_keys_as_the_suite", "as_strict_as_the_suite")

KEY = jax.random.key


@pytest.fixture(scope="module")
def env() -> Any:
    """Return one environment for all tests, because compiling a step takes long."""
    return make("playground/PendulumSwingup", episode_length=3)


def test_dynamics_equal_those_of_the_suite_with_a_time_limit(env: Any) -> None:
    state, obs = env.reset(KEY(0))
    raw, step = env.dynamics.reset(KEY(0)), jax.jit(env.dynamics.step)
    np.testing.assert_allclose(obs, raw.obs, atol=1e-5)
    for time in range(3):
        before = jax.tree.map(np.asarray, state.suite_state.metrics)
        after = env.step(KEY(time), state, jnp.ones(1))
        jax.tree.map(
            np.testing.assert_array_equal,
            before,
            jax.tree.map(np.asarray, state.suite_state.metrics),
        )
        raw = step(raw, jnp.ones(1))
        np.testing.assert_allclose(after.obs, raw.obs, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(after.reward, raw.reward, rtol=1e-4, atol=1e-5)
        assert not after.terminated and bool(after.truncated) == (time == 2)
        state = after.state


def test_a_nonfinite_simulation_terminates_with_finite_values(env: Any) -> None:
    """Its observation is the last finite one, also in later steps."""
    state, obs = env.reset(KEY(0))
    broken = state.suite_state.data.replace(
        qvel=jnp.full_like(state.suite_state.data.qvel, jnp.nan)
    )
    state = state._replace(suite_state=state.suite_state.replace(data=broken))
    for _ in range(2):
        after = env.step(KEY(0), state, jnp.ones(1))
        assert (
            after.terminated
            and not after.truncated
            and after.reward == 0
            and not any(after.info.values())
        )
        np.testing.assert_array_equal(after.obs, obs)
        state = after.state


def test_physics_are_leaves(env: Any) -> None:
    """Without gravity, a tilted pendulum does not fall. One program computes both."""
    state, _ = env.reset(KEY(3))
    weightless = eqx.tree_at(lambda e: e.physics["gravity"], env, jnp.zeros(3))
    falls, floats = (
        world.step(KEY(0), state, jnp.zeros(1)).state.suite_state.data.qvel
        for world in (env, weightless)
    )
    assert abs(float(falls[0] - floats[0])) > 1e-3


@pytest.mark.quick
def test_arguments_and_mistakes() -> None:
    found = default_arguments("playground/WalkerWalk")
    assert found["impl"] == "jax" and found["episode_length"] == 1000 and "vision" not in found
    with pytest.raises(UsageError, match="must be jax"):
        make("playground/PendulumSwingup", impl="c")
    with pytest.raises(UsageError, match="at least 1"):
        make("playground/PendulumSwingup", episode_length=0)
    with pytest.raises(UnknownNameError, match="episode_length"):
        make("playground/PendulumSwingup", episode_lengths=3)
    with pytest.raises(UsageError, match="repository of robot models"):
        make("playground/Go1Getup")


def test_every_task_of_the_control_suite_is_offered() -> None:
    assert sorted(list_environments("playground")) == sorted(
        f"playground/{name}" for name in adapter.suite.ALL_ENVS
    )


def test_privileged_states_are_for_critics() -> None:
    assert adapter._observe({"state": 1, "privileged_state": 2}) == {"state": 1, "global_state": 2}


def test_the_drawing_shows_the_pendulum(env: Any) -> None:
    state, obs = env.reset(KEY(0))
    picture = np.asarray(draw_episode(find_drawing(env), env, [state], [obs])[0])
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 3
