"""Standard deviations that are learned, functions of the state, or constant."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from rollax.algorithms.ppo import PPOConfig, ppo
from rollax.networks.actor_critic import NetworkConfig, actor_critic
from rollax.networks.policy_heads import MAX_LOG_STD, GaussianHead, StdKind, split_std
from rollax.spaces import Box

SPACE = Box(-1.0, 1.0, (2,))


def updated_heads(std: StdKind, id: str) -> tuple[Any, Any]:
    """The policy head before and after an update of PPO."""
    environment = rollax.make(id)
    network = NetworkConfig(hidden=(8,), initial_std=0.5, std=std)
    algorithm = ppo(environment, lambda key: actor_critic(environment, network, key))
    config = PPOConfig(num_envs=4, num_steps=8, num_minibatches=1, learning_rate=0.01)
    state = algorithm.init(jax.random.key(0), config)
    after, metrics = jax.jit(algorithm.step)(state)
    assert np.isfinite(float(metrics.values["loss"]))
    return state.train.network.actor.head, after.train.network.actor.head


@pytest.mark.parametrize("id", ["probe/continuous", "granular/single-navigator"])
def test_a_fixed_std_does_not_change(id: str) -> None:
    before, after = updated_heads("fixed", id)
    np.testing.assert_array_equal(before.log_std, after.log_std)
    assert np.any(np.asarray(before.layer.weight) != np.asarray(after.layer.weight))
    np.testing.assert_allclose(np.exp(np.asarray(before.log_std)), 0.5, rtol=1e-6)


@pytest.mark.parametrize("id", ["probe/continuous", "granular/single-navigator"])
def test_the_std_of_a_state_is_learned(id: str) -> None:
    before, after = updated_heads("state", id)
    np.testing.assert_array_equal(before.log_std, after.log_std)
    rows = np.asarray(after.layer.weight)[-1], np.asarray(before.layer.weight)[-1]
    assert np.any(rows[0] != rows[1]), "the last row belongs to the standard deviation"
    first, second = (after(x * jnp.ones(8), None) for x in (-1.0, 1.0))
    log_stds = [np.asarray(getattr(p, "base", p).log_std) for p in (first, second)]
    assert np.all(log_stds[0] != log_stds[1])


def test_the_default_learns_one_number_per_dimension() -> None:
    before, after = updated_heads("shared", "probe/continuous")
    assert before.layer.weight.shape[0] == 1 and before.log_std.shape == (1,)
    assert np.any(np.asarray(before.log_std) != np.asarray(after.log_std))


def test_stds_of_states_are_bounded() -> None:
    outputs = jnp.array([0.1, 0.2, 100.0, 0.3])
    mean, log_std = split_std(outputs, jnp.log(jnp.full(2, 0.5)), 2, "state")
    np.testing.assert_allclose(mean, [0.1, 0.2], rtol=1e-6)
    np.testing.assert_allclose(log_std, [MAX_LOG_STD, np.log(0.5) + 0.3], rtol=1e-6)
    head = GaussianHead(3, SPACE, True, 0.5, std="state", key=jax.random.key(0))
    assert head(jnp.ones(3), None).base.log_std.shape == (2,)
