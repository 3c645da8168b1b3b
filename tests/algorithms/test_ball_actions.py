"""Replay algorithms act, explore and learn in action spaces that are balls."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import environments
from rollax.acting.exploration import random_action
from rollax.algorithms.pga_me import PGAMEConfig, pga_me
from rollax.algorithms.sac import SACConfig, sac
from rollax.algorithms.td3 import TD3Config, td3
from rollax.environments import Transition
from rollax.networks.critics import (
    StochasticActorCriticsConfig,
    make_deterministic_actor_critics,
    make_stochastic_actor_critics,
    project_onto_ball,
)
from rollax.networks.solutions import PolicyConfig, make_solution
from rollax.spaces import Ball, Box

SMALL = StochasticActorCriticsConfig(hidden=(32,))
ALGORITHMS: dict[str, tuple[Any, Any, Any]] = {
    "sac": (sac, SACConfig, make_stochastic_actor_critics),
    "td3": (td3, TD3Config, make_deterministic_actor_critics),
}
SIZES = {"num_envs": 4, "num_steps": 8, "capacity": 512, "batch_size": 16, "replay_ratio": 0.25}


class Push(eqx.Module):
    """Episodes of one step with the reward -|action - target|^2. The target is observed."""

    num_agents, time_limit, name = None, 1, "test/push"
    observation_space, action_space = Box(-1.0, 1.0, (2,)), Ball(2, 3.0)

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        target = jax.random.ball(key, 2)
        return target, target

    def step(self, key: jax.Array, state: jax.Array, action: jax.Array) -> Transition:
        reward = -jnp.sum((action - 3.0 * state) ** 2)
        done = jnp.ones((), bool)
        return Transition(state, state, reward, done, ~done, {})


def make(name: str, environment: Any) -> tuple[Any, Any]:
    algorithm, config, network = ALGORITHMS[name]
    return algorithm(environment, lambda key: network(environment, SMALL, key)), config


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_random_actions_are_uniform(size: int) -> None:
    """The d-th power of the norm is uniform, and no direction is preferred."""
    noise = jax.random.normal(jax.random.key(0), (4000, size))
    key = jax.random.key(1)
    space = Ball(size, 3.0)
    actions = jax.vmap(lambda z: random_action(space, jnp.zeros(1), z, key))(noise)
    powers = np.sort(np.linalg.norm(np.asarray(actions), axis=1) ** size)
    np.testing.assert_allclose(powers, np.linspace(0, 1, 4000), atol=0.04)
    np.testing.assert_allclose(np.mean(np.asarray(actions), axis=0), 0, atol=0.04)


def test_projection_changes_only_actions_outside() -> None:
    inside, outside = jnp.array([0.3, -0.4]), jnp.array([3.0, -4.0])
    np.testing.assert_array_equal(project_onto_ball(inside), inside)
    np.testing.assert_allclose(project_onto_ball(outside), [0.6, -0.8], rtol=1e-6)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("id", ["hunting/2-players", "granular/many-navigators"])
def test_updates_in_environments_with_balls(name: str, id: str) -> None:
    environment = environments.make(id)
    algorithm, config = make(name, environment)
    state = algorithm.init(jax.random.key(0), config(warmup=8, **SIZES))
    state, metrics = jax.jit(algorithm.step)(state)
    assert np.isfinite(float(metrics.values["loss"]))
    stored = np.linalg.norm(np.asarray(state.replay.data.action), axis=-1)
    assert np.all(stored <= 1 + 1e-5) and np.max(stored) > 0.5


@pytest.mark.parametrize("name", ALGORITHMS)
def test_actions_have_the_radius_of_the_space(name: str) -> None:
    environment = Push()
    algorithm, config = make(name, environment)
    state = algorithm.init(jax.random.key(0), config(**SIZES))
    keys = jax.random.split(jax.random.key(1), 200)
    act = jax.vmap(lambda key: algorithm.act(state, jnp.ones(2), (), key, False)[0])
    actions = np.asarray(act(keys))
    assert np.all(np.linalg.norm(actions, axis=1) <= 3 + 1e-4)
    greedy, _ = algorithm.act(state, jnp.ones(2), (), jax.random.key(2), True)
    assert greedy.shape == (2,)


def test_offspring_by_policy_gradients() -> None:
    environment = environments.make("granular/single-navigator")
    policy = PolicyConfig(hidden=(8,))
    algorithm = pga_me(environment, lambda key: make_solution(environment, policy, key))
    config = PGAMEConfig(
        batch_size=4, critic_updates=2, policy_updates=2, capacity=1024, critic_hidden=(8,)
    )
    state = algorithm.init(jax.random.key(0), config)
    _, metrics = jax.jit(algorithm.step)(state)
    assert np.isfinite(float(metrics.values["critic_loss"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_observed_target_is_reached(name: str) -> None:
    environment = Push()
    algorithm, config = make(name, environment)
    sizes = SIZES | {"num_envs": 8, "num_steps": 50, "capacity": 20_000, "batch_size": 64}
    state = algorithm.init(jax.random.key(0), config(warmup=400, learning_rate=3e-3, **sizes))
    step = jax.jit(algorithm.step)
    for _ in range(25):
        state, _ = step(state)
    targets = jax.vmap(lambda key: 0.9 * jax.random.ball(key, 2))(
        jax.random.split(jax.random.key(1), 256)
    )
    act = jax.vmap(lambda obs: algorithm.act(state, obs, (), jax.random.key(2), True)[0])
    error = np.linalg.norm(np.asarray(act(targets)) - 3 * np.asarray(targets), axis=1)
    assert np.mean(error) < 0.3, "a tenth of the radius"
