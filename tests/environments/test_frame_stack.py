"""Tests of stacked frames at the start, in the middle and at the end of episodes."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from rollax.environments import Transition
from rollax.environments.image_layouts import image_shape
from rollax.environments.wrappers import AgentId, FrameStack, TimeLimit
from rollax.errors import UsageError
from rollax.networks.actor_critic import NetworkConfig, actor_critic
from rollax.spaces import Box, Dict, Discrete, Grid, MultiDiscrete, Space


class Clock(eqx.Module):
    """The observation is the time in every kind of space. Never ends by itself."""

    agents: int | None = eqx.field(static=True, default=None)

    name, time_limit = "test/clock", None
    action_space = Discrete(2)
    observation_space = Dict(
        {
            "action_mask": Box(0.0, 1.0, (2,), "bool"),
            "cells": Grid((2, 3), (9, 8)),
            "number": Discrete(9),
            "numbers": MultiDiscrete((9, 8)),
            "picture": Box(0, 255, (24, 24, 1), "uint8"),
            "vector": Box(0.0, 9.0, (2,)),
        }
    )

    @property
    def num_agents(self) -> int | None:
        return self.agents

    def observe(self, time: jax.Array) -> Any:
        def fill(space: Space) -> jax.Array:
            return jnp.full(space.shape, time).astype(space.dtype)

        obs = {name: fill(part) for name, part in self.observation_space.items}
        obs["action_mask"] = jnp.array([True, False]) ^ (time % 2 == 1)
        if self.agents is None:
            return obs
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (self.agents, *x.shape)), obs)

    def reset(self, key: jax.Array) -> Any:
        return jnp.zeros((), jnp.int32), self.observe(jnp.zeros((), jnp.int32))

    def step(self, key: jax.Array, state: jax.Array, action: jax.Array) -> Transition:
        shape = () if self.agents is None else (self.agents,)
        no = jnp.zeros(shape, bool)
        return Transition(state + 1, self.observe(state + 1), jnp.zeros(shape), no, no, {})


def play(env: Any, steps: int) -> list[Any]:
    state, obs = env.reset(jax.random.key(0))
    seen, action = [obs], jnp.zeros(() if env.num_agents is None else (env.num_agents,), jnp.int32)
    for index in range(steps):
        after = env.step(jax.random.key(index + 1), state, action)
        state = after.state
        seen.append(after.obs)
    return seen


def test_frames_of_every_kind_of_space() -> None:
    env = FrameStack(Clock(), 3)
    spaces = env.observation_space.spaces
    assert spaces["picture"].shape == (3, 24, 24, 1) and spaces["picture"].layout == "NHWC"
    assert image_shape(spaces["picture"]) == (24, 24, 3)
    assert spaces["vector"].shape == (3, 2) and spaces["vector"].layout == "flat"
    assert spaces["cells"] == Grid((2, 3), (9, 8, 9, 8, 9, 8))
    assert spaces["number"] == MultiDiscrete((9, 9, 9))
    assert spaces["numbers"] == MultiDiscrete((9, 8, 9, 8, 9, 8))
    assert spaces["action_mask"] == Clock.observation_space.spaces["action_mask"]
    start, *_, last = play(env, 4)
    for obs, times in ((start, [0, 0, 0]), (last, [2, 3, 4])):
        assert bool(env.observation_space.contains(obs))
        np.testing.assert_array_equal(obs["vector"][:, 0], times)
        np.testing.assert_array_equal(obs["picture"][:, 5, 7, 0], times)
        np.testing.assert_array_equal(obs["number"], times)
        np.testing.assert_array_equal(obs["numbers"], np.repeat(times, 2))
        np.testing.assert_array_equal(obs["cells"][1, 2], np.repeat(times, 2))
    np.testing.assert_array_equal(last["action_mask"], [True, False])
    actor_critic(env, NetworkConfig(hidden=(4,)), jax.random.key(0))


def test_agents_have_their_frames() -> None:
    env = AgentId(FrameStack(Clock(agents=2), 2))
    last = play(env, 3)[-1]
    np.testing.assert_array_equal(last["vector"][..., 0], [[2, 3], [2, 3]])
    np.testing.assert_array_equal(last["agent_id"], [0, 1])
    assert last["cells"].shape == (2, 2, 3, 4)


def test_the_last_observation_is_true_and_the_next_episode_starts_anew() -> None:
    env = FrameStack(TimeLimit(Clock(), 2), 3)
    state, _ = env.reset(jax.random.key(0))
    for index in range(2):
        after = env.step(jax.random.key(index + 1), state, jnp.zeros((), jnp.int32))
        state = after.state
    assert bool(after.truncated)
    np.testing.assert_array_equal(after.obs["number"], [0, 1, 2])
    np.testing.assert_array_equal(env.inner_obs(state, after.obs)["vector"], [2, 2])
    assert int(env.inner_state(state)[1]) == 2
    _, obs = env.reset(jax.random.key(9))
    np.testing.assert_array_equal(obs["number"], [0, 0, 0])


def test_wrong_numbers_and_stacks_are_refused() -> None:
    with pytest.raises(UsageError, match="frames .0. must be an integer of at least 1"):
        FrameStack(Clock(), 0)
    with pytest.raises(UsageError, match="must not have stacked frames already"):
        FrameStack(FrameStack(Clock(), 2), 2)


def test_a_run_with_stacked_frames_is_trained_and_loaded(tmp_path: Path) -> None:
    config = {"num_envs": 4, "num_steps": 8, "num_minibatches": 1}
    options = rollax.RunOptions(
        total_steps=64,
        run_dir=tmp_path / "run",
        eval_episodes=2,
        eval_count=1,
        tensorboard=False,
        frame_stack=3,
    )
    network = {"hidden": (8,)}
    result = rollax.train(
        "ppo", "gymnax/CartPole-v1", config=config, network=network, options=options, quiet=True
    )
    policy = rollax.load(result.folder)
    assert policy.environment.observation_space.shape == (3, 4)
    assert policy.predict(np.zeros((3, 4), np.float32)) in (0, 1)
