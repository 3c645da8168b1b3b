"""Jumanji's specifications of nested observations and of actions, as spaces; and its observations and actions as theirs."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.spaces import ActionSpace, Box, Dict, Discrete, Grid, MultiDiscrete, Space

MASK, CLOCKS = "action_mask", ("step_count", "step")
_BOARDS = ("board", "grid", "puzzle", "cube", "ops_machine_ids")  # of symbols, where they have more than two
_CATEGORIES = ("trajectory", "colors", "machines_job_ids", "node_types", "positions")
_OF_EACH_AGENT = ("agents_view", "searcher_views", MASK)
_MOST_CATEGORIES = 64
_UNSET = "position"  # -1 before anything has been visited, though the specification begins with 0


class Part(NamedTuple):
    """One part of an observation."""

    path: tuple[str, ...]  # in Jumanji's
    space: ActionSpace | Grid
    low: int = 0  # what symbols and categories begin with there
    is_of_each: bool = False  # an axis of agents leads it

    @property
    def name(self) -> str:
        return "_".join(self.path)


class Spaces(NamedTuple):
    """How observations and actions are read."""

    parts: tuple[Part, ...]
    action: ActionSpace
    joint: tuple[int, ...]  # sizes of the numbers that one action stands for; () where it stands for itself
    num_agents: int | None
    clock: float  # steps that "step_count" is a share of

    @property
    def observation(self) -> Space:
        first, *others = self.parts
        return Dict({part.name: part.space for part in self.parts}) if others else first.space


def spaces_of(dynamics: Any, has_agents: bool, largest_symbol: int | None, clock: float | None) -> Spaces:
    """The spaces of an environment of Jumanji, with what it takes to read it.

    `largest_symbol`: of a board whose specification does not say. `clock`: the most steps, of which "step_count" is a share;
    None where they are not known, and it is their number.
    """
    action, joint, agents = _action(dynamics.action_spec, _mask_shape(dynamics.observation_spec), has_agents)
    found = [_part(path, spec, agents is not None, largest_symbol) for path, spec in _leaves(dynamics.observation_spec)]
    is_joint = lambda part: part.name == MASK and joint  # noqa: E731
    flat = [part._replace(space=Box(0, 1, (int(np.prod(joint)),), "bool")) if is_joint(part) else part for part in found]
    if clock is None:
        flat = [part._replace(space=Box(0.0, np.inf, ())) if part.path[-1] in CLOCKS else part for part in flat]
    return Spaces(tuple(flat), action, joint, agents, clock or 1.0)


def _leaves(spec: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """The specifications of arrays, by their path."""
    if not spec._specs:
        return [(path, spec)]
    return [leaf for name, part in spec._specs.items() for leaf in _leaves(part, (*path, name))]


def _mask_shape(spec: Any) -> Any:
    return next((leaf.shape for path, leaf in _leaves(spec) if path == (MASK,)), None)


def _action(spec: Any, mask: Any, has_agents: bool) -> tuple[ActionSpace, tuple[int, ...], int | None]:
    """The space of actions, the sizes of a joint one, and the number of agents."""
    if has_agents:
        if np.issubdtype(spec.dtype, np.floating):
            return Box(float(np.min(spec.minimum)), float(np.max(spec.maximum)), spec.shape[1:]), (), spec.shape[0]
        return Discrete(int(np.max(spec.maximum)) + 1), (), spec.shape[0]
    if not spec.shape:
        return Discrete(int(spec.maximum) + 1), (), None
    sizes = tuple((np.broadcast_to(spec.maximum, spec.shape) + 1).tolist())
    if mask is None or mask == sizes:
        return Discrete(int(np.prod(sizes))), sizes, None
    return MultiDiscrete((mask[1],) * mask[0]), (), None  # each number has a mask of its own


def _part(path: tuple[str, ...], spec: Any, has_agents: bool, largest_symbol: int | None) -> Part:
    is_of_each = has_agents and path[-1] in _OF_EACH_AGENT
    shape = spec.shape[1:] if is_of_each else spec.shape
    stated = _bounds(spec)
    if path[-1] == MASK:
        return Part(path, Box(0, 1, shape, "bool"), 0, is_of_each)
    if path[-1] in CLOCKS:
        return Part(path, Box(0.0, 1.0, ()))
    if path[-1] in _BOARDS and np.issubdtype(spec.dtype, np.integer):
        low, high = (0, largest_symbol) if stated is None else stated
        if high is not None and high - low > 1:
            return Part(path, Grid(_cells(shape), (int(high - low) + 1,)), int(low))
    if stated is not None and np.issubdtype(spec.dtype, np.integer) and stated[1] - stated[0] < _MOST_CATEGORIES:
        low = -1 if path[-1] == _UNSET else int(stated[0])
        number = int(stated[1]) - low + 1
        if shape == ():
            return Part(path, Discrete(number), low)
        if path[-1] in _CATEGORIES:
            return Part(path, MultiDiscrete((number,) * shape[0]), low)
    if stated is None or path[-1] == "agents_view":
        return Part(path, Box(-np.inf, np.inf, shape), 0, is_of_each)
    return Part(path, Box(float(stated[0]), float(stated[1]), shape), 0, is_of_each)


def _bounds(spec: Any) -> tuple[float, float] | None:
    """The least and the largest value of a bounded specification, of its type."""
    if type(spec).__name__ == "Array":
        return None
    return np.min(np.asarray(spec.minimum)).item(), np.max(np.asarray(spec.maximum)).item()


def _cells(shape: tuple[int, ...]) -> tuple[int, int]:
    return shape[0], int(np.prod(shape[1:]))


def observed(spaces: Spaces, raw: Any, time: jax.Array) -> Any:
    """Jumanji's observation as one of `spaces.observation`; with agents, all leads with `[A]`. `time`: steps so far."""
    values = {}
    for part in spaces.parts:
        value = _typed(part, _leaf(part, raw), time / spaces.clock)
        if spaces.num_agents is not None and not part.is_of_each:
            value = jnp.broadcast_to(value, (spaces.num_agents, *value.shape))
        values[part.name] = value
    return values if len(values) > 1 else values[spaces.parts[0].name]


def _leaf(part: Part, raw: Any) -> jax.Array:
    for name in part.path:
        raw = getattr(raw, name)
    return jnp.asarray(raw)


def _typed(part: Part, value: jax.Array, share: jax.Array) -> jax.Array:
    if part.path[-1] in CLOCKS:
        return share.astype(jnp.float32)
    if part.name == MASK:
        mask = value.reshape(-1, *part.space.shape) if part.is_of_each else value.reshape(part.space.shape)
        return mask | ~jnp.any(mask, axis=-1, keepdims=True)
    if isinstance(part.space, Grid):
        return (value - part.low).astype(jnp.uint8).reshape(part.space.shape)
    if isinstance(part.space, Discrete | MultiDiscrete):
        return (value - part.low).astype(jnp.int32)
    return value.astype(jnp.float32)


def joint_action(spaces: Spaces, action: jax.Array) -> jax.Array:
    """An action as Jumanji takes it."""
    if spaces.joint:
        return jnp.stack(jnp.unravel_index(action, spaces.joint)).astype(jnp.int32)
    return action.astype(spaces.action.dtype)
