"""Standard deviations that are learned, functions of the state, or constant."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import rollax
from rollax.algorithms.ppo import PPOConfig, ppo
from rollax.errors import UsageError
from rollax.networks.actor_critic import NetworkConfig, actor_critic
from rollax.networks.critics import StochasticActorCriticsConfig, make_stochastic_actor_critics
from rollax.networks.policy_heads import MAX_LOG_STD, GaussianHead, StdKind, split_std
from rollax.spaces import Box
from rollax.training.options import RunOptions
from rollax.training.run_folder import layout
from rollax.training.spec import make_spec
from rollax.training.spec_file import parse_spec

SPACE = Box(-1.0, 1.0, (2,))


def updated_heads(std: StdKind, id: str) -> tuple[Any, Any]:
    """The policy head before and after an update of PPO."""
    environment = rollax.make(id)
    network = NetworkConfig(hidden=(8,), initial_std=0.5, std=std)
    algorithm = ppo(environment, lambda key: actor_critic(environment, network, key))
    config = PPOConfig(num_envs=4, num_steps=8, num_minibatches=1, learning_rate=0.01)
    state = algorithm.init(jax.random.key(0), config)
    after, metrics = jax.jit(algorithm.step)(state)
    assert np.isfinite(float(metrics.values["loss"]))
    return state.train.network.actor.head, after.train.network.actor.head


@pytest.mark.parametrize("id", ["probe/continuous", "granular/single-navigator"])
def test_a_fixed_std_does_not_change(id: str) -> None:
    before, after = updated_heads("fixed", id)
    np.testing.assert_array_equal(before.log_std, after.log_std)
    assert np.any(np.asarray(before.layer.weight) != np.asarray(after.layer.weight))
    np.testing.assert_allclose(np.exp(np.asarray(before.log_std)), 0.5, rtol=1e-6)


@pytest.mark.parametrize("id", ["probe/continuous", "granular/single-navigator"])
def test_the_std_of_a_state_is_learned(id: str) -> None:
    before, after = updated_heads("state", id)
    np.testing.assert_array_equal(before.log_std, after.log_std)
    rows = np.asarray(after.layer.weight)[-1], np.asarray(before.layer.weight)[-1]
    assert np.any(rows[0] != rows[1]), "the last row belongs to the standard deviation"
    first, second = (after(x * jnp.ones(8), None) for x in (-1.0, 1.0))
    log_stds = [np.asarray(getattr(p, "base", p).log_std) for p in (first, second)]
    assert np.all(log_stds[0] != log_stds[1])


def test_the_default_learns_one_number_per_dimension() -> None:
    before, after = updated_heads("shared", "probe/continuous")
    assert before.layer.weight.shape[0] == 1 and before.log_std.shape == (1,)
    assert np.any(np.asarray(before.log_std) != np.asarray(after.log_std))


def test_stds_of_states_are_bounded() -> None:
    outputs = jnp.array([0.1, 0.2, 100.0, 0.3])
    mean, log_std = split_std(outputs, jnp.log(jnp.full(2, 0.5)), 2, "state")
    np.testing.assert_allclose(mean, [0.1, 0.2], rtol=1e-6)
    np.testing.assert_allclose(log_std, [MAX_LOG_STD, np.log(0.5) + 0.3], rtol=1e-6)
    head = GaussianHead(3, SPACE, True, 0.5, std="state", key=jax.random.key(0))
    assert head(jnp.ones(3), None).base.log_std.shape == (2,)


@pytest.mark.parametrize("id", ["probe/continuous", "granular/single-navigator"])
@pytest.mark.parametrize("std", ["fixed", "shared", "state"])
def test_sac_has_all_kinds(std: StdKind, id: str) -> None:
    """At the start, all kinds have `initial_std`. Only "shared" has a parameter for it."""
    environment = rollax.make(id)
    shape = StochasticActorCriticsConfig(hidden=(8,), std=std, initial_std=0.5)
    algorithm = rollax.sac(
        environment, lambda key: make_stochastic_actor_critics(environment, shape, key)
    )
    config = rollax.SACConfig(
        num_envs=4, num_steps=8, capacity=100, batch_size=8, warmup=0, learn_temperature=False
    )
    state = algorithm.init(jax.random.key(0), config)
    after, _ = jax.jit(algorithm.step)(state)
    obs = jax.tree.map(lambda x: x[0], state.actor.obs)

    def log_std(state: Any) -> np.ndarray:
        policy = state.agent.network.actor(obs)
        return np.asarray(policy.base.log_std if hasattr(policy, "base") else policy.log_std)

    np.testing.assert_allclose(np.exp(log_std(state)), 0.5, rtol=0.05 if std == "state" else 1e-6)
    assert np.all(log_std(after) == log_std(state)) == (std == "fixed")
    assert (state.agent.network.actor.head.log_std is not None) == (std == "shared")


@pytest.mark.parametrize(
    ("algorithm", "environment", "settings", "message"),
    [
        (
            "sac",
            "gymnax/Pendulum-v1",
            {"network": {"std": "fixed"}},
            "learn_temperature must be false with network.std fixed",
        ),
        (
            "sac",
            "gymnax/CartPole-v1",
            {"network": {"std": "shared"}},
            "network.std .* has no effect",
        ),
        (
            "sac",
            "gymnax/Pendulum-v1",
            {"network": {"initial_std": 0.0}},
            "initial_std must be greater than 0",
        ),
        (
            "ppo",
            "gymnax/Pendulum-v1",
            {"network": {"std": "fixed"}, "config": {"entropy_coefficient": 0.02}},
            r"entropy_coefficient \(0.02\) has no effect.*is constant",
        ),
        (
            "ppo",
            "gymnax/Pendulum-v1",
            {"network": {"std": "fixed"}, "sweep": {"entropy_coefficient": [0.0, 0.1]}},
            "entropy_coefficient .* has no effect",
        ),
    ],
)
def test_settings_without_effect_are_refused(
    algorithm: str, environment: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        rollax.train(algorithm, environment, total_steps=20_000, quiet=True, **settings)


def test_a_folder_of_an_earlier_version_has_the_default_kind(tmp_path: Path) -> None:
    spec = make_spec(
        "sac", "gymnax/Pendulum-v1", {}, None, None, RunOptions(total_steps=20_000), {}
    )
    layout.write_spec(tmp_path, spec)
    document = yaml.safe_load((tmp_path / layout.CONFIG_FILE).read_text())
    del document["network"]["std"], document["network"]["initial_std"]
    del document["config"]["sde_sample_freq"]
    assert parse_spec(document) == spec
