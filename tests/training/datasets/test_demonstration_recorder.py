"""Recording of episodes of policies and functions, in compiled environments and simulators."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rollax
from laws.walk import Walk
from rollax import UsageError
from rollax.training.compile import keys
from support.runs import Script


def balance(obs: np.ndarray) -> int:
    """Return an action of CartPole that keeps the pole upright for a while."""
    return int(obs[2] + 0.5 * obs[3] > 0)


@pytest.mark.quick
def test_recorded_episodes_are_those_of_an_evaluation(undisturbed: Path) -> None:
    policy = rollax.load(undisturbed)
    recorded = rollax.record(policy, episodes=5, seed=3)
    assert recorded.num_episodes == 5
    _, episodes = policy.evaluate(5, jax.random.key(0), greedy=True)
    assert set(recorded.lengths) == set(np.asarray(episodes.length))
    assert recorded.metadata["environment"] == "probe/memory"
    env = policy.environment
    steps = recorded.to_steps(env.observation_space, env.action_space, env.num_agents)
    assert np.all(steps.terminated | steps.truncated | ~np.roll(steps.reset, -1))


def test_actions_are_those_of_the_policy(undisturbed: Path) -> None:
    """The memory of the policy is that of the episode."""
    policy = rollax.load(undisturbed)
    recorded = rollax.record(undisturbed, checkpoint="last", episodes=2)
    arrays = recorded.arrays
    for start, length in zip(recorded.starts, recorded.lengths, strict=True):
        for step in range(start, start + length):
            action = policy.predict(arrays["observations"][step], step == start)
            assert action == arrays["actions"][step]


def test_a_function_is_recorded_in_a_compiled_environment(tmp_path: Path) -> None:
    recorded = rollax.record(
        balance, "gymnax/CartPole-v1", episodes=3, path=tmp_path / "hand.npz", max_steps=40
    )
    assert recorded.metadata["policy"] == "function" and recorded.lengths.max() <= 40
    assert recorded.lengths.min() > 15  # random actions last for about 20 steps
    obs, actions = recorded.arrays["observations"], recorded.arrays["actions"]
    assert actions.tolist() == [balance(each) for each in obs]
    loaded = rollax.load_demonstrations(tmp_path / "hand.npz")
    assert loaded.digest() == recorded.digest()


def test_an_episode_of_several_agents_lasts_until_all_have_ended() -> None:
    env = Walk(agents=3, early=True)
    recorded = rollax.record(lambda obs: np.zeros(3, int), env, episodes=4)
    assert recorded.arrays["rewards"].shape[1:] == (3,)
    ends = recorded.arrays["terminated"] | recorded.arrays["truncated"]
    assert np.all(ends[recorded.starts + recorded.lengths - 1])


def test_policies_and_functions_in_simulators(tmp_path: Path) -> None:
    run = rollax.train(
        "ppo",
        "gymnasium/CartPole-v1",
        total_steps=64,
        config={"num_envs": 2, "num_steps": 32, "num_minibatches": 1, "num_epochs": 1},
        network={"hidden": (8,)},
        options={"eval_count": 0, "tensorboard": False, "run_dir": tmp_path / "run"},
        show=Script(),
    )
    recorded, policy = rollax.record(run, episodes=2), run.policy()
    arrays, starts = recorded.arrays, recorded.starts.tolist()
    act = jax.jit(lambda obs: policy.act(obs, policy.initial_carry(), jax.random.key(0))[0])
    assert arrays["actions"].tolist() == [int(act(obs)) for obs in arrays["observations"]]
    assert len(np.unique(arrays["observations"][starts, 0])) == 2
    with pytest.raises(UsageError, match="observation_space of gymnax/CartPole-v1 must be that"):
        rollax.record(run, "gymnax/CartPole-v1", episodes=1)
    by_hand = rollax.record(balance, "gymnasium/CartPole-v1", episodes=2, max_steps=30)
    again = rollax.record(balance, "gymnasium/CartPole-v1", episodes=2, max_steps=30)
    assert by_hand.digest() == again.digest()
    actions = by_hand.arrays["actions"]
    assert actions.tolist() == [balance(obs) for obs in by_hand.arrays["observations"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"environment": None}, "must be an id or an environment for a function"),
        ({"policy": lambda obs: 1 / 0}, "fails with ZeroDivisionError"),
        ({"policy": lambda obs: 2}, r"must return an action of Discrete\(2\), got 2"),
        ({"policy": lambda obs: 0.5}, r"must return an action of Discrete\(2\), got 0.5"),
        ({"policy": lambda obs: "left"}, r"must return an action of Discrete\(2\), got 'left'"),
        ({"checkpoint": "best"}, "has no effect unless policy is a run"),
        ({"episodes": 0}, "episodes must be between 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"arguments": {"gravity": 5}, "environment": Walk()}, "for environments made from"),
        ({"policy": "nowhere"}, "is not a run"),
        ({"policy": lambda obs: 1 / 0, "path": "data.txt"}, "path must end in .npz"),
        ({"policy": lambda obs: 1 / 0, "path": "/dev/null/data.npz"}, "is not a writable folder"),
        ({"policy": lambda obs: 1 / 0, "path": "\udcff.npz"}, "path must be a path in utf-8"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    given = {"policy": balance, "environment": "gymnax/CartPole-v1", "episodes": 1} | arguments
    with pytest.raises(UsageError, match=message):
        rollax.record(**given)


def test_keys_differ_from_those_of_evaluations() -> None:
    key = jax.random.key(0)
    made = [keys.demonstration_key(key), keys.policy_evaluation_key(key), keys.render_key(key)]
    assert len({tuple(np.asarray(jax.random.key_data(each)).tolist()) for each in made}) == 3
