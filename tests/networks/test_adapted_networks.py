"""Custom networks for DQN, PQN, SAC and TD3, and separate critics for PPO and IMPALA."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import rollax
from rollax.algorithms.dqn import DQNConfig, dqn
from rollax.algorithms.impala import ImpalaConfig, impala
from rollax.algorithms.ppo import PPOConfig, ppo
from rollax.algorithms.pqn import PQNConfig, pqn
from rollax.algorithms.sac import SACConfig, sac
from rollax.algorithms.td3 import TD3Config, td3
from rollax.errors import UnknownNameError, UsageError
from rollax.learning.train_state import split_network
from rollax.networks.interop import from_equinox, from_function, from_linen, from_nnx

REPLAY = {
    "num_envs": 4,
    "num_steps": 8,
    "capacity": 256,
    "batch_size": 8,
    "replay_ratio": 0.25,
    "warmup": 4,
}
ROLLOUT = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "num_epochs": 1}
ALGORITHMS: dict[str, tuple[Any, Any]] = {
    "dqn": (dqn, DQNConfig(**REPLAY)),
    "pqn": (pqn, PQNConfig(**ROLLOUT)),
    "sac": (sac, SACConfig(**REPLAY)),
    "td3": (td3, TD3Config(**REPLAY)),
    "ppo": (ppo, PPOConfig(**ROLLOUT, critic_epochs=2)),
    "impala": (impala, ImpalaConfig(num_envs=4, num_steps=8, sequence_length=8, num_minibatches=1)),
}


class LinenLayer(linen.Module):
    """One layer of all inputs, whose outputs are split into `parts` outputs."""

    outputs: int
    parts: int = 1

    @linen.compact
    def __call__(self, *inputs: jax.Array) -> Any:
        return split(linen.Dense(self.outputs)(jnp.concatenate(inputs)), self.parts)


class NnxLayer(nnx.Module):
    def __init__(self, inputs: int, outputs: int, parts: int, rngs: nnx.Rngs) -> None:
        self.layer, self.parts = nnx.Linear(inputs, outputs, rngs=rngs), parts

    def __call__(self, *inputs: jax.Array) -> Any:
        return split(self.layer(jnp.concatenate(inputs)), self.parts)


class EquinoxLayer(eqx.Module):
    layer: eqx.nn.Linear
    parts: int

    def __init__(self, inputs: int, outputs: int, parts: int, key: jax.Array) -> None:
        self.layer, self.parts = eqx.nn.Linear(inputs, outputs, key=key), parts

    def __call__(self, *inputs: jax.Array) -> Any:
        return split(self.layer(jnp.concatenate(inputs)), self.parts)


def split(outputs: jax.Array, parts: int) -> Any:
    return outputs if parts == 1 else tuple(jnp.split(outputs, parts))


def adapt(library: str, env: Any, outputs: int, parts: int, algorithm: str, critic: Any) -> Any:
    """Adapt a layer, and a critic layer with `critic` inputs unless it is None."""
    size = env.observation_space.shape[0]
    if library == "linen":
        second = None if critic is None else LinenLayer(1)
        return from_linen(LinenLayer(outputs, parts), env, algorithm=algorithm, critic=second)
    if library == "nnx":
        second = None if critic is None else (lambda rngs: NnxLayer(critic, 1, 1, rngs))
        return from_nnx(
            lambda rngs: NnxLayer(size, outputs, parts, rngs),
            env,
            algorithm=algorithm,
            critic=second,
        )
    second = None if critic is None else (lambda key: EquinoxLayer(critic, 1, 1, key))
    return from_equinox(
        lambda key: EquinoxLayer(size, outputs, parts, key), env, algorithm=algorithm, critic=second
    )


# name: (environment, outputs, parts of the outputs, inputs of the critic)
CASES = {
    "dqn": ("probe/action-observation", 2, 1, None),
    "pqn": ("probe/action-observation", 2, 1, None),
    "sac": ("probe/continuous", 2, 2, 2),
    "td3": ("probe/continuous", 1, 1, 2),
    "ppo": ("probe/action-observation", 2, 1, 1),
    "impala": ("probe/continuous", 1, 1, 1),
}


def parameters_of(state: Any, name: str) -> Any:
    return state.train.network if name in ("ppo", "pqn", "impala") else state.agent.network


@pytest.mark.parametrize("library", ["linen", "nnx", "equinox"])
@pytest.mark.parametrize("name", CASES)
def test_an_update_changes_the_network(name: str, library: str) -> None:
    id, outputs, parts, critic = CASES[name]
    env = rollax.make(id)
    make, config = ALGORITHMS[name]
    algorithm = make(env, adapt(library, env, outputs, parts, name, critic))
    state = algorithm.init(jax.random.key(0), config)
    after, metrics = jax.jit(algorithm.step)(state)
    before, after = parameters_of(state, name), parameters_of(after, name)
    assert np.isfinite(float(metrics.values["loss"]))
    assert jax.tree.structure(before) == jax.tree.structure(after)
    for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert x.shape == () or np.any(np.asarray(x) != np.asarray(y))


def test_critics_have_independent_weights() -> None:
    env = rollax.make("probe/continuous")
    network = adapt("equinox", env, 2, 2, "sac", 2)(jax.random.key(0))
    assert len(network.critic) == 2
    first, second = (jax.tree.leaves(critic)[0] for critic in network.critic)
    assert np.any(np.asarray(first) != np.asarray(second))


def test_a_separate_critic_has_an_optimizer() -> None:
    env = rollax.make("probe/action-observation")
    network = adapt("equinox", env, 2, 1, "ppo", 1)(jax.random.key(0))
    assert set(split_network(network)) == {"actor", "critic"}
    carry, output = network(network.initial_carry(), jnp.ones(1))
    assert carry == () and output.value.shape == ()
    _, outputs = network.unroll((), jnp.ones((3, 2, 1)), jnp.zeros((3, 2), bool))
    assert outputs.value.shape == (3, 2)


def test_recurrent_action_values() -> None:
    env = rollax.make("probe/memory", delay=2)

    def apply(parameters: Any, carry: jax.Array, obs: jax.Array) -> Any:
        return carry + obs, (carry + obs) @ parameters

    network = from_function(
        lambda key: jax.random.normal(key, (1, 2)),
        apply,
        env,
        algorithm="pqn",
        initial_carry=jnp.zeros(1),
    )
    config = PQNConfig(**ROLLOUT, sequence_length=8)
    algorithm = pqn(env, network)
    state, metrics = jax.jit(algorithm.step)(algorithm.init(jax.random.key(0), config))
    assert np.isfinite(float(metrics.values["loss"]))


class Ball(eqx.Module):
    """Spread of one number for all directions of a ball."""

    layer: eqx.nn.Linear

    def __call__(self, obs: jax.Array) -> Any:
        outputs = self.layer(obs)
        return outputs[:-1], outputs[-1]


def test_policies_in_a_ball() -> None:
    env = rollax.make("granular/single-navigator")
    size = env.observation_space.shape[0]
    network = from_equinox(
        lambda key: Ball(eqx.nn.Linear(size, 3, key=key)),
        env,
        algorithm="sac",
        critic=lambda key: EquinoxLayer(size + 2, 1, 1, key),
    )
    policy = network(jax.random.key(0)).actor(jnp.ones(size))
    assert float(jnp.linalg.norm(policy.action(policy.mode()))) < 1


DISCRETE, CONTINUOUS = "probe/action-observation", "probe/continuous"


@pytest.mark.parametrize(
    ("name", "id", "outputs", "parts", "critic", "words"),
    [
        ("dqn", DISCRETE, 3, 1, None, r"EquinoxLayer .*action values.*shape \(2,\), got \(3,\)"),
        ("pqn", DISCRETE, 4, 2, None, r"EquinoxLayer .*action values.*shape \(2,\), got a tuple"),
        ("sac", CONTINUOUS, 4, 2, 2, r"EquinoxLayer .*mean.*shape \(1,\), got \(2,\)"),
        ("sac", CONTINUOUS, 1, 1, 2, r"EquinoxLayer must return \(mean, log_std\)"),
        ("td3", CONTINUOUS, 3, 1, 2, r"EquinoxLayer .*policy output.*shape \(1,\), got \(3,\)"),
        (
            "td3",
            CONTINUOUS,
            1,
            1,
            1,
            r"float32\[1\] and one action float32\[1\].*its module Linear .*fails with",
        ),
        ("td3", CONTINUOUS, 1, 1, None, "td3 needs a critic"),
        ("dqn", DISCRETE, 2, 1, 1, "critic does not apply to networks for dqn"),
        ("dqn", CONTINUOUS, 2, 1, None, "must be Discrete"),
        ("td3", DISCRETE, 2, 1, 3, "must be a Box of floats with finite bounds or a Ball"),
        ("sac", DISCRETE, 2, 2, 3, r"policy output .*shape \(2,\), got a tuple"),
    ],
)
def test_networks_that_do_not_fit_are_named(
    name: str, id: str, outputs: int, parts: int, critic: Any, words: str
) -> None:
    env = rollax.make(id)
    with pytest.raises(UsageError, match=words):
        adapt("equinox", env, outputs, parts, name, critic)(jax.random.key(0))


def test_options_without_effect_are_refused() -> None:
    env = rollax.make(DISCRETE)
    with pytest.raises(UsageError, match="squash does not apply to networks for dqn"):
        from_linen(LinenLayer(2), env, algorithm="dqn", squash=True)
    with pytest.raises(UsageError, match="num_critics does not apply to networks for ppo"):
        from_linen(LinenLayer(2), env, num_critics=3)
    with pytest.raises(UnknownNameError, match="did you mean dqn"):
        from_linen(LinenLayer(2), env, algorithm="dqqn")


@pytest.mark.parametrize(
    ("algorithm", "trained", "id", "words"),
    [
        ("dqn", "ppo", DISCRETE, "algorithm='dqn'"),
        ("pqn", "dqn", DISCRETE, "algorithm='pqn'"),
        ("sac", "td3", CONTINUOUS, "algorithm='sac'"),
        ("td3", "sac", CONTINUOUS, "algorithm='td3'"),
        ("ppo", "pqn", DISCRETE, "algorithm='ppo'"),
    ],
)
def test_networks_of_another_algorithm_are_refused(
    algorithm: str, trained: str, id: str, words: str
) -> None:
    """Before training, with the outputs that were found and expected."""
    _, outputs, parts, critic = CASES[trained]
    network = adapt("equinox", rollax.make(id), outputs, parts, trained, critic)
    with pytest.raises(UsageError, match=words):
        rollax.train(algorithm, id, network=network, total_steps=5000, quiet=True)


@pytest.mark.parametrize("name", ["dqn", "td3"])
def test_a_run_is_trained_and_loaded(tmp_path: Any, name: str) -> None:
    id, outputs, parts, critic = CASES[name]
    env = rollax.make(id)
    network = adapt("nnx", env, outputs, parts, name, critic)
    options = rollax.RunOptions(
        total_steps=64, run_dir=tmp_path / "run", eval_episodes=2, eval_count=1, tensorboard=False
    )
    config = ALGORITHMS[name][1]
    result = rollax.train(name, env, network=network, config=config, options=options, quiet=True)
    policy = rollax.load(result.folder, environment=env, network=network)
    action, _ = policy.act(jnp.ones(1), policy.initial_carry(), jax.random.key(0))
    assert bool(env.action_space.contains(action))


@pytest.mark.parametrize(
    ("algorithm", "part"),
    [
        ("ppo", r"from_equinox\(lambda key: EquinoxLayer\(..., key=key\), environment\)"),
        ("dqn", r'key=key\), environment, algorithm="dqn"\)'),
        ("map_elites", r"lambda key: EquinoxLayer\(..., key=key\)\.$"),
    ],
)
def test_a_module_is_answered_with_the_call_that_adapts_it(algorithm: str, part: str) -> None:
    with pytest.raises(UsageError, match=part):
        rollax.train(algorithm, "control/point-maze", network=EquinoxLayer, quiet=True)


def test_an_output_of_the_wrong_kind_is_described_by_its_shape() -> None:
    env = rollax.make("gymnax/CartPole-v1")
    network = rollax.from_equinox(lambda key: EquinoxLayer(4, 2, 1, key), env)
    with pytest.raises(UsageError, match=r"\(policy, value\), got an array of shape \(2,\)"):
        rollax.train("ppo", env, network=network, quiet=True)


def test_a_recurrent_network_may_start_from_an_array() -> None:
    env = rollax.make("gymnax/CartPole-v1")

    def apply(weight: jax.Array, carry: jax.Array, obs: jax.Array) -> Any:
        carry = 0.5 * carry + jnp.sum(obs)
        return carry, (weight * carry[:2], carry[0])

    network = rollax.from_function(
        lambda key: jnp.ones(2), apply, env, initial_carry=np.zeros(8, np.float32)
    )
    assert network(jax.random.key(0)).initial_carry().shape == (8,)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ({"initial_std": 0.0}, "initial_std must be greater than 0"),
        ({"algorithm": "sac", "critic": NnxLayer(3, 1, 1, nnx.Rngs(0))}, "a function make"),
    ],
)
def test_options_without_the_expected_effect_are_refused(words: Any, part: str) -> None:
    env = rollax.make("gymnax/Pendulum-v1")
    with pytest.raises(UsageError, match=part):
        from_nnx(lambda rngs: NnxLayer(3, 2, 2, rngs), env, **words)


def test_squash_applies_to_the_boxes_of_a_dictionary() -> None:
    env = rollax.make("control/platforms")
    assert from_function(lambda key: jnp.ones(1), lambda *x: x, env, squash=True) is not None
