"""Several sets of parameters among the agents of an environment: `rollax.acting.agents`, where not all share one.

Every tree of parameters (and of what belongs to them: optimizers, statistics) is a dictionary by name of the group; where the
agents of a group have parameters each, its leaves lead with an axis `[agents of the group]`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.algorithm import Finite


class Group(NamedTuple):
    """Agents of one type."""

    name: str
    agents: tuple[int, ...]
    is_separate: bool  # parameters for each of them, not one set for all


Groups = tuple[Group, ...]


def make(groups: Groups, function: Callable[[jax.Array], Any], key: jax.Array) -> Any:
    """`function(key)`, which makes parameters, once for every set of them."""
    made = {}
    for group, group_key in zip(groups, jax.random.split(key, len(groups)), strict=True):
        if group.is_separate:  # one after the other: see `rollax.populations.population`
            made[group.name] = jax.lax.map(function, jax.random.split(group_key, len(group.agents)))
        else:
            made[group.name] = function(group_key)
    return made


def split(groups: Groups, values: Any, axis: int) -> Any:
    """Values of all streams, in place `axis` of every leaf, by group: a separate group's lead with its agents."""
    num_agents = sum(len(group.agents) for group in groups)

    def pick(group: Group, x: jax.Array) -> jax.Array:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):  # the check for keys used twice takes each part for the whole
            return jax.random.wrap_key_data(pick(group, jax.random.key_data(x)), impl=jax.random.key_impl(x))
        x = x.reshape(*x.shape[:axis], -1, num_agents, *x.shape[axis + 1 :])
        x = jnp.take(x, np.asarray(group.agents), axis=axis + 1)
        return jnp.moveaxis(x, axis + 1, 0) if group.is_separate else x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    return {group.name: jax.tree.map(lambda x, g=group: pick(g, x), values) for group in groups}


def join(groups: Groups, values: Any, axis: int) -> Any:
    """The inverse of `split`."""

    def spread(group: Group, x: jax.Array) -> jax.Array:
        if group.is_separate:
            return jnp.moveaxis(x, 0, axis + 1)
        return x.reshape(*x.shape[:axis], -1, len(group.agents), *x.shape[axis + 1 :])

    order = np.argsort([agent for group in groups for agent in group.agents])

    def merge(*parts: jax.Array) -> jax.Array:
        x = jnp.concatenate([spread(g, x) for g, x in zip(groups, parts, strict=True)], axis=axis + 1)
        x = jnp.take(x, order, axis=axis + 1)
        return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    return jax.tree.map(merge, *[values[group.name] for group in groups])


def each(groups: Groups, function: Callable[..., tuple[Any, ...]], *values: Any) -> tuple[Any, ...]:
    """`function` of every set of parameters and what belongs to it. It returns a tuple; each part comes back by group."""
    results = []
    for group in groups:
        run = jax.vmap(function) if group.is_separate else function
        results.append(run(*(value[group.name] for value in values)))
    names = [group.name for group in groups]
    return tuple(dict(zip(names, parts, strict=True)) for parts in zip(*results, strict=True))


def summarize(groups: Groups, values: Any, finite: Any) -> tuple[dict[str, jax.Array], Finite]:
    """Metrics by group as scalars: the mean over all sets of parameters, and "group/name" for each; finite where all are."""
    apart = {}
    for group in groups:
        labels = [f"agent {agent}" for agent in group.agents] if group.is_separate else [group.name]
        for name, value in values[group.name].items():
            apart |= {f"{label}/{name}": x for label, x in zip(labels, jnp.atleast_1d(value), strict=True)}
    names = values[groups[0].name]
    mean = {name: jnp.mean(jnp.stack([x for key, x in apart.items() if key.rpartition("/")[2] == name])) for name in names}
    return mean | apart, Finite(
        *(jnp.all(jnp.stack([jnp.all(x) for x in parts])) for parts in zip(*finite.values(), strict=True))
    )
