"""Simulators of parallel environments of PettingZoo, with an agent axis.

Dictionaries keyed by agent become arrays `[A, ...]` in the order of `possible_agents`. An agent is
in the episode while `agents` contains it and it has neither terminated nor been truncated. Agents
that leave `agents` without a flag count as terminated. They may return later, with a new memory and
new value estimates. The episode of the simulator ends when no agent is left. Numbers in `info` are
averaged over the agents that report them.
"""

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np

from rollax.environments.environment import SpaceConversion
from rollax.environments.host_environment import SimulatorFaultError, to_flag, to_reward
from rollax.environments.suites.gymnasium import converters
from rollax.environments.suites.gymnasium.converters import ACTION_MASK, Layout
from rollax.environments.suites.gymnasium.simulator import (
    CheckSchedule,
    call_environment,
    find_info_names,
)
from rollax.environments.suites.gymnasium.validation import ObservationCheck
from rollax.environments.suites.pettingzoo.agent_spaces import (
    GLOBAL_STATE,
    AgentSpaces,
    AgentSpec,
    check_agents,
    check_names,
    check_result,
    convert_state,
    make_agent_spaces,
)
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Space, make_zeros
from rollax.types import Action, Observation

_NONE: Mapping[str, Any] = {}


class ParallelSettings(NamedTuple):
    """Settings of the conversion of a parallel environment.

    Attributes:
        name: Name of the environment, for messages.
        time_limit: Number of steps after which all agents are truncated, or None for no limit.
        has_global_state: Whether observations have a part "global_state".
        layout: Image layout (see `converters.convert_observation_space`).
        info_names: Names of numbers in `info` that evaluations report.
        has_info_masks: Whether `info` contains an action mask.
    """

    name: str
    time_limit: int | None
    has_global_state: bool
    layout: Layout
    info_names: tuple[str, ...] = ()
    has_info_masks: bool = False


class ParallelSimulator:
    """`MultiAgentSimulator` that wraps a parallel environment of PettingZoo."""

    def __init__(
        self,
        environment: SuiteEnvironment,
        settings: ParallelSettings,
        warned_parts: set[str] | None = None,
    ) -> None:
        """Wrap an environment.

        Args:
            environment: Parallel environment.
            settings: Settings of the conversion.
            warned_parts: See `ObservationCheck`.
        """
        self.environment, self.settings = environment, settings
        self.spaces = read_agent_spaces(environment, settings)
        self.is_strict = False  # whether the observations of every step are checked
        self.last_infos: Mapping[Hashable, Any] = {}
        self._schedule = CheckSchedule()
        self._names = [spec.name for spec in self.spaces.agents]
        self._index = {name: i for i, name in enumerate(self._names)}
        self._checks = [
            ObservationCheck(settings.name, spec.declared_spaces[0], warned_parts)
            for spec in self.spaces.agents
        ]
        number = len(self._names)
        self._num_steps = 0
        self._has_masks = [spec.has_mask_part for spec in self.spaces.agents]
        self._has_state: bool | None = None  # whether the environment has a method state()
        self._state: np.ndarray | None = None  # last result of state()
        self._active = np.zeros(number, bool)
        self._terminated, self._truncated = np.ones(number, bool), np.zeros(number, bool)

    @property
    def active(self) -> np.ndarray:
        return self._active

    def reset(self, seed: int | None) -> Any:
        result = self.environment.reset(seed=seed)
        if not isinstance(result, tuple) or len(result) != 2:
            raise SimulatorFaultError(
                "reset must return (observations, infos), as in PettingZoo 1.24 and newer."
            )
        self._num_steps = 0
        self._active = self._find_present()
        if not self._active.any():
            raise SimulatorFaultError(
                "agents must contain at least one agent after reset, got none. Fill it in reset."
            )
        # The flags of agents that have not joined yet.
        self._terminated, self._truncated = ~self._active, np.zeros_like(self._active)
        check_result("reset", result, self._names)
        return self._observe(*result, self._active, True)

    def step(
        self, action: Action
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Mapping[str, Any]]:
        was_active = self._active
        actions = {
            name: self.spaces.agents[index].to_action(_select_agent(action, index))
            for name, index in self._find_acting()
        }
        result = self.environment.step(actions)
        if not isinstance(result, tuple) or len(result) != 5:
            raise SimulatorFaultError(
                "step must return (observations, rewards, terminations, truncations, infos), as in "
                "PettingZoo 1.24 and newer."
            )
        observations, rewards, terminations, truncations, infos = result
        self._num_steps += 1
        is_checked = self._schedule.is_due(self.is_strict)
        if is_checked:
            check_result("step", result, self._names)
        present = self._find_present()
        self._update_flags(was_active, present, terminations, truncations)
        ended = self._terminated | self._truncated
        returned = ~was_active & present & ~_read_flags(self._names, terminations, truncations)
        self._active = (was_active & present & ~ended) | returned
        if self._num_steps == self.settings.time_limit:
            self._truncated = self._truncated | (self._active & was_active)
            self._active = np.zeros_like(self._active)
        reward = self._read_rewards(rewards, was_active, present)
        obs = self._observe(observations, infos, was_active | self._active, is_checked)
        info = {name: _average(infos, name) for name in self.settings.info_names}
        return obs, reward, self._terminated, self._truncated, info

    def frame(self) -> Any:
        return self.environment.render()

    def close(self) -> None:
        self.environment.close()

    def _find_acting(self) -> list[tuple[Hashable, int]]:
        """Return the names and indices of the agents whose actions the environment expects."""
        return [(name, self._index[name]) for name in self.environment.agents]

    def _find_present(self) -> np.ndarray:
        """Return whether each agent is in `agents`, bool `[A]`."""
        present = np.zeros(len(self._names), bool)
        for name in self.environment.agents:
            if name not in self._index:
                raise SimulatorFaultError(
                    f"agents must be a subset of possible_agents, got {name!r}. List all agents "
                    "that may join an episode in possible_agents."
                )
            present[self._index[name]] = True
        return present

    def _update_flags(
        self,
        was_active: np.ndarray,
        present: np.ndarray,
        terminations: Mapping[Hashable, Any],
        truncations: Mapping[Hashable, Any],
    ) -> None:
        """Set the flags of agents that were in the episode. The flags of other agents stay."""
        terminated, truncated = self._terminated.copy(), self._truncated.copy()
        for index in np.flatnonzero(was_active).tolist():
            name = self._names[index]
            terminated[index] = to_flag("terminated", terminations.get(name, False))
            truncated[index] = to_flag("truncated", truncations.get(name, False))
            truncated[index] &= not terminated[index]
            terminated[index] |= not present[index] and not truncated[index]
        self._terminated, self._truncated = terminated, truncated

    def _read_rewards(
        self, rewards: Mapping[Hashable, Any], was_active: np.ndarray, present: np.ndarray
    ) -> np.ndarray:
        """Return the rewards, float32 `[A]`. Agents that leave may lack a reward."""
        reward = np.zeros(len(self._names), np.float32)
        for index in np.flatnonzero(was_active).tolist():
            name = self._names[index]
            if name in rewards:
                reward[index] = to_reward(rewards[name])
            elif present[index]:
                raise SimulatorFaultError(
                    f"rewards must have an entry for each agent of the episode, got none for "
                    f"{name!r} at step {self._num_steps} of an episode. Return a float for it."
                )
        return reward

    def _observe(
        self,
        observations: Mapping[Hashable, Any],
        infos: Mapping[Hashable, Any],
        observed: np.ndarray,
        is_checked: bool,
    ) -> Any:
        """Return the observations of all agents, zeros for those that are not observed."""
        self.last_infos = infos
        parts = self.spaces.make_zeros()
        for index in np.flatnonzero(observed).tolist():
            name = self._names[index]
            if name in observations:
                mask = self._read_mask(index, observations[name], infos)
                if is_checked:
                    self._check(index, observations[name], mask)
                self._put(parts, index, observations[name], mask)
            elif self._active[index]:
                raise SimulatorFaultError(
                    f"observations must have an entry for each agent of the episode, got none for "
                    f"{name!r} at step {self._num_steps} of an episode. Return an observation for "
                    "it, or remove it from agents."
                )
        if self.settings.has_global_state:
            parts[GLOBAL_STATE] = self._read_global_state(parts)
        return parts["observation"] if list(parts) == ["observation"] else parts

    def _read_global_state(self, parts: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the global state for each agent, `[A, ...]`.

        This is `state()` of the environment if it has this method, and otherwise the observations
        of all agents, concatenated to one vector.
        """
        if self._has_state is None:
            self._has_state = _has_state(self.environment)
        if self._has_state:
            state = convert_state(np.asarray(self.environment.state()), self._state)
            self._state = state
        else:
            state = np.concatenate(
                [np.asarray(parts[name], np.float32).ravel() for name in self.spaces.parts]
            )
        return np.broadcast_to(state, (len(self._names), *state.shape))

    def _put(self, parts: dict[str, np.ndarray], index: int, obs: Observation, mask: Any) -> None:
        """Write the observation and the action mask of an agent into the rows of all agents."""
        for part, value in self.spaces.agents[index].to_parts(obs).items():
            if part != ACTION_MASK:
                put_padded(parts[part][index, ...], value)
        if mask is None:
            return
        row = parts[ACTION_MASK][index]
        legal = np.zeros_like(row)
        put_padded(legal, np.asarray(mask, bool))
        # The mask is not read after the end of the agent's episode, and may be empty then.
        if self._active[index] or legal.any():
            row[...] = legal

    def _read_mask(self, index: int, obs: Observation, infos: Mapping[Hashable, Any]) -> Any:
        """Return the action mask of an agent, or None if all of its actions are legal."""
        spec = self.spaces.agents[index]
        if spec.has_mask_part:
            return obs[ACTION_MASK]
        mask = (infos.get(spec.name) or _NONE).get(ACTION_MASK)
        if mask is None:
            if self._has_masks[index] and self._active[index]:
                raise SimulatorFaultError(
                    f"infos[{spec.name!r}] must have {ACTION_MASK!r} after every reset and step, "
                    f"as before, got none at step {self._num_steps} of an episode. Add it."
                )
            return None
        if self.spaces.own_actions is None or not self.settings.has_info_masks:
            raise SimulatorFaultError(
                f"infos must have {ACTION_MASK!r} after the first reset, or never, got it first at "
                f"step {self._num_steps} of an episode. Add it after reset too."
            )
        expected = self.spaces.own_actions[index].sum()
        if np.shape(mask) != (expected,):
            raise SimulatorFaultError(
                f"infos[{spec.name!r}][{ACTION_MASK!r}] must have one value for each of {expected} "
                f"actions, got the shape {np.shape(mask)}. Return an array of that length."
            )
        self._has_masks[index] = True
        return mask

    def _check(self, index: int, obs: Observation, mask: Any) -> None:
        """Check an observation. Raise SimulatorFaultError with the name of the agent."""
        spec = self.spaces.agents[index]
        try:
            self._checks[index](obs, None if spec.has_mask_part else mask)
        except SimulatorFaultError as error:
            raise SimulatorFaultError(f"{spec.name}: {error}") from error


def put_padded(row: np.ndarray, value: np.ndarray) -> None:
    """Write a value into a row whose last axis may be longer, with any leading batch axes."""
    if value.shape == row.shape:
        row[...] = value
    else:
        row[..., : value.shape[-1]] = value


def _select_agent(action: Action, index: int) -> Any:
    if isinstance(action, np.ndarray):
        return action[index]
    return jax.tree.map(lambda x: x[index], action)


def _read_flags(
    names: list[Hashable], terminations: Mapping[Hashable, Any], truncations: Mapping[Hashable, Any]
) -> np.ndarray:
    """Return whether each agent is reported as terminated or truncated, bool `[A]`."""
    return np.array(
        [bool(terminations.get(name, False) or truncations.get(name, False)) for name in names]
    )


def _average(infos: Mapping[Hashable, Any], name: str) -> float:
    """Return the mean of a number in the `info` of the agents that have it, NaN if none does."""
    values = []
    for info in infos.values():
        try:
            values.append(float(info[name]))
        except (KeyError, TypeError, ValueError):
            continue
    return math.fsum(values) / len(values) if values else math.nan


def _has_state(environment: SuiteEnvironment) -> bool:
    try:
        environment.state()
    except (NotImplementedError, AttributeError):
        return False
    return True


def read_agent_spaces(environment: SuiteEnvironment, settings: ParallelSettings) -> AgentSpaces:
    """Return the spaces of all agents of a parallel environment.

    Args:
        environment: Parallel environment.
        settings: Settings of the conversion.

    Raises:
        UsageError: If the environment does not declare its agents, or a space has no counterpart.
    """
    name = settings.name
    agents = list(getattr(environment, "possible_agents", None) or ())
    if not agents:
        raise UsageError(
            f"{name}: possible_agents must list all agents that may join an episode, got none. "
            "Set it in __init__."
        )
    check_names(name, agents)
    spaces = [
        (
            _read_space(environment, name, "observation_space", agent),
            _read_space(environment, name, "action_space", agent),
        )
        for agent in agents
    ]
    return make_agent_spaces(name, agents, spaces, settings.has_info_masks, settings.layout)


def _read_space(
    environment: SuiteEnvironment, name: str, method: str, agent: Hashable
) -> gymnasium.Space:
    """Return the observation or action space of an agent. Raise UsageError if it is not a space."""
    call = f"{method}({agent!r})"
    space = call_environment(name, call, lambda: getattr(environment, method)(agent))
    if not isinstance(space, gymnasium.Space):
        raise UsageError(
            f"{name}: {call} must return a space of gymnasium, got a {type(space).__name__}. "
            "Return one of gymnasium.spaces."
        )
    return space


class InspectedEnvironment(NamedTuple):
    """Spaces of a parallel environment, and settings that its first reset and step determine."""

    observation_space: Space
    spaces: AgentSpaces
    settings: ParallelSettings


def inspect_environment(
    environment: SuiteEnvironment,
    settings: ParallelSettings,
    warned_parts: set[str] | None = None,
) -> InspectedEnvironment:
    """Reset and step an environment once to detect its spaces and the contents of its `info`.

    Args:
        environment: Parallel environment.
        settings: Settings of the conversion. The result also has the names of the numbers in
            `info`, and whether it contains an action mask.
        warned_parts: See `ObservationCheck`.

    Returns:
        The spaces and the settings.

    Raises:
        UsageError: If a space has no counterpart, or the environment violates the API of
            PettingZoo.
    """
    name = settings.name
    spaces = read_agent_spaces(environment, settings)
    start = call_environment(name, "reset", lambda: environment.reset(seed=0))
    is_pair = isinstance(start, tuple) and len(start) == 2
    infos = start[1] if is_pair and isinstance(start[1], Mapping) else _NONE
    has_info_masks = not any(spec.has_mask_part for spec in spaces.agents) and any(
        (info or _NONE).get(ACTION_MASK) is not None for info in infos.values()
    )
    settings = settings._replace(has_info_masks=has_info_masks)
    simulator = ParallelSimulator(environment, settings, warned_parts)
    obs = _call_simulator(name, "reset", lambda: simulator.reset(0))
    action = make_example_action(simulator.spaces, obs)
    obs = _call_simulator(name, "step", lambda: simulator.step(action))[0]
    names = {key for info in simulator.last_infos.values() for key in find_info_names(info or {})}
    return InspectedEnvironment(
        observation_space=_find_observation_space(simulator, obs),
        spaces=simulator.spaces,
        settings=settings._replace(info_names=tuple(sorted({*names, *settings.info_names}))),
    )


def _call_simulator(name: str, method: str, function: Callable[[], Any]) -> Any:
    """Call a method of a simulator and convert its exceptions to UsageError."""

    def call() -> tuple[Any, SimulatorFaultError | None]:
        try:
            return function(), None
        except SimulatorFaultError as error:
            return None, error

    result, fault = call_environment(name, method, call)
    if fault is not None:
        raise UsageError(f"{name}, in its {method}: {fault}") from fault
    return result


def make_example_action(spaces: AgentSpaces, obs: Observation) -> Any:
    """Return a legal action of each agent, `[A, ...]`, for the observations `obs`."""
    if spaces.own_actions is not None and not isinstance(spaces.action_space, Box):
        return np.argmax(obs[ACTION_MASK], axis=-1).astype(np.int32)
    number = len(spaces.agents)
    return jax.tree.map(
        lambda x: np.zeros((number, *x.shape), x.dtype), make_zeros(spaces.action_space)
    )


def _find_observation_space(simulator: ParallelSimulator, obs: Observation) -> Space:
    """Return the observation space of one agent, with the global state if there is one."""
    space = simulator.spaces.observation_space
    if not simulator.settings.has_global_state:
        return space
    state = obs[GLOBAL_STATE][0]
    bounds = (0.0, 255.0) if state.dtype == np.uint8 else (-np.inf, np.inf)
    global_space = Box(*bounds, state.shape, state.dtype.name)
    parts = dict(space.spaces) if isinstance(space, Dict) else {"observation": space}
    return Dict({**parts, GLOBAL_STATE: global_space})


class DictionaryConversion(NamedTuple):
    """Conversion between dictionaries keyed by agent and arrays with an agent axis.

    Attributes:
        spaces: Spaces of all agents.
        has_info_masks: Whether `info` contains action masks. The observation of an agent is then a
            dictionary with the keys "observation" and "action_mask".
    """

    spaces: AgentSpaces
    has_info_masks: bool

    @property
    def agents(self) -> dict[Hashable, tuple[int, AgentSpec]]:
        """Index and conversion of each agent, keyed by name."""
        return {spec.name: (index, spec) for index, spec in enumerate(self.spaces.agents)}

    def to_observation(self, value: Any) -> Any:
        """Return observations `[A, ...]`, or `[B, A, ...]` for batches.

        Agents without an observation count as absent.

        Raises:
            UnknownNameError: If an agent does not exist.
            TypeError: If an observation has the wrong structure.
        """
        if not isinstance(value, Mapping) or not value:
            raise TypeError
        agents = self.agents
        check_agents("the observation", value, list(agents))
        converted = {agent: self._to_parts(agents[agent][1], x) for agent, x in value.items()}
        leading = self._find_leading_axes(converted)
        parts = self.spaces.make_zeros(leading)
        for agent, own_parts in converted.items():
            for part, array in own_parts.items():
                rows = np.moveaxis(parts[part], len(leading), 0)[agents[agent][0], ...]
                if part == ACTION_MASK:
                    rows[...] = False
                put_padded(rows, array)
        return parts["observation"] if list(parts) == ["observation"] else parts

    def to_action(self, action: Any, obs: Any) -> dict[Hashable, Any]:
        """Return the actions of the agents that have an observation, keyed by agent."""
        agents, zeros = self.agents, make_zeros(self.spaces.action_space)

        def convert(index: int, spec: AgentSpec) -> Any:
            return spec.to_actions(
                jax.tree.map(
                    lambda x, zero: np.asarray(x).take(index, np.ndim(x) - zero.ndim - 1),
                    action,
                    zeros,
                )
            )

        return {agent: convert(*agents[agent]) for agent in obs}

    def _to_parts(self, spec: AgentSpec, value: Any) -> dict[str, np.ndarray]:
        space = spec.declared_spaces[0]
        is_wrapped = self.has_info_masks and not isinstance(space, gymnasium.spaces.Dict)
        suite_obs = value["observation"] if is_wrapped else value
        converters.check_structure(space, suite_obs)
        parts = spec.to_parts(suite_obs)
        if self.has_info_masks:
            parts = {**parts, ACTION_MASK: np.asarray(value[ACTION_MASK], bool)}
        return parts

    def _find_leading_axes(
        self, converted: Mapping[Hashable, dict[str, np.ndarray]]
    ) -> tuple[int, ...]:
        """Return `(B,)` for batches of observations, otherwise `()`."""
        agent, parts = next(iter(converted.items()))
        part, space = next(iter(self.agents[agent][1].parts.items()))
        return parts[part].shape[: parts[part].ndim - len(space.shape)]


def make_space_conversion(inspected: InspectedEnvironment) -> SpaceConversion:
    """Return the conversion for `Policy.predict` (see `DictionaryConversion`)."""
    conversion = DictionaryConversion(inspected.spaces, inspected.settings.has_info_masks)
    agents = ", ".join(map(str, conversion.agents))
    description = f"{inspected.settings.name}: a dictionary with observations of {agents}"
    return converters.make_space_conversion(
        description, conversion.to_observation, conversion.to_action
    )
