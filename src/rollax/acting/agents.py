"""Agents that share parameters: which ones do, how they act together, and how a function of parameters runs over all of them.

Where all agents share everything, as a single one does, parameters are those of one network and nothing here changes anything.
Otherwise parameters and what belongs to them are by group, as `rollax.acting.groups` has it.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from rollax.acting import groups
from rollax.acting.groups import Group
from rollax.acting.streams import Policy
from rollax.algorithm import Finite
from rollax.environments.core import Environment, agent_types
from rollax.scopes import scope

Sharing = Literal["all", "type", "none"]


class Team(NamedTuple):
    """All agents of an environment, in groups."""

    num_agents: int
    has_axis: bool  # observations and actions lead with an axis of agents
    groups: tuple[Group, ...]

    @property
    def is_one(self) -> bool:
        """All agents share everything."""
        return len(self.groups) == 1 and not self.groups[0].is_separate


def team(environment: Environment, sharing: Sharing) -> Team:
    """Who shares parameters: "all" agents, those of one "type", or "none". One agent, or none, is one group of one."""
    agents, has_axis = tuple(range(environment.num_agents or 1)), environment.num_agents is not None
    if sharing == "all" or len(agents) == 1:
        return Team(len(agents), has_axis, (Group("", agents, False),))
    types = agent_types(environment)
    members = {name: tuple(i for i in agents if types[i] == name) for name in dict.fromkeys(types)}
    return Team(len(agents), has_axis, tuple(Group(name, indices, sharing == "none") for name, indices in members.items()))


def policy(team: Team, act: Callable[..., tuple[Any, Any, Any]], parameters: Any) -> Policy:
    """The policy of all agents of one environment, each acting by `act(parameters, carry, obs, reset, key)` of its group."""

    def act_together(carry: Any, obs: Any, reset: jax.Array, key: jax.Array) -> tuple[Any, Any, Any]:
        if not team.has_axis:
            return act(parameters, carry, obs, reset, key)
        if team.num_agents == 1:  # the program of an environment without agents, bit for bit
            outputs = act(parameters, *jax.tree.map(lambda x: x[0], (carry, obs)), reset, key)
            return jax.tree.map(lambda x: x[None], outputs)
        agent_keys = jax.random.split(key, team.num_agents)
        inputs = split(team, (carry, obs, jnp.broadcast_to(reset, team.num_agents), agent_keys))
        outputs = each(team, lambda values, x: jax.vmap(act, (None, 0, 0, 0, 0))(values, *x), parameters, inputs)
        carry, action, extras = (join(team, values) for values in outputs)
        return carry, action, extras

    return act_together


def initial_carry(team: Team, first: Callable[[Any], Any], parameters: Any) -> Any:
    """The memory that an episode of one environment begins with: of each agent `first(parameters)` of its group."""
    if not team.has_axis:
        return first(parameters)

    def of_group(values: Any, places: jax.Array) -> tuple[Any]:
        return (jax.tree.map(lambda x: jnp.broadcast_to(x, (*places.shape, *jnp.shape(x))), first(values)),)

    return join(team, each(team, of_group, parameters, split(team, jnp.zeros(team.num_agents)))[0])


def num_streams(team: Team, num_envs: int) -> list[int]:
    """How many streams each set of parameters learns from, by group."""
    return [num_envs * (1 if group.is_separate else len(group.agents)) for group in team.groups]


def act(
    team: Team, choose: Callable[..., tuple[Any, Any]], parameters: Any, obs: Any, carry: Any, key: jax.Array
) -> tuple[Any, Any]:
    """The action in one environment and the memory after it, of every agent by `choose(parameters, carry, obs, key)`."""
    one = lambda values, carry, obs, reset, key: (*choose(values, carry, obs, key), ())  # noqa: E731
    carry, action, _ = policy(team, one, parameters)(carry, obs, jnp.zeros((), bool), key)
    return action, carry


def make(team: Team, function: Callable[[jax.Array], Any], key: jax.Array) -> Any:
    """`function(key)`, which makes parameters, once for every set of them."""
    return function(key) if team.is_one else groups.make(team.groups, function, key)


def split(team: Team, values: Any, axis: int = 0) -> Any:
    """Values of all streams, in place `axis` of every leaf, by group: a separate group's lead with its agents."""
    return values if team.is_one else groups.split(team.groups, values, axis)


def join(team: Team, values: Any, axis: int = 0) -> Any:
    """The inverse of `split`."""
    return values if team.is_one else groups.join(team.groups, values, axis)


def each(team: Team, function: Callable[..., tuple[Any, ...]], *values: Any) -> tuple[Any, ...]:
    """`function` of every set of parameters and what belongs to it. It returns a tuple; each part comes back by group."""
    return function(*values) if team.is_one else groups.each(team.groups, function, *values)


@scope("bookkeeping")
def summarize(team: Team, values: Any, finite: Any) -> tuple[dict[str, jax.Array], Finite]:
    """Metrics by group as scalars: the mean over all sets of parameters, and "group/name" for each; finite where all are."""
    return (values, finite) if team.is_one else groups.summarize(team.groups, values, finite)
