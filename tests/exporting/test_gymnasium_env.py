"""Tests of environments of rollax as Gymnasium environments."""

import importlib.util

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import rollax
from rollax import spaces
from rollax.exporting.gymnasium_env import to_gymnasium_space, to_rollax_action

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    "name", ["gymnax/CartPole-v1", "memory/repeat-previous", "jumanji/Snake-v1"]
)
def test_the_checker_of_gymnasium_passes(name: str) -> None:
    """The observations are a box, an integer, and a dictionary with an action mask."""
    env = rollax.to_gymnasium(name, render_mode="rgb_array")
    check_env(env, skip_render_check=True)  # it would make the environment by its registered id
    picture = env.render()
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3


def test_episodes_equal_those_of_the_environment() -> None:
    """The same keys give the same observations, rewards and ends. A seed repeats them."""
    environment = rollax.make("gymnax/CartPole-v1")
    env = rollax.to_gymnasium(environment)
    obs, _ = env.reset(seed=7)
    key = jax.random.key(int(np.random.default_rng(np.random.SeedSequence(7)).integers(2**31)))
    key, reset_key = jax.random.split(key)
    state, expected = environment.reset(reset_key)
    np.testing.assert_array_equal(obs, expected)
    for time in range(200):
        key, step_key = jax.random.split(key)
        step = environment.step(step_key, state, time % 2)
        obs, reward, terminated, truncated, info = env.step(time % 2)
        state = step.state
        np.testing.assert_allclose(obs, step.obs, rtol=1e-5, atol=1e-5)
        assert (reward, terminated, truncated) == (
            float(step.reward),
            bool(step.terminated),
            bool(step.truncated),
        )
        assert info.keys() == step.info.keys()
        if terminated or truncated:
            break
    assert terminated and time < 199
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step(0)
    first, second = env.reset(seed=7)[0], env.reset()[0]
    assert not np.array_equal(first, second)


def test_action_masks() -> None:
    env = rollax.to_gymnasium("jumanji/Snake-v1")
    with pytest.raises(rollax.UsageError, match="no action mask"):
        env.action_masks()
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(env.action_masks(), obs["action_mask"].astype(bool))
    with pytest.raises(rollax.UsageError, match="CartPole-v1 has no action mask"):
        rollax.to_gymnasium("gymnax/CartPole-v1").action_masks()


def test_spaces_are_converted() -> None:
    box = to_gymnasium_space(spaces.Box((0, -1), np.inf, (2,)))
    assert box == gymnasium.spaces.Box(np.array([0, -1], np.float32), np.inf, (2,), np.float32)
    assert to_gymnasium_space(spaces.Box(0, 1, (3,), "bool")) == gymnasium.spaces.MultiBinary((3,))
    assert to_gymnasium_space(spaces.MultiDiscrete((2, 3))) == gymnasium.spaces.MultiDiscrete(
        [2, 3]
    )
    grid = to_gymnasium_space(spaces.Grid((2, 2), (5, 3)))
    assert grid.dtype == np.uint8 and grid.high[1, 1].tolist() == [4, 2]
    ball = spaces.Ball(2, radius=2.0)
    assert to_gymnasium_space(ball).high.tolist() == [2.0, 2.0]
    np.testing.assert_allclose(to_rollax_action(ball, np.array([3.0, 4.0])), [1.2, 1.6], rtol=1e-6)
    np.testing.assert_allclose(to_rollax_action(ball, np.array([0.0, 0.5])), [0.0, 0.5])


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ("hunting/2-players", "has 2 agents"),
        ("gymnasium/CartPole-v1", "already runs on the host"),
        ("task/arm", "scores solutions without episodes"),
        ("gymnax/CartPole-v2", "did you mean gymnax/CartPole-v1"),
        (3, "environment"),
    ],
)
def test_unsupported_environments_are_refused(environment: object, text: str) -> None:
    with pytest.raises(rollax.UsageError, match=text):
        rollax.to_gymnasium(environment)  # pyright: ignore[reportArgumentType]


def test_render_mode_and_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        rollax.UsageError, match=r"render_mode \('human'\) must be rgb_array or None"
    ):
        rollax.to_gymnasium("gymnax/CartPole-v1", render_mode="human")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(rollax.UsageError, match="gymnasium is not installed. Run: "):
        rollax.to_gymnasium("gymnax/CartPole-v1")
