"""Population-based training, which replaces weak members with modified copies of strong members.

The method is algorithm 1 of the paper, with truncation selection to exploit and perturbation or
resampling to explore (section 4.1.1). It deviates from the paper in these points:

- Members are replaced only by better members, so that equally good members keep their settings.
- The factor of a perturbation is sampled from an interval instead of two values. Settings that
  leave their range are reflected at the bounds. Children of one parent therefore have different
  settings.
- Members with values that are not finite are replaced, regardless of their rank.

All functions are pure and support jit and sharding along the member axis.

Members are compared by their mean return in training, estimated as the reward collected since the
last generation divided by the number of episodes that ended. The reward of running episodes is
included, because short episodes end first and would bias the estimate. The ratio converges to the
mean return (renewal-reward theorem). The fitness of a member with fewer than `min_episodes` ended
episodes is unknown. Such a member is neither replaced nor copied, and its measurement continues in
the next generation. Algorithms without episodes use a metric instead of the return.

References:
    Jaderberg et al. 2017, arXiv:1711.09846.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.algorithm import Algorithm, Metrics
from rollax.errors import UnknownNameError
from rollax.populations import check_is_algorithm
from rollax.types import PyTree, State

EPISODE_RETURN = "episode_return"  # name of the mean return in training as a metric


class Range(NamedTuple):
    """Range of a setting that population-based training changes.

    Attributes:
        low: Minimum value, which must be positive for a "log" scale.
        high: Maximum value.
        scale: Scale for sampling and perturbation. A perturbation multiplies the setting by a
            random factor ("log"), or adds a random number ("linear").
    """

    low: float
    high: float
    scale: Literal["log", "linear"] = "linear"


Ranges = Mapping[str, Range]  # keyed by the name of a traced setting


class EvolutionConfig(NamedTuple):
    """Settings of population-based training.

    Attributes:
        fraction: Maximum fraction of the members that are replaced, at most 1/2. The same fraction
            of the members, the best ones, may become parents.
        resample: Probability of sampling a setting of a child from its range instead of perturbing
            the setting of the parent.
        factor: Maximum factor of the perturbation of a "log" setting. The minimum is 1 / factor.
        step: Maximum perturbation of a "linear" setting, as a fraction of its range.
        min_episodes: Number of ended episodes after which the fitness of a member is known.
    """

    fraction: float = 0.25
    resample: float = 0.25
    factor: float = 1.4
    step: float = 0.1
    min_episodes: int = 1


class EvolutionState(NamedTuple):
    """Population with the measurements for selection. All leaves have a leading axis `[P]`.

    Attributes:
        members: State of the population.
        key: Random keys for the replacement of each member, `[P]`.
        total_return: Sum of rewards since the last generation, float `[P]`. With another selection
            metric, the sum of its values since then. With a metric of `Algorithm.state_metrics`,
            its last value.
        episodes: Number of episodes that ended since the last generation, float `[P]`. With another
            selection metric, the number of values in `total_return`.
        is_finite: Whether all `FiniteChecks` were true since the last generation, bool `[P]`.
        fitness: Last known fitness, or NaN if unknown, float `[P]`. A copy starts with the fitness
            of its parent.
    """

    members: Any
    key: jax.Array
    total_return: jax.Array
    episodes: jax.Array
    is_finite: jax.Array
    fitness: jax.Array


class Generation(NamedTuple):
    """Fitness, parents and settings of one generation, as returned by `evolve`.

    Attributes:
        fitness: Last known fitness before the generation, or NaN if unknown or not finite, float
            `[P]`.
        parent: Index of the parent of each replaced member, int32 `[P]`. For members that are not
            replaced, the index of the member itself.
        settings: Evolved settings after the generation, keyed by name, float `[P]` each.
    """

    fitness: jax.Array
    parent: jax.Array
    settings: dict[str, jax.Array]


def evolving(algorithm: Algorithm, ranges: Ranges, metric: str = EPISODE_RETURN) -> Algorithm:
    """Build a population that measures the fitness of its members for `evolve`.

    The `init` of the result takes a pair of key arrays `[P]` and the configs. The first array is
    for the runs of the members, the second for sampling settings and replacing members. `init`
    samples the settings in `ranges`, which override the values in the configs.

    Args:
        algorithm: Population built by `population`.
        ranges: Ranges of the settings that evolve, keyed by the name of the setting.
        metric: Selection metric, where larger is better: `episode_return`, a metric of
            `Algorithm.state_metrics` (its value after the last update), or a metric of updates (its
            mean since the last generation).

    Returns:
        The population as an algorithm, whose state is an `EvolutionState`.

    Raises:
        UsageError: If `algorithm` is not an `Algorithm`.
        UnknownNameError: While `step` is traced, if the algorithm does not report the metric.
    """
    check_is_algorithm(algorithm)

    def init(keys: jax.Array, configs: PyTree) -> EvolutionState:
        run_keys, evolution_keys = keys
        draw_keys, child_keys = jax.vmap(lambda key: tuple(jax.random.split(key)))(evolution_keys)
        settings = {
            name: jax.vmap(
                lambda key, i=index, span=span: sample_setting(jax.random.fold_in(key, i), span)
            )(draw_keys)
            for index, (name, span) in enumerate(ranges.items())
        }
        members = algorithm.init(run_keys, dataclasses.replace(configs, **settings))
        zero = jnp.zeros(run_keys.shape)
        return EvolutionState(
            members, child_keys, zero, zero, jnp.isfinite(zero), jnp.full_like(zero, jnp.nan)
        )

    def measure(
        update: Callable[..., tuple[State, Metrics]], state: EvolutionState, *rollout: PyTree
    ) -> tuple[EvolutionState, Metrics]:
        members, metrics = update(state.members, *rollout)
        total, num_measurements = add_measurement(
            state, algorithm.state_metrics(members), metrics, metric
        )
        is_finite = state.is_finite & jnp.all(jnp.stack(metrics.finite), axis=0)
        state = state._replace(
            members=members, total_return=total, episodes=num_measurements, is_finite=is_finite
        )
        config = algorithm.config(members)
        return state, metrics._replace(
            values=metrics.values | {f"evolve/{name}": getattr(config, name) for name in ranges}
        )

    def reseed(state: EvolutionState, keys: jax.Array) -> EvolutionState:
        return state._replace(
            members=algorithm.reseed(state.members, keys),
            key=jax.vmap(jax.random.fold_in, (0, None))(keys, 0),
        )

    return Algorithm(
        init,
        step=functools.partial(measure, algorithm.step),
        act=lambda state, *arguments: algorithm.act(state.members, *arguments),
        initial_carry=lambda state: algorithm.initial_carry(state.members),
        acting_state=lambda state: algorithm.acting_state(state.members),
        reseed=reseed,
        config=lambda state: algorithm.config(state.members),
        with_config=lambda state, config: state._replace(
            members=algorithm.with_config(state.members, config)
        ),
        learn=algorithm.learn and functools.partial(measure, algorithm.learn),
        parts=lambda state: algorithm.parts(state.members),
        with_parameters=_adjust_members(algorithm.with_parameters),
    )


def _adjust_members(
    with_parameters: Callable[[State, PyTree], State] | None,
) -> Callable[[EvolutionState, PyTree], EvolutionState] | None:
    """Return a function that applies `Algorithm.with_parameters` to the members, or None."""
    if with_parameters is None:
        return None
    return lambda state, values: state._replace(members=with_parameters(state.members, values))


def add_measurement(
    state: EvolutionState, state_metrics: dict[str, jax.Array], metrics: Metrics, metric: str
) -> tuple[jax.Array, jax.Array]:
    """Return the measurements of all members after an update.

    Non-finite values of a selection metric other than the return are ignored.

    Args:
        state: Population before the update.
        state_metrics: Metrics of the state after the update, keyed by name, `[P]` each.
        metrics: Metrics of the update, with a leading axis `[P]`.
        metric: Name of the selection metric.

    Returns:
        `total_return` and `episodes` of `EvolutionState`, float `[P]` each.

    Raises:
        UnknownNameError: If the algorithm does not report the metric.
    """
    if metric == EPISODE_RETURN:
        reward = metrics.episodes.total_return if metrics.reward is None else metrics.reward
        return state.total_return + reward, state.episodes + metrics.episodes.number
    if metric not in state_metrics and metric not in metrics.values:
        names = dict.fromkeys([EPISODE_RETURN, *state_metrics, *metrics.values])
        raise UnknownNameError("evolve_metric", metric, names)
    is_current = metric in state_metrics
    value = jnp.asarray(
        state_metrics[metric] if is_current else metrics.values[metric], jnp.float32
    )
    is_known = jnp.isfinite(value)
    total, count = jnp.where(is_known, value, 0.0), is_known.astype(jnp.float32)
    return (total, count) if is_current else (state.total_return + total, state.episodes + count)


def reset_measurements(
    total_return: jax.Array, episodes: jax.Array, min_episodes: int = 1
) -> tuple[jax.Array, jax.Array]:
    """Reset the return and episode counts of members with known fitness after a generation.

    Args:
        total_return: Sum of the returns since the last generation, float `[P]`.
        episodes: Number of episodes since the last generation, float `[P]`.
        min_episodes: Number of episodes after which the fitness is known.

    Returns:
        `total_return` and `episodes`, which are 0 for members with known fitness.
    """
    is_known = episodes >= min_episodes
    return jnp.where(is_known, 0.0, total_return), jnp.where(is_known, 0.0, episodes)


def evolve(
    algorithm: Algorithm,
    state: EvolutionState,
    ranges: Ranges,
    method: EvolutionConfig = EvolutionConfig(),  # noqa: B008
) -> tuple[EvolutionState, Generation]:
    """Perform one generation, which replaces the worst members with copies of the best members.

    Each copy has a random parent among the best members. It has the whole state of its parent
    (parameters, optimizer, environments, replay), but new settings and keys. Members that are not
    replaced stay bit-identical.

    Args:
        algorithm: Population built by `population`.
        state: State of the population that `evolving` builds.
        ranges: Ranges of the settings that evolve, keyed by the name of the setting.
        method: Settings of population-based training.

    Returns:
        The state after the generation, and the fitness, parents and settings of the generation.
    """
    split = jax.vmap(lambda key: tuple(jax.random.split(key, 4)))
    key, parent_key, explore_key, reseed_key = split(state.key)
    is_known = state.episodes >= method.min_episodes
    measured = state.total_return / jnp.maximum(state.episodes, 1)
    is_finite = state.is_finite & (jnp.isfinite(measured) | ~is_known)
    parent = select_parents(
        parent_key, jnp.where(is_known & is_finite, measured, jnp.nan), is_finite, method.fraction
    )
    fitness = jnp.where(is_finite, jnp.where(is_known, measured, state.fitness), jnp.nan)
    is_child = parent != jnp.arange(parent.size)

    # Keys are not copied, because children get new ones.
    copies = jax.tree.map(lambda x: x if _is_key(x) else x[parent], state.members)
    copies = algorithm.reseed(copies, reseed_key)
    members = jax.tree.map(
        lambda copy, member: _replace_children(is_child, copy, member), copies, state.members
    )
    settings = {}
    for index, (name, span) in enumerate(ranges.items()):
        keys = jax.vmap(jax.random.fold_in, (0, None))(explore_key, index)
        value = getattr(algorithm.config(members), name)
        child = jax.vmap(lambda key, value, span=span: explore_setting(key, value, span, method))(
            keys, value
        )
        settings[name] = jnp.where(is_child, child, value)
    members = algorithm.with_config(
        members, dataclasses.replace(algorithm.config(members), **settings)
    )

    totals = reset_measurements(state.total_return, state.episodes, method.min_episodes)
    total, episodes = (jnp.where(is_child, 0.0, value) for value in totals)
    state = EvolutionState(members, key, total, episodes, jnp.ones_like(is_child), fitness[parent])
    return state, Generation(fitness, parent, settings)


def rank_members(fitness: jax.Array) -> jax.Array:
    """Return the rank of each member, int32 `[P]`, where 0 is the best.

    A fitness of NaN ranks last. Ties are broken by index.
    """
    return jnp.argsort(_sort_members(fitness)).astype(jnp.int32)


def _sort_members(fitness: jax.Array) -> jax.Array:
    """Return the indices of members from best to worst, int32 `[P]`."""
    return jnp.argsort(-jnp.where(jnp.isnan(fitness), -jnp.inf, fitness), stable=True).astype(
        jnp.int32
    )


def select_parents(
    keys: jax.Array, fitness: jax.Array, is_finite: jax.Array, fraction: float
) -> jax.Array:
    """Select the members to replace and a parent for each of them.

    The worst `fraction` of the members and all non-finite members are candidates for replacement.
    The best `fraction` of the members are candidates for parents. Finite members of unknown fitness
    are candidates for neither. A candidate for replacement is replaced if its fitness is lower than
    that of a randomly selected parent.

    Args:
        keys: Random key of each member, `[P]`.
        fitness: Fitness of each member, float `[P]`, NaN if unknown.
        is_finite: Whether all numbers of each member are finite, bool `[P]`.
        fraction: Share of the members that are candidates for replacement and for parents.

    Returns:
        Index of the parent of each replaced member, int32 `[P]`. For members that are not replaced,
        the index of the member itself.
    """
    unchanged = jnp.arange(fitness.size, dtype=jnp.int32)
    is_known = jnp.isfinite(fitness)
    num_compared = jnp.sum(is_known | ~is_finite)
    num_candidates = jnp.minimum(num_selected(fitness.size, fraction), num_compared // 2)
    choices = jnp.maximum(jnp.minimum(num_candidates, jnp.sum(is_known)), 1)
    parent_draw = _sort_members(fitness)[
        jax.vmap(lambda key: jax.random.randint(key, (), 0, choices))(keys)
    ]
    comparable_fitness = jnp.where(jnp.isnan(fitness), -jnp.inf, fitness)
    is_candidate = (
        is_known & (rank_members(fitness) >= num_compared - num_candidates)
    ) | ~is_finite
    return jnp.where(
        is_candidate & (comparable_fitness[parent_draw] > comparable_fitness),
        parent_draw,
        unchanged,
    )


def num_selected(num_members: int, fraction: float) -> int:
    """Return the maximum number of parents, and of replaced finite members, in one generation.

    The result is `fraction` of the members, but at least 1 and at most half of them.
    """
    return min(max(int(num_members * fraction), 1), num_members // 2)


def sample_setting(key: jax.Array, span: Range) -> jax.Array:
    """Sample a setting from its range, uniformly on the scale of the range, float `[]`."""
    low, high = _scaled_bounds(span)
    return _unscale(jax.random.uniform(key, (), minval=low, maxval=high), span)


def explore_setting(
    key: jax.Array, value: jax.Array, span: Range, method: EvolutionConfig
) -> jax.Array:
    """Return the setting of a child: the perturbed setting of its parent, or a new sample.

    Args:
        key: Random key.
        value: Setting of the parent within its range, float `[]`.
        span: Range of the setting.
        method: Settings of population-based training.

    Returns:
        The setting of the child, float `[]`.
    """
    choose_key, draw_key, move_key = jax.random.split(key, 3)
    low, high = _scaled_bounds(span)
    max_step = math.log(method.factor) if span.scale == "log" else method.step * (high - low)
    max_step = min(max_step, high - low)  # a single reflection then returns to the range
    scaled_value = jnp.log(value) if span.scale == "log" else value
    scaled_value = scaled_value + max_step * jax.random.uniform(
        move_key, (), minval=-1.0, maxval=1.0
    )
    scaled_value = jnp.where(
        scaled_value > high,
        2 * high - scaled_value,
        jnp.where(scaled_value < low, 2 * low - scaled_value, scaled_value),
    )
    is_new = jax.random.bernoulli(choose_key, method.resample)
    return jnp.where(is_new, sample_setting(draw_key, span), _unscale(scaled_value, span))


def _scaled_bounds(span: Range) -> tuple[float, float]:
    """Return the bounds of a range, or their logarithms for a "log" scale."""
    return (
        (math.log(span.low), math.log(span.high)) if span.scale == "log" else (span.low, span.high)
    )


def _unscale(scaled_value: jax.Array, span: Range) -> jax.Array:
    """Convert a number from the scale of a range to a setting, and clip it to the range."""
    return jnp.clip(
        jnp.exp(scaled_value) if span.scale == "log" else scaled_value, span.low, span.high
    )


def _replace_children(
    is_child: jax.Array, new_values: jax.Array, old_values: jax.Array
) -> jax.Array:
    """Return `new_values` for replaced members, and `old_values` for all other members.

    Random keys are selected by their data because of JAX's key reuse checker.
    """
    if _is_key(old_values):
        key_data = _replace_children(
            is_child, jax.random.key_data(new_values), jax.random.key_data(old_values)
        )
        return jax.random.wrap_key_data(key_data, impl=jax.random.key_impl(old_values))
    return tree.where(is_child, new_values, old_values)


def _is_key(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
