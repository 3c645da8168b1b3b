"""Tests of PQN: its returns, its loss, its exploration and its state."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.programs import begun, fresh
from laws.table import BY_NAME
from laws.walk import Walk
from rollax.algorithms.pqn import PQNBatch, PQNConfig, loss, pqn
from rollax.environments import make
from rollax.errors import UsageError
from rollax.learning.returns import gae
from rollax.networks import StepwiseNetwork
from rollax.networks.action_values.q_networks import (
    EpsilonGreedy,
    EpsilonGreedyNetwork,
    RecurrentQNetworkConfig,
    recurrent_q_network,
)


def test_returns_are_those_of_the_paper() -> None:
    """R_t = r_t + gamma (lambda R_(t+1) + (1 - lambda) max Q(s_(t+1))).

    This is max Q(s_t) plus the lambda-advantage.
    """
    numbers = np.random.default_rng(0)
    reward, value, next_value = (numbers.normal(size=9).astype(np.float32) for _ in range(3))
    next_value[:-1] = value[1:]
    terminated, truncated = np.arange(9) == 3, np.arange(9) == 6
    next_value[6] = 5.0  # of the true last observation, not of the first of the next episode
    arrays = [jnp.asarray(x) for x in (reward, value, next_value, terminated, truncated)]
    found = value + gae(*arrays, 0.9, 0.7)
    expected, after = np.zeros(9), next_value[-1]
    for t in range(8, -1, -1):
        follows = (
            0.0
            if terminated[t]
            else next_value[t]
            if truncated[t]
            else 0.7 * after + 0.3 * next_value[t]
        )
        expected[t] = after = reward[t] + 0.9 * follows
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


class Doubling:
    """Network with Q(s, .) = (s, 2 s)."""

    def initial_carry(self) -> tuple[()]:
        return ()

    def __call__(self, carry: Any, obs: jax.Array) -> tuple[Any, jax.Array]:
        return carry, jnp.stack([obs[0], 2 * obs[0]])


def test_loss_by_hand() -> None:
    """It is the mean of (Q(s, a) - R)^2 / 2 of the selected actions.

    Masked samples have no effect.
    """
    network = StepwiseNetwork(Doubling())
    obs, action, resets = (
        jnp.array([[[1.0], [2.0], [3.0]]]),
        jnp.array([[0, 1, 0]]),
        jnp.zeros((1, 3), bool),
    )
    mask = jnp.array([[True, True, False]])
    batch = PQNBatch((), obs, resets, action, jnp.array([[3.0, 3.0, 100.0]]), mask)
    total, metrics = loss(network, None, batch)
    assert float(total) == pytest.approx((2**2 + 1**2) / 4)
    assert float(metrics["td_error"]) == pytest.approx(1.5)
    assert float(metrics["selected_q"]) == pytest.approx(2.5)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_greedy_probabilities(epsilon: float) -> None:
    """Illegal actions have probability 0.

    The best one has 1 - epsilon + epsilon / legal, others have epsilon / legal.
    """
    policy = EpsilonGreedy(jnp.array([-3.0, -1.0, -1e9, -2.0]), jnp.float32(epsilon))
    draws = jax.vmap(policy.sample)(jax.random.split(jax.random.key(0), 4000))
    counts = np.bincount(np.asarray(draws), minlength=4) / 4000
    np.testing.assert_allclose(
        counts, [epsilon / 3, 1 - 2 * epsilon / 3, 0, epsilon / 3], atol=0.03
    )


def test_the_policy_selects_the_action_of_highest_value() -> None:
    """The value of a state is that of its best action.

    Greedy evaluation takes it, and stochastic acting explores a little.
    """
    row, state = BY_NAME["pqn"], fresh(begun("pqn"))
    algorithm = row.make(row.environment)
    obs = jax.random.normal(jax.random.key(0), (64, 3))
    network = state.train.network
    values = jax.vmap(lambda o: network((), o)[1])(obs)
    _, output = jax.vmap(lambda o: EpsilonGreedyNetwork(network, jnp.float32(0.5))((), o))(obs)
    assert np.array_equal(output.value, jnp.max(values, axis=1))
    act = jax.vmap(algorithm.act, in_axes=(None, 0, None, 0, None))
    keys = jax.random.split(jax.random.key(1), 64)
    greedy = act(state, obs, (), fresh(keys), True)[0]
    assert np.array_equal(greedy, jnp.argmax(values, axis=1))
    exploring = act(state, obs, (), fresh(keys), False)[0]
    assert 0 < np.mean(exploring != greedy) < 0.2


def test_the_state_has_no_replay_and_no_target_network() -> None:
    """Its fields are those that on-policy algorithms have."""
    state: Any = begun("pqn")
    assert set(state._fields) == {"key", "config", "train", "actor", "discounted_return", "updates"}
    statistics = {"observations", "returns", "values"}
    assert set(state.train._fields) == {"network", "optimizer", "rate_scale"} | statistics
    assert all(getattr(state.train, name) is None for name in {"rate_scale"} | statistics)


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="action space must be Discrete"):
        pqn(make("probe/continuous"), lambda key: None)

    def network(key):
        return recurrent_q_network(Walk(), RecurrentQNetworkConfig(hidden=(4,)), key)

    with pytest.raises(ValueError, match=r"num_minibatches \(7\).* Use"):
        pqn(Walk(), network).init(
            jax.random.key(0), PQNConfig(num_envs=4, num_steps=8, num_minibatches=7)
        )
    for name in ("core_size", "core_layers"):
        with pytest.raises(UsageError, match=rf"network.{name} must be at least 1, got 0"):
            recurrent_q_network(
                Walk(), RecurrentQNetworkConfig(**{"core": "gru", name: 0}), jax.random.key(0)
            )


class Exact(eqx.Module):
    """Action values of probe/action-reward for any observation."""

    values: jax.Array

    def initial_carry(self) -> tuple[()]:
        return ()

    def __call__(self, carry: Any, obs: jax.Array) -> tuple[Any, jax.Array]:
        return carry, self.values


def test_exact_values_explain_all_variance() -> None:
    """Targets are compared with the values of the taken actions, not of the best ones."""
    world = make("probe/action-reward")
    config = PQNConfig(num_envs=8, num_steps=8, num_minibatches=2, learning_rate=0.0)
    rewards = jnp.array(
        [
            float(world.step(jax.random.key(0), world.reset(jax.random.key(1))[0], a).reward)
            for a in range(2)
        ]
    )
    algorithm = pqn(world, lambda key: StepwiseNetwork(Exact(rewards)))
    state = jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0))
    _, metrics = jax.jit(algorithm.step)(state)
    assert float(metrics.values["td_error"]) == pytest.approx(0.0, abs=1e-6)
    assert float(metrics.values["explained_variance"]) == pytest.approx(1.0, abs=1e-6)
    assert float(metrics.values["value"]) == pytest.approx(float(rewards.max()), abs=1e-6)
