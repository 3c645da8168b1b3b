"""Tests of the memory tasks: returns in closed form, and control with observed positions only."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from rollax.checks.environment_check import check_environment
from rollax.environments import default_arguments, list_environments, make
from rollax.environments.native.memory.partial_observation import PartialObservation
from rollax.environments.native.memory.repetition import RepeatPrevious
from rollax.environments.native.probe.probes import TwoAgents
from rollax.errors import UnknownNameError, UsageError
from rollax.spaces import Box
from rollax.training.compile import run_check
from rollax.training.spec import RunOptions, make_spec

POSITIONS = {"CartPole-v1": [0, 2], "Pendulum-v1": [0, 1], "MountainCarContinuous-v0": [0]}


def _rewards(
    env: RepeatPrevious, policy: Callable[..., jax.Array], episodes: int = 1
) -> np.ndarray:
    """Return rewards `[episodes, delay + length]` of `policy(key, seen, time)`.

    `seen[t]` is the observation at time t.
    """
    limit = env.time_limit

    def act(
        key: jax.Array, time: jax.Array, state: Any, obs: jax.Array, seen: jax.Array
    ) -> tuple[Any, jax.Array]:
        action_key, step_key = jax.random.split(key)
        seen = seen.at[time].set(obs)
        after = env.step(step_key, state, policy(action_key, seen, time))
        return (after.state, after.obs, seen), after.reward

    def play(key: jax.Array) -> jax.Array:
        reset_key, loop_key = jax.random.split(key)
        start = (
            *jax.vmap(env.reset)(jax.random.split(reset_key, episodes)),
            jnp.zeros((episodes, limit), jnp.int32),
        )
        steps = jnp.arange(limit), jax.random.split(loop_key, (limit, episodes))
        acts = jax.vmap(act, in_axes=(0, None, 0, 0, 0))
        return jax.lax.scan(lambda carry, now: acts(now[1], now[0], *carry), start, steps)[1]

    return np.asarray(jax.jit(play)(jax.random.key(0))).T


def _repeat(delay: int) -> Callable[..., jax.Array]:
    """Return the policy that repeats the observation of `delay` steps before, and 0 until then."""
    return lambda key, seen, time: jnp.where(time >= delay, seen[time - delay], 0)


def _assert_perfect(env: RepeatPrevious) -> None:
    rewards = _rewards(env, _repeat(env.delay), episodes=3)
    assert rewards.shape == (3, env.delay + env.length)
    assert (rewards[:, : env.delay] == 0).all()
    assert (rewards[:, env.delay :] == np.float32(1 / env.length)).all()
    np.testing.assert_allclose(rewards.sum(axis=1), 1.0, rtol=1e-6)


@pytest.mark.parametrize(("delay", "length"), [(4, 48), (0, 5), (0, 1), (7, 7), (9, 2), (1, 1)])
def test_perfect_memory_has_return_1(delay: int, length: int) -> None:
    _assert_perfect(RepeatPrevious(delay=delay, length=length))


@settings(max_examples=6, deadline=None)
@given(delay=st.integers(0, 12), symbols=st.integers(2, 9), length=st.integers(1, 20))
def test_perfect_memory_has_return_1_for_any_sizes(delay: int, symbols: int, length: int) -> None:
    _assert_perfect(RepeatPrevious(delay, symbols, length))


@pytest.mark.parametrize("symbols", [4, 7])
def test_returns_of_uniform_actions(symbols: int) -> None:
    env, episodes = RepeatPrevious(symbols=symbols), 4000
    returns = _rewards(env, lambda key, seen, time: env.action_space.sample(key), episodes).sum(
        axis=1
    )
    spread = 2 * np.sqrt((symbols - 1) / env.length) / symbols
    assert abs(returns.mean() - (2 / symbols - 1)) < 4 * spread / np.sqrt(episodes)
    np.testing.assert_allclose(returns.std(), spread, rtol=0.06)


@pytest.mark.parametrize("shift", [-1, 1])
def test_memory_that_is_off_by_one_step_is_as_good_as_chance(shift: int) -> None:
    """The mean return is that of uniform actions."""
    env, episodes = RepeatPrevious(delay=2, length=16), 4000
    returns = _rewards(env, _repeat(env.delay + shift), episodes).sum(axis=1)
    spread = 2 * np.sqrt(3 / env.length) / 4
    assert abs(returns.mean() + 0.5) < 4 * spread / np.sqrt(episodes)


def test_the_current_symbol_is_enough_only_without_delay() -> None:
    for delay, expected in ((0, 1.0), (3, -0.5)):
        returns = _rewards(
            RepeatPrevious(delay=delay), lambda key, seen, time: seen[time], episodes=1000
        ).sum(axis=1)
        np.testing.assert_allclose(returns.mean(), expected, atol=4 * 0.125 / np.sqrt(1000))


def test_symbols_are_uniform_and_independent() -> None:
    env = make("memory/repeat-previous", symbols=3)
    keys = jax.random.split(jax.random.key(0), (2, 6000))
    state, first = jax.vmap(env.reset)(keys[0])
    second = jax.vmap(env.step, in_axes=(0, 0, None))(keys[1], state, 0).obs
    pairs = np.bincount(np.asarray(3 * first + second), minlength=9)
    np.testing.assert_allclose(pairs, 6000 / 9, atol=4 * np.sqrt(6000 / 9))


def test_an_episode_terminates_after_all_symbols_were_recalled() -> None:
    env = make("memory/repeat-previous", delay="2", length="3")
    state, _ = env.reset(jax.random.key(0))
    ends = []
    for time in range(env.time_limit):
        after = env.step(jax.random.key(time), state, 0)
        state = after.state
        ends.append((bool(after.terminated), bool(after.truncated)))
    assert ends == [(False, False)] * 4 + [(True, False)]


@pytest.mark.parametrize(("delay", "length"), [(0, 1), (3, 2)])
def test_the_smallest_sizes_pass_the_check(delay: int, length: int) -> None:
    assert (
        check_environment(
            make("memory/repeat-previous", delay=delay, length=length), steps=12
        ).episodes
        >= 8
    )


@pytest.mark.quick
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"delay": -1}, r"delay \(-1\) must be at least 0"),
        ({"symbols": 1}, r"symbols \(1\) must be at least 2"),
        ({"length": 0}, r"length \(0\) must be at least 1"),
        ({"delay": 2.5}, "delay must be an integer"),
        ({"dely": 2}, "did you mean delay"),
    ],
)
def test_invalid_arguments_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make("memory/repeat-previous", **given)


@pytest.mark.parametrize("name", POSITIONS)
def test_partial_observations_are_those_of_gymnax(name: str) -> None:
    """Along an episode, only the observation differs. It is the selected part of the full one."""
    whole = make(f"gymnax/{name}", max_steps_in_episode=25)
    part = make(f"memory/{name}", max_steps_in_episode=25)

    def episode(env: Any) -> tuple[Any, Any]:
        state, obs = env.reset(jax.random.key(1))
        keys = jax.random.split(jax.random.key(2), (25, 2))

        def act(state: Any, keys: jax.Array) -> tuple[Any, Any]:
            transition = env.step(keys[0], state, env.action_space.sample(keys[1]))
            return transition.state, transition

        return obs, jax.lax.scan(act, state, keys)[1]

    (first, transitions), (part_first, part_transitions) = jax.jit(
        lambda: (episode(whole), episode(part))
    )()
    assert (transitions.terminated | transitions.truncated).any()
    np.testing.assert_array_equal(part_first, first[jnp.asarray(POSITIONS[name])])
    np.testing.assert_array_equal(
        part_transitions.obs, transitions.obs[:, jnp.asarray(POSITIONS[name])]
    )
    jax.tree.map(
        np.testing.assert_array_equal,
        part_transitions._replace(obs=()),
        transitions._replace(obs=()),
    )


@pytest.mark.parametrize("name", POSITIONS)
def test_attributes_are_those_of_the_gymnax_environment(name: str) -> None:
    whole, part = make(f"gymnax/{name}"), make(f"memory/{name}")
    assert default_arguments(f"memory/{name}") == default_arguments(f"gymnax/{name}")
    assert (part.name, part.time_limit, part.num_agents) == (
        f"memory/{name}",
        whole.time_limit,
        None,
    )
    assert part.action_space == whole.action_space
    space = whole.observation_space
    low, high = (
        np.broadcast_to(bound, space.shape)[POSITIONS[name]] for bound in (space.low, space.high)
    )
    np.testing.assert_array_equal(part.observation_space.low, low)
    np.testing.assert_array_equal(part.observation_space.high, high)


@pytest.mark.parametrize("id", list_environments("memory"))
def test_presets_have_a_recurrent_core(id: str) -> None:
    """They have sequences of more than one step, and their sizes are valid."""
    spec = make_spec("ppo", id, {}, None, None, RunOptions(), {})
    assert spec.network.core != "none" and spec.config.sequence_length > 1
    run_check.check_run(spec)


def test_physics_are_leaves() -> None:
    env = make("memory/CartPole-v1", gravity="5")
    assert float(env.env.params.gravity) == 5
    assert jax.tree.structure(env.env) == jax.tree.structure(make("gymnax/CartPole-v1"))
    assert len(jax.tree.leaves(env)) == len(jax.tree.leaves(env.env)) > 0
    many = eqx.tree_at(lambda e: e.env.params.gravity, env, jnp.asarray([1.0, 30.0]))
    axes = eqx.tree_at(
        lambda e: e.env.params.gravity,
        jax.tree.map(lambda _: None, env),
        0,
        is_leaf=lambda x: x is None,
    )

    def fall(env: Any) -> jax.Array:
        state, _ = env.reset(jax.random.key(0))
        keys = jax.random.split(jax.random.key(1), 5)
        return jax.lax.scan(lambda s, k: env.step(k, s, 1)[:2], state, keys)[1][-1]

    falls = jax.vmap(fall, in_axes=(axes,))(many)
    assert falls.shape == (2, 2)
    assert falls[0, 1] != falls[1, 1]


def test_an_unknown_argument_of_the_physics_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean gravity"):
        make("memory/CartPole-v1", gravty=5)


def test_partial_observations_of_a_custom_environment() -> None:
    """Bounds follow the order of the selected entries.

    Agents keep their axis, and the name is kept.
    """
    env = PartialObservation(TwoAgents(), kept=(1,))
    state, obs = env.reset(jax.random.key(0))
    after = env.step(jax.random.key(1), state, jnp.zeros(2, jnp.int32))
    np.testing.assert_array_equal(obs, [[-1.0], [1.0]])
    np.testing.assert_array_equal(after.obs, obs)
    assert (env.name, env.num_agents, env.observation_space) == (
        "probe/two-agents",
        2,
        Box(-1.0, 1.0, (1,)),
    )
    turned = PartialObservation(
        make("gymnax/MountainCarContinuous-v0"), kept=(1, 0), name="mine/Turned"
    )
    np.testing.assert_allclose(turned.observation_space.high, (0.07, 0.6), rtol=1e-6)
    assert (turned.name, turned.observation_space.shape) == ("mine/Turned", (2,))


@pytest.mark.parametrize("kept", [(), (0, 0), (2,), (-1,)])
def test_invalid_indices_are_refused(kept: tuple[int, ...]) -> None:
    with pytest.raises(
        UsageError, match="kept must be at least one distinct index from 0 to 1, got"
    ):
        PartialObservation(TwoAgents(), kept)


@pytest.mark.parametrize("id", ["probe/masked", "memory/repeat-previous"])
def test_only_vectors_have_partial_observations(id: str) -> None:
    with pytest.raises(UsageError, match="observations must be a Box of shape"):
        PartialObservation(make(id), (0,))


def test_repeat_previous_does_not_import_gymnax() -> None:
    code = """
import sys
from rollax import environments
environments.make("memory/repeat-previous")
assert "gymnax" not in sys.modules, "gymnax was imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
