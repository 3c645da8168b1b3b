"""The environments of XLand-MiniGrid, by their raw dynamics: no auto-reset, and ends told apart by the discount.

Observations are dictionaries: "view", what the agent sees, as a grid of symbols (tile and color of every cell) or as a
picture; and, as asked for, "direction" (an egocentric view does not tell it), "previous_action" and "previous_reward",
"goal" and "rules". What is put right on the way:

- a time limit truncates and a reached goal terminates; the suite's wrapper takes both for one;
- no action yet is a symbol of its own, where upstream's programs show "forward";
- tiles and colors are symbols for an embedding, not magnitudes;
- states have definite types, so that they can be scanned.

Tasks of the XLand environments come from rulesets: generated here (`rollax.environments.rulesets`), or from a file of them
that is on disk. Nothing is downloaded.
"""

import dataclasses
import functools
import importlib.metadata
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xminigrid
from xminigrid.core.constants import NUM_COLORS, NUM_TILES, TILES_REGISTRY
from xminigrid.core.goals import NUM_GOALS
from xminigrid.core.grid import free_tiles_mask
from xminigrid.types import RuleSet, StepType, TimeStep

from rollax.environments.convert import convert_all, leaf_types, with_types
from rollax.environments.core import Transition
from rollax.environments.suites.xminigrid import ruleset_files, rulesets
from rollax.environments.views import Recalling, Trials
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Discrete, Grid, Space

OBSERVATIONS = ("symbols", "image")
SPLITS = ("all", "train", "held-out")
EACH = ("episode", "environment")
SINGLE = {
    "observation": "symbols",
    "tile_size": 8,
    "direction": True,
    "previous": True,
    "view_size": 0,
    "max_steps": 0,
}
TASKS = {
    "show_task": False,
    "rulesets": "trivial",
    "num_rulesets": 1000,
    "ruleset_seed": 0,
    "recipe": (),
    "ruleset": -1,
    "ruleset_each": "episode",
    "split": "all",
    "held_out": 0.2,
}
_NUM_RULES = 12
_COORDINATES = 26  # grids are at most 25 x 25


class XMiniGrid(eqx.Module):
    """One environment of the suite. `tasks` are the rulesets that episodes draw from, `()` where the task is built in."""

    tasks: Any  # RuleSet with leaves [N, ...], or ()
    numbers: Any  # int32 [N], what the argument `ruleset` calls them by, or ()
    params: Any = eqx.field(static=True)  # the suite's EnvParams, without a ruleset of its own
    dynamics: Any = eqx.field(static=True)
    name: str = eqx.field(static=True)
    observation: str = eqx.field(static=True)
    tile_size: int = eqx.field(static=True)
    direction: bool = eqx.field(static=True)
    show_task: bool = eqx.field(static=True)
    keeps_task: bool = eqx.field(static=True)
    num_agents: None = eqx.field(static=True, default=None)

    @property
    def time_limit(self) -> int:
        return self.params.max_steps

    @property
    def action_space(self) -> Discrete:
        return Discrete(self.dynamics.num_actions(self.params))

    @property
    def observation_space(self) -> Dict:
        size = self.params.view_size
        parts: dict[str, Space] = {"view": Grid((size, size), (NUM_TILES, NUM_COLORS))}
        if self.observation == "image":
            parts["view"] = Box(0, 255, (size * self.tile_size, size * self.tile_size, 3), "uint8")
        if self.direction:
            parts["direction"] = Discrete(4)
        if self.show_task:
            number = self.tasks.rules.shape[1]
            parts["goal"] = Grid((1, 1), (NUM_GOALS, *[_COORDINATES] * 4))
            parts["rules"] = Grid((number, 1), (_NUM_RULES, *[NUM_TILES, NUM_COLORS] * 3))
        return Dict(parts)

    def describe(self, *numbers: int) -> str:
        """The rulesets of those numbers in words, or all that episodes draw from.

        Raises: UsageError for a number that is not among them, and where the task is built in.
        """
        if self.tasks == ():
            raise UsageError(f"{self.name}: its task is built in, so that there are no rulesets to describe.")
        places = {int(number): place for place, number in enumerate(np.asarray(self.numbers))}
        for number in numbers:
            if number not in places:
                raise UsageError(f"{self.name}: ruleset ({number}) is not among the {len(places)} that episodes draw from.")
        found = rulesets.Rulesets(*(np.asarray(part) for part in (self.tasks.goal, self.tasks.rules, self.tasks.init_tiles)))
        return "\n\n".join(f"ruleset {n}\n{rulesets.describe(found, places[n])}" for n in numbers or places)

    def sample_task(self, key: jax.Array) -> Any:
        """One of the rulesets, all as likely."""
        if self.tasks == ():
            return ()
        index = jax.random.randint(key, (), 0, self.tasks.goal.shape[0])
        return jax.tree.map(lambda x: x[index], self.tasks)

    def reset_task(self, key: jax.Array, task: Any) -> tuple[Any, Any]:
        """`(state, obs)` at the start of an episode of that ruleset."""
        params = self.params if task == () else self.params.replace(ruleset=task)
        first = self.dynamics.reset(params, key)
        if task == ():  # the suite's search through a rule that is empty takes most of a step
            first = first.replace(state=first.state.replace(rule_encoding=first.state.rule_encoding[:0]))
        # The types of a state as a step leaves it, which those of a reset are cast to.
        after = jax.eval_shape(lambda: self.dynamics.step(params, first, jnp.zeros((), jnp.int32)).state)
        state = with_types(first.state, leaf_types(after))
        return state, self._observation(state, first.observation)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """`(state, obs)` at the start of an episode, of a ruleset drawn for it."""
        task_key, start_key = jax.random.split(key)
        return self.reset_task(start_key, self.sample_task(task_key))

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """One step, without the suite's reset. A last step with discount 0 terminates, with discount 1 it is cut off."""
        del key  # the dynamics are deterministic
        before = TimeStep(state, StepType.MID, jnp.zeros(()), jnp.ones(()), None)  # pyright: ignore[reportArgumentType]
        after = self.dynamics.step(self.params, before, jnp.asarray(action, jnp.int32))
        last, terminated = after.last(), after.discount == 0
        state = with_types(after.state, leaf_types(state))
        return Transition(
            state=state,
            obs=self._observation(state, after.observation),
            reward=after.reward.astype(jnp.float32),
            terminated=last & terminated,
            truncated=last & ~terminated,
            info={},
        )

    def _observation(self, state: Any, view: jax.Array) -> dict[str, jax.Array]:
        view = view.astype(jnp.uint8)
        parts = {"view": view if self.observation == "symbols" else picture(view, self.tile_size)}
        if self.direction:
            parts["direction"] = state.agent.direction.astype(jnp.int32)
        if self.show_task:
            parts["goal"] = state.goal_encoding.astype(jnp.uint8)[None, None]
            parts["rules"] = state.rule_encoding.astype(jnp.uint8)[:, None]
        return parts


def make(name: str, arguments: dict[str, Any]) -> Any:
    """The environment of that name. Raises UsageError and UnknownNameError for arguments that do not fit."""
    env, given = _environment(f"xminigrid/{name}", name, arguments, defaults(name))
    return Recalling(env) if given["previous"] else env


def make_trials(name: str, arguments: dict[str, Any]) -> Any:
    """Trials of an XLand environment: several episodes of one ruleset. Raises as `make`."""
    env, given = _environment(f"rl2/{name}", name, arguments, trial_defaults(name))
    trials = Trials(env, given["episodes"])
    return Recalling(trials) if given["previous"] else trials


def defaults(name: str) -> dict[str, Any]:
    """The arguments of an environment: rulesets only where tasks are made of them."""
    return SINGLE | (TASKS if name.startswith("XLand") else {})


def trial_defaults(name: str) -> dict[str, Any]:
    """The arguments of trials: the episodes of a trial besides, and no ruleset of its own."""
    return {"episodes": 3, **defaults(name), "split": "train"}


arguments = defaults


def check_evaluation(id: str, training: dict[str, Any], given: dict[str, Any]) -> None:
    """Raises UsageError when evaluations are of tasks held out, by their arguments `given`, that training may draw."""
    split = training.get("split")
    if given.get("split") == "held-out" and split in ("all", "held-out"):
        raise UsageError(
            f"{id}: evaluations on held-out tasks say nothing when training draws them too, as with split {split}: train with "
            "split train, or do not call them held out (--eval-env.split all)."
        )


def _environment(id: str, name: str, arguments: dict[str, Any], wanted: dict[str, Any]) -> tuple[XMiniGrid, dict[str, Any]]:
    given = wanted | convert_all(id, arguments, wanted)
    for key, choices in (("observation", OBSERVATIONS), ("split", SPLITS), ("ruleset_each", EACH)):
        if key in given and given[key] not in choices:
            raise UsageError(f"{id}: {key} ({given[key]!r}) must be one of {', '.join(choices)}.")
    for key, low in (("tile_size", 3), ("view_size", 0), ("max_steps", 0)):
        if given[key] < low:
            raise UsageError(f"{id}: {key} ({given[key]}) must be at least {low}.")
    if given["view_size"] and given["view_size"] % 2 == 0:
        raise UsageError(f"{id}: view_size ({given['view_size']}) must be odd: the agent stands in its middle.")
    changes = {key: given[key] for key in ("view_size", "max_steps") if given[key]}
    # Concrete even inside a traced function, so that the constants may be kept and used again.
    with jax.ensure_compile_time_eval():
        dynamics, params = _dynamics(name)
        tasks, numbers = (), ()
        if name.startswith("XLand"):
            tasks, numbers = _tasks(id, given, "num_rulesets" in arguments)
            _check_room(id, dynamics, params, tasks.init_tiles.shape[1])
            changes["ruleset"] = None
        params = params.replace(**changes)
    shown = given["observation"], given["tile_size"], given["direction"], given.get("show_task", False)
    keeps_task = given.get("ruleset_each") == "environment"
    return XMiniGrid(tasks, numbers, params, dynamics, id, *shown, keeps_task), given


@functools.cache
def _dynamics(name: str) -> tuple[Any, Any]:
    """One object a name, so that making an environment twice does not compile it twice."""
    version = importlib.metadata.version("xminigrid")
    if tuple(map(int, version.split(".")[:2])) < (0, 9):
        raise UsageError(f'rollax needs xminigrid 0.9 or newer and found {version}: pip install --upgrade "xminigrid>=0.9"')
    return xminigrid.make(name)


def _tasks(id: str, given: dict[str, Any], is_numbered: bool) -> tuple[RuleSet, jax.Array]:
    """The rulesets that the arguments ask for, arrays `[N, ...]`, and their numbers. `is_numbered`: num_rulesets was given."""
    source, recipe, number, seed = (given[name] for name in ("rulesets", "recipe", "num_rulesets", "ruleset_seed"))
    asked: tuple[Any, ...]
    if source in rulesets.RECIPES:
        asked = source, _recipe(id, rulesets.RECIPES[source], recipe), number, seed, None
    else:
        asked = source, None, number if is_numbered else None, 0, ruleset_files.stamp(source)
        if recipe and asked[-1] is not None:
            raise UsageError(f"{id}: recipe ({recipe!r}) changes how rulesets are drawn: leave it out for those of a file.")
    found = _every(*asked)
    used = np.any(found.rules[..., 0] > 0, axis=0, keepdims=True)[0]
    used[0] |= given["show_task"]
    if not -1 <= given["ruleset"] < found.number:
        last = found.number - 1
        raise UsageError(f"{id}: ruleset ({given['ruleset']}) must be between 0 and {last}, or -1 to draw from them all.")
    if given["ruleset"] >= 0:
        chosen = np.asarray([given["ruleset"]])
    elif given["split"] == "all":
        chosen = np.arange(found.number)
    else:
        chosen = _sides(asked, given["held_out"], seed)[given["split"] == "held-out"]
    parts = (jnp.asarray(part[chosen], jnp.uint8) for part in (found.goals, found.rules[:, used], found.init_tiles))
    return RuleSet(*parts), jnp.asarray(chosen, jnp.int32)


@functools.lru_cache(maxsize=2)
def _every(source: str, recipe: Any, number: int | None, seed: int, stamp: Any) -> rulesets.Rulesets:
    """All rulesets of a recipe or a file, the first `number` where one is given. A run asks for the same ones several times."""
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
def _sides(asked: tuple[Any, ...], held_out: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the rulesets to train with, and of those held out, among `_every(*asked)`."""
    return rulesets.split_numbers(_every(*asked), held_out, seed)


def _trimmed(tiles: np.ndarray) -> np.ndarray:
    """Initial tiles `[N, M, 2]`, those that are there first, with no more places than the most that one ruleset uses."""
    is_empty = tiles[..., 0] == 0
    order = np.argsort(is_empty, axis=1, kind="stable")
    most = tiles.shape[1] - int(is_empty.sum(axis=1).min())
    return np.take_along_axis(tiles, order[..., None], axis=1)[:, :most]


def _check_room(id: str, dynamics: Any, params: Any, objects: int) -> None:
    """Raises UsageError for more objects than leave the agent a free cell: the suite would put it into a wall."""
    if objects < params.height * params.width // 3:  # of which every layout leaves more; to look at one takes a second
        return
    free = int(free_tiles_mask(dynamics.reset(params, jax.random.key(0)).state.grid).sum())
    if objects + 1 > free:
        raise UsageError(
            f"{id}: up to {objects} objects and the agent need {objects + 1} cells, and its grid has {free} free: take a "
            "larger grid, or rulesets with fewer objects (of a recipe: distractor_objects=0)."
        )


def _recipe(id: str, recipe: Any, changes: Any) -> Any:
    """A recipe with changes as texts or pairs: `chain_depth=1`, or `(("chain_depth", 1),)`."""
    given: dict[str, Any] = {}
    for change in [changes] if isinstance(changes, str) else changes:
        pair = change.split("=", 1) if isinstance(change, str) else change
        if len(pair) != 2:
            raise UsageError(f"{id}: recipe ({changes!r}) must be changes such as chain_depth=1 distractor_objects=0.")
        given[str(pair[0])] = pair[1]
    return dataclasses.replace(recipe, **convert_all(f"recipe of {id}", given, vars(recipe)))


@functools.cache
def _tile_pictures(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures `[tiles * colors, size, size, 3]` of every cell, empty and with the agent on it."""
    from xminigrid.rendering.rgb_render import render_tile

    cells = [tuple(int(n) for n in cell) for cell in np.asarray(TILES_REGISTRY).reshape(-1, 2)]
    draw = functools.partial(render_tile, highlight=False, tile_size=size)
    plain = np.stack([draw(tile=cell, agent_direction=None) for cell in cells])
    return plain, np.stack([draw(tile=cell, agent_direction=0) for cell in cells])


def picture(view: jax.Array, tile_size: int) -> jax.Array:
    """A view of symbols `[V, V, 2]` as a picture `[V * tile_size, V * tile_size, 3]`, with the agent in its place."""
    size = view.shape[0]
    plain, with_agent = _tile_pictures(tile_size)
    index = view[..., 0].astype(jnp.int32) * NUM_COLORS + view[..., 1]
    cells = jnp.asarray(plain, jnp.uint8)[index]
    cells = cells.at[size - 1, size // 2].set(jnp.asarray(with_agent, jnp.uint8)[index[size - 1, size // 2]])
    return cells.transpose(0, 2, 1, 3, 4).reshape(size * tile_size, size * tile_size, 3)
