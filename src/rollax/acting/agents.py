"""Agents that share parameters: which ones do, how they act together, and how a function of parameters runs over all of them.

With one group of agents that share everything, parameters are those of one network and nothing here does anything. Otherwise
every tree of parameters (and of what belongs to them: optimizers, statistics) is a dictionary by name of the group; where the
agents of a group have parameters each, its leaves lead with an axis `[agents of the group]`.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.acting.streams import Policy
from rollax.algorithm import Finite
from rollax.environments.core import Environment, agent_types

Sharing = Literal["all", "type", "none"]


class Group(NamedTuple):
    """Agents of one type."""

    name: str
    agents: tuple[int, ...]
    is_separate: bool  # parameters for each of them, not one set for all


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
    groups = tuple(Group(name, indices, sharing == "none") for name, indices in members.items())
    return Team(len(agents), has_axis, groups)


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
    if team.is_one:
        return function(key)
    made = {}
    for group, group_key in zip(team.groups, jax.random.split(key, len(team.groups)), strict=True):
        if group.is_separate:  # one after the other: see `rollax.populations.population`
            made[group.name] = jax.lax.map(function, jax.random.split(group_key, len(group.agents)))
        else:
            made[group.name] = function(group_key)
    return made


def split(team: Team, values: Any, axis: int = 0) -> Any:
    """Values of all streams, in place `axis` of every leaf, by group: a separate group's lead with its agents."""
    if team.is_one:
        return values

    def pick(group: Group, x: jax.Array) -> jax.Array:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):  # the check for keys used twice takes each part for the whole
            return jax.random.wrap_key_data(pick(group, jax.random.key_data(x)), impl=jax.random.key_impl(x))
        x = x.reshape(*x.shape[:axis], -1, team.num_agents, *x.shape[axis + 1 :])
        x = jnp.take(x, np.asarray(group.agents), axis=axis + 1)
        return jnp.moveaxis(x, axis + 1, 0) if group.is_separate else x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    return {group.name: jax.tree.map(lambda x, g=group: pick(g, x), values) for group in team.groups}


def join(team: Team, values: Any, axis: int = 0) -> Any:
    """The inverse of `split`."""
    if team.is_one:
        return values

    def spread(group: Group, x: jax.Array) -> jax.Array:
        if group.is_separate:
            return jnp.moveaxis(x, 0, axis + 1)
        return x.reshape(*x.shape[:axis], -1, len(group.agents), *x.shape[axis + 1 :])

    order = np.argsort([agent for group in team.groups for agent in group.agents])

    def merge(*parts: jax.Array) -> jax.Array:
        x = jnp.concatenate([spread(g, x) for g, x in zip(team.groups, parts, strict=True)], axis=axis + 1)
        x = jnp.take(x, order, axis=axis + 1)
        return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    return jax.tree.map(merge, *[values[group.name] for group in team.groups])


def each(team: Team, function: Callable[..., tuple[Any, ...]], *values: Any) -> tuple[Any, ...]:
    """`function` of every set of parameters and what belongs to it. It returns a tuple; each part comes back by group."""
    if team.is_one:
        return function(*values)
    results = []
    for group in team.groups:
        run = jax.vmap(function) if group.is_separate else function
        results.append(run(*(value[group.name] for value in values)))
    names = [group.name for group in team.groups]
    return tuple(dict(zip(names, parts, strict=True)) for parts in zip(*results, strict=True))


def summarize(team: Team, values: Any, finite: Any) -> tuple[dict[str, jax.Array], Finite]:
    """Metrics by group as scalars: the mean over all sets of parameters, and "group/name" for each; finite where all are."""
    if team.is_one:
        return values, finite
    apart = {}
    for group in team.groups:
        labels = [f"agent {agent}" for agent in group.agents] if group.is_separate else [group.name]
        for name, value in values[group.name].items():
            apart |= {f"{label}/{name}": x for label, x in zip(labels, jnp.atleast_1d(value), strict=True)}
    names = values[team.groups[0].name]
    mean = {name: jnp.mean(jnp.stack([x for key, x in apart.items() if key.rpartition("/")[2] == name])) for name in names}
    return mean | apart, Finite(
        *(jnp.all(jnp.stack([jnp.all(x) for x in parts])) for parts in zip(*finite.values(), strict=True))
    )
