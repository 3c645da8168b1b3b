"""Common spaces of agents whose spaces differ.

All agents share the spaces of the largest agent, as in compiled environments: observations with one
axis are padded with zeros, and an "action_mask" excludes the actions that an agent does not have.
Agents are of the same type if their names differ only in the number at the end and their spaces are
equal, so parameters can be shared by type.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as theirs

from rollax.environments.host_environment import SimulatorFaultError
from rollax.environments.suites.gymnasium import converters
from rollax.environments.suites.gymnasium.converters import ACTION_MASK, ConvertFn, Layout
from rollax.errors import UnknownNameError, UsageError
from rollax.spaces import ActionSpace, Box, Dict, Discrete, MultiDiscrete, Space

GLOBAL_STATE = "global_state"
_RESULTS = {  # names of the values that each method returns
    "reset": ("observations", "infos"),
    "step": ("observations", "rewards", "terminations", "truncations", "infos"),
}


class AgentSpec(NamedTuple):
    """Conversion of the values of one agent.

    Attributes:
        name: Name of the agent in PettingZoo.
        type: Type of the agent.
        declared_spaces: Observation space and action space of gymnasium.
        parts: Converted observation space of each part, without the action mask.
        has_mask_part: Whether observations have a part "action_mask".
        to_parts: Function from observations, single or batched, to arrays, keyed by part.
        action_space: Converted action space.
        to_action: Function from an action to an action of gymnasium.
        to_actions: Function from an action or a batch to actions of gymnasium.
    """

    name: Hashable
    type: str
    declared_spaces: tuple[theirs.Space, theirs.Space]
    parts: dict[str, Any]
    has_mask_part: bool
    to_parts: Callable[[Any], dict[str, np.ndarray]]
    action_space: ActionSpace
    to_action: ConvertFn
    to_actions: ConvertFn


class AgentSpaces(NamedTuple):
    """Agents of an environment and their common spaces.

    Attributes:
        agents: Agents in the order of `possible_agents`.
        parts: Observation space of each part, common to all agents, keyed by the name of the part.
        action_space: Common action space.
        own_actions: Mask of the actions in each agent's original action space, bool `[A, ...]`, or
            None if observations have no action mask.
    """

    agents: tuple[AgentSpec, ...]
    parts: dict[str, Any]
    action_space: ActionSpace
    own_actions: np.ndarray | None

    @property
    def observation_space(self) -> Space:
        """Common observation space, with the action mask if there is one."""
        parts = dict(self.parts)
        if self.own_actions is not None:
            parts[ACTION_MASK] = Box(0.0, 1.0, self.own_actions.shape[1:], "bool")
        return parts["observation"] if list(parts) == ["observation"] else Dict(parts)

    def make_zeros(self, leading: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
        """Return observations `[*leading, A, ...]` of agents that are not in the episode."""
        shape = (*leading, len(self.agents))
        zeros = {
            name: np.zeros((*shape, *space.shape), space.dtype)
            for name, space in self.parts.items()
        }
        if self.own_actions is not None:
            zeros[ACTION_MASK] = np.broadcast_to(
                self.own_actions, (*leading, *self.own_actions.shape)
            ).copy()
        return zeros


def find_agent_type(name: Hashable) -> str:
    """Return the name of an agent without its number, or "agent" if it is only a number."""
    return re.sub(r"_?\d+$", "", str(name)) or "agent"


def check_names(name: str, agents: Sequence[Hashable]) -> None:
    """Raise UsageError if two agents of the environment `name` have the same name."""
    repeated = [agent for agent in agents if list(agents).count(agent) > 1]
    if repeated:
        raise UsageError(
            f"{name}: possible_agents must have different names, got {repeated[0]!r} "
            f"{len(repeated)} times. Rename one of them."
        )


def check_agents(kind: str, names: Iterable[Hashable], agents: Sequence[Hashable]) -> None:
    """Check that values belong to agents of the environment.

    Names such as "__all__" and "__common__" are ignored, because some libraries use them for values
    of the whole environment.

    Args:
        kind: Kind of the values, for messages.
        names: Names of the agents of the values.
        agents: Names of the agents of the environment.

    Raises:
        UnknownNameError: If the environment does not have an agent.
    """
    for name in names:
        if name not in agents and not str(name).startswith("__"):
            raise UnknownNameError(f"agent in {kind}", str(name), map(str, agents))


def check_result(method: str, result: tuple[Any, ...], agents: Sequence[Hashable]) -> None:
    """Check that the result of a method has values only for agents of the environment.

    Args:
        method: Name of the method, "reset" or "step".
        result: Dictionaries keyed by agent. Other values are ignored.
        agents: Names of the agents of the environment.

    Raises:
        SimulatorFaultError: If the environment does not have an agent.
    """
    for kind, values in zip(_RESULTS[method], result, strict=True):
        try:
            check_agents(kind, values if isinstance(values, Mapping) else (), agents)
        except UnknownNameError as error:
            raise SimulatorFaultError(
                f"{error} Return values only for agents of possible_agents."
            ) from error


def convert_state(state: np.ndarray, last: np.ndarray | None) -> np.ndarray:
    """Convert a global state to the dtype of observations.

    Args:
        state: Result of `state()` of an environment.
        last: Previous result, converted, or None for the first one.

    Raises:
        SimulatorFaultError: If the state is not numeric, or its shape or dtype has changed.
    """
    is_numeric = state.dtype.kind in "biuf"
    converted = state if state.dtype == np.uint8 or not is_numeric else state.astype(np.float32)
    expected = converted if last is None else last
    if not is_numeric or (converted.shape, converted.dtype) != (expected.shape, expected.dtype):
        raise SimulatorFaultError(
            f"state() must return an array of numbers with the shape {expected.shape} and the "
            f"dtype {expected.dtype} in every step, got {state.shape} and {state.dtype}. Return "
            "the same kind of array."
        )
    return converted


def make_agent_spaces(
    name: str,
    agents: Sequence[Hashable],
    declared_spaces: Sequence[tuple[theirs.Space, theirs.Space]],
    has_info_masks: bool,
    layout: Layout = None,
) -> AgentSpaces:
    """Return the common spaces of all agents.

    Args:
        name: Name of the environment, for messages.
        agents: Names of the agents.
        declared_spaces: Observation space and action space of each agent, of gymnasium.
        has_info_masks: Whether `info` contains an action mask.
        layout: Image layout (see `converters.convert_observation_space`).

    Returns:
        The agents and their common spaces.

    Raises:
        UsageError: If a space has no counterpart, or spaces cannot be padded to a common space.
    """
    types = _find_types(agents, declared_spaces)
    specs = tuple(
        _make_agent_spec(f"{name}, agent {agent}", agent, kind, spaces, layout)
        for agent, kind, spaces in zip(agents, types, declared_spaces, strict=True)
    )
    first = specs[0]
    for spec in specs:
        if list(spec.parts) != list(first.parts):
            raise UsageError(
                f"{name}: the observations of all agents must have the same parts, got "
                f"{', '.join(first.parts)} of {first.name} and {', '.join(spec.parts)} of "
                f"{spec.name}. Return the same keys for all agents."
            )
    parts = {
        part: _merge_spaces(name, f"observation space, part {part}", [x.parts[part] for x in specs])
        for part in first.parts
    }
    action_space = _merge_spaces(name, "action space", [x.action_space for x in specs])
    has_masks = has_info_masks or any(
        x.has_mask_part or x.action_space != action_space for x in specs
    )
    own_actions = _find_own_actions(name, specs, action_space) if has_masks else None
    return AgentSpaces(specs, parts, action_space, own_actions)


def _find_types(
    agents: Sequence[Hashable], declared_spaces: Sequence[tuple[theirs.Space, theirs.Space]]
) -> list[str]:
    """Return the type of each agent.

    If agents have the same name except for the number, but different spaces, the types after the
    first one have the suffix "_type2", "_type3", and so on.
    """
    spaces_by_name: dict[str, list[Any]] = {}
    types = []
    for agent, spaces in zip(agents, declared_spaces, strict=True):
        kind = find_agent_type(agent)
        known = spaces_by_name.setdefault(kind, [])
        if spaces not in known:
            known.append(spaces)
        index = known.index(spaces)
        types.append(f"{kind}_type{index + 1}" if index else kind)
    return types


def _make_agent_spec(
    name: str,
    agent: Hashable,
    kind: str,
    declared_spaces: tuple[theirs.Space, theirs.Space],
    layout: Layout,
) -> AgentSpec:
    space, arrange = converters.convert_observation_space(name, declared_spaces[0], layout)
    action_space, to_action = converters.convert_action_space(name, declared_spaces[1])
    parts = dict(space.spaces) if isinstance(space, Dict) else {"observation": space}
    has_mask = parts.pop(ACTION_MASK, None) is not None
    convert = converters.make_observation_converter(space, arrange)
    size = action_space.shape[0] if isinstance(action_space, Box) and action_space.shape else None

    def to_parts(value: Any) -> dict[str, np.ndarray]:
        converted = convert(value)
        return converted if isinstance(space, Dict) else {"observation": converted}

    def without_padding(value: Any) -> Any:
        return value if size is None else value[..., :size]

    to_actions = converters.make_batch_action_fn(name, declared_spaces[1])
    return AgentSpec(
        name=agent,
        type=kind,
        declared_spaces=declared_spaces,
        parts=parts,
        has_mask_part=has_mask,
        to_parts=to_parts,
        action_space=action_space,
        to_action=lambda value: to_action(without_padding(value)),
        to_actions=lambda value: to_actions(without_padding(value)),
    )


def _merge_spaces(name: str, label: str, spaces: Sequence[Any]) -> Any:
    """Return the smallest space that contains the padded values of all spaces.

    Raises:
        UsageError: If there is none.
    """
    first = spaces[0]
    if all(space == first for space in spaces):
        return first
    if label == "action space" and all(isinstance(space, Discrete) for space in spaces):
        return Discrete(max(space.n for space in spaces))
    if all(isinstance(x, Box) and len(x.shape) == 1 and x.dtype == first.dtype for x in spaces):
        size = max(space.shape[0] for space in spaces)
        low, high = (
            function([_pad_bound(getattr(space, bound), space.shape, size) for space in spaces])
            for function, bound in ((_min_bound, "low"), (_max_bound, "high"))
        )
        return Box(low, high, (size,), first.dtype)
    different = next(space for space in spaces if space != first)
    raise UsageError(
        f"{name}: the agents must have equal spaces, or Discrete actions, or boxes with one axis "
        f"that can be padded to the same length, got {first} and {different} ({label}). Convert "
        "them in the environment, for example with SuperSuit."
    )


def _pad_bound(bound: Any, shape: tuple[int, ...], size: int) -> np.ndarray:
    """Return a bound `[size]`. It is 0 in the padding, and repeated if it is the same for all."""
    if np.ndim(bound) == 0:
        return np.full(size, bound, np.float32)
    return np.pad(np.broadcast_to(bound, shape).astype(np.float32), (0, size - shape[0]))


def _min_bound(bounds: Sequence[np.ndarray]) -> Any:
    return converters.collapse_bounds(np.min(bounds, axis=0))


def _max_bound(bounds: Sequence[np.ndarray]) -> Any:
    return converters.collapse_bounds(np.max(bounds, axis=0))


def _find_own_actions(
    name: str, specs: Sequence[AgentSpec], action_space: ActionSpace
) -> np.ndarray:
    """Return a mask of the actions that each agent has, bool `[A, ...]`.

    Raises:
        UsageError: If such actions cannot be masked.
    """
    if isinstance(action_space, Discrete | Box):
        sizes = [_num_actions(spec.action_space) for spec in specs]
        return np.arange(_num_actions(action_space)) < np.array(sizes)[:, None]
    if isinstance(action_space, MultiDiscrete):
        sizes = np.asarray(action_space.sizes)
        own = np.arange(sizes.max()) < sizes[:, None]
        return np.broadcast_to(own, (len(specs), *own.shape)).copy()
    raise UsageError(
        f"{name}: an action_mask requires actions in a Discrete, MultiDiscrete or Box, got "
        f"{action_space}. Remove the mask."
    )


def _num_actions(space: Any) -> int:
    """Return the number of actions of a `Discrete`, or of dimensions of a `Box` with one axis."""
    return space.n if isinstance(space, Discrete) else space.shape[0]
