"""Tests of TD3: updates against the paper's algorithm for several delays, and time limits."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.reference import TD3, Reward, check_layers, doubles, layers_of, random_batches
from laws.programs import assert_close, differs, fresh
from laws.walk import Walk
from rollax import NetworkConfig, PPOConfig, actor_critic, ppo, tree
from rollax.algorithms.td3 import TD3Config, init_agent, td3, update
from rollax.errors import UsageError
from rollax.networks.critics import ActorCriticsConfig, make_deterministic_actor_critics
from rollax.spaces import Box

SHAPE = ActorCriticsConfig(hidden=(8, 8))
RATES = {"learning_rate": 1e-2, "critic_learning_rate": 2e-2}
CONFIG = TD3Config(**RATES, tau=0.1, target_noise=0.4, target_noise_clip=0.3, reward_scale=2.0)


def begun(config: TD3Config, seed: int = 0) -> Any:
    return init_agent(
        make_deterministic_actor_critics(Walk(continuous=True), SHAPE, jax.random.key(seed)),
        tree.to_arrays(config),
    )


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("delay", [1.0, 2.0, 3.0])
def test_updates_are_those_of_the_paper(delay: float) -> None:
    """Six gradient steps equal those in NumPy.

    Critics change in every step. Every `delay` steps, the policy and both targets change, from the
    new critics.
    """
    config = dataclasses.replace(CONFIG, policy_delay=delay)
    agent, settings = doubles((begun(config), tree.to_arrays(config)))
    expected, step = TD3(agent, config), jax.jit(update)
    for i, batch in enumerate(doubles(random_batches(6, 16))):
        normal = np.asarray(jax.random.normal(jax.random.key(i), (16, 3)), float)
        expected.update(jax.tree.map(lambda x: np.asarray(x, float), batch), normal)
        before = agent
        agent, _ = step(agent, settings, batch, jax.random.key(i))
        moves = (i + 1) % delay == 0
        assert differs(before.target, agent.target) == moves
        assert differs(before.network.actor, agent.network.actor) == moves
        assert differs(before.network.critic, agent.network.critic)
    for network, actor, critics in (
        (agent.network, expected.actor, expected.critics),
        (agent.target, expected.target_actor, expected.target_critics),
    ):
        check_layers(layers_of(network.actor.dense, network.actor.head.layer), actor)
        for critic, other in zip(network.critic, critics, strict=True):
            check_layers(layers_of(critic.dense, critic.head), other)


def test_agents_under_vmap() -> None:
    """Under `vmap` with different settings, agents learn as they do alone."""
    own = (
        {"policy_delay": 1.0},
        {"learning_rate": 1e-3, "critic_learning_rate": 2e-3, "policy_delay": 2.0},
    )
    configs = [tree.to_arrays(dataclasses.replace(CONFIG, **settings)) for settings in own]
    agents = [begun(config, seed) for seed, config in enumerate(configs)]
    batches, keys = random_batches(2, 16), jax.random.split(jax.random.key(0), 2)
    stack = lambda *parts: jax.tree.map(lambda *x: jnp.stack(x), *parts)  # noqa: E731
    together, _ = jax.jit(jax.vmap(update))(
        stack(*agents), stack(*configs), stack(*batches), fresh(keys)
    )
    for i in range(2):
        alone, _ = jax.jit(update)(agents[i], configs[i], batches[i], fresh(keys)[i])
        assert_close(jax.tree.map(lambda x, i=i: x[i], together), alone)
        assert differs(agents[i].target, jax.tree.map(lambda x, i=i: x[i], together.target)) == (
            i == 0
        ), "of the delay of 1"


@pytest.mark.parametrize("terminate", [False, True])
def test_values_at_time_limits(terminate: bool) -> None:
    """With reward 1 and discount 0.9, the value is 10 if episodes are truncated.

    If they terminate, it is (1 - 0.9^(8 - t)) / 0.1 at step t.
    """
    environment = Reward(terminate)
    config = TD3Config(
        num_envs=8, num_steps=32, capacity=8000, batch_size=64, warmup=100.0, gamma=0.9,
        tau=0.05, replay_ratio=0.5,
        learning_rate=1e-2, learning_rate_final_fraction=0.0, total_updates=25.0,
    )  # fmt: skip
    algorithm = td3(
        environment,
        lambda key: make_deterministic_actor_critics(
            environment, ActorCriticsConfig(hidden=(16, 16)), key
        ),
    )
    state = jax.jit(algorithm.init)(jax.random.key(0), config)
    step = jax.jit(algorithm.step)
    for _ in range(25):
        state, _ = step(state)
    times = jnp.arange(8)
    look = jax.vmap(
        lambda time: state.agent.network.critic[0](environment.observe(time), jnp.zeros(1))
    )
    expected = (1 - 0.9 ** (8 - times)) / 0.1 if terminate else jnp.full(8, 10.0)
    np.testing.assert_allclose(look(times), expected, rtol=0.05)


@pytest.mark.quick
def test_actions_of_the_policy() -> None:
    """Greedy actions are those of the policy within the environment's bounds.

    Others have exploration noise and are clipped.
    """
    environment = Reward()
    algorithm = td3(
        environment, lambda key: make_deterministic_actor_critics(environment, SHAPE, key)
    )
    obs = jnp.linspace(-1, 1, 8)
    for noise in (0.2, 5.0):
        state = algorithm.init(jax.random.key(0), TD3Config(capacity=1000, exploration_noise=noise))
        own = 2 * state.agent.network.actor(obs)
        greedy, _ = algorithm.act(state, obs, (), jax.random.key(0), True)
        np.testing.assert_allclose(greedy, own, rtol=1e-6)
        draw = jax.vmap(
            lambda key, state=state: algorithm.act(state, obs, (), key, jnp.asarray(False))[0]
        )
        sampled = np.asarray(draw(jax.random.split(jax.random.key(1), 4000)))
        assert np.abs(sampled).max() <= 2
        if noise < 1:
            np.testing.assert_allclose(
                [sampled.mean() - own[0], sampled.std()], [0, 2 * noise], atol=0.02
            )
        else:
            assert np.mean(np.abs(sampled) == 2) > 0.8, "what is beyond the bounds is clipped"


def test_discrete_actions_are_refused() -> None:
    with pytest.raises(UsageError, match="Box of floats with finite bounds.*dqn"):
        td3(Walk(), lambda key: None)


def test_unbounded_actions_are_refused_with_an_alternative() -> None:
    """The message suggests PPO and not DQN, which needs discrete actions."""

    class Unbounded(Walk):
        action_space = Box(-np.inf, np.inf, (3,))

    world = Unbounded(continuous=True)
    with pytest.raises(UsageError, match="Give the space finite bounds, or use ppo") as error:
        td3(world, lambda key: None)
    assert "dqn" not in str(error.value)
    config = PPOConfig(num_envs=2, num_steps=4, num_minibatches=1)
    algorithm = ppo(world, lambda key: actor_critic(world, NetworkConfig(hidden=(4,)), key))
    jax.eval_shape(algorithm.step, jax.eval_shape(algorithm.init, jax.random.key(0), config))
