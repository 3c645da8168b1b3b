"""Tests of value normalization, which does not change values or depend on the scale of rewards."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.table import BY_NAME
from rollax import environments
from rollax.acting import parameter_sharing
from rollax.acting.streams import flatten_streams, unroll
from rollax.algorithms import ppo
from rollax.algorithms.on_policy import RolloutEnd
from rollax.environments.wrapper import Wrapper
from rollax.errors import UsageError
from rollax.learning import normalization, train_state
from rollax.learning.train_state import TrainState
from rollax.networks import NetworkConfig, StepwiseNetwork, actor_critic
from rollax.spaces import Box, Dict, Discrete, Grid


class Nowhere:
    """Environment with spaces only, to build networks with a critic-only part or a grid."""

    name, num_agents, action_space = "test/nowhere", None, Discrete(3)

    def __init__(self, part: str) -> None:
        parts = {"global_state": Box(-1.0, 1.0, (5,)), "grid": Grid((3, 3), (4,))}
        self.observation_space = Dict({"own": Box(-1.0, 1.0, (4,)), part: parts[part]})


NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "separate, centralized": ("global_state", {}),
    "shared": ("grid", {"shared": True}),
    "deep": ("grid", {"head_hidden": (6,), "core": "gru"}),
    "attentive": ("grid", {"attention": 2, "shared": True}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_updating_the_statistics_changes_no_value(name: str) -> None:
    """The last layer of the critic changes, and the policy does not."""
    part, shape = NETWORKS[name]
    environment = Nowhere(part)
    config = NetworkConfig(hidden=(8,), core_size=6, embedding=3, **shape)
    network = actor_critic(environment, config, jax.random.key(0))  # pyright: ignore[reportArgumentType]
    train = TrainState(network, {}, None, None, normalization.init_moments(0.0))
    obs = {
        "own": jax.random.normal(jax.random.key(1), (4,)),
        "global_state": jax.random.normal(jax.random.key(2), (5,)),
        "grid": jax.random.randint(jax.random.key(3), (3, 3, 1), 0, 4),
    }
    obs = {key: obs[key] for key in ("own", part)}

    def outputs(train: TrainState) -> Any:
        return train_state.add_normalization(train.network, None, train.values)(
            network.initial_carry(), obs
        )[1]

    update, before = (
        jax.jit(lambda train, target: train_state.update_value_statistics(train, target, None)),
        outputs(train),
    )
    for mean, std in ((500.0, 1000.0), (-3.0, 0.1), (2e4, 1e-3)):
        train = update(train, mean + std * jax.random.normal(jax.random.key(4), (16, 4)))
        after = outputs(train)
        # The tolerance is relative to the mean, because the value is a difference from it.
        np.testing.assert_allclose(
            after.value, before.value, rtol=1e-5, atol=1e-6 * abs(float(train.values.mean))
        )
        np.testing.assert_array_equal(after.policy.logits, before.policy.logits)
    assert not np.allclose(jax.tree.leaves(network)[-1], jax.tree.leaves(train.network)[-1])
    assert float(train.values.size) == 3 * 64


def test_mean_and_std_of_value_targets() -> None:
    values = normalization.update_moments(
        normalization.init_moments(0.0), jnp.asarray([[100.0, 300.0]]), axes=2
    )
    mean, std = train_state.value_mean_and_std(values)
    np.testing.assert_allclose([mean, std], [200.0, 100.0], rtol=1e-6)
    equal = normalization.update_moments(
        normalization.init_moments(0.0), jnp.full((2, 3), 7.0), axes=2
    )
    np.testing.assert_allclose(train_state.value_mean_and_std(equal), (7.0, 1e-4), rtol=1e-6)


class Scaled(Wrapper):
    """Wrapper that multiplies rewards by 1,000."""

    def step(self, key: jax.Array, state: Any, action: Any) -> Any:
        after = self.env.step(key, state, action)
        return after._replace(reward=1000 * after.reward)


@pytest.mark.parametrize("name", ["ppo-values", "impala-values"])
def test_large_rewards_are_learned(name: str) -> None:
    """The values 900 and 1,000 of two steps are learned as fast as 0.9 and 1."""
    row = BY_NAME[name]
    algorithm = row.make(Scaled(environments.make("probe/two-steps")))
    falling = {
        "learning_rate_final_fraction": 0.0,
        "entropy_final_fraction": 0.0,
        "total_updates": 60.0,
    }
    config = dataclasses.replace(row.config, learning_rate=3e-2, **falling)
    state = jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0))
    step = jax.jit(algorithm.step)
    for _ in range(60):
        state, metrics = step(state)
    found = [float(row.value(state, row.carry(state), jnp.asarray([x]))[1]) for x in (0.0, 1.0)]
    assert found == pytest.approx([900.0, 1000.0], rel=0.05)
    assert float(metrics.values["value_loss"]) < 0.1, "in units of the targets' deviation"


def test_advantages_of_the_bonus_do_not_depend_on_the_scale_of_rewards() -> None:
    """`bonus` receives advantages in units of the critic, because novelty has a separate unit."""
    row, given = BY_NAME["ppo-values"], []
    for environment in (plain := environments.make("probe/two-steps"), Scaled(plain)):
        state = jax.jit(lambda key, e=environment: row.make(e).init(key, row.config))(
            jax.random.key(0)
        )
        act = parameter_sharing.make_policy(
            parameter_sharing.make_agent_groups(environment, "all"),
            train_state.sample_action_with_extras,
            state.train,
        )
        actor, rollout, _ = unroll(
            environment, act, state.actor, jax.random.key(1), row.config.num_steps
        )
        end = RolloutEnd(
            carry=flatten_streams(environment, actor.carry),
            obs=None,
            agent_done=None,
            discounted_return=state.discounted_return,
        )

        def bonus(advantage: jax.Array) -> jax.Array:
            given.append(advantage)
            return advantage

        ppo.learn(row.config, jnp.zeros(()), state.train, rollout, end, jax.random.key(2), bonus)
    small, large = (float(jnp.mean(jnp.abs(advantage))) for advantage in given)
    assert 0.5 < large / small < 2  # the critic's values before learning are the same for both


def test_a_critic_without_a_value_head_raises_usage_error() -> None:
    row = BY_NAME["ppo-values"]
    plain = StepwiseNetwork(jnp.zeros(3))  # has no `ValueHead`
    with pytest.raises(
        UsageError, match="config.normalize_values must be False for a network without"
    ):
        train_state.init_actor_critic(
            plain, train_state.make_optimizers(row.config, 0.0), jnp.zeros(3), row.config
        )
