"""Metrics of episodes: sums of returns and lengths, and reductions of the environment's `info`.

An entry of `info` is reduced over an episode to its mean, sum or last value.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax import tree
from rollax.algorithm import EpisodeSums
from rollax.environments.capabilities import capabilities, is_on_host
from rollax.environments.environment import INFO_REDUCTIONS, Environment
from rollax.environments.trace_cache import trace_once
from rollax.errors import UnknownNameError, UsageError
from rollax.scopes import profile_scope
from rollax.spaces import make_zeros
from rollax.types import PyTree

# Entries of `info` with more elements are not logged in training.
MAX_LOGGED_ELEMENTS = 16


class InfoReduction(NamedTuple):
    """Reduction of the `info` of N episodes while they run.

    Attributes:
        start: Function from the number of episodes N to the initial accumulators.
        add: Function `(accumulators, info, alive)` that returns the accumulators after a step.
            `info` is the info of the step, `[N, ...]` per entry, and `alive`, bool `[N]`, marks the
            running episodes.
        finish: Function `(accumulators, length)` that returns the reduced entries of episodes with
            lengths `[N]`: a dictionary from name to float32 `[N, ...]`.
    """

    start: Callable[[int], Any]
    add: Callable[[Any, Any, jax.Array], Any]
    finish: Callable[[Any, jax.Array], Any]


def make_info_reduction(
    environment: Environment,
    choices: Mapping[str, str] | None = None,
    *,
    max_elements: float = math.inf,
) -> InfoReduction:
    """Build the reduction of the environment's `info`. All values are reduced as float32.

    Args:
        environment: Environment of the episodes.
        choices: Dictionary from the name of an `info` entry to "mean", "sum" or "last". It
            overrides the reductions declared by an `InfoReductionsEnvironment`. Entries without a
            reduction are reduced to their mean.
        max_elements: Entries with more elements are omitted.

    Returns:
        The reduction.

    Raises:
        UsageError: If a reduction is not "mean", "sum" or "last".
        UnknownNameError: If `choices` contains a name that is not in the environment's `info`.
    """
    by = validate_reductions(environment, choices)
    shapes = {
        name: shape
        for name, shape in info_shapes(environment).items()
        if math.prod(shape.shape) <= max_elements
    }

    def start(number: int) -> Any:
        return jax.tree.map(lambda x: jnp.zeros((number, *x.shape)), shapes)

    def add(memory: PyTree, info: dict[str, PyTree], alive: jax.Array) -> Any:
        def accumulate(total: jax.Array, value: jax.Array, reduction: str) -> jax.Array:
            return value.astype(total.dtype) if reduction == "last" else total + value

        new = {
            name: jax.tree.map(
                lambda t, v, how=by[name]: accumulate(t, v, how), memory[name], info[name]
            )
            for name in memory
        }
        return tree.where(alive, new, memory)

    def finish(memory: PyTree, length: jax.Array) -> Any:
        def mean(total: jax.Array) -> jax.Array:
            return total / length.reshape(-1, *(1,) * (total.ndim - 1))

        return {
            name: jax.tree.map(mean, total) if by[name] == "mean" else total
            for name, total in memory.items()
        }

    return InfoReduction(start, add, finish)


def validate_reductions(
    environment: Environment, choices: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return a dictionary from the name of each `info` entry to "mean", "sum" or "last".

    Args:
        environment: Environment with the `info`.
        choices: Reductions that override those of the environment, as in `make_info_reduction`.

    Raises:
        UsageError: If a reduction is not "mean", "sum" or "last".
        UnknownNameError: If `choices` contains a name that is not in the environment's `info`.
    """
    shapes = info_shapes(environment)
    how = {**capabilities(environment).info_reductions, **(choices or {})}
    for name in choices or {}:
        if name not in shapes:
            hint = " If the first step does not have it, pass it as info_names to from_gymnasium."
            raise UnknownNameError(
                f"number in the info of {environment.name}",
                name,
                shapes,
                hint if is_on_host(environment) else "",
            )
    for name, reduction in how.items():
        if reduction not in INFO_REDUCTIONS:
            raise UsageError(
                f"{environment.name}: the reduction of info {name} ({reduction!r}) must be one of "
                f"{', '.join(INFO_REDUCTIONS)}."
            )
    return {name: how.get(name, "mean") for name in shapes}


def sum_ended_info(
    info: Mapping[str, jax.Array], ended: jax.Array
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Return the terms of `EpisodeSums.info` in each environment, 0 where no episode ended.

    Args:
        info: Reduced entries of the current episodes, `[E, ...]` each.
        ended: Whether the episode ended, bool `[E]`.

    Returns:
        `(number, total)`, float32 `[E]` each, keyed by the name of an entry. Arrays have one key
        `<name>/<index>` per element.
    """
    sums = {}
    for name, values in info.items():
        elements = values.reshape(values.shape[0], -1)
        for index in range(elements.shape[1]):
            is_counted = ended & jnp.isfinite(elements[:, index])
            sums[name if values.ndim == 1 else f"{name}/{index}"] = (
                is_counted.astype(jnp.float32),
                jnp.where(is_counted, elements[:, index], 0.0),
            )
    return sums


def total_sums(environment: Environment, sums: EpisodeSums) -> EpisodeSums:
    """Sum episode statistics over all axes, in total and for each agent type.

    Args:
        environment: Environment, which declares the agent types.
        sums: Statistics per step and stream, `[T, E]` or `[T, E, A]`.
    """
    types = capabilities(environment).agent_types
    names = list(dict.fromkeys(types))

    def sum_agents(name: str) -> tuple[jax.Array, ...]:
        agents = np.flatnonzero([name == other for other in types])
        return tuple(jnp.sum(total[..., agents]) for total in sums[:2])

    by_type = {name: sum_agents(name) for name in names} if len(names) > 1 else {}
    return jax.tree.map(jnp.sum, sums)._replace(agent_type_sums=by_type)


@profile_scope("bookkeeping")
def sum_ended_episodes(
    episode_return: jax.Array, episode_length: jax.Array, ended: jax.Array
) -> EpisodeSums:
    """Return the episode statistics of each stream, set to 0 where no episode ended.

    Args:
        episode_return: Return of the current episode, float `[E]` or `[E, A]`.
        episode_length: Number of steps of the current episode, with the same shape.
        ended: Whether the episode ended, bool with the same shape.

    Returns:
        Statistics with the shape of the arguments, without sums per agent type.
    """

    def of_ended(total):
        return jnp.where(ended, total, 0).astype(jnp.float32)

    return EpisodeSums(of_ended(1), of_ended(episode_return), of_ended(episode_length))


def info_shapes(environment: Environment) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shape and dtype of each entry of the `info` of one step, keyed by name."""
    if is_on_host(environment):
        return {name: jax.ShapeDtypeStruct((), jnp.float32) for name in environment.info_names}

    def info(keys: jax.Array) -> dict[str, jax.Array]:
        action = make_zeros(environment.action_space, environment.num_agents)
        return trace_once(environment, "step")(
            keys[0], trace_once(environment, "reset")(keys[1])[0], action
        ).info

    return jax.eval_shape(info, jax.eval_shape(lambda: jax.random.split(jax.random.key(0))))
