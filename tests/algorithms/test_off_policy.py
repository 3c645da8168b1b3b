"""Tests of the parts that algorithms with replay share, including exact resumption."""

import dataclasses
import signal
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from algorithms.reference import batch_of
from configuration import configured
from laws.programs import assert_close, begun, fresh
from laws.table import BY_NAME
from laws.walk import Walk
from rollax.acting.exploration import denormalize_action, random_action, sample_noise
from rollax.algorithms.registry import ALGORITHMS
from rollax.algorithms.replay_updates import AgentFns, with_normalized_observations
from rollax.learning import normalization
from rollax.networks.critics import ActorCriticsConfig, make_deterministic_actor_critics
from rollax.replay.replay_config import compute_replay_cycle
from rollax.spaces import Box, Discrete
from support.fixtures import compile_once  # noqa: F401
from support.runs import Script, check_same, whole_state

SIZES = {
    "num_envs": 4,
    "num_steps": 8,
    "capacity": 200,
    "batch_size": 16,
    "replay_ratio": 0.25,
    "warmup": 60.0,
}


@pytest.mark.usefixtures("compile_once")
@pytest.mark.parametrize(
    ("name", "probe", "settings"),
    [
        ("dqn", "action-observation", {"prioritized": True, "n_step": 2}),
        ("sac", "continuous", {}),
        ("td3", "continuous", {"normalize_observations": True}),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(
    name: str, probe: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """They are equal to the bit with the replay.

    Runs stop once before learning and once after the ring has wrapped.
    """
    config = ALGORITHMS[name].config(**(SIZES | settings))
    network = ALGORITHMS[name].network_config(hidden=(8,))

    def train(folder: Path, show: Script) -> rollax.Result:
        host = rollax.RunOptions(
            total_steps=12 * 32, run_dir=folder, eval_episodes=8, eval_count=4, tensorboard=False
        )
        return rollax.train(
            name, f"probe/{probe}", config=config, network=network, options=host, show=show
        )

    whole = train(tmp_path / "whole", Script()).folder
    for stop in (1, 9):
        stopped = train(
            tmp_path / f"stopped{stop}",
            Script(lambda kind, text, at=stop * 32: _stop_at(at, kind, text)),
        )
        assert stopped.status == "stopped" and stopped.steps < 12 * 32
        assert rollax.resume(stopped.folder, show=Script()).status == "done"
        check_same(stopped.folder, whole)
    assert int(np.sum(_ring(whole_state(whole).replay).size)) == 200
    assert rollax.load(whole).state.replay is None, "a policy does not hold what it learnt from"


def _stop_at(frames: int, kind: str, text: str) -> None:
    if kind == "progress" and int(text) >= frames:
        signal.raise_signal(signal.SIGTERM)


def _ring(replay: Any) -> Any:
    return replay.replay if "tree" in replay._fields else replay


def test_learning_starts_after_the_warmup() -> None:
    """The agent is unchanged before. Later updates take the gradient steps of the replay ratio."""
    row = BY_NAME["td3"]
    algorithm = row.make(row.environment)
    config = dataclasses.replace(row.config, warmup=48.0, replay_ratio=0.5)  # 32 frames per update
    first = state = jax.jit(algorithm.init)(jax.random.key(0), config)
    step, steps = jax.jit(algorithm.step), []
    for _ in range(4):
        state, metrics = step(fresh(state))
        steps.append(float(metrics.values["gradient_steps"]))
        if len(steps) == 1:
            assert np.isnan(metrics.values["loss"]) and bool(metrics.finite.loss)
            for a, b in zip(
                jax.tree.leaves(first.agent), jax.tree.leaves(state.agent), strict=True
            ):
                assert np.array_equal(a, b)
    assert steps == [0, 10, 16, 16], "learning begins with the step that completes the warm-up"
    assert int(state.agent.steps) == 42
    assert float(metrics.values["loss"]) > 0


@pytest.mark.parametrize(
    ("warmup", "starts", "random"), [(0.0, 48.0, 0), (48.0, 0.0, 48), (16.0, 48.0, 16)]
)
def test_the_policy_fills_the_replay_before_learning_starts(
    warmup: float, starts: float, random: int
) -> None:
    """Learning starts at the later of the two counts.

    In between, the policy acts, here without noise.
    """
    row = BY_NAME["td3"]
    algorithm, settings = row.make(row.environment), {"replay_ratio": 0.5, "exploration_noise": 0.0}
    config = dataclasses.replace(
        row.config, warmup=warmup, learning_starts=starts, **settings
    )  # 32 frames per update
    state = jax.jit(algorithm.init)(jax.random.key(0), config)
    act, step = jax.vmap(jax.vmap(state.agent.network.actor)), jax.jit(algorithm.step)
    state, metrics = step(fresh(state))
    assert metrics.values["gradient_steps"] == 0
    kept = state.replay.data
    is_own = np.all(np.isclose(act(kept.obs), kept.action, atol=1e-5), axis=-1)[:, :8]
    assert np.array_equal(~is_own, np.broadcast_to(np.arange(8) * 4 < random, (4, 8)))
    state, metrics = step(fresh(state))
    assert metrics.values["gradient_steps"] == 10


@pytest.mark.parametrize(
    ("num_envs", "num_steps", "ratio", "expected"),
    [
        (1, 8, 1.0, (1, 1)),
        (1, 8, 0.25, (4, 1)),
        (10, 8, 0.1, (1, 1)),
        (4, 8, 1.5, (1, 6)),
        (3, 8, 0.5, (2, 3)),
        (1, 64, 0.0156, (64, 1)),
        (1, 200, 0.01, (100, 1)),
        (1, 1000, 0.013, (1000, 13)),
        (2, 1000, 0.001, (500, 1)),
    ],
)
def test_replay_cycles(
    num_envs: int, num_steps: int, ratio: float, expected: tuple[int, int]
) -> None:
    """Gradient steps per environment step equal the ratio, even if it is small."""
    config = ALGORITHMS["sac"].config(num_envs=num_envs, replay_ratio=ratio, num_steps=num_steps)
    assert compute_replay_cycle(config) == expected
    assert expected[1] / (expected[0] * num_envs) == pytest.approx(ratio, rel=0.01)


def test_random_actions() -> None:
    """They are uniform within the bounds for any correlation of the noise.

    Discrete ones are legal.
    """
    noise = jax.random.normal(jax.random.key(0), (5000,))
    after = sample_noise(noise, jax.random.key(1), 0.9)
    assert float(jnp.mean(after**2)) == pytest.approx(1.0, abs=0.06)
    assert float(jnp.mean(after * noise)) == pytest.approx(0.9, abs=0.06)
    action = random_action(Box(-3.0, 5.0, (5000,)), (), after, jax.random.key(2))
    counts, _ = np.histogram(np.asarray(action), bins=10, range=(-1, 1))
    assert counts.sum() == 5000 and counts.min() > 400
    obs = {"action_mask": jnp.array([True, False, True])}
    draws = jax.vmap(lambda key: random_action(Discrete(3), obs, None, key))(
        jax.random.split(jax.random.key(3), 1000)
    )
    assert np.bincount(np.asarray(draws), minlength=3)[1] == 0
    assert 400 < np.sum(draws == 0) < 600


def test_actions_have_the_bounds_of_the_environment() -> None:
    """Actions in the replay are within -1 ... 1, and those of the environment within its bounds."""
    kept = begun("sac").replay.data.action
    assert float(jnp.max(jnp.abs(kept))) <= 1
    algorithm = BY_NAME["sac"].make(Walk(continuous=True))
    action, _ = algorithm.act(begun("sac"), jnp.ones(3), (), jax.random.key(0), False)
    assert bool(Walk(continuous=True).action_space.contains(action))


def test_observations_are_normalized() -> None:
    """Moments of all observations before an update apply to exploration, learning and acting."""
    row = BY_NAME["td3"]
    algorithm = row.make(row.environment)
    settings = {"normalize_observations": True, "warmup": 0.0, "exploration_noise": 0.0}
    state = jax.jit(algorithm.init)(jax.random.key(0), dataclasses.replace(row.config, **settings))
    step = jax.jit(algorithm.step)
    for update in range(3):
        before, after = state, step(fresh(state))[0]
        seen = after.replay.data.obs[:, : 8 * (update + 1)]
        np.testing.assert_allclose(after.observations.mean, jnp.mean(seen, (0, 1)), atol=1e-5)
        np.testing.assert_allclose(after.observations.variance, jnp.var(seen, (0, 1)), atol=1e-5)
        last = after.replay.data.obs[
            :, 8 * update
        ]  # the first step of this update, before learning
        own = jax.vmap(
            lambda obs, state=before: state.agent.network.actor(
                normalization.normalize(state.observations, obs)
            )
        )(last)
        np.testing.assert_allclose(after.replay.data.action[:, 8 * update], own, atol=1e-5)
        state = after
    obs = jnp.array([0.3, -1.0, 2.0])
    played, _ = algorithm.act(state, obs, (), jax.random.key(0), True)
    expected = state.agent.network.actor(normalization.normalize(state.observations, obs))
    np.testing.assert_allclose(
        played, denormalize_action(row.environment.action_space, expected), atol=1e-5
    )


def test_the_mean_reward_is_that_of_present_agents() -> None:
    """It is the mean over the stored steps. Agents that ended before the others are left out."""
    environment = Walk(continuous=True, agents=3, early=True)

    def make(key):
        return make_deterministic_actor_critics(environment, ActorCriticsConfig(hidden=(8,)), key)

    algorithm = ALGORITHMS["td3"].make(environment, make)
    config = ALGORITHMS["td3"].config(
        num_envs=2, num_steps=8, capacity=60, batch_size=4, warmup=1000.0
    )
    state, metrics = jax.jit(algorithm.step)(jax.jit(algorithm.init)(jax.random.key(0), config))
    size = np.asarray(state.replay.size)
    rewards = [np.asarray(state.replay.data.reward)[stream, : size[stream]] for stream in range(6)]
    assert size.sum() < 6 * 8
    assert float(metrics.values["reward"]) == pytest.approx(
        np.concatenate(rewards).mean(), abs=1e-5
    )


def test_an_agent_with_normalized_observations() -> None:
    """Its update is that of the plain agent from a normalized batch. Other fields are unchanged."""
    row = BY_NAME["td3"]
    shown = AgentFns(*(lambda agent, config, *rest: (agent, rest),) * 4)
    sample = normalization.init_moments(jnp.zeros(1))._replace(
        mean=jnp.array([1.0]), variance=jnp.array([4.0])
    )
    ones = jnp.ones(2)
    batch = batch_of(3 * jnp.ones((2, 1)), ones, ones, ones, -1 * jnp.ones((2, 1)))
    _, (given, *_) = with_normalized_observations(shown, sample).update(
        (), row.config, batch, jax.random.key(0)
    )
    assert_close(given, batch._replace(obs=jnp.ones((2, 1)), next_obs=-jnp.ones((2, 1))))
    assert with_normalized_observations(shown, None) is shown


@pytest.mark.parametrize("is_prioritized", [False, True])
def test_the_replay_is_not_copied(is_prioritized: bool) -> None:
    """Compiled updates with a donated state need very little memory in addition to the state."""
    row = BY_NAME["dqn"]
    algorithm = row.make(row.environment)
    config = dataclasses.replace(
        row.config, capacity=1_000_000, prioritized=is_prioritized, n_step=3
    )
    state = jax.eval_shape(algorithm.init, jax.random.key(0), config)
    with configured(jax_disable_most_optimizations=False):
        run = (
            jax.jit(rollax.segment(algorithm, 4), donate_argnums=0)
            .lower(state, jnp.int32(1))
            .compile()
        )
    memory = run.memory_analysis()
    assert memory.argument_size_in_bytes > 30e6
    assert memory.temp_size_in_bytes < 1e6
