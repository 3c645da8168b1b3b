"""Tests of multi-agent episodes: rewards of agents that are done, and how an episode ends."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.acting.evaluation import make_episode_runner, split_episode_keys
from rollax.acting.streams import make_actor, split_step_keys, step
from rollax.environments import Transition
from rollax.spaces import Box, Discrete

END = 3  # number of steps of an episode


class Pair(eqx.Module):
    """Two agents with a reward of 1 per step.

    The second agent leaves after the first step, the first one at the end. Each of them terminates
    or is truncated.
    """

    terminates: tuple[bool, bool] = eqx.field(static=True)

    name = "test/pair"
    observation_space = Box(0.0, 10.0, (1,))
    action_space = Discrete(2)
    num_agents = 2
    time_limit = END

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return jnp.zeros((), jnp.int32), jnp.zeros((2, 1))

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        state = state + 1
        is_done = jnp.stack([state >= END, state >= 1])
        terminates = jnp.asarray(self.terminates)
        obs = jnp.full((2, 1), state, jnp.float32)
        reward = jnp.ones(2)
        return Transition(state, obs, reward, is_done & terminates, is_done & ~terminates, {})


def act(carry: Any, obs: Any, reset: jax.Array, key: jax.Array) -> tuple[Any, Any, None]:
    return carry, jnp.zeros(2, jnp.int32), None


ENDINGS = [(True, True), (True, False), (False, True), (False, False)]


@pytest.mark.parametrize("terminates", ENDINGS)
def test_an_agent_that_is_done_is_masked(terminates: tuple[bool, bool]) -> None:
    environment = Pair(terminates)
    state, obs = jax.vmap(environment.reset)(jax.random.split(jax.random.key(0), 1))
    actor = make_actor(environment, state, obs, ())
    advance = jax.jit(lambda actor, keys: step(environment, act, actor, split_step_keys(keys)))
    masks = []
    for time in range(END):
        actor, experience, _ = advance(actor, jax.random.split(jax.random.key(time), 1))
        assert experience.mask is not None
        masks.append(np.asarray(experience.mask[0]).tolist())
    assert masks == [[True, True], [True, False], [True, False]]
    assert actor.episode_return.tolist() == [[END, 1]]


@pytest.mark.quick
@pytest.mark.parametrize("terminates", ENDINGS)
def test_an_episode_terminates_only_if_all_agents_terminate(terminates: tuple[bool, bool]) -> None:
    """At the end of an episode, agents that left earlier still report how they ended."""
    environment = Pair(terminates)
    run = make_episode_runner(environment, END)
    played, _ = run(act, jnp.zeros((1, 0)), split_episode_keys(jax.random.key(0), 1))
    assert played.terminated.tolist() == [all(terminates)]
    assert played.truncated.tolist() == [not all(terminates)]
