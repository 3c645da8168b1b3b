"""Parameters of agent groups, for environments whose agents do not share all parameters.

Pytrees of parameters, optimizer states and statistics are dictionaries by group name. If the agents
of a group have separate parameters, leaves have a leading axis `[agents of the group]`. See
`rollax.acting.parameter_sharing` for the interface.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.algorithm import FiniteChecks
from rollax.types import PyTree


class ParameterGroup(NamedTuple):
    """Agents of one type.

    Attributes:
        name: Name of the type.
        agents: Indices of the agents.
        has_separate_parameters: Whether each agent has its own parameters instead of a shared set.
    """

    name: str
    agents: tuple[int, ...]
    has_separate_parameters: bool


ParameterGroups = tuple[ParameterGroup, ...]


def init_groups(groups: ParameterGroups, function: Callable[..., PyTree], key: jax.Array) -> Any:
    """Initialize each set of parameters with `function(key)`.

    Args:
        groups: Groups of agents.
        function: Function from a random key to parameters.
        key: Random key.

    Returns:
        The parameters by group name.
    """
    made = {}
    for group, group_key in zip(groups, jax.random.split(key, len(groups)), strict=True):
        if group.has_separate_parameters:
            # Sequential, for the reason given in `rollax.populations.population`.
            made[group.name] = jax.lax.map(function, jax.random.split(group_key, len(group.agents)))
        else:
            made[group.name] = function(group_key)
    return made


def split_groups(groups: ParameterGroups, values: PyTree, axis: int) -> Any:
    """Split values along the stream axis into one entry per group.

    Args:
        groups: Groups of agents.
        values: Pytree whose leaves have the streams of all agents on axis `axis`.
        axis: Index of the stream axis.

    Returns:
        Values by group name. Groups with separate parameters get a leading agent axis.
    """
    num_agents = sum(len(group.agents) for group in groups)

    def pick(group: ParameterGroup, x: jax.Array) -> jax.Array:
        # Split the data of keys, because JAX's key reuse checker treats a part as the whole key.
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(
                pick(group, jax.random.key_data(x)), impl=jax.random.key_impl(x)
            )
        x = x.reshape(*x.shape[:axis], -1, num_agents, *x.shape[axis + 1 :])
        x = jnp.take(x, np.asarray(group.agents), axis=axis + 1)
        return (
            jnp.moveaxis(x, axis + 1, 0)
            if group.has_separate_parameters
            else x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
        )

    return {group.name: jax.tree.map(lambda x, g=group: pick(g, x), values) for group in groups}


def join_groups(groups: ParameterGroups, values: PyTree, axis: int) -> Any:
    """Join values by group along the stream axis. This is the inverse of `split_groups`."""

    def spread(group: ParameterGroup, x: jax.Array) -> jax.Array:
        if group.has_separate_parameters:
            return jnp.moveaxis(x, 0, axis + 1)
        return x.reshape(*x.shape[:axis], -1, len(group.agents), *x.shape[axis + 1 :])

    order = np.argsort([agent for group in groups for agent in group.agents])

    def merge(*parts: jax.Array) -> jax.Array:
        x = jnp.concatenate(
            [spread(g, x) for g, x in zip(groups, parts, strict=True)], axis=axis + 1
        )
        x = jnp.take(x, order, axis=axis + 1)
        return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    return jax.tree.map(merge, *[values[group.name] for group in groups])


def map_groups(
    groups: ParameterGroups, function: Callable[..., PyTree], *values: PyTree
) -> tuple[Any, ...]:
    """Apply a function to each set of parameters.

    Args:
        groups: Groups of agents.
        function: Function that returns a tuple or a NamedTuple.
        *values: Arguments by group name.

    Returns:
        A tuple of the type that `function` returns. Each element is a dictionary by group name.
    """
    results = []
    for group in groups:
        run = jax.vmap(function) if group.has_separate_parameters else function
        results.append(run(*(value[group.name] for value in values)))
    names = [group.name for group in groups]
    by_group = [dict(zip(names, parts, strict=True)) for parts in zip(*results, strict=True)]
    kind: Any = type(results[0])
    return tuple(by_group) if kind is tuple else kind(*by_group)


def summarize_metrics(
    groups: ParameterGroups, values: PyTree, finite: Mapping[str, FiniteChecks]
) -> tuple[dict[str, jax.Array], FiniteChecks]:
    """Return the mean and the individual metrics of all groups, and their combined finite checks.

    Args:
        groups: Groups of agents.
        values: Metrics by group name.
        finite: `FiniteChecks` by group name.

    Returns:
        Scalar metrics and finite checks. The metrics contain the mean of each metric over all sets
        of parameters, and an entry "group/metric" or "agent i/metric" for each set. The checks are
        true if they are true for all groups.
    """
    apart = {}
    for group in groups:
        labels = (
            [f"agent {agent}" for agent in group.agents]
            if group.has_separate_parameters
            else [group.name]
        )
        for name, value in values[group.name].items():
            apart |= {
                f"{label}/{name}": x for label, x in zip(labels, jnp.atleast_1d(value), strict=True)
            }
    names = values[groups[0].name]
    mean = {
        name: jnp.mean(jnp.stack([x for key, x in apart.items() if key.rpartition("/")[2] == name]))
        for name in names
    }
    return mean | apart, FiniteChecks(
        *(
            jnp.all(jnp.stack([jnp.all(x) for x in parts]))
            for parts in zip(*finite.values(), strict=True)
        )
    )
