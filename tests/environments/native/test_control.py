"""Tests of the point maze: walls, the deceptive direct path and the path around the cup."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollax.acting.streams import init_actor
from rollax.environments import make
from rollax.environments.environment import Transition
from rollax.environments.native.control.point_maze import GOAL, WALLS, MazeState, PointMaze
from rollax.errors import UsageError
from streaming import advance

ROUND = np.asarray([(0.12, 0.3), (0.12, 0.75), GOAL])  # corners of a path on the left of the cup


def at(x: float, y: float, time: int = 0) -> MazeState:
    return MazeState(jnp.asarray([x, y], jnp.float32), jnp.asarray(time, jnp.int32))


def towards(place: jax.Array, target: jax.Array) -> jax.Array:
    """Return the action that leads straight to the target at full speed."""
    way = (target - place) / 0.05
    return way / jnp.maximum(jnp.max(jnp.abs(way)), 1.0)


def walk(env: Any, targets: np.ndarray, steps: int = 100) -> Transition:
    """Move straight to each target in turn, `[N, 2]`.

    Leaves of the result have shape `[steps, ...]`.
    """
    targets = jnp.asarray(targets, jnp.float32)

    def step(
        carry: tuple[MazeState, jax.Array], key: jax.Array
    ) -> tuple[tuple[MazeState, jax.Array], Transition]:
        state, index = carry
        after = env.step(key, state, towards(state.position, targets[index]))
        is_there = jnp.max(jnp.abs(after.state.position - targets[index])) < 1e-3
        return (after.state, jnp.minimum(index + is_there, len(targets) - 1)), after

    start = env.reset(jax.random.key(0))[0], jnp.zeros((), jnp.int32)
    return jax.jit(lambda keys: jax.lax.scan(step, start, keys)[1])(
        jax.random.split(jax.random.key(1), steps)
    )


def test_the_direct_path_to_the_goal_ends_in_the_cup() -> None:
    told = walk(make("control/point-maze"), np.asarray([GOAL]))
    assert not told.terminated.any() and float(told.info["reached"].sum()) == 0
    np.testing.assert_array_equal(told.truncated, np.arange(1, 101) == 100)
    # It soon stays at the bottom of the cup, at 0.85 - 0.56 from the goal.
    np.testing.assert_allclose(
        told.state.position[30:], np.broadcast_to([0.5, 0.56], (70, 2)), atol=1e-3
    )
    np.testing.assert_allclose(told.reward[30:], -0.29, atol=1e-6)


def test_the_path_around_the_cup_reaches_the_goal() -> None:
    env = make("control/point-maze")
    told = walk(env, ROUND)
    length = int(np.argmax(told.terminated)) + 1
    # 0.38 to the left, 0.45 up and back to the goal's circle, at 0.05 per step. The direct path
    # would take 12 steps.
    assert length in (22, 23, 24)
    free = eqx.tree_at(lambda e: e.walls, env, env.walls + 1.0)
    assert int(np.argmax(walk(free, np.asarray([GOAL])).terminated)) + 1 in (12, 13)
    assert (
        float(told.info["reached"][length - 1]) == 1
        and float(told.info["reached"][: length - 1].sum()) == 0
    )
    assert not told.truncated[:length].any()
    stuck = walk(env, np.asarray([GOAL]))
    # The path around the cup has the higher return over an episode and the lower one over its
    # start.
    assert told.reward[:length].sum() > stuck.reward.sum()
    assert told.reward[:15].sum() < stuck.reward[:15].sum()


def test_rewards_are_distances_or_sparse() -> None:
    """Six steps of 0.05 lead right from (0.1, 0.85). The sixth enters the circle of radius 0.1."""
    for reward, expected in (
        ("distance", -(0.4 - 0.05 * np.arange(1, 7))),
        ("sparse", np.eye(6)[5]),
    ):
        env = make("control/point-maze", reward=reward)
        state, rewards, ends = at(0.1, 0.85), [], []
        for key in jax.random.split(jax.random.key(0), 6):
            told = env.step(key, state, jnp.asarray([1.0, 0.0]))
            state = told.state
            rewards.append(float(told.reward))
            ends.append(bool(told.terminated))
        np.testing.assert_allclose(rewards, expected, atol=1e-5)
        assert ends == [False] * 5 + [True]


def crosses(before: np.ndarray, after: np.ndarray) -> bool:
    """Return whether a move along x and then y enters a wall, by exact intervals."""
    for left, bottom, right, top in np.asarray(WALLS, np.float32):
        along_x = (
            bottom < before[1] < top
            and max(before[0], after[0]) > left
            and min(before[0], after[0]) < right
        )
        along_y = (
            left < after[0] < right
            and max(before[1], after[1]) > bottom
            and min(before[1], after[1]) < top
        )
        if along_x or along_y:
            return True
    return False


numbers = st.floats(-1, 1, width=32) | st.sampled_from([-1.0, 0.0, 1.0])
MOVE = jax.jit(lambda env, place, shift: env.move(place, shift))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12),
    st.sampled_from([0.01, 0.05, 0.3, 1.0]),
)
def test_walls_are_never_crossed(actions: list[tuple[float, float]], step_size: float) -> None:
    """This holds for all actions and step sizes, also along faces and into corners."""
    env = PointMaze()
    place = env.reset(jax.random.key(len(actions)))[0].position
    for action in actions:
        after = MOVE(env, place, step_size * jnp.asarray(action, jnp.float32))
        assert not crosses(np.asarray(place), np.asarray(after))
        assert (after >= 0).all() and (after <= 1).all()
        place = after


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8))
def test_the_cup_is_left_at_its_open_side_only(actions: list[tuple[float, float]]) -> None:
    """A point inside that stays above the rim remains inside, also at the seams of the walls."""
    env = PointMaze()
    place = jnp.asarray([0.5, 0.56], jnp.float32)
    for action in actions:
        shift = jnp.asarray(action, jnp.float32)
        after = MOVE(env, place, shift)
        if float(after[1]) <= 0.35:
            return
        assert 0.26 - 1e-6 <= float(after[0]) <= 0.74 + 1e-6 and float(after[1]) <= 0.56 + 1e-6
        place = after


def test_moves_slide_along_walls() -> None:
    env = make("control/point-maze")
    after = env.step(jax.random.key(0), at(0.5, 0.55), jnp.asarray([0.6, 1.0])).state
    np.testing.assert_allclose(after.position, [0.53, 0.56], atol=1e-6)
    after = env.step(jax.random.key(0), at(0.99, 0.02), jnp.asarray([1.0, -1.0])).state
    np.testing.assert_allclose(after.position, [1.0, 0.0], atol=1e-6)
    # Free moves are not changed, and actions beyond the bounds are clipped to them.
    after = env.step(jax.random.key(0), at(0.1, 0.1), jnp.asarray([0.5, 7.0])).state
    np.testing.assert_allclose(after.position, [0.125, 0.15], atol=1e-6)


def test_the_time_limit_truncates_with_the_true_last_observation() -> None:
    env = make("control/point-maze", time_limit=2, start_spread=0.0)
    actor = init_actor(env, jax.random.key(0), 1, ())
    for key in jax.random.split(jax.random.key(1), 2):
        actor, told, _ = advance(env, actor, jnp.asarray([[1.0, 0.0]]), key[None])
    assert bool(told.truncated[0]) and not bool(told.terminated[0])
    np.testing.assert_allclose(told.next_obs[0], [0.2, -0.7, -0.1, 0.7], atol=1e-6)
    np.testing.assert_allclose(actor.obs[0], [0.0, -0.7, 0.0, 0.7], atol=1e-6)


def test_time_can_be_observed() -> None:
    env = make("control/point-maze", time_limit=4, start_spread=0.0, observe_time=True)
    assert env.observation_space.shape == (5,)
    told = walk(env, np.asarray([[0.9, 0.15]]), steps=4)
    np.testing.assert_allclose(told.obs[:, 4], [-0.5, 0.0, 0.5, 1.0])
    np.testing.assert_allclose(told.obs[:, :2], [[0.1 * t, -0.7] for t in range(1, 5)], atol=1e-6)
    np.testing.assert_allclose(env.reset(jax.random.key(0))[1][4], -1.0)


def test_reaching_the_goal_in_the_last_step_terminates() -> None:
    told = make("control/point-maze").step(
        jax.random.key(0), at(0.5, 0.76, time=99), jnp.asarray([0.0, 1.0])
    )
    assert bool(told.terminated) and not bool(told.truncated)


def test_the_descriptor_is_the_position() -> None:
    env = make("control/point-maze")
    described = env.descriptor(at(0.25, 1.0))
    assert described.dtype == jnp.float32
    np.testing.assert_array_equal(described, [0.25, 1.0])


def test_walls_and_goal_are_leaves() -> None:
    """With other walls and another goal, the direct path is free."""
    env = PointMaze(start_spread=0.0)
    free = eqx.tree_at(
        lambda e: (e.walls, e.goal), env, (env.walls + 1.0, jnp.asarray([0.9, 0.15]))
    )
    told = walk(free, np.asarray([[0.9, 0.15]]), steps=6)
    np.testing.assert_allclose(told.reward, -(0.4 - 0.05 * np.arange(1, 7)), atol=1e-5)
    np.testing.assert_array_equal(told.terminated, np.arange(1, 7) == 6)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"reward": "dense"}, "must be one of distance, sparse"),
        ({"time_limit": 0}, r"time_limit \(0\) must be at least 1"),
        ({"step_size": -1.0}, r"step_size \(-1.0\) must be between 0 and 1"),
        ({"start_spread": 0.2}, r"start_spread \(0.2\) must be between 0 and 0.15"),
    ],
)
def test_invalid_arguments_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make("control/point-maze", **given)
