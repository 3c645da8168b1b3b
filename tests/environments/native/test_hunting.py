"""Tests of hunting: catches, rewards and ends in closed form, and symmetries of the square."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.acting.evaluation import make_evaluator
from rollax.acting.streams import init_actor
from rollax.algorithm import Algorithm
from rollax.environments import default_arguments, make
from rollax.environments.environment import Transition
from rollax.environments.native.hunting.hunting import Hunting, HuntingState
from rollax.errors import UnknownNameError, UsageError
from streaming import advance

STILL = (0.0, 0.0)


def state_at(*positions: tuple[float, float], time: int = 0) -> HuntingState:
    places = jnp.asarray(positions, jnp.float32)
    return HuntingState(places, jnp.zeros_like(places), jnp.asarray(time, jnp.int32))


def play(env: Any, state: HuntingState, action: Any, steps: int) -> Transition:
    """Repeat the same actions `steps` times. Leaves of the result have shape `[steps, ...]`."""

    def step(state: HuntingState, key: jax.Array) -> tuple[HuntingState, Transition]:
        after = env.step(key, state, jnp.asarray(action))
        return after.state, after

    return jax.jit(lambda keys: jax.lax.scan(step, state, keys)[1])(
        jax.random.split(jax.random.key(0), steps)
    )


def test_a_predator_catches_a_standing_prey_in_the_expected_steps() -> None:
    """From distance 0.7 at 0.03 per step, it is within 0.2 after ceil(0.5 / 0.03) = 17 steps."""
    env = make("hunting/2-players", prey_speed=1.0, predator_speed=3.0)
    told = play(env, state_at((0.9, 0.5), (0.2, 0.5)), [STILL, (0.25, 0.0)], 17)
    np.testing.assert_array_equal(
        told.terminated, np.broadcast_to(np.arange(1, 18)[:, None] == 17, (17, 2))
    )
    assert not told.truncated.any()
    np.testing.assert_allclose(
        told.state.positions[:, 1, 0], 0.2 + 0.03 * np.arange(1, 18), atol=1e-6
    )
    np.testing.assert_array_equal(told.reward[:-1], np.broadcast_to([1.0, -1.0], (16, 2)))
    np.testing.assert_array_equal(told.reward.sum(axis=0), [16 - 100, 100 - 16])
    np.testing.assert_array_equal([told.info["caught"].sum(), told.info["survived"].sum()], [1, 0])


def test_a_prey_in_the_far_corner_survives_to_the_limit() -> None:
    """The predator moves 0.005 per step along the diagonal.

    After 200 steps it is sqrt(2) - 1 > 0.2 from the other corner.
    """
    env = make("hunting/2-players", predator_speed=0.5)
    told = play(env, state_at((1.0, 1.0), (0.0, 0.0)), [STILL, (1.0, 1.0)], 200)
    assert not told.terminated.any()
    np.testing.assert_array_equal(
        told.truncated, np.broadcast_to(np.arange(1, 201)[:, None] == 200, (200, 2))
    )
    np.testing.assert_array_equal(told.reward.sum(axis=0), [200.0, -200.0])
    np.testing.assert_array_equal([told.info["caught"].sum(), told.info["survived"].sum()], [0, 1])
    # The last observation is the true one, with both players in place and no time left.
    end = np.sqrt(0.5)
    np.testing.assert_allclose(told.obs[-1, 0], [1, 1, end - 1, end - 1, 0, 1], atol=1e-4)
    np.testing.assert_allclose(
        told.obs[-1, 1], [2 * end - 1, 2 * end - 1, 1 - end, 1 - end, 0, -1], atol=1e-4
    )


def test_a_catch_in_the_last_step_terminates() -> None:
    env = make("hunting/2-players", time_limit=3)
    last = play(env, state_at((0.5, 0.5), (0.6, 0.5), time=2), [STILL, STILL], 1)
    assert last.terminated.all() and not last.truncated.any()
    assert (float(last.info["caught"][0]), float(last.info["survived"][0])) == (1.0, 0.0)


def test_restarts_keep_the_final_observation() -> None:
    env = make("hunting/2-players", time_limit=2, catch_radius=0.0)
    actor = init_actor(env, jax.random.key(0), 1, ())
    for key in jax.random.split(jax.random.key(1), 2):
        actor, told, _ = advance(env, actor, jnp.zeros((1, 2, 2)), key[None])
    told = jax.tree.map(lambda x: x[0], told)  # of the only environment
    assert told.truncated.all() and not told.terminated.any()
    np.testing.assert_array_equal(told.next_obs[:, :4], told.obs[:, :4])  # no player moved
    np.testing.assert_array_equal(told.next_obs[:, 4], 0.0)
    np.testing.assert_array_equal(actor.obs[0, :, 4], 1.0)
    assert not np.array_equal(actor.obs[0, :, :4], told.next_obs[:, :4])


@pytest.mark.parametrize(
    ("distances", "rewards"),
    [
        ((0.1, 0.5), (-100, 100, 50)),
        ((0.5, 0.1), (-100, 50, 100)),
        ((0.1, 0.1), (-100, 100, 100)),
        ((0.3, 0.3), (1, -1, -1)),
    ],
)
def test_rewards_of_two_predators(
    distances: tuple[float, float], rewards: tuple[float, float, float]
) -> None:
    env = make("hunting/3-players")
    start = state_at((0.5, 0.5), (0.5 + distances[0], 0.5), (0.5, 0.5 - distances[1]))
    after = env.step(jax.random.key(0), start, jnp.zeros((3, 2)))
    np.testing.assert_array_equal(after.reward, rewards)
    np.testing.assert_array_equal(after.terminated, [rewards[0] < 0] * 3)


def test_reward_sizes_are_arguments() -> None:
    env = make("hunting/3-players", step_reward=0.1, catch_reward=7.0, assist=0.25)
    free, caught = (state_at((0.5, 0.5), (0.5, x), (1.0, 1.0)) for x in (0.1, 0.4))
    np.testing.assert_allclose(
        env.step(jax.random.key(0), free, jnp.zeros((3, 2))).reward, [0.1, -0.1, -0.1]
    )
    np.testing.assert_allclose(
        env.step(jax.random.key(0), caught, jnp.zeros((3, 2))).reward, [-7.0, 7.0, 1.75]
    )


def test_four_headings() -> None:
    env = make("hunting/2-players", headings="four", prey_speed=2.0, predator_speed=4.0)
    start = state_at((0.1, 0.5), (0.9, 0.5))
    moves = np.asarray([[1, 0], [0, 1], [-1, 0], [0, -1]])
    for prey, predator in [(0, 1), (1, 2), (2, 3), (3, 0)]:
        after = env.step(jax.random.key(0), start, jnp.asarray([prey, predator]))
        moved = after.state.positions - start.positions
        np.testing.assert_allclose(moved, [0.02 * moves[prey], 0.04 * moves[predator]], atol=1e-6)
        np.testing.assert_array_equal(after.state.headings, moves[np.asarray([prey, predator])])


def test_only_the_direction_of_a_vector_counts() -> None:
    env = make("hunting/2-players")
    vectors = jnp.asarray([[3e-3, 4e-3], [-30.0, 40.0]])
    np.testing.assert_allclose(env.heading_vectors(vectors), [[0.6, 0.8], [-0.6, 0.8]], rtol=1e-6)
    np.testing.assert_array_equal(env.heading_vectors(jnp.zeros((2, 2))), np.zeros((2, 2)))


@pytest.mark.parametrize("name", ["2-players", "3-players"])
def test_players_stay_in_the_square(name: str) -> None:
    """At ten times the usual speed, walls are met often and stop only the motion towards them."""
    env = make(f"hunting/{name}", prey_speed=10.0, catch_radius=0.0)
    angles = jax.random.uniform(jax.random.key(3), (100, env.num_agents), maxval=2 * np.pi)
    vectors = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=-1)

    def step(state: HuntingState, action: jax.Array) -> tuple[HuntingState, HuntingState]:
        after = env.step(jax.random.key(0), state, action).state
        return after, after

    start = env.reset(jax.random.key(4))[0]
    states = jax.jit(lambda: jax.lax.scan(step, start, vectors)[1])()
    places = np.concatenate([np.asarray(start.positions)[None], states.positions])
    assert (places >= 0).all() and (places <= 1).all() and ((places == 0) | (places == 1)).any()
    free = places[:-1] + 0.01 * np.asarray(env.speeds)[:, None] * np.asarray(vectors)
    np.testing.assert_allclose(places[1:], np.clip(free, 0, 1), atol=1e-6)


def test_predators_of_one_speed_can_be_swapped() -> None:
    """Their observations and rewards are swapped. The prey observes them in swapped order."""
    env = make("hunting/3-players")
    swap = np.asarray([0, 2, 1])
    state = env.reset(jax.random.key(5))[0]
    action = jax.random.normal(jax.random.key(6), (3, 2))
    swapped = state._replace(positions=state.positions[swap])
    first, second = np.linalg.norm(state.positions[1:] - state.positions[:1], axis=-1).tolist()
    for near in (0.0, (first + second) / 2):  # without a catch, and with one by the nearer predator
        world = eqx.tree_at(lambda e: e.catch_radius, env, jnp.asarray(near))
        one = world.step(jax.random.key(0), state, action)
        other = world.step(jax.random.key(0), swapped, action[swap])
        np.testing.assert_array_equal(other.obs[1:], one.obs[swap][1:])
        np.testing.assert_array_equal(
            other.obs[0], one.obs[0][np.asarray([0, 1, 4, 5, 2, 3, 6, 7])]
        )
        np.testing.assert_array_equal(other.reward, one.reward[swap])
        assert sorted(one.reward.tolist()) == ([-1, -1, 1] if near == 0 else [-100, 50, 100])


@pytest.mark.parametrize("headings", ["continuous", "four"])
def test_a_rotation_of_the_square_rotates_everything(headings: str) -> None:
    """By 90 degrees, (x, y) becomes (1 - y, x).

    Every vector in an observation becomes (-y, x), and the heading d becomes d + 1.
    """
    env = make("hunting/3-players", headings=headings, prey_speed=5.0)

    def turn(vectors: jax.Array) -> jax.Array:
        return jnp.stack([-vectors[..., 1], vectors[..., 0]], axis=-1)

    vector = jax.random.normal(jax.random.key(8), (3, 2))
    choice = jnp.asarray([0, 1, 3])
    action, turned_action = (
        (choice, (choice + 1) % 4) if headings == "four" else (vector, turn(vector))
    )
    state = env.reset(jax.random.key(7))[0]
    turned = state._replace(positions=0.5 + turn(state.positions - 0.5))
    one = env.step(jax.random.key(0), state, action)
    other = env.step(jax.random.key(0), turned, turned_action)
    vectors = one.obs[:, :6].reshape(3, 3, 2)
    np.testing.assert_allclose(other.obs[:, :6].reshape(3, 3, 2), turn(vectors), atol=1e-6)
    np.testing.assert_array_equal(other.obs[:, 6:], one.obs[:, 6:])
    np.testing.assert_array_equal(other.reward, one.reward)


def test_observations_of_each_agent() -> None:
    env = make("hunting/3-players", time_limit=10)
    seen = env.observe(state_at((0.5, 0.75), (0.0, 0.25), (1.0, 1.0), time=4))
    expected = [
        [0.0, 0.5, -0.5, -0.5, 0.5, 0.25, 0.6, 1.0],
        [-1.0, -0.5, 0.5, 0.5, 1.0, 0.75, 0.6, -1.0],
        [1.0, 1.0, -0.5, -0.25, -1.0, -0.75, 0.6, -1.0],
    ]
    np.testing.assert_allclose(seen, expected, atol=1e-6)
    assert env.agent_types == ("prey", "predator", "predator")


@pytest.mark.parametrize("distance", [0.0, 0.3, 0.35])
def test_start_positions_are_apart(distance: float) -> None:
    env = make("hunting/3-players", start_distance=distance)
    states, _ = jax.jit(jax.vmap(lambda key: env.reset(key)))(
        jax.random.split(jax.random.key(9), 2000)
    )
    apart = np.linalg.norm(states.positions[:, 1:] - states.positions[:, :1], axis=-1)
    assert apart.min() >= distance
    assert distance > 0 or apart.min() < 0.1
    assert (states.positions >= 0).all() and (states.positions <= 1).all()
    # All players use the whole square.
    np.testing.assert_allclose(states.positions.mean(axis=0), 0.5, atol=0.03)
    np.testing.assert_allclose(states.positions.var(axis=0), 1 / 12, atol=0.01)


def test_the_descriptor_is_the_last_position_of_the_prey() -> None:
    """It is caught in place or at a wall, moving up by 0.01 per step from 0.5 and clipped at 1."""
    env = make("hunting/2-players", prey_speed=1.0, predator_speed=0.1)
    told = play(env, state_at((0.2, 0.5), (0.9, 0.1)), [(0.0, 1.0), STILL], 60)
    described = jax.vmap(env.descriptor)(told.state)  # pyright: ignore[reportAttributeAccessIssue]
    assert described.dtype == jnp.float32
    expected = np.stack([np.full(60, 0.2), np.minimum(0.5 + 0.01 * np.arange(1, 61), 1.0)], axis=1)
    np.testing.assert_allclose(described, expected, atol=1e-5)
    still = Algorithm(None, None, lambda *_: (jnp.zeros((2, 2)), ()), lambda state: ())  # pyright: ignore[reportArgumentType]
    episodes = jax.jit(make_evaluator(env, still, 20, 200, True))((), jax.random.key(0))
    starts = jax.vmap(lambda key: env.reset(key)[0].positions[0])(
        jax.random.split(jax.random.split(jax.random.key(0))[0], 20)
    )
    np.testing.assert_array_equal(episodes.descriptor, starts)


def test_parameters_are_leaves() -> None:
    """Environments of different radii run under `vmap`.

    At distance 0.4, radii from 0.4 on catch the prey.
    """

    def caught(radius: jax.Array, speed: jax.Array) -> jax.Array:
        env = make("hunting/2-players", catch_radius=radius, prey_speed=speed)
        after = env.step(
            jax.random.key(0), state_at((0.3, 0.5), (0.7, 0.5)), jnp.asarray([(0.0, 1.0), STILL])
        )
        return jnp.stack([after.terminated[0].astype(jnp.float32), after.state.positions[0, 1]])

    radii, speeds = jnp.asarray([0.1, 0.39, 0.41, 0.9]), jnp.asarray([1.0, 2.0, 3.0, 4.0])
    told = jax.jit(jax.vmap(caught))(radii, speeds)
    np.testing.assert_array_equal(told[:, 0], [0, 0, 1, 1])
    np.testing.assert_allclose(told[:, 1], [0.51, 0.52, 0.53, 0.54], rtol=1e-6)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(make("hunting/3-players")))


def test_a_speed_for_each_player() -> None:
    env = make("hunting/3-players", prey_speed="2", predator_speeds="[0.25, 0.5]")
    np.testing.assert_array_equal(env.speeds, [2.0, 0.25, 0.5])
    assert Hunting([1.0] * 5).name == "hunting/5-players"
    assert "assist" not in default_arguments("hunting/2-players")


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("2-players", {"headings": "eight"}, "must be one of continuous, four"),
        ("2-players", {"time_limit": 0}, r"time_limit \(0\) must be at least 1"),
        ("2-players", {"catch_radius": -0.1}, r"catch_radius \(-0.1\) must be at least 0"),
        (
            "2-players",
            {"start_distance": 0.5},
            r"start_distance \(0.5\) must be between 0 and 0.35",
        ),
        ("2-players", {"predator_speed": -1}, "speeds"),
        ("2-players", {"step_reward": float("nan")}, "step_reward must be finite, .* got nan"),
        ("3-players", {"predator_speeds": (1.0,)}, "two numbers, one for each predator"),
    ],
)
def test_invalid_arguments_are_refused(name: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make(f"hunting/{name}", **given)


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean predator_speed"):
        make("hunting/2-players", predatr_speed=1)
