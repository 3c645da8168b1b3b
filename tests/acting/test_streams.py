"""Tests of `unroll`: restarts, start states and the order of agents."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax.environments as environments
from rollax.acting.streams import ActorState, Experience, flatten_streams, init_actor, unroll
from rollax.algorithm import EpisodeSums
from rollax.checks.random_play import random_policy
from rollax.environments import Transition
from rollax.spaces import Box, Discrete

NUM_ENVS = 5
STEPS = 40


class Lottery(eqx.Module):
    """Episodes of `shortest` to 4 steps with random rewards.

    The third observation is 0 at the start of an episode and negative later.
    """

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
    """Environment with three agents, each rewarded by its action.

    An agent observes the number of its environment and its own index.
    """

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
        return Transition(
            (number, time), self._observe(number), action.astype(jnp.float32), out, ~out & False, {}
        )

    def _observe(self, number: jax.Array) -> jax.Array:
        return jnp.stack([jnp.full(3, number, jnp.float32), jnp.arange(3.0)], axis=1)


def drive(
    env: Any, key: jax.Array, num_envs: int = NUM_ENVS, steps: int = STEPS
) -> tuple[ActorState, Experience, EpisodeSums]:
    """Run random actions for some steps."""
    start_key, loop_key = jax.random.split(key)
    return unroll(
        env, random_policy(env), init_actor(env, start_key, num_envs, ()), loop_key, steps
    )


def ends(experience: Experience) -> np.ndarray:
    return np.asarray(experience.terminated | experience.truncated)


def following(actor: ActorState, experience: Experience) -> tuple[np.ndarray, np.ndarray]:
    """Return the policy's observation after each step `[T, E]` and whether it starts an episode."""
    pairs = (experience.obs, actor.obs), (experience.reset, actor.reset)
    obs, reset = (np.concatenate([np.asarray(x)[1:], np.asarray(last)[None]]) for x, last in pairs)
    return obs, reset


def by_hand(env: Any, key: jax.Array, actions: np.ndarray) -> dict[str, np.ndarray]:
    """Run the same keys and actions, one environment at a time, with a new reset after each end."""
    reset = jax.jit(lambda key: env.reset(key))
    step = jax.jit(lambda key, state, action: env.step(key, state, action))
    of_step = jax.jit(lambda key, time: jax.random.split(jax.random.fold_in(key, time))[1])
    start_key, loop_key = jax.random.split(key)
    columns: dict[str, list[Any]] = {
        "obs": [],
        "next_obs": [],
        "reward": [],
        "terminated": [],
        "truncated": [],
    }
    keys = (jax.random.split(key, actions.shape[1]) for key in (start_key, loop_key))
    for e, (key, step_key) in enumerate(zip(*keys, strict=True)):
        episode, (state, obs) = 1, reset(jax.random.fold_in(key, 0))
        rows: dict[str, list[Any]] = {name: [] for name in columns}
        for t in range(actions.shape[0]):
            transition = step(of_step(step_key, t), state, actions[t, e])
            seen = (
                obs,
                transition.obs,
                transition.reward,
                transition.terminated,
                transition.truncated,
            )
            for name, value in zip(columns, seen, strict=True):
                rows[name].append(np.asarray(value))
            state, obs = transition.state, transition.obs
            if transition.terminated | transition.truncated:
                state, obs = reset(jax.random.fold_in(key, episode))
                episode += 1
        for name in columns:
            columns[name].append(np.stack(rows[name]))
    return {name: np.stack(values, axis=1) for name, values in columns.items()}


@pytest.mark.parametrize(
    "env", [Lottery(), environments.make("gymnax/CartPole-v1", max_steps_in_episode=12)]
)
def test_restarts_equal_resets_by_hand(env: Any) -> None:
    actor, experience, sums = jax.jit(lambda key: drive(env, key))(jax.random.key(1))
    with jax.debug_key_reuse(False):  # The same keys are used again on purpose.
        expected = by_hand(env, jax.random.key(1), experience.action)
    assert expected["terminated"].sum() > 0
    for name, values in expected.items():
        np.testing.assert_allclose(
            np.asarray(experience._asdict()[name]), values, rtol=1e-5, atol=1e-6, err_msg=name
        )
    ended = expected["terminated"] | expected["truncated"]
    np.testing.assert_array_equal(actor.reset_pool.episode, ended.sum(axis=0) + 1)
    np.testing.assert_array_equal(following(actor, experience)[1], ended)
    assert np.all(experience.reset[0]), "the first observations begin episodes"
    # Every reward is in an episode that ended or in one that still runs.
    assert float(sums.number) == ended.sum()
    assert float(sums.total_return + jnp.sum(actor.episode_return)) == pytest.approx(
        expected["reward"].sum(), rel=1e-4
    )
    assert float(sums.total_length + jnp.sum(actor.episode_length)) == ended.size


@pytest.mark.quick
def test_next_obs_is_never_a_reset_observation() -> None:
    actor, experience, _ = drive(Lottery(), jax.random.key(2))
    ended = ends(experience)
    clock, final_clock = (
        following(actor, experience)[0][..., 2],
        np.asarray(experience.next_obs)[..., 2],
    )
    assert ended.any() and not ended.all()
    assert (final_clock < 0).all()
    assert (clock[ended] == 0).all()
    np.testing.assert_array_equal(clock[~ended], final_clock[~ended])


@pytest.mark.parametrize("num_envs", [1, 7])
@pytest.mark.parametrize(
    "env", [Lottery(), Lottery(shortest=4), environments.make("probe/continuous")]
)
def test_the_nth_episode_starts_from_the_nth_key(env: Any, num_envs: int) -> None:
    """The start is exactly `reset(fold_in(key, n))`.

    Other environments do not matter, and episodes may last one step.
    """
    actor, experience, _ = drive(env, jax.random.key(3), num_envs)
    obs, resets = (
        np.concatenate([np.asarray(x), np.asarray(last)[None]])
        for x, last in ((experience.obs, actor.obs), (experience.reset, actor.reset))
    )
    for e, key in enumerate(actor.reset_pool.key):
        starts = obs[resets[:, e], e]
        keys = jax.vmap(lambda n, key=key: jax.random.fold_in(key, n))(jnp.arange(len(starts)))
        assert len(starts) >= STEPS // 4
        np.testing.assert_array_equal(starts, jax.vmap(env.reset)(keys)[1])


def test_all_starts_differ() -> None:
    _, experience, _ = drive(Lottery(), jax.random.key(4), num_envs=16, steps=60)
    starts = np.asarray(experience.obs)[np.asarray(experience.reset)]
    assert len(starts) > 300
    assert len(np.unique(starts, axis=0)) == len(starts)


def test_a_population_member_equals_a_single_run() -> None:
    keys = jax.random.split(jax.random.key(5), 3)
    # JAX reports the keys of any vmapped scan as used twice. The same keys are used again here on
    # purpose.
    with jax.debug_key_reuse(False):
        together = jax.jit(jax.vmap(lambda key: drive(Lottery(), key)[1]))(keys)
        alone = [jax.jit(lambda key: drive(Lottery(), key)[1])(key) for key in keys]
    jax.tree.map(
        np.testing.assert_array_equal, together, jax.tree.map(lambda *x: jnp.stack(x), *alone)
    )


@pytest.mark.quick
def test_agents_are_streams_in_order() -> None:
    """Stream s is agent s % A of environment s // A in observations, actions, rewards and ends."""
    env, steps = Echo(), 3
    first = init_actor(env, jax.random.key(6), 4, jnp.zeros(3, jnp.int32))
    first = first._replace(carry=jnp.arange(12).reshape(4, 3))
    numbers = np.asarray(first.env_state[0])

    def policy(action, obs, reset, key):
        return (action, action, {"twice": 2 * action})

    actor, experience, sums = unroll(env, policy, first, jax.random.key(7), steps)
    assert experience.reward.shape == (steps, 12)
    for time in range(steps):
        row = jax.tree.map(lambda x, time=time: np.asarray(x[time]), experience)
        present = np.tile(time < np.array([1, 2, 3]), 4)
        np.testing.assert_array_equal(row.action, np.arange(12))
        np.testing.assert_array_equal(row.carry, np.arange(12))
        np.testing.assert_array_equal(row.extras["twice"], 2 * np.arange(12))
        np.testing.assert_array_equal(row.mask, present)
        np.testing.assert_array_equal(row.reward, np.where(present, np.arange(12.0), 0.0))
        for obs in (row.obs, row.next_obs):
            np.testing.assert_array_equal(obs[:, 1], np.tile(np.arange(3.0), 4))
            np.testing.assert_array_equal(obs[:, 0], np.repeat(numbers, 3).astype(np.float32))
        np.testing.assert_array_equal(row.terminated, np.tile(time + 1 >= np.array([1, 2, 3]), 4))
        assert row.reset.all() == row.reset.any() == (time == 0), (
            "the episode is over when the last agent's is"
        )
    assert actor.reset.all() and not actor.agent_done.any()
    assert (np.asarray(actor.env_state[0]) != numbers).all()
    lengths = np.tile([1, 2, 3], 4)
    assert [float(x) for x in sums[:3]] == [12, (lengths * np.arange(12)).sum(), lengths.sum()]
    assert sums.agent_type_sums == {}, "all agents are of one type"
    np.testing.assert_array_equal(flatten_streams(env, actor.obs)[:, 1], np.tile(np.arange(3.0), 4))
