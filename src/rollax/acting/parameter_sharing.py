"""Parameter sharing among agents.

If all agents share their parameters, as in single-agent environments, functions act on the
parameters of one network. Otherwise they act on parameters by group
(`rollax.acting.parameter_groups`).
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from rollax.acting import parameter_groups
from rollax.acting.parameter_groups import ParameterGroup
from rollax.acting.streams import PolicyFn
from rollax.algorithm import FiniteChecks
from rollax.environments.capabilities import capabilities
from rollax.environments.environment import Environment
from rollax.scopes import profile_scope
from rollax.types import Action, Carry, Observation, Parameters, PyTree

Sharing = Literal["all", "type", "none"]


class AgentGroups(NamedTuple):
    """All agents of an environment, grouped by the parameters that they share.

    Attributes:
        num_agents: Number of agents. It is 1 in environments without an agent axis.
        has_agent_axis: Whether observations and actions have a leading axis of agents.
        groups: Groups of agents.
    """

    num_agents: int
    has_agent_axis: bool
    groups: tuple[ParameterGroup, ...]

    @property
    def is_fully_shared(self) -> bool:
        """Whether all agents share one set of parameters."""
        return len(self.groups) == 1 and not self.groups[0].has_separate_parameters


def make_agent_groups(environment: Environment, sharing: Sharing) -> AgentGroups:
    """Group the agents of an environment by the parameters that they share.

    Args:
        environment: Single-agent or multi-agent environment.
        sharing: "all" for one set of parameters, "type" for one set per agent type, or "none" for
            one set per agent.

    Returns:
        The groups. A single agent is one group.
    """
    agents, has_axis = tuple(range(environment.num_agents or 1)), environment.num_agents is not None
    if sharing == "all" or len(agents) == 1:
        return AgentGroups(len(agents), has_axis, (ParameterGroup("", agents, False),))
    types = capabilities(environment).agent_types
    members = {name: tuple(i for i in agents if types[i] == name) for name in dict.fromkeys(types)}
    return AgentGroups(
        len(agents),
        has_axis,
        tuple(
            ParameterGroup(name, indices, sharing == "none") for name, indices in members.items()
        ),
    )


def make_policy(
    team: AgentGroups, act: Callable[..., tuple[Carry, Action, PyTree]], parameters: Parameters
) -> PolicyFn:
    """Build the policy of all agents in one environment.

    Args:
        team: Groups of agents.
        act: Function `(parameters, carry, obs, reset, key)` that returns the carry, action and
            extras of one agent.
        parameters: Parameters, by group unless they are fully shared.

    Returns:
        The policy. With an agent axis, its carry, observations, actions and extras have it as
        leading axis.
    """

    def act_together(
        carry: Carry, obs: Observation, reset: jax.Array, key: jax.Array
    ) -> tuple[Any, Any, Any]:
        if not team.has_agent_axis:
            return act(parameters, carry, obs, reset, key)
        if team.num_agents == 1:  # bit-identical to an environment without agents
            outputs = act(parameters, *jax.tree.map(lambda x: x[0], (carry, obs)), reset, key)
            return jax.tree.map(lambda x: x[None], outputs)
        agent_keys = jax.random.split(key, team.num_agents)
        inputs = split_groups(
            team, (carry, obs, jnp.broadcast_to(reset, team.num_agents), agent_keys)
        )
        outputs = map_groups(
            team,
            lambda values, x: jax.vmap(act, (None, 0, 0, 0, 0))(values, *x),
            parameters,
            inputs,
        )
        carry, action, extras = (join_groups(team, values) for values in outputs)
        return carry, action, extras

    return act_together


def initial_carry(
    team: AgentGroups, first: Callable[[Parameters], Carry], parameters: Parameters
) -> Any:
    """Return the memory of all agents at the start of an episode of one environment.

    Args:
        team: Groups of agents.
        first: Function from the parameters to the initial memory of one agent.
        parameters: Parameters, by group unless they are fully shared.

    Returns:
        The memory, with a leading agent axis if the environment has one.
    """
    if not team.has_agent_axis:
        return first(parameters)

    def of_group(values: PyTree, places: jax.Array) -> tuple[Any]:
        return (
            jax.tree.map(
                lambda x: jnp.broadcast_to(x, (*places.shape, *jnp.shape(x))), first(values)
            ),
        )

    return join_groups(
        team,
        map_groups(team, of_group, parameters, split_groups(team, jnp.zeros(team.num_agents)))[0],
    )


def num_group_streams(team: AgentGroups, num_envs: int) -> list[int]:
    """Return the number of training streams per set of parameters, one entry per group."""
    return [
        num_envs * (1 if group.has_separate_parameters else len(group.agents))
        for group in team.groups
    ]


def act_agents(
    team: AgentGroups,
    choose: Callable[..., tuple[Carry, Action]],
    parameters: Parameters,
    obs: Observation,
    carry: Carry,
    key: jax.Array,
) -> tuple[Any, Any]:
    """Choose the actions of all agents in one environment.

    Args:
        team: Groups of agents.
        choose: Function `(parameters, carry, obs, key)` that returns the carry and the action of
            one agent.
        parameters: Parameters, by group unless they are fully shared.
        obs: Observation in one environment.
        carry: Memory before the step.
        key: Random key.

    Returns:
        The action and the memory after the step.
    """

    def one(values, carry, obs, reset, key):
        return (*choose(values, carry, obs, key), ())

    carry, action, _ = make_policy(team, one, parameters)(carry, obs, jnp.zeros((), bool), key)
    return action, carry


def init_groups(team: AgentGroups, function: Callable[..., PyTree], key: jax.Array) -> Any:
    """Initialize each set of parameters with `function(key)`."""
    return (
        function(key)
        if team.is_fully_shared
        else parameter_groups.init_groups(team.groups, function, key)
    )


def split_groups(team: AgentGroups, values: PyTree, axis: int = 0) -> Any:
    """Split values along the stream axis into one entry per group.

    Args:
        team: Groups of agents.
        values: Pytree whose leaves have the streams of all agents on axis `axis`.
        axis: Index of the stream axis.

    Returns:
        Values by group name, or unchanged if parameters are fully shared. Groups with separate
        parameters get a leading agent axis.
    """
    return (
        values if team.is_fully_shared else parameter_groups.split_groups(team.groups, values, axis)
    )


def join_groups(team: AgentGroups, values: PyTree, axis: int = 0) -> Any:
    """Join values by group along the stream axis. This is the inverse of `split_groups`."""
    return (
        values if team.is_fully_shared else parameter_groups.join_groups(team.groups, values, axis)
    )


def map_groups(
    team: AgentGroups, function: Callable[..., PyTree], *values: PyTree
) -> tuple[Any, ...]:
    """Apply a function to each set of parameters.

    Args:
        team: Groups of agents.
        function: Function that returns a tuple or a NamedTuple.
        *values: Arguments, by group unless parameters are fully shared.

    Returns:
        The result of `function`. Unless parameters are fully shared, each element is a dictionary
        by group name.
    """
    return (
        function(*values)
        if team.is_fully_shared
        else parameter_groups.map_groups(team.groups, function, *values)
    )


@profile_scope("bookkeeping")
def summarize_metrics(
    team: AgentGroups, values: PyTree, finite: PyTree
) -> tuple[dict[str, jax.Array], FiniteChecks]:
    """Return scalar metrics and the combined finite checks of all groups.

    Unless parameters are fully shared, the metrics are means over all sets of parameters, and there
    is one additional entry "group/metric" or "agent i/metric" for each set.
    """
    return (
        (values, finite)
        if team.is_fully_shared
        else parameter_groups.summarize_metrics(team.groups, values, finite)
    )
