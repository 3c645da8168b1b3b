"""Tests of the XLand-MiniGrid adapter: dynamics, ends, tasks and errors."""

import os
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xminigrid
from xminigrid.core.constants import NUM_COLORS, NUM_TILES
from xminigrid.rendering.rgb_render import render_tile
from xminigrid.types import StepType, TimeStep

from rollax.acting.streams import init_actor
from rollax.environments import default_arguments, make
from rollax.environments.suites.xminigrid import ruleset_files, rulesets
from rollax.environments.suites.xminigrid.adapter import XMiniGrid, render_view
from rollax.environments.suites.xminigrid.rulesets import FLOOR, Rulesets
from rollax.errors import UsageError
from streaming import advance

pytestmark = pytest.mark.usefixtures("as_strict_as_the_suite")
EMPTY, MEMORY, XLAND = "MiniGrid-Empty-5x5", "MiniGrid-MemoryS8", "XLand-MiniGrid-R1-9x9"
FULL = {"rulesets": "high", "recipe": "distractor_objects=12"}
NUM_ENVS, STEPS, LIMIT, TILE = 64, 70, 12, 4


@cache
def played(name: str) -> dict[str, Any]:
    """Return random steps in streams, `[T, E]`, from the adapter and from the suite."""
    symbols, image = (
        make(f"xminigrid/{name}", max_steps=LIMIT, previous=False, observation=kind, tile_size=TILE)
        for kind in ("symbols", "image")
    )
    dynamics, params = xminigrid.make(name)
    params = params.replace(max_steps=LIMIT)

    def by_the_suite(state: Any, action: jax.Array) -> Any:
        before = TimeStep(state, StepType.MID, jnp.zeros(()), jnp.ones(()), jnp.zeros(()))
        return dynamics.step(params, before, action)

    def act(actor: Any, key: jax.Array) -> tuple[Any, Any]:
        action = jax.random.randint(key, (NUM_ENVS,), 0, symbols.action_space.n)
        # steps draw no random numbers
        keys = jax.vmap(jax.random.key)(jnp.zeros(NUM_ENVS, jnp.uint32))
        pictures = (
            jax.vmap(image.step)(keys, actor.env_state, action).obs["view"]
            if name == MEMORY
            else None
        )
        own = jax.vmap(by_the_suite)(actor.env_state, action)
        actor, step, _ = advance(symbols, actor, action, keys)
        rows = {
            **step._asdict(),
            "obs": actor.obs,
            "next_time": actor.env_state.step_num,
            "pictures": pictures,
            "suite": own,
        }
        return actor, rows

    with jax.debug_key_reuse(False):
        run = jax.jit(
            lambda key, keys: jax.lax.scan(act, init_actor(symbols, key, NUM_ENVS, ()), keys)[1]
        )
        record = run(jax.random.key(0), jax.random.split(jax.random.key(1), STEPS))
    record["suite"] = record["suite"].replace(state=record["suite"].state.replace(key=()))
    return jax.tree.map(np.asarray, record)


@pytest.mark.parametrize("name", [EMPTY, MEMORY])
def test_ends_are_distinguished_by_the_discount(name: str) -> None:
    """A last step terminates with discount 0 and truncates with discount 1.

    There are no other ends.
    """
    record = played(name)
    suite = record["suite"]
    last = suite.step_type == StepType.LAST
    np.testing.assert_array_equal(record["terminated"], last & (suite.discount == 0))
    np.testing.assert_array_equal(record["truncated"], last & (suite.discount == 1))
    assert record["terminated"].any() and record["truncated"].any()
    assert (suite.state.step_num[record["truncated"]] == LIMIT).all()
    assert (suite.state.step_num[record["terminated"]] < LIMIT).any()
    np.testing.assert_array_equal(record["next_time"], np.where(last, 0, suite.state.step_num))


@pytest.mark.parametrize("name", [EMPTY, MEMORY])
def test_rewards_are_those_of_the_suite(name: str) -> None:
    """Only terminations are rewarded. If there is a wrong goal, some have no reward."""
    record = played(name)
    np.testing.assert_allclose(
        record["reward"], record["suite"].reward, rtol=1e-6
    )  # the last bit differs on some processors
    won = record["reward"] > 0
    assert won.any() and not won[~record["terminated"]].any()
    assert (record["terminated"] & ~won).any() == (name == MEMORY)


@pytest.mark.parametrize("name", [EMPTY, MEMORY])
def test_the_last_observation_is_the_true_one(name: str) -> None:
    """After every step, it is the suite's observation of that state, not of the next episode."""
    record = played(name)
    final, suite = record["next_obs"], record["suite"]
    np.testing.assert_array_equal(final["view"], suite.observation)
    np.testing.assert_array_equal(final["direction"], suite.state.agent.direction)
    ended = record["terminated"] | record["truncated"]
    assert np.any(record["obs"]["view"][ended] != final["view"][ended])
    for part in ("view", "direction"):
        np.testing.assert_array_equal(record["obs"][part][~ended], final[part][~ended])


def drawn(view: np.ndarray) -> np.ndarray:
    """Return the suite's image of a view, with the agent facing up in the lowest row."""
    size, rows = len(view), []
    for y, x in np.ndindex(size, size):
        direction = 0 if (y, x) == (size - 1, size // 2) else None
        tile = tuple(int(n) for n in view[y, x])
        rows.append(
            render_tile(tile=tile, agent_direction=direction, highlight=False, tile_size=TILE)
        )
    tiles = np.stack(rows).astype(np.uint8).reshape(size, size, TILE, TILE, 3)  # dtype of the suite
    return tiles.transpose(0, 2, 1, 3, 4).reshape(size * TILE, size * TILE, 3)


def test_images_are_those_of_the_suite() -> None:
    """All tiles in all colors are compared."""
    tiles = np.stack(
        np.unravel_index(np.arange(13 * 13) % (NUM_TILES * NUM_COLORS), (NUM_TILES, NUM_COLORS)),
        axis=-1,
    )
    view = tiles.reshape(13, 13, 2).astype(np.uint8)
    shown = jax.jit(lambda view: render_view(view, TILE))(view)
    assert shown.dtype == jnp.uint8
    np.testing.assert_array_equal(shown, drawn(view))


def test_an_image_shows_the_symbols() -> None:
    """Images and symbols are compared along the same steps."""
    record = played(MEMORY)
    views, places = np.unique(
        record["next_obs"]["view"].reshape(STEPS * NUM_ENVS, -1), axis=0, return_index=True
    )
    pictures = record["pictures"].reshape(STEPS * NUM_ENVS, *record["pictures"].shape[2:])
    assert len(views) > 10
    for view, place in zip(views.reshape(-1, 3, 3, 2), places, strict=True):
        np.testing.assert_array_equal(pictures[place], drawn(view))


def test_arguments_have_an_effect() -> None:
    """They set sizes, parts of the observation and the time limit.

    0 keeps the suite's own value.
    """
    plain = make(f"xminigrid/{EMPTY}", previous=False)
    assert isinstance(plain, XMiniGrid)
    assert set(plain.observation_space.spaces) == {"view", "direction"}
    own = xminigrid.make(EMPTY)[1]
    assert (plain.time_limit, plain.observation_space.spaces["view"].cells) == (
        own.max_steps,
        (own.view_size,) * 2,
    )
    other = make(
        f"xminigrid/{EMPTY}",
        direction=False,
        view_size=5,
        max_steps=7,
        observation="image",
        tile_size=6,
    )
    assert other.time_limit == 7
    assert other.observation_space.spaces["view"].shape == (30, 30, 3)
    assert set(other.observation_space.spaces) == {"view", "previous_action", "previous_reward"}
    assert set(default_arguments(f"rl2/{XLAND}")) == set(
        default_arguments(f"xminigrid/{XLAND}")
    ) | {"episodes"}
    assert set(default_arguments(f"xminigrid/{XLAND}")) > set(
        default_arguments(f"xminigrid/{EMPTY}")
    )


@pytest.mark.parametrize(
    ("id", "given", "message"),
    [
        (EMPTY, {"view_size": 4}, r"xminigrid/MiniGrid-Empty-5x5: view_size \(4\) must be odd"),
        (EMPTY, {"view_size": -1}, r"view_size \(-1\) must be at least 0"),
        (EMPTY, {"max_steps": -5}, r"max_steps \(-5\) must be at least 0"),
        (EMPTY, {"tile_size": 2}, r"tile_size \(2\) must be at least 3"),
        (EMPTY, {"tile_size": "big"}, "tile_size must be an integer, got 'big'"),
        (
            EMPTY,
            {"observation": "pixels"},
            r"observation \('pixels'\) must be one of symbols, image",
        ),
        (
            EMPTY,
            {"view_sise": 5},
            "unknown argument of xminigrid/MiniGrid-Empty-5x5 'view_sise': did you mean view_size",
        ),
        (
            EMPTY,
            {"num_rulesets": 5},
            "unknown argument of xminigrid/MiniGrid-Empty-5x5 'num_rulesets'",
        ),
        (XLAND, {"episodes": 3}, "unknown argument of xminigrid/XLand-MiniGrid-R1-9x9 'episodes'"),
        (
            XLAND,
            {"num_rulesets": 9, "ruleset": 9},
            r"ruleset \(9\) must be between 0 and 8, or -1 to sample from all of them",
        ),
        (XLAND, {"num_rulesets": 9, "ruleset": -2}, r"ruleset \(-2\) must be between 0 and 8"),
        (
            XLAND,
            {"num_rulesets": 10, "split": "held-out", "ruleset": 10},
            r"ruleset \(10\) must be between 0 and 9",
        ),
        (
            XLAND,
            {"split": "test"},
            r"split \('test'\) must be one of all, train, validation, held-out",
        ),
        (
            XLAND,
            {"num_rulesets": 10, "split": "train", "held_out": 1.0},
            r"held_out \(1.0\) must be shares",
        ),
        (XLAND, {"num_rulesets": 0}, r"number of rulesets \(0\) must be at least 1"),
        (XLAND, {"ruleset_seed": -1}, r"seed \(-1\) at least 0"),
        (XLAND, {"rulesets": "trivail"}, "must be a recipe .*trivial.* or an existing file"),
        (f"rl2/{XLAND}", {"episodes": 0}, r"episodes \(0\) must be an integer of at least 1"),
    ],
)
def test_invalid_arguments_are_refused(id: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(id if "/" in id else f"xminigrid/{id}", **given)


def rows(env: Any) -> list[bytes]:
    """Return the tasks of an environment as bytes of their arrays."""
    tasks = env.tasks
    assert isinstance(env, XMiniGrid)
    assert {len(part) for part in jax.tree.leaves(tasks)} == {len(tasks.goal)}
    return [
        b"".join(
            np.asarray(part[i]).tobytes() for part in (tasks.goal, tasks.rules, tasks.init_tiles)
        )
        for i in range(len(tasks.goal))
    ]


def xland(**given: Any) -> Any:
    """Return an environment with few tasks that have rules."""
    return make(
        f"xminigrid/{XLAND}",
        **{"num_rulesets": 20, "rulesets": "small", "previous": False, **given},
    )


def test_tasks_are_split() -> None:
    """Parts are disjoint and together have all tasks.

    The split is reproducible, and trials use the training part.
    """
    every, train, validation, held_out = (
        rows(xland(split=split)) for split in ("all", "train", "validation", "held-out")
    )
    assert (len(train), len(validation), len(held_out)) == (16, 2, 2)
    assert sorted(train + validation + held_out) == sorted(every) and len(set(every)) == 20
    assert held_out == rows(xland(split="held-out"))
    assert rows(xland(split="held-out", ruleset_seed=1)) != held_out
    assert len(rows(xland(split="held-out", held_out=0.5))) == 10
    trials = make(f"rl2/{XLAND}", num_rulesets=20, rulesets="small")
    assert rows(trials.env.env) == train
    assert trials.env.episodes == default_arguments(f"rl2/{XLAND}")["episodes"]


def test_one_task_can_be_chosen() -> None:
    """The number counts all tasks, for any split, so that training and evaluation agree."""
    every = rows(xland())
    for index in (0, 7, 19):
        assert rows(xland(ruleset=index)) == [every[index]]
        for split in ("train", "validation", "held-out"):
            assert rows(xland(ruleset=str(index), split=split)) == [every[index]]


def test_tasks_are_described() -> None:
    """They are described by their numbers, for any split and through wrappers."""
    drawn = rulesets.generate_rulesets(rulesets.RECIPES["small"], 20, 0)
    words = [
        f"ruleset {number}\n{rulesets.describe_ruleset(drawn, number)}" for number in range(20)
    ]
    assert xland().describe() == "\n\n".join(words)
    assert make(f"rl2/{XLAND}", num_rulesets=20, rulesets="small", ruleset=7).describe() == words[7]
    sides = [
        xland(split=split).describe().split("\n\n") for split in ("train", "validation", "held-out")
    ]
    assert set().union(*sides) == set(words) and len(sides[2]) == 2
    assert xland(split="held-out").describe(int(sides[2][1].split()[1])) == sides[2][1]
    with pytest.raises(UsageError, match=r"ruleset \(3\) is not among the 1 that"):
        xland(ruleset=7).describe(3)
    with pytest.raises(UsageError, match="built-in task"):
        make(f"xminigrid/{EMPTY}").describe()


def test_tasks_are_read_from_a_file(tmp_path: Path) -> None:
    """All or the requested number of its rulesets are used.

    It is read again only after a change, and a recipe is refused.
    """
    path = tmp_path / "tasks.npz"
    drawn = rulesets.generate_rulesets(rulesets.RECIPES["small"], 20, 3)
    ruleset_files.save_rulesets(drawn, path)
    every = rows(xland(rulesets=str(path), num_rulesets=20))
    unnumbered = make(f"xminigrid/{XLAND}", rulesets=str(path), previous=False)
    assert rows(unnumbered) == every and len(set(every)) == 20
    few = xland(rulesets=str(path), num_rulesets="5").tasks
    np.testing.assert_array_equal(few.goal, drawn.goals[:5])
    for number in (0, 21):
        with pytest.raises(
            UsageError, match=rf"num_rulesets \({number}\) must be between 1 and 20"
        ):
            xland(rulesets=str(path), num_rulesets=number)
    with pytest.raises(
        UsageError,
        match=r"recipe \('chain_depth=1'\) changes the generator of rulesets, .* Remove it",
    ):
        xland(rulesets=str(path), recipe="chain_depth=1")
    ruleset_files.save_rulesets(rulesets.generate_rulesets(rulesets.RECIPES["small"], 20, 4), path)
    os.utime(path, ns=(0, 0))
    assert not set(rows(xland(rulesets=str(path), num_rulesets=20))) & set(every)


def test_tasks_are_generated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments for training and evaluation share them."""
    path = tmp_path / "tasks.npz"
    ruleset_files.save_rulesets(rulesets.generate_rulesets(rulesets.RECIPES["small"], 20, 3), path)
    calls = []
    for module, name in (
        (rulesets, "generate_rulesets"),
        (rulesets, "split_indices"),
        (ruleset_files, "load_rulesets"),
    ):
        original = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *given, f=original, name=name: (calls.append(name), f(*given))[1]
        )
    for source in ({"ruleset_seed": 17}, {"rulesets": str(path)}):
        for split in ("train", "validation", "held-out", "train"):
            xland(split=split, **source)
    assert calls == ["generate_rulesets", "split_indices", "load_rulesets", "split_indices"]


def test_the_agent_starts_on_the_floor() -> None:
    """The recipe could fill the grid, but the generated rulesets have fewer objects."""
    env = make("xminigrid/XLand-MiniGrid-R4-9x9", num_rulesets=20, previous=False, **FULL)
    with jax.debug_key_reuse(False):
        state, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 64))
    row, column = np.asarray(state.agent.position).T
    assert (np.asarray(state.grid)[np.arange(64), row, column] == FLOOR).all()
    with (
        jax.debug_key_reuse(False),
        pytest.raises(UsageError, match="the agent need 43 cells, but the grid has 36 free"),
    ):
        make(
            "xminigrid/XLand-MiniGrid-R4-9x9",
            num_rulesets=50,
            rulesets="high",
            recipe="distractor_objects=30",
        )


def test_unused_padding_of_rulesets_is_removed(tmp_path: Path) -> None:
    """All objects remain, wherever the empty entries are."""
    tiles = np.asarray(
        [[[0, 0], [3, 1], [0, 0], [0, 0]], [[4, 2], [0, 0], [0, 0], [3, 5]]], np.uint8
    )
    drawn = Rulesets(np.ones((2, 5), np.uint8), np.zeros((2, 3, 7), np.uint8), tiles)
    ruleset_files.save_rulesets(drawn, tmp_path / "tasks.npz")
    tasks = make(f"xminigrid/{XLAND}", rulesets=str(tmp_path / "tasks.npz"), previous=False).tasks
    np.testing.assert_array_equal(tasks.init_tiles, [[[3, 1], [0, 0]], [[4, 2], [3, 5]]])
    assert tasks.rules.shape == (2, 0, 7)


@pytest.mark.parametrize("id", ["xminigrid", "rl2"])
@pytest.mark.parametrize("each", ["episode", "environment"])
def test_a_task_for_every_episode_or_environment(id: str, each: str) -> None:
    """Twelve environments run four episodes or trials. With one task each, starts still differ."""
    env = make(f"{id}/{XLAND}", num_rulesets=50, ruleset_each=each, max_steps=2, show_task=True)
    still = jnp.zeros(12, jnp.int32)

    def step(actor: Any, time: jax.Array) -> tuple[Any, Any]:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(1), time), 12)
        actor, _, _ = advance(env, actor, still, keys)
        return actor, (actor.obs["goal"], actor.obs["view"], actor.reset)

    with jax.debug_key_reuse(False):
        start = jax.jit(lambda key: init_actor(env, key, 12, ()))(jax.random.key(0))
        _, (goals, views, resets) = jax.lax.scan(step, start, jnp.arange(24 if id == "rl2" else 8))
    assert int(resets.sum()) == 4 * 12
    kept = jnp.all(goals == start.obs["goal"][None], axis=(0, 2, 3, 4))
    assert bool(jnp.all(kept)) if each == "environment" else not bool(jnp.any(kept))
    assert len({goal.tobytes() for goal in np.asarray(start.obs["goal"])}) > 6
    assert bool(jnp.all(jnp.any(views[1:] != views[:1], axis=(0, 2, 3, 4))))


def test_tasks_are_shown_and_differ_between_trials() -> None:
    """In 24 trials, the shown goal and rules are those of one task.

    Its objects are in the grid of every episode, in new places.
    """
    env = make(f"rl2/{XLAND}", num_rulesets=10, rulesets="small", show_task=True, episodes=2)
    inner = env.env.env
    with jax.debug_key_reuse(False):
        state, obs = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 24))
    _, (starts, shown), _ = state
    goals, rules, tiles = (
        np.asarray(getattr(inner.tasks, part)) for part in ("goal", "rules", "init_tiles")
    )
    found = set()
    for trial in range(24):
        (index,) = np.flatnonzero(
            (goals == obs["goal"][trial, 0, 0]).all(1)
            & (rules == obs["rules"][trial, :, 0]).all((1, 2))
        )
        found.add(int(index))
        for episode in range(2):
            np.testing.assert_array_equal(shown["goal"][trial, episode], obs["goal"][trial])
            np.testing.assert_array_equal(starts.goal_encoding[trial, episode], goals[index])
            np.testing.assert_array_equal(starts.rule_encoding[trial, episode], rules[index])
            grid = {
                tuple(cell)
                for cell in np.asarray(starts.grid[trial, episode]).reshape(-1, 2).tolist()
            }
            assert grid >= {tuple(tile) for tile in tiles[index].tolist() if tile[0]}
    assert len(found) > 4, "trials have different tasks"
    assert np.any(starts.grid[:, 0] != starts.grid[:, 1]), "episodes begin elsewhere"
    assert bool(jnp.all(jax.vmap(env.observation_space.contains)(obs)))
    assert not {"goal", "rules"} & set(
        make(f"rl2/{XLAND}", num_rulesets=10).observation_space.spaces
    )


def test_every_ruleset_is_sampled() -> None:
    """This includes the first and the last."""
    environment = make(
        "xminigrid/XLand-MiniGrid-R1-9x9", num_rulesets=3, rulesets="trivial", previous=False
    )
    tasks = jax.jit(jax.vmap(environment.sample_task))(jax.random.split(jax.random.key(0), 64))
    drawn = {tuple(np.asarray(goal).reshape(-1).tolist()) for goal in tasks.goal}
    assert drawn == {
        tuple(goal.reshape(-1).tolist()) for goal in np.asarray(environment.tasks.goal)
    }
