"""Tests of DQN: targets with masks, schedules of epsilon and target network, and errors."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.programs import begun, fresh
from laws.table import BY_NAME
from laws.walk import Walk
from rollax import tree
from rollax.algorithms import q_learning
from rollax.algorithms.dqn import FNS, DQNConfig, dqn
from rollax.algorithms.q_learning import QLearningAgent, init_agent
from rollax.environments import make
from rollax.errors import UsageError
from rollax.networks.action_values.q_networks import QNetworkConfig, q_network
from rollax.replay import prioritized
from rollax.replay.ring import ReplayBatch

act, explore, update = (
    functools.partial(function, FNS)
    for function in (q_learning.act, q_learning.explore, q_learning.update)
)


class Table(eqx.Module):
    """Action values of two observations, 0 and 1."""

    values: jax.Array  # [2, n]

    def __call__(self, obs: Any) -> jax.Array:
        return self.values[jnp.asarray(obs["place"] if isinstance(obs, dict) else obs, jnp.int32)]


ONLINE = jnp.array([[1.0, 2.0, 3.0], [6.0, 5.0, 9.0]])
TARGET = jnp.array([[0.0, 0.0, 0.0], [10.0, 30.0, 20.0]])


def agent_of(config: DQNConfig) -> QLearningAgent:
    return init_agent(Table(ONLINE), tree.to_arrays(config))._replace(target=Table(TARGET))


def one(next_obs: Any, action: int = 0, weight: float = 1.0) -> ReplayBatch:
    """Return a batch of one step from observation 0 to `next_obs`.

    The reward is 1 and the discount is 0.5.
    """
    obs = jax.tree.map(jnp.zeros_like, next_obs)
    if isinstance(obs, dict):
        obs = {**obs, "action_mask": jnp.ones((1, 3), bool)}
    ones = jnp.ones(1)
    return ReplayBatch(
        obs,
        jnp.full(1, action, jnp.int32),
        ones,
        0.5 * ones,
        next_obs,
        weight * ones,
        jnp.zeros(1, bool),
        (),
    )


@pytest.mark.parametrize(
    ("double", "legal", "expected"),
    [
        (False, (True, True, True), 1 + 0.5 * 30),  # the target network's best
        (True, (True, True, True), 1 + 0.5 * 20),  # its value of the network's best action
        (False, (True, False, True), 1 + 0.5 * 20),
        (True, (True, True, False), 1 + 0.5 * 10),
        (True, (False, True, False), 1 + 0.5 * 30),
    ],
)
def test_targets_by_hand(double: bool, legal: tuple[bool, ...], expected: float) -> None:
    """The error is |Q(0, a) - y|. Illegal actions are neither selected nor used in the target."""
    config = tree.to_arrays(DQNConfig(double=double))
    batch = one({"place": jnp.ones(1), "action_mask": jnp.asarray([legal])})
    _, metrics = update(agent_of(config), config, batch, jax.random.key(0))
    assert float(metrics["td_error"][0]) == pytest.approx(abs(1.0 - expected))


@pytest.mark.parametrize(
    ("largest", "weight"), [(1.0, 1.0), (1e9, 1.0), (1.0, 0.25), (float("inf"), 1.0)]
)
def test_loss_by_hand(largest: float, weight: float) -> None:
    """The loss is quadratic up to `largest`, then linear, times the weight.

    The bound may be infinite.
    """
    config = tree.to_arrays(DQNConfig(huber_delta=largest))
    agent, metrics = update(
        agent_of(config), config, one(jnp.ones(1), 1, weight), jax.random.key(0)
    )
    error = abs(2.0 - (1 + 0.5 * 20))
    expected = 0.5 * error**2 if largest > error else largest * (error - largest / 2)
    assert float(metrics["loss"]) == pytest.approx(weight * expected, rel=1e-5)
    assert bool(jnp.all(jnp.isfinite(agent.network.values)))
    moved = np.asarray(agent.network.values - ONLINE)
    assert moved[0, 1] > 0
    assert np.count_nonzero(moved) == 1


def test_the_target_network_is_updated_periodically() -> None:
    config = tree.to_arrays(DQNConfig(target_update_period=3.0, tau=1.0))
    agent = agent_of(config)
    for i in range(1, 7):
        agent, _ = update(agent, config, one(jnp.ones(1)), jax.random.key(0))
        assert np.array_equal(agent.target.values, agent.network.values) == (i % 3 == 0)
    config = tree.to_arrays(DQNConfig(target_update_period=1.0, tau=0.25, learning_rate=0.0))
    agent, _ = update(agent_of(config), config, one(jnp.ones(1)), jax.random.key(0))
    np.testing.assert_allclose(agent.target.values, 0.75 * TARGET + 0.25 * ONLINE)


def test_exploration_probabilities() -> None:
    """The probability of a random legal action falls from `epsilon` to a fraction of it.

    Otherwise the best legal action is taken. A policy that acts stochastically outside of training
    explores as at the end.
    """
    config = tree.to_arrays(
        DQNConfig(epsilon=0.8, epsilon_final_fraction=0.2, exploration_fraction=0.5)
    )
    agent = agent_of(config)
    obs = {"place": jnp.ones(()), "action_mask": jnp.array([True, True, False])}
    keys = jax.random.split(jax.random.key(0), 4000)
    for progress, chance in [(0.0, 0.8), (0.25, 0.5), (0.5, 0.2), (1.0, 0.2)]:
        exploring = jax.vmap(
            lambda key, p=progress: explore(agent, config, obs, (), None, key, jnp.float32(p))[0]
        )
        counts = np.bincount(np.asarray(exploring(fresh(keys))), minlength=3) / 4000
        np.testing.assert_allclose(counts, [1 - chance / 2, chance / 2, 0], atol=0.03)
    for greedy, chance in [(True, 0.0), (False, 0.2)]:
        sampled = jax.vmap(lambda key, greedy=greedy: act(agent, config, obs, (), key, greedy)[0])(
            fresh(keys)
        )
        counts = np.bincount(np.asarray(sampled), minlength=3) / 4000
        np.testing.assert_allclose(
            counts, [1 - chance / 2, chance / 2, 0], atol=0.03 * (not greedy)
        )


@pytest.mark.quick
def test_dueling_values() -> None:
    """The mean of the action values is V, whatever the advantages are."""
    network = q_network(Walk(), QNetworkConfig(hidden=(8,), dueling=True), jax.random.key(0))
    obs = jnp.array([0.3, -1.0, 2.0])
    features = network.features(obs)
    assert network.head.advantage is not None
    advantage = network.head.advantage(features)
    assert float(jnp.mean(network(obs))) == pytest.approx(
        float(network.head.value(features)[0]), abs=1e-6
    )
    np.testing.assert_allclose(
        network(obs) - jnp.mean(network(obs)), advantage - jnp.mean(advantage), atol=1e-6
    )


def test_the_replay_stores_the_true_next_observation() -> None:
    """Within an episode it is the observation of the next row.

    At an end it is the last observation.
    """
    replay = begun("dqn").replay
    steps, places = replay.data, replay.size
    assert int(jnp.min(places)) == int(jnp.max(places)) == 24
    ended = np.asarray(steps.terminated | steps.truncated)[:, :23]
    # XLA may compute the same number twice with different rounding.
    same = np.all(np.isclose(steps.next_obs[:, :23], steps.obs[:, 1:24], atol=1e-6), axis=-1)
    assert np.array_equal(same, ~ended)
    assert np.asarray(steps.terminated)[:, :24].any() and np.asarray(steps.truncated)[:, :24].any()


def test_steps_of_agents_that_left_are_not_stored() -> None:
    """If agents end before the episode, only their steps until then are stored and counted."""
    environment = Walk(agents=3, early=True)
    row = BY_NAME["dqn"]
    algorithm = row.make(environment)
    state = jax.jit(lambda key: algorithm.init(key, row.config))(jax.random.key(0))
    step = jax.jit(algorithm.step)
    lived = 0.0
    for _ in range(2):
        state, metrics = step(state)
        lived += float(metrics.episodes.total_length)
    running = int(jnp.sum(state.actor.episode_length))
    size, steps = np.asarray(state.replay.size).reshape(-1, 3), state.replay.data
    assert size.max() == 16 and size.sum() == lived + running
    assert size[:, 0].min() == 16, "the first agent is there to the end"
    assert (size[:, 0] > size[:, 1]).all() and (size[:, 1] > size[:, 2]).all(), (
        "each leaves before the one in front of it"
    )
    ended = np.asarray(steps.terminated | steps.truncated)
    for stream, number in enumerate(size.reshape(-1)):
        runs = np.isclose(
            steps.next_obs[stream, : number - 1], steps.obs[stream, 1:number], atol=1e-6
        )
        assert np.array_equal(runs.all(axis=-1), ~ended[stream, : number - 1]), (
            "after an end comes another episode"
        )


def test_a_new_priority_exponent_applies_to_stored_priorities() -> None:
    """A member whose exponent evolves samples by the new one at once.

    If the exponent is unchanged, the sum tree is exactly the same.
    """
    row = BY_NAME["dqn-rainbow"]
    algorithm, state = row.make(row.environment), begun("dqn-rainbow")
    exponents = {"priority_exponent": jnp.zeros(())}, {"learning_rate": jnp.ones(())}
    other, same = (
        algorithm.with_config(state, dataclasses.replace(state.config, **change))
        for change in exponents
    )
    number = float(jnp.sum(state.replay.replay.size))
    assert float(prioritized.total_weight(other.replay.tree)) == pytest.approx(number), (
        "p^0 is 1 for each"
    )
    assert float(prioritized.total_weight(state.replay.tree)) != pytest.approx(number)
    for before, after in zip(
        jax.tree.leaves(state.replay), jax.tree.leaves(same.replay), strict=True
    ):
        assert np.array_equal(before, after)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"replay_ratio": 1e-4},
            "replay_ratio .0.0001. .* num_steps .8.. Use replay_ratio 0.0156, or "
            "num_steps 1250\\.$",
        ),
        (
            {"num_envs": 1, "replay_ratio": 0.013, "num_steps": 200},
            "Use replay_ratio 0.01 or 0.015, or num_steps 231\\.$",
        ),
        ({"replay_ratio": 0.0}, "replay_ratio .0.0. .*. Use replay_ratio 0.0156\\.$"),
        (
            {"num_envs": 1, "replay_ratio": 0.2, "num_steps": 64},
            "num_steps .64. must be a multiple of 5.* Use 65",
        ),
        ({"capacity": 16}, "capacity .16. must be at least batch_size .32."),
        (
            {"num_envs": 600, "replay_ratio": 1.0},
            "capacity .500. must be at least 600 to sample .* from 600 streams\\.$",
        ),
    ],
)
def test_invalid_sizes_are_refused(settings: dict[str, Any], words: str) -> None:
    row = BY_NAME["dqn"]
    with pytest.raises(UsageError, match=words):
        row.make(Walk()).init(jax.random.key(0), dataclasses.replace(row.config, **settings))


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(UsageError, match="action space must be Discrete.*sac"):
        dqn(make("probe/continuous"), lambda key: None)
