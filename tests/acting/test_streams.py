"""Laws of `Streams`: restarting loses nothing, starts follow one rule, and agents keep their places."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax.environments as environments
from rollax.environments import Streams, Transition
from rollax.spaces import Box, Discrete

NUM_ENVS = 5
STEPS = 40


class Lottery(eqx.Module):
    """Episodes of `shortest` to 4 steps with random rewards; the clock is negative at every later observation."""

    shortest: int = eqx.field(static=True, default=1)

    name = "test/lottery"
    observation_space = Box(-10.0, 10.0, (3,))
    action_space = Discrete(3)
    num_agents = None

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        ticket_key, length_key = jax.random.split(key)
        ticket = jax.random.uniform(ticket_key, (2,))
        left = jax.random.randint(length_key, (), self.shortest, 5)
        return (ticket, left), jnp.concatenate([ticket, jnp.zeros(1)])

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        cut_key, reward_key = jax.random.split(key)
        ticket, left = state[0], state[1] - 1
        obs = jnp.concatenate([ticket, -1.0 - left[None]])
        cut = jax.random.bernoulli(cut_key) & (left == 0)
        reward = action + jax.random.uniform(reward_key)
        return Transition((ticket, left), obs, reward, (left == 0) & ~cut, cut, {"left": left})


class Echo(eqx.Module):
    """Three agents: an agent observes its environment's number and its own, and is rewarded by its action."""

    name = "test/echo"
    observation_space = Box(0.0, 1e6, (2,))
    action_space = Discrete(100)
    num_agents = 3

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        number = jax.random.randint(key, (), 0, 1_000_000)
        return (number, jnp.zeros((), jnp.int32)), self._observe(number)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        number, time = state[0], state[1] + 1
        out = time >= jnp.array([1, 2, 3])
        return Transition((number, time), self._observe(number), action.astype(jnp.float32), out, ~out & False, {})

    def _observe(self, number: jax.Array) -> jax.Array:
        return jnp.stack([jnp.full(3, number, jnp.float32), jnp.arange(3.0)], axis=1)


def drive(streams: Streams, key: jax.Array, steps: int = STEPS) -> dict[str, Any]:
    """Random actions for some steps: first state, keys, actions and time steps, `[T, ...]`."""
    init_key, loop_key = jax.random.split(key)
    first = streams.init(init_key)

    def act(state: Any, key: jax.Array) -> tuple[Any, Any]:
        action_key, step_key = jax.random.split(key)
        action = jax.vmap(streams.env.action_space.sample)(jax.random.split(action_key, streams.num_streams))
        keys = jax.random.split(step_key, streams.num_envs)
        state, time_step = streams.step(keys, state, action)
        return state, (keys, action, time_step, state.reset)

    last, (keys, actions, time_steps, resets) = jax.lax.scan(act, first, jax.random.split(loop_key, steps))
    return {"first": first, "last": last, "keys": keys, "actions": actions, "steps": time_steps, "resets": resets}


def by_hand(env: Any, record: dict[str, Any]) -> dict[str, np.ndarray]:
    """The same keys and actions, one environment at a time, with a fresh reset after each end."""
    reset = jax.jit(lambda key: env.reset(key))
    step = jax.jit(lambda key, state, action: env.step(key, state, action))
    columns: dict[str, list[Any]] = {"obs": [], "final_obs": [], "reward": [], "terminated": [], "truncated": []}
    for e, key in enumerate(record["first"].key):
        episode, (state, _) = 1, reset(jax.random.fold_in(key, 0))
        rows: dict[str, list[Any]] = {name: [] for name in columns}
        for t in range(record["actions"].shape[0]):
            transition = step(record["keys"][t, e], state, record["actions"][t, e])
            state, obs = transition.state, transition.obs
            if transition.terminated | transition.truncated:
                state, obs = reset(jax.random.fold_in(key, episode))
                episode += 1
            seen = (obs, transition.obs, transition.reward, transition.terminated, transition.truncated)
            for name, value in zip(columns, seen, strict=True):
                rows[name].append(np.asarray(value))
        for name in columns:
            columns[name].append(np.stack(rows[name]))
    return {name: np.stack(values, axis=1) for name, values in columns.items()}


@pytest.mark.parametrize("env", [Lottery(), environments.make("gymnax/CartPole-v1", max_steps_in_episode=12)])
def test_restarting_loses_no_reward_and_no_end(env: Any) -> None:
    record = jax.jit(lambda key: drive(Streams(env, NUM_ENVS), key))(jax.random.key(1))
    with jax.debug_key_reuse(False):  # the same keys again, on purpose
        expected = by_hand(env, record)
    assert expected["terminated"].sum() > 0
    for name, values in expected.items():
        np.testing.assert_allclose(np.asarray(record["steps"]._asdict()[name]), values, rtol=1e-5, atol=1e-6, err_msg=name)
    episodes = (expected["terminated"] | expected["truncated"]).sum(axis=0)
    np.testing.assert_array_equal(record["last"].episode, episodes + 1)
    np.testing.assert_array_equal(record["resets"], expected["terminated"] | expected["truncated"])


def test_final_obs_is_never_a_reset_observation() -> None:
    record = drive(Streams(Lottery(), NUM_ENVS), jax.random.key(2))
    steps = record["steps"]
    ended = np.asarray(steps.terminated | steps.truncated)
    clock, final_clock = np.asarray(steps.obs)[..., 2], np.asarray(steps.final_obs)[..., 2]
    assert ended.any() and not ended.all()
    assert (final_clock < 0).all()
    assert (clock[ended] == 0).all()
    np.testing.assert_array_equal(clock[~ended], final_clock[~ended])


@pytest.mark.parametrize("num_envs", [1, 7])
@pytest.mark.parametrize("env", [Lottery(), Lottery(shortest=4), environments.make("probe/continuous")])
def test_the_nth_episode_begins_at_the_nth_key(env: Any, num_envs: int) -> None:
    """The start is `reset(fold_in(key, n))` bit for bit, whatever the others do, also where episodes last one step."""
    record = drive(Streams(env, num_envs), jax.random.key(3))
    for e, key in enumerate(record["first"].key):
        later = np.asarray(record["steps"].obs)[np.asarray(record["resets"])[:, e], e]
        starts = np.concatenate([np.asarray(record["first"].obs)[None, e], later])
        keys = jax.vmap(lambda n, key=key: jax.random.fold_in(key, n))(jnp.arange(len(starts)))
        assert len(starts) >= STEPS // 4
        np.testing.assert_array_equal(starts, jax.vmap(env.reset)(keys)[1])


def test_all_starts_differ() -> None:
    record = drive(Streams(Lottery(), num_envs=16), jax.random.key(4), steps=60)
    starts = np.concatenate([np.asarray(record["first"].obs), np.asarray(record["steps"].obs)[np.asarray(record["resets"])]])
    assert len(starts) > 300
    assert len(np.unique(starts, axis=0)) == len(starts)


def test_a_member_of_a_population_is_the_run_alone() -> None:
    streams = Streams(Lottery(), NUM_ENVS)
    keys = jax.random.split(jax.random.key(5), 3)
    # JAX takes the keys of any vmapped scan for used twice; and the same keys are used again here, on purpose.
    with jax.debug_key_reuse(False):
        together = jax.jit(jax.vmap(lambda key: drive(streams, key)["steps"]))(keys)
        alone = [jax.jit(lambda key: drive(streams, key)["steps"])(key) for key in keys]
    jax.tree.map(np.testing.assert_array_equal, together, jax.tree.map(lambda *x: jnp.stack(x), *alone))


def test_agents_are_streams_in_order() -> None:
    """Stream s is agent s % A of environment s // A, for observations, actions, rewards and ends."""
    streams = Streams(Echo(), num_envs=4)
    state = streams.init(jax.random.key(6))
    assert streams.num_streams == 12
    action = jnp.arange(12)
    numbers = np.asarray(state.env_state[0])
    for time in (1, 2):
        state, step = streams.step(jax.random.split(jax.random.key(time), 4), state, action)
        np.testing.assert_array_equal(step.reward, np.arange(12.0))
        np.testing.assert_array_equal(step.obs[:, 1], np.tile(np.arange(3.0), 4))
        np.testing.assert_array_equal(step.obs[:, 0], np.repeat(numbers, 3).astype(np.float32))
        np.testing.assert_array_equal(step.terminated, np.tile(time >= np.array([1, 2, 3]), 4))
        assert not state.reset.any(), "the episode is over when the last agent's is"
    state, step = streams.step(jax.random.split(jax.random.key(3), 4), state, action)
    assert state.reset.all() and step.terminated.all()
    np.testing.assert_array_equal(step.final_obs[:, 0], np.repeat(numbers, 3).astype(np.float32))
    assert (np.asarray(state.env_state[0]) != numbers).all()
    np.testing.assert_array_equal(streams.spread(jnp.arange(4)), np.repeat(np.arange(4), 3))
