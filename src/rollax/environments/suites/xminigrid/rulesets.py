"""Tasks of XLand-MiniGrid's environments: rulesets, drawn here from a recipe (`ruleset_files` reads others).

A ruleset is a goal, rules that turn objects into others, and the objects that lie there at the start. They are drawn as
production trees, backwards, as in AdA (Bauer et al. 2023, arXiv:2301.07608, appendix A.2) and XLand-MiniGrid (Nikulin et al.
2024, arXiv:2312.12044): a goal; rules that make its objects; rules that make what those take; and so on. What nothing makes
is there at the start. Distractor rules and objects come on top. `RECIPES` has the figures of upstream's benchmarks of the
same names; the draws are not upstream's. What differs:

- every ruleset can be solved: a distractor rule may lead into a dead end, but only into one that can be kept out of.
  Upstream's may take what the goal needs in the moment an agent walks by, or lay what the goal asks for ready at the start;
- only objects that can be carried occur: no goal squares, which an agent can neither pick up nor put down;
- no two rulesets are the same: two objects are in one order where both orders would say the same, and duplicates are drawn
  again. Rulesets of one goal and the same rules, which are one task, may differ in the objects that lie there (as upstream's).

Nothing here needs jax or xminigrid.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rollax.errors import UsageError

# By their numbers in xminigrid's encodings.
TILES = (
    *("empty", "floor", "wall", "ball", "square", "pyramid", "goal"),
    *("key", "locked door", "closed door", "open door", "hex", "star"),
)
COLORS = (
    *("empty", "red", "green", "blue", "purple", "yellow"),
    *("grey", "black", "orange", "white", "brown", "pink"),
)
GOALS = (
    *("Empty", "AgentHold", "AgentOnTile", "AgentNear", "TileNear", "TileOnPosition", "AgentOnPosition"),
    *("TileNearUp", "TileNearRight", "TileNearDown", "TileNearLeft"),
    *("AgentNearUp", "AgentNearRight", "AgentNearDown", "AgentNearLeft"),
)
RULES = (
    *("Empty", "AgentHold", "AgentNear", "TileNear"),
    *("TileNearUp", "TileNearRight", "TileNearDown", "TileNearLeft"),
    *("AgentNearUp", "AgentNearRight", "AgentNearDown", "AgentNearLeft"),
)

Tile = tuple[int, int]  # tile, color
OBJECTS: tuple[Tile, ...] = tuple(
    (TILES.index(tile), COLORS.index(color))
    for tile in ("ball", "square", "pyramid", "key", "star", "hex")
    for color in ("red", "green", "blue", "purple", "yellow", "grey", "white", "brown", "pink", "orange")
)
FLOOR: Tile = TILES.index("floor"), COLORS.index("black")

# Those that both goals and rules may be of.
KINDS = {"basic": ("AgentHold", "AgentNear", "TileNear"), "all": RULES[1:]}

_PHRASES = {
    "Empty": "none",
    "AgentHold": "pick up the {0}",
    "AgentOnTile": "stand on the {0}",
    "AgentNear": "stand next to the {0}",
    "AgentNearUp": "stand just below the {0}",
    "AgentNearRight": "stand just left of the {0}",
    "AgentNearDown": "stand just above the {0}",
    "AgentNearLeft": "stand just right of the {0}",
    "TileNear": "put the {0} next to the {1}",
    "TileNearUp": "put the {1} just above the {0}",
    "TileNearRight": "put the {1} just right of the {0}",
    "TileNearDown": "put the {1} just below the {0}",
    "TileNearLeft": "put the {1} just left of the {0}",
}
_OPPOSITE = {"TileNearUp": "TileNearDown", "TileNearRight": "TileNearLeft"}
_OPPOSITE |= {other: kind for kind, other in _OPPOSITE.items()}
# Draws in a row of which none is new, after which there is likely nothing new to be had.
_PATIENCE = 100_000


class Rulesets(NamedTuple):
    """`N` rulesets: goals `[N, 5]`, rules `[N, R, 7]` and initial tiles `[N, M, 2]`, all uint8 as xminigrid encodes them.

    Rows of zeros are no rule and no tile: all rulesets have as many rows as the largest might have.
    """

    goals: np.ndarray
    rules: np.ndarray
    init_tiles: np.ndarray

    @property
    def number(self) -> int:
        return len(self.goals)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How rulesets are drawn.

    `Recipe(chain_depth=1, single_branch=True)` has one rule exactly: it makes the goal's object, or one of its two.

    Raises: UsageError for figures that no ruleset can have.
    """

    chain_depth: int = 0  # levels of rules between the goal and what is there at the start
    sample_depth: bool = False  # a depth for each ruleset, 0 to chain_depth, all as likely
    single_branch: bool = False  # a level has one rule, where otherwise it has one for each object of the level above
    prune_probability: float = 0.0  # that an object is there at the start, although the tree could go deeper
    distractor_rules: int = 0  # rules that make nothing of use
    sample_distractor_rules: bool = False  # as many as drawn for each ruleset, 0 to distractor_rules, all as likely
    distractor_objects: int = 0  # objects that neither the goal nor a rule towards it takes
    goals: str = "all"  # kinds of goals: "basic" ones, or "all", which adds those with a direction
    rules: str = "all"  # kinds of rules, likewise

    def __post_init__(self) -> None:
        for field in ("chain_depth", "distractor_rules", "distractor_objects"):
            if getattr(self, field) < 0:
                raise UsageError(f"recipe of rulesets: {field} ({getattr(self, field)}) must be at least 0.")
        if not 0 <= self.prune_probability <= 1:
            raise UsageError(f"recipe of rulesets: prune_probability ({self.prune_probability}) must be between 0 and 1.")
        for field in ("goals", "rules"):
            if getattr(self, field) not in KINDS:
                raise UsageError(f"recipe of rulesets: {field} ({getattr(self, field)!r}) must be one of {', '.join(KINDS)}.")
        # The depth alone is looked at first: a power of it might be beyond all bounds.
        if self.chain_depth > len(OBJECTS) or sum(self._widths()) + self.distractor_objects > len(OBJECTS):
            raise UsageError(
                f"recipe of rulesets: chain_depth {self.chain_depth} with {self.distractor_objects} distractor_objects may "
                f"need more than the {len(OBJECTS)} objects that there are: lower either, or set single_branch."
            )

    def _widths(self) -> list[int]:
        """The most new objects of each level of the tree, from the goal downwards."""
        deeper = range(1, self.chain_depth + 1)
        return [2, *(2 if self.single_branch else 2 ** (level + 1) for level in deeper)]

    @property
    def max_rules(self) -> int:
        """The most rules that a ruleset may have, and at least 1."""
        return max(1, sum(self._widths()[1:]) // 2 + self.distractor_rules)

    @property
    def max_tiles(self) -> int:
        """The most initial tiles that a ruleset may have."""
        leaves = self.chain_depth + 2 if self.single_branch else self._widths()[-1]
        return leaves + self.distractor_objects + 2 * self.distractor_rules


RECIPES = {
    "trivial": Recipe(distractor_objects=3),
    "small": Recipe(1, prune_probability=0.3, distractor_rules=2, sample_distractor_rules=True, distractor_objects=2),
    "medium": Recipe(2, prune_probability=0.1, distractor_rules=3, sample_distractor_rules=True, distractor_objects=2),
    "high": Recipe(3, prune_probability=0.1, distractor_rules=4, sample_distractor_rules=True, distractor_objects=1),
}


class _Clause(NamedTuple):
    """A goal, which makes nothing, or a rule."""

    kind: str
    takes: tuple[Tile, ...]
    makes: Tile | None = None

    def row(self) -> list[int]:
        number = GOALS.index(self.kind) if self.makes is None else RULES.index(self.kind)
        made = () if self.makes is None else self.makes
        return [number, *(number for tile in self.takes for number in tile), *made]


class _Drawn(NamedTuple):
    goal: _Clause
    rules: list[_Clause]
    tiles: list[Tile]

    def identity(self) -> tuple[bytes, bytes]:
        """What makes it this ruleset and no other: its goal and its rules, and the objects in any order."""
        clauses = bytes(number for clause in (self.goal, *self.rules) for number in clause.row())
        return clauses, bytes(number for tile in sorted(self.tiles) for number in tile)


def generate(recipe: Recipe, number: int, seed: int) -> Rulesets:
    """`number` rulesets, no two of which are the same. The same arguments give the same ones.

    The first rulesets are those of a smaller number, and the shapes, `[N, recipe.max_rules, 7]` and
    `[N, recipe.max_tiles, 2]`, are the recipe's.

    Raises: UsageError when the recipe has not as many different ones.
    """
    if number < 1 or seed < 0:
        raise UsageError(f"rulesets: their number ({number}) must be at least 1, and the seed ({seed}) at least 0.")
    random = np.random.default_rng(seed)
    shapes = (number, 5), (number, recipe.max_rules, 7), (number, recipe.max_tiles, 2)
    found = Rulesets(*(np.zeros(shape, np.uint8) for shape in shapes))
    known: set[tuple[bytes, bytes]] = set()
    misses = 0
    while len(known) < number:
        drawn = _draw(recipe, random)
        identity = drawn.identity()
        if identity not in known:
            _write(found, len(known), drawn)
            known.add(identity)
            misses = 0
            continue
        misses += 1
        if misses == _PATIENCE:
            raise UsageError(
                f"rulesets: the recipe gave {len(known)} different ones and {_PATIENCE} more draws nothing new, so that "
                f"{number} cannot be had: ask for at most {len(known)}, or choose a richer recipe."
            )
    return found


def _write(rulesets: Rulesets, index: int, drawn: _Drawn) -> None:
    goal = drawn.goal.row()
    rulesets.goals[index, : len(goal)] = goal
    for place, rule in enumerate(drawn.rules):
        row = rule.row()
        rulesets.rules[index, place, : len(row)] = row
    rulesets.init_tiles[index, : len(drawn.tiles)] = drawn.tiles


def _draw(recipe: Recipe, random: np.random.Generator) -> _Drawn:
    objects = (OBJECTS[i] for i in random.permutation(len(OBJECTS)))
    goal = _clause(recipe.goals, objects, None, random)
    rules, tiles = _tree(recipe, goal, objects, random)
    tiles += [next(objects) for _ in range(recipe.distractor_objects)]
    needed = {tile for clause in (goal, *rules) for tile in clause.takes}
    number = recipe.distractor_rules
    distractors: list[_Clause] = []
    for _ in range(random.integers(number + 1) if recipe.sample_distractor_rules else number):
        distractor = _distractor(recipe, goal, rules, distractors, random)
        distractors.append(distractor)
        tiles += [tile for tile in distractor.takes if tile not in needed and tile not in tiles]
    return _Drawn(goal, rules + distractors, tiles)


def _clause(kinds: str, objects: Iterator[Tile], makes: Tile | None, random: np.random.Generator) -> _Clause:
    """A goal or rule that takes the next of the objects."""
    kind = KINDS[kinds][random.integers(len(KINDS[kinds]))]
    # With two objects in order, no two clauses say the same: TileNear has no order, and the one above is the other's below.
    takes = sorted((next(objects), next(objects))) if kind.startswith("TileNear") else [next(objects)]
    return _Clause(kind, tuple(takes), makes)


def _tree(
    recipe: Recipe, goal: _Clause, objects: Iterator[Tile], random: np.random.Generator
) -> tuple[list[_Clause], list[Tile]]:
    """Rules that make the goal's objects, level by level, and the objects that no rule makes."""
    rules: list[_Clause] = []
    leaves: list[Tile] = []
    level = list(goal.takes)
    for _ in range(random.integers(recipe.chain_depth + 1) if recipe.sample_depth else recipe.chain_depth):
        only = random.integers(max(len(level), 1)) if recipe.single_branch else None
        deeper: list[Tile] = []
        for place, tile in enumerate(level):
            if only not in (None, place) or random.random() < recipe.prune_probability:
                leaves.append(tile)
                continue
            rules.append(_clause(recipe.rules, objects, tile, random))
            deeper += rules[-1].takes
        level = deeper
    return rules, leaves + level


def _distractor(
    recipe: Recipe, goal: _Clause, rules: list[_Clause], distractors: list[_Clause], random: np.random.Generator
) -> _Clause:
    """A rule that makes nothing of use and leaves the goal within reach."""
    needed = {tile for clause in (goal, *rules) for tile in clause.takes}
    while True:
        first, second = random.choice(len(OBJECTS), 2, replace=False)
        takes = iter((OBJECTS[first], OBJECTS[second]))
        useless = [tile for tile in (*OBJECTS, FLOOR) if tile not in needed]
        makes = useless[random.integers(len(useless))]
        rule = _clause(recipe.rules, takes, makes, random)
        if makes not in rule.takes and _leaves_a_way(rule, goal, rules, distractors):
            return rule


def _leaves_a_way(distractor: _Clause, goal: _Clause, rules: list[_Clause], distractors: list[_Clause]) -> bool:
    """Whether an agent that knows the rules can keep the distractor from taking what it needs."""
    tree = (goal, *rules)
    takers = [clause for clause in tree if set(clause.takes) & set(distractor.takes)]
    if not takers:
        return True
    if distractor.kind.startswith("TileNear"):
        # It fires upon putting one down next to the other, which only the clause that takes both asks for.
        return all(taker.takes != distractor.takes for taker in takers)
    if distractor.kind.startswith("AgentNear"):
        # It fires on walking by, which cannot always be avoided.
        return False
    # It fires upon picking up, which is not called for where another object can be brought to where this one lies.
    (tile,), (taker,) = distractor.takes, takers
    in_hand = any(rule.makes == tile and rule.kind == "AgentHold" for rule in rules)
    fixed = {tile for other in distractors if other.kind == "AgentHold" for tile in other.takes}
    return taker.kind == "TileNear" and not in_hand and not fixed & (set(taker.takes) - {tile})


class Split(NamedTuple):
    """The three parts of a split of rulesets, whose tasks are disjoint: to learn from, to choose by, and to report on."""

    train: Any
    validation: Any
    held_out: Any


def split(rulesets: Rulesets, validation: float, held_out: float, seed: int) -> Split:
    """Rulesets of disjoint tasks for training, validation and the final report, each part shuffled.

    A task is a goal and a set of rules: rulesets whose rules are in another order, or that name the two tiles of a goal or rule
    in the other order where that means the same ("a near b"), are one task and lie in one part. `validation` and `held_out`
    are shares of the tasks; training has the others. The same arguments give the same split, and training depends on the sum
    of the shares alone.

    Raises: UsageError when a part would be empty, or for a negative seed.
    """
    numbers = split_numbers(rulesets, validation, held_out, seed)
    return Split(*(Rulesets(*(part[chosen] for part in rulesets)) for chosen in numbers))


def split_numbers(rulesets: Rulesets, validation: float, held_out: float, seed: int) -> Split:
    """The numbers of the rulesets in each part of `split`, int `[...]`. Raises as `split`."""
    if seed < 0:
        raise UsageError(f"rulesets: the seed ({seed}) must be at least 0.")
    task = np.unique(task_ids(rulesets), axis=0, return_inverse=True)[1].reshape(-1)
    number, shares = int(task.max()) + 1, (held_out, validation + held_out)
    are_shares = all(0 < share < 1 for share in shares)  # NaN is none
    first, second = (round(share * number) for share in shares) if are_shares else (0, 0)
    if not 0 < first < second < number:
        raise UsageError(
            f"rulesets: validation ({validation}) and held_out ({held_out}) must be shares of the {number} different tasks "
            "that leave no part empty (train, validation, held-out): give other shares, such as 0.1 each, or more rulesets."
        )
    rank = np.random.default_rng(seed).permutation(number)[task]
    order = np.argsort(rank, kind="stable")
    held_out_end, validation_end = np.searchsorted(rank[order], (first, second))
    return Split(order[validation_end:], order[held_out_end:validation_end], order[:held_out_end])


def task_ids(rulesets: Rulesets) -> np.ndarray:
    """Numbers, uint64 `[N, 1 + R]`, that are equal for rulesets of one task: of the goal, and of the rules in order of size.

    No rule is 0, so that rulesets with room for more rules compare after zeros are added in front of the rules of the others.
    """
    goals = _canonical(rulesets.goals, GOALS)[:, None]
    return np.concatenate([goals, np.sort(_canonical(rulesets.rules, RULES), axis=1)], axis=1)


def shared_tasks(some: Rulesets, others: Rulesets) -> tuple[int, int]:
    """How many different tasks of `some` are among those of `others`, and how many `some` has."""
    ids, other_ids = task_ids(some), task_ids(others)
    width = max(ids.shape[1], other_ids.shape[1])
    found, known = (
        {row.tobytes() for row in np.insert(part, [1] * (width - part.shape[1]), 0, axis=1)} for part in (ids, other_ids)
    )
    return len(found & known), len(found)


def _canonical(rows: np.ndarray, kinds: tuple[str, ...]) -> np.ndarray:
    """One number, uint64, for each goal or rule `[..., 5 or 7]`: the same for those that say the same.

    Of two tiles the lesser comes first: near has no order, and one just above the other is the other just below it.
    """
    swapped = [kinds.index(_OPPOSITE.get(kind, kind)) for kind in kinds]
    rows = rows.astype(np.uint64)
    kind, first, second = rows[..., 0], rows[..., 1] << 8 | rows[..., 2], rows[..., 3] << 8 | rows[..., 4]
    is_swapped = np.isin(kind, [n for n, name in enumerate(kinds) if name.startswith("TileNear")]) & (first > second)
    pair = np.where(is_swapped, second << 16 | first, first << 16 | second)
    number = np.where(is_swapped, np.asarray(swapped, np.uint64)[kind], kind) << 32 | pair
    return number if rows.shape[-1] == 5 else number << 16 | rows[..., 5] << 8 | rows[..., 6]


def describe(rulesets: Rulesets, index: int) -> str:
    """One ruleset in words: its goal, its rules and its initial objects, each on a line.

    Raises: UsageError when there is no ruleset of that index.
    """
    if not 0 <= index < rulesets.number:
        raise UsageError(f"rulesets: index ({index}) must be between 0 and {rulesets.number - 1}.")
    number, *rest = rulesets.goals[index].tolist()
    lines = [f"goal: {_phrase(GOALS[number], rest)}"]
    for number, *rest in rulesets.rules[index].tolist():
        if number:
            made = rest[4:6] if RULES[number].startswith("TileNear") else rest[2:4]
            lines.append(f"rule: {_phrase(RULES[number], rest)} -> {_words(made)}")
    tiles = [_words(tile) for tile in rulesets.init_tiles[index].tolist() if tile[0]]
    return "\n".join([*lines, f"objects: {', '.join(tiles) or 'none'}"])


def _phrase(kind: str, numbers: list[int]) -> str:
    """What to do for it, by the numbers that follow its own."""
    if kind == "AgentOnPosition":
        return f"stand in row {numbers[0]}, column {numbers[1]}"
    if kind == "TileOnPosition":
        return f"bring the {_words(numbers[:2])} to row {numbers[2]}, column {numbers[3]}"
    return _PHRASES[kind].format(_words(numbers[:2]), _words(numbers[2:4]))


def _words(tile: list[int]) -> str:
    return "nothing" if tuple(tile) == FLOOR else f"{COLORS[tile[1]]} {TILES[tile[0]]}"
