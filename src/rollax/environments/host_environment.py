"""Environments with simulators on the host, and conversion of the values that simulators return."""

from collections.abc import Callable
from typing import Any, NoReturn

import equinox as eqx
import jax
import numpy as np

from rollax.environments.environment import (
    MultiAgentSimulator,
    Simulator,
    SpaceConversion,
)
from rollax.environments.environment_text import format_environment, format_environment_html
from rollax.errors import UsageError
from rollax.spaces import ActionSpace, Space
from rollax.types import Action, State
from rollax.user_input.coercion import format_value

_NUMERIC_KINDS = "biuf"  # kinds of NumPy types


class HostedEnvironment(eqx.Module):
    """A `HostEnvironment` that is defined by its spaces, its limits and functions for simulators.

    Attributes:
        name: Id of the environment.
        observation_space: Space of the observations.
        action_space: Space of the actions.
        time_limit: Maximum number of steps of an episode, or None if unknown.
        info_names: Names of the numbers in `info` that evaluations report.
        make_simulator: Function `make_simulator(shows_frames=False)` that makes one simulator.
        make_pool: Function `make_pool(num_envs, seed)` that makes a pool of simulators with its own
            threads, or None to use single simulators.
        space_conversion: Conversion between observations and actions of the suite and of rollax, or
            None if no conversion is needed.
        fps: Number of steps that a video shows per second.
        agent_types: Type of each agent, or `()` for an environment without an agent axis.
    """

    name: str = eqx.field(static=True)
    observation_space: Space = eqx.field(static=True)
    action_space: ActionSpace = eqx.field(static=True)
    time_limit: int | None = eqx.field(static=True)
    info_names: tuple[str, ...] = eqx.field(static=True)
    make_simulator: Callable[..., Simulator | MultiAgentSimulator] = eqx.field(static=True)
    make_pool: Callable[[int, int], Any] | None = eqx.field(static=True, default=None)
    space_conversion: SpaceConversion | None = eqx.field(static=True, default=None)
    fps: int = eqx.field(static=True, default=30)
    agent_types: tuple[str, ...] = eqx.field(static=True, default=())

    @property
    def num_agents(self) -> int | None:
        return len(self.agent_types) or None

    def __repr__(self) -> str:
        return format_environment(self)

    def _repr_html_(self) -> str:
        return format_environment_html(self)

    def reset(self, key: jax.Array) -> NoReturn:
        raise UsageError(_host_only_message(self.name))

    def step(self, key: jax.Array, state: State, action: Action) -> NoReturn:
        raise UsageError(_host_only_message(self.name))


def _host_only_message(name: str) -> str:
    return (
        f"{name} runs on the host, in Python or C++, and cannot be part of a JAX program. "
        "Use rollax.train, rollax.load or Policy.evaluate. Archives, wrappers, several devices and "
        "vmap need an environment in JAX (see rollax envs)."
    )


class SimulatorFaultError(ValueError):
    """Error for a simulator that returns invalid values."""


def to_reward(value: object) -> float:
    """Convert a reward to a float.

    Args:
        value: A number, or an array with one element.

    Returns:
        The reward.

    Raises:
        SimulatorFaultError: If the value is not one number.
    """
    if type(value) is float:
        return value
    return float(_to_single_number("reward", value, "one number", "Return a float."))


def to_flag(name: str, value: object) -> bool:
    """Convert `terminated` or `truncated` to a bool.

    Args:
        name: Name of the flag, for the error message.
        value: A bool, a number that is 0 or 1, or an array with one such element.

    Returns:
        The flag.

    Raises:
        SimulatorFaultError: If the value is anything else, such as a string or None.
    """
    if value is True or value is False:
        return value
    single = _to_single_number(name, value, "True or False", "Return a bool.")
    if single not in (0, 1):
        raise SimulatorFaultError(
            f"{name} must be True or False, got {format_value(value)}. Return a bool."
        )
    return bool(single)


def _to_single_number(name: str, value: object, expected: str, remedy: str) -> Any:
    """Convert a number or an array with one element to a Python number."""
    try:
        array = np.asarray(value)
    except Exception as error:  # objects with an array interface may raise anything
        raise SimulatorFaultError(
            f"{name} must be {expected}, got a {type(value).__name__}. {remedy}"
        ) from error
    if array.size != 1 or array.dtype.kind not in _NUMERIC_KINDS:
        kind = type(value).__name__
        raise SimulatorFaultError(
            f"{name} must be {expected}, got {format_value(value)} ({kind}). {remedy}"
        )
    return array.item()
