"""Tests of what a rollout records.

Entries of one step belong together, and next values are those of the true next observation.
"""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.programs import fresh
from laws.walk import Walk
from rollax.acting import parameter_sharing, streams
from rollax.acting.streams import flatten_streams
from rollax.learning import normalization, returns, train_state
from rollax.learning.train_state import TrainState
from rollax.networks import NetworkConfig, actor_critic, memory_windows
from rollax.networks.network import step_network

STEPS, ENVS = 12, 4
CASES = [("none", None), ("gru", None), ("lstm", 2), ("gtrxl", 2)]


@cache
def happened(core: str, num_agents: int | None) -> tuple[Any, ...]:
    """Return the network, the actor before and after the second of two rollouts, and its records.

    The records are the experience and the episode statistics. Parts of the actors are flattened to
    streams.
    """
    environment = Walk(agents=num_agents)
    config = NetworkConfig(hidden=(8,), core=core, core_size=4, core_memory=5)
    network = jax.jit(lambda key: actor_critic(environment, config, key))(jax.random.key(0))
    team, train = (
        parameter_sharing.make_agent_groups(environment, "all"),
        TrainState(network, {}, None, None),
    )
    policy = parameter_sharing.make_policy(team, train_state.sample_action_with_extras, train)
    run = jax.jit(lambda actor, key: streams.unroll(environment, policy, actor, key, STEPS))
    carry = parameter_sharing.initial_carry(team, lambda network: network.initial_carry(), network)
    first, _, _ = run(
        streams.init_actor(environment, jax.random.key(1), ENVS, carry), jax.random.key(2)
    )
    last, experience, episodes = run(fresh(first), jax.random.key(3))
    assert (experience.extras.value is None) == (core == "none"), (
        "a critic without a memory is asked after the rollout"
    )
    experience = returns.add_values(network, experience, num_parts=8)
    parts = ("obs", "carry", "episode_return", "episode_length")
    first, last = (
        x._replace(**flatten_streams(environment, {name: x._asdict()[name] for name in parts}))
        for x in (first, last)
    )
    return network, first, last, experience, episodes


def memories(experience: Any) -> Any:
    """Return the carry before every step, `[T, S, ...]`."""
    return memory_windows.carries_at_sequence_starts(experience.carry, 1)


@pytest.mark.parametrize(("core", "num_agents"), CASES)
def test_consecutive_steps_are_consistent(core: str, num_agents: int | None) -> None:
    _, first, _, experience, _ = happened(core, num_agents)
    ended = np.asarray(experience.terminated | experience.truncated)
    assert np.array_equal(experience.reset[1:], ended[:-1]), (
        "an observation begins an episode after an end, and only then"
    )
    going_on = ~ended[:-1]
    # Rounding may differ: XLA may compute a value that is used twice in two ways.
    np.testing.assert_allclose(
        experience.obs[1:][going_on], experience.next_obs[:-1][going_on], rtol=1e-6, atol=1e-7
    )
    assert not np.any(
        np.all(experience.obs[1:][ended[:-1]] == experience.next_obs[:-1][ended[:-1]], axis=-1)
    )
    assert np.array_equal(first.obs, experience.obs[0]), "a rollout begins where the last one ended"
    for stored, before in zip(
        jax.tree.leaves(memories(experience)), jax.tree.leaves(first.carry), strict=True
    ):
        assert np.array_equal(stored[0], before)
    assert ended.any() and not ended.all()


def test_a_rollout_stores_each_memory_entry_once() -> None:
    """A sliding memory is stored as one window for the start and then one entry per step."""
    _, first, _, experience, _ = happened("gtrxl", 2)
    before, stored = (
        sum(x.size for x in jax.tree.leaves(carry)) for carry in (first.carry, experience.carry)
    )
    assert stored < before + STEPS * before / 5 + STEPS * ENVS * 2 * 4, "5 entries to a window"
    assert np.any(jax.tree.leaves(memories(experience))[0] != 0)


@pytest.mark.parametrize(("core", "num_agents"), CASES)
def test_next_values_are_those_of_the_true_next_observation(
    core: str, num_agents: int | None
) -> None:
    """Values are those of the true observation and memory after each step, also at truncations."""
    network, _, last, experience, _ = happened(core, num_agents)
    found = np.asarray(
        returns.compute_next_values(network, experience, experience.extras.value, last.carry)
    )
    after = jax.tree.map(
        lambda x, y: jnp.concatenate([x[1:], y[None]]), memories(experience), last.carry
    )
    evaluate = jax.vmap(jax.vmap(lambda carry, obs: network(carry, obs)[1].value))
    expected = np.asarray(evaluate(after, experience.next_obs))
    terminated = np.asarray(experience.terminated)
    np.testing.assert_allclose(found[~terminated], expected[~terminated], rtol=1e-5, atol=1e-5)
    assert np.sum(experience.truncated) > experience.reward.shape[1], (
        "more truncations than fit into one batch"
    )
    assert np.any(experience.truncated[-1]) or np.any(~terminated[-1])


@pytest.mark.parametrize(("core", "num_agents"), CASES)
def test_episodes_are_counted(core: str, num_agents: int | None) -> None:
    """Returns and lengths of finished episodes include the steps of the rollout before."""
    _, first, last, experience, episodes = happened(core, num_agents)
    total, length = np.asarray(first.episode_return).copy(), np.asarray(first.episode_length).copy()
    returns, lengths, number = 0.0, 0, 0
    for reward, ended in zip(
        experience.reward, experience.terminated | experience.truncated, strict=True
    ):
        total, length = total + np.asarray(reward), length + 1
        returns, lengths, number = (
            returns + total[ended].sum(),
            lengths + length[ended].sum(),
            number + ended.sum(),
        )
        total[ended], length[ended] = 0.0, 0
    assert float(episodes.total_return) == pytest.approx(returns, rel=1e-4)
    assert (int(episodes.total_length), int(episodes.number)) == (lengths, number)
    np.testing.assert_allclose(last.episode_return, total, rtol=1e-4, atol=1e-5)
    assert np.array_equal(last.episode_length, length)


@pytest.mark.parametrize(("core", "num_agents"), [CASES[0], *CASES[1::2]])
def test_recorded_log_probs_and_values_are_those_of_the_network(
    core: str, num_agents: int | None
) -> None:
    """They are computed again from the recorded observations, memories and actions."""
    network, _, _, experience, _ = happened(core, num_agents)

    def look(carry: Any, obs: Any, reset: jax.Array, raw_action: jax.Array) -> Any:
        _, output = step_network(network, carry, obs, reset)
        return output.policy.log_prob(raw_action), output.value

    seen = memories(experience), experience.obs, experience.reset, experience.extras.raw_action
    log_prob, value = jax.vmap(jax.vmap(look))(*seen)
    np.testing.assert_allclose(experience.extras.log_prob, log_prob, atol=1e-5)
    np.testing.assert_allclose(experience.extras.value, value, atol=1e-5)


def test_rewards_are_scaled_by_discounted_returns() -> None:
    """Rewards are divided by the scale of the discounted returns so far, including this rollout."""
    network, _, _, experience, _ = happened("none", None)
    experience = experience._replace(
        reset=experience.reset.at[0].set(True)
    )  # so that the rewards before do not count
    moments, before = normalization.init_moments(0.0), jnp.full(ENVS, 7.0)
    scaled, discounted, returns = train_state.scale_rewards(
        TrainState(network, {}, None, moments), experience, before, 0.9
    )
    running, sums = np.zeros(ENVS), []
    for reward, ended in zip(
        experience.reward, experience.terminated | experience.truncated, strict=True
    ):
        running = 0.9 * running + np.asarray(reward)
        sums.append(running)
        running = np.where(ended, 0, running)
    np.testing.assert_allclose(scaled, experience.reward / np.std(sums), rtol=1e-4)
    np.testing.assert_allclose(discounted, running, rtol=1e-4, atol=1e-5)
    assert float(returns.size) == STEPS * ENVS
    plain = TrainState(network, {}, None, None)
    untouched, kept, absent = train_state.scale_rewards(plain, experience, discounted, 0.9)
    assert untouched is experience.reward and kept is discounted and absent is None
