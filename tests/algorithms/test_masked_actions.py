"""Tests of SAC and TD3 with an action mask.

A masked dimension has no effect on acting, replay and learning.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.reference import batch_of
from laws.programs import assert_close
from rollax import tree
from rollax.algorithms import sac, td3
from rollax.algorithms.registry import ALGORITHMS
from rollax.environments import Transition
from rollax.networks.critics import (
    StochasticActorCriticsConfig,
    make_deterministic_actor_critics,
    make_stochastic_actor_critics,
    sample_actions,
)
from rollax.replay.ring import ReplayBatch
from rollax.spaces import Box, Dict

SHAPE = StochasticActorCriticsConfig(hidden=(8,))
MAKE = {"sac": make_stochastic_actor_critics, "td3": make_deterministic_actor_critics}
UPDATE = {"sac": sac.update, "td3": td3.update}
INIT = {"sac": sac.init_agent, "td3": td3.init_agent}


class Limbs(eqx.Module):
    """Environment whose reward is the sum of the two numbers of an action.

    The second number is available in every other episode or never.
    """

    is_there: bool = eqx.field(static=True, default=False)

    name = "test/limbs"
    observation_space = Dict(
        {"action_mask": Box(0.0, 1.0, (2,), "bool"), "features": Box(-1.0, 1.0, (3,))}
    )
    action_space = Box(-2.0, 2.0, (2,))
    num_agents = None
    time_limit = 4

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        mask = jnp.array([True, False]) | (self.is_there & jax.random.bernoulli(key))
        state = jnp.zeros((), jnp.int32), mask
        return state, self.observe(state)

    def observe(self, state: Any) -> Any:
        return {"action_mask": state[1], "features": jnp.full(3, 0.1) * state[0]}

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        state = state[0] + 1, state[1]
        no = jnp.zeros((), bool)
        return Transition(state, self.observe(state), jnp.sum(action), no, state[0] >= 4, {})


def config(name: str) -> Any:
    settings = {
        "learning_rate": 1e-2,
        "policy_delay": 1,
        "capacity": 64,
        "batch_size": 8,
        "num_steps": 8,
        "warmup": 12.0,
    }
    return tree.to_arrays(ALGORITHMS[name].config(num_envs=2, **settings))


def batch(mask: Any, size: int = 16) -> ReplayBatch:
    """Return a random batch with actions of 0 in masked dimensions."""
    keys = jax.random.split(jax.random.key(3), 4)

    def obs(key):
        return {
            "action_mask": jnp.broadcast_to(mask, (size, 2)),
            "features": jax.random.normal(key, (size, 3)),
        }

    action = jnp.where(mask, jax.random.uniform(keys[2], (size, 2), minval=-1.0), 0.0)
    reward = jax.random.normal(keys[3], (size,))
    return batch_of(obs(keys[0]), action, reward, jnp.full(size, 0.9), obs(keys[1]))


def with_second_dimension(network: Any, value: float) -> Any:
    """Return the network with `value` in all weights that affect only the second dimension."""
    count = network.actor.head.layer.bias.shape[0]
    columns = np.arange(1, count, 2)  # for SAC: mean and log std
    places = [
        lambda n: n.actor.head.layer.weight,
        lambda n: n.actor.head.layer.bias,
        *(lambda n, i=i: n.critic[i].dense.layers[0].weight for i in range(2)),
    ]
    new = [
        network.actor.head.layer.weight.at[:, columns].set(value),
        network.actor.head.layer.bias.at[columns].set(value),
        *(critic.dense.layers[0].weight.at[4].set(value) for critic in network.critic),
    ]
    return eqx.tree_at(lambda n: [place(n) for place in places], network, new)


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_a_masked_dimension_has_no_effect_on_an_update(name: str) -> None:
    """Weights of a masked dimension do not change an update and are not changed by it."""
    network = MAKE[name](Limbs(), SHAPE, jax.random.key(0))
    update = jax.jit(UPDATE[name])

    def updated(value: float, mask: Any) -> tuple[Any, Any]:
        agent, metrics = INIT[name](with_second_dimension(network, value), config(name)), {}
        for i in range(2):
            agent, metrics = update(agent, config(name), batch(mask), jax.random.key(i))
        return agent, metrics

    only_first = jnp.array([True, False])
    (agent, metrics), (other, other_metrics) = updated(0.0, only_first), updated(0.5, only_first)
    assert_close(metrics, other_metrics)
    assert_close(with_second_dimension(agent.network, 0.5), other.network)
    assert_close(with_second_dimension(other.network, 0.0), agent.network)
    both = jnp.array([True, True])
    assert not np.allclose(updated(0.0, both)[1]["loss"], updated(0.5, both)[1]["loss"])


def test_density_and_entropy_are_those_of_unmasked_dimensions() -> None:
    """log pi of a masked policy is the sum over its unmasked dimensions, and 0 without any."""
    actor = make_stochastic_actor_critics(Limbs(), SHAPE, jax.random.key(0)).actor
    noise = jax.random.normal(jax.random.key(1), (16, 2))
    logs, actions = {}, {}
    for mask in ((True, True), (True, False), (False, True), (False, False)):
        actions[mask], logs[mask] = sample_actions(
            jax.vmap(actor)(batch(jnp.array(mask)).obs), noise
        )
        entropy = jax.vmap(lambda obs: actor(obs).entropy())(batch(jnp.array(mask)).obs)
        assert bool(jnp.all(entropy == 0)) == (mask == (False, False))
    np.testing.assert_allclose(logs[True, True], logs[True, False] + logs[False, True], atol=1e-5)
    assert not jnp.any(logs[False, False]) and not jnp.any(actions[False, False])
    np.testing.assert_array_equal(
        actions[True, False], np.asarray(actions[True, True]) * [1.0, 0.0]
    )


def test_the_target_entropy_is_that_of_unmasked_dimensions() -> None:
    """Adam's first step shows the sign of the gradient.

    The entropy of one dimension is above its target, but below that of two.
    """
    target_entropy = 0.4
    settings = dataclasses.replace(config("sac"), target_entropy=jnp.float32(target_entropy))
    agent = sac.init_agent(
        make_stochastic_actor_critics(Limbs(), SHAPE, jax.random.key(0)), settings
    )
    after, metrics = jax.jit(sac.update)(
        agent, settings, batch(jnp.array([True, False])), jax.random.key(0)
    )
    assert target_entropy < float(metrics["entropy"]) < 2 * target_entropy
    assert after.log_temperature["continuous"] < agent.log_temperature["continuous"]


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_masked_dimensions_are_zero_in_actions_and_replay(name: str) -> None:
    """This holds in warmup, exploration and greedy acting. Unmasked dimensions are not zero."""
    environment = Limbs(is_there=True)
    algorithm = ALGORITHMS[name].make(environment, lambda key: MAKE[name](environment, SHAPE, key))
    step, state = jax.jit(algorithm.step), jax.jit(algorithm.init)(jax.random.key(0), config(name))
    for _ in range(3):
        state, _ = step(state)
    kept = state.replay.data
    mask = np.asarray(kept.obs["action_mask"])[:, :24, 1]
    second = np.asarray(kept.action)[:, :24, 1]
    assert 0 < mask.sum() < mask.size
    assert np.array_equal(second != 0, mask)
    obs = {"action_mask": jnp.array([True, False]), "features": jnp.ones(3)}
    for greedy in (True, False):
        action, _ = algorithm.act(state, obs, (), jax.random.key(1), greedy)
        assert float(action[1]) == 0.0 and float(action[0]) != 0.0
