"""Selection of rulesets for XLand environments, and a check that evaluations use unseen tasks."""

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from rollax.environments.conversion import convert_arguments
from rollax.environments.suites.xminigrid import ruleset_files, rulesets
from rollax.errors import UsageError
from rollax.types import Setting

SPLITS = ("all", "train", "validation", "held-out")
DEFAULT_TASK_ARGUMENTS = {
    "show_task": False,
    "rulesets": "trivial",
    "num_rulesets": 1000,
    "ruleset_seed": 0,
    "recipe": (),
    "ruleset": -1,
    "ruleset_each": "episode",
    "split": "all",
    "validation": 0.1,
    "held_out": 0.1,
}
_SOURCE_ARGUMENTS = (
    "rulesets",
    "recipe",
    "ruleset_seed",
)  # different values give different rulesets
_SPLIT_ARGUMENTS = (*_SOURCE_ARGUMENTS, "num_rulesets", "validation", "held_out")


class _RulesetSource(NamedTuple):
    """Arguments that determine all rulesets before the split.

    Attributes:
        name: Name of a recipe, or path of a file.
        recipe: Recipe that generates the rulesets, or None for a file.
        num_rulesets: Number of rulesets, or None for all rulesets of a file.
        seed: Seed of the generator.
        file_stamp: Result of `get_file_stamp`, which changes with the file, or None for a recipe.
    """

    name: str
    recipe: rulesets.Recipe | None
    num_rulesets: int | None
    seed: int
    file_stamp: tuple[str, int, int] | None


def select_rulesets(
    id: str, arguments: dict[str, Setting], has_num_rulesets: bool
) -> tuple[rulesets.Rulesets, np.ndarray]:
    """Select the rulesets that episodes sample from.

    Padding rows of rules that no ruleset uses are removed before the split, so that the training,
    validation and held-out rulesets have the same shapes.

    Args:
        id: Id of the environment, for error messages.
        arguments: Values of all arguments.
        has_num_rulesets: Whether `num_rulesets` was passed explicitly. If not, all rulesets of a
            file are used.

    Returns:
        The N selected rulesets, and their indices before the selection, int `[N]`.

    Raises:
        UsageError: If a value is invalid.
    """
    name, recipe, num_rulesets, seed = (
        arguments[key] for key in ("rulesets", "recipe", "num_rulesets", "ruleset_seed")
    )
    if arguments["split"] not in SPLITS:
        raise UsageError(
            f"{id}: split ({arguments['split']!r}) must be one of {', '.join(SPLITS)}."
        )
    if name in rulesets.RECIPES:
        changed = _apply_recipe_changes(id, rulesets.RECIPES[name], recipe)
        source = _RulesetSource(name, changed, num_rulesets, seed, None)
    else:
        stamp = ruleset_files.get_file_stamp(name)
        source = _RulesetSource(name, None, num_rulesets if has_num_rulesets else None, 0, stamp)
        if recipe and stamp is not None:
            raise UsageError(
                f"{id}: recipe ({recipe!r}) changes the generator of rulesets, which a file does "
                "not use. Remove it, or choose a recipe as rulesets."
            )
    all_rulesets = _load_all_rulesets(source)
    is_used = np.any(all_rulesets.rules[..., 0] > 0, axis=0)
    is_used[0] |= arguments["show_task"]  # observations have at least one row
    if not -1 <= arguments["ruleset"] < all_rulesets.num_rulesets:
        last = all_rulesets.num_rulesets - 1
        raise UsageError(
            f"{id}: ruleset ({arguments['ruleset']}) must be between 0 and {last}, or -1 to sample "
            "from all of them."
        )
    if arguments["ruleset"] >= 0:
        indices = np.asarray([arguments["ruleset"]])
    elif arguments["split"] == "all":
        indices = np.arange(all_rulesets.num_rulesets)
    else:
        parts = _split_indices(source, arguments["validation"], arguments["held_out"], seed)
        indices = parts[SPLITS[1:].index(arguments["split"])]
    return rulesets.Rulesets(
        all_rulesets.goals[indices],
        all_rulesets.rules[indices][:, is_used],
        all_rulesets.init_tiles[indices],
    ), indices


def check_disjoint_tasks(
    id: str, training: dict[str, Setting], changes: dict[str, Setting], defaults: dict[str, Setting]
) -> None:
    """Check that evaluations on unseen tasks do not use tasks of training.

    An evaluation counts as an evaluation on unseen tasks if its split is "validation" or
    "held-out", or if it uses other rulesets and `changes` does not contain a split. Evaluations of
    a single ruleset are not checked.

    Args:
        id: Id of the environment, for error messages.
        training: Arguments of training.
        changes: Arguments that evaluations change.
        defaults: Default values of all arguments.

    Raises:
        UsageError: If an evaluation on unseen tasks uses a task of training.
    """
    evaluation = training | changes
    trained, evaluated = (
        defaults | convert_arguments(id, arguments, defaults)
        for arguments in (training, evaluation)
    )
    has_other_tasks = (
        any(trained[name] != evaluated[name] for name in _SOURCE_ARGUMENTS)
        and "split" not in changes
    )
    if evaluated["ruleset"] >= 0 or not (
        has_other_tasks or evaluated["split"] in ("validation", "held-out")
    ):
        return
    is_one_split = (
        all(trained[name] == evaluated[name] for name in _SPLIT_ARGUMENTS)
        and trained["ruleset"] < 0
    )
    if is_one_split and len({"all", trained["split"], evaluated["split"]}) == 3:
        return
    evaluation_rulesets = select_rulesets(id, evaluated, "num_rulesets" in evaluation)[0]
    num_shared, num_tasks = rulesets.count_shared_tasks(
        evaluation_rulesets, select_rulesets(id, trained, "num_rulesets" in training)[0]
    )
    if num_shared:
        raise UsageError(
            f"{id}: evaluations ({_format_arguments(evaluated)}) claim tasks that training does "
            f"not sample, but {num_shared} of the {num_tasks} are among those of training "
            f"({_format_arguments(trained)}). Train with split train and evaluate with "
            "--eval-env.split validation or held-out of the same rulesets, or pass "
            "--eval-env.split all."
        )


def _format_arguments(arguments: dict[str, Setting]) -> str:
    return ", ".join(f"{name} {arguments[name]}" for name in ("split", "rulesets", "ruleset_seed"))


@functools.lru_cache(maxsize=2)
def _load_all_rulesets(source: _RulesetSource) -> rulesets.Rulesets:
    """Return all rulesets of a recipe, or the first `num_rulesets` rulesets of a file."""
    num_rulesets = source.num_rulesets
    if source.recipe is not None:
        loaded = rulesets.generate_rulesets(source.recipe, num_rulesets or 0, source.seed)
    else:
        loaded = ruleset_files.load_rulesets(source.name)
        if num_rulesets is not None and not 1 <= num_rulesets <= loaded.num_rulesets:
            raise UsageError(
                f"rulesets {source.name!r}: num_rulesets ({num_rulesets}) must be between 1 and "
                f"{loaded.num_rulesets}, "
                "the number of rulesets in the file."
            )
        loaded = rulesets.Rulesets(*(part[:num_rulesets] for part in loaded))
    # Unused tiles only cost time. They are removed before the split, so all parts have the same
    # shapes.
    return loaded._replace(init_tiles=_trim_tiles(loaded.init_tiles))


@functools.lru_cache(maxsize=2)
def _split_indices(
    source: _RulesetSource, validation: float, held_out: float, seed: int
) -> rulesets.RulesetSplit:
    """Split the rulesets of a source, and return the indices of each subset."""
    return rulesets.split_indices(_load_all_rulesets(source), validation, held_out, seed)


def _trim_tiles(tiles: np.ndarray) -> np.ndarray:
    """Move the padding in initial tiles `[N, M, 2]` to the end and remove unused columns."""
    is_empty = tiles[..., 0] == 0
    order = np.argsort(is_empty, axis=1, kind="stable")
    max_used = tiles.shape[1] - int(is_empty.sum(axis=1).min())
    return np.take_along_axis(tiles, order[..., None], axis=1)[:, :max_used]


def _apply_recipe_changes(id: str, recipe: rulesets.Recipe, changes: Setting) -> rulesets.Recipe:
    """Return a copy of a recipe with changed settings, for example `(("chain_depth", 1),)`.

    Changes can also be a string such as `chain_depth=1`.
    """
    values: dict[str, Any] = {}
    for change in [changes] if isinstance(changes, str) else changes:
        pair = change.split("=", 1) if isinstance(change, str) else change
        if len(pair) != 2:
            raise UsageError(
                f"{id}: recipe ({changes!r}) must be changes such as chain_depth=1 "
                "distractor_objects=0."
            )
        values[str(pair[0])] = pair[1]
    return dataclasses.replace(recipe, **convert_arguments(f"recipe of {id}", values, vars(recipe)))
