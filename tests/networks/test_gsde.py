"""Generalized state-dependent exploration: noise that is linear in the features of the policy.

The equations are those of Raffin et al. 2021, arXiv:2005.05719, as in Stable-Baselines3: with
features z and weights W_ij ~ N(0, sigma_ij^2), the noise z W has the variances sum_i z_i^2
sigma_ij^2, to which 1e-6 is added.
"""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import rollax
from rollax.acting.held_noise import NoisyCarry, hold_noise, init_held_noise
from rollax.acting.streams import unroll
from rollax.algorithms.ppo import PPOConfig, ppo
from rollax.errors import UsageError
from rollax.networks.actor_critic import NetworkConfig, actor_critic
from rollax.networks.critics import StochasticActorCriticsConfig, make_stochastic_actor_critics
from rollax.networks.policy_heads import GaussianHead
from rollax.spaces import Box

SPACE = Box(-2.0, 2.0, (2,))
PENDULUM = "gymnax/Pendulum-v1"
SMALL = {
    "num_envs": 4,
    "num_steps": 16,
    "num_minibatches": 2,
    "learning_rate_final_fraction": 1.0,
}
REPLAY = {
    "num_envs": 4,
    "num_steps": 8,
    "capacity": 500,
    "batch_size": 16,
    "replay_ratio": 0.5,
    "warmup": 16,
}


def make_head(squash: bool = False) -> Any:
    """A head for four features whose weights have different standard deviations."""
    head = GaussianHead(4, SPACE, squash, 0.3, std="gsde", key=jax.random.key(0))
    log_std = jnp.log(jnp.linspace(0.1, 0.9, 8).reshape(4, 2))
    return eqx.tree_at(lambda head: head.log_std, head, log_std)


def features(seed: int = 1) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (4,))


@pytest.mark.parametrize("squash", [False, True])
def test_log_probability_is_that_of_the_induced_normal(squash: bool) -> None:
    head, z = make_head(squash), features()
    policy = head(z, None)
    raw_action = jnp.array([0.4, -0.7])
    sigma = np.exp(np.asarray(head.log_std, np.float64))
    std = np.sqrt(np.asarray(z, np.float64) ** 2 @ sigma**2 + 1e-6)
    normal = scipy.stats.norm(np.asarray(policy.mode()), std)
    expected = normal.logpdf(raw_action).sum()
    if squash:  # actions are 2 tanh(u)
        raw_action = np.asarray(raw_action)
        expected -= np.log(2 * (1 - np.tanh(raw_action) ** 2)).sum()
    np.testing.assert_allclose(policy.log_prob(jnp.asarray(raw_action)), expected, rtol=1e-5)
    if not squash:
        np.testing.assert_allclose(policy.entropy(), normal.entropy().sum(), rtol=1e-5)


def test_noise_is_linear_in_the_features() -> None:
    """With one key, the noise of a sum of features is the sum of their noises."""
    head, key = make_head(), jax.random.key(5)

    def noise(z: jax.Array) -> jax.Array:
        policy = head(z, None)
        return policy.sample(jax.random.clone(key)) - policy.mode()

    first, second = features(1), features(2)
    np.testing.assert_allclose(
        noise(first + 2 * second), noise(first) + 2 * noise(second), atol=1e-5
    )


def test_covariance_of_two_states_is_the_closed_form() -> None:
    """E[noise_j(z) noise_j(z')] = sum_i z_i z'_i sigma_ij^2, and dimensions are independent."""
    head, states = make_head(), (features(1), features(2))
    keys = jax.random.split(jax.random.key(0), 100_000)

    def sample(key: jax.Array) -> jax.Array:
        policies = [head(z, None) for z in states]
        return jnp.concatenate([p.sample(jax.random.clone(key)) - p.mode() for p in policies])

    found = np.cov(np.asarray(jax.vmap(sample)(keys)), rowvar=False)
    expected = np.zeros((4, 4))
    for row, z in enumerate(states):
        for column, other in enumerate(states):
            block = np.diag(np.asarray(z * other) @ np.exp(2 * np.asarray(head.log_std)))
            expected[2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = block
    np.testing.assert_allclose(found, expected, atol=0.03)


def test_noise_trains_its_weights_and_not_the_features() -> None:
    head, z = make_head(), features()
    entropy = jax.grad(lambda head, z: head(z, None).entropy(), argnums=(0, 1))(head, z)
    assert np.all(np.asarray(entropy[0].log_std) != 0)
    np.testing.assert_array_equal(entropy[1], 0.0)


@pytest.mark.parametrize(("frequency", "expected"), [(0, [0, 5]), (2, [0, 2, 4, 5, 7, 9])])
def test_weights_are_drawn_at_episode_starts_and_when_due(
    frequency: int, expected: list[int]
) -> None:
    resets = jnp.arange(10) == 5

    def step(held: Any, inputs: Any) -> tuple[Any, jax.Array]:
        held, key = hold_noise(held, *inputs, frequency)
        return held, jax.random.key_data(key)

    keys = jax.random.split(jax.random.key(0), 10)
    _, used = jax.lax.scan(step, init_held_noise(make_head()), (resets, keys))
    changes = [i for i in range(10) if i == 0 or np.any(used[i] != used[i - 1])]
    assert changes == expected
    np.testing.assert_array_equal(used[0], jax.random.key_data(keys[0]))


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_rollout_of_ppo_holds_its_weights(core: Any) -> None:
    """Actions are samples with the held key, and learning does not receive the noise state."""
    environment = rollax.make(PENDULUM)
    shape = NetworkConfig(hidden=(8,), std="gsde", core=core, core_size=8)
    algorithm = ppo(environment, lambda key: actor_critic(environment, shape, key))
    sizes = SMALL | {"sequence_length": 1 if core == "none" else 8}
    state = algorithm.init(jax.random.key(0), PPOConfig(**sizes, sde_sample_freq=4))
    assert isinstance(state.actor.carry, NoisyCarry)
    assert algorithm.rollouts is not None
    arguments = algorithm.rollouts(state._replace(key=jax.random.clone(state.key)))
    rollout = unroll(environment, *arguments).experience
    held = np.asarray(rollout.carry.held.key_data)  # before each step
    changes = [t for t in range(1, 15) if np.any(held[t + 1] != held[t])]
    assert changes == [4, 8, 12]
    network = state.train.network
    memory = jax.tree.map(lambda x: x[2, 0], rollout.carry.memory)
    obs = jax.tree.map(lambda x: x[2, 0], rollout.obs)
    policy = network(memory, obs)[1].policy
    action = policy.sample(jax.random.wrap_key_data(jnp.asarray(held[2, 0])))
    np.testing.assert_allclose(rollout.extras.raw_action[2, 0], action, rtol=1e-5)
    np.testing.assert_allclose(
        rollout.extras.log_prob[2, 0], policy.log_prob(action), rtol=1e-4, atol=1e-5
    )
    after, metrics = jax.jit(algorithm.step)(state)
    assert np.isfinite(float(metrics.values["loss"]))
    assert np.any(
        np.asarray(after.train.network.actor.head.log_std) != np.asarray(network.actor.head.log_std)
    )


def test_sac_explores_with_held_weights() -> None:
    environment = rollax.make(PENDULUM)
    shape = StochasticActorCriticsConfig(hidden=(8,), std="gsde", initial_std=0.3)
    algorithm = rollax.sac(
        environment, lambda key: make_stochastic_actor_critics(environment, shape, key)
    )
    config = rollax.SACConfig(**(REPLAY | {"warmup": 0}), learning_starts=1e9)
    state = algorithm.init(jax.random.key(0), config)
    assert algorithm.rollouts is not None
    arguments = algorithm.rollouts(state)._replace(num_steps=6)
    rollout = unroll(environment, *arguments).experience
    keys = np.asarray(rollout.carry.held.key_data)
    assert np.all(keys[1:] == keys[1]) and len(np.unique(keys[1], axis=0)) == 4
    obs = jax.tree.map(lambda x: x[3, 0], rollout.obs)
    policy = state.agent.network.actor(obs)
    raw_action = policy.sample(jax.random.wrap_key_data(jnp.asarray(keys[3, 0])))
    np.testing.assert_allclose(rollout.extras[3, 0], policy.action(raw_action), rtol=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "config"),
    [
        ("ppo", SMALL),
        ("impala", SMALL | {"sequence_length": 8}),
        ("ppo_rnd", SMALL),
        ("sac", REPLAY),
    ],
)
def test_a_population_trains_and_resumes_bit_for_bit(
    algorithm: str, config: dict[str, Any], tmp_path: Path
) -> None:
    def train(folder: str, steps: int) -> Any:
        return rollax.train(
            algorithm,
            PENDULUM,
            total_steps=steps,
            seeds=2,
            config=config | {"sde_sample_freq": 4},
            network={"std": "gsde", "hidden": (8,), "initial_std": 0.3},
            options={"run_dir": str(tmp_path / folder), "eval_episodes": 2},
            quiet=True,
        )

    whole = train("whole", 256)
    rollax.resume(train("part", 128), total_steps=256, quiet=True)
    states = [rollax.load(run, member=1).state for run in (whole, tmp_path / "part")]
    leaves = [jax.tree.leaves(s.train if algorithm != "sac" else s.agent) for s in states]
    assert all(map(np.array_equal, *leaves))


@pytest.mark.parametrize(
    ("environment", "settings", "message"),
    [
        ("gymnax/CartPole-v1", {"network": {"std": "gsde"}}, "gsde requires actions that consist"),
        (
            PENDULUM,
            {"config": {"sde_sample_freq": 4}},
            r"sde_sample_freq \(4.*\) has no effect.*network.std to gsde",
        ),
    ],
)
def test_settings_without_effect_are_refused(
    environment: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        rollax.train("ppo", environment, total_steps=4096, quiet=True, **settings)
