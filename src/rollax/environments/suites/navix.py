"""The environments of NAVIX (4.0 or newer; Pignatelli et al. 2024, arXiv:2407.19396), by their raw dynamics: no auto-reset.

Observations are dictionaries: "view", what the suite shows, as a grid of symbols (entity, color and state of every cell) or as
a picture, of the whole world or of the seven by seven cells in front of the agent; "direction", where the agent faces. What is
put right on the way:

- "mission", entity and color of the objects that a task names, is observed where there is one: the suite keeps it in its
  state, where no agent can read it;
- "pocket", entity and color of what the agent carries, is observed where something can be picked up: the suite's views do not
  tell;
- dropping is not walking: before a goal, lava or a ball that moves, the suite's `drop` counts as walking into it (4.0.0), which
  ends the episode, before a goal with its reward;
- symbols are categories for an embedding, not magnitudes;
- states have definite types, and no pictures of tiles where none are observed.

The suite's views of one number a cell are not offered: walls are -1 in them, outside of the space that the suite states.
"""

import functools
import importlib
import importlib.metadata
import json
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer

from rollax.environments.convert import convert_all, leaf_types, step_limit, with_types
from rollax.environments.core import Transition
from rollax.environments.suites.later import without_their_own
from rollax.environments.suites.silence import silenced
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Discrete, Grid, Space

# The package itself imports agents, benchmarks and what they log with.
without_their_own("navix")


def suite(module: str) -> Any:
    """A module of the suite, with arrays that any trace may use."""
    with silenced(), jax.ensure_compile_time_eval():
        return importlib.import_module(f"navix.{module}")


# The first three before the others, which ask the package for them.
observations, rewards, terminations = suite("observations"), suite("rewards"), suite("terminations")
actions, components, transitions = suite("actions"), suite("components"), suite("transitions")
environments = suite("environments")
registry, environment = suite("environments.registry"), suite("environments.environment")

SPRITES = suite("rendering.registry").SPRITES_DIR
OBSERVATIONS = ("symbolic", "symbolic_first_person", "rgb", "rgb_first_person")
OBSTACLES = ("wall", "lava")
CHOICES = {"observation": OBSERVATIONS, "obstacle_type": OBSTACLES}
ENTITIES, COLORS, STATES = 11, 6, 4  # states are those of doors, and the agent's direction
_COUNTS = ("n_objects", "n_obstacles", "n_crossings", "num_rooms", "num_quarters")
_LEFT_OUT = ("height", "width", "disable_autoreset", "gamma")  # sizes are the ids'; the others are not the environment's
_SPACES = dict.fromkeys(("observation_space", "action_space", "reward_space"))  # hold arrays, which cannot be hashed


class NavixState(NamedTuple):
    raw: Any  # the suite's own State, without its key, and without pictures of tiles where none are observed
    time: jax.Array  # int32 []: steps taken
    mission: jax.Array  # uint8 [1, M, 2]: entity and color of the objects that the task names


class Navix(eqx.Module):
    """One environment of the suite."""

    dynamics: Any = eqx.field(static=True)  # the suite's, without spaces and with no observation of its own
    name: str = eqx.field(static=True)
    observation: str = eqx.field(static=True)
    observation_space: Dict = eqx.field(static=True)
    state_types: tuple[str, ...] = eqx.field(static=True)
    num_agents: None = eqx.field(static=True, default=None)

    @property
    def action_space(self) -> Discrete:
        return Discrete(len(self.dynamics.action_set))

    @property
    def time_limit(self) -> int:
        return self.dynamics.max_steps

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """`(state, obs)` at the start of an episode."""
        raw, mission = _reset(self.dynamics, key)
        state = NavixState(self._kept(raw), jnp.zeros((), jnp.int32), mission)
        return state, self._observed(state)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """One step. `truncated` is the time limit where the task did not end as well."""
        after = _step(self.dynamics, state.raw.replace(key=key), state.time, jnp.asarray(action, jnp.int32))
        following = NavixState(self._kept(after.state), state.time + 1, state.mission)
        return Transition(
            state=following,
            obs=self._observed(following),
            reward=jnp.asarray(after.reward, jnp.float32),
            terminated=after.is_termination(),
            truncated=after.is_truncation(),
            info={},
        )

    def _kept(self, raw: Any) -> Any:
        """What is kept of the suite's state, with definite types."""
        return with_types(_stripped(raw, self.observation), self.state_types)

    def _observed(self, state: NavixState) -> dict[str, jax.Array]:
        seen = {
            "view": lambda: getattr(observations, self.observation)(state.raw),
            "direction": lambda: state.raw.entities["player"].direction[0].astype(jnp.int32),
            "mission": lambda: state.mission,
            "pocket": lambda: carried(state.raw)[None, None],
        }
        return {part: seen[part]() for part in self.observation_space.spaces}


# Compiled also where a user steps by hand: operation by operation, one step takes seconds. And so the suite changes none of the
# dictionaries that it is given.
@functools.partial(jax.jit, static_argnums=0)
def _reset(dynamics: Any, key: jax.Array) -> tuple[Any, jax.Array]:
    raw = dynamics.reset(key).state
    named = [_named(raw, target) for target in raw.mission]
    return raw, jnp.stack(named)[None] if named else jnp.zeros((1, 0, 2), jnp.uint8)


@functools.partial(jax.jit, static_argnums=0)
def _step(dynamics: Any, raw: Any, time: jax.Array, action: jax.Array) -> Any:
    zero = jnp.zeros((), jnp.int32)
    before = environment.Timestep(time, (), zero, jnp.zeros(()), zero, raw)  # pyright: ignore[reportCallIssue]
    return dynamics._step(before, action)  # `step` of the suite resets


def _stripped(raw: Any, observation: str) -> Any:
    """The suite's state without the key, which comes with every step, and without pictures of tiles where none are observed."""
    return raw.replace(key=None, cache=raw.cache if observation.startswith("rgb") else None)


def _symbols(entity: Any) -> jax.Array:
    """Entity and color `[N, 2]` of all entities of one class."""
    colors = jnp.broadcast_to(getattr(entity, "colour", 0), entity.shape)
    return jnp.stack([jnp.broadcast_to(entity.tag, entity.shape), colors], axis=-1).astype(jnp.uint8)


def _chosen(entities: Any, is_chosen: Any) -> jax.Array:
    """Entity and color `[2]` of the one that `is_chosen(entity)` `[N]` holds for, 0 where there is none."""
    symbols = jnp.concatenate([_symbols(entity) for entity in entities])
    chosen = jnp.concatenate([jnp.broadcast_to(is_chosen(entity), entity.shape) for entity in entities])
    return jnp.where(jnp.any(chosen), symbols[jnp.argmax(chosen)], 0).astype(jnp.uint8)


def _named(raw: Any, target: Any) -> jax.Array:
    """Entity and color `[2]` of the object at the place that a mission names."""
    return _chosen(raw.entities.values(), lambda entity: jnp.all(entity.position == target.position, axis=-1))


def carried(raw: Any) -> jax.Array:
    """Entity and color `[2]` of what the agent carries, 0 where that is nothing."""
    pocket = raw.entities["player"].pocket[0]

    def is_carried(entity: Any) -> jax.Array:
        is_off_grid = jnp.all(entity.position == components.DISCARD_PILE_COORDS, axis=-1)
        return (entity.id == pocket) & is_off_grid & (pocket != components.EMPTY_POCKET_ID)

    return _chosen(_pickable(raw), is_carried)


@jax.jit
def symbols(raw: Any) -> jax.Array:
    """Entity, color and state `[H, W, 3]` of every cell of the world."""
    return observations.symbolic(raw)


def _pickable(raw: Any) -> list[Any]:
    return [entity for entity in raw.entities.values() if isinstance(entity, components.Pickable)]


def make(name: str, arguments: dict[str, Any]) -> Navix:
    """The environment of that name. Raises UsageError and UnknownNameError for arguments that do not fit."""
    id, defaults = f"navix/{name}", _defaults(name)
    given = defaults | convert_all(id, arguments, defaults)
    if any(isinstance(value, Tracer) for value in given.values()):
        raise UsageError(f"{id}: its arguments shape the program, so they must be plain values, not traced ones.")
    for key, words in CHOICES.items():
        if key in given and given[key] not in words:
            raise UsageError(f"{id}: {key} ({given[key]!r}) must be one of {', '.join(words)}.")
    for key in ("max_steps", *_COUNTS):
        if key in given:
            step_limit(id, key, given[key])
    observation = given.pop("observation")
    # Concrete even inside a traced function, so that the constants may be kept and used again.
    with jax.ensure_compile_time_eval():
        return _assembled(id, _dynamics(name, json.dumps(given, sort_keys=True)), observation)


def arguments(name: str) -> dict[str, Any]:
    """What is observed, and the plain values that the suite's environment is made of, with their defaults."""
    return _defaults(name)


@functools.cache
def _defaults(name: str) -> dict[str, Any]:
    version = importlib.metadata.version("navix")
    if int(version.split(".")[0]) < 4:
        raise UsageError(f'rollax needs navix 4.0 or newer and found {version}: pip install --upgrade "navix>=4"')
    plain = vars(_dynamics(name, "{}"))
    own = {key: value for key, value in plain.items() if isinstance(value, bool | int | float | str) and key not in _LEFT_OUT}
    return {"observation": "symbolic", **own}


@functools.cache
def _dynamics(name: str, given: str) -> Any:
    """One object for the same arguments (as JSON), so that making an environment twice does not compile it twice."""
    values = json.loads(given)
    with silenced(), jax.ensure_compile_time_eval():
        made = registry.make(name)
        action_set = tuple(drop if action is actions.drop else action for action in made.action_set)
        return made.replace(**values, **_SPACES, observation_fn=observations.none, action_set=action_set)


def drop(state: Any) -> Any:
    """The suite's, without the events of walking to where the item is put."""
    return actions.drop(state).replace(events=state.events)


def _assembled(id: str, dynamics: Any, observation: str) -> Navix:
    """The environment around an object of the suite's. Raises UsageError where the suite cannot make its world."""
    try:
        with jax.debug_key_reuse(False):
            raw, view, mission = _described(dynamics, observation)
    except (ValueError, TypeError, AssertionError, IndexError, ZeroDivisionError) as error:
        raise UsageError(f"{id} cannot be made with these arguments: {str(error) or 'the suite states no reason'}.") from error
    parts: dict[str, Space] = {"view": _view_space(observation, view), "direction": Discrete(4)}
    if mission.shape[1] and not _is_memory(dynamics):
        parts["mission"] = Grid(mission.shape[:2], (ENTITIES, COLORS))
    if _pickable(raw) and actions.pickup in dynamics.action_set:
        parts["pocket"] = Grid((1, 1), (ENTITIES, COLORS))
    return Navix(dynamics, id, observation, Dict(parts), leaf_types(_stripped(raw, observation)))


@functools.cache
def _described(dynamics: Any, observation: str) -> tuple[Any, Any, Any]:
    """Shapes of a state that a step has made, of a view of it and of a mission."""

    def step(key: jax.Array) -> Any:
        raw, mission = _reset(dynamics, key)
        after = _step(dynamics, jax.tree.map(jnp.asarray, raw), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)).state
        return after, getattr(observations, observation)(after), mission

    return jax.eval_shape(step, jax.eval_shape(lambda: jax.random.key(0)))


def _view_space(observation: str, view: Any) -> Space:
    if observation.startswith("rgb"):
        return Box(0, 255, view.shape, "uint8")
    return Grid(view.shape[:2], (ENTITIES, COLORS, STATES))


def _is_memory(dynamics: Any) -> bool:
    """Its mission is where to go, which is what has to be remembered."""
    return type(dynamics).__name__ == "Memory"
