"""Tests of the Jumanji adapter: dynamics, time limits that truncate, and observations in parts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("jumanji")

import jumanji

from rollax.environments import default_arguments, make
from rollax.environments.suites.table import SUITES
from rollax.errors import UnknownNameError, UsageError
from rollax.spaces import Discrete, Grid, MultiDiscrete
from rollax.visualization.render.drawings import find_drawing

pytestmark = pytest.mark.usefixtures("as_free_with_keys_as_the_suite", "as_strict_as_the_suite")

KEY = jax.random.key


def ends(after: Any) -> tuple[bool, bool]:
    return bool(jnp.all(after.terminated)), bool(jnp.all(after.truncated))


def test_dynamics_equal_those_of_the_suite() -> None:
    env, suite = make("jumanji/Snake-v1"), jumanji.make("Snake-v1")
    state, obs = env.reset(KEY(0))
    raw, step = suite.reset(KEY(0))[0], jax.jit(suite.step)
    for time in range(4):
        action = int(np.argmax(obs["action_mask"]))
        raw, expected = step(raw, action)
        after = env.step(KEY(time), state, action)
        state, obs = after.state, after.obs
        np.testing.assert_array_equal(obs["grid"], expected.observation.grid)
        np.testing.assert_array_equal(obs["action_mask"], expected.observation.action_mask)
        assert float(after.reward) == float(expected.reward) and ends(after) == (False, False)
    np.testing.assert_allclose(obs["step_count"], 4 / 4000)
    assert env.time_limit == 4000


def test_the_start_position_of_a_tour_is_in_its_space() -> None:
    """The suite's position is -1 at the start, which its specification does not include."""
    env = make("jumanji/TSP-v1")
    state, obs = env.reset(KEY(0))
    assert (
        env.observation_space.spaces["position"] == Discrete(21)
        and int(state.suite_state.position) == -1
    )
    after = env.step(KEY(1), state, 4)
    assert [int(each["position"]) for each in (obs, after.obs)] == [0, 5]


def test_time_limits_truncate_and_collisions_terminate() -> None:
    """The suite has discount 0 for both. A collision in the last step is a termination."""
    env, suite = make("jumanji/Snake-v1", time_limit=1), jumanji.make("Snake-v1", time_limit=1)
    state, obs = env.reset(KEY(3))
    corner = state._replace(
        suite_state=state.suite_state.replace(
            head_position=type(state.suite_state.head_position)(jnp.int32(0), jnp.int32(0))
        )
    )
    corner = corner._replace(
        suite_state=corner.suite_state.replace(action_mask=jnp.asarray([False, True, True, False]))
    )
    assert ends(env.step(KEY(0), corner, 1)) == (False, True)
    assert float(suite.step(corner.suite_state, 1)[1].discount) == 0
    assert ends(env.step(KEY(0), corner, 0)) == (True, False)


def test_a_joint_action_is_one_number_in_row_major_order() -> None:
    env, suite = make("jumanji/Minesweeper-v0"), jumanji.make("Minesweeper-v0")
    assert env.action_space == Discrete(100) and env.joint_action_sizes == (10, 10)
    state, obs = env.reset(KEY(0))
    expected = suite.step(state.suite_state, jnp.asarray([3, 7]))[1].observation
    after = env.step(KEY(0), state, 37)
    np.testing.assert_array_equal(after.obs["board"][..., 0], expected.board + 1)
    assert obs["board"].shape == (10, 10, 1) and not obs["board"].any()
    assert obs["action_mask"].shape == (100,) and not after.obs["action_mask"][37]


def test_boards_and_masks_of_2048() -> None:
    env = make("jumanji/Game2048-v1")
    assert env.observation_space.spaces["board"] == Grid((4, 4), (18,)) and env.time_limit is None
    state, _ = env.reset(KEY(0))
    full = jnp.asarray([[1, 2, 1, 2], [2, 1, 2, 1], [1, 2, 1, 2], [2, 1, 2, 5]], jnp.int32)
    stuck = state._replace(
        suite_state=state.suite_state.replace(board=full, action_mask=jnp.zeros(4, bool))
    )
    after = env.step(KEY(0), stuck, 2)
    assert ends(after) == (True, False) and after.obs["action_mask"].all()
    assert float(after.info["highest_tile"]) == 32 and env.info_reductions == {
        "highest_tile": "last"
    }


def test_multi_agent_environments_have_an_agent_axis() -> None:
    env = make("jumanji/LevelBasedForaging-v0", num_agents=3, time_limit=2)
    state, obs = env.reset(KEY(0))
    assert env.num_agents == 3 and env.action_space == Discrete(6)
    assert (
        obs["agents_view"].shape[0] == 3
        and obs["action_mask"].shape == (3, 6)
        and obs["step_count"].shape == (3,)
    )
    for time in range(2):
        after = env.step(KEY(time), state, jnp.zeros(3, jnp.int32))
        state = after.state
        assert after.reward.shape == after.terminated.shape == (3,)
        assert ends(after) == (False, time == 1)


def test_each_part_of_a_factored_action_has_its_mask() -> None:
    env = make("jumanji/JobShop-v0", num_jobs=3, num_machines=2, max_num_ops=2, max_op_duration=2)
    assert env.action_space == MultiDiscrete((4, 4)) and env.observation_space.spaces[
        "action_mask"
    ].shape == (2, 4)


def test_arguments_are_those_of_constructors_and_generators() -> None:
    assert default_arguments("jumanji/Maze-v0") == {
        "num_rows": 10,
        "num_cols": 10,
        "time_limit": 100,
    }
    assert make("jumanji/Maze-v0", num_rows="5", num_cols=6).observation_space.spaces[
        "walls"
    ].shape == (5, 6)
    assert (
        default_arguments("jumanji/RubiksCube-partly-scrambled-v0")["num_scrambles_on_reset"] == 7
    )
    with pytest.raises(UnknownNameError, match="num_rows"):
        make("jumanji/Maze-v0", num_row=5)
    with pytest.raises(UsageError, match="at least 1"):
        make("jumanji/Maze-v0", time_limit=0)
    with pytest.raises(UsageError, match="downloads"):
        make("jumanji/Sokoban-v0")


def test_recorded_arrays_have_room_for_all_steps() -> None:
    """The generator of MMST receives the time limit, also if other arguments are given."""
    one, both = (make("jumanji/MMST-v0", time_limit=90, **more) for more in ({}, {"num_nodes": 30}))
    shapes = [
        jax.eval_shape(lambda e=env: e.reset(KEY(0))[0].suite_state.connected_nodes).shape
        for env in (one, both)
    ]
    assert shapes == [(3, 90)] * 2


def test_every_environment_of_the_suite_is_offered_or_explained() -> None:
    entry = SUITES["jumanji"]
    assert sorted((*entry.names, *entry.unavailable_reasons)) == sorted(
        jumanji.registered_environments()
    )


def test_the_drawing_is_that_of_the_suite() -> None:
    env = make("jumanji/Game2048-v1")
    state, obs = env.reset(KEY(0))
    picture = np.asarray(find_drawing(env).draw(env, state, obs))
    assert max(picture.shape) <= 400 and len(np.unique(picture.reshape(-1, 3), axis=0)) > 10
