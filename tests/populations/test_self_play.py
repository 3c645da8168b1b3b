"""Tests of self-play with a pool of past versions of the policy."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from rollax import RunOptions, UsageError
from rollax.environments import make
from rollax.environments.native.matrix.rock_paper_scissors import RockPaperScissors
from rollax.populations.self_play import (
    OpponentSampling,
    PoolConfig,
    PoolState,
    SelfPlayState,
    list_seats,
    sampling_log_weights,
    self_play,
)
from rollax.training.spec import get_algorithm_entry

CONFIG = rollax.PPOConfig(num_envs=8, num_steps=4, num_minibatches=2, num_epochs=1)
NETWORK = rollax.NetworkConfig(hidden=(4,))


def ppo_in(environment: rollax.Environment) -> rollax.Algorithm:
    return rollax.ppo(environment, functools.partial(rollax.actor_critic, environment, NETWORK))


def trained(
    updates: int, pool: PoolConfig, environment: rollax.Environment | None = None
) -> list[SelfPlayState]:
    """Return the states before training and after each update."""
    algorithm = self_play(ppo_in, environment or RockPaperScissors(rounds=3), pool)
    states = [jax.jit(algorithm.init)(jax.random.key(0), CONFIG)]
    step = jax.jit(algorithm.step)
    for _ in range(updates):
        states.append(step(states[-1])[0])
    return states


def make_pool(number: list[int], games: list[float], wins: list[float]) -> PoolState:
    return PoolState(
        versions=(),
        number=jnp.asarray(number),
        games=jnp.asarray(games),
        wins=jnp.asarray(wins),
        age=jnp.asarray(0),
    )


def test_versions_are_copies_of_the_policy() -> None:
    """The oldest of the `size` + 1 slots is replaced by the newest version."""
    states = trained(5, PoolConfig(size=2, updates_per_version=1))
    numbers = [state.pool.number.tolist() for state in states]
    assert numbers[:3] == [[0, -1, -1], [0, 1, -1], [0, 1, 2]]
    assert max(numbers[-1]) > 2 and len(set(numbers[-1])) == 3
    for index, state in enumerate(states[:3]):
        networks = jax.tree.leaves(state.learner.train.network)
        for version, leaf in zip(states[2].pool.versions, networks, strict=False):
            np.testing.assert_array_equal(version[index], leaf)


def test_an_opponent_does_not_change_during_an_episode() -> None:
    opponents: dict[tuple[int, int], int] = {}
    for state in trained(8, PoolConfig(size=1, updates_per_version=1, fraction=1.0)):
        actor, numbers = state.learner.actor, state.pool.number
        episodes = np.asarray(actor.reset_pool.episode)
        for env, index in enumerate(np.asarray(actor.env_state.opponent)):
            if index >= 0:  # the first step of the episode has sampled an opponent
                episode, number = (env, int(episodes[env])), int(numbers[index])
                assert opponents.setdefault(episode, number) == number


def test_only_the_transitions_of_the_learner_count() -> None:
    """With fraction 1, one of two agents learns in every environment."""
    for fraction, share in ((0.0, 1.0), (1.0, 0.5)):
        (state,) = trained(0, PoolConfig(size=1, fraction=fraction))
        assert float(jnp.mean(~state.learner.actor.agent_done)) == share
        assert bool(jnp.all(state.learner.actor.agent_done.sum(1) == 2 * (1 - share)))


def test_episodes_of_opponents_are_not_counted() -> None:
    environment = RockPaperScissors(rounds=1)
    algorithm = self_play(ppo_in, environment, PoolConfig(size=1, fraction=1.0))
    state = algorithm.init(jax.random.key(0), CONFIG)
    _, metrics = jax.jit(algorithm.step)(state)
    assert float(metrics.episodes.number) == CONFIG.num_envs * CONFIG.num_steps
    games = sum(
        float(number) for name, (number, _) in metrics.episodes.info.items() if "win_rate" in name
    )
    assert games == CONFIG.num_envs * CONFIG.num_steps
    assert 0.0 <= float(metrics.values["pool_win_rate"]) <= 1.0


def test_opponents_with_memory_start_with_their_initial_memory() -> None:
    """The memory of an opponent after its first step is that of a policy without a past."""
    network = rollax.NetworkConfig(hidden=(4,), core="gru", core_size=4)

    def make(environment: rollax.Environment) -> rollax.Algorithm:
        return rollax.ppo(environment, functools.partial(rollax.actor_critic, environment, network))

    config = dataclasses.replace(CONFIG, sequence_length=4)
    algorithm = self_play(make, RockPaperScissors(rounds=3), PoolConfig(size=1, fraction=1.0))
    state, _ = jax.jit(algorithm.step)(algorithm.init(jax.random.key(0), config))
    (carry,) = state.learner.actor.env_state.carries
    # After 4 steps, every environment is at the first step of its second episode.
    assert np.all(np.asarray(state.learner.actor.episode_length) <= 1)
    obs = RockPaperScissors(rounds=3).reset(jax.random.key(0))[1]
    first = algorithm.initial_carry(state)
    initial = self_play_initial_state(make, config)
    _, after = algorithm.act(initial, obs, first, jax.random.key(1), False)
    for leaf, expected in zip(jax.tree.leaves(carry), jax.tree.leaves(after), strict=True):
        np.testing.assert_allclose(leaf, np.broadcast_to(expected, leaf.shape), atol=1e-6)


def self_play_initial_state(
    make: Callable[[rollax.Environment], rollax.Algorithm], config: rollax.PPOConfig
) -> SelfPlayState:
    """Return the initial state, whose policy is the only version in the pool."""
    algorithm = self_play(make, RockPaperScissors(rounds=3), PoolConfig(size=1, fraction=1.0))
    return algorithm.init(jax.random.key(0), config)


def test_off_policy_algorithms_support_a_pool() -> None:
    def make(environment: rollax.Environment) -> rollax.Algorithm:
        entry = get_algorithm_entry("dqn")
        return entry.make(
            environment, functools.partial(entry.make_network, environment, entry.network_config())
        )

    config = rollax.DQNConfig(num_envs=4, num_steps=4, capacity=256, batch_size=8, warmup=8)
    algorithm = self_play(make, RockPaperScissors(), PoolConfig(size=1, fraction=1.0))
    _, metrics = jax.jit(algorithm.step)(algorithm.init(jax.random.key(0), config))
    assert float(metrics.episodes.number) == 4 * 4


def test_sampling_weights() -> None:
    pool = make_pool([3, 1, 2], games=[8.0, 0.0, 8.0], wins=[8.0, 0.0, 0.0])
    weights = functools.partial(sampling_log_weights, pool=pool)
    np.testing.assert_array_equal(weights(PoolConfig(size=2)), [0.0, -np.inf, 0.0])
    np.testing.assert_array_equal(
        weights(PoolConfig(size=2, sampling="newest")), [0.0, -np.inf, -np.inf]
    )
    # The estimated win rates are 8.5 / 9 and 0.5 / 9.
    by_win_rate = np.exp(weights(PoolConfig(size=2, sampling="win_rate", power=2.0)))
    np.testing.assert_allclose(by_win_rate, [(0.5 / 9) ** 2, 0.0, (8.5 / 9) ** 2], rtol=1e-5)


def test_seats_are_sides_of_the_game() -> None:
    assert list_seats(make("matrix/rock-paper-scissors"), ()) == ((False, True), (True, False))
    hunt = make("hunting/3-players")
    assert list_seats(hunt, ()) == ((False, True, True), (True, False, False))
    assert list_seats(hunt, ("predator",)) == ((False, True, True),)


RUN: dict[str, Any] = {
    "config": {"num_envs": 8, "num_steps": 4, "num_minibatches": 2, "num_epochs": 1},
    "network": {"hidden": (4,)},
    "quiet": True,
}


def options(folder: Path, **changes: Any) -> RunOptions:
    values: dict[str, Any] = {
        "total_steps": 8 * 32,
        "run_dir": folder,
        "eval_episodes": 4,
        "eval_count": 2,
        "tensorboard": False,
        "opponent_pool": 2,
        "opponent_pool_every": 64,
    }
    return RunOptions(**values | changes)


def test_a_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    """The pool is a part of the state of a run, but not of its policy."""
    task, halves = ("ppo", "matrix/rock-paper-scissors"), tmp_path / "halves"
    whole = rollax.train(*task, options=options(tmp_path / "whole"), **RUN)
    stopped = rollax.train(
        *task, options=options(halves), stop_when=lambda evaluated: evaluated.step > 0, **RUN
    )
    assert stopped.steps == 4 * 32 and rollax.resume(halves, quiet=True).steps == whole.steps
    first, second = (rollax.load(folder) for folder in (whole.folder, halves))
    networks = (jax.tree.leaves(policy.state.learner.train.network) for policy in (first, second))
    assert all(np.array_equal(a, b) for a, b in zip(*networks, strict=True))
    assert first.state.pool is None and first.environment.num_agents == 2
    assert first.evaluate(4, jax.random.key(0))[1].returns.shape == (4, 2)


@pytest.mark.parametrize(
    ("environment", "changes", "message"),
    [
        ("gymnax/CartPole-v1", {}, "two or more learning agents, and gymnax/CartPole-v1 has one"),
        ("matrix/rock-paper-scissors", {"opponent_pool_types": ("playr",)}, "did you mean player"),
        ("matrix/rock-paper-scissors", {"opponent_pool_types": ("player",)}, "must leave an agent"),
        ("matrix/rock-paper-scissors", {"opponent_pool_power": 3.0}, "has no effect with"),
        ("matrix/rock-paper-scissors", {"opponent_pool_fraction": 0.0}, "must be greater than 0"),
        ("matrix/rock-paper-scissors", {"opponent_pool_every": 10**6}, "must be less than the"),
        ("matrix/rock-paper-scissors", {"opponent_pool": 0}, "no effect without a pool"),
    ],
)
def test_invalid_settings(
    tmp_path: Path, environment: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        rollax.train("ppo", environment, options=options(tmp_path / "run", **changes), **RUN)
    assert not (tmp_path / "run").exists()


def test_an_unknown_sampling_is_answered_with_a_near_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="opponent_pool_sampling.*did you mean uniform"):
        options(tmp_path, opponent_pool_sampling="unifrm")


def exploitability_of(
    sampling: OpponentSampling, seeds: int, updates: int
) -> dict[str, np.ndarray]:
    """Return the mean and final exploitability of policies that learn rock-paper-scissors, `[P]`.

    The mean is over the second half of training. All past versions are in the pool.
    """
    environment = RockPaperScissors()
    pool = PoolConfig(size=updates // 20, updates_per_version=20, sampling=sampling, fraction=1.0)
    config = rollax.PPOConfig(
        num_envs=64,
        num_steps=4,
        num_minibatches=1,
        normalize_advantages="off",
        learning_rate=0.01,
        entropy_coefficient=0.2,
    )
    members = rollax.population(self_play(ppo_in, environment, pool))
    configs = jax.tree.map(lambda x: jnp.full(seeds, x), config)
    state = jax.jit(members.init)(jax.random.split(jax.random.key(0), seeds), configs)
    first_obs = environment.reset(jax.random.key(0))[1][0]

    @jax.jit
    def measure(state: SelfPlayState) -> jax.Array:
        def probabilities(network: Any) -> jax.Array:
            output = network(network.initial_carry(), first_obs)[1]
            return jnp.exp(output.policy.log_probabilities)

        return environment.exploitability(jax.vmap(probabilities)(state.learner.train.network))

    run, measured = jax.jit(rollax.segment(members, 10)), []
    for _ in range(updates // 10):
        state, _ = run(state, jnp.asarray(10))
        measured.append(np.asarray(measure(state)))
    return {"mean": np.mean(measured[len(measured) // 2 :], axis=0), "final": measured[-1]}


def test_a_pool_of_past_versions_prevents_the_cycle_of_rock_paper_scissors() -> None:
    """A policy that learns against its newest version remains exploitable."""
    newest = exploitability_of("newest", seeds=1, updates=300)["mean"]
    uniform = exploitability_of("uniform", seeds=1, updates=300)["mean"]
    assert newest > 0.6 and uniform < 0.35


@pytest.mark.slow
def test_the_pool_over_several_seeds() -> None:
    """These are the numbers in docs/self-play.md."""
    newest, uniform, by_win_rate = (
        exploitability_of(sampling, seeds=5, updates=500)
        for sampling in ("newest", "uniform", "win_rate")
    )
    assert np.all(newest["mean"] > 0.6)
    assert np.all(uniform["mean"] < 0.3) and np.all(uniform["final"] < 0.4)
    assert np.mean(by_win_rate["mean"]) < np.min(newest["mean"])
