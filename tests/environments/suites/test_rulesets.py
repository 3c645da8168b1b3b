"""Tests of rulesets: solvability, uniqueness, splits and files.

Files are read without executing code.
"""

import bz2
import collections
import dataclasses
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xminigrid
from hypothesis import given, settings
from hypothesis import strategies as st
from xminigrid.benchmarks import save_bz2_pickle
from xminigrid.core import constants, goals, rules
from xminigrid.types import RuleSet

from rollax.environments.suites.xminigrid import ruleset_files, rulesets
from rollax.environments.suites.xminigrid.rulesets import (
    FLOOR,
    GOAL_NAMES,
    OBJECTS,
    RECIPES,
    RULE_NAMES,
    Recipe,
    Rulesets,
)
from rollax.errors import UsageError

_SIDES = {"Up": (-1, 0), "Right": (0, 1), "Down": (1, 0), "Left": (0, -1)}
_OPPOSITE = {"Up": "Down", "Right": "Left", "Down": "Up", "Left": "Right"}
_NOTHING = (0, 0)
# Many distractor rules, to show their effects.
_TRAPS = Recipe(2, distractor_rules=20, distractor_objects=1, goals="basic", rules="basic")

_recipes = st.builds(
    Recipe,
    chain_depth=st.integers(0, 3),
    sample_depth=st.booleans(),
    single_branch=st.booleans(),
    prune_probability=st.sampled_from([0.0, 0.1, 0.5]),
    distractor_rules=st.integers(0, 8),
    sample_distractor_rules=st.booleans(),
    distractor_objects=st.integers(0, 4),
    goals=st.sampled_from(["basic", "all"]),
    rules=st.sampled_from(["basic", "all"]),
)


class Clause(NamedTuple):
    """Goal or rule, decoded independently of the tested code."""

    kind: str
    takes: tuple[tuple[int, int], ...]
    makes: tuple[int, int] = _NOTHING  # a goal makes nothing

    @property
    def side(self) -> str:
        return next((side for side in _SIDES if self.kind.endswith(side)), "")


def _tile(numbers: Any) -> tuple[int, int]:
    first, second = numbers
    return int(first), int(second)


def decode(drawn: Rulesets, index: int) -> tuple[Clause, list[Clause], list[tuple[int, int]]]:
    """Return the goal, the rules and the initial tiles, without padding."""
    number, *rest = drawn.goals[index].tolist()
    takes = (
        (_tile(rest[:2]), _tile(rest[2:4])) if "Tile" in GOAL_NAMES[number] else (_tile(rest[:2]),)
    )
    goal = Clause(GOAL_NAMES[number], takes)
    found = []
    for number, *rest in drawn.rules[index].tolist():
        places = (0, 2) if "Tile" in RULE_NAMES[number] else (0,)
        if number:
            takes = tuple(_tile(rest[p : p + 2]) for p in places)
            found.append(
                Clause(
                    RULE_NAMES[number], takes, _tile(rest[2 * len(places) : 2 * len(places) + 2])
                )
            )
    return goal, found, [_tile(tile) for tile in drawn.init_tiles[index] if tile[0]]


def useful(goal: Clause, found: list[Clause]) -> tuple[set[tuple[int, int]], list[Clause]]:
    """Return the tiles on a path to the goal and the rules that make them."""
    needed = set(goal.takes)
    while True:
        makers = [rule for rule in found if rule.makes in needed]
        more = needed.union(*(rule.takes for rule in makers))
        if more == needed:
            return needed, makers
        needed = more


class Symbols:
    """World without positions, in which objects are apart until the agent uses them.

    All rules act as in the suite, in their order. If the layout determines the side of an approach
    in the suite, `random` chooses it.
    """

    def __init__(
        self,
        goal: Clause,
        found: list[Clause],
        tiles: list[tuple[int, int]],
        random: np.random.Generator,
    ) -> None:
        self.goal, self.rules, self.floor, self.random = goal, found, list(tiles), random
        self.pocket = _NOTHING
        self.done = False

    def tiles(self) -> list[tuple[int, int]]:
        return self.floor + [self.pocket][: self.pocket != _NOTHING]

    def near(self, tile: tuple[int, int], side: str = "") -> tuple[int, int]:
        side = side or str(self.random.choice(list(_SIDES)))
        self.floor.remove(tile)
        for rule in self.rules:
            if rule.kind in ("AgentNear", f"AgentNear{side}") and rule.takes == (tile,):
                tile = rule.makes
        self.floor.append(tile)
        self.done |= self.goal.kind in ("AgentNear", f"AgentNear{side}") and self.goal.takes == (
            tile,
        )
        return tile

    def lift(self, tile: tuple[int, int]) -> None:
        if self.pocket != _NOTHING:
            self.drop()
        tile = self.near(tile)
        self.floor.remove(tile)
        self.pocket = tile
        for rule in self.rules:
            if rule.kind == "AgentHold" and rule.takes == (self.pocket,):
                self.pocket = rule.makes
        self.done |= self.goal.kind == "AgentHold" and self.goal.takes == (self.pocket,)

    def drop(self) -> None:
        self.floor.append(self.pocket)
        self.pocket = _NOTHING

    def join(self, target: tuple[int, int], side: str) -> None:
        """Put the carried object on that side of the target, or on any side."""
        side = side or str(self.random.choice(list(_SIDES)))
        carried, self.pocket = self.pocket, _NOTHING
        self.floor.remove(target)

        def fires(clause: Clause) -> bool:
            orders = {
                "TileNear": [(carried, target), (target, carried)],
                f"TileNear{side}": [(target, carried)],
                f"TileNear{_OPPOSITE[side]}": [(carried, target)],
            }
            return clause.takes in orders.get(clause.kind, [])

        fired = next((rule for rule in self.rules if fires(rule)), None)
        self.floor += [fired.makes] if fired else [carried, target]
        self.done |= not fired and fires(self.goal)


def reach(world: Any, goal: Clause, found: list[Clause]) -> bool:
    """Return whether an agent that always takes a useful step reaches the goal."""
    _, makers = useful(goal, found)
    for _ in range(2 * len(makers) + 5):
        if world.done:
            return True
        there = collections.Counter(world.tiles())
        ready = [clause for clause in (goal, *makers) if all(there[tile] for tile in clause.takes)]
        if not ready:
            return False
        act(world, ready[0], found)
    return world.done


def act(world: Any, clause: Clause, found: list[Clause]) -> None:
    if clause.kind == "AgentHold":
        world.lift(clause.takes[0]) if world.pocket != clause.takes[0] else world.drop()
        return
    if clause.kind.startswith("AgentNear"):
        if world.pocket == clause.takes[0]:
            world.drop()
        else:
            world.near(clause.takes[0], clause.side)
        return
    turned = {rule.takes[0] for rule in found if rule.kind == "AgentHold"}
    free = [tile for tile in clause.takes if tile not in turned]
    assert free, "either turns into something else when picked up"
    carried = world.pocket if world.pocket in clause.takes else free[0]
    if world.pocket != carried:
        world.lift(carried)
    if world.pocket != carried or world.done:
        return
    first, second = clause.takes
    world.join(first, clause.side) if carried == second else world.join(
        second, _OPPOSITE.get(clause.side, "")
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(_recipes, st.integers(0, 2**32))
def test_every_ruleset_can_be_solved(recipe: Recipe, seed: int) -> None:
    """Backwards, its tiles follow from initial ones, each used once.

    Forwards, a careful agent reaches the goal with all rules.
    """
    drawn = rulesets.generate_rulesets(recipe, 5, seed)
    for index in range(5):
        goal, found, tiles = decode(drawn, index)
        needed, makers = useful(goal, found)
        made, taken = (
            collections.Counter(part)
            for part in ([r.makes for r in makers], [t for r in makers for t in r.takes])
        )
        assert all(made[t] + tiles.count(t) == taken[t] + (t in goal.takes) == 1 for t in needed)
        assert reach(Symbols(goal, found, tiles, np.random.default_rng(seed)), goal, found), (
            rulesets.describe_ruleset(drawn, index)
        )


@settings(max_examples=100, deadline=None, derandomize=True)
@given(_recipes, st.integers(0, 2**32))
def test_rulesets_are_well_formed(recipe: Recipe, seed: int) -> None:
    drawn = rulesets.generate_rulesets(recipe, 4, seed)
    assert [part.shape for part in drawn] == [
        (4, 5),
        (4, recipe.max_rules, 7),
        (4, recipe.max_tiles, 2),
    ]
    assert {part.dtype.name for part in drawn} == {"uint8"}
    for index in range(4):
        goal, found, tiles = decode(drawn, index)
        needed, makers = useful(goal, found)
        distractors = [rule for rule in found if rule not in makers]
        kinds = {"basic": {"AgentHold", "AgentNear", "TileNear"}, "all": set(RULE_NAMES[1:])}
        assert {goal.kind} <= kinds[recipe.goals]
        assert {rule.kind for rule in found} <= kinds[recipe.rules]
        assert {*tiles, *needed, *(t for rule in found for t in rule.takes)} <= set(OBJECTS)
        assert {rule.makes for rule in found} <= {*OBJECTS, FLOOR}
        assert len(set(tiles)) == len(tiles)
        assert (drawn.rules[index, : len(found), 0] > 0).all()
        assert {rule.makes for rule in distractors}.isdisjoint(needed)
        assert all(
            tile in tiles for rule in distractors for tile in rule.takes if tile not in needed
        )
        wanted = recipe.distractor_rules
        assert (
            0 <= len(distractors) <= wanted
            if recipe.sample_distractor_rules
            else len(distractors) == wanted
        )
        if (
            recipe.chain_depth
            and not recipe.prune_probability
            and not (recipe.single_branch or recipe.sample_depth)
        ):
            assert set(goal.takes).isdisjoint(tiles)
        if not recipe.chain_depth:
            assert set(goal.takes) <= set(tiles)
        assert len(set(tiles) - needed) >= recipe.distractor_objects


@pytest.mark.parametrize("name", RECIPES)
def test_generation_depends_on_recipe_number_and_seed_only(name: str) -> None:
    few, many, other = (
        rulesets.generate_rulesets(RECIPES[name], n, seed)
        for n, seed in ((20, 3), (200, 3), (200, 4))
    )
    for part_of_few, part_of_many, part_of_other in zip(few, many, other, strict=True):
        np.testing.assert_array_equal(part_of_few, part_of_many[:20])
        assert part_of_other.shape == part_of_many.shape
    assert not np.array_equal(many.goals, other.goals)
    different = {
        (goal.tobytes(), found.tobytes(), bytes(np.array(sorted(tiles.tolist()))))
        for goal, found, tiles in zip(*many, strict=True)
    }
    assert len(different) == many.num_rulesets == 200


def test_more_rulesets_than_exist_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With basic goals, there are 60 objects to hold, 60 to stand next to, and a goal per pair."""
    monkeypatch.setattr(rulesets, "_MAX_MISSES", 20_000)
    recipe, number = Recipe(goals="basic"), 60 + 60 + 60 * 59 // 2
    drawn = rulesets.generate_rulesets(recipe, number, 0)
    pairs = {
        frozenset(decode(drawn, i)[0].takes)
        for i in range(number)
        if len(decode(drawn, i)[0].takes) == 2
    }
    assert len(pairs) == 60 * 59 // 2
    with pytest.raises(UsageError, match=f"at most {number}"):
        rulesets.generate_rulesets(recipe, number + 1, 0)


def test_rulesets_of_one_task_differ_in_their_objects() -> None:
    """Many rulesets are therefore possible.

    All kinds of goals are equally likely, which is 1 of 11 for trivial rulesets.
    """
    drawn = rulesets.generate_rulesets(RECIPES["trivial"], 5000, 0)
    assert len(np.unique(drawn.goals, axis=0)) < 5000
    kinds = np.unique(drawn.goals[:, 0], return_counts=True)[1]
    assert len(kinds) == 11
    np.testing.assert_allclose(kinds, 5000 / 11, rtol=0.2)


def test_a_recipe_with_exactly_one_rule() -> None:
    recipe = Recipe(chain_depth=1, single_branch=True)
    drawn = rulesets.generate_rulesets(recipe, 200, 0)
    assert drawn.rules.shape[1] == 1
    assert (drawn.rules[:, 0, 0] > 0).all()
    for index in range(200):
        goal, (rule,), tiles = decode(drawn, index)
        assert sorted(tiles) == sorted(({*goal.takes} - {rule.makes}) | {*rule.takes})


def test_depth_and_number_of_rules_follow_the_recipe() -> None:
    """With goals of one object, there is a chain of rules without pruning.

    The maximum is 14 rules.
    """
    deep = rulesets.generate_rulesets(Recipe(3), 300, 0)
    numbers = (deep.rules[..., 0] > 0).sum(axis=1)
    assert numbers.min() == 3
    assert numbers.max() == deep.rules.shape[1] == 14
    sampled = rulesets.generate_rulesets(Recipe(3, sample_depth=True, single_branch=True), 300, 0)
    counts = np.bincount((sampled.rules[..., 0] > 0).sum(axis=1))
    assert len(counts) == 4
    assert counts.min() > 40


def test_some_distractors_lead_to_dead_ends() -> None:
    """Some distractor rules consume needed objects.

    A careful agent still reaches the goal, but not one that picks these up.
    """
    drawn = rulesets.generate_rulesets(_TRAPS, 100, 0)
    kinds = collections.Counter()
    for index in range(100):
        goal, found, tiles = decode(drawn, index)
        needed, makers = useful(goal, found)
        traps = [rule for rule in found if rule not in makers and set(rule.takes) & needed]
        kinds.update(rule.kind for rule in traps)
        assert reach(Symbols(goal, found, tiles, np.random.default_rng(0)), goal, found), (
            rulesets.describe_ruleset(drawn, index)
        )
        for trap in traps:
            if trap.kind == "AgentHold" and trap.takes[0] in tiles:
                world = Symbols(goal, found, tiles, np.random.default_rng(0))
                world.lift(trap.takes[0])
                assert not reach(world, goal, found)
    assert set(kinds) == {"AgentHold", "TileNear"}
    assert min(kinds.values()) > 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chain_depth": -1}, "at least 0"),
        ({"distractor_objects": -1}, "at least 0"),
        ({"chain_depth": 4}, "60 objects"),
        ({"chain_depth": 10**9}, "60 objects"),
        ({"chain_depth": 3, "distractor_objects": 31}, "60 objects"),
        ({"prune_probability": 1.5}, "between 0 and 1"),
        ({"goals": "some"}, "basic, all"),
    ],
)
def test_invalid_recipes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(Recipe(), **changes)


@pytest.mark.parametrize(("number", "seed"), [(0, 0), (1, -1)])
def test_invalid_numbers_and_seeds_are_refused(number: int, seed: int) -> None:
    with pytest.raises(UsageError):
        rulesets.generate_rulesets(Recipe(), number, seed)


# Names of xminigrid.


def test_names_are_those_of_xminigrid() -> None:
    for names, upstream, number in (
        (rulesets.TILE_NAMES, constants.Tiles, constants.NUM_TILES),
        (rulesets.COLOR_NAMES, constants.Colors, constants.NUM_COLORS),
    ):
        there = {
            frozenset(key.split("_")): getattr(upstream, key)
            for key in upstream.__dataclass_fields__
        }
        assert {frozenset(name.upper().split()): index for index, name in enumerate(names)} == there
        assert len(names) == number
    assert len(GOAL_NAMES) == goals.NUM_GOALS
    assert len(RULE_NAMES) == rules.NUM_RULES
    assert {tile for tile, _ in OBJECTS} == set(np.asarray(constants.PICKABLE).tolist())


def test_encodings_are_those_of_xminigrid() -> None:
    recipe = dataclasses.replace(RECIPES["medium"], chain_depth=1)
    drawn = rulesets.generate_rulesets(recipe, 60, 0)
    assert len({*drawn.goals[:, 0].tolist()}) == 11
    for index in range(60):
        goal, found, _ = decode(drawn, index)
        tiles = [jnp.asarray(tile) for tile in goal.takes]
        np.testing.assert_array_equal(
            getattr(goals, f"{goal.kind}Goal")(*tiles).encode(), drawn.goals[index]
        )
        for place, rule in enumerate(found):
            tiles = [jnp.asarray(tile) for tile in (*rule.takes, rule.makes)]
            np.testing.assert_array_equal(
                getattr(rules, f"{rule.kind}Rule")(*tiles).encode(), drawn.rules[index, place]
            )


class Stuck(Exception):
    """Raised for a layout in which an object cannot be used."""


class Game:
    """Game in xminigrid with the same methods as `Symbols`."""

    def __init__(self, step: Callable[..., Any], timestep: Any) -> None:
        self.step, self.timestep, self.done = step, timestep, False
        self._look()

    def _look(self) -> None:
        state = jax.device_get(self.timestep.state)
        self.grid, self.direction = np.asarray(state.grid), int(state.agent.direction)
        self.position = _tile(state.agent.position)
        self.pocket = _tile(state.agent.pocket)

    def _do(self, action: int) -> None:
        if self.done:
            return
        self.timestep = self.step(self.timestep, action)
        self._look()
        self.done = bool(self.timestep.last()) and float(self.timestep.discount) == 0
        if self.timestep.last() and not self.done:
            raise Stuck

    def tiles(self) -> list[tuple[int, int]]:
        objects = [_tile(cell) for cell in self.grid.reshape(-1, 2) if _tile(cell) in OBJECTS]
        return objects + [self.pocket][: self.pocket != _NOTHING]

    def _is_free(self, cell: tuple[int, int]) -> bool:
        return _tile(self.grid[cell]) == FLOOR

    def _around(self, cell: tuple[int, int]) -> list[tuple[int, int]]:
        return [(cell[0] + y, cell[1] + x) for y, x in _SIDES.values()]

    def _objects_around(self, cell: tuple[int, int]) -> int:
        return sum(_tile(self.grid[other]) in OBJECTS for other in self._around(cell))

    def _paths(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Return the shortest path to every reachable cell, nearest first."""
        paths: dict[tuple[int, int], list[tuple[int, int]]] = {self.position: []}
        queue = collections.deque([self.position])
        while queue:
            cell = queue.popleft()
            for other in self._around(cell):
                if other not in paths and self._is_free(other):
                    paths[other] = [*paths[cell], other]
                    queue.append(other)
        return paths

    def _face(self, cell: tuple[int, int]) -> None:
        wanted = self._around(self.position).index(cell)
        while self.direction != wanted and not self.done:
            self._do(1)

    def _go(self, cells: list[tuple[int, int]]) -> None:
        """Move to the nearest of the cells."""
        paths = self._paths()
        reachable = [cell for cell in paths if cell in cells]
        if not reachable:
            raise Stuck
        for cell in paths[reachable[0]]:
            self._face(cell)
            self._do(0)

    def near(self, tile: tuple[int, int], side: str = "") -> None:
        (y, x), *_ = map(tuple, np.argwhere((self.grid == tile).all(axis=-1)))
        self._go(
            [(int(y) - dy, int(x) - dx) for name, (dy, dx) in _SIDES.items() if side in ("", name)]
        )
        if not self.done:
            self._face((int(y), int(x)))
            self._do(0)

    def lift(self, tile: tuple[int, int]) -> None:
        if self.pocket != _NOTHING:
            self.drop()
        self.near(tile)
        self._do(3)

    def _put(self, cell: tuple[int, int]) -> None:
        self._go([other for other in self._around(cell) if self._is_free(other)])
        if not self.done:
            self._face(cell)
            self._do(4)

    def drop(self) -> None:
        """Put the carried object where it touches nothing."""
        cells = [cell for cell in self._paths() if cell != self.position]
        alone = [cell for cell in cells if not self._objects_around(cell)]
        if not alone:
            raise Stuck
        self._put(alone[0])

    def join(self, target: tuple[int, int], side: str) -> None:
        """Put the carried object on that side of the target, or on any, touching nothing else."""
        place = _tile(np.argwhere((self.grid == target).all(axis=-1))[0])
        cells = [
            (place[0] + y, place[1] + x) for name, (y, x) in _SIDES.items() if side in ("", name)
        ]
        alone = [cell for cell in cells if self._is_free(cell) and self._objects_around(cell) == 1]
        if not alone:
            raise Stuck
        self._put(alone[0])


def _outcome(game: Game, goal: Clause, found: list[Clause]) -> str:
    try:
        return "won" if reach(game, goal, found) else "lost"
    except Stuck:
        return "stuck"


def test_rulesets_can_be_solved_in_xminigrid() -> None:
    """Each is solved in one of a few layouts.

    In others, objects may be blocked, but needed ones are never lost.
    """
    drawn = rulesets.generate_rulesets(RECIPES["medium"], 24, 0)
    env, params = xminigrid.make("XLand-MiniGrid-R1-13x13")
    params = params.replace(max_steps=2000, ruleset=None)
    reset = jax.jit(lambda key, ruleset: env.reset(params.replace(ruleset=ruleset), key))
    step = jax.jit(lambda timestep, action: env.step(params, timestep, action))
    for index in range(drawn.num_rulesets):
        ruleset = RuleSet(*(jnp.asarray(part[index]) for part in drawn))
        goal, found, _ = decode(drawn, index)
        outcomes = set()
        for layout in range(6):
            outcomes.add(_outcome(Game(step, reset(jax.random.key(layout), ruleset)), goal, found))
            if outcomes != {"stuck"}:
                break
        assert "won" in outcomes, rulesets.describe_ruleset(drawn, index)


# Descriptions.


def test_the_description_of_a_ruleset() -> None:
    drawn = Rulesets(
        np.asarray([[4, 3, 1, 7, 3], [13, 12, 8, 0, 0], [1, 11, 10, 0, 0]], np.uint8),
        np.asarray(
            [
                [[1, 5, 6, 3, 1, 0, 0], [4, 3, 2, 4, 9, 7, 3], [0] * 7],
                [[9, 3, 1, 1, 7, 0, 0], [0] * 7, [0] * 7],
                [[0] * 7] * 3,
            ],
            np.uint8,
        ),
        np.asarray([[[3, 2], [4, 9]], [[3, 1], [0, 0]], [[0, 0]] * 2], np.uint8),
    )
    assert [rulesets.describe_ruleset(drawn, index).splitlines() for index in range(3)] == [
        [
            "goal: put the red ball next to the blue key",
            "rule: pick up the grey pyramid -> red ball",
            "rule: put the white square just above the green ball -> blue key",
            "objects: green ball, white square",
        ],
        [
            "goal: stand just above the orange star",
            "rule: stand just left of the red ball -> nothing",
            "objects: red ball",
        ],
        ["goal: pick up the brown hex", "objects: none"],
    ]
    with pytest.raises(UsageError, match="between 0 and 2"):
        rulesets.describe_ruleset(drawn, 3)


def test_every_kind_has_a_description() -> None:
    numbers = np.asarray([[kind, 3, 1, 4, 2] for kind in range(len(GOAL_NAMES))], np.uint8)
    every = np.asarray([[kind, 3, 1, 4, 2, 5, 3] for kind in range(len(RULE_NAMES))], np.uint8)
    size = len(GOAL_NAMES)
    drawn = Rulesets(
        numbers, np.broadcast_to(every, (size, *every.shape)), np.zeros((size, 1, 2), np.uint8)
    )
    texts = [rulesets.describe_ruleset(drawn, index).splitlines() for index in range(size)]
    assert len({lines[0] for lines in texts}) == size
    assert len({*texts[0][1:-1]}) == len(RULE_NAMES) - 1
    assert texts[5][0] == "goal: bring the red ball to row 4, column 2"


# Splits.


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(2, 60), st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_the_parts_of_a_split_share_no_task(
    number: int, validation: float, share: float, seed: int
) -> None:
    drawn = rulesets.generate_rulesets(Recipe(1, distractor_objects=1), number, 0)
    repeated = Rulesets(*(np.concatenate([part, part[: number // 2]]) for part in drawn))
    first, second = round(share * number), round((validation + share) * number)
    if not 0 < first < second < number:
        with pytest.raises(UsageError, match="leave no part empty"):
            rulesets.split_rulesets(repeated, validation, share, seed)
        return
    parts = rulesets.split_rulesets(repeated, validation, share, seed)
    tasks = [
        [bytes(g) + bytes(r) for g, r in zip(part.goals, part.rules, strict=True)] for part in parts
    ]
    everything = [bytes(g) + bytes(r) for g, r in zip(repeated.goals, repeated.rules, strict=True)]
    assert sorted(sum(tasks, [])) == sorted(everything)
    assert [len(set(part)) for part in tasks] == [number - second, second - first, first]
    assert len(set().union(*tasks)) == number, "no task is in two parts"
    jax.tree.map(
        np.testing.assert_array_equal,
        parts,
        rulesets.split_rulesets(repeated, validation, share, seed),
    )


def test_the_training_part_depends_on_the_sum_of_the_shares_only() -> None:
    drawn = rulesets.generate_rulesets(RECIPES["small"], 100, 0)
    (train, validation, held_out), (other, *_) = (
        rulesets.split_indices(drawn, *shares, 0) for shares in ((0.1, 0.1), (0.15, 0.05))
    )
    np.testing.assert_array_equal(train, other)
    assert (len(train), len(validation), len(held_out)) == (80, 10, 10)


def test_shared_tasks_are_counted() -> None:
    """Each task counts once, for any padding of the rules."""
    drawn = rulesets.generate_rulesets(RECIPES["small"], 40, 0)
    some, others = (
        Rulesets(*(part[chosen] for part in drawn)) for chosen in (slice(0, 20), slice(15, 40))
    )
    wide = some._replace(rules=np.pad(some.rules, ((0, 0), (0, 3), (0, 0))))
    for each in (some, wide):
        assert rulesets.count_shared_tasks(each, others) == (5, 20)
        assert rulesets.count_shared_tasks(others, each) == (5, 25)
    assert rulesets.count_shared_tasks(some, Rulesets(*(part[20:] for part in drawn))) == (0, 20)


def test_a_split_shuffles_and_follows_the_seed() -> None:
    drawn = rulesets.generate_rulesets(RECIPES["small"], 100, 0)
    train, validation, held_out = rulesets.split_rulesets(drawn, 0.1, 0.1, 0)
    assert (train.num_rulesets, validation.num_rulesets, held_out.num_rulesets) == (80, 10, 10)
    assert not np.array_equal(train.goals, drawn.goals[:80])
    assert not np.array_equal(
        held_out.goals, rulesets.split_rulesets(drawn, 0.1, 0.1, 1).held_out.goals
    )


def test_a_split_compares_tasks_by_their_meaning() -> None:
    """Six tasks in two equivalent forms each are kept together.

    Forms differ in the order of rules, or in the order of tiles if it has no effect.
    """
    near, up, right, down, left = (
        GOAL_NAMES.index(f"TileNear{side}") for side in ("", "Up", "Right", "Down", "Left")
    )
    hold, beside, above, below = (
        RULE_NAMES.index(kind) for kind in ("AgentHold", "TileNear", "TileNearUp", "TileNearDown")
    )
    key, ball, one, other = (7, 2), (3, 1), [hold, 5, 1, 3, 1, 0, 0], [above, 3, 4, 4, 2, 7, 2]
    none, reverse = [0] * 7, [below, 4, 2, 3, 4, 7, 2]
    ways = [
        ([near, *key, *ball], [one, other], [near, *ball, *key], [reverse, one]),
        ([up, *key, *ball], [one, other], [down, *ball, *key], [other, one]),
        ([up, *ball, *key], [one, none], [down, *key, *ball], [none, one]),
        ([left, *ball, *key], [none, none], [right, *key, *ball], [none, none]),
        (
            [near, *ball, *key],
            [[beside, 3, 4, 4, 2, 7, 2], none],
            [near, *key, *ball],
            [[beside, 4, 2, 3, 4, 7, 2], none],
        ),
        (
            [near, *ball, *key],
            [[beside, 3, 4, 4, 2, 7, 3], none],
            [near, *key, *ball],
            [[beside, 4, 2, 3, 4, 7, 3], none],
        ),
    ]
    goals = np.asarray([goal for way in ways for goal in way[::2]], np.uint8)
    drawn = Rulesets(
        goals,
        np.asarray([rows for way in ways for rows in way[1::2]], np.uint8),
        np.ones((12, 1, 2), np.uint8),
    )
    for seed in range(20):
        for part in rulesets.split_indices(drawn, 1 / 3, 1 / 3, seed):
            assert len(part) == 4 and len({int(number) // 2 for number in part}) == 2


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 0.001, 0.999, float("nan")])
def test_splits_with_an_empty_part_are_refused(share: float) -> None:
    with pytest.raises(UsageError, match="held_out"):
        rulesets.split_rulesets(rulesets.generate_rulesets(Recipe(), 10, 0), 0.1, share, 0)
    with pytest.raises(UsageError, match="validation"):
        rulesets.split_rulesets(rulesets.generate_rulesets(Recipe(), 10, 0), share, 0.1, 0)


# Files.


def _assert_same(first: Rulesets, second: Rulesets) -> None:
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype == np.uint8


def test_a_saved_file_can_be_read(tmp_path: Path) -> None:
    drawn = rulesets.generate_rulesets(RECIPES["small"], 30, 0)
    for name in ("tasks.npz", "deeper/tasks"):
        ruleset_files.save_rulesets(drawn, tmp_path / name)
        _assert_same(ruleset_files.load_rulesets(str(tmp_path / name)), drawn)


@pytest.mark.parametrize("protocol", [0, 2, 4, -1])
@pytest.mark.parametrize("array", [jnp.asarray, np.asarray, np.asfortranarray])
def test_benchmark_files_of_the_suite_are_read(
    tmp_path: Path, array: Callable[..., Any], protocol: int
) -> None:
    """Its generator writes goals as int32 if some are directed."""
    drawn = rulesets.generate_rulesets(RECIPES["medium"], 30, 0)
    parts = {key: array(part) for key, part in drawn._asdict().items()} | {
        "goals": array(drawn.goals.astype(np.int32))
    }
    numbers = array((drawn.rules[..., :1] > 0).sum(axis=1).astype(np.uint8))
    other = {
        "num_rules": numbers,
        "generation_config": {"chain_depth": 2, "prune_prob": 0.1, "scale": np.float32(1)},
    }
    content: dict[str, Any] = parts | other
    save_bz2_pickle(content, str(tmp_path / "medium"), protocol)
    _assert_same(ruleset_files.load_rulesets(tmp_path / "medium"), drawn)


class Evil:
    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


def _named(name: str, *arguments: bytes) -> bytes:
    """Return a pickle that calls a function by name."""
    return b"c" + name.replace(" ", "\n").encode() + b"\n(" + b"".join(arguments) + b"tR."


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (
            lambda path: pickle.dumps({"goals": Evil(os.mkdir, path)}),
            f"{os.mkdir.__module__}.mkdir",
        ),
        (
            lambda path: pickle.dumps({"goals": Evil(eval, f"__import__('os').mkdir({path!r})")}),
            "builtins.eval",
        ),
        (lambda path: pickle.dumps({"goals": Evil(np.save, path, 1)}), "numpy.save"),
        (
            lambda path: _named("numpy.core.multiarray fromfile", f"V{path}\n".encode()),
            "numpy.core.multiarray.fromfile",
        ),
        (lambda path: _named("numpy os.mkdir", f"V{path}\n".encode()), "numpy.os.mkdir"),
        (
            lambda path: pickle.dumps({"goals": Recipe()}),
            "rollax.environments.suites.xminigrid.rulesets.Recipe",
        ),
    ],
)
def test_a_file_with_anything_but_arrays_is_refused(
    tmp_path: Path, payload: Callable[[str], bytes], name: str
) -> None:
    mark = tmp_path / "executed"
    path = tmp_path / "benchmark"
    path.write_bytes(bz2.compress(payload(str(mark))))
    with pytest.raises(UsageError, match=f"contains {re.escape(name)}, but only arrays") as error:
        ruleset_files.load_rulesets(path)
    assert str(path) in str(error.value)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_cannot_change_the_functions_that_it_calls(tmp_path: Path) -> None:
    """A pickle may also set the state of an object."""
    path = tmp_path / "benchmark"
    path.write_bytes(bz2.compress(b"cnumpy\ndtype\n}S'_function'\nI1\nsb."))
    with pytest.raises(UsageError, match="no state"):
        ruleset_files.load_rulesets(path)
    drawn = rulesets.generate_rulesets(Recipe(), 5, 0)
    save_bz2_pickle(drawn._asdict(), str(path))
    _assert_same(ruleset_files.load_rulesets(path), drawn)


def test_arrays_of_objects_are_refused(tmp_path: Path) -> None:
    drawn = rulesets.generate_rulesets(Recipe(), 5, 0)
    parts: dict[str, Any] = drawn._asdict() | {
        "goals": np.asarray([Evil(os.mkdir, str(tmp_path / "executed"))] * 5, object)
    }
    np.savez(tmp_path / "tasks.npz", allow_pickle=True, **parts)
    save_bz2_pickle(parts, str(tmp_path / "tasks"))
    for name in ("tasks.npz", "tasks"):
        with pytest.raises(UsageError):
            ruleset_files.load_rulesets(tmp_path / name)
    assert not (tmp_path / "executed").exists()


_GOOD = {
    "goals": np.ones((3, 5), np.uint8),
    "rules": np.ones((3, 2, 7), np.uint8),
    "init_tiles": np.ones((3, 4, 2), np.uint8),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"goals": np.ones((3, 4), np.uint8)}, r"goals must be .*\[N, 5\].*uint8\[3, 4\]"),
        ({"rules": np.ones((3, 7), np.uint8)}, r"rules must be .*\[N, R, 7\]"),
        ({"init_tiles": np.ones((3, 4, 2), np.float32)}, "init_tiles must be .*integers"),
        ({"init_tiles": np.ones((4, 4, 2), np.uint8)}, "same number of rulesets, got"),
        ({"goals": np.full((3, 5), -1)}, "0 to 255"),
        ({"goals": np.full((3, 5), 300)}, "0 to 255"),
        ({"goals": np.full((3, 5), 15)}, "number of a goal must be at most 14, got 15"),
        ({"rules": np.full((3, 2, 7), 12)}, "number of a rule must be at most 11, got 12"),
        ({"init_tiles": np.full((3, 4, 2), 12)}, "number of a color must be at most 11, got 12"),
        (
            {key: np.zeros((0, *part.shape[1:]), np.uint8) for key, part in _GOOD.items()},
            "goals must be",
        ),
    ],
)
def test_files_with_wrong_arrays_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    save_bz2_pickle(_GOOD | changes, str(tmp_path / "pickle"))
    np.savez(tmp_path / "arrays.npz", **(_GOOD | changes))
    for name in ("pickle", "arrays.npz"):
        with pytest.raises(UsageError, match=message):
            ruleset_files.load_rulesets(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "trivial, small, medium, high"),
        (b"", "must be an .npz"),
        (pickle.dumps({}), "must be an .npz"),
        (bz2.compress(pickle.dumps({"goals": 1})), "must have rules, init_tiles"),
        (
            bz2.compress(pickle.dumps(dict.fromkeys(_GOOD, 1))),
            r"goals must be .* got an object of int",
        ),
        (bz2.compress(pickle.dumps([1, 2])), "must have goals"),
        (bz2.compress(pickle.dumps(_GOOD))[:-40], "damaged"),
        (bz2.compress(pickle.dumps(_GOOD)[:-40]), "damaged"),
        (b"PK\x03\x04nothing", "damaged"),
    ],
)
def test_files_without_rulesets_are_refused(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as error:
        ruleset_files.load_rulesets(path)
    assert str(path) in str(error.value)
