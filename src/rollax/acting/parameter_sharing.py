"""Parameter sharing among agents.

"Parameters" stands for the parameters of a network, its optimizer states or its statistics. If all
agents share one set of parameters, as in single-agent environments, it is passed as a single
pytree. Otherwise parameters are a dictionary keyed by the name of an agent group. If the agents of
a group have separate parameters, its leaves have a leading axis with one entry per agent. A stream
is the experience of one agent in one environment.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.acting.streams import PolicyFn
from rollax.algorithm import FiniteChecks
from rollax.environments.capabilities import capabilities
from rollax.environments.environment import Environment
from rollax.scopes import profile_scope
from rollax.types import Action, Carry, Observation, Parameters, PyTree

Sharing = Literal["all", "type", "none"]


class ParameterGroup(NamedTuple):
    """Group of agents: all agents of one type, or all agents if they share their parameters.

    Attributes:
        name: Agent type, or "" for the group of all agents.
        agents: Indices of the agents.
        has_separate_parameters: Whether there is one set of parameters per agent instead of one set
            for the group.
    """

    name: str
    agents: tuple[int, ...]
    has_separate_parameters: bool


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
    groups = tuple(
        ParameterGroup(name, tuple(i for i in agents if types[i] == name), sharing == "none")
        for name in dict.fromkeys(types)
    )
    return AgentGroups(len(agents), has_axis, groups)


def make_policy(
    agent_groups: AgentGroups,
    act: Callable[..., tuple[Carry, Action, PyTree]],
    parameters: Parameters,
) -> PolicyFn:
    """Build the policy of all agents in one environment.

    Args:
        agent_groups: Groups of agents.
        act: Function `(parameters, carry, obs, reset, key)` that returns the carry, action and
            extras of one agent.
        parameters: Parameters, a dictionary keyed by group name unless all agents share them.

    Returns:
        The policy. In environments with an agent axis, its carry, observation, action and extras
        have the leading axis `[A]`.
    """

    def act_together(
        carry: Carry, obs: Observation, reset: jax.Array, key: jax.Array
    ) -> tuple[Any, Any, Any]:
        if not agent_groups.has_agent_axis:
            return act(parameters, carry, obs, reset, key)
        if agent_groups.num_agents == 1:  # bit-identical to an environment without agents
            inputs = *jax.tree.map(lambda x: x[0], (carry, obs)), reset.reshape(()), key
            outputs = act(parameters, *inputs)
            return jax.tree.map(lambda x: x[None], outputs)
        agent_keys = jax.random.split(key, agent_groups.num_agents)
        inputs = split_groups(
            agent_groups, (carry, obs, jnp.broadcast_to(reset, agent_groups.num_agents), agent_keys)
        )
        outputs = map_groups(
            agent_groups,
            lambda values, x: jax.vmap(act, (None, 0, 0, 0, 0))(values, *x),
            parameters,
            inputs,
        )
        return join_groups(agent_groups, outputs)

    return act_together


def initial_carry(
    agent_groups: AgentGroups, first: Callable[[Parameters], Carry], parameters: Parameters
) -> Any:
    """Return the memory of all agents at the start of an episode of one environment.

    Args:
        agent_groups: Groups of agents.
        first: Function from one set of parameters to the initial memory of one agent.
        parameters: Parameters, a dictionary keyed by group name unless all agents share them.

    Returns:
        The memory, with a leading axis `[A]` in environments with an agent axis.
    """
    if not agent_groups.has_agent_axis:
        return first(parameters)

    def broadcast_first(values: PyTree, agents: jax.Array) -> Any:
        return jax.tree.map(
            lambda x: jnp.broadcast_to(x, agents.shape + jnp.shape(x)), first(values)
        )

    agents = split_groups(agent_groups, jnp.zeros(agent_groups.num_agents))
    return join_groups(agent_groups, map_groups(agent_groups, broadcast_first, parameters, agents))


def num_group_streams(agent_groups: AgentGroups, num_envs: int) -> list[int]:
    """Return, for each group, the number of streams that train one set of its parameters."""
    return [
        num_envs * (1 if group.has_separate_parameters else len(group.agents))
        for group in agent_groups.groups
    ]


def act_agents(
    agent_groups: AgentGroups,
    choose: Callable[..., tuple[Carry, Action]],
    parameters: Parameters,
    obs: Observation,
    carry: Carry,
    key: jax.Array,
) -> tuple[Any, Any]:
    """Choose the actions of all agents in one environment.

    Args:
        agent_groups: Groups of agents.
        choose: Function `(parameters, carry, obs, key)` that returns the carry and the action of
            one agent.
        parameters: Parameters, a dictionary keyed by group name unless all agents share them.
        obs: Observation in one environment, with an axis `[A]` if the environment has agents.
        carry: Memory before the step.
        key: Random key.

    Returns:
        The action and the memory after the step.
    """

    def choose_without_extras(values, carry, obs, reset, key):
        return (*choose(values, carry, obs, key), ())

    carry, action, _ = make_policy(agent_groups, choose_without_extras, parameters)(
        carry, obs, jnp.zeros((), bool), key
    )
    return action, carry


def init_groups(agent_groups: AgentGroups, function: Callable[..., PyTree], key: jax.Array) -> Any:
    """Initialize each set of parameters by calling `function` with a random key.

    Args:
        agent_groups: Groups of agents.
        function: Function from a random key to one set of parameters.
        key: Random key.

    Returns:
        The parameters, a dictionary keyed by group name unless all agents share them.
    """
    if agent_groups.is_fully_shared:
        return function(key)
    by_group = {}
    keys = jax.random.split(key, len(agent_groups.groups))
    for group, group_key in zip(agent_groups.groups, keys, strict=True):
        if group.has_separate_parameters:
            # Sequential, for the reason given in `rollax.populations.population`.
            agent_keys = jax.random.split(group_key, len(group.agents))
            by_group[group.name] = jax.lax.map(function, agent_keys)
        else:
            by_group[group.name] = function(group_key)
    return by_group


def split_key(agent_groups: AgentGroups, key: jax.Array) -> Any:
    """Split a key into one key for each set of parameters (see `init_groups`)."""
    return init_groups(agent_groups, lambda group_key: group_key, key)


def split_groups(agent_groups: AgentGroups, values: PyTree, axis: int = 0) -> Any:
    """Split values along the stream axis into one entry per group.

    Args:
        agent_groups: Groups of agents.
        values: Pytree whose leaves have the streams of all agents along axis `axis`.
        axis: Index of the stream axis.

    Returns:
        Dictionary from group name to the values of its streams. The values of groups with separate
        parameters have a leading agent axis. If all agents share parameters, `values` unchanged.
    """
    if agent_groups.is_fully_shared:
        return values

    def pick(group: ParameterGroup, x: jax.Array) -> jax.Array:
        # Split the data of keys, because JAX's key reuse checker counts a slice as the whole array.
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            data = pick(group, jax.random.key_data(x))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        x = x.reshape((*before, -1, agent_groups.num_agents) + after)
        x = jnp.take(x, np.asarray(group.agents), axis=axis + 1)
        if group.has_separate_parameters:
            return jnp.moveaxis(x, axis + 1, 0)
        return x.reshape((*before, -1) + after)

    return {
        group.name: jax.tree.map(lambda x, group=group: pick(group, x), values)
        for group in agent_groups.groups
    }


def join_groups(agent_groups: AgentGroups, values: PyTree, axis: int = 0) -> Any:
    """Join the values of all groups along the stream axis. This inverts `split_groups`.

    Args:
        agent_groups: Groups of agents.
        values: Result of `split_groups`, or a pytree of the same structure.
        axis: Index of the stream axis.

    Returns:
        Pytree whose leaves have the streams of all agents along axis `axis`.
    """
    if agent_groups.is_fully_shared:
        return values

    def spread(group: ParameterGroup, x: jax.Array) -> jax.Array:
        if group.has_separate_parameters:
            return jnp.moveaxis(x, 0, axis + 1)
        return x.reshape((*x.shape[:axis], -1, len(group.agents)) + x.shape[axis + 1 :])

    order = np.argsort([agent for group in agent_groups.groups for agent in group.agents])

    def merge(*parts: jax.Array) -> jax.Array:
        spread_parts = [spread(g, x) for g, x in zip(agent_groups.groups, parts, strict=True)]
        x = jnp.take(jnp.concatenate(spread_parts, axis=axis + 1), order, axis=axis + 1)
        return x.reshape((*x.shape[:axis], -1) + x.shape[axis + 2 :])

    return jax.tree.map(merge, *[values[group.name] for group in agent_groups.groups])


def map_groups(agent_groups: AgentGroups, function: Callable[..., PyTree], *values: PyTree) -> Any:
    """Apply a function to the values of each set of parameters.

    Args:
        agent_groups: Groups of agents.
        function: Function of one set of parameters and further values.
        *values: Arguments of the function. Unless all agents share parameters, each argument is a
            dictionary keyed by group name.

    Returns:
        The result of `function`. Unless all agents share parameters, a dictionary of its results
        keyed by group name.
    """
    if agent_groups.is_fully_shared:
        return function(*values)
    results = {}
    for group in agent_groups.groups:
        run = jax.vmap(function) if group.has_separate_parameters else function
        results[group.name] = run(*(value[group.name] for value in values))
    return results


def collect_fields(agent_groups: AgentGroups, results: PyTree) -> Any:
    """Return the NamedTuples of all groups as one NamedTuple, whose fields are keyed by group name.

    Args:
        agent_groups: Groups of agents.
        results: A NamedTuple, as returned by `map_groups`. Unless all agents share parameters, a
            dictionary of them keyed by group name.

    Returns:
        The NamedTuple. Unless all agents share parameters, each field is a dictionary.
    """
    if agent_groups.is_fully_shared:
        return results
    kind = type(next(iter(results.values())))
    fields = zip(*results.values(), strict=True)
    return kind(*(dict(zip(results, parts, strict=True)) for parts in fields))


@profile_scope("bookkeeping")
def summarize_metrics(
    agent_groups: AgentGroups, values: PyTree, finite: PyTree
) -> tuple[dict[str, jax.Array], FiniteChecks]:
    """Return scalar metrics and the combined finite checks of all groups.

    Args:
        agent_groups: Groups of agents.
        values: Metrics, keyed by name. Unless all agents share parameters, a dictionary from group
            name to such metrics.
        finite: `FiniteChecks`. Unless all agents share parameters, a dictionary keyed by group
            name.

    Returns:
        Scalar metrics, keyed by name, and `FiniteChecks`. Unless all agents share parameters, each
        metric is the mean over all sets of parameters, and there is an additional metric
        "group/metric" or "agent i/metric" for each set. A check is true if it is true for all sets.
    """
    if agent_groups.is_fully_shared:
        return values, finite
    individual = {}
    for group in agent_groups.groups:
        agents = [f"agent {agent}" for agent in group.agents]
        labels = agents if group.has_separate_parameters else [group.name]
        for name, value in values[group.name].items():
            for label, x in zip(labels, jnp.atleast_1d(value), strict=True):
                individual[f"{label}/{name}"] = x
    means = {
        name: jnp.mean(
            jnp.stack([x for key, x in individual.items() if key.rpartition("/")[2] == name])
        )
        for name in values[agent_groups.groups[0].name]
    }
    checks = (
        jnp.all(jnp.stack([jnp.all(x) for x in parts]))
        for parts in zip(*finite.values(), strict=True)
    )
    return means | individual, FiniteChecks(*checks)
