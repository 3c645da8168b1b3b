"""Tests of the frames of AURORA.

Frames are observations after steps at equal distances, including the last step.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.acting.scoring import ScoringOptions, make_scorer, select_frames
from rollax.environments.environment import Transition
from rollax.networks.solutions import PolicyConfig, make_solution
from rollax.spaces import Box


class Counter:
    """Environment that observes the number of steps taken and ends after `length` steps.

    The observation before the first step is 100. Without a `length`, each episode samples one from
    3 to 9 steps. The descriptor is the length.
    """

    name, num_agents, time_limit = "test/counter", None, 12
    observation_space, action_space = Box(0.0, 100.0, (1,)), Box(-1.0, 1.0, (1,))
    descriptor_space, descriptor_extraction = Box(0.0, 12.0, (1,)), "final"

    def __init__(self, length: int | None) -> None:
        self.length = length

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        length = (
            jax.random.randint(key, (), 3, 10) if self.length is None else jnp.asarray(self.length)
        )
        return (jnp.zeros((), jnp.int32), length), jnp.full(1, 100.0)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Transition:
        time, length = state[0] + 1, state[1]
        obs = time.astype(jnp.float32)[None]
        return Transition(
            (time, length), obs, jnp.zeros(()), time >= length, jnp.zeros((), bool), {}
        )

    def descriptor(self, state: Any) -> jax.Array:
        return state[1].astype(jnp.float32)[None]


def score(length: int | None, num_frames: int, num_episodes: int = 1, number: int = 1) -> Any:
    world: Any = Counter(length)
    policies = jax.vmap(lambda key: make_solution(world, PolicyConfig(hidden=(4,)), key))(
        jax.random.split(jax.random.key(0), number)
    )
    return jax.jit(make_scorer(world, num_episodes, 12, ScoringOptions(num_frames=num_frames)))(
        policies, jax.random.key(1)
    )


@pytest.mark.parametrize(
    ("length", "num_frames", "expected"),
    [
        (
            5,
            5,
            [1, 2, 3, 4, 5],
        ),  # The last observation is the one after the last step. The start is not included.
        (10, 5, [2, 4, 6, 8, 10]),
        (12, 1, [12]),
        (7, 3, [2, 5, 7]),
        (2, 5, [1, 1, 1, 2, 2]),  # shorter than the number of frames
        (1, 3, [1, 1, 1]),
    ],
)
def test_frames_are_observations_after_steps(
    length: int, num_frames: int, expected: list[int]
) -> None:
    np.testing.assert_array_equal(score(length, num_frames).extras, [expected])


@pytest.mark.quick
def test_each_episode_has_frames_of_its_own_length() -> None:
    """Episodes of one batch differ in length, and each has its own last observation as a frame."""
    found = score(None, 4, number=30)
    length = np.asarray(found.descriptor[:, 0])
    assert len(set(length.tolist())) > 3
    expected = np.maximum(np.floor(np.arange(1, 5)[None] * length[:, None] / 4 + 0.5), 1)
    np.testing.assert_array_equal(found.extras, expected)


def test_frames_of_several_episodes_are_averaged() -> None:
    found = score(None, 1, num_episodes=6, number=5)
    np.testing.assert_allclose(found.extras, found.descriptor, rtol=1e-6)
    assert len(set(np.asarray(found.extras)[:, 0].tolist())) > 1


def test_frames_are_at_equal_distances() -> None:
    """For every length, distances between frames differ by at most one step.

    The last step is included.
    """
    length = np.arange(1, 41)
    rows = np.broadcast_to(np.arange(1.0, 41.0)[:, None, None], (40, 40, 1))
    for num_frames in range(1, 12):
        steps = np.asarray(select_frames(jnp.asarray(rows), jnp.asarray(length), num_frames))
        np.testing.assert_array_equal(steps[:, -1], length)
        gaps = np.diff(steps, axis=1, prepend=0)[length >= num_frames]
        assert gaps.min() >= 1 and np.all(gaps.max(axis=1) - gaps.min(axis=1) <= 1)
