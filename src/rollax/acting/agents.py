"""Agents that share parameters: which ones do, and how a function of parameters runs over all of them.

With one group of agents that share everything, parameters are those of one network and nothing here does anything. Otherwise
every tree of parameters (and of what belongs to them: optimizers, statistics) is a dictionary by name of the group; where the
agents of a group have parameters each, its leaves lead with an axis `[agents of the group]`.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.core import Environment, agent_types

Sharing = Literal["all", "type", "none"]


class Group(NamedTuple):
    """Agents of one kind."""

    name: str
    agents: tuple[int, ...]
    is_separate: bool  # parameters for each of them, not one set for all


class Team(NamedTuple):
    """All agents of an environment, in groups."""

    num_agents: int
    groups: tuple[Group, ...]

    @property
    def is_one(self) -> bool:
        """All agents share everything."""
        return len(self.groups) == 1 and not self.groups[0].is_separate


def team(environment: Environment, sharing: Sharing) -> Team:
    """Who shares parameters: "all" agents, those of one "type", or "none". One agent, or none, is one group of one."""
    everyone = tuple(range(environment.num_agents or 1))
    if sharing == "all" or len(everyone) == 1:
        return Team(len(everyone), (Group("", everyone, False),))
    kinds = agent_types(environment)
    members = {kind: tuple(i for i in everyone if kinds[i] == kind) for kind in dict.fromkeys(kinds)}
    return Team(len(everyone), tuple(Group(kind, agents, sharing == "none") for kind, agents in members.items()))


def make(team: Team, function: Callable[[jax.Array], Any], key: jax.Array) -> Any:
    """`function(key)`, which makes parameters, once for every set of them."""
    if team.is_one:
        return function(key)
    made = {}
    for group, group_key in zip(team.groups, jax.random.split(key, len(team.groups)), strict=True):
        if group.is_separate:  # one after the other: see `rollax.algorithm.population`
            made[group.name] = jax.lax.map(function, jax.random.split(group_key, len(group.agents)))
        else:
            made[group.name] = function(group_key)
    return made


def keys(team: Team, key: jax.Array) -> Any:
    """A key for every set of parameters."""
    return make(team, lambda key: key, key)


def split(team: Team, values: Any, axis: int) -> Any:
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


def join(team: Team, values: Any, axis: int) -> Any:
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


def metrics(team: Team, values: Any) -> dict[str, jax.Array]:
    """Metrics by group as one dictionary of scalars: the mean over all sets of parameters, and "group/name" for each.

    Truths (those under "finite/") hold when they do for all.
    """
    if team.is_one:
        return values
    several = {}
    for group in team.groups:
        for name, value in values[group.name].items():
            labels = [f"agent {agent}" for agent in group.agents] if group.is_separate else [group.name]
            several |= {(name, label): x for label, x in zip(labels, jnp.atleast_1d(value), strict=True)}
    together: dict[str, jax.Array] = {}
    for name in dict.fromkeys(name for name, _ in several):
        parts = jnp.stack([x for (n, _), x in several.items() if n == name])
        together[name] = jnp.all(parts) if parts.dtype == bool else jnp.mean(parts)
    apart = {f"{label}/{name}": x for (name, label), x in several.items() if "/" not in name}
    return {**together, **apart}
