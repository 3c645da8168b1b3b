"""Simulators that wrap gymnasium environments, with rollax spaces and time limits."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import gymnasium
import numpy as np

from rollax.environments.environment import SpaceConversion
from rollax.environments.host_environment import SimulatorFaultError, to_flag, to_reward
from rollax.environments.suites.gymnasium import converters
from rollax.environments.suites.gymnasium.converters import ACTION_MASK, Layout
from rollax.environments.suites.gymnasium.validation import ObservationCheck
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.errors import UsageError, describe_error
from rollax.spaces import ActionSpace, Box, Dict, Discrete, MultiDiscrete, Space
from rollax.types import Action, Leaf, Observation

NUM_INITIAL_CHECKS = 20  # number of initial steps whose observations are all checked
CHECK_INTERVAL = 1000  # later, one step in this many is checked, and every reset


T = TypeVar("T")


class DetectedSpaces(NamedTuple):
    """Spaces of an environment, and names of the scalars in `info` after the first step.

    `num_agents` is None, because gymnasium environments have one agent.
    """

    observation_space: Space
    action_space: ActionSpace
    info_names: tuple[str, ...]
    num_agents: None = None


class CheckSchedule:
    """Schedule of the steps whose observations are checked."""

    def __init__(self) -> None:
        # Number of checked steps, and number of steps until the next check.
        self._num_checked, self._num_until_check = 0, 0

    def is_due(self, is_strict: bool) -> bool:
        """Return whether to check the observation of the current step.

        Args:
            is_strict: Whether the observation of every step is checked.
        """
        if not is_strict and self._num_until_check:
            self._num_until_check -= 1
            return False
        self._num_checked += 1
        self._num_until_check = 0 if self._num_checked < NUM_INITIAL_CHECKS else CHECK_INTERVAL
        return True


class GymnasiumSimulator:
    """`Simulator` that wraps a gymnasium environment."""

    def __init__(
        self,
        environment: SuiteEnvironment,
        name: str,
        time_limit: int | None,
        has_masks: bool,
        layout: Layout = None,
        warned_parts: set[str] | None = None,
    ) -> None:
        """Wrap an environment.

        Args:
            environment: Gymnasium environment, without the wrappers TimeLimit, OrderEnforcing and
                PassiveEnvChecker.
            name: Name of the environment, for messages.
            time_limit: Number of steps after which an episode is truncated, or None for no limit.
            has_masks: Whether `info` contains an action mask.
            layout: Image layout (see `converters.convert_observation_space`).
            warned_parts: See `ObservationCheck`.
        """
        self.environment = environment
        self._time_limit, self._num_steps, self._has_masks = time_limit, 0, has_masks
        self._declared_spaces = environment.observation_space, environment.action_space
        self._convert_observation_fn = converters.make_observation_converter(
            *converters.convert_observation_space(name, environment.observation_space, layout)
        )
        self._check = ObservationCheck(name, environment.observation_space, warned_parts)
        self.is_strict = False  # whether the observation of every step is checked
        self._schedule = CheckSchedule()
        action_space, self._convert_action_fn = converters.convert_action_space(
            name, environment.action_space
        )
        self._num_actions = action_space.n if isinstance(action_space, Discrete) else 0
        has_mask_part = ACTION_MASK in (
            converters.flatten_space(name, self._declared_spaces[0]) or ()
        )
        self._can_gain_masks = bool(self._num_actions) and not has_masks and not has_mask_part

    def reset(self, seed: int | None) -> Any:
        obs, info = self.environment.reset(seed=seed)
        current_spaces = self.environment.observation_space, self.environment.action_space
        if current_spaces != self._declared_spaces:
            raise ValueError(
                f"Spaces must not change between episodes, got {current_spaces} after "
                f"{self._declared_spaces}. Declare one space for all episodes."
            )
        self._num_steps = 0
        return self._observe(obs, info, True, False)

    def step(self, action: Action) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        obs, reward, terminated, truncated, info = self.environment.step(
            self._convert_action_fn(action)
        )
        self._num_steps += 1
        terminated = to_flag("terminated", terminated)
        truncated = (
            to_flag("truncated", truncated) or self._num_steps == self._time_limit
        ) and not terminated
        is_checked = self._schedule.is_due(self.is_strict)
        return (
            self._observe(obs, info, is_checked, terminated or truncated),
            reward,
            terminated,
            truncated,
            info,
        )

    def frame(self) -> Any:
        return self.environment.render()

    def close(self) -> None:
        self.environment.close()

    def _observe(
        self, obs: Observation, info: Mapping[str, Leaf], is_checked: bool, is_last: bool
    ) -> Any:
        mask = self._read_action_mask(info, is_last) if self._has_masks else None
        if is_checked:
            self._check(obs, mask)
            self._check_late_mask(info)
        converted = self._convert_observation_fn(obs)
        return (
            converted
            if mask is None
            else converters.add_action_mask(converted, np.asarray(mask, bool))
        )

    def _check_late_mask(self, info: Mapping[str, Leaf]) -> None:
        """Raise SimulatorFaultError for an action mask that the first reset did not return."""
        if self._can_gain_masks and info.get(ACTION_MASK) is not None:
            raise SimulatorFaultError(
                f"info must have {ACTION_MASK!r} after every reset and step, or never, got it "
                f"first at step {self._num_steps} of an episode. Add it after reset too."
            )

    def _read_action_mask(self, info: Mapping[str, Leaf], is_last: bool) -> Any:
        """Return the action mask in `info`, or zeros if it is missing at the end of an episode."""
        mask = info.get(ACTION_MASK)
        if mask is None and is_last:
            return np.zeros(self._num_actions, bool)
        if mask is None:
            raise SimulatorFaultError(
                f"info must have {ACTION_MASK!r} after every reset and step, as after the first "
                f"reset, got info without it at step {self._num_steps} of an episode. Add it to "
                "info at every step."
            )
        if np.shape(mask) != (self._num_actions,):
            raise SimulatorFaultError(
                f"info[{ACTION_MASK!r}] must have one value for each of {self._num_actions} "
                f"actions, got the shape {np.shape(mask)} at step {self._num_steps} of an episode. "
                "Return an array of that length."
            )
        return mask


def make_simulator(
    make_environment: Callable[..., SuiteEnvironment],
    name: str,
    time_limit: int | None,
    has_masks: bool,
    layout: Layout = None,
    warned_parts: set[str] | None = None,
    shows_frames: bool = False,
) -> GymnasiumSimulator:
    """Make a gymnasium environment and wrap it in a simulator.

    Args:
        make_environment: Function `make_environment(render_mode=...)` that makes the environment.
        name: Name of the environment, for messages.
        time_limit: Number of steps after which an episode is truncated, or None for no limit.
        has_masks: Whether `info` contains an action mask.
        layout: Image layout (see `converters.convert_observation_space`).
        warned_parts: See `ObservationCheck`.
        shows_frames: Whether the environment is made for rendering.

    Returns:
        The simulator.
    """
    environment = make_environment(render_mode="rgb_array" if shows_frames else None)
    return GymnasiumSimulator(environment, name, time_limit, has_masks, layout, warned_parts)


def inspect_environment(
    environment: SuiteEnvironment,
    name: str,
    layout: Layout = None,
    warned_parts: set[str] | None = None,
) -> tuple[DetectedSpaces, bool]:
    """Reset and step an environment once to detect its spaces and the contents of its `info`.

    The observations of the reset and the step are compared with the declared space.

    Args:
        environment: Gymnasium environment.
        name: Name of the environment, for messages.
        layout: Image layout (see `converters.convert_observation_space`).
        warned_parts: See `ObservationCheck`.

    Returns:
        The detected spaces, and whether `info` contains an action mask.

    Raises:
        UsageError: If a space has no counterpart, or the environment violates the gymnasium API.
    """
    declared, actions = (
        _get_declared_space(environment, name, attribute)
        for attribute in ("observation_space", "action_space")
    )
    observation_space, _ = converters.convert_observation_space(name, declared, layout)
    action_space, convert_fn = converters.convert_action_space(name, actions)
    check = ObservationCheck(name, declared, warned_parts)
    actions.seed(0)
    start = call_environment(name, "reset", lambda: environment.reset(seed=0))
    if not isinstance(start, tuple) or len(start) != 2 or not isinstance(start[1], Mapping):
        raise UsageError(
            f"{name}: reset must return (observation, info), as in gymnasium 0.26 and newer."
        )
    run_check(name, "reset", lambda: check(start[0]))
    check.warn_about_undeclared_parts(start[0])
    parts = (
        observation_space.spaces
        if isinstance(observation_space, Dict)
        else {"observation": observation_space}
    )
    mask: Any = start[0].get(ACTION_MASK) if ACTION_MASK in parts else start[1].get(ACTION_MASK)
    has_masks, num_actions = False, 0
    if ACTION_MASK not in parts and isinstance(action_space, Discrete):
        has_masks, num_actions = mask is not None, action_space.n
    if has_masks:
        _check_mask(name, "reset", mask, num_actions)
    is_legal_known = has_masks or (
        ACTION_MASK in parts and isinstance(action_space, Discrete | MultiDiscrete)
    )
    action = convert_fn(np.argmax(mask, axis=-1)) if is_legal_known else actions.sample()
    step = call_environment(name, "step", lambda: environment.step(action))
    if not isinstance(step, tuple) or len(step) != 5 or not isinstance(step[4], Mapping):
        raise UsageError(
            f"{name}: step must return (observation, reward, terminated, truncated, info), as in "
            "gymnasium 0.26 and newer."
        )
    run_check(name, "step", lambda: _check_step(check, step))
    check.warn_about_undeclared_parts(step[0])
    if ACTION_MASK not in parts:
        is_last = bool(step[2] or step[3])
        _check_step_mask(check, name, (mask, step[4].get(ACTION_MASK)), num_actions, is_last)
    if has_masks:
        observation_space = Dict({**parts, ACTION_MASK: Box(0.0, 1.0, (num_actions,), "bool")})
    return DetectedSpaces(observation_space, action_space, find_info_names(step[4])), has_masks


def _check_step_mask(
    check: ObservationCheck,
    name: str,
    masks: tuple[Leaf, Leaf],
    num_actions: int,
    is_last: bool,
) -> None:
    """Check the action mask in `info` after the first step.

    Args:
        check: Check of the environment, for warnings.
        name: Name of the environment.
        masks: Action masks after the reset and after the step, or None where `info` has none.
        num_actions: Number of discrete actions, or 0 if actions are not discrete.
        is_last: Whether the step ended the episode, so that it may lack a mask.

    Raises:
        UsageError: If one of the masks is missing, or has the wrong shape.
    """
    first, following = masks
    if first is None and following is None:
        return
    if not num_actions:
        check.warn_once(
            ACTION_MASK,
            f"info[{ACTION_MASK!r}] has no effect, because the actions are not Discrete. Add a "
            f"part {ACTION_MASK!r} to the observation instead.",
        )
    elif first is None:
        _check_mask(name, "reset", None, num_actions)
    elif not is_last:
        _check_mask(name, "step", following, num_actions)


def _check_mask(name: str, method: str, mask: Leaf, num_actions: int) -> None:
    """Raise UsageError if the action mask in `info` is missing or has the wrong shape."""
    if mask is None or np.shape(mask) != (num_actions,):
        received = "none" if mask is None else f"the shape {np.shape(mask)}"
        raise UsageError(
            f"{name}: info[{ACTION_MASK!r}] must have one value for each of {num_actions} actions "
            f"after every reset and step, got {received} after a {method}. Return an array of that "
            "length, or leave it out everywhere."
        )


def _get_declared_space(environment: object, name: str, attribute: str) -> Any:
    """Return the declared observation or action space.

    Raises:
        UsageError: If the attribute raises an exception or is not a `gymnasium.Space`.
    """
    try:
        space = getattr(environment, attribute)
    except Exception as error:  # may be a property of a custom class
        raise UsageError(
            f"{name}: {attribute} must be a space of gymnasium, got {describe_error(error)}. Set "
            "it in the environment's class or in its __init__."
        ) from error
    if not isinstance(space, gymnasium.Space):
        kind = f"{type(space).__module__}.{type(space).__name__}"
        raise UsageError(
            f"{name}: {attribute} must be a space of gymnasium, got {kind}. Set it to one of "
            "gymnasium.spaces in the environment's class or in its __init__."
        )
    return space


def run_check(name: str, method: str, function: Callable[[], T]) -> T:
    """Call `function` and convert a SimulatorFaultError to a UsageError.

    Args:
        name: Name of the environment, for the message.
        method: Name of the checked method of the environment, for the message.
        function: Check without arguments.
    """
    try:
        return function()
    except SimulatorFaultError as error:
        raise UsageError(f"{name}, in its {method}: {error}") from error


def _check_step(check: ObservationCheck, step_result: tuple[object, ...]) -> None:
    obs, reward, terminated, truncated, _ = step_result
    check(obs)
    to_reward(reward)
    to_flag("terminated", terminated)
    to_flag("truncated", truncated)


def space_conversion(
    environment: SuiteEnvironment, name: str, has_masks: bool, layout: Layout = None
) -> SpaceConversion:
    """Return the conversion of observations and actions between this environment and rollax.

    An action mask in `info` becomes the key "action_mask" of the observation. An observation that
    is not a dictionary becomes the value of the key "observation".

    Args:
        environment: Gymnasium environment.
        name: Name of the environment, for messages.
        has_masks: Whether `info` contains an action mask.
        layout: Image layout (see `converters.convert_observation_space`).

    Returns:
        The conversion.
    """
    space = environment.observation_space
    _, arrange = converters.convert_observation_space(name, space, layout)

    def convert_observation(value: Observation) -> Any:
        suite_obs = (
            value["observation"]
            if has_masks and not isinstance(space, gymnasium.spaces.Dict)
            else value
        )
        converters.check_structure(space, suite_obs)
        return (
            converters.add_action_mask(arrange(suite_obs), value[ACTION_MASK])
            if has_masks
            else arrange(suite_obs)
        )

    description = f"observation: {space}, {ACTION_MASK}: of bool" if has_masks else space
    return converters.space_conversion(
        name, description, convert_observation, environment.action_space
    )


def call_environment(name: str, method: str, function: Callable[[], T]) -> T:
    """Call `function` and convert every exception to a UsageError.

    Args:
        name: Name of the environment, for the message.
        method: Name of the called method of the environment, for the message.
        function: Function without arguments that calls the method.
    """
    try:
        return function()
    except Exception as error:  # an environment may raise any exception
        raise UsageError(f"{name}: {method} raises {describe_error(error)}.") from error


def find_info_names(info: Mapping[str, Leaf]) -> tuple[str, ...]:
    """Return the sorted names of the scalars in `info`."""
    kinds = (bool, int, float, np.bool_, np.integer, np.floating)

    def is_scalar(x):
        return isinstance(x, kinds) or (
            isinstance(x, np.ndarray) and x.ndim == 0 and x.dtype.kind in "bif"
        )

    return tuple(
        sorted(name for name, value in info.items() if isinstance(name, str) and is_scalar(value))
    )
