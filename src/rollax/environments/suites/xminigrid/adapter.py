"""Adapter of XLand-MiniGrid environments, without automatic resets.

Observations are dictionaries. "view" is the view of the agent: a grid of symbols (tile and color of
every cell) or an image. Arguments add the keys "direction" (which an egocentric view does not
show), "previous_action" and "previous_reward", "goal" and "rules". Differences from xminigrid:

- Episodes terminate when the goal is reached, and are truncated at the time limit. The wrapper of
  xminigrid does not distinguish the two cases.
- The absence of a previous action is a separate symbol. The training code of xminigrid uses
  "forward".
- Tiles and colors are symbols for an embedding, not magnitudes.
- States have fixed dtypes and can be scanned.

Tasks of the XLand environments are rulesets, either generated here (see `rulesets`) or loaded from
a file on disk. Nothing is downloaded.
"""

import functools
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

from rollax.environments.conversion import cast_leaves, convert_arguments, leaf_dtypes
from rollax.environments.environment import Transition
from rollax.environments.environment_text import format_environment, format_environment_html
from rollax.environments.suites import package_versions
from rollax.environments.suites.argument_checks import check_choices
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.environments.suites.xminigrid import ruleset_files, rulesets, task_sets
from rollax.environments.wrappers import PreviousActionReward, Trials
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Discrete, Grid, Space
from rollax.types import Action, Observation, PyTree, Setting, State, Task

OBSERVATIONS = ("symbols", "image")
RULESET_SCOPES = ("episode", "environment")
CHOICES = {"observation": OBSERVATIONS, "ruleset_each": RULESET_SCOPES, "split": task_sets.SPLITS}
BASE_ARGUMENTS = {
    "observation": "symbols",
    "tile_size": 8,
    "direction": True,
    "previous": True,
    "view_size": 0,
    "max_steps": 0,
}
_NUM_RULES = 12
_NUM_COORDINATES = 26  # grids are at most 25 x 25


class XMiniGrid(eqx.Module):
    """XLand-MiniGrid environment.

    Attributes:
        tasks: Rulesets that episodes sample from, with leaves `[N, ...]`, or () for a built-in
            task.
        numbers: Number of each ruleset, as in the argument `ruleset`, int32 `[N]`, or ().
        params: Parameters of the xminigrid environment, without a ruleset.
        dynamics: The xminigrid environment.
        name: Id of the environment.
        observation: Type of "view": "symbols" or "image".
        tile_size: Size of a cell in pixels.
        direction: Whether the direction of the agent is observed.
        show_task: Whether goal and rules are observed.
        keeps_task: Whether each copy of the environment keeps one ruleset for all its episodes.
        num_agents: None, for a single agent.
    """

    tasks: Any
    numbers: Any
    params: Any = eqx.field(static=True)
    dynamics: Any = eqx.field(static=True)
    name: str = eqx.field(static=True)
    observation: str = eqx.field(static=True)
    tile_size: int = eqx.field(static=True)
    direction: bool = eqx.field(static=True)
    show_task: bool = eqx.field(static=True)
    keeps_task: bool = eqx.field(static=True)
    num_agents: None = eqx.field(static=True, default=None)

    def __repr__(self) -> str:
        return format_environment(self)

    def _repr_html_(self) -> str:
        return format_environment_html(self)

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
            num_rules = self.tasks.rules.shape[1]
            parts["goal"] = Grid((1, 1), (NUM_GOALS, *[_NUM_COORDINATES] * 4))
            parts["rules"] = Grid((num_rules, 1), (_NUM_RULES, *[NUM_TILES, NUM_COLORS] * 3))
        return Dict(parts)

    @property
    def task_numbers(self) -> tuple[int, ...]:
        return () if self.tasks == () else tuple(np.asarray(self.numbers).tolist())

    def tasks_at(self, indices: jax.Array | np.ndarray) -> Any:
        """Return the rulesets at the given indices of `tasks`. Leaves have a leading axis `[N]`."""
        return jax.tree.map(lambda x: x[indices], self.tasks)

    def describe(self, *numbers: int) -> str:
        """Describe rulesets in words.

        Args:
            *numbers: Numbers of the rulesets. The default is all rulesets that episodes sample.

        Returns:
            Goal, rules and initial objects of each ruleset, one per line.

        Raises:
            UsageError: If a number does not exist, or the task is built in.
        """
        if self.tasks == ():
            raise UsageError(f"{self.name} has a built-in task, which has no rulesets to describe.")
        index_by_number = {
            int(number): index for index, number in enumerate(np.asarray(self.numbers))
        }
        for number in numbers:
            if number not in index_by_number:
                raise UsageError(
                    f"{self.name}: ruleset ({number}) is not among the {len(index_by_number)} that "
                    "episodes are sampled from."
                )
        task_rulesets = rulesets.Rulesets(
            *(
                np.asarray(part)
                for part in (self.tasks.goal, self.tasks.rules, self.tasks.init_tiles)
            )
        )
        return "\n\n".join(
            f"ruleset {n}\n{rulesets.describe_ruleset(task_rulesets, index_by_number[n])}"
            for n in numbers or index_by_number
        )

    def sample_task(self, key: jax.Array) -> Any:
        """Sample a ruleset uniformly. Built-in tasks return ()."""
        if self.tasks == ():
            return ()
        index = jax.random.randint(key, (), 0, self.tasks.goal.shape[0])
        return jax.tree.map(lambda x: x[index], self.tasks)

    def reset_task(self, key: jax.Array, task: Task) -> tuple[State, Observation]:
        """Return the state and the observation at the start of an episode with ruleset `task`."""
        params = self.params if task == () else self.params.replace(ruleset=task)
        first = self.dynamics.reset(params, key)
        if task == ():  # checking one empty rule would take most of the time of a step
            first = first.replace(
                state=first.state.replace(rule_encoding=first.state.rule_encoding[:0])
            )
        state = cast_leaves(first.state, _infer_state_dtypes(self.dynamics, params, first))
        return state, self._observe(state, first.observation)

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Sample a ruleset and return the state and the observation at the start of an episode."""
        task_key, start_key = jax.random.split(key)
        return self.reset_task(start_key, self.sample_task(task_key))

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        """Return the transition of one step.

        The last step of an episode terminates if its discount is 0, and truncates otherwise.
        """
        del key  # the dynamics are deterministic
        timestep = TimeStep(
            state,
            StepType.MID,
            jnp.zeros(()),
            jnp.ones(()),
            None,  # pyright: ignore[reportArgumentType]
        )
        next_timestep = self.dynamics.step(self.params, timestep, jnp.asarray(action, jnp.int32))
        is_last, terminated = next_timestep.last(), next_timestep.discount == 0
        state = cast_leaves(next_timestep.state, leaf_dtypes(state))
        return Transition(
            state=state,
            obs=self._observe(state, next_timestep.observation),
            reward=next_timestep.reward.astype(jnp.float32),
            terminated=is_last & terminated,
            truncated=is_last & ~terminated,
            info={},
        )

    def _observe(self, state: State, view: jax.Array) -> dict[str, jax.Array]:
        view = view.astype(jnp.uint8)
        parts = {
            "view": view if self.observation == "symbols" else render_view(view, self.tile_size)
        }
        if self.direction:
            parts["direction"] = state.agent.direction.astype(jnp.int32)
        if self.show_task:
            parts["goal"] = state.goal_encoding.astype(jnp.uint8)[None, None]
            parts["rules"] = state.rule_encoding.astype(jnp.uint8)[:, None]
        return parts


def make(name: str, arguments: dict[str, Setting]) -> Any:
    """Build an XLand-MiniGrid environment.

    Args:
        name: Name of the environment in xminigrid.
        arguments: Environment arguments (see `default_arguments`).

    Returns:
        The environment.

    Raises:
        UsageError: If xminigrid is too old or a value is invalid.
        UnknownNameError: If an argument does not exist.
    """
    env, values = _make_environment(f"xminigrid/{name}", name, arguments, default_arguments(name))
    return PreviousActionReward(env) if values["previous"] else env


def make_trials(name: str, arguments: dict[str, Setting]) -> Any:
    """Build an XLand environment whose episodes are trials.

    A trial consists of several inner episodes with the same ruleset.

    Args:
        name: Name of the environment in xminigrid.
        arguments: Environment arguments (see `default_trial_arguments`).

    Returns:
        The environment.

    Raises:
        UsageError: If xminigrid is too old or a value is invalid.
        UnknownNameError: If an argument does not exist.
    """
    env, values = _make_environment(f"rl2/{name}", name, arguments, default_trial_arguments(name))
    trials = Trials(env, values["episodes"])
    return PreviousActionReward(trials) if values["previous"] else trials


def default_arguments(name: str) -> dict[str, Any]:
    """Return the defaults of the arguments, keyed by name.

    Only XLand environments have arguments that select rulesets.
    """
    return BASE_ARGUMENTS | (task_sets.DEFAULT_TASK_ARGUMENTS if name.startswith("XLand") else {})


def default_trial_arguments(name: str) -> dict[str, Any]:
    """Return the defaults of the arguments of `make_trials`, keyed by name."""
    return {"episodes": 3, **default_arguments(name), "split": "train"}


resolve_arguments = ruleset_files.resolve_arguments


def check_evaluation(id: str, training: dict[str, Setting], changes: dict[str, Setting]) -> None:
    """Check that evaluations on unseen tasks do not use tasks of training.

    Args:
        id: Id of the environment.
        training: Arguments of training.
        changes: Arguments that evaluations change.

    Raises:
        UsageError: If an evaluation on unseen tasks uses a task of training.
    """
    name = id.split("/", 1)[1]
    if name.startswith("XLand"):
        task_sets.check_disjoint_tasks(
            id,
            training,
            changes,
            default_trial_arguments(name) if id.startswith("rl2/") else default_arguments(name),
        )


def _make_environment(
    id: str, name: str, arguments: dict[str, Setting], defaults: dict[str, Setting]
) -> tuple[XMiniGrid, dict[str, Any]]:
    values = defaults | convert_arguments(id, arguments, defaults)
    check_choices(id, values, {key: CHOICES[key] for key in ("observation", "ruleset_each")})
    for key, low in (("tile_size", 3), ("view_size", 0), ("max_steps", 0)):
        if values[key] < low:
            raise UsageError(f"{id}: {key} ({values[key]}) must be at least {low}.")
    if values["view_size"] and values["view_size"] % 2 == 0:
        raise UsageError(
            f"{id}: view_size ({values['view_size']}) must be odd, because the agent is in the "
            "middle."
        )
    changes = {key: values[key] for key in ("view_size", "max_steps") if values[key]}
    # Concrete values even inside a traced function, so that cached constants can be reused.
    with jax.ensure_compile_time_eval():
        dynamics, params = _make_dynamics(name)
        tasks, numbers = (), ()
        if name.startswith("XLand"):
            selected, selected_numbers = task_sets.select_rulesets(
                id, values, "num_rulesets" in arguments
            )
            tasks, numbers = (
                RuleSet(*(jnp.asarray(part, jnp.uint8) for part in selected)),
                jnp.asarray(selected_numbers, jnp.int32),
            )
            _check_free_cells(id, dynamics, params, tasks.init_tiles.shape[1])
            changes["ruleset"] = None
        params = params.replace(**changes)
    observation_settings = (
        values["observation"],
        values["tile_size"],
        values["direction"],
        values.get("show_task", False),
    )
    keeps_task = values.get("ruleset_each") == "environment"
    return XMiniGrid(
        tasks, numbers, params, dynamics, id, *observation_settings, keeps_task
    ), values


def _infer_state_dtypes(
    dynamics: SuiteEnvironment, params: PyTree, first: TimeStep
) -> tuple[str, ...]:
    """Return the dtypes of the leaves of a state after a step."""
    leaves, structure = jax.tree.flatten((params, first))
    types = [jax.typeof(leaf) for leaf in leaves]
    return _infer_dtypes_after_step(
        dynamics,
        structure,
        tuple(jax.ShapeDtypeStruct(t.shape, t.dtype, weak_type=t.weak_type) for t in types),
    )


@functools.cache
def _infer_dtypes_after_step(
    dynamics: SuiteEnvironment,
    structure: jax.tree_util.PyTreeDef,  # pyright: ignore[reportInvalidTypeForm]
    leaves: tuple[jax.ShapeDtypeStruct, ...],
) -> tuple[str, ...]:
    def step(params: PyTree, first: TimeStep) -> Any:
        return dynamics.step(params, first, jnp.zeros((), jnp.int32)).state

    return leaf_dtypes(jax.eval_shape(step, *structure.unflatten(leaves)))


@functools.cache
def _make_dynamics(name: str) -> tuple[Any, Any]:
    """Create an environment and its parameters, cached to share compilations."""
    package_versions.require_version("xminigrid", "0.9")
    return xminigrid.make(name)


def _check_free_cells(id: str, dynamics: SuiteEnvironment, params: PyTree, objects: int) -> None:
    """Raise UsageError if the objects and the agent do not fit into the free cells of the grid."""
    # Every layout has more free cells than this. Counting them takes a second.
    if objects < params.height * params.width // 3:
        return
    free = int(free_tiles_mask(dynamics.reset(params, jax.random.key(0)).state.grid).sum())
    if objects + 1 > free:
        raise UsageError(
            f"{id}: up to {objects} objects and the agent need {objects + 1} cells, but the grid "
            f"has {free} free. Use a larger grid, or rulesets with fewer objects (in a recipe: "
            "distractor_objects=0)."
        )


@functools.cache
def _render_tiles(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays of tile images: cells without the agent and cells with the agent.

    Each array has the shape `[tiles * colors, size, size, 3]`.
    """
    from xminigrid.rendering.rgb_render import render_tile

    cells = [tuple(int(n) for n in cell) for cell in np.asarray(TILES_REGISTRY).reshape(-1, 2)]
    draw = functools.partial(render_tile, highlight=False, tile_size=size)
    without_agent = np.stack([draw(tile=cell, agent_direction=None) for cell in cells])
    return without_agent, np.stack([draw(tile=cell, agent_direction=0) for cell in cells])


def render_view(view: jax.Array, tile_size: int) -> jax.Array:
    """Render a view of symbols as an image that includes the agent.

    Args:
        view: Tile and color of every cell `[V, V, 2]`.
        tile_size: Size of a cell in pixels.

    Returns:
        Image, uint8 `[V * tile_size, V * tile_size, 3]`.
    """
    size = view.shape[0]
    without_agent, with_agent = _render_tiles(tile_size)
    index = view[..., 0].astype(jnp.int32) * NUM_COLORS + view[..., 1]
    cells = jnp.asarray(without_agent, jnp.uint8)[index]
    cells = cells.at[size - 1, size // 2].set(
        jnp.asarray(with_agent, jnp.uint8)[index[size - 1, size // 2]]
    )
    return cells.transpose(0, 2, 1, 3, 4).reshape(size * tile_size, size * tile_size, 3)
