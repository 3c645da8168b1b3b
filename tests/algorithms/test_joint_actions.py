"""Tests of actions with discrete and continuous parts: distribution, masks and learning."""

import json
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from rollax.algorithm import Algorithm
from rollax.algorithms.dqn import dqn
from rollax.algorithms.impala import ImpalaConfig, impala
from rollax.algorithms.ppo import PPOConfig, ppo
from rollax.algorithms.sac import SACConfig, sac
from rollax.algorithms.td3 import td3
from rollax.environments import Transition
from rollax.environments.native.control.platforms import MAX_GAP, MIN_GAP, Platforms
from rollax.errors import UsageError
from rollax.exporting.gymnasium_env import to_gymnasium_space, to_rollax_action
from rollax.networks.actor_critic import NetworkConfig, actor_critic
from rollax.networks.critics import StochasticActorCriticsConfig, make_stochastic_actor_critics
from rollax.networks.distributions import Categorical, Gaussian, JointDistribution
from rollax.networks.interop import from_function
from rollax.spaces import Ball, Box, Dict, Discrete, MultiDiscrete, Tuple

SIZES = {"num_envs": 4, "num_steps": 8, "num_minibatches": 1}
POWER = Box(0.0, 1.0, (1,))


def joint() -> JointDistribution:
    power = Gaussian(jnp.array([0.3]), jnp.array([-1.0]), POWER)
    return JointDistribution({"power": power, "kind": Categorical(jnp.array([0.5, -1.0, 0.2]))})


@pytest.mark.quick
def test_log_densities_and_entropies_add_up() -> None:
    policy = joint()
    raw = policy.sample(jax.random.key(0))
    assert raw["kind"].dtype == jnp.int32 and raw["power"].shape == (1,)
    parts = [policy.parts[name].log_prob(raw[name]) for name in raw]
    np.testing.assert_allclose(policy.log_prob(raw), sum(parts), rtol=1e-6)
    entropies = [part.entropy() for part in policy.parts.values()]
    np.testing.assert_allclose(policy.entropy(), sum(entropies), rtol=1e-6)
    assert jax.tree.map(jnp.shape, policy.action(policy.mode())) == {"kind": (), "power": (1,)}


@pytest.mark.quick
def test_the_joint_density_is_one() -> None:
    policy = joint()
    power = jnp.linspace(-4, 4, 4001)
    density = jax.vmap(
        lambda kind: jax.vmap(lambda x: policy.log_prob({"kind": kind, "power": x[None]}))(power)
    )(jnp.arange(3))
    assert float(jnp.sum(jnp.exp(density)) * 8 / 4000) == pytest.approx(1.0, abs=1e-3)


class Choices(eqx.Module):
    """Episodes of one step with nested actions, of which some parts are masked."""

    name, num_agents, time_limit = "test/choices", None, 1
    action_space = Tuple(
        (Discrete(3), Dict({"push": Ball(2), "which": MultiDiscrete((2, 3))}), Box(-1.0, 1.0, (2,)))
    )
    observation_space = Dict(
        {
            "features": Box(-1.0, 1.0, (2,)),
            "action_mask": Dict(
                {
                    "0": Box(0.0, 1.0, (3,), "bool"),
                    "1": Dict({"which": Box(0.0, 1.0, (2, 3), "bool")}),
                    "2": Box(0.0, 1.0, (2,), "bool"),
                }
            ),
        }
    )

    def reset(self, key: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
        features = jax.random.uniform(key, (2,), minval=-1.0)
        return features, self.observe(features)

    def observe(self, features: jax.Array) -> dict[str, Any]:
        which = jnp.array([[True, False, False], [False, True, True]])
        masks = {
            "0": jnp.array([False, True, True]),
            "1": {"which": which},
            "2": jnp.array([True, False]),
        }
        return {"features": features, "action_mask": masks}

    def step(self, key: jax.Array, state: jax.Array, action: Any) -> Transition:
        first, (second, third) = action[0], (action[1], action[2])
        is_legal = (first > 0) & (second["which"][0] == 0) & (second["which"][1] > 0)
        reward = jnp.where(is_legal & (third[1] == 0), second["push"][0] + third[0], -100.0)
        done = jnp.ones((), bool)
        return Transition(state, self.observe(state), reward, done, ~done, {})


def test_environments_with_nested_actions_are_checked() -> None:
    rollax.check_environment(Choices())

    class Wrong(Choices):
        observation_space = Dict(
            {
                "features": Box(-1.0, 1.0, (2,)),
                "action_mask": Dict({"3": Box(0.0, 1.0, (3,), "bool")}),
            }
        )

    with pytest.raises(UsageError, match="must be a Dict with keys among '0', '1', '2'"):
        rollax.check_environment(Wrong())


def test_masked_parts_are_never_taken_by_sac() -> None:
    """Random, exploring and greedy actions are legal."""
    environment = Choices()
    algorithm = sac(environment, make_critics_fn(environment))
    config = SACConfig(
        num_envs=4, num_steps=8, capacity=100, batch_size=8, warmup=16.0, replay_ratio=0.25
    )
    state, metrics = jax.jit(algorithm.step)(algorithm.init(jax.random.key(0), config))
    assert float(metrics.values["reward"]) > -10
    obs = environment.observe(jnp.zeros(2))
    for greedy in (False, True):
        action, _ = algorithm.act(state, obs, (), jax.random.key(1), greedy)
        assert float(environment.step(jax.random.key(0), jnp.zeros(2), action).reward) > -10


def make_critics_fn(environment: Any, hidden: tuple[int, ...] = (8,)) -> Any:
    config = StochasticActorCriticsConfig(hidden=hidden)
    return lambda key: make_stochastic_actor_critics(environment, config, key)


@pytest.mark.parametrize("make", [ppo, impala])
def test_masked_parts_are_never_taken(make: Any) -> None:
    environment = Choices()
    network = NetworkConfig(hidden=(8,))
    algorithm = make(environment, lambda key: actor_critic(environment, network, key))
    config = PPOConfig(**SIZES) if make is ppo else ImpalaConfig(**SIZES, sequence_length=8)
    state = algorithm.init(jax.random.key(0), config)
    _, metrics = jax.jit(algorithm.step)(state)
    assert np.isfinite(float(metrics.values["loss"]))
    assert float(metrics.values["reward"]) > -10


def test_custom_networks_have_one_output_per_part() -> None:
    environment = rollax.make("control/platforms")

    def apply(parameters: jax.Array, obs: jax.Array) -> Any:
        outputs = obs @ parameters
        return {"kind": outputs[:2], "power": outputs[2:4]}, outputs[4]

    def init(key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (2, 5))

    algorithm = ppo(environment, from_function(init, apply, environment))
    state = algorithm.init(jax.random.key(0), PPOConfig(**SIZES))
    _, metrics = jax.jit(algorithm.step)(state)
    assert np.isfinite(float(metrics.values["loss"]))

    def swapped(parameters: jax.Array, obs: jax.Array) -> Any:
        outputs = obs @ parameters
        return {"kind": outputs[:3], "power": outputs[3:]}, outputs[4]

    words = r"policy output \['kind'\] for Discrete.* must have shape \(2,\), got \(3,\)"
    with pytest.raises(UsageError, match=words):
        from_function(init, swapped, environment)(jax.random.key(0))


def test_custom_networks_of_sac_have_values_of_all_choices() -> None:
    environment = rollax.make("control/platforms")

    def apply(parameters: jax.Array, obs: jax.Array) -> Any:
        outputs = obs @ parameters
        return {"kind": outputs[:2], "power": (outputs[2:4], outputs[4:6])}

    def critic(parameters: jax.Array, obs: jax.Array, continuous: jax.Array) -> Any:
        return jnp.concatenate([obs, continuous]) @ parameters

    def network(num_outputs: int, num_values: int) -> Any:
        return from_function(
            lambda key: jax.random.normal(key, (2, num_outputs)),
            apply,
            environment,
            algorithm="sac",
            critic=(lambda key: jax.random.normal(key, (4, num_values)), critic),
        )

    algorithm = sac(environment, network(6, 2))
    config = SACConfig(
        num_envs=4, num_steps=8, capacity=100, batch_size=8, warmup=8.0, replay_ratio=0.25
    )
    _, metrics = jax.jit(algorithm.step)(algorithm.init(jax.random.key(0), config))
    assert np.isfinite(float(metrics.values["loss"]))
    with pytest.raises(UsageError, match=r"values of joint choices must have shape \(2,\)"):
        network(6, 3)(jax.random.key(0))
    with pytest.raises(UsageError, match=r"log_std for Box.* must have shape \(2,\)"):
        network(5, 2)(jax.random.key(0))


@pytest.mark.parametrize("make", [dqn, td3])
def test_other_algorithms_refuse_joint_actions(make: Any) -> None:
    with pytest.raises(UsageError, match="action space must be .*Use sac or ppo"):
        make(rollax.make("control/platforms"), lambda key: None)


def test_gymnasium_spaces() -> None:
    space = to_gymnasium_space(Choices.action_space)
    action = to_rollax_action(Choices.action_space, space.sample())
    assert bool(Choices.action_space.contains(jax.tree.map(jnp.asarray, action)))
    environment = rollax.to_gymnasium("control/platforms")
    environment.reset(seed=0)
    step = environment.step(environment.action_space.sample())
    assert np.isfinite(step[1])


REPLAY = {"num_envs": 4, "num_steps": 8, "capacity": 64, "batch_size": 8, "warmup": 32}


@pytest.mark.parametrize(("algorithm", "config"), [("ppo", SIZES), ("sac", REPLAY)])
def test_a_run_is_trained_loaded_and_exported(
    tmp_path: Path, algorithm: str, config: dict[str, Any]
) -> None:
    options = rollax.RunOptions(
        total_steps=64, run_dir=tmp_path / "run", eval_episodes=2, eval_count=1, tensorboard=False
    )
    network = {"hidden": (8,)}
    result = rollax.train(
        algorithm, "control/platforms", config=config, network=network, options=options, quiet=True
    )
    policy = rollax.load(result.folder)
    action = policy.predict(np.array([0.5, 0.0], np.float32))
    assert set(action) == {"kind", "power"} and action["power"].shape == (2,)
    batch = policy.predict(np.zeros((3, 2), np.float32), begins=True)
    assert batch["kind"].shape == (3,) and batch["power"].shape == (3, 2)
    exported = rollax.export(result.folder, "numpy", tmp_path / "numpy")
    assert exported.parity.is_same
    description = json.loads((tmp_path / "numpy" / "policy.json").read_text())
    assert [output["name"] for output in description["outputs"]] == ["action/kind", "action/power"]


class Hybrid(gymnasium.Env):
    """Simulator with an action of three parts."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Dict(
        {
            "kind": gymnasium.spaces.Discrete(3, start=1),
            "pair": gymnasium.spaces.Tuple(
                (gymnasium.spaces.Box(0.0, 2.0, (1,), np.float32), gymnasium.spaces.Discrete(2))
            ),
        }
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.steps += 1
        return np.zeros(2, np.float32), float(action["pair"][0][0]), False, self.steps == 4, {}


@pytest.mark.parametrize("workers", [0, 2])
def test_simulators_receive_actions_of_their_spaces(tmp_path: Path, workers: int) -> None:
    options = rollax.RunOptions(
        total_steps=64,
        run_dir=tmp_path / "run",
        eval_episodes=2,
        eval_count=1,
        tensorboard=False,
        env_workers=workers,
    )
    environment = rollax.from_gymnasium(Hybrid, name="mine/Hybrid")
    network = {"hidden": (8,)}
    with jax.debug_key_reuse(False):  # evaluations use the same keys again
        result = rollax.train(
            "ppo", environment, config=SIZES, network=network, options=options, quiet=True
        )
    policy = rollax.load(result.folder, environment=environment)
    action = policy.predict(np.zeros(2, np.float32))
    assert Hybrid.action_space.contains(action)


@pytest.mark.quick
def test_best_jumps_by_search() -> None:
    environment = Platforms()
    powers = jnp.linspace(0, 1, 2001)
    for gap in np.linspace(MIN_GAP, MAX_GAP, 9):
        rewards = jax.vmap(lambda p, gap=gap: environment.jump_reward(gap, p[None]))(powers)
        best = environment.best_action(jnp.float32(gap))
        found = environment.jump_reward(jnp.float32(gap), best["power"])[best["kind"]]
        assert float(found) == pytest.approx(float(jnp.max(rewards)), abs=1e-4)
        miss = (environment.reach * best["power"])[best["kind"]] - gap
        assert float(found) > 0 and abs(float(miss)) < 0.2


def optimal_return(environment: Platforms) -> float:
    """The mean over gaps of the best reward, for every jump."""
    gaps = jnp.linspace(MIN_GAP, MAX_GAP, 2001)

    def best_reward(gap: jax.Array) -> jax.Array:
        action = environment.best_action(gap)
        return environment.jump_reward(gap, action["power"])[action["kind"]]

    return float(environment.num_platforms * jnp.mean(jax.vmap(best_reward)(gaps)))


@pytest.mark.slow
def test_ppo_reaches_the_closed_form() -> None:
    environment = Platforms()
    network = NetworkConfig(hidden=(32, 32), initial_std=0.3)
    algorithm = ppo(environment, lambda key: actor_critic(environment, network, key))
    config = PPOConfig(
        num_envs=64,
        num_steps=20,
        num_minibatches=8,
        num_epochs=8,
        gamma=0.9,
        learning_rate=3e-3,
        learning_rate_final_fraction=0.0,
        entropy_coefficient=0.03,
        entropy_final_fraction=0.0,
        total_updates=80,
    )
    assert trained_return(algorithm, config, 80) > 0.95 * optimal_return(environment)


@pytest.mark.slow
def test_sac_reaches_the_closed_form() -> None:
    environment = Platforms()
    algorithm = sac(environment, make_critics_fn(environment, (32, 32)))
    config = SACConfig(
        num_envs=16,
        num_steps=16,
        capacity=20_000,
        batch_size=128,
        replay_ratio=0.25,
        warmup=1000.0,
        gamma=0.9,
        learning_rate=3e-3,
        learning_rate_final_fraction=0.0,
        tau=0.02,
        total_updates=80,
    )
    assert trained_return(algorithm, config, 80) > 0.95 * optimal_return(environment)


def trained_return(algorithm: Algorithm, config: Any, num_updates: int) -> float:
    """Return the mean return of the greedy policy after some updates on platforms."""
    environment = Platforms()
    state = algorithm.init(jax.random.key(0), config)
    state, _ = jax.jit(
        lambda state: jax.lax.scan(lambda s, _: algorithm.step(s), state, length=num_updates)
    )(state)

    def episode(key: jax.Array) -> jax.Array:
        def step(carry: Any, key: jax.Array) -> Any:
            inner, obs, alive = carry
            act_key, step_key = jax.random.split(key)
            action, _ = algorithm.act(state, obs, algorithm.initial_carry(state), act_key, True)
            after = environment.step(step_key, inner, action)
            return (after.state, after.obs, alive & ~after.terminated), alive * after.reward

        start_key, *keys = jax.random.split(key, environment.num_platforms + 1)
        start = (*environment.reset(start_key), jnp.ones((), bool))
        return jnp.sum(jax.lax.scan(step, start, jnp.stack(keys))[1])

    with jax.debug_key_reuse(False):
        returns = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(1), 1000))
    return float(jnp.mean(returns))
