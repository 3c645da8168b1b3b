"""Validation of gymnasium environments with the gymnasium and rollax checkers."""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from rollax.checks.declarations import space_faults
from rollax.environments.environment import Environment, MultiAgentSimulator, Simulator
from rollax.environments.host_environment import SimulatorFaultError, to_reward
from rollax.errors import UsageError, describe_error, error_message
from rollax.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple, map_space
from rollax.types import Observation

_ANSI_COLORS = re.compile("\x1b\\[[0-9;]*m")
_IRRELEVANT_WARNINGS = (
    "different from the unwrapped version",
    "is -infinity",
    "is infinity",
    "no render",
)  # fragments of gymnasium's warnings


T = TypeVar("T")


class GymnasiumFindings(NamedTuple):
    """Result of checking a simulator or a gymnasium environment.

    Attributes:
        faults: Error messages, one per violation of the interface.
        notes: Messages about behavior that is allowed but may be unintended.
        steps: Number of random steps.
        episodes: Number of episodes that ended.
    """

    faults: list[str]
    notes: list[str]
    steps: int
    episodes: int


def is_gymnasium(env: object) -> bool:
    """Return whether `env` is a gymnasium environment."""
    return any(kind.__module__.split(".")[0] == "gymnasium" for kind in type(env).__mro__)


def check_simulator(env: Any, name: str, steps: int) -> GymnasiumFindings:
    """Run gymnasium's checker, then take random steps and compare every value with the spaces.

    Gymnasium's checker runs only for gymnasium environments.

    Args:
        env: A gymnasium environment, or a rollax environment whose simulators run on the host.
        name: Name of the environment in messages.
        steps: Number of random steps.

    Returns:
        Error messages and notes of both checks, and the numbers of steps and episodes.
    """
    faults: list[str] = []
    notes: list[str] = []
    try:
        with _record_warnings(notes):
            simulator, spaces = _make_strict_simulator(env, name)
    except UsageError as error:
        if is_gymnasium(env):
            faults += _gymnasium_checker_faults(env, notes)
        return GymnasiumFindings([*faults, str(error)], list(dict.fromkeys(notes)), 0, 0)
    inner = getattr(simulator, "environment", None)
    if is_gymnasium(inner):
        faults += _gymnasium_checker_faults(getattr(inner, "unwrapped", inner), notes)
    faults += space_faults(spaces)
    num_steps, episodes = 0, 0
    if not faults:
        with _record_warnings(notes):
            step_faults, num_steps, episodes = _take_random_steps(simulator, spaces, steps)
        faults += step_faults
    if not is_gymnasium(env):
        simulator.close()
    if not episodes and not faults:
        notes.append(
            f"no episode ended within {steps} random steps, so episode ends were not checked."
        )
    return GymnasiumFindings(faults, list(dict.fromkeys(notes)), num_steps, episodes)


def _make_strict_simulator(env: Any, name: str) -> tuple[Any, Any]:
    """Return a simulator that validates every step, and the object with its declared spaces."""
    from rollax.environments.suites.gymnasium import simulator as gymnasium_simulator

    if not is_gymnasium(env):
        simulator = env.make_simulator()
        simulator.is_strict = True
        return simulator, env
    declared_spaces, masks = gymnasium_simulator.inspect_environment(env, name, warned_parts=set())
    simulator = gymnasium_simulator.GymnasiumSimulator(env, name, None, masks, warned_parts=set())
    simulator.is_strict = True
    return simulator, declared_spaces


def _gymnasium_checker_faults(env: Any, notes: list[str]) -> list[str]:
    """Return the error of gymnasium's checker, if any, and append its warnings to `notes`."""
    from gymnasium.utils.env_checker import check_env

    with _record_warnings(notes):
        try:
            check_env(env, skip_render_check=True, skip_close_check=True)
        except Exception as error:  # The checker raises many types of errors, and user code any.
            return [f"gymnasium's check_env fails with {describe_error(error)}"]
    return []


@contextmanager
def _record_warnings(notes: list[str]) -> Iterator[None]:
    """Append the text of relevant Python warnings within the context to `notes`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    texts = [
        _ANSI_COLORS.sub("", str(warning.message)).removeprefix("WARN: ") for warning in caught
    ]
    notes += [
        text for text in texts if not any(pattern in text for pattern in _IRRELEVANT_WARNINGS)
    ]


def _take_random_steps(
    simulator: Simulator | MultiAgentSimulator, spaces: Environment, steps: int
) -> tuple[list[str], int, int]:
    """Take up to `steps` random steps, and stop at the first error.

    Returns:
        Error messages (at most one), number of steps taken, and number of episodes that ended.
    """
    generator, num_episodes, num_steps = np.random.default_rng(0), 0, 0
    try:
        obs = _call_method("reset", lambda: simulator.reset(0))
        for _ in range(steps):
            action = _random_actions(generator, spaces, obs)
            obs, reward, terminated, truncated, _ = _call_method(
                "step", lambda a=action: simulator.step(a)
            )
            num_steps += 1
            has_agents = isinstance(simulator, MultiAgentSimulator)
            if not np.isfinite(reward if has_agents else to_reward(reward)).all():
                raise SimulatorFaultError(
                    f"reward must be finite, got {reward}. Return a finite float."
                )
            _check_finite(obs)
            if not simulator.active.any() if has_agents else (terminated or truncated):
                num_episodes += 1
                obs = _call_method("reset", lambda: simulator.reset(None))
    except SimulatorFaultError as error:
        return [f"after {num_steps} random steps: {error}"], num_steps, num_episodes
    return [], num_steps, num_episodes


def _call_method(name: str, function: Callable[[], T]) -> T:
    try:
        return function()
    except SimulatorFaultError:
        raise
    except Exception as error:  # An environment may raise any error.
        kind = type(error).__name__
        raise SimulatorFaultError(
            f"{name} raises {kind}: {error_message(error)}. Correct that method."
        ) from error


def _check_finite(obs: Observation) -> None:
    for name, value in (obs if isinstance(obs, dict) else {"": obs}).items():
        if np.asarray(value).dtype.kind == "f" and not np.isfinite(value).all():
            what = f"the observation's part {name!r}" if name else "the observation"
            raise SimulatorFaultError(
                f"{what} must be finite, got {value}. Look for divisions by 0."
            )


def _random_actions(generator: np.random.Generator, env: Environment, obs: Observation) -> Any:
    """Sample an action, or one for each agent, `[A, ...]`."""
    if env.num_agents is None:
        return _random_action(generator, env.action_space, obs)
    actions = [
        _random_action(generator, env.action_space, jax.tree.map(lambda x, i=index: x[i], obs))
        for index in range(env.num_agents)
    ]
    return jax.tree.map(lambda *x: np.stack(x), *actions)


def _random_action(generator: np.random.Generator, space: Any, obs: Observation) -> Any:
    """Sample an action. If the observation contains an action mask, the action is legal."""
    if isinstance(space, Dict | Tuple):
        return map_space(lambda part: _random_action(generator, part, None), space)
    mask = obs.get("action_mask") if isinstance(obs, dict) else None
    if mask is not None and not isinstance(space, Box):
        if not np.asarray(mask).any(axis=-1).all():
            raise SimulatorFaultError(
                "action_mask must leave a legal action until the episode ends, got a mask "
                "without one. End the episode, or allow an action."
            )
        rows = [generator.choice(np.flatnonzero(row)) for row in np.atleast_2d(mask)]
        return np.asarray(rows if isinstance(space, MultiDiscrete) else rows[0], np.int32)
    if isinstance(space, Discrete):
        return np.int32(generator.integers(space.n))
    if isinstance(space, MultiDiscrete):
        return generator.integers(0, space.sizes).astype(np.int32)
    low, high = np.broadcast_to(space.low, space.shape), np.broadcast_to(space.high, space.shape)
    return generator.uniform(np.maximum(low, -1e3), np.minimum(high, 1e3)).astype(np.float32)
