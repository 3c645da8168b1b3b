"""Environments whose dynamics are simulators on the host."""

from collections.abc import Callable
from typing import Any, NoReturn

import equinox as eqx
import jax

from rollax.environments.environment import (
    Simulator,
    SpaceConversion,
    format_environment,
    format_environment_html,
)
from rollax.errors import UsageError
from rollax.spaces import ActionSpace, Space
from rollax.types import Action, State


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
        num_agents: Always None, because host environments have no agent axis.
    """

    name: str = eqx.field(static=True)
    observation_space: Space = eqx.field(static=True)
    action_space: ActionSpace = eqx.field(static=True)
    time_limit: int | None = eqx.field(static=True)
    info_names: tuple[str, ...] = eqx.field(static=True)
    make_simulator: Callable[..., Simulator] = eqx.field(static=True)
    make_pool: Callable[[int, int], Any] | None = eqx.field(static=True, default=None)
    space_conversion: SpaceConversion | None = eqx.field(static=True, default=None)
    fps: int = eqx.field(static=True, default=30)
    num_agents: None = eqx.field(static=True, default=None)

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
