"""Demonstrations: checks of their arrays, and their steps as values of an environment's spaces."""

from typing import Any

import numpy as np
import pytest

from laws.walk import Walk
from rollax import Demonstrations, UsageError, make
from rollax.replay.demonstrations import describe_values_out_of_bounds
from rollax.spaces import Ball, Box, Dict, Discrete, Tuple
from support.demonstrations import random_demonstrations


def changed(**arrays: Any) -> dict[str, Any]:
    return random_demonstrations(Walk()).arrays | arrays


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "must have the array actions, got none"),
        (changed(extra=np.zeros(18)), "got 'extra'"),
        (changed(**{"rewards/a": np.zeros(18)}), "got 'rewards'"),
        (changed(rewards=np.zeros(17)), r"rewards must have 18 rows"),
        (changed(final_observations=np.zeros((4, 3))), "must have 5 rows, the number of episodes"),
        (changed(episode_lengths=np.zeros(5)), "must be a list of positive integers"),
        (changed(episode_lengths=np.array([18])), "must have 1 rows"),
        (changed(observations=np.full((18, 3), np.nan)), "must be finite"),
        (changed(observations=np.array(["a"] * 18)), "must be an array of numbers"),
        (changed(terminated=np.zeros((18, 2), bool)), "must have the shape of rewards"),
        (changed(terminated=np.full(18, 0.5)), "terminated must be 0 or 1, got float64"),
        (changed(truncated=np.full(18, -1)), "truncated must be 0 or 1, got int64"),
        (changed(rewards=np.full(18, 1e300)), "rewards must be float32 values"),
        (
            changed(episode_lengths=np.array([5.5, 1, 4, 6, 2])),
            "episode_lengths must be int64 values, got float64 values from 1 to 6",
        ),
        (changed(terminated=np.ones(18, bool)), "Step 0 is marked as the end of an episode"),
    ],
)
def test_arrays_are_checked(arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Demonstrations(arrays)


def test_starts_returns_and_selection() -> None:
    data = random_demonstrations(Walk())
    assert data.starts.tolist() == [0, 5, 6, 10, 16] and data.num_episodes == 5
    np.testing.assert_allclose(data.returns[1], data.arrays["rewards"][5], rtol=1e-6)
    chosen = data.select([3, 0])
    assert chosen.lengths.tolist() == [6, 5]
    np.testing.assert_array_equal(chosen.returns, data.returns[[3, 0]])
    assert chosen.digest() != data.digest() == random_demonstrations(Walk()).digest()
    for wrong in ([], [5], "a"):
        with pytest.raises(UsageError, match="episodes must"):
            data.select(wrong)  # pyright: ignore[reportArgumentType]


def test_the_next_observation_at_the_end_of_an_episode_is_the_final_one() -> None:
    data, env = random_demonstrations(Walk()), Walk()
    steps = data.to_steps(env.observation_space, env.action_space, None)
    np.testing.assert_array_equal(steps.next_obs[:4], steps.obs[1:5])
    np.testing.assert_array_equal(steps.next_obs[4], data.arrays["final_observations"][0])
    np.testing.assert_array_equal(steps.next_obs[5], data.arrays["final_observations"][1])
    np.testing.assert_array_equal(np.flatnonzero(steps.reset), data.starts)


def test_an_episode_without_an_end_counts_as_truncated() -> None:
    flags = np.zeros(18, bool)
    data, env = Demonstrations(changed(terminated=flags, truncated=flags)), Walk()
    steps = data.to_steps(env.observation_space, env.action_space, None)
    np.testing.assert_array_equal(np.flatnonzero(steps.truncated), data.starts + data.lengths - 1)


def test_agents_follow_each_other_without_steps_after_their_end() -> None:
    env = Walk(agents=2)
    data = random_demonstrations(env, (3, 2))
    data.arrays["terminated"][1:3, 1] = True  # the second agent ends one step earlier
    steps = data.to_steps(env.observation_space, env.action_space, 2)
    obs = data.arrays["observations"]
    np.testing.assert_array_equal(steps.obs, np.concatenate([obs[:, 0], obs[[0, 1, 3, 4], 1]]))
    np.testing.assert_array_equal(np.flatnonzero(steps.reset), [0, 3, 5, 7])


class Parts(Walk):
    """Environment whose observations and actions have parts."""

    observation_space = Dict(
        {"place": Box(-1, 1, (2,)), "inner": Dict({"door": Discrete(3)})}  # pyright: ignore
    )

    @property
    def action_space(self) -> Any:
        return Tuple((Discrete(2), Box(-1.0, 1.0, (1,))))


def test_parts_of_spaces_have_their_own_arrays() -> None:
    env: Any = Parts()
    data = random_demonstrations(env)
    assert {"observations/inner/door", "actions/0", "actions/1"} <= set(data.arrays)
    steps = data.to_steps(env.observation_space, env.action_space, None)
    np.testing.assert_array_equal(steps.action[0], data.arrays["actions/0"])
    np.testing.assert_array_equal(
        steps.obs["inner"]["door"], data.arrays["observations/inner/door"]
    )


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (make("gymnax/CartPole-v1"), r"observations must have the shape \['N', 4\]"),
        (Walk(agents=2), r"observations must have the shape \['N', 2, 3\]"),
        (Walk(continuous=True), r"actions must have the shape \['N', 3\]"),
        (Parts(), "must have the arrays observations/inner/door, observations/place"),
    ],
)
def test_demonstrations_of_another_environment_are_refused(environment: Any, message: str) -> None:
    data = random_demonstrations(Walk())
    with pytest.raises(UsageError, match=message):
        data.to_steps(
            environment.observation_space, environment.action_space, environment.num_agents
        )


@pytest.mark.parametrize("values", [np.full(18, 3), np.full(18, -1)])
def test_actions_out_of_bounds_are_refused(values: np.ndarray) -> None:
    env = Walk()
    with pytest.raises(UsageError, match="actions must be within Discrete"):
        Demonstrations(changed(actions=values)).to_steps(
            env.observation_space, env.action_space, None
        )


@pytest.mark.parametrize(
    ("values", "space", "message"),
    [
        (300, Box(0, 255, (2,), "uint8"), "observations must be uint8 values, got int64"),
        (-1.0, Box(0, 255, (2,), "uint8"), "observations must be uint8 values, got float64"),
        (1e300, Box(-1e30, 1e30, (2,)), "observations must be float32 values"),
        (7, Box(0, 1, (2,), "bool"), "observations must be 0 or 1"),
    ],
)
def test_observations_are_not_changed_without_an_error(
    values: float, space: Box, message: str
) -> None:
    """No value overflows in the dtype of the space."""
    data = Demonstrations(
        changed(
            observations=np.full((18, 2), values), final_observations=np.zeros((5, 2), np.uint8)
        )
    )
    with pytest.raises(UsageError, match=message):
        data.to_steps(space, Walk().action_space, None)


def test_actions_outside_of_a_ball_are_refused() -> None:
    data = Demonstrations(changed(actions=np.full((18, 2), 0.8)))
    with pytest.raises(UsageError, match="norm of actions must be within Ball"):
        data.to_steps(Walk().observation_space, Ball(2), None)
    data.to_steps(Walk().observation_space, Ball(2, radius=1.2), None)


def test_observations_out_of_bounds_are_described() -> None:
    """The sentence has the array, the range of its values and the declared range."""
    data, action_space = random_demonstrations(Walk()), Walk().action_space

    def describe(space: Any, **arrays: Any) -> list[str]:
        changed_data = Demonstrations(data.arrays | arrays)
        return describe_values_out_of_bounds(
            changed_data.to_steps(space, action_space, None), space
        )

    space = Walk().observation_space
    assert describe(space) == []
    pixels = np.linspace(0, 255, 54).reshape(18, 3)
    (sentence,) = describe(space, observations=pixels)
    assert sentence.startswith(
        "observations has values from 0 to 255, but the environment declares values from -10 to 10"
    )
    (sentence,) = describe(space, final_observations=np.full((5, 3), -12.0))
    assert "observations has values from -12 to" in sentence
    columns = Box((-20.0, -20.0, -1.0), (20.0, 20.0, 1.0), (3,))
    (sentence,) = describe(columns, observations=np.tile([15.0, -15.0, 1.5], (18, 1)))
    assert sentence.startswith("observations[2] has values from")
    assert "declares values from -1 to 1" in sentence
    unbounded = Box(-np.inf, np.inf, (3,))
    assert describe(unbounded, observations=pixels) == []
    assert describe(space, observations=np.full((18, 3), 10.00001)) == []  # rounding


def test_parts_of_observations_out_of_bounds_have_their_name() -> None:
    env = Walk()
    space = Dict({"a": Box(-1.0, 1.0, (3,)), "b": Discrete(2)})
    data = random_demonstrations(env)
    arrays = {k: v for k, v in data.arrays.items() if "observations" not in k}
    for name, number in (("observations", 18), ("final_observations", 5)):
        arrays |= {f"{name}/a": np.full((number, 3), 2.0), f"{name}/b": np.zeros(number, int)}
    steps = Demonstrations(arrays).to_steps(space, env.action_space, None)
    (sentence,) = describe_values_out_of_bounds(steps, space)
    assert sentence.startswith("observations/a has values from 2 to 2")
