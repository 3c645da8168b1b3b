"""C51, QR-DQN, IQN and Rainbow: targets and losses by hand and beside rlax, noise, and errors."""

import functools
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

import rollax
from laws.programs import fresh
from laws.walk import Walk
from rollax import tree
from rollax.algorithms import c51, iqn, q_learning, qr_dqn
from rollax.errors import UsageError
from rollax.learning.return_distributions import (
    midpoint_fractions,
    project_categorical,
    quantile_huber_loss,
)
from rollax.networks.action_values.implicit_quantiles import (
    ImplicitQuantileNetworkConfig,
    implicit_quantile_network,
)
from rollax.networks.action_values.noisy_layers import has_noise, make_noisy, sample_noise
from rollax.networks.action_values.q_networks import (
    CategoricalQNetworkConfig,
    QNetworkConfig,
    categorical_q_network,
    q_network,
)
from rollax.networks.layers import Linear
from rollax.replay.ring import ReplayBatch

CARTPOLE = "gymnax/CartPole-v1"
SIZE, ACTIONS, ATOMS = 6, 3, 11


class Table(eqx.Module):
    """Outputs of each action in two observations, 0 and 1."""

    outputs: jax.Array  # [2, n, m]

    def __call__(self, obs: jax.Array) -> jax.Array:
        return self.outputs[obs.astype(jnp.int32)]


def make_tables(size: int) -> tuple[Table, Table]:
    keys = jax.random.split(jax.random.key(3))
    online, target = (3 * jax.random.normal(key, (2, ACTIONS, size)) for key in keys)
    return Table(online), Table(target)


def make_batch() -> ReplayBatch:
    rng = np.random.default_rng(0)
    return ReplayBatch(
        obs=jnp.asarray(rng.integers(0, 2, SIZE), jnp.float32),
        action=jnp.asarray(rng.integers(0, ACTIONS, SIZE), jnp.int32),
        reward=jnp.asarray(rng.normal(size=SIZE), jnp.float32),
        discount=jnp.asarray([0.9, 0.9, 0.0, 0.5, 0.9, 0.81], jnp.float32),
        next_obs=jnp.asarray(rng.integers(0, 2, SIZE), jnp.float32),
        weight=jnp.ones(SIZE),
        reset=jnp.zeros(SIZE, bool),
        carry=(),
    )


@pytest.mark.quick
def test_projection_keeps_the_mean_and_is_that_of_rlax() -> None:
    support = jnp.linspace(-4.0, 4.0, ATOMS)
    probabilities = jax.nn.softmax(jax.random.normal(jax.random.key(0), (ATOMS,)))
    inside = 0.3 + 0.5 * support
    projected = project_categorical(inside, probabilities, support)
    assert float(projected @ support) == pytest.approx(float(probabilities @ inside), abs=1e-5)
    for atoms in (inside, 1.5 * support - 2, jnp.full(ATOMS, 7.0)):
        np.testing.assert_allclose(
            project_categorical(atoms, probabilities, support),
            rlax.categorical_l2_project(atoms, probabilities, support),
            atol=1e-6,
        )


@pytest.mark.filterwarnings("ignore:Rlax categorical_cross_entropy")
@pytest.mark.parametrize("double", [False, True])
def test_c51_is_that_of_rlax(double: bool) -> None:
    config = tree.to_arrays(c51.C51Config(double=double, v_min=-4.0, v_max=4.0))
    (online, target), batch = make_tables(ATOMS), make_batch()
    targets = c51.targets(online, target, config, batch, jax.random.key(0))
    loss, metrics = c51.loss(online, config, batch, targets, jax.random.key(0))
    support = jnp.linspace(-4.0, 4.0, ATOMS)

    def theirs(index: int) -> jax.Array:
        obs, next_obs = batch.obs[index], batch.next_obs[index]
        chooser = online if double else target
        values = jax.nn.softmax(chooser(next_obs)) @ support
        return rlax.categorical_double_q_learning(
            support,
            online(obs),
            batch.action[index],
            batch.reward[index],
            batch.discount[index],
            support,
            target(next_obs),
            values,
        )

    expected = jnp.stack([theirs(index) for index in range(SIZE)])
    assert float(loss) == pytest.approx(float(jnp.mean(expected)), rel=1e-5)
    entropy = -jnp.sum(jax.scipy.special.xlogy(targets, targets), axis=1)
    np.testing.assert_allclose(metrics["td_error"], expected - entropy, atol=1e-5)


@pytest.mark.parametrize("double", [False, True])
def test_qr_dqn_is_that_of_rlax(double: bool) -> None:
    config = tree.to_arrays(qr_dqn.QRDQNConfig(double=double, huber_delta=0.7))
    (online, target), batch = make_tables(5), make_batch()
    targets = qr_dqn.targets(online, target, config, batch, jax.random.key(0))
    loss, _ = qr_dqn.loss(online, config, batch, targets, jax.random.key(0))
    fractions = (jnp.arange(5) + 0.5) / 5

    def theirs(index: int) -> jax.Array:
        obs, next_obs = batch.obs[index], batch.next_obs[index]
        chooser = online if double else target
        return rlax.quantile_q_learning(
            online(obs).T,
            fractions,
            batch.action[index],
            batch.reward[index],
            batch.discount[index],
            chooser(next_obs).T,
            target(next_obs).T,
            0.7,
        )

    expected = jnp.mean(jnp.stack([theirs(index) for index in range(SIZE)]))
    # The Huber loss of rlax is not divided by its threshold.
    assert float(loss) * 0.7 == pytest.approx(float(expected), rel=1e-5)


def test_the_best_quantiles_are_those_of_the_samples() -> None:
    """Gradient descent on the loss with a small threshold finds the quantiles of the targets."""
    samples = jnp.asarray(np.random.default_rng(0).exponential(size=400), jnp.float32)
    fractions = midpoint_fractions(5)
    gradient = jax.grad(lambda theta: quantile_huber_loss(theta, fractions, samples, 0.01))
    theta = jax.lax.fori_loop(0, 20_000, lambda _, x: x - 0.003 * gradient(x), jnp.zeros(5))
    np.testing.assert_allclose(theta, np.quantile(samples, fractions), atol=0.03)


def test_quantiles_of_iqn_are_those_of_random_fractions() -> None:
    """With a network that returns fractions, targets are uniform between 0 and 1."""

    def network(obs: jax.Array, fractions: jax.Array) -> jax.Array:
        return jnp.stack([fractions, fractions - 1.0])

    config = tree.to_arrays(iqn.IQNConfig(num_target_fractions=500))
    batch = make_batch()._replace(reward=jnp.ones(SIZE), discount=jnp.full(SIZE, 0.5))
    targets = np.asarray(iqn.targets(network, network, config, batch, jax.random.key(0)))
    assert targets.shape == (SIZE, 500) and targets.min() >= 1 and targets.max() <= 1.5
    np.testing.assert_allclose(np.quantile(targets, [0.25, 0.75]), [1.125, 1.375], atol=0.02)
    np.testing.assert_allclose(iqn.action_values(network, config, batch.obs[0]), [0.5, -0.5])


def test_quantiles_of_the_implicit_network_depend_on_the_fraction() -> None:
    config = ImplicitQuantileNetworkConfig(hidden=(8, 8), noisy=True, dueling=True)
    network = implicit_quantile_network(Walk(), config, jax.random.key(0))
    obs, fractions = jnp.array([0.3, -1.0, 2.0]), jnp.array([0.1, 0.5, 0.9])
    quantiles = network(obs, fractions)
    assert quantiles.shape[1] == 3 and len(np.unique(quantiles[0])) == 3
    np.testing.assert_allclose(network(obs, fractions[1:]), quantiles[:, 1:], atol=1e-6)
    assert has_noise(network)


@pytest.mark.quick
def test_noise_of_dense_layers_has_the_scale_of_the_paper() -> None:
    """The variance of f(a) f(b) is E|a| E|b| = 2 / pi, and that of the bias is E|b|."""
    layer = make_noisy(Linear(4, 2, jax.random.key(0), 1.0))
    layer = eqx.tree_at(lambda part: part.bias_scale, layer, jnp.array([0.5, 2.0]))
    keys = jax.random.split(jax.random.key(1), 20_000)
    samples = jax.jit(jax.vmap(functools.partial(sample_noise, layer)))(keys)
    expected = (2 / np.pi) * (0.5 / 2) ** 2
    np.testing.assert_allclose(jnp.mean(samples.weight, 0), layer.weight, atol=0.01)
    np.testing.assert_allclose(jnp.var(samples.weight, 0), expected, rtol=0.1)
    scale = np.sqrt(2 / np.pi)
    np.testing.assert_allclose(jnp.var(samples.bias, 0), scale * np.array([0.25, 4.0]), rtol=0.1)


def test_noisy_networks_explore_and_are_greedy_without_noise() -> None:
    network = q_network(Walk(), QNetworkConfig(hidden=(16,), noisy=True), jax.random.key(0))
    assert not has_noise(network.features.encoder)
    config = tree.to_arrays(rollax.DQNConfig(epsilon=0.0))
    agent = q_learning.init_agent(network, config)
    fns = rollax.algorithms.dqn.FNS
    obs, keys = jnp.array([0.3, -1.0, 2.0]), jax.random.split(jax.random.key(1), 200)

    def act(greedy: bool, key: jax.Array) -> jax.Array:
        return q_learning.act(fns, agent, config, obs, (), key, greedy)[0]

    assert len(np.unique(jax.jit(jax.vmap(functools.partial(act, False)))(fresh(keys)))) > 1
    best = jax.jit(jax.vmap(functools.partial(act, True)))(fresh(keys))
    assert np.all(best == jnp.argmax(network(obs)))


def test_gradients_reach_the_noise_scales() -> None:
    network = categorical_q_network(
        Walk(), CategoricalQNetworkConfig(hidden=(8,), noisy=True, atoms=5), jax.random.key(0)
    )
    config = tree.to_arrays(c51.C51Config(learning_rate=0.1))
    agent = q_learning.init_agent(network, config)
    obs = jax.random.normal(jax.random.key(2), (SIZE, 3))
    batch = make_batch()._replace(obs=obs, next_obs=obs, action=jnp.zeros(SIZE, jnp.int32))
    updated, _ = q_learning.update(c51.FNS, agent, config, batch, jax.random.key(1))
    before, after = network.head.value, updated.network.head.value
    assert not np.allclose(before.weight_scale[:, :5], after.weight_scale[:, :5])
    assert not np.allclose(before.weight[:, :5], after.weight[:, :5])


@pytest.mark.parametrize(
    ("algorithm", "arguments", "message"),
    [
        ("c51", {"config": {"v_min": 1.0, "v_max": 1.0}}, "v_min .1. must be less than"),
        ("rainbow", {"network": {"atoms": 1}}, "network.atoms must be at least 2, got 1"),
        ("qr_dqn", {"network": {"quantiles": 0}}, "network.quantiles must be at least 1"),
        ("iqn", {"network": {"cosines": 0}}, "network.cosines must be at least 1"),
        ("iqn", {"config": {"num_fractions": 0}}, "num_fractions .0. must be"),
        ("qr_dqn", {"config": {"huber_delta": 0.0}}, "huber_delta .* must be"),
        ("c51", {"network": lambda key: Table(jnp.zeros((4, 3, 5)))}, "logits .* 51"),
        ("iqn", {"network": lambda key: lambda obs, tau: jnp.zeros((2, 7))}, "quantiles"),
        ("qrdqn", {}, "qr_dqn"),
    ],
)
def test_wrong_settings_and_networks_are_named(
    algorithm: str, arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        rollax.train(
            algorithm, CARTPOLE, options={"run_dir": str(tmp_path / "run")}, quiet=True, **arguments
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("algorithm", ["c51", "qr_dqn", "iqn", "rainbow"])
def test_only_discrete_actions_are_accepted(algorithm: str) -> None:
    with pytest.raises(UsageError, match="Discrete"):
        rollax.train(algorithm, "gymnax/Pendulum-v1", quiet=True)
