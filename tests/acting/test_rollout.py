"""Acting: what a rollout records belongs together, and the value after every step is that of the true next observation."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.programs import fresh
from laws.walk import Walk
from rollax.acting import agents as groups
from rollax.acting import rollout
from rollax.environments import Streams
from rollax.learning import normalization
from rollax.networks import NetworkConfig, actor_critic
from rollax.networks.core import step

STEPS, ENVS = 12, 4
CASES = [("none", None), ("gru", None), ("lstm", 2)]


@cache
def happened(core: str, agents: int | None) -> tuple[Any, ...]:
    """Network, the actor before and after the second of two rollouts, its trajectory and its episodes."""
    environment = Walk(agents=agents)
    config = NetworkConfig(hidden=(8,), core=core, core_size=4)
    network = jax.jit(lambda key: actor_critic(environment, config, key))(jax.random.key(0))
    streams = Streams(environment, ENVS)
    team = groups.team(environment, "all")
    run = jax.jit(lambda actor, key: rollout.rollout(streams, team, network, actor, key, STEPS))
    carry = rollout.initial_carry(team, network, ENVS)
    first, _, _ = run(rollout.start(streams, carry, jax.random.key(1)), jax.random.key(2))
    last, trajectory, episodes = run(fresh(first), jax.random.key(3))
    return network, first, last, trajectory, episodes


@pytest.mark.parametrize(("core", "agents"), CASES)
def test_steps_follow_each_other(core: str, agents: int | None) -> None:
    _, first, _, trajectory, _ = happened(core, agents)
    ended = np.asarray(trajectory.terminated | trajectory.truncated)
    assert np.array_equal(trajectory.reset[1:], ended[:-1]), "an observation begins an episode after an end, and only then"
    going_on = ~ended[:-1]
    assert np.array_equal(trajectory.obs[1:][going_on], trajectory.final_obs[:-1][going_on])
    assert not np.any(np.all(trajectory.obs[1:][ended[:-1]] == trajectory.final_obs[:-1][ended[:-1]], axis=-1))
    flat = lambda x: np.asarray(x).reshape(trajectory.obs.shape[1:])  # noqa: E731
    assert np.array_equal(flat(first.streams.obs), trajectory.obs[0]), "a rollout begins where the last one ended"
    for stored, before in zip(jax.tree.leaves(trajectory.carry), jax.tree.leaves(first.carry), strict=True):
        assert np.array_equal(stored[0], before)
    assert ended.any() and not ended.all()


@pytest.mark.parametrize(("core", "agents"), CASES)
def test_next_values(core: str, agents: int | None) -> None:
    """V of the true observation after each step, with the memory as that step left it: also where the time ran out."""
    network, _, last, trajectory, _ = happened(core, agents)
    found = np.asarray(rollout.next_values(network, trajectory, last.carry))
    memories = jax.tree.map(lambda x, y: jnp.concatenate([x[1:], y[None]]), trajectory.carry, last.carry)
    evaluate = jax.vmap(jax.vmap(lambda carry, obs: network(carry, obs)[1].value))
    expected = np.asarray(evaluate(memories, trajectory.final_obs))
    terminated = np.asarray(trajectory.terminated)
    np.testing.assert_allclose(found[~terminated], expected[~terminated], rtol=1e-5, atol=1e-5)
    assert np.sum(trajectory.truncated) > trajectory.reward.shape[1], "more truncations than fit into one batch"
    assert np.any(trajectory.truncated[-1]) or np.any(~terminated[-1])


@pytest.mark.parametrize(("core", "agents"), CASES)
def test_episodes_are_counted(core: str, agents: int | None) -> None:
    """Returns and lengths of the episodes that ended, also of those begun in the rollout before."""
    _, first, last, trajectory, episodes = happened(core, agents)
    total, length = np.asarray(first.episode_return).copy(), np.asarray(first.episode_length).copy()
    returns, lengths, number = 0.0, 0, 0
    for reward, ended in zip(trajectory.reward, trajectory.terminated | trajectory.truncated, strict=True):
        total, length = total + np.asarray(reward), length + 1
        returns, lengths, number = returns + total[ended].sum(), lengths + length[ended].sum(), number + ended.sum()
        total[ended], length[ended] = 0.0, 0
    assert float(episodes.total_return) == pytest.approx(returns, rel=1e-4)
    assert (int(episodes.total_length), int(episodes.number)) == (lengths, number)
    np.testing.assert_allclose(last.episode_return, total, rtol=1e-4, atol=1e-5)
    assert np.array_equal(last.episode_length, length)


def test_the_record_is_that_of_the_policy() -> None:
    """Log-densities and values are those of the network for the recorded observations, memories and draws."""
    network, _, _, trajectory, _ = happened("gru", None)

    def look(carry: Any, obs: Any, reset: jax.Array, draw: jax.Array) -> Any:
        _, output = step(network, carry, obs, reset)
        return output.policy.log_prob(draw), output.value

    log_prob, value = jax.vmap(jax.vmap(look))(trajectory.carry, trajectory.obs, trajectory.reset, trajectory.draw)
    np.testing.assert_allclose(trajectory.log_prob, log_prob, atol=1e-5)
    np.testing.assert_allclose(trajectory.value, value, atol=1e-5)


def test_scaled_rewards() -> None:
    """The sign and the zero of rewards stay; their scale is that of the discounted returns so far, this rollout included."""
    _, first, _, trajectory, _ = happened("none", None)
    scaled, discounted, returns = rollout.scale_rewards(trajectory, first.discounted_return, normalization.initial(0.0), 0.9)
    running, sums = np.zeros(ENVS), []
    for reward, ended in zip(trajectory.reward, trajectory.terminated | trajectory.truncated, strict=True):
        running = 0.9 * running + np.asarray(reward)
        sums.append(running)
        running = np.where(ended, 0, running)
    np.testing.assert_allclose(scaled, trajectory.reward / np.std(sums), rtol=1e-4)
    np.testing.assert_allclose(discounted, running, rtol=1e-4, atol=1e-5)
    assert float(returns.size) == STEPS * ENVS
    untouched, same, none = rollout.scale_rewards(trajectory, discounted, (), 0.9)
    assert untouched is trajectory.reward and same is discounted and none == ()
