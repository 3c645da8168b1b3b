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
from rollax.environments.suites.xminigrid import ruleset_files, rulesets, task_sets
from rollax.environments.views import PreviousActionReward, Trials
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Discrete, Grid, Space

OBSERVATIONS = ("symbols", "image")
EACH = ("episode", "environment")
CHOICES = {"observation": OBSERVATIONS, "ruleset_each": EACH, "split": task_sets.SPLITS}
SINGLE = {
    "observation": "symbols",
    "tile_size": 8,
    "direction": True,
    "previous": True,
    "view_size": 0,
    "max_steps": 0,
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

    @property
    def task_numbers(self) -> tuple[int, ...]:
        return () if self.tasks == () else tuple(np.asarray(self.numbers).tolist())

    def tasks_at(self, places: Any) -> Any:
        """The rulesets at those places of `numbers`, leaves `[N, ...]`."""
        return jax.tree.map(lambda x: x[places], self.tasks)

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
        state = with_types(first.state, _state_types(self.dynamics, params, first))
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
    return PreviousActionReward(env) if given["previous"] else env


def make_trials(name: str, arguments: dict[str, Any]) -> Any:
    """Trials of an XLand environment: several episodes of one ruleset. Raises as `make`."""
    env, given = _environment(f"rl2/{name}", name, arguments, trial_defaults(name))
    trials = Trials(env, given["episodes"])
    return PreviousActionReward(trials) if given["previous"] else trials


def defaults(name: str) -> dict[str, Any]:
    """The arguments of an environment: rulesets only where tasks are made of them."""
    return SINGLE | (task_sets.TASKS if name.startswith("XLand") else {})


def trial_defaults(name: str) -> dict[str, Any]:
    """The arguments of trials: the episodes of a trial besides, and no ruleset of its own."""
    return {"episodes": 3, **defaults(name), "split": "train"}


arguments = defaults
resolve_arguments = ruleset_files.resolve_arguments


def check_evaluation(id: str, training: dict[str, Any], other: dict[str, Any]) -> None:
    """Raises UsageError when evaluations with the arguments `other` over those of training claim tasks that training draws."""
    name = id.split("/", 1)[1]
    if name.startswith("XLand"):
        task_sets.check_disjoint(id, training, other, trial_defaults(name) if id.startswith("rl2/") else defaults(name))


def _environment(id: str, name: str, arguments: dict[str, Any], wanted: dict[str, Any]) -> tuple[XMiniGrid, dict[str, Any]]:
    given = wanted | convert_all(id, arguments, wanted)
    for key in ("observation", "ruleset_each"):
        if key in given and given[key] not in CHOICES[key]:
            raise UsageError(f"{id}: {key} ({given[key]!r}) must be one of {', '.join(CHOICES[key])}.")
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
            found, chosen = task_sets.rulesets_of(id, given, "num_rulesets" in arguments)
            tasks, numbers = RuleSet(*(jnp.asarray(part, jnp.uint8) for part in found)), jnp.asarray(chosen, jnp.int32)
            _check_room(id, dynamics, params, tasks.init_tiles.shape[1])
            changes["ruleset"] = None
        params = params.replace(**changes)
    shown = given["observation"], given["tile_size"], given["direction"], given.get("show_task", False)
    keeps_task = given.get("ruleset_each") == "environment"
    return XMiniGrid(tasks, numbers, params, dynamics, id, *shown, keeps_task), given


def _state_types(dynamics: Any, params: Any, first: Any) -> tuple[str, ...]:
    """The types of a state as a step leaves it, which those of a reset are cast to."""
    leaves, structure = jax.tree.flatten((params, first))
    types = [jax.typeof(leaf) for leaf in leaves]
    return _types_after(
        dynamics, structure, tuple(jax.ShapeDtypeStruct(t.shape, t.dtype, weak_type=t.weak_type) for t in types)
    )


@functools.cache
def _types_after(dynamics: Any, structure: Any, leaves: tuple[jax.ShapeDtypeStruct, ...]) -> tuple[str, ...]:
    def step(params: Any, first: Any) -> Any:
        return dynamics.step(params, first, jnp.zeros((), jnp.int32)).state

    return leaf_types(jax.eval_shape(step, *structure.unflatten(leaves)))


@functools.cache
def _dynamics(name: str) -> tuple[Any, Any]:
    """One object a name, so that making an environment twice does not compile it twice."""
    version = importlib.metadata.version("xminigrid")
    if tuple(map(int, version.split(".")[:2])) < (0, 9):
        raise UsageError(f'rollax needs xminigrid 0.9 or newer and found {version}: pip install --upgrade "xminigrid>=0.9"')
    return xminigrid.make(name)


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
