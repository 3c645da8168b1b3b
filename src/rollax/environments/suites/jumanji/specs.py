"""Conversion of Jumanji specs, observations and actions."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jumanji.specs import Array, BoundedArray, Spec

from rollax.environments.suites.suite import SuiteEnvironment
from rollax.spaces import Box, Dict, Discrete, Grid, MultiDiscrete, SimpleActionSpace, Space
from rollax.types import Observation

ACTION_MASK, CLOCK_NAMES = "action_mask", ("step_count", "step")
# Boards of symbols, if there are more than two symbols.
_BOARD_NAMES = ("board", "grid", "puzzle", "cube", "ops_machine_ids")
_CATEGORY_NAMES = ("trajectory", "colors", "machines_job_ids", "node_types", "positions")
_PER_AGENT_NAMES = ("agents_view", "searcher_views", ACTION_MASK)
_MAX_CATEGORIES = 64
# -1 before the first visit, although the spec declares values from 0.
_UNSET_PART_NAME = "position"


class ObservationPart(NamedTuple):
    """Array in an observation, with its path in the Jumanji observation.

    Attributes:
        path: Names of the nested attributes in the Jumanji observation.
        space: Space of the array.
        low: Smallest symbol or category in Jumanji, which becomes 0.
        has_agent_axis: Whether the Jumanji array has a leading axis of agents.
    """

    path: tuple[str, ...]
    space: SimpleActionSpace | Grid
    low: int = 0
    has_agent_axis: bool = False

    @property
    def name(self) -> str:
        return "_".join(self.path)


class JumanjiSpaces(NamedTuple):
    """Spaces of a Jumanji environment, with data for the conversion of observations and actions.

    Attributes:
        parts: Arrays in an observation.
        action: Space of actions.
        joint_action_sizes: Number of values of each component that an action encodes. Empty if
            actions are not encoded.
        num_agents: Number of agents, or None without an agent axis.
        clock_scale: Number of steps that corresponds to a "step_count" of 1.
    """

    parts: tuple[ObservationPart, ...]
    action: SimpleActionSpace
    joint_action_sizes: tuple[int, ...]
    num_agents: int | None
    clock_scale: float

    @property
    def observation(self) -> Space:
        first, *others = self.parts
        return Dict({part.name: part.space for part in self.parts}) if others else first.space


def convert_specs(
    dynamics: SuiteEnvironment, has_agents: bool, largest_symbol: int | None, clock: float | None
) -> JumanjiSpaces:
    """Convert the specs of a Jumanji environment.

    Args:
        dynamics: Jumanji environment.
        has_agents: Whether the first axis of actions is an axis of agents.
        largest_symbol: Largest symbol on boards, if their specs do not declare it.
        clock: Maximum number of steps, which divides "step_count". If None, "step_count" is not
            scaled.

    Returns:
        The spaces.
    """
    action, joint, agents = _convert_action_spec(
        dynamics.action_spec, _mask_shape(dynamics.observation_spec), has_agents
    )
    parts = [
        _convert_part_spec(path, spec, agents is not None, largest_symbol)
        for path, spec in _flatten_spec(dynamics.observation_spec)
    ]

    def is_joint(part):
        return part.name == ACTION_MASK and joint

    flat = [
        part._replace(space=Box(0, 1, (int(np.prod(joint)),), "bool")) if is_joint(part) else part
        for part in parts
    ]
    if clock is None:
        flat = [
            part._replace(space=Box(0.0, np.inf, ())) if part.path[-1] in CLOCK_NAMES else part
            for part in flat
        ]
    return JumanjiSpaces(tuple(flat), action, joint, agents, clock or 1.0)


def _flatten_spec(spec: Spec, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Return a `(path, spec)` pair for each array in a nested spec."""
    if not spec._specs:
        return [(path, spec)]
    return [
        leaf for name, part in spec._specs.items() for leaf in _flatten_spec(part, (*path, name))
    ]


def _mask_shape(spec: Spec) -> Any:
    return next((leaf.shape for path, leaf in _flatten_spec(spec) if path == (ACTION_MASK,)), None)


def _convert_action_spec(
    spec: BoundedArray, mask: tuple[int, ...] | None, has_agents: bool
) -> tuple[SimpleActionSpace, tuple[int, ...], int | None]:
    """Return the action space, the joint action sizes, and the number of agents or None."""
    if has_agents:
        if np.issubdtype(spec.dtype, np.floating):
            return (
                Box(float(np.min(spec.minimum)), float(np.max(spec.maximum)), spec.shape[1:]),
                (),
                spec.shape[0],
            )
        return Discrete(int(np.max(spec.maximum)) + 1), (), spec.shape[0]
    if not spec.shape:
        return Discrete(int(spec.maximum) + 1), (), None
    sizes = tuple((np.broadcast_to(spec.maximum, spec.shape) + 1).tolist())
    if mask is None or mask == sizes:
        return Discrete(int(np.prod(sizes))), sizes, None
    return MultiDiscrete((mask[1],) * mask[0]), (), None  # each number has a separate mask


def _convert_part_spec(
    path: tuple[str, ...], spec: Array, has_agents: bool, largest_symbol: int | None
) -> ObservationPart:
    is_per_agent = has_agents and path[-1] in _PER_AGENT_NAMES
    shape = spec.shape[1:] if is_per_agent else spec.shape
    declared_bounds = _spec_bounds(spec)
    if path[-1] == ACTION_MASK:
        return ObservationPart(path, Box(0, 1, shape, "bool"), 0, is_per_agent)
    if path[-1] in CLOCK_NAMES:
        return ObservationPart(path, Box(0.0, 1.0, ()))
    if path[-1] in _BOARD_NAMES and np.issubdtype(spec.dtype, np.integer):
        low, high = (0, largest_symbol) if declared_bounds is None else declared_bounds
        if high is not None and high - low > 1:
            return ObservationPart(
                path, Grid((shape[0], math.prod(shape[1:])), (int(high - low) + 1,)), int(low)
            )
    if (
        declared_bounds is not None
        and np.issubdtype(spec.dtype, np.integer)
        and declared_bounds[1] - declared_bounds[0] < _MAX_CATEGORIES
    ):
        low = -1 if path[-1] == _UNSET_PART_NAME else int(declared_bounds[0])
        number = int(declared_bounds[1]) - low + 1
        if shape == ():
            return ObservationPart(path, Discrete(number), low)
        if path[-1] in _CATEGORY_NAMES:
            return ObservationPart(path, MultiDiscrete((number,) * shape[0]), low)
    if declared_bounds is None or path[-1] == "agents_view":
        return ObservationPart(path, Box(-np.inf, np.inf, shape), 0, is_per_agent)
    return ObservationPart(
        path, Box(float(declared_bounds[0]), float(declared_bounds[1]), shape), 0, is_per_agent
    )


def _spec_bounds(spec: Array) -> tuple[float, float] | None:
    """Return the bounds of all values of a bounded spec, or None for other specs."""
    if not isinstance(spec, BoundedArray):
        return None
    return np.min(np.asarray(spec.minimum)).item(), np.max(np.asarray(spec.maximum)).item()


def convert_observation(spaces: JumanjiSpaces, suite_obs: Observation, time: jax.Array) -> Any:
    """Convert a Jumanji observation.

    Args:
        spaces: Spaces of the environment.
        suite_obs: Jumanji observation.
        time: Number of steps taken.

    Returns:
        An observation in `spaces.observation`. In multi-agent environments, all arrays have a
        leading axis `[A]`.
    """
    values = {}
    for part in spaces.parts:
        value = _convert_part(part, _get_leaf(part, suite_obs), time / spaces.clock_scale)
        if spaces.num_agents is not None and not part.has_agent_axis:
            value = jnp.broadcast_to(value, (spaces.num_agents, *value.shape))
        values[part.name] = value
    return values if len(values) > 1 else values[spaces.parts[0].name]


def _get_leaf(part: ObservationPart, suite_obs: Observation) -> jax.Array:
    for name in part.path:
        suite_obs = getattr(suite_obs, name)
    return jnp.asarray(suite_obs)


def _convert_part(part: ObservationPart, value: jax.Array, share: jax.Array) -> jax.Array:
    if part.path[-1] in CLOCK_NAMES:
        return share.astype(jnp.float32)
    if part.name == ACTION_MASK:
        mask = (
            value.reshape(-1, *part.space.shape)
            if part.has_agent_axis
            else value.reshape(part.space.shape)
        )
        return mask | ~jnp.any(mask, axis=-1, keepdims=True)
    if isinstance(part.space, Grid):
        return (value - part.low).astype(jnp.uint8).reshape(part.space.shape)
    if isinstance(part.space, Discrete | MultiDiscrete):
        return (value - part.low).astype(jnp.int32)
    return value.astype(jnp.float32)


def convert_action(spaces: JumanjiSpaces, action: jax.Array) -> jax.Array:
    """Convert an action to a Jumanji action. Joint actions are split into their components."""
    if spaces.joint_action_sizes:
        return jnp.stack(jnp.unravel_index(action, spaces.joint_action_sizes)).astype(jnp.int32)
    return action.astype(spaces.action.dtype)
