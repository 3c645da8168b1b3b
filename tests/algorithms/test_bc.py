"""Behavior cloning: likelihood of actions, memory, agents, and the errors of its settings."""

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

import rollax
from laws.walk import Walk
from rollax import Demonstrations, NetworkConfig, UsageError, actor_critic
from rollax.algorithms.bc import BCConfig, bc
from rollax.networks import distributions
from rollax.networks.policy_heads import make_gaussian
from rollax.spaces import Ball, Box
from support.demonstrations import random_demonstrations

CONFIG = BCConfig(batch_size=32, num_gradient_steps=50, learning_rate=1e-2, total_updates=8.0)


def learned(data: Demonstrations, environment: Any, config: BCConfig = CONFIG, **network: Any):
    """Return the algorithm and its state after eight updates, with the metrics of the last one."""
    settings = NetworkConfig(hidden=(16,), core_size=8, **network)
    algorithm = bc(environment, lambda key: actor_critic(environment, settings, key), data)
    state = jax.jit(algorithm.init)(jax.random.key(0), config)
    step, metrics = jax.jit(algorithm.step), None
    for _ in range(8):
        state, metrics = step(state)
    assert metrics is not None
    return algorithm, state, metrics


def labeled(environment: Any, label: Any, lengths: tuple[int, ...] = (9, 1, 6, 16)) -> Any:
    """Return random demonstrations whose actions are `label(observations)`."""
    data = random_demonstrations(environment, lengths)
    actions = np.asarray(label(data.arrays["observations"]))
    return Demonstrations(data.arrays | {"actions": actions}, data.metadata)


@pytest.mark.parametrize("agents", [None, 2])
def test_discrete_actions_are_imitated(agents: int | None) -> None:
    env = Walk(agents=agents)
    data = labeled(env, lambda obs: obs.argmax(-1))
    algorithm, state, metrics = learned(data, env)
    carry, obs = algorithm.initial_carry(state), data.arrays["observations"]
    actions = jax.vmap(lambda o: algorithm.act(state, o, carry, jax.random.key(1), True)[0])(obs)
    np.testing.assert_array_equal(actions, data.arrays["actions"])
    assert metrics.values["log_prob"] > -0.2


@pytest.mark.parametrize("network", [{}, {"squash": True}, {"std": "fixed"}])
def test_continuous_actions_are_imitated(network: dict[str, Any]) -> None:
    env = Walk(continuous=True)
    data = labeled(env, lambda obs: np.tanh(0.1 * obs).astype(np.float32))
    config = dataclasses.replace(CONFIG, normalize_observations=True)
    algorithm, state, _ = learned(data, env, config, **network)
    obs = data.arrays["observations"]
    actions = jax.vmap(lambda o: algorithm.act(state, o, ((), ()), jax.random.key(0), True)[0])(obs)
    assert np.abs(actions - data.arrays["actions"]).mean() < 0.15
    assert np.std(data.arrays["actions"]) > 0.4
    mean, size = state.train.observations.mean, state.train.observations.size
    np.testing.assert_allclose(mean, obs.mean(0), rtol=1e-4, atol=1e-4)
    assert size == len(obs)


def test_a_network_with_memory_imitates_what_depends_on_the_past() -> None:
    """The action is the index of the largest entry of the previous observation."""
    env = Walk()
    data = random_demonstrations(env, (8,) * 8)
    previous = np.roll(data.arrays["observations"], 1, axis=0)
    previous[data.starts] = 0
    data = Demonstrations(data.arrays | {"actions": previous.argmax(-1)}, data.metadata)
    config = dataclasses.replace(CONFIG, sequence_length=8, batch_size=64)
    _, _, without = learned(data, env)
    _, _, metrics = learned(data, env, config, core="gru")
    assert metrics.values["log_prob"] > 0.5 * without.values["log_prob"]


def test_the_critic_is_not_trained() -> None:
    env = Walk()
    data = random_demonstrations(env)
    algorithm, state, _ = learned(data, env, dataclasses.replace(CONFIG, weight_decay=0.1))
    before = algorithm.init(jax.random.key(0), CONFIG)
    for part, is_same in (("critic", True), ("actor", False)):
        leaves = [jax.tree.leaves(getattr(each.train.network, part)) for each in (before, state)]
        same = all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))
        assert same == is_same


def test_a_policy_acts_without_demonstrations_but_does_not_learn() -> None:
    env = Walk()
    algorithm = bc(env, lambda key: actor_critic(env, NetworkConfig(hidden=(8,)), key))
    state = algorithm.init(jax.random.key(0), CONFIG)
    algorithm.act(state, jnp.zeros(3), ((), ()), jax.random.key(0), True)
    with pytest.raises(UsageError, match="must have demonstrations to learn from"):
        algorithm.step(state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_length": 5}, r"must divide batch_size \(32\). Set batch_size to 35"),
        ({"sequence_length": 32}, "at most the number of demonstrated steps"),
    ],
)
def test_sizes(settings: dict[str, Any], message: str) -> None:
    env = Walk()
    data = random_demonstrations(env)
    algorithm = bc(env, lambda key: actor_critic(env, NetworkConfig(hidden=(8,)), key), data)
    with pytest.raises(UsageError, match=message):
        algorithm.init(jax.random.key(0), dataclasses.replace(CONFIG, **settings))


BOX = Box((-1.0, 0.0), (1.0, 4.0), (2,))


@pytest.mark.parametrize(
    "policy",
    [
        make_gaussian(jnp.zeros(2), jnp.zeros(2), BOX, False),
        make_gaussian(jnp.zeros(2), jnp.zeros(2), BOX, True),
        distributions.RadiallySquashedGaussian(jnp.zeros(2), jnp.zeros(()), Ball(2, 3.0)),
        distributions.JointDistribution(
            {"a": make_gaussian(jnp.zeros(2), jnp.zeros(2), BOX, True)}
        ),
        distributions.Categorical(jnp.zeros((2, 3))),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_the_raw_action_has_the_given_action(policy: Any) -> None:
    """The same holds at the bounds, where the raw action is finite."""
    for seed in range(20):
        action = policy.action(policy.sample(jax.random.key(seed)))
        raw = policy.raw_action(action)
        again = policy.action(raw)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), again, action)
        assert np.isfinite(policy.log_prob(raw))
    if isinstance(policy, distributions.SquashedGaussian):
        assert np.isfinite(policy.log_prob(policy.raw_action(jnp.array([1.0, 0.0]))))
    if isinstance(policy, distributions.RadiallySquashedGaussian):
        assert np.isfinite(policy.log_prob(policy.raw_action(jnp.array([3.0, 0.0]))))
        np.testing.assert_array_equal(policy.raw_action(jnp.zeros(2)), 0)


@pytest.mark.slow
def test_twenty_episodes_are_enough_for_cartpole(tmp_path: Path) -> None:
    """The clone reaches 95 % of the return of its expert in new episodes."""
    options = {"tensorboard": False, "eval_count": 5}
    expert = rollax.train(
        "ppo", "gymnax/CartPole-v1", options=options | {"run_dir": tmp_path / "expert"}, quiet=True
    ).policy("best")
    target = expert.evaluate(128, jax.random.key(1))[0]["return_mean"]
    clone = rollax.train(
        "bc",
        "gymnax/CartPole-v1",
        demonstrations=rollax.record(expert, episodes=20),
        options=options | {"run_dir": tmp_path / "clone"},
        quiet=True,
    ).policy()
    assert target > 480
    assert clone.evaluate(128, jax.random.key(1))[0]["return_mean"] >= 0.95 * target


class LinenPolicy(linen.Module):
    """Logits of three actions, without a value."""

    @linen.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        return linen.Dense(3)(obs)


class LinenValue(linen.Module):
    @linen.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        return linen.Dense(1)(obs)


class EquinoxPolicy(eqx.Module):
    """Logits of three actions and a value."""

    layer: eqx.nn.Linear

    def __init__(self, inputs: int, key: jax.Array) -> None:
        self.layer = eqx.nn.Linear(inputs, 4, key=key)

    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        outputs = self.layer(obs)
        return outputs[:3], outputs[3]


@pytest.mark.parametrize("library", ["linen", "equinox"])
def test_networks_of_other_libraries_imitate(library: str) -> None:
    env = Walk()
    data = labeled(env, lambda obs: obs.argmax(-1))
    inputs = env.observation_space.shape[0]
    network = {
        "linen": lambda: rollax.from_linen(LinenPolicy(), env, algorithm="bc", critic=LinenValue()),
        "equinox": lambda: rollax.from_equinox(
            lambda key: EquinoxPolicy(inputs, key), env, algorithm="bc"
        ),
    }[library]()
    algorithm = bc(env, network, data)
    state = jax.jit(algorithm.init)(jax.random.key(0), CONFIG)
    step = jax.jit(algorithm.step)
    for _ in range(8):
        state, _ = step(state)
    carry, obs = algorithm.initial_carry(state), data.arrays["observations"]
    actions = jax.vmap(lambda o: algorithm.act(state, o, carry, jax.random.key(1), True)[0])(obs)
    assert np.mean(actions == data.arrays["actions"]) > 0.9
