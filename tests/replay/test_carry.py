"""Replay stores the memory of the policy, with which learning from a sample starts."""

from functools import cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.algorithms.off_policy import OffPolicyState, off_policy
from rollax.algorithms.replay_updates import AgentFns
from rollax.environments import Transition
from rollax.replay.replay_config import ReplayConfig
from rollax.replay.ring import make_uniform_replay
from rollax.spaces import Box, Discrete

FIRST = 10  # initial memory
CONFIG = ReplayConfig(
    num_envs=4,
    num_steps=12,
    capacity=1200,
    batch_size=16,
    replay_ratio=0.25,
    warmup=20.0,
    total_updates=4.0,
)


class Clock(eqx.Module):
    """Environment that shows the time since its start, for 1 to 5 steps.

    With agents, each leaves one step before the previous agent.
    """

    agents: int | None = eqx.field(static=True, default=None)

    name = "test/clock"
    observation_space = Box(0.0, 10.0, (1,))
    action_space = Discrete(2)

    @property
    def num_agents(self) -> int | None:
        return self.agents

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return (jax.random.randint(key, (), 1, 6), jnp.zeros((), jnp.int32)), jnp.zeros(
            (*self._shape(), 1)
        )

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        left, time = state[0] - 1, state[1] + 1
        over = jnp.broadcast_to(left, self._shape()) <= (
            0 if self.agents is None else jnp.arange(self.agents)
        )
        cut = over & jax.random.bernoulli(key)
        obs = jnp.full((*self._shape(), 1), time, jnp.float32)
        return Transition((left, time), obs, jnp.ones(self._shape()), over & ~cut, cut, {})

    def _shape(self) -> tuple[int, ...]:
        return () if self.agents is None else (self.agents,)


class Agent(NamedTuple):
    network: jax.Array


def learn(
    agent: Agent, config: Any, batch: Any, key: jax.Array, progress: jax.Array
) -> tuple[Agent, Any]:
    """Learn nothing, and report the difference between stored memories and the number of steps."""
    memory = jnp.where(batch.reset, FIRST, batch.carry)
    error = jnp.abs(memory - FIRST - batch.obs[:, 0])
    return agent, {"td_error": error, "loss": jnp.max(error), "resets": jnp.sum(batch.reset)}


COUNTING = AgentFns(
    init=lambda key, config: Agent(jnp.zeros(())),
    explore=lambda agent, config, obs, carry, noise, key, progress: (
        jax.random.randint(key, (), 0, 2),
        carry + 1,
    ),
    act=lambda agent, config, obs, carry, key, greedy: (jnp.zeros((), jnp.int32), carry + 1),
    update=learn,
    initial_carry=lambda agent: jnp.full((), FIRST, jnp.int32),
)


@cache
def played(agents: int | None, num_steps: int) -> tuple[OffPolicyState, list[Any]]:
    """Return the state and the metrics of three updates, the first of which acts randomly."""
    algorithm = off_policy(Clock(agents), COUNTING, lambda config: make_uniform_replay(num_steps))
    state, metrics = algorithm.init(jax.random.key(0), CONFIG), []
    step = jax.jit(algorithm.step)
    for _ in range(3):
        state, told = step(state)
        metrics.append(told)
    return state, metrics


@pytest.mark.parametrize("agents", [None, 3])
def test_memory_and_starts_are_in_replay(agents: int | None) -> None:
    """Each row has the memory after the previous step, before any reset.

    It also has a flag for the start of an episode.
    """
    state, _ = played(agents, 1)
    steps, sizes = jax.tree.map(np.asarray, (state.replay.data, state.replay.size))
    restarts = 0
    for stream, size in enumerate(sizes):
        row = jax.tree.map(lambda x, s=stream, n=size: x[s, :n], steps)
        ended = row.terminated | row.truncated
        assert row.reset[0] and row.carry[0] == FIRST
        np.testing.assert_array_equal(row.reset[1:], ended[:-1])
        np.testing.assert_array_equal(row.reset, row.obs[:, 0] == 0)
        after = np.where(row.reset, FIRST, row.carry) + 1
        # The memory of an agent that is done changes further, but these steps are not stored.
        counts = ~row.reset[1:] if agents else np.ones(size - 1, bool)
        np.testing.assert_array_equal(row.carry[1:][counts], after[:-1][counts])
        restarts += row.reset[1:].sum()
    assert restarts > 10 and np.any(steps.carry[steps.reset] != FIRST)


@pytest.mark.parametrize("agents", [None, 3])
@pytest.mark.parametrize("num_steps", [1, 3])
def test_samples_start_with_the_memory_of_their_observation(
    agents: int | None, num_steps: int
) -> None:
    """This includes samples with returns over several steps."""
    _, metrics = played(agents, num_steps)
    assert [float(told.values["loss"]) for told in metrics] == [0.0] * len(metrics)
    assert (
        all(told.values["resets"] > 1 for told in metrics)
        and metrics[-1].values["gradient_steps"] == CONFIG.num_steps
    )
