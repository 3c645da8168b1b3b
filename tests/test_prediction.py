"""Tests of `Policy.predict`, which manages memory, batches and random keys for `Policy.act`."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import rollax
from rollax.errors import UsageError
from rollax.prediction import validate_observation
from rollax.spaces import Box, Discrete
from rollax.training.result import Result
from support.fixtures import compile_once, train  # noqa: F401

ROOT = Path(__file__).parents[1]
CONFIG = rollax.PPOConfig(
    num_envs=4, num_steps=8, sequence_length=8, num_minibatches=2, num_epochs=1
)


@pytest.fixture
def recurrent(train: Callable[..., Result]) -> rollax.Policy:
    network = rollax.NetworkConfig(hidden=(8,), core="gru", core_size=8)
    return rollax.load(train(config=CONFIG, network=network).folder)


def fresh(policy: rollax.Policy) -> rollax.Policy:
    """Return a copy of the policy that has not predicted yet."""
    return dataclasses.replace(policy)


def observations(policy: rollax.Policy, *lead: int) -> np.ndarray:
    return np.asarray(
        jax.random.normal(jax.random.key(3), (*lead, *policy.environment.observation_space.shape))
    )


def test_memory_is_kept_between_calls_and_reset_with_the_episode(
    recurrent: rollax.Policy,
) -> None:
    """Compare actions and memory with `act`. `begins` resets the memory, as does the first call."""
    carry = recurrent.initial_carry()
    for t, obs in enumerate(observations(recurrent, 6)):
        if t == 4:
            carry = recurrent.initial_carry()
        action, carry = recurrent.act(jnp.asarray(obs), carry, jax.random.key(0))
        assert recurrent.predict(obs, begins=t == 4) == np.asarray(action)
        close = jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), recurrent.memory.carry, carry
        )
        assert jax.tree.structure(close) is not None


def test_a_batch_equals_separate_policies(recurrent: rollax.Policy) -> None:
    """Each row has a separate memory, which `begins` resets for this row."""
    seen = observations(recurrent, 5, 3)
    begins = np.asarray(
        [[True] * 3, [False] * 3, [False, True, False], [False] * 3, [True, False, False]]
    )
    for obs, anew in zip(seen, begins, strict=True):
        recurrent.predict(obs, anew)
    together = jax.device_get(recurrent.memory.carry)
    for row in range(3):
        alone = fresh(recurrent)
        for t in range(5):
            alone.predict(seen[t, row], bool(begins[t, row]))
        jax.tree.map(
            lambda x, y, r=row: np.testing.assert_allclose(x[r], y, atol=1e-6),
            together,
            alone.memory.carry,
        )


def test_memory_of_another_batch_size_raises_usage_error(recurrent: rollax.Policy) -> None:
    recurrent.predict(observations(recurrent, 3))
    with pytest.raises(
        UsageError,
        match="memory of the policy belongs to a batch of 3, .* a batch of 2. Pass begins=True",
    ):
        recurrent.predict(observations(recurrent, 2))
    with pytest.raises(UsageError, match="and the observation is one environment"):
        recurrent.predict(observations(recurrent))
    assert recurrent.predict(observations(recurrent, 2), begins=True).shape == (2,)


@pytest.fixture
def policy(train: Callable[..., Result]) -> rollax.Policy:
    return rollax.load(train(environment="gymnax/CartPole-v1").folder)


def test_invalid_observations_raise_usage_error(policy: rollax.Policy) -> None:
    with pytest.raises(UsageError, match=r"shape \[4\], or \[B, 4\] for a batch, got \[3\]"):
        policy.predict(np.zeros(3))
    with pytest.raises(UsageError, match="must have the type float32, got <U4"):
        policy.predict(np.asarray(["left"] * 4))
    with pytest.raises(UsageError, match="observation must be an array: "):
        policy.predict([[0.0], [0.0, 1.0]])
    with pytest.raises(UsageError, match="begins .* must be True or False"):
        policy.predict(np.zeros(4), begins=[True, False])
    with pytest.raises(UsageError, match="greedy"):
        policy.predict(np.zeros(4), greedy="yes")


def test_lists_and_other_floats_are_observations(policy: rollax.Policy) -> None:
    """Without a memory, the batch size may change."""
    one = policy.predict([0.0, 0.1, 0.0, -0.1])
    assert one.shape == () and one.dtype == np.int32
    assert (
        policy.predict(np.asarray([[0.0, 0.1, 0.0, -0.1]] * 5, np.float64)).tolist()
        == [int(one)] * 5
    )


@pytest.mark.quick
def test_zeros_and_ones_of_any_type_are_booleans() -> None:
    """Other libraries return boards of MinAtar as numbers."""
    space = Box(0.0, 1.0, (3,), "bool")
    for given in ([0.0, 1.0, 1.0], [0, 1, 1], [False, True, True]):
        value, batch = validate_observation(space, (), given)
        assert value.dtype == bool and value.tolist() == [False, True, True] and batch is None
    with pytest.raises(UsageError, match="must have the type bool, got float64"):
        validate_observation(space, (), [0.0, 0.5, 1.0])


@pytest.mark.parametrize("symbol", [4, -1, np.asarray([0, 9])])
def test_a_number_outside_of_a_discrete_space_raises_usage_error(symbol: Any) -> None:
    assert validate_observation(Discrete(4), (), 3)[1] is None
    with pytest.raises(UsageError, match=r"the observation .* must be between 0 and 3"):
        validate_observation(Discrete(4), (), symbol)


def test_sampled_actions_differ_between_calls_and_are_deterministic(policy: rollax.Policy) -> None:
    """A policy that is loaded again samples the same actions."""

    def sampled() -> list[list[int]]:
        same = fresh(policy)
        return [same.predict(np.zeros((16, 4)), greedy=False).tolist() for _ in range(3)]

    first = sampled()
    assert first == sampled()
    assert first[0] != first[1]


def test_agents_and_parts_of_observations(train: Callable[..., Result]) -> None:
    """Actions have an axis of agents. Agent ids and critic-only parts may be omitted."""
    network = {"hidden": (8,), "agent_id": True}
    policy = rollax.load(train(environment="hunting/2-players", network=network).folder)
    obs = policy.environment.reset(jax.random.key(0))[1]
    obs = {
        name: np.asarray(value)
        for name, value in obs.items()
        if name not in ("agent_id", "global_state")
    }
    plain = obs if len(obs) > 1 else next(iter(obs.values()))
    assert policy.predict(plain).shape[0] == policy.environment.num_agents
    several = jax.tree.map(lambda x: np.stack([x] * 3), plain)
    assert policy.predict(several, begins=True).shape[:2] == (3, policy.environment.num_agents)


@pytest.mark.parametrize(
    ("trained", "played"), [("gymnax/CartPole-v1", "CartPole-v1"), ("gymnasium/Blackjack-v1",) * 2]
)
def test_the_example_of_plain_gymnasium(
    train: Callable[..., Result], trained: str, played: str
) -> None:
    """The example plays five episodes without JAX. Observations of Blackjack are tuples."""
    folder = train(environment=trained).folder
    words = [
        sys.executable,
        str(ROOT / "examples" / "play_in_gymnasium.py"),
        str(folder),
        played.removeprefix("gymnasium/"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    returns = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(returns) == 5 and all(-1 <= value <= 500 for value in returns)


def test_loading_in_another_kind_of_environment_raises_usage_error(
    train: Callable[..., Result],
) -> None:
    """The state has a different structure. `predict` can play in the other environment."""
    folder = train(environment="gymnax/CartPole-v1").folder
    with pytest.raises(UsageError, match="use policy.predict in the other environment"):
        rollax.load(folder, environment=rollax.make("gymnasium/CartPole-v1"))


class Odd(gymnasium.Env):
    """Environment with spaces that rollax converts.

    They are a tuple, an image, integers that do not start at 0, and an action mask.
    """

    observation_space = spaces.Tuple(
        (spaces.Discrete(3, start=5), spaces.Box(0, 255, (2, 30, 40), np.uint8))
    )
    action_space = spaces.Discrete(2, start=-1)
    legal = np.asarray([True, False], np.int8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {"action_mask": self.legal}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action == -1 and self.action_space.contains(action)
        return self.observation_space.sample(), 0.0, False, True, {"action_mask": self.legal}


def test_gymnasium_spaces_that_rollax_converts(train: Callable[..., Result]) -> None:
    """Observations and actions are those of Gymnasium, for single and vector environments.

    Errors of invalid observations have the names of Gymnasium.
    """
    environment = rollax.from_gymnasium(Odd)
    policy = rollax.load(train(environment=environment).folder, environment=environment)
    one = Odd()
    seen, info = one.reset(seed=0)
    action = policy.predict({"observation": seen, **info})
    one.step(action)
    assert {action: "a key, as toy texts need it"}
    many = gymnasium.vector.SyncVectorEnv([Odd] * 3)
    seen, _ = many.reset(seed=0)
    mask = np.broadcast_to(one.legal, (3, 2))
    actions = policy.predict({"observation": seen, "action_mask": mask}, begins=True)
    assert actions.tolist() == [-1] * 3 and many.action_space.contains(actions)
    across = [one.observation_space.sample() for _ in range(2)]
    wrong_forms = [
        seen,
        {"observation": seen},
        *({"observation": x, "action_mask": mask} for x in (seen[:1], across)),
    ]
    turned = seen[0], np.moveaxis(seen[1], 1, -1)
    for wrong in (*wrong_forms, {"observation": turned, "action_mask": mask}):
        with pytest.raises(
            UsageError, match=r"must be of own/Odd: observation: Tuple\(Discrete\(3, start=5\)"
        ):
            policy.predict(wrong)
