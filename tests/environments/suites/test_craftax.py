"""Tests of the Craftax adapter: dynamics, ends, and achievements by name."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("craftax")

from rollax.environments import default_arguments, make
from rollax.environments.suites.craftax import adapter
from rollax.errors import UnknownNameError, UsageError
from rollax.visualization.render.drawings import find_drawing

pytestmark = pytest.mark.usefixtures("as_free_with_keys_as_the_suite", "as_strict_as_the_suite")

KEY = jax.random.key


@pytest.fixture(scope="module")
def env() -> Any:
    """Return one environment for all tests, because compiling a step takes long."""
    return make("craftax/Craftax-Classic-Symbolic-v1", max_timesteps=50)


@pytest.fixture(scope="module")
def start(env: Any) -> Any:
    return env.reset(KEY(0))[0]


def test_dynamics_equal_those_of_the_suite(env: Any, start: Any) -> None:
    """Reward and observation are those of a step without a reset and without a time limit."""
    params = env.dynamics.default_params
    state, raw = start, env.dynamics.reset_env(KEY(0), params)[1]
    step = jax.jit(lambda key, state, action: env.dynamics.step_env(key, state, action, params)[:4])
    for time, action in enumerate((1, 3, 5, 5)):
        obs, raw, reward, done = step(KEY(time), raw, jnp.asarray(action))
        after = env.step(KEY(time), state, action)
        state = after.state
        np.testing.assert_allclose(after.obs, obs, atol=1e-6)
        np.testing.assert_allclose(after.reward, reward, atol=1e-6)
        assert not done and not after.terminated and not after.truncated
    assert after.obs.shape == env.observation_space.shape and env.action_space.n == 17


def test_time_limits_truncate_and_death_terminates(env: Any, start: Any) -> None:
    """The suite has one `done` for both. Death in the last step is a termination."""

    def ends(**changes: Any) -> tuple[bool, bool]:
        state = start.replace(
            **{
                name: jnp.asarray(value, getattr(start, name).dtype)
                for name, value in changes.items()
            }
        )
        after = env.step(KEY(3), state, 0)
        return bool(after.terminated), bool(after.truncated)

    late, dead = {"timestep": env.time_limit - 1}, {"player_health": -1, "player_food": 0}
    assert ends() == (False, False)
    assert ends(**late) == (False, True)
    assert ends(**dead) == ends(**dead, **late) == (True, False)
    assert ends(timestep=10_000_000) == (False, True)


def test_achievements_are_reported_by_name(env: Any, start: Any) -> None:
    state = start.replace(
        inventory=start.inventory.replace(sapling=jnp.ones_like(start.inventory.sapling))
    )
    action = adapter._import_suite_module("Craftax-Classic", "constants").Action.PLACE_PLANT.value
    ways = [
        jnp.full_like(state.player_direction, way) for way in (1, 2, 3, 4)
    ]  # at least one of them is towards grass
    facing_grass = [env.step(KEY(9), state.replace(player_direction=way), action) for way in ways]
    planted = next(after for after in facing_grass if after.reward > 0.5)
    assert (
        float(planted.info["achievements"]) == 1 == float(planted.info["achievements/place_plant"])
    )
    assert float(planted.info["achievements/eat_cow"]) == 0
    np.testing.assert_allclose(planted.info["score_percent"], 100 * planted.reward / 22)
    again = env.step(KEY(10), planted.state, 0)
    assert float(again.info["achievements/place_plant"]) == 1
    assert (
        env.info_reductions["achievements/place_plant"] == "last"
        and env.info_reductions["score_percent"] == "sum"
    )


def test_numbers_of_achievements_are_those_of_the_papers() -> None:
    """Matthews et al. 2024 have 67 achievements with a sum of 226. Crafter has 22, worth 1 each."""
    names, largest = adapter._load_achievements("Craftax-Symbolic-v1")
    assert (len(names), largest) == (67, 226.0)
    names, largest = adapter._load_achievements("Craftax-Classic-Pixels-v1")
    assert (len(names), largest) == (22, 22.0)


@pytest.mark.quick
def test_arguments_and_mistakes() -> None:
    found = default_arguments("craftax/Craftax-Classic-Symbolic-v1")
    assert (
        found["max_timesteps"] == 10_000
        and found["max_zombies"] == 3
        and "fractal_noise_angles" not in found
    )
    assert default_arguments("craftax/Craftax-Symbolic-v1")["max_timesteps"] == 100_000
    with pytest.raises(UnknownNameError, match="zombie_health"):
        make("craftax/Craftax-Classic-Symbolic-v1", zombi_health=3)
    with pytest.raises(UsageError, match="at least 1"):
        make("craftax/Craftax-Classic-Symbolic-v1", max_timesteps=0)


def test_the_drawing_is_that_of_the_suite(env: Any, start: Any) -> None:
    drawing = find_drawing(env)
    picture = np.asarray(drawing.draw(env, start, None))
    assert (
        picture.shape == (9 * 32, 9 * 32, 3) and len(np.unique(picture.reshape(-1, 3), axis=0)) > 20
    )
    assert drawing.action_names[5] == "do" and len(drawing.action_names) == 43
