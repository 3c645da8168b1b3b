"""Optional capabilities of environments and their defaults.

An environment declares a capability as an attribute, a property or a method of the same name. Other
modules use the functions of this module to test for a capability.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeGuard

import jax
import jax.numpy as jnp

from rollax.environments.environment import (
    ClosedFormEnvironment,
    DescriptorEnvironment,
    Environment,
    FiniteTaskEnvironment,
    HostEnvironment,
    OpponentEnvironment,
    SpaceConversion,
    TaskEnvironment,
)
from rollax.spaces import Box, Discrete


class EnvironmentCapabilities(NamedTuple):
    """Optional capabilities that an environment declares.

    Attributes:
        agent_types: Type of each agent. The default is "agent" for every agent, and `()` for an
            environment without an agent axis.
        waiting_action: Index of the only legal action of an agent that waits for its turn, or None.
        info_reductions: Reduction of `info` values over an episode ("mean", "sum" or "last"), keyed
            by their name in `info`. The default is "mean".
        keeps_task: Whether each copy of the environment keeps one task for all its episodes.
        descriptor_space: Space of the descriptors, or None without descriptors.
        descriptor_extraction: Whether the descriptor of an episode is the descriptor of its last
            state ("final") or the average over its states ("mean").
        has_external_scores: Whether scores are computed outside of the environment.
        space_conversion: Conversion between observations and actions of the suite and of rollax, or
            None if no conversion is needed.
        fps: Number of steps of a host environment that a video shows per second.
    """

    agent_types: tuple[str, ...] = ()
    waiting_action: int | None = None
    info_reductions: Mapping[str, str] = MappingProxyType({})
    keeps_task: bool = False
    descriptor_space: Box | None = None
    descriptor_extraction: str = "final"
    has_external_scores: bool = False
    space_conversion: SpaceConversion | None = None
    fps: int = 30

    @property
    def agent_names(self) -> tuple[str, ...]:
        """Unique name of each agent, for example "prey" or "predator_0".

        The name is the type of the agent. If several agents have the same type, the name also has
        an index from 0.
        """
        types = self.agent_types
        return tuple(
            kind if types.count(kind) == 1 else f"{kind}_{types[:i].count(kind)}"
            for i, kind in enumerate(types)
        )


def capabilities(environment: Environment) -> EnvironmentCapabilities:
    """Return the capabilities of an environment, with defaults for those it does not declare.

    Args:
        environment: Environment or wrapper.

    Returns:
        The capabilities. `agent_types` is `()` for an environment without an agent axis.
    """
    num_agents = environment.num_agents
    defaults = EnvironmentCapabilities(agent_types=("agent",) * (num_agents or 0))
    declared = EnvironmentCapabilities(
        **{name: getattr(environment, name, value) for name, value in defaults._asdict().items()}
    )
    return declared if num_agents is not None else declared._replace(agent_types=())


def is_on_host(environment: object) -> TypeGuard[HostEnvironment]:
    """Return whether an environment is a `HostEnvironment` with simulators on the host."""
    return callable(getattr(environment, "make_simulator", None))


def has_closed_form(environment: Environment) -> TypeGuard[ClosedFormEnvironment]:
    """Return whether an environment scores solutions by a function (`ClosedFormEnvironment`)."""
    return callable(getattr(environment, "score", None))


def has_opponents(environment: object) -> TypeGuard[OpponentEnvironment]:
    """Return whether opponents may play agents of an environment (`OpponentEnvironment`)."""
    return callable(getattr(environment, "opponent_agents", None))


def has_descriptors(environment: Environment) -> TypeGuard[DescriptorEnvironment]:
    """Return whether the states of an environment have descriptors (`DescriptorEnvironment`)."""
    return capabilities(environment).descriptor_space is not None


def has_tasks(environment: Environment) -> TypeGuard[TaskEnvironment]:
    """Return whether an environment has a distribution of tasks (`TaskEnvironment`).

    Args:
        environment: Environment without its wrappers. Every wrapper has the methods of a
            `TaskEnvironment`, even if the wrapped environment has no tasks.
    """
    return callable(getattr(environment, "sample_task", None))


def has_finite_tasks(environment: Environment) -> TypeGuard[FiniteTaskEnvironment]:
    """Return whether an environment has a finite list of tasks (`FiniteTaskEnvironment`)."""
    return len(getattr(environment, "task_numbers", ())) > 0


def find_acting_agents(environment: Environment, obs: jax.Array | dict) -> jax.Array | None:
    """Return a mask of the agents that act, or None in an environment without turns.

    An agent waits if its only legal action is the `waiting_action` of the environment. An agent
    whose only legal action is another action acts. If an environment with several agents does not
    declare a waiting action, all agents with a single legal action count as waiting, because they
    have no choice.

    Args:
        environment: Environment or wrapper.
        obs: Observations with an "action_mask" `[..., n]`.

    Returns:
        Mask, bool `[...]`, that is True for agents that act, or None if all agents act.
    """
    waiting = capabilities(environment).waiting_action
    if waiting is None and (environment.num_agents or 1) == 1:
        return None
    if not (
        isinstance(environment.action_space, Discrete)
        and isinstance(obs, dict)
        and "action_mask" in obs
    ):
        return None
    legal = obs["action_mask"].astype(bool)
    waits = jnp.sum(legal, axis=-1) == 1
    return ~waits if waiting is None else ~(waits & legal[..., waiting])
