"""Tests of the NAVIX adapter: dynamics, ends, and observed missions and pockets."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.environments import default_arguments, list_environments, make
from rollax.environments.suites.table import SUITES, missing_python_version
from rollax.errors import UnknownNameError, UsageError
from rollax.spaces import Box, Discrete, Grid
from rollax.visualization.render.drawings import find_drawing

if missing_python_version(SUITES["navix"]):
    pytest.skip("navix needs Python 3.12", allow_module_level=True)
pytest.importorskip("navix")

from rollax.environments.suites.navix import adapter
from rollax.environments.suites.navix import drawing as view

pytestmark = pytest.mark.usefixtures("as_free_with_keys_as_the_suite", "as_strict_as_the_suite")

KEY = jax.random.key
LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(7)


def own(name: str, **given: Any) -> Any:
    """Return the suite's environment, which resets by itself."""
    return adapter.registry.make(name, **given)


def ends(after: Any) -> tuple[bool, bool]:
    return bool(after.terminated), bool(after.truncated)


def moved(state: Any, row: int, column: int, direction: int) -> Any:
    """Return the state with the agent moved."""
    player = state.suite_state.entities["player"]
    player = player.replace(
        position=jnp.full_like(player.position, jnp.asarray([row, column])),
        direction=jnp.asarray([direction]),
    )
    return state._replace(
        suite_state=state.suite_state.replace(
            entities={**state.suite_state.entities, "player": player}
        )
    )


def facing(state: Any, obs: Any, position: Any) -> Any:
    """Return the state with the agent on a free cell next to that position, facing it."""
    row, column = np.asarray(position)
    for direction, (down, right) in enumerate(((0, 1), (1, 0), (0, -1), (-1, 0))):
        if obs["view"][row - down, column - right, 0] in (1, 10):
            return moved(state, row - down, column - right, direction)
    raise AssertionError("no free cell beside it")


def test_dynamics_equal_those_of_the_suite() -> None:
    """This includes balls with random moves, which are the same for the same key."""
    name = "Navix-Dynamic-Obstacles-8x8-v0"
    env, suite = make(f"navix/{name}"), own(name)
    state, obs = env.reset(KEY(0))
    raw, step = jax.jit(suite.reset)(KEY(0)), jax.jit(suite.step)
    np.testing.assert_array_equal(obs["view"], raw.observation)
    structure = jax.tree.structure(state)
    for time, action in enumerate((RIGHT, FORWARD, FORWARD, LEFT)):
        raw = step(raw.replace(state=raw.state.replace(key=KEY(time))), jnp.asarray(action))
        after = env.step(KEY(time), state, action)
        np.testing.assert_array_equal(after.obs["view"], raw.observation)
        assert float(after.reward) == float(raw.reward)
        assert ends(after) == (bool(raw.is_termination()), bool(raw.is_truncation()))
        assert jax.tree.structure(after.state) == structure
        state = after.state
    assert env.time_limit == suite.max_steps == 256 and env.action_space == Discrete(7)


def test_time_limits_truncate_and_goals_terminate() -> None:
    """Reaching the goal in the last step is a termination. Nothing restarts after an end."""
    env = make("navix/Navix-Empty-5x5-v0", max_steps=2)
    state, _ = env.reset(KEY(0))
    goal = moved(state, 3, 2, 0)
    late = goal._replace(time=jnp.asarray(1, jnp.int32))
    assert ends(env.step(KEY(0), state, DONE)) == (False, False)
    assert ends(env.step(KEY(0), late, DONE)) == (False, True)
    for start in (goal, late):
        after = env.step(KEY(0), start, FORWARD)
        assert ends(after) == (True, False) and float(after.reward) == 1
        assert after.obs["view"][3, 3, 0] == 10 and after.state.time == start.time + 1
    again = env.step(KEY(1), env.step(KEY(0), late, DONE).state, DONE)
    assert ends(again) == (False, True) and int(again.state.time) == 3
    np.testing.assert_array_equal(
        again.state.suite_state.entities["player"].position,
        goal.suite_state.entities["player"].position,
    )


def test_time_limits_are_those_of_the_environments() -> None:
    limits = {
        "DoorKey-16x16": 1024,
        "Empty-5x5": 100,
        "MemoryS17Random": 1445,
        "MultiRoom-N2-S4": 40,
        "LavaGapS5": 100,
    }
    for name, limit in limits.items():
        assert default_arguments(f"navix/Navix-{name}-v0")["max_steps"] == limit
    assert make("navix/Navix-Empty-5x5-v0", max_steps=7).time_limit == 7


def test_carried_objects_are_observed() -> None:
    """The suite shows neither the missing key on the floor nor that the agent has it."""
    env = make("navix/Navix-DoorKey-5x5-v0")
    state, obs = env.reset(KEY(0))
    row, column = np.argwhere(np.asarray(obs["view"])[..., 0] == 5)[0]
    color = int(obs["view"][row, column, 1])
    facing = moved(state, row - 1, column, 1) if row > 1 else moved(state, row + 1, column, 3)
    assert not obs["pocket"].any()
    carries = env.step(KEY(0), facing, PICK_UP)
    assert (
        carries.obs["pocket"].tolist() == [[[5, color]]]
        and not (carries.obs["view"][..., 0] == 5).any()
    )
    dropped = env.step(KEY(1), carries.state, DROP)
    assert not dropped.obs["pocket"].any() and int(dropped.obs["view"][row, column, 0]) == 5
    assert find_drawing(env).notes(env, carries.state, carries.obs) == [
        f"carries the {view.COLOR_NAMES[color]} key"
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("Empty-5x5", "goal"), ("LavaGapS5", "lava"), ("Dynamic-Obstacles-5x5", "ball")],
)
def test_dropping_does_not_move_the_agent(name: str, kind: str) -> None:
    """The suite's `drop` would let the agent reach a goal or lava in front of it.

    Balls may move by themselves.
    """
    env = make(f"navix/Navix-{name}-v0")
    state, obs = env.reset(KEY(0))
    start = facing(state, obs, state.suite_state.entities[kind].position[0])
    step = jax.jit(lambda key, action: env.step(key, start, action))

    def outcomes(action: int) -> list[tuple[bool, bool, float]]:
        steps = [step(KEY(key), action) for key in range(8)]
        return [(*ends(after), float(after.reward)) for after in steps]

    walked, dropped, waited = outcomes(FORWARD), outcomes(DROP), outcomes(DONE)
    assert walked == [(True, False, kind == "goal")] * 8
    assert dropped == waited != walked


def test_a_mission_is_observed_until_the_end() -> None:
    """This includes steps after its object was picked up. In Memory the mission is hidden."""
    env = make("navix/Navix-Fetch-5x5-N2-v0")
    assert env.observation_space.spaces["mission"] == Grid((1, 1), (11, 6))
    state, obs = jax.vmap(env.reset)(jax.random.split(KEY(0), 8))
    for place in range(8):
        target = state.suite_state.mission[0].position[place]
        np.testing.assert_array_equal(
            obs["mission"][place, 0, 0], obs["view"][place][tuple(target)][:2]
        )
    assert make("navix/Navix-PutNear-6x6-N2-v0").observation_space.spaces["mission"] == Grid(
        (1, 2), (11, 6)
    )
    assert set(make("navix/Navix-MemoryS7-v0").observation_space.spaces) == {"direction", "view"}
    state, obs = env.reset(KEY(1))
    after = env.step(KEY(0), facing(state, obs, state.suite_state.mission[0].position), PICK_UP)
    assert ends(after) == (True, False) and float(after.reward) == 1
    np.testing.assert_array_equal(after.obs["mission"], obs["mission"])
    np.testing.assert_array_equal(after.obs["pocket"][0, 0], obs["mission"][0, 0])


@pytest.mark.parametrize(
    ("observation", "space"),
    [
        ("symbolic", Grid((5, 5), (11, 6, 4))),
        ("symbolic_first_person", Grid((7, 7), (11, 6, 4))),
        ("rgb", Box(0, 255, (40, 40, 3), "uint8")),
        ("rgb_first_person", Box(0, 255, (56, 56, 3), "uint8")),
    ],
)
def test_observations_are_those_of_the_suite(observation: str, space: Any) -> None:
    env = make("navix/Navix-DoorKey-5x5-v0", observation=observation)
    suite = own("Navix-DoorKey-5x5-v0", observation_fn=getattr(adapter.observations, observation))
    assert env.observation_space.spaces["view"] == space
    state, obs = env.reset(KEY(2))
    first = suite.reset(KEY(2))
    np.testing.assert_array_equal(obs["view"], first.observation)
    after, expected = env.step(KEY(0), state, RIGHT), suite.step(first, jnp.asarray(RIGHT))
    np.testing.assert_array_equal(after.obs["view"], expected.observation)
    assert int(after.obs["direction"]) == (int(obs["direction"]) + 1) % 4
    assert (after.state.suite_state.cache is None) == observation.startswith("symbolic")


def test_arguments_and_mistakes() -> None:
    assert default_arguments("navix/Navix-GoToObject-6x6-N2-v0") == {
        "observation": "symbolic",
        "max_steps": 144,
        "penalty_coeff": 0.0,
        "n_objects": 2,
    }
    env = make("navix/Navix-Empty-5x5-v0", penalty_coeff="0.5", max_steps=10)
    after = env.step(KEY(0), moved(env.reset(KEY(0))[0], 3, 2, 0), FORWARD)
    np.testing.assert_allclose(after.reward, 1 - 0.5 / 10)
    with pytest.raises(UnknownNameError, match="random_start"):
        make("navix/Navix-Empty-5x5-v0", random_starts=True)
    with pytest.raises(UsageError, match="symbolic_first_person"):
        make("navix/Navix-Empty-5x5-v0", observation="categorical")
    with pytest.raises(UsageError, match="at least 1"):
        make("navix/Navix-Empty-5x5-v0", max_steps=0)
    with pytest.raises(UsageError, match="wall, lava"):
        make("navix/Navix-LavaCrossingS9N1-v0", obstacle_type="water")
    with pytest.raises(UsageError, match="cannot be created"):
        make("navix/Navix-PutNear-6x6-N2-v0", n_objects=1)


def test_every_environment_of_the_suite_is_offered() -> None:
    assert sorted(list_environments("navix")) == sorted(
        f"navix/{name}" for name in adapter.registry.registry()
    )


def test_the_drawing_has_the_tiles_of_the_suite() -> None:
    env = make("navix/Navix-DoorKey-8x8-v0", observation="symbolic_first_person")
    state, obs = env.reset(KEY(1))
    picture = np.asarray(find_drawing(env).draw(env, state, obs))
    assert picture.shape == (320, 320, 3) and len(np.unique(picture.reshape(-1, 3), axis=0)) > 10
    whole = make("navix/Navix-DoorKey-8x8-v0")
    plain = np.asarray(find_drawing(whole).draw(whole, state, obs))
    lighter = (picture.astype(int) > plain).all(axis=-1).reshape(8, 40, 8, 40).all(axis=(1, 3))
    assert 0 < lighter.sum() <= 49
