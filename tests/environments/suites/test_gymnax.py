"""Tests of the Gymnax adapter: parameters as data, and distinct ends."""

from typing import Any

import equinox as eqx
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments.minatar.breakout import MinBreakout

from rollax import from_gymnax
from rollax.environments import make


def test_creating_an_environment_twice_compiles_once() -> None:
    traces = []

    @jax.jit
    def start(env: Any, key: jax.Array) -> Any:
        traces.append(1)
        return env.reset(key)[1]

    for gravity in (9.8, 5, "3.7"):
        start(make("gymnax/CartPole-v1", gravity=gravity), jax.random.key(0))
    assert len(traces) == 1


def test_gravity_is_data() -> None:
    """Under `vmap` over gravity, each copy has the dynamics of its own gravity."""
    gravities = jnp.asarray([1.0, 9.8, 30.0])

    def fall(env: Any) -> jax.Array:
        state, _ = env.reset(jax.random.key(0))
        keys = jax.random.split(jax.random.key(1), 10)
        return jax.lax.scan(lambda s, k: (env.step(k, s, 1).state, None), state, keys)[0].theta_dot

    together = jax.vmap(lambda g: fall(make("gymnax/CartPole-v1", gravity=g)))(gravities)
    alone = jnp.stack([fall(make("gymnax/CartPole-v1", gravity=float(g))) for g in gravities])
    env = make("gymnax/CartPole-v1")
    batched = eqx.tree_at(lambda e: e.params.gravity, env, gravities)
    axes = eqx.tree_at(
        lambda e: e.params.gravity,
        jax.tree.map(lambda _: None, env),
        0,
        is_leaf=lambda x: x is None,
    )
    by_leaf = jax.vmap(fall, in_axes=(axes,))(batched)
    assert len(np.unique(np.round(together, 3))) == 3
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(together, by_leaf, rtol=1e-6)


def test_derived_parameters_follow_a_changed_mass() -> None:
    env = make("gymnax/CartPole-v1", masspole=0.3, length=1.0)
    raw, params = gymnax.make("CartPole-v1")
    params = params.replace(masspole=0.3, length=1.0, total_mass=1.3, polemass_length=0.3)
    _, raw_state = raw.reset_env(jax.random.key(0), params)
    state, _ = env.reset(jax.random.key(0))
    for time in range(5):
        obs, raw_state, *_ = raw.step_env(jax.random.key(time), raw_state, 1, params)
        transition = env.step(jax.random.key(time), state, 1)
        state = transition.state
    np.testing.assert_allclose(transition.obs, obs, rtol=1e-5)


@pytest.mark.parametrize("name", ["Pendulum-v1", "DiscountingChain-bsuite", "MountainCar-v0"])
def test_the_time_limit_is_never_a_termination(name: str) -> None:
    env = make(f"gymnax/{name}", max_steps_in_episode=3)
    state, _ = env.reset(jax.random.key(0))
    for time in (1, 2, 3):
        action = env.action_space.sample(jax.random.key(time))
        transition = env.step(jax.random.key(time), state, action)
        state = transition.state
        assert not transition.terminated
        assert bool(transition.truncated) == (time == 3)
    assert env.time_limit == 3


def test_a_task_that_ends_at_the_time_limit_terminates() -> None:
    """The time limit of DeepSea is its depth, so that Gymnax reports both."""
    env = make("gymnax/DeepSea-bsuite", size=3)
    state, _ = env.reset(jax.random.key(0))
    ends = []
    for time in range(3):
        transition = env.step(jax.random.key(time), state, 1)
        state = transition.state
        ends.append((bool(transition.terminated), bool(transition.truncated)))
    assert ends == [(False, False), (False, False), (True, False)]


def test_the_last_observation_is_not_that_of_a_reset() -> None:
    """A step of Gymnax would return the first observation of the next episode."""
    env = make("gymnax/CartPole-v1")
    state, _ = env.reset(jax.random.key(0))
    for time in range(30):
        transition = env.step(jax.random.key(time), state, 1)
        state = transition.state
        if transition.terminated:
            break
    assert transition.terminated
    assert (
        abs(transition.obs[2]) > env.params.theta_threshold_radians
        or abs(transition.obs[0]) > env.params.x_threshold
    )
    assert state.time > 1


@pytest.mark.parametrize("game", ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"])
def test_boards_of_minatar_are_boolean(game: str) -> None:
    """The suite's boards contain only zeros and ones, and the adapter returns the same values."""
    env = make(f"gymnax/{game}-MinAtar")
    assert env.observation_space.dtype == "bool"

    @jax.jit
    def play(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(state: Any, key: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
            action_key, step_key = jax.random.split(key)
            action = env.action_space.sample(action_key)
            theirs = env.dynamics.step_env(step_key, state, action, env.params)[0]
            after = env.step(step_key, state, action)
            return after.state, (theirs, after.obs)

        return jax.lax.scan(step, env.reset(key)[0], jax.random.split(key, 100))[1]

    with jax.debug_key_reuse(False):  # both take the same steps
        theirs, ours = play(jax.random.key(0))
    assert set(np.unique(theirs)) == {0, 1}
    assert ours.dtype == bool
    np.testing.assert_array_equal(ours, theirs)


def test_subclasses_of_a_game_keep_their_observation_dtype() -> None:
    class Fading(MinBreakout):
        def get_obs(self, state: Any, params: Any = None, key: Any = None) -> jax.Array:
            return super().get_obs(state, params, key) * 0.5

    assert from_gymnax(Fading(), name="mine/Fading-MinAtar").observation_space.dtype == "float32"
