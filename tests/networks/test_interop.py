"""Networks of other libraries act and learn, and unsuitable networks raise errors."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import rollax
from rollax.algorithms.ppo import PPOConfig, ppo
from rollax.errors import UsageError
from rollax.networks import interop
from rollax.runtime.installation import install_command

SMALL = PPOConfig(num_envs=4, num_steps=8, num_minibatches=2, num_epochs=1)
MEMORY = PPOConfig(num_envs=4, num_steps=8, num_minibatches=2, num_epochs=1, sequence_length=8)


class Linen(linen.Module):
    outputs: int

    @linen.compact
    def __call__(self, obs):
        features = linen.tanh(linen.Dense(16)(obs))
        return linen.Dense(self.outputs)(features), linen.Dense(1)(features)


class RecurrentLinen(linen.Module):
    @linen.compact
    def __call__(self, carry, obs):
        carry, features = linen.GRUCell(8)(carry, obs)
        return carry, (linen.Dense(2)(features), linen.Dense(1)(features))


class Nnx(nnx.Module):
    def __init__(self, inputs, outputs, rngs):
        self.hidden = nnx.List([nnx.Linear(inputs, 16, rngs=rngs), nnx.Linear(16, 16, rngs=rngs)])
        self.policy = nnx.Linear(16, outputs, rngs=rngs)
        self.value = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, obs):
        features = obs
        for layer in self.hidden:
            features = jnp.tanh(layer(features))
        return self.policy(features), self.value(features)


class RecurrentNnx(nnx.Module):
    def __init__(self, rngs):
        self.cell = nnx.GRUCell(1, 8, rngs=rngs)
        self.heads = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, carry, obs):
        carry, features = self.cell(carry, obs)
        outputs = self.heads(features)
        return carry, (outputs[:2], outputs[2])


class Equinox(eqx.Module):
    network: eqx.nn.MLP
    table: jax.Array  # integers, which are not trained

    def __init__(self, inputs, outputs, key):
        # The structure of the network must not depend on the identity of this function.
        self.network = eqx.nn.MLP(
            inputs, outputs + 1, 16, 1, activation=lambda x: jnp.tanh(x), key=key
        )
        self.table = jnp.arange(3)

    def __call__(self, obs):
        outputs = self.network(obs)
        return outputs[:-1], outputs[-1]


def plain(key):
    return {"weight": 0.1 * jax.random.normal(key, (1, 3))}


def apply_plain(parameters, obs):
    outputs = obs @ parameters["weight"]
    return outputs[:2], outputs[2]


def remember(parameters, carry, obs):
    return carry + obs, apply_plain(parameters, carry + obs)


FEED_FORWARD = {
    "function": lambda env: interop.from_function(plain, apply_plain, env),
    "linen": lambda env: interop.from_linen(Linen(2), env),
    "nnx": lambda env: interop.from_nnx(lambda rngs: Nnx(1, 2, rngs), env),
    "nnx module": lambda env: interop.from_nnx(Nnx(1, 2, nnx.Rngs(0)), env),
    "equinox": lambda env: interop.from_equinox(lambda key: Equinox(1, 2, key), env),
}
RECURRENT = {
    "function": lambda env: interop.from_function(plain, remember, env, initial_carry=jnp.zeros(1)),
    "linen": lambda env: interop.from_linen(RecurrentLinen(), env, initial_carry=jnp.zeros(8)),
    "nnx": lambda env: interop.from_nnx(RecurrentNnx, env, initial_carry=jnp.zeros(8)),
}


def one_update(env, network, config):
    """Return the network before and after one update, and the metrics."""
    algorithm = ppo(env, network)
    state = algorithm.init(jax.random.key(0), config)
    after, metrics = jax.jit(algorithm.step)(state)
    return state.train.network, after.train.network, metrics


def check_update(before, after, metrics):
    assert jax.tree.structure(before) == jax.tree.structure(after)
    assert all(
        np.isfinite(value).all() for value in jax.tree.leaves((after, metrics.values["loss"]))
    )
    assert any(
        np.any(a != b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    )


@pytest.mark.parametrize("make", FEED_FORWARD.values(), ids=FEED_FORWARD)
def test_feed_forward_networks_learn(make):
    env = rollax.make("probe/action-observation")
    check_update(*one_update(env, make(env), SMALL))


@pytest.mark.parametrize("make", RECURRENT.values(), ids=RECURRENT)
def test_recurrent_networks_learn(make):
    env = rollax.make("probe/memory", delay=2)
    check_update(*one_update(env, make(env), MEMORY))


@pytest.mark.parametrize("squash", [False, True])
def test_continuous_actions_have_a_trained_standard_deviation(squash):
    env = rollax.make("probe/continuous")
    network = interop.from_linen(Linen(1), env, initial_std=0.5, squash=squash)
    before, after, metrics = one_update(env, network, SMALL)
    check_update(before, after, metrics)
    assert np.allclose(before.network.log_std, np.log(0.5)) and np.any(
        after.network.log_std != before.network.log_std
    )


@pytest.mark.parametrize(
    "id, outputs", [("probe/multi-discrete", 4), ("probe/masked", 4), ("probe/two-agents", 2)]
)
def test_spaces_of_several_choices_masks_and_agents(id, outputs):
    env = rollax.make(id)
    features = jax.tree.leaves(env.observation_space.sample(jax.random.key(0)))[-1].size

    def apply(parameters, obs):
        vector = obs["features"] if isinstance(obs, dict) else obs
        result = vector @ parameters
        return result[:outputs], result[outputs]

    network = interop.from_function(
        lambda key: jax.random.normal(key, (features, outputs + 1)), apply, env
    )
    # The log-density of several choices compares [k, 1] with [n].
    with jax.numpy_rank_promotion("allow"):
        _, _, metrics = one_update(env, network, SMALL)
    assert np.isfinite(metrics.values["loss"])
    if id == "probe/masked":
        assert metrics.values["reward"] >= 0  # an illegal action gives -10


@pytest.mark.parametrize("make", FEED_FORWARD.values(), ids=FEED_FORWARD)
def test_leaves_are_arrays_and_making_is_vmappable(make):
    env = rollax.make("probe/action-observation")
    networks = jax.vmap(make(env))(jax.random.split(jax.random.key(0), 2))
    assert all(
        eqx.is_inexact_array(leaf) and leaf.shape[0] == 2 for leaf in jax.tree.leaves(networks)
    )


@pytest.mark.parametrize("kind", ["linen", "nnx", "equinox"])
def test_the_adapter_computes_the_outputs_of_the_module(kind):
    env, obs = rollax.make("probe/action-observation"), jnp.array([0.7])
    policy, value = {
        "linen": lambda: Linen(2).apply(Linen(2).init(jax.random.key(3), obs), obs),
        "nnx": lambda: Nnx(1, 2, nnx.Rngs(jax.random.key(3)))(obs),
        "equinox": lambda: Equinox(1, 2, jax.random.key(3))(obs),
    }[kind]()
    network = FEED_FORWARD[kind](env)(jax.random.key(3))
    carry, output = network(network.initial_carry(), obs)
    assert carry == ()
    assert np.allclose(output.policy.logits, policy, atol=1e-6) and np.allclose(
        output.value, np.squeeze(value), atol=1e-6
    )


def test_a_linen_network_learns_a_probe():
    env = rollax.make("probe/action-observation")
    algorithm = ppo(env, interop.from_linen(Linen(2), env))
    config = PPOConfig(
        num_envs=32, num_steps=8, num_minibatches=2, num_epochs=4, learning_rate=0.01
    )
    state = algorithm.init(jax.random.key(0), config)
    _, metrics = jax.jit(
        lambda state: jax.lax.scan(lambda s, _: algorithm.step(s), state, length=40)
    )(state)
    assert metrics.values["reward"][-5:].mean() > 0.9


def test_a_run_with_a_custom_network_is_trained_and_loaded(tmp_path):
    env = rollax.make("probe/action-observation")
    network = FEED_FORWARD["nnx"](env)
    options = rollax.RunOptions(
        total_steps=64, run_dir=tmp_path / "run", eval_episodes=2, eval_count=1, tensorboard=False
    )
    result = rollax.train("ppo", env, network=network, config=SMALL, options=options, quiet=True)
    policy = rollax.load(result.folder, environment=env, network=FEED_FORWARD["nnx"](env))
    action, _ = policy.act(jnp.ones(1), policy.initial_carry(), jax.random.key(0))
    assert action in (0, 1)


class Normalized(linen.Module):
    @linen.compact
    def __call__(self, obs):
        features = linen.BatchNorm(use_running_average=True)(linen.Dense(4)(obs))
        return linen.Dense(2)(features), linen.Dense(1)(features)


class NormalizedNnx(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(1, rngs=rngs)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda env: interop.from_linen(Linen(3), env), r"shape \(2,\), got \(3,\)"),
        (lambda env: interop.from_linen(Normalized(), env), "LayerNorm instead of BatchNorm"),
        (lambda env: interop.from_nnx(NormalizedNnx, env), "LayerNorm instead of BatchNorm"),
        (
            lambda env: interop.from_function(plain, lambda p, o: o, env),
            r"must return \(policy, value\)",
        ),
        (
            lambda env: interop.from_function(
                plain, remember, env, initial_carry=jnp.zeros(1, int)
            ),
            "carry must keep",
        ),
        (
            lambda env: interop.from_function(plain, lambda p, c, o: o, env, initial_carry=1.0),
            r"\(carry, outputs",
        ),
        (
            lambda env: interop.from_function(
                plain, lambda p, o: (jnp.zeros(2), jnp.zeros(2)), env
            ),
            r"value must have shape \(\) or \(1,\), got \(2,\)",
        ),
        (
            lambda env: interop.from_function(lambda k: {"n": 3}, apply_plain, env),
            r"got int for \['n'\]",
        ),
        (
            lambda env: interop.from_function(plain, apply_plain, env, squash=True),
            "Remove squash",
        ),
    ],
)
def test_unsuitable_networks_raise_usage_error(make, words):
    env = rollax.make("probe/action-observation")
    with pytest.raises(UsageError, match=words):
        make(env)(jax.random.key(0))


@pytest.mark.quick
def test_the_error_names_the_missing_library(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "flax.linen", None)
    with pytest.raises(UsageError, match=re.escape(install_command("linen"))):
        interop.from_linen(object(), rollax.make("probe/one-action"))


class NarrowNnx(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(7, 3, rngs=rngs)

    def __call__(self, obs):
        out = self.layer(obs)
        return out[:2], out[2]


class Narrow(eqx.Module):
    layer: eqx.nn.Linear

    def __init__(self, key, inputs=7):
        self.layer = eqx.nn.Linear(inputs, 3, key=key)

    def __call__(self, obs):
        out = self.layer(obs)
        return out[:2], out[2]


@pytest.mark.parametrize(
    "network, words",
    [
        (Narrow, r"got the class Narrow of equinox. Pass .*from_equinox\(lambda key: Narrow"),
        (
            Narrow(jax.random.key(0)),
            "got a module of the class Narrow of equinox. Pass .*from_equinox",
        ),
        (
            lambda key: Narrow(key),
            "Narrow fails with .*no attribute 'initial_carry'. Wrap it with .*from_equinox",
        ),
        (Linen, "got the class Linen of flax.linen. Pass .*from_linen"),
        (Linen(2), "got a module of the class Linen of flax.linen. Pass .*from_linen"),
        (NormalizedNnx, "got the class NormalizedNnx of flax.nnx. Pass .*from_nnx"),
    ],
)
def test_passing_a_module_as_the_network_raises_usage_error(network, words):
    with pytest.raises(UsageError, match=words):
        rollax.train("ppo", "probe/action-observation", network=network, total_steps=64)


@pytest.mark.parametrize(
    "make",
    [
        lambda env: interop.from_equinox(Narrow, env),
        lambda env: interop.from_nnx(lambda rngs: NarrowNnx(rngs), env),
    ],
)
def test_a_module_with_other_input_shapes_raises_usage_error(make):
    """The error has the shapes of its arrays, and the observation that it must accept."""
    env = rollax.make("gymnax/CartPole-v1")
    words = (
        r"must accept one observation of gymnax/CartPole-v1, float32\[4\].*but its "
        r"module Linear .*[37], [37].* fails with"
    )
    with pytest.raises(UsageError, match=words):
        make(env)(jax.random.key(0))
