"""Which rulesets an XLand environment draws its tasks from, by its arguments; and whether two environments share any."""

import dataclasses
import functools
from typing import Any

import numpy as np

from rollax.environments.convert import convert_all
from rollax.environments.suites.xminigrid import ruleset_files, rulesets
from rollax.errors import UsageError

SPLITS = ("all", "train", "validation", "held-out")
TASKS = {
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
_SOURCES = ("rulesets", "recipe", "ruleset_seed")  # whose other values are other rulesets
_SPLITTING = (*_SOURCES, "num_rulesets", "validation", "held_out")


def rulesets_of(id: str, given: dict[str, Any], is_numbered: bool) -> tuple[rulesets.Rulesets, np.ndarray]:
    """The rulesets that episodes draw from, and their numbers among all, int `[N]`. `is_numbered`: num_rulesets was given.

    Rows of rules that none of all rulesets uses are left out, so that all parts of a split have the same shapes.

    Raises: UsageError for arguments that do not fit.
    """
    source, recipe, number, seed = (given[name] for name in ("rulesets", "recipe", "num_rulesets", "ruleset_seed"))
    if given["split"] not in SPLITS:
        raise UsageError(f"{id}: split ({given['split']!r}) must be one of {', '.join(SPLITS)}.")
    asked: tuple[Any, ...]
    if source in rulesets.RECIPES:
        asked = source, _recipe(id, rulesets.RECIPES[source], recipe), number, seed, None
    else:
        asked = source, None, number if is_numbered else None, 0, ruleset_files.stamp(source)
        if recipe and asked[-1] is not None:
            raise UsageError(f"{id}: recipe ({recipe!r}) changes how rulesets are drawn: leave it out for those of a file.")
    found = _every(*asked)
    used = np.any(found.rules[..., 0] > 0, axis=0)
    used[0] |= given["show_task"]  # one row at least is shown
    if not -1 <= given["ruleset"] < found.number:
        last = found.number - 1
        raise UsageError(f"{id}: ruleset ({given['ruleset']}) must be between 0 and {last}, or -1 to draw from them all.")
    if given["ruleset"] >= 0:
        chosen = np.asarray([given["ruleset"]])
    elif given["split"] == "all":
        chosen = np.arange(found.number)
    else:
        parts = _parts(asked, given["validation"], given["held_out"], seed)
        chosen = parts[SPLITS[1:].index(given["split"])]
    return rulesets.Rulesets(found.goals[chosen], found.rules[chosen][:, used], found.init_tiles[chosen]), chosen


def check_disjoint(id: str, training: dict[str, Any], other: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Raises UsageError when evaluations claim tasks that training does not draw, and some of them are drawn.

    Evaluations have the arguments `other` over those of training. They claim other tasks by the split "validation" or
    "held-out", or by other rulesets where `other` names no split. One ruleset that is chosen by its number claims nothing.
    """
    evaluation = training | other
    trained, evaluated = (defaults | convert_all(id, given, defaults) for given in (training, evaluation))
    is_other = any(trained[name] != evaluated[name] for name in _SOURCES) and "split" not in other
    if evaluated["ruleset"] >= 0 or not (is_other or evaluated["split"] in ("validation", "held-out")):
        return
    is_one_split = all(trained[name] == evaluated[name] for name in _SPLITTING) and trained["ruleset"] < 0
    if is_one_split and len({"all", trained["split"], evaluated["split"]}) == 3:
        return
    ours = rulesets_of(id, evaluated, "num_rulesets" in evaluation)[0]
    shared, number = rulesets.shared_tasks(ours, rulesets_of(id, trained, "num_rulesets" in training)[0])
    if shared:
        raise UsageError(
            f"{id}: evaluations ({_words(evaluated)}) claim tasks that training does not draw, but {shared} of the {number} "
            f"are among those of training ({_words(trained)}): train with split train and evaluate with --eval-env.split "
            "validation or held-out of the same rulesets, or claim no other tasks with --eval-env.split all."
        )


def _words(given: dict[str, Any]) -> str:
    return ", ".join(f"{name} {given[name]}" for name in ("split", "rulesets", "ruleset_seed"))


@functools.lru_cache(maxsize=2)
def _every(source: str, recipe: Any, number: int | None, seed: int, stamp: Any) -> rulesets.Rulesets:
    """All rulesets of a recipe or a file, the first `number` where one is given. Kept, as a run asks for them several times."""
    del stamp  # of a file, which may be another one the next time
    if recipe is not None:
        found = rulesets.generate(recipe, number or 0, seed)
    else:
        found = ruleset_files.load(source)
        if number is not None and not 1 <= number <= found.number:
            raise UsageError(f"rulesets {source!r}: num_rulesets ({number}) must be between 1 and {found.number}, all it has.")
        found = rulesets.Rulesets(*(part[:number] for part in found))
    # Places that no ruleset fills only cost time. Before any split, so that both parts look alike.
    return found._replace(init_tiles=_trimmed(found.init_tiles))


@functools.lru_cache(maxsize=2)
def _parts(asked: tuple[Any, ...], validation: float, held_out: float, seed: int) -> rulesets.Split:
    """The numbers of the rulesets in each part of the split of `_every(*asked)`."""
    return rulesets.split_numbers(_every(*asked), validation, held_out, seed)


def _trimmed(tiles: np.ndarray) -> np.ndarray:
    """Initial tiles `[N, M, 2]`, those that are there first, with no more places than the most that one ruleset uses."""
    is_empty = tiles[..., 0] == 0
    order = np.argsort(is_empty, axis=1, kind="stable")
    most = tiles.shape[1] - int(is_empty.sum(axis=1).min())
    return np.take_along_axis(tiles, order[..., None], axis=1)[:, :most]


def _recipe(id: str, recipe: rulesets.Recipe, changes: Any) -> rulesets.Recipe:
    """A recipe with changes as texts or pairs: `chain_depth=1`, or `(("chain_depth", 1),)`."""
    given: dict[str, Any] = {}
    for change in [changes] if isinstance(changes, str) else changes:
        pair = change.split("=", 1) if isinstance(change, str) else change
        if len(pair) != 2:
            raise UsageError(f"{id}: recipe ({changes!r}) must be changes such as chain_depth=1 distractor_objects=0.")
        given[str(pair[0])] = pair[1]
    return dataclasses.replace(recipe, **convert_all(f"recipe of {id}", given, vars(recipe)))
