"""Tests of the JaxMARL adapter: dynamics with an axis of agents, ends, masks and drawings."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from counting import forget
from environments.suites.jaxmarl_play import episode
from rollax.canvas.scene import BLUE, RED
from rollax.checks.random_play import random_action
from rollax.environments import make
from rollax.environments.suites.output_capture import suppress_output
from rollax.environments.suites.table import SUITES
from rollax.errors import UnknownNameError, UsageError
from rollax.networks import NetworkConfig, actor_critic
from rollax.networks.distributions import Gaussian
from rollax.spaces import Box
from rollax.visualization.render.drawings import find_drawing

pytestmark = pytest.mark.usefixtures("as_strict_as_the_suite")


@pytest.fixture(autouse=True)
def _one_at_a_time() -> Iterator[None]:
    """Free compiled programs after each test, because those of all environments need gigabytes."""
    yield
    forget()


SAME = {
    "MPE_simple_tag_v3": {},
    "MPE_simple_world_comm_v3": {},
    "switch_riddle": {"num_agents": 4},
    "coin_game": {"num_inner_steps": 4, "num_outer_steps": 2},
    "HeuristicEnemySMAX": {"scenario": "3m"},
}


@pytest.mark.parametrize(
    ("name", "options", "limit"),
    [
        # the suite reads its clock before advancing it
        ("MPE_simple_spread_v3", {"max_steps": 3}, 4),
        ("coin_game", {"num_inner_steps": 2, "num_outer_steps": 2}, 4),
        ("HeuristicEnemySMAX", {"scenario": "3m", "max_steps": 2}, 3),
        ("overcooked_v2", {"max_steps": 3}, 3),
    ],
)
def test_a_time_limit_truncates(name: str, options: dict[str, Any], limit: int) -> None:
    env = make(f"jaxmarl/{name}", **options)
    *_, after = episode(env, limit)
    assert env.time_limit == limit
    assert not after.terminated.any()
    np.testing.assert_array_equal(after.truncated.all(axis=1), np.arange(1, limit + 1) == limit)
    assert not after.truncated[:-1].any()


def test_the_deadline_of_the_switch_riddle_terminates() -> None:
    """Telling ends the riddle, and so does its deadline after 4 A - 6 days without reward."""
    env = make("jaxmarl/switch_riddle")
    assert env.time_limit == 6
    state, obs = env.reset(jax.random.key(0))
    for day in range(6):
        after = env.step(jax.random.key(day + 1), state, jnp.zeros(3, jnp.int32))
        state = after.state
        assert (
            bool(after.terminated.all()) == (day == 5)
            and not after.truncated.any()
            and not after.reward.any()
        )
    state, obs = env.reset(jax.random.key(0))
    after = env.step(jax.random.key(1), state, jnp.full(3, 2, jnp.int32))
    np.testing.assert_array_equal(after.reward, -1.0)
    assert after.terminated.all()
    np.testing.assert_array_equal(obs["action_mask"][:, 1], obs["observation"][:, 0])


def battle(
    allies: list[bool], enemies: list[bool], step: int = 0, fallen: str = "leave"
) -> tuple[Any, Any]:
    """Return a battle of three marines per side, with only the marked ones alive."""
    env = make("jaxmarl/HeuristicEnemySMAX", scenario="3m", max_steps=20, fallen=fallen)
    state, _ = env.reset(jax.random.key(0))
    alive = jnp.asarray([*allies, *enemies])
    units = state.state.replace(
        unit_alive=alive, unit_health=alive * 45.0, step=jnp.asarray(step, jnp.int32)
    )
    return env, state.replace(state=units)


def stop(env: Any, state: Any) -> Any:
    with jax.debug_key_reuse(False):
        return env.step(jax.random.key(1), state, jnp.full(env.num_agents, 4, jnp.int32))


@pytest.mark.parametrize(
    ("enemies", "step", "terminated", "truncated"), [(1, 3, 0, 0), (0, 3, 1, 0), (1, 20, 0, 1)]
)
def test_fallen_units_can_stay_until_the_battle_ends(
    enemies: int, step: int, terminated: int, truncated: int
) -> None:
    """They have the reward of their team and can only stand still."""
    env, state = battle([True, False, True], [bool(enemies), False, False], step, fallen="stay")
    after = stop(env, state)
    np.testing.assert_array_equal(after.terminated, [bool(terminated)] * 3)
    np.testing.assert_array_equal(after.truncated, [bool(truncated)] * 3)
    np.testing.assert_array_equal(after.obs["action_mask"][1], np.arange(8) == 4)
    np.testing.assert_array_equal(after.reward, np.full(3, after.info["team_return"]))
    assert (after.reward[1] > 0) == bool(terminated)  # the bonus of a victory


def test_fallen_units_terminate_without_reward() -> None:
    env, state = battle([True, False, True], [True, True, False])
    after = stop(env, state)
    np.testing.assert_array_equal(after.terminated, [False, True, False])
    assert not after.truncated.any() and after.reward[1] == 0
    np.testing.assert_array_equal(after.obs["action_mask"][1], np.arange(8) == 4)


@pytest.mark.parametrize(("allies", "enemies", "won"), [(1, 0, 1.0), (0, 1, 0.0), (0, 0, 0.0)])
def test_a_decided_battle_terminates_for_all_agents(allies: int, enemies: int, won: float) -> None:
    """This also holds in the last step before the time limit."""
    for step in (3, 20):
        env, state = battle([bool(allies)] * 3, [bool(enemies)] * 3, step)
        after = stop(env, state)
        assert after.terminated.all() and not after.truncated.any() and after.info["won"] == won


def test_a_unit_that_falls_at_the_time_limit_is_not_truncated() -> None:
    env, state = battle([True, False, True], [True, True, True], 20)
    after = stop(env, state)
    np.testing.assert_array_equal(after.terminated, [False, True, False])
    np.testing.assert_array_equal(after.truncated, [True, False, True])
    assert after.info["won"] == 0


def test_only_living_units_receive_the_team_reward() -> None:
    env, state = battle([True, False, True], [True, False, False])
    units = state.state.replace(
        unit_positions=jnp.asarray([[16.0, 16.0], [3.0, 3.0], [16.0, 14.0]] + [[18.0, 16.0]] * 3)
    )
    with jax.debug_key_reuse(False):
        after = env.step(
            jax.random.key(1), state.replace(state=units), jnp.asarray([5, 4, 5], jnp.int32)
        )
    assert after.info["team_return"] > 0
    np.testing.assert_allclose(
        after.reward, after.info["team_return"] * np.asarray([1.0, 0.0, 1.0])
    )


def test_masks_are_those_of_the_suite() -> None:
    env = make("jaxmarl/SMAX", scenario="3s_vs_5z")
    state, obs, *_ = episode(env, 12)
    for time in range(0, 12, 4):
        own = env.dynamics.get_avail_actions(
            jax.tree.map(lambda x, time=time: jnp.asarray(x[time]), state)
        )
        for i, agent in enumerate(env.dynamics.agents):
            np.testing.assert_array_equal(
                obs["action_mask"][time, i, : own[agent].size], own[agent].astype(bool)
            )
            assert not obs["action_mask"][time, i, own[agent].size :].any()
    assert env.agent_types == ("ally",) * 3 + ("enemy",) * 5 and env.action_space.n == 10


def test_agent_types_share_the_largest_spaces() -> None:
    env = make("jaxmarl/MPE_simple_speaker_listener_v4")
    _, obs, _, after = episode(env, 3)
    assert env.agent_types == ("speaker", "listener")
    assert obs["observation"].shape == (3, 2, 11) and not obs["observation"][:, 0, 3:].any()
    np.testing.assert_array_equal(obs["action_mask"][0], [[True] * 3 + [False] * 2, [True] * 5])
    assert make("jaxmarl/MPE_simple_tag_v3").agent_types == ("adversary",) * 3 + ("agent",)
    assert make("jaxmarl/coin_game").agent_types == ("agent",) * 2


def test_shorter_actions_are_masked() -> None:
    """The speaker's policy is over its own three numbers, although the listener has five."""
    env = make("jaxmarl/MPE_simple_speaker_listener_v4", action_type="Continuous")
    assert isinstance(env.action_space, Box) and env.action_space.shape == (5,)
    _, obs, _, after = episode(env, 2)
    for seen in (obs, after.obs):
        np.testing.assert_array_equal(
            seen["action_mask"][0], [[True] * 3 + [False] * 2, [True] * 5]
        )
    network = actor_critic(env, NetworkConfig(hidden=(8,)), jax.random.key(0))
    policies = [
        network(network.initial_carry(), jax.tree.map(lambda x, i=i: x[0, i], obs))[1].policy
        for i in (0, 1)
    ]
    draw = jnp.array([0.1, 0.2, -0.3, 0.4, 0.5])
    for policy, size in zip(policies, env.action_sizes, strict=True):
        alone = Gaussian(policy.mean[:size], policy.log_std[:size], Box(0, 1, (size,)))
        np.testing.assert_allclose(policy.log_prob(draw), alone.log_prob(draw[:size]), rtol=1e-6)
        np.testing.assert_allclose(policy.entropy(), alone.entropy(), rtol=1e-6)
        np.testing.assert_array_equal(
            policy.action(draw), np.r_[alone.action(draw[:size]), np.zeros(5 - size)]
        )
    action = random_action(env, jax.random.key(1), jax.tree.map(lambda x: x[0], obs))
    assert action.dtype == np.float32 and not action[0, 3:].any() and action[1].all()
    # If all agents have the same size, there is no mask.
    assert isinstance(
        make("jaxmarl/MPE_simple_tag_v3", action_type="Continuous").observation_space, Box
    )


def test_global_states() -> None:
    """SMAX defines one.

    In other environments it is the observations of all agents without padding.
    """
    _, obs, *_ = episode(make("jaxmarl/MPE_simple_speaker_listener_v4", global_state=True), 3)
    seen = obs["observation"]
    together = np.concatenate([seen[:, 0, :3], seen[:, 1]], axis=1)
    np.testing.assert_array_equal(obs["global_state"], np.repeat(together[:, None], 2, axis=1))
    env = make("jaxmarl/HeuristicEnemySMAX", scenario="3m", global_state=True)
    state, obs, *_ = episode(env, 3)
    own = env.dynamics.get_world_state(jax.tree.map(lambda x: jnp.asarray(x[1]), state))
    np.testing.assert_allclose(obs["global_state"][1], np.stack([own] * 3))
    pictures = make("jaxmarl/overcooked_v2", global_state=True).observation_space.spaces
    assert pictures["observation"].shape == (4, 5, 30) and pictures["global_state"].shape == (
        4,
        5,
        60,
    )


def test_shaping_adds_a_share_of_the_shaped_reward() -> None:
    """Taking an onion or adding it to the pot has a shaped reward.

    By default it is not in the reward.
    """
    plain, shaped = (make("jaxmarl/overcooked_v2", shaping=share) for share in (0.0, 0.5))
    *_, without = episode(plain, 150, seed=3)
    *_, with_share = episode(shaped, 150, seed=3)
    told = without.info["shaped_reward"]
    assert told.any()
    np.testing.assert_allclose(with_share.reward, without.reward + 0.5 * told)


@pytest.mark.parametrize("name", ["overcooked", "overcooked_v2"])
def test_drawings_of_kitchens_match_their_legend(name: str) -> None:
    """Cooks face in the directions that name their actions."""
    with suppress_output():
        from jaxmarl.environments.overcooked_v2.common import DIR_TO_VEC

    env = make(f"jaxmarl/{name}")
    drawing, (state, obs) = find_drawing(env), env.reset(jax.random.key(0))
    signs = {sign.label: sign.color for sign in drawing.legend(env, state, obs)}
    colors = {color for _, color in drawing.draw(env, state, obs).getcolors(1 << 16)}
    assert {label for label, color in signs.items() if color in colors} == {*signs} - {"soup"}
    assert {"agent_0", "agent_1", "onions", "plates", "soup", "served here"} == {*signs}
    vectors = {"up": (0, -1), "down": (0, 1), "right": (1, 0), "left": (-1, 0)}
    for action, word in enumerate(drawing.action_names[:4]):
        after = env.step(jax.random.key(0), state, jnp.full(2, action)).state
        facing = after.agent_dir if name == "overcooked" else DIR_TO_VEC[after.agents.dir]
        assert facing.tolist() == [[*vectors[word]]] * 2
    assert drawing.action_names[4:] == ("stay", "interact") and env.action_space.n == 6


def test_creating_an_environment_twice_compiles_once() -> None:
    first, again, other = (make("jaxmarl/MPE_simple_spread_v3", num_agents=n) for n in (2, "2", 3))
    assert jax.tree.structure(first) == jax.tree.structure(again) != jax.tree.structure(other)


def test_mistakes_are_refused_with_similar_names() -> None:
    with pytest.raises(UnknownNameError, match="2s3z"):
        make("jaxmarl/SMAX", scenario="2s3y")
    with pytest.raises(UnknownNameError, match="known are: 3m, "):
        make("jaxmarl/SMAX", scenario="marines")
    with pytest.raises(UsageError, match="stay"):
        make("jaxmarl/SMAX", fallen="stays")
    with pytest.raises(UnknownNameError, match="cramped_room"):
        make("jaxmarl/overcooked", layout="cramped_rom")
    with pytest.raises(UnknownNameError, match="num_landmarks"):
        make("jaxmarl/MPE_simple_spread_v3", num_landmark=2)
    with pytest.raises(UsageError, match="between 2 and 5"):
        make("jaxmarl/hanabi", num_agents=7)
    with pytest.raises(UsageError, match="HeuristicEnemySMAX"):
        make("jaxmarl/LearnedPolicyEnemySMAX")


def test_every_environment_of_the_suite_is_offered_or_explained() -> None:
    with suppress_output():  # importing the whole suite prints warnings
        from jaxmarl import registered_envs

    entry = SUITES["jaxmarl"]
    assert sorted((*entry.names, *entry.unavailable_reasons)) == sorted(registered_envs)


def test_drawings_of_battles_show_living_units() -> None:
    env, state = battle([True, False, True], [True, True, True])
    _, whole = battle([True] * 3, [True] * 3)
    drawing = find_drawing(env)
    assert drawing.notes is not None
    assert drawing.notes(env, state, None) == ["allies: 2 marines of 3", "enemies: 3 marines of 3"]
    blue, of_all = (
        np.all(np.asarray(drawing.draw(env, each, None)) == BLUE, axis=-1).sum()
        for each in (state, whole)
    )
    assert 0 < blue < of_all


def test_particles_are_drawn_in_the_colors_of_their_types() -> None:
    env = make("jaxmarl/MPE_simple_adversary_v3")
    state, obs = env.reset(jax.random.key(0))
    apart = state.replace(
        p_pos=jnp.asarray([[-0.7, 0.0], [0.0, 0.7], [0.7, 0.0], [0.0, -0.7], [0.7, -0.7]])
    )
    picture = np.asarray(find_drawing(env).draw(env, apart, obs))
    red, blue = (np.all(picture == color, axis=-1).sum() for color in (RED, BLUE))
    assert blue == pytest.approx(2 * red, rel=0.1)  # one adversary, and two agents of the same size
    far = np.asarray(find_drawing(env).draw(env, state.replace(p_pos=3 * apart.p_pos), obs))
    assert (
        red / 8 < np.all(far == RED, axis=-1).sum() < red / 3
    )  # the scene is slightly more than twice as wide


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_hanabi_ends_by_its_own_rules(seed: int) -> None:
    env = make("jaxmarl/hanabi")
    *_, after = episode(env, env.time_limit, seed)
    last = int(np.argmax(after.terminated.all(axis=1)))
    assert after.terminated[last].all() and not after.truncated.any()
    np.testing.assert_array_equal(after.info["score"][:last], 0)
