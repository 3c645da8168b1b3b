"""Generation of rulesets, the tasks of XLand-MiniGrid environments.

A ruleset consists of a goal, rules that turn objects into other objects, and the objects that are
in the grid at the start. Rulesets are sampled backwards as production trees: first a goal, then
rules that produce its objects, then rules that produce the input objects of those rules, and so on.
Objects that no rule produces are present at the start. Distractor rules and objects are added.
`RECIPES` contains the settings of the xminigrid benchmarks of the same names, but the sampled
rulesets differ. Other differences from xminigrid:

- Every ruleset can be solved. If a distractor rule leads to a dead end, agents can avoid it. In
  xminigrid, distractor rules may consume a needed object when the agent walks by, or the objects of
  the goal may be present at the start.
- All objects can be carried. Goal squares do not occur, because agents cannot pick them up or put
  them down.
- All rulesets are different. Pairs of objects have a canonical order if both orders have the same
  meaning, and duplicates are sampled again. Rulesets with the same goal and rules are the same
  task, even if they differ in their initial objects, as in xminigrid.

This module imports neither JAX nor xminigrid.

References:
    Bauer et al. (2023), arXiv:2301.07608, appendix A.2 (AdA).
    Nikulin et al. (2024), arXiv:2312.12044 (XLand-MiniGrid).
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rollax.errors import UsageError

# Names in the order of their numbers in xminigrid's encodings.
TILE_NAMES = (
    *("empty", "floor", "wall", "ball", "square", "pyramid", "goal"),
    *("key", "locked door", "closed door", "open door", "hex", "star"),
)
COLOR_NAMES = (
    *("empty", "red", "green", "blue", "purple", "yellow"),
    *("grey", "black", "orange", "white", "brown", "pink"),
)
GOAL_NAMES = (
    *(
        "Empty",
        "AgentHold",
        "AgentOnTile",
        "AgentNear",
        "TileNear",
        "TileOnPosition",
        "AgentOnPosition",
    ),
    *("TileNearUp", "TileNearRight", "TileNearDown", "TileNearLeft"),
    *("AgentNearUp", "AgentNearRight", "AgentNearDown", "AgentNearLeft"),
)
RULE_NAMES = (
    *("Empty", "AgentHold", "AgentNear", "TileNear"),
    *("TileNearUp", "TileNearRight", "TileNearDown", "TileNearLeft"),
    *("AgentNearUp", "AgentNearRight", "AgentNearDown", "AgentNearLeft"),
)

Tile = tuple[int, int]  # tile, color
OBJECTS: tuple[Tile, ...] = tuple(
    (TILE_NAMES.index(tile), COLOR_NAMES.index(color))
    for tile in ("ball", "square", "pyramid", "key", "star", "hex")
    for color in (
        "red",
        "green",
        "blue",
        "purple",
        "yellow",
        "grey",
        "white",
        "brown",
        "pink",
        "orange",
    )
)
FLOOR: Tile = TILE_NAMES.index("floor"), COLOR_NAMES.index("black")

# Kinds that both goals and rules may have.
CLAUSE_KINDS = {"basic": ("AgentHold", "AgentNear", "TileNear"), "all": RULE_NAMES[1:]}

_PHRASE_TEMPLATES = {
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
_OPPOSITE_KINDS = {"TileNearUp": "TileNearDown", "TileNearRight": "TileNearLeft"}
_OPPOSITE_KINDS |= {other: kind for kind, other in _OPPOSITE_KINDS.items()}
# Consecutive draws without a new ruleset after which the recipe is considered exhausted.
_MAX_MISSES = 100_000


class Rulesets(NamedTuple):
    """Rulesets in the encoding of xminigrid.

    Rules and tiles of zeros are padding, so that all rulesets have the same shapes.

    Attributes:
        goals: Encoded goal of each of N rulesets, uint8 `[N, 5]`.
        rules: Encoded rules, up to R per ruleset, uint8 `[N, R, 7]`.
        init_tiles: Tile and color of the initial objects, up to M per ruleset, uint8 `[N, M, 2]`.
    """

    goals: np.ndarray
    rules: np.ndarray
    init_tiles: np.ndarray

    @property
    def num_rulesets(self) -> int:
        return len(self.goals)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings of the ruleset generator.

    For example, `Recipe(chain_depth=1, single_branch=True)` has exactly one rule. It makes the
    object of the goal, or one of its two objects.

    Attributes:
        chain_depth: Number of levels of rules between the goal and the initial objects.
        sample_depth: Whether the depth of each ruleset is uniform from 0 to `chain_depth`.
        single_branch: Whether each level has a single rule instead of one rule for each object of
            the level above.
        prune_probability: Probability that an object is present at the start instead of being made
            by a rule of the next level.
        distractor_rules: Number of rules that do not make a needed object.
        sample_distractor_rules: Whether the number of distractor rules of each ruleset is uniform
            from 0 to `distractor_rules`.
        distractor_objects: Number of objects that neither the goal nor its rules need.
        goals: Kinds of goals, "basic" or "all". The latter adds goals with a direction.
        rules: Kinds of rules, "basic" or "all".

    Raises:
        UsageError: If a value is invalid, or a ruleset might need more objects than exist.
    """

    chain_depth: int = 0
    sample_depth: bool = False
    single_branch: bool = False
    prune_probability: float = 0.0
    distractor_rules: int = 0
    sample_distractor_rules: bool = False
    distractor_objects: int = 0
    goals: str = "all"
    rules: str = "all"

    def __post_init__(self) -> None:
        for field in ("chain_depth", "distractor_rules", "distractor_objects"):
            if getattr(self, field) < 0:
                raise UsageError(
                    f"Recipe of rulesets: {field} ({getattr(self, field)}) must be at least 0."
                )
        if not 0 <= self.prune_probability <= 1:
            raise UsageError(
                f"Recipe of rulesets: prune_probability ({self.prune_probability}) must be between "
                "0 and 1."
            )
        for field in ("goals", "rules"):
            if getattr(self, field) not in CLAUSE_KINDS:
                raise UsageError(
                    f"Recipe of rulesets: {field} ({getattr(self, field)!r}) must be one of "
                    f"{', '.join(CLAUSE_KINDS)}."
                )
        # The depth is checked first, because powers of it may be huge.
        if self.chain_depth > len(OBJECTS) or sum(
            self._level_widths()
        ) + self.distractor_objects > len(OBJECTS):
            raise UsageError(
                f"Recipe of rulesets: chain_depth {self.chain_depth} with "
                f"{self.distractor_objects} distractor_objects may need more than the "
                f"{len(OBJECTS)} objects that exist. Lower "
                "either, or set single_branch."
            )

    def _level_widths(self) -> list[int]:
        """Return the maximum number of new objects per level of the production tree.

        The first level is the goal.
        """
        deeper = range(1, self.chain_depth + 1)
        return [2, *(2 if self.single_branch else 2 ** (level + 1) for level in deeper)]

    @property
    def max_rules(self) -> int:
        """Maximum number of rules in a ruleset, at least 1."""
        return max(1, sum(self._level_widths()[1:]) // 2 + self.distractor_rules)

    @property
    def max_tiles(self) -> int:
        """Maximum number of initial tiles in a ruleset."""
        leaves = self.chain_depth + 2 if self.single_branch else self._level_widths()[-1]
        return leaves + self.distractor_objects + 2 * self.distractor_rules


RECIPES = {
    "trivial": Recipe(distractor_objects=3),
    "small": Recipe(
        1,
        prune_probability=0.3,
        distractor_rules=2,
        sample_distractor_rules=True,
        distractor_objects=2,
    ),
    "medium": Recipe(
        2,
        prune_probability=0.1,
        distractor_rules=3,
        sample_distractor_rules=True,
        distractor_objects=2,
    ),
    "high": Recipe(
        3,
        prune_probability=0.1,
        distractor_rules=4,
        sample_distractor_rules=True,
        distractor_objects=1,
    ),
}


class _Clause(NamedTuple):
    """Goal or rule with its input objects. `output` is the object a rule makes, None for a goal."""

    kind: str
    inputs: tuple[Tile, ...]
    output: Tile | None = None

    def to_row(self) -> list[int]:
        kind_index = (
            GOAL_NAMES.index(self.kind) if self.output is None else RULE_NAMES.index(self.kind)
        )
        output = () if self.output is None else self.output
        return [kind_index, *(value for tile in self.inputs for value in tile), *output]


class _RulesetDraft(NamedTuple):
    goal: _Clause
    rules: list[_Clause]
    tiles: list[Tile]

    def identity(self) -> tuple[bytes, bytes]:
        """Return a hashable key that does not depend on the order of the initial objects."""
        clauses = bytes(number for clause in (self.goal, *self.rules) for number in clause.to_row())
        return clauses, bytes(number for tile in sorted(self.tiles) for number in tile)


def generate_rulesets(recipe: Recipe, num_rulesets: int, seed: int) -> Rulesets:
    """Generate different rulesets.

    The result is deterministic. A smaller `num_rulesets` gives a prefix of the same rulesets.

    Args:
        recipe: Settings of the generator.
        num_rulesets: Number of rulesets N.
        seed: Seed of the generator.

    Returns:
        Rulesets with rules `[N, recipe.max_rules, 7]` and tiles `[N, recipe.max_tiles, 2]`.

    Raises:
        UsageError: If `num_rulesets` or `seed` is invalid, or the recipe has fewer different
            rulesets.
    """
    if num_rulesets < 1 or seed < 0:
        raise UsageError(
            f"The number of rulesets ({num_rulesets}) must be at least 1, and the seed ({seed}) at "
            "least 0."
        )
    random = np.random.default_rng(seed)
    shapes = (
        (num_rulesets, 5),
        (num_rulesets, recipe.max_rules, 7),
        (num_rulesets, recipe.max_tiles, 2),
    )
    rulesets = Rulesets(*(np.zeros(shape, np.uint8) for shape in shapes))
    identities: set[tuple[bytes, bytes]] = set()
    num_repeats = 0
    while len(identities) < num_rulesets:
        draft = _sample_ruleset(recipe, random)
        identity = draft.identity()
        if identity not in identities:
            _write_ruleset(rulesets, len(identities), draft)
            identities.add(identity)
            num_repeats = 0
            continue
        num_repeats += 1
        if num_repeats == _MAX_MISSES:
            raise UsageError(
                f"The recipe gave {len(identities)} different rulesets, and {_MAX_MISSES} more "
                f"draws gave no new one, so {num_rulesets} rulesets are not available. Request at "
                f"most {len(identities)}, or "
                "choose a richer recipe."
            )
    return rulesets


def _write_ruleset(rulesets: Rulesets, index: int, draft: _RulesetDraft) -> None:
    goal = draft.goal.to_row()
    rulesets.goals[index, : len(goal)] = goal
    for position, rule in enumerate(draft.rules):
        row = rule.to_row()
        rulesets.rules[index, position, : len(row)] = row
    rulesets.init_tiles[index, : len(draft.tiles)] = draft.tiles


def _sample_ruleset(recipe: Recipe, random: np.random.Generator) -> _RulesetDraft:
    objects = (OBJECTS[i] for i in random.permutation(len(OBJECTS)))
    goal = _sample_clause(recipe.goals, objects, None, random)
    rules, tiles = _sample_rule_tree(recipe, goal, objects, random)
    tiles += [next(objects) for _ in range(recipe.distractor_objects)]
    used_tiles = {tile for clause in (goal, *rules) for tile in clause.inputs}
    num_distractors = recipe.distractor_rules
    distractors: list[_Clause] = []
    for _ in range(
        random.integers(num_distractors + 1) if recipe.sample_distractor_rules else num_distractors
    ):
        distractor = _sample_distractor(recipe, goal, rules, distractors, random)
        distractors.append(distractor)
        tiles += [
            tile for tile in distractor.inputs if tile not in used_tiles and tile not in tiles
        ]
    return _RulesetDraft(goal, rules + distractors, tiles)


def _sample_clause(
    kinds: str, objects: Iterator[Tile], output: Tile | None, random: np.random.Generator
) -> _Clause:
    """Sample a goal or rule whose inputs are the next one or two elements of `objects`."""
    kind = CLAUSE_KINDS[kinds][random.integers(len(CLAUSE_KINDS[kinds]))]
    # Sorted objects avoid clauses with the same meaning: TileNear is symmetric, and each direction
    # has an opposite kind.
    inputs = (
        sorted((next(objects), next(objects))) if kind.startswith("TileNear") else [next(objects)]
    )
    return _Clause(kind, tuple(inputs), output)


def _sample_rule_tree(
    recipe: Recipe, goal: _Clause, objects: Iterator[Tile], random: np.random.Generator
) -> tuple[list[_Clause], list[Tile]]:
    """Sample rules that produce the objects of the goal. Return the rules and initial objects."""
    rules: list[_Clause] = []
    leaves: list[Tile] = []
    level = list(goal.inputs)
    for _ in range(
        random.integers(recipe.chain_depth + 1) if recipe.sample_depth else recipe.chain_depth
    ):
        branch = random.integers(max(len(level), 1)) if recipe.single_branch else None
        next_level: list[Tile] = []
        for position, tile in enumerate(level):
            if branch not in (None, position) or random.random() < recipe.prune_probability:
                leaves.append(tile)
                continue
            rules.append(_sample_clause(recipe.rules, objects, tile, random))
            next_level += rules[-1].inputs
        level = next_level
    return rules, leaves + level


def _sample_distractor(
    recipe: Recipe,
    goal: _Clause,
    rules: list[_Clause],
    distractors: list[_Clause],
    random: np.random.Generator,
) -> _Clause:
    """Sample a distractor rule that produces no needed object and keeps the goal reachable."""
    used_tiles = {tile for clause in (goal, *rules) for tile in clause.inputs}
    while True:
        first, second = random.choice(len(OBJECTS), 2, replace=False)
        inputs = iter((OBJECTS[first], OBJECTS[second]))
        unused_tiles = [tile for tile in (*OBJECTS, FLOOR) if tile not in used_tiles]
        output = unused_tiles[random.integers(len(unused_tiles))]
        rule = _sample_clause(recipe.rules, inputs, output, random)
        if output not in rule.inputs and _is_avoidable(rule, goal, rules, distractors):
            return rule


def _is_avoidable(
    distractor: _Clause, goal: _Clause, rules: list[_Clause], distractors: list[_Clause]
) -> bool:
    """Return whether agents can prevent a distractor rule from consuming needed objects."""
    tree = (goal, *rules)
    consumers = [clause for clause in tree if set(clause.inputs) & set(distractor.inputs)]
    if not consumers:
        return True
    if distractor.kind.startswith("TileNear"):
        # It fires when one object is put next to the other. Only a clause with both requires this.
        return all(consumer.inputs != distractor.inputs for consumer in consumers)
    if distractor.kind.startswith("AgentNear"):
        # It fires when the agent walks by, which cannot always be avoided.
        return False
    # It fires when an object is picked up. This is not required if another object can be put next
    # to the object.
    (tile,), (consumer,) = distractor.inputs, consumers
    is_held = any(rule.output == tile and rule.kind == "AgentHold" for rule in rules)
    fixed = {tile for other in distractors if other.kind == "AgentHold" for tile in other.inputs}
    return (
        consumer.kind == "TileNear" and not is_held and not fixed & (set(consumer.inputs) - {tile})
    )


class RulesetSplit(NamedTuple):
    """Split of rulesets into three subsets with disjoint tasks.

    Attributes:
        train: Rulesets for training.
        validation: Rulesets for model selection.
        held_out: Rulesets for the final report.
    """

    train: Any
    validation: Any
    held_out: Any


def split_rulesets(
    rulesets: Rulesets, validation: float, held_out: float, seed: int
) -> RulesetSplit:
    """Split rulesets into three shuffled subsets with disjoint tasks.

    A task is a goal and a set of rules. Rulesets are the same task if they differ only in their
    initial objects, in the order of rules, or in an order of two tiles that has no meaning ("a near
    b"). The split is deterministic. The training subset depends only on the sum of the fractions.

    Args:
        rulesets: Rulesets to split.
        validation: Fraction of tasks for validation.
        held_out: Fraction of tasks for the final report.
        seed: Seed of the split.

    Returns:
        The subsets, each as `Rulesets`.

    Raises:
        UsageError: If a subset would be empty, or the seed is negative.
    """
    index_groups = split_indices(rulesets, validation, held_out, seed)
    return RulesetSplit(
        *(Rulesets(*(part[indices] for part in rulesets)) for indices in index_groups)
    )


def split_indices(
    rulesets: Rulesets, validation: float, held_out: float, seed: int
) -> RulesetSplit:
    """Return the indices of the rulesets in each subset of `split_rulesets`.

    Args:
        rulesets: Rulesets to split.
        validation: Fraction of tasks for validation.
        held_out: Fraction of tasks for the final report.
        seed: Seed of the split.

    Returns:
        The subsets, each as a vector of indices.

    Raises:
        UsageError: If a subset would be empty, or the seed is negative.
    """
    if seed < 0:
        raise UsageError(f"The seed of rulesets ({seed}) must be at least 0.")
    task = np.unique(task_ids(rulesets), axis=0, return_inverse=True)[1].reshape(-1)
    num_tasks, shares = int(task.max()) + 1, (held_out, validation + held_out)
    are_shares = all(0 < share < 1 for share in shares)  # False for NaN
    first, second = (round(share * num_tasks) for share in shares) if are_shares else (0, 0)
    if not 0 < first < second < num_tasks:
        raise UsageError(
            f"validation ({validation}) and held_out ({held_out}) must be shares of the "
            f"{num_tasks} different tasks of the rulesets that leave no part empty (train, "
            "validation, held-out). Pass other shares, such as 0.1 each, or more rulesets."
        )
    rank = np.random.default_rng(seed).permutation(num_tasks)[task]
    order = np.argsort(rank, kind="stable")
    held_out_end, validation_end = np.searchsorted(rank[order], (first, second))
    return RulesetSplit(
        order[validation_end:], order[held_out_end:validation_end], order[:held_out_end]
    )


def task_ids(rulesets: Rulesets) -> np.ndarray:
    """Return ids that are equal for rulesets of the same task.

    The id of an empty rule is 0. To compare rulesets with different R, insert zeros in front of the
    ids of the rules.

    Args:
        rulesets: N rulesets with up to R rules.

    Returns:
        Ids of the goal and of the sorted rules, uint64 `[N, 1 + R]`.
    """
    goals = _canonical_ids(rulesets.goals, GOAL_NAMES)[:, None]
    return np.concatenate(
        [goals, np.sort(_canonical_ids(rulesets.rules, RULE_NAMES), axis=1)], axis=1
    )


def count_shared_tasks(rulesets: Rulesets, other_rulesets: Rulesets) -> tuple[int, int]:
    """Count the tasks of `rulesets` that `other_rulesets` also contains.

    Different rulesets of the same task are counted once.

    Returns:
        The number of shared tasks, and the number of tasks in `rulesets`.
    """
    ids, other_ids = task_ids(rulesets), task_ids(other_rulesets)
    width = max(ids.shape[1], other_ids.shape[1])
    tasks, other_tasks = (
        {row.tobytes() for row in np.insert(part, [1] * (width - part.shape[1]), 0, axis=1)}
        for part in (ids, other_ids)
    )
    return len(tasks & other_tasks), len(tasks)


def _canonical_ids(rows: np.ndarray, kinds: tuple[str, ...]) -> np.ndarray:
    """Return ids, uint64 `[...]`, of encoded goals `[..., 5]` or rules `[..., 7]`.

    Goals or rules with the same meaning have the same id. The smaller of two tiles comes first,
    because TileNear is symmetric and each direction has an opposite.
    """
    swapped = [kinds.index(_OPPOSITE_KINDS.get(kind, kind)) for kind in kinds]
    rows = rows.astype(np.uint64)
    kind, first, second = (
        rows[..., 0],
        rows[..., 1] << 8 | rows[..., 2],
        rows[..., 3] << 8 | rows[..., 4],
    )
    is_swapped = np.isin(
        kind, [n for n, name in enumerate(kinds) if name.startswith("TileNear")]
    ) & (first > second)
    pair = np.where(is_swapped, second << 16 | first, first << 16 | second)
    ids = np.where(is_swapped, np.asarray(swapped, np.uint64)[kind], kind) << 32 | pair
    return ids if rows.shape[-1] == 5 else ids << 16 | rows[..., 5] << 8 | rows[..., 6]


def describe_ruleset(rulesets: Rulesets, index: int) -> str:
    """Describe a ruleset in words. The goal, each rule and the initial objects have one line each.

    Args:
        rulesets: Rulesets.
        index: Index of the ruleset.

    Returns:
        Text with several lines.

    Raises:
        UsageError: If the index is out of range.
    """
    if not 0 <= index < rulesets.num_rulesets:
        raise UsageError(
            f"The index of a ruleset ({index}) must be between 0 and {rulesets.num_rulesets - 1}."
        )
    kind, *arguments = rulesets.goals[index].tolist()
    lines = [f"goal: {_format_clause(GOAL_NAMES[kind], arguments)}"]
    for kind, *arguments in rulesets.rules[index].tolist():
        if kind:
            output = arguments[4:6] if RULE_NAMES[kind].startswith("TileNear") else arguments[2:4]
            lines.append(
                f"rule: {_format_clause(RULE_NAMES[kind], arguments)} -> {_format_tile(output)}"
            )
    tiles = [_format_tile(tile) for tile in rulesets.init_tiles[index].tolist() if tile[0]]
    return "\n".join([*lines, f"objects: {', '.join(tiles) or 'none'}"])


def _format_clause(kind: str, arguments: list[int]) -> str:
    """Describe a goal or the condition of a rule, given the encoded numbers after its kind."""
    if kind == "AgentOnPosition":
        return f"stand in row {arguments[0]}, column {arguments[1]}"
    if kind == "TileOnPosition":
        return (
            f"bring the {_format_tile(arguments[:2])} to row {arguments[2]}, column {arguments[3]}"
        )
    return _PHRASE_TEMPLATES[kind].format(_format_tile(arguments[:2]), _format_tile(arguments[2:4]))


def _format_tile(tile: list[int]) -> str:
    return "nothing" if tuple(tile) == FLOOR else f"{COLOR_NAMES[tile[1]]} {TILE_NAMES[tile[0]]}"
