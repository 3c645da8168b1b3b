"""Adapter of NAVIX environments (4.0 or newer; Pignatelli et al. 2024, arXiv:2407.19396).

Episodes do not reset automatically. Observations are dictionaries. "view" is the NAVIX observation:
a grid of symbols (entity, color and state of every cell) or an image. It shows the whole world or
the seven by seven cells in front of the agent. "direction" is the direction that the agent faces.
Differences from NAVIX:

- In tasks with a mission, the observation has the key "mission": the entity and color of the
  objects in the mission. In NAVIX, agents do not observe the mission.
- In tasks with objects that agents can pick up, the observation has the key "pocket": the entity
  and color of the carried object. NAVIX views do not show it.
- Dropping an object does not count as walking. In NAVIX 4.0.0, `drop` in front of a goal, lava or a
  moving ball ends the episode as if the agent had walked into it.
- Symbols are categories for an embedding, not magnitudes.
- States have fixed dtypes, and contain images of tiles only if images are observed.

NAVIX views with one number per cell are not available, because walls are -1, which is outside of
the declared space.
"""

import functools
import importlib
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.conversion import (
    cast_leaves,
    check_no_tracers,
    convert_arguments,
    leaf_dtypes,
    to_positive_int,
)
from rollax.environments.environment import Transition
from rollax.environments.environment_text import format_environment, format_environment_html
from rollax.environments.suites import package_versions
from rollax.environments.suites.argument_checks import check_choices
from rollax.environments.suites.lazy_imports import defer_package_init
from rollax.environments.suites.output_capture import suppress_output
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Discrete, Grid, Space
from rollax.types import Action, Observation, PyTree, Setting, State

# The __init__ of the package imports agents, benchmarks and logging.
defer_package_init("navix")


def import_suite_module(module: str) -> Any:
    """Import a NAVIX module without its output, even while JAX traces a function."""
    with suppress_output(), jax.ensure_compile_time_eval():
        return importlib.import_module(f"navix.{module}")


# These three come first, because the other modules import them from the package.
observations, rewards, terminations = (
    import_suite_module("observations"),
    import_suite_module("rewards"),
    import_suite_module("terminations"),
)
actions, components, transitions = (
    import_suite_module("actions"),
    import_suite_module("components"),
    import_suite_module("transitions"),
)
environments = import_suite_module("environments")
registry, environment = (
    import_suite_module("environments.registry"),
    import_suite_module("environments.environment"),
)

SPRITES_FOLDER = import_suite_module("rendering.registry").SPRITES_DIR
OBSERVATIONS = ("symbolic", "symbolic_first_person", "rgb", "rgb_first_person")
OBSTACLES = ("wall", "lava")
CHOICES = {"observation": OBSERVATIONS, "obstacle_type": OBSTACLES}
# States are the states of doors and the directions of the agent.
NUM_ENTITIES, NUM_COLORS, NUM_STATES = (11, 6, 4)
_POSITIVE_ARGUMENTS = ("n_objects", "n_obstacles", "n_crossings", "num_rooms", "num_quarters")
# Sizes are part of the id. The other arguments do not concern the environment.
_EXCLUDED_ARGUMENTS = ("height", "width", "disable_autoreset", "gamma")
# Spaces hold arrays, which cannot be hashed.
_REMOVED_SPACES = dict.fromkeys(("observation_space", "action_space", "reward_space"))


class NavixState(NamedTuple):
    """State of an episode.

    Attributes:
        suite_state: NAVIX state without its random key. It contains images of tiles only if
            images are observed.
        time: Number of steps taken, int32 `[]`.
        mission: Entity and color of the M objects in the mission, uint8 `[1, M, 2]`.
    """

    suite_state: Any
    time: jax.Array
    mission: jax.Array


class Navix(eqx.Module):
    """NAVIX environment.

    Attributes:
        dynamics: NAVIX environment without its spaces and observation function.
        name: Id of the environment.
        observation: Name of the NAVIX observation function for "view".
        observation_space: Space of observations.
        state_dtypes: Dtypes of the leaves of a NAVIX state.
        num_agents: None, for a single agent.
    """

    dynamics: Any = eqx.field(static=True)
    name: str = eqx.field(static=True)
    observation: str = eqx.field(static=True)
    observation_space: Dict = eqx.field(static=True)
    state_dtypes: tuple[str, ...] = eqx.field(static=True)
    num_agents: None = eqx.field(static=True, default=None)

    def __repr__(self) -> str:
        return format_environment(self)

    def _repr_html_(self) -> str:
        return format_environment_html(self)

    @property
    def action_space(self) -> Discrete:
        return Discrete(len(self.dynamics.action_set))

    @property
    def time_limit(self) -> int:
        return self.dynamics.max_steps

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Return the state and the observation at the start of an episode."""
        suite_state, mission = _reset(self.dynamics, key)
        state = NavixState(self._normalize_state(suite_state), jnp.zeros((), jnp.int32), mission)
        return state, self._observe(state)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        """Return the transition of one step.

        At the time limit, the episode is truncated unless the task has terminated.
        """
        timestep = _step(
            self.dynamics,
            state.suite_state.replace(key=key),
            state.time,
            jnp.asarray(action, jnp.int32),
        )
        next_state = NavixState(
            self._normalize_state(timestep.state), state.time + 1, state.mission
        )
        return Transition(
            state=next_state,
            obs=self._observe(next_state),
            reward=jnp.asarray(timestep.reward, jnp.float32),
            terminated=timestep.is_termination(),
            truncated=timestep.is_truncation(),
            info={},
        )

    def _normalize_state(self, suite_state: State) -> Any:
        """Return a NAVIX state without the fields that are not stored, and with fixed dtypes."""
        return cast_leaves(_strip_state(suite_state, self.observation), self.state_dtypes)

    def _observe(self, state: NavixState) -> dict[str, jax.Array]:
        part_fns = {
            "view": lambda: getattr(observations, self.observation)(state.suite_state),
            "direction": lambda: (
                state.suite_state.entities["player"].direction[0].astype(jnp.int32)
            ),
            "mission": lambda: state.mission,
            "pocket": lambda: carried_object(state.suite_state)[None, None],
        }
        return {part: part_fns[part]() for part in self.observation_space.spaces}


# Compiled because a step outside of jit would take seconds. Under jit, NAVIX also receives new
# dictionaries and may write into them.
@functools.partial(jax.jit, static_argnums=0)
def _reset(dynamics: SuiteEnvironment, key: jax.Array) -> tuple[Any, jax.Array]:
    state = dynamics.reset(key).state
    mission_objects = [_mission_object(state, target) for target in state.mission]
    return state, jnp.stack(mission_objects)[None] if mission_objects else jnp.zeros(
        (1, 0, 2), jnp.uint8
    )


@functools.partial(jax.jit, static_argnums=0)
def _step(dynamics: SuiteEnvironment, state: State, time: jax.Array, action: jax.Array) -> Any:
    zero = jnp.zeros((), jnp.int32)
    timestep = environment.Timestep(  # pyright: ignore[reportCallIssue]
        time, (), zero, jnp.zeros(()), zero, state
    )
    return dynamics._step(timestep, action)  # `step` of NAVIX resets automatically


def _strip_state(state: State, observation: str) -> Any:
    """Return a NAVIX state without its random key and without unused images of tiles."""
    return state.replace(key=None, cache=state.cache if observation.startswith("rgb") else None)


def _entity_symbols(entity: PyTree) -> jax.Array:
    """Return entity and color `[N, 2]` of all entities of one class."""
    colors = jnp.broadcast_to(getattr(entity, "colour", 0), entity.shape)
    return jnp.stack([jnp.broadcast_to(entity.tag, entity.shape), colors], axis=-1).astype(
        jnp.uint8
    )


def _select_entity(
    entities: Iterable[PyTree], is_chosen: Callable[[PyTree], jax.Array]
) -> jax.Array:
    """Return entity and color `[2]` of the first entity that `is_chosen` accepts, or zeros."""
    symbols = jnp.concatenate([_entity_symbols(entity) for entity in entities])
    chosen = jnp.concatenate(
        [jnp.broadcast_to(is_chosen(entity), entity.shape) for entity in entities]
    )
    return jnp.where(jnp.any(chosen), symbols[jnp.argmax(chosen)], 0).astype(jnp.uint8)


def _mission_object(state: State, target: PyTree) -> jax.Array:
    """Return entity and color `[2]` of the object at the position of a mission target."""
    return _select_entity(
        state.entities.values(), lambda entity: jnp.all(entity.position == target.position, axis=-1)
    )


def carried_object(state: State) -> jax.Array:
    """Return entity and color `[2]` of the object that the agent carries, or zeros."""
    pocket = state.entities["player"].pocket[0]

    def is_carried(entity: PyTree) -> jax.Array:
        is_off_grid = jnp.all(entity.position == components.DISCARD_PILE_COORDS, axis=-1)
        return (entity.id == pocket) & is_off_grid & (pocket != components.EMPTY_POCKET_ID)

    return _select_entity(_pickable_entities(state), is_carried)


@jax.jit
def grid_symbols(state: State) -> jax.Array:
    """Return entity, color and state `[H, W, 3]` of every cell of the world."""
    return observations.symbolic(state)


def _pickable_entities(state: State) -> list[Any]:
    return [entity for entity in state.entities.values() if isinstance(entity, components.Pickable)]


def make(name: str, arguments: dict[str, Setting]) -> Navix:
    """Build a NAVIX environment.

    Args:
        name: Name of the environment in NAVIX.
        arguments: Environment arguments (see `default_arguments`).

    Returns:
        The environment.

    Raises:
        UsageError: If NAVIX is too old or rejects the arguments, or a value is invalid.
        UnknownNameError: If an argument does not exist.
    """
    id, defaults = f"navix/{name}", default_arguments(name)
    values = defaults | convert_arguments(id, arguments, defaults)
    check_no_tracers(id, values)
    check_choices(id, values, CHOICES)
    for key in ("max_steps", *_POSITIVE_ARGUMENTS):
        if key in values:
            to_positive_int(id, key, values[key])
    observation = values.pop("observation")
    # Concrete values even inside a traced function, so that cached constants can be reused.
    with jax.ensure_compile_time_eval():
        return _build_environment(
            id, _make_dynamics(name, json.dumps(values, sort_keys=True)), observation
        )


@functools.cache
def default_arguments(name: str) -> dict[str, Any]:
    """Return the defaults of `observation` and of plain NAVIX attributes, keyed by name."""
    package_versions.require_version("navix", "4.0")
    attributes = vars(_make_dynamics(name, "{}"))
    defaults = {
        key: value
        for key, value in attributes.items()
        if isinstance(value, bool | int | float | str) and key not in _EXCLUDED_ARGUMENTS
    }
    return {"observation": "symbolic", **defaults}


@functools.cache
def _make_dynamics(name: str, arguments: str) -> Any:
    """Create a NAVIX environment from arguments in JSON, cached to share compilations."""
    values = json.loads(arguments)
    with suppress_output(), jax.ensure_compile_time_eval():
        dynamics = registry.make(name)
        action_set = tuple(
            drop_without_events if action is actions.drop else action
            for action in dynamics.action_set
        )
        return dynamics.replace(
            **values, **_REMOVED_SPACES, observation_fn=observations.none, action_set=action_set
        )


def drop_without_events(state: State) -> Any:
    """Apply the NAVIX action `drop` without the events for walking to the cell in front."""
    return actions.drop(state).replace(events=state.events)


def _build_environment(id: str, dynamics: SuiteEnvironment, observation: str) -> Navix:
    """Build the environment. Raise UsageError if NAVIX cannot create the world."""
    try:
        with jax.debug_key_reuse(False):
            state, view, mission = _infer_shapes(dynamics, observation)
    except (ValueError, TypeError, AssertionError, IndexError, ZeroDivisionError) as error:
        raise UsageError(
            f"{id} cannot be created with these arguments: {str(error) or 'NAVIX gives no reason'}."
        ) from error
    parts: dict[str, Space] = {"view": _view_space(observation, view), "direction": Discrete(4)}
    # The task Memory is to remember the target, so its mission must not be observed.
    if mission.shape[1] and type(dynamics).__name__ != "Memory":
        parts["mission"] = Grid(mission.shape[:2], (NUM_ENTITIES, NUM_COLORS))
    if _pickable_entities(state) and actions.pickup in dynamics.action_set:
        parts["pocket"] = Grid((1, 1), (NUM_ENTITIES, NUM_COLORS))
    return Navix(
        dynamics, id, observation, Dict(parts), leaf_dtypes(_strip_state(state, observation))
    )


@functools.cache
def _infer_shapes(dynamics: SuiteEnvironment, observation: str) -> tuple[Any, Any, Any]:
    """Return the shapes and dtypes of the state after a step, the observation and the mission."""

    def step(key: jax.Array) -> Any:
        state, mission = _reset(dynamics, key)
        next_state = _step(
            dynamics,
            jax.tree.map(jnp.asarray, state),
            jnp.zeros((), jnp.int32),
            jnp.zeros((), jnp.int32),
        ).state
        return next_state, getattr(observations, observation)(next_state), mission

    return jax.eval_shape(step, jax.eval_shape(lambda: jax.random.key(0)))


def _view_space(observation: str, view: jax.ShapeDtypeStruct) -> Space:
    if observation.startswith("rgb"):
        return Box(0, 255, view.shape, "uint8")
    return Grid(view.shape[:2], (NUM_ENTITIES, NUM_COLORS, NUM_STATES))
