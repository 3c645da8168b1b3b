"""Population-based training: members that do badly become altered copies of members that do well.

Jaderberg et al. 2017, arXiv:1711.09846 (algorithm 1; exploit by truncation selection and explore by perturbing or resampling,
section 4.1.1). Deviations: a member is replaced only by a better one, so that equal members keep their variety; the factor of a
perturbation is drawn from a span rather than from two values, and a number that would leave its range is reflected at its
end, so that children of one parent differ in their settings too; a member that is no longer finite is replaced whatever its
rank. All functions are pure: jit them, and shard them along the members.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.algorithm import Algorithm, Metrics


class Range(NamedTuple):
    """Where a setting may be, and whether it moves by factors ("log", for which low > 0) or by sums ("linear")."""

    low: float
    high: float
    scale: Literal["log", "linear"] = "linear"


Ranges = Mapping[str, Range]  # by the name of a traced setting


class Method(NamedTuple):
    """Numbers of the method."""

    fraction: float = 0.25  # share of the members that are replaced, and of those that are copied; at most 1/2
    resample: float = 0.25  # chance that a setting of a child is drawn anew from its range; else it is perturbed
    factor: float = 1.4  # most that a perturbation multiplies or divides a "log" setting by
    step: float = 0.1  # most that a perturbation adds to or takes from a "linear" setting, as a share of its range


class Evolving(NamedTuple):
    """A population and what selects among its members. Every leaf leads with `[P]`."""

    members: Any  # state of the population
    key: jax.Array  # key [P]: what the child in this place will draw from
    total_return: jax.Array  # float [P]: over the episodes that ended since the last generation
    episodes: jax.Array  # float [P]: how many those are
    is_well: jax.Array  # bool [P]: every number has been finite since the last generation
    fitness: jax.Array  # float [P]: as it was last known; NaN before any episode has ended


class Generation(NamedTuple):
    """What one call of `evolve` did, `[P]` each."""

    fitness: jax.Array  # float: of the members before it; NaN where it is not known, or where numbers are not finite
    parent: jax.Array  # int32: whose copy a member is; its own index where it stays
    settings: dict[str, jax.Array]  # float: of the members after it


def evolving(algorithm: Algorithm, ranges: Ranges) -> Algorithm:
    """A population that counts what `evolve` selects by: the mean return of each member's episodes in training.

    `algorithm`: made by `population`, with a state that has its settings under `config`. `init` takes a pair of keys `[P]`, of
    each member's run and of the children in its place, and draws the settings in `ranges` over those in the configs.
    """

    def init(keys: Any, configs: Any) -> Evolving:
        run_keys, place_keys = keys
        draw_keys, child_keys = jax.vmap(lambda key: tuple(jax.random.split(key)))(place_keys)
        settings = {
            name: jax.vmap(lambda key, i=index, span=span: draw(jax.random.fold_in(key, i), span))(draw_keys)
            for index, (name, span) in enumerate(ranges.items())
        }
        members = algorithm.init(run_keys, dataclasses.replace(configs, **settings))
        zero = jnp.zeros(run_keys.shape)
        return Evolving(members, child_keys, zero, zero, jnp.isfinite(zero), jnp.full_like(zero, jnp.nan))

    def step(state: Evolving) -> tuple[Evolving, Metrics]:
        members, metrics = algorithm.step(state.members)
        state = state._replace(
            members=members,
            total_return=state.total_return + metrics.episodes.total_return,
            episodes=state.episodes + metrics.episodes.number,
            is_well=state.is_well & jnp.all(jnp.stack(metrics.finite), axis=0),
        )
        config = algorithm.config(members)
        return state, metrics._replace(values=metrics.values | {f"evolve/{name}": getattr(config, name) for name in ranges})

    def reseed(state: Evolving, keys: jax.Array) -> Evolving:
        return state._replace(
            members=algorithm.reseed(state.members, keys), key=jax.vmap(jax.random.fold_in, (0, None))(keys, 0)
        )

    return Algorithm(
        init,
        step,
        act=lambda state, *arguments: algorithm.act(state.members, *arguments),
        initial_carry=lambda state: algorithm.initial_carry(state.members),
        acting_state=lambda state: algorithm.acting_state(state.members),
        reseed=reseed,
        config=lambda state: algorithm.config(state.members),
        with_config=lambda state, config: state._replace(members=algorithm.with_config(state.members, config)),
    )


def evolve(
    algorithm: Algorithm,
    state: Evolving,
    ranges: Ranges,
    method: Method = Method(),  # noqa: B008
) -> tuple[Evolving, Generation]:
    """One generation: the worst members become copies of random ones of the best, with settings and keys of their own.

    A copy is of the whole state: parameters, optimizer, environments, replay. Members that stay are not changed in any bit.
    `algorithm`: made by `population`.
    """
    split = jax.vmap(lambda key: tuple(jax.random.split(key, 4)))
    key, parent_key, explore_key, renew_key = split(state.key)
    known = jnp.where(state.episodes > 0, state.total_return / jnp.maximum(state.episodes, 1), state.fitness)
    fitness = jnp.where(state.is_well & jnp.isfinite(known), known, jnp.nan)
    parent = parents(parent_key, fitness, state.is_well, method.fraction)
    is_child = parent != jnp.arange(parent.size)

    # A child never has its parent's keys, so those are not taken.
    copies = jax.tree.map(lambda x: x if _is_key(x) else x[parent], state.members)
    copies = algorithm.reseed(copies, renew_key)
    members = jax.tree.map(lambda new, own: _replaced(is_child, new, own), copies, state.members)
    settings = {}
    for index, (name, span) in enumerate(ranges.items()):
        keys = jax.vmap(jax.random.fold_in, (0, None))(explore_key, index)
        value = getattr(algorithm.config(members), name)
        child = jax.vmap(lambda key, value, span=span: explore(key, value, span, method))(keys, value)
        settings[name] = jnp.where(is_child, child, value)
    members = algorithm.with_config(members, dataclasses.replace(algorithm.config(members), **settings))

    zero = jnp.zeros_like(fitness)
    state = Evolving(members, key, zero, zero, jnp.isfinite(zero), fitness[parent])
    return state, Generation(fitness, parent, settings)


def ranks(fitness: jax.Array) -> jax.Array:
    """The place of each member, int32 `[P]`: 0 is the best, NaN is last; of equals the one with the lower index is first."""
    return jnp.argsort(_order(fitness)).astype(jnp.int32)


def _order(fitness: jax.Array) -> jax.Array:
    """The members from the best to the worst, int32 `[P]`."""
    return jnp.argsort(-jnp.where(jnp.isnan(fitness), -jnp.inf, fitness), stable=True).astype(jnp.int32)


def parents(keys: jax.Array, fitness: jax.Array, is_well: jax.Array, fraction: float) -> jax.Array:
    """Whom each member becomes a copy of, int32 `[P]`: itself, or for a bad one a random one of the best.

    Bad are the last `fraction` of the members and all that are not well; best the first `fraction`, as far as their fitness
    is known. Who is no worse than the one that was drawn stays. `keys`: `[P]`.
    """
    own = jnp.arange(fitness.size, dtype=jnp.int32)
    number = selected(fitness.size, fraction)
    choices = jnp.clip(jnp.sum(jnp.isfinite(fitness)), 1, number)
    drawn = _order(fitness)[jax.vmap(lambda key: jax.random.randint(key, (), 0, choices))(keys)]
    worth = jnp.where(jnp.isnan(fitness), -jnp.inf, fitness)
    is_bad = (ranks(fitness) >= fitness.size - number) | ~is_well
    return jnp.where(is_bad & (worth[drawn] > worth), drawn, own)


def selected(num_members: int, fraction: float) -> int:
    """How many members are replaced at most while all are well, and how many are copied at most."""
    return min(max(int(num_members * fraction), 1), num_members // 2)


def draw(key: jax.Array, span: Range) -> jax.Array:
    """A number of the range, uniform on its scale."""
    low, high = _ends(span)
    return _number(jax.random.uniform(key, (), minval=low, maxval=high), span)


def explore(key: jax.Array, value: jax.Array, span: Range, method: Method) -> jax.Array:
    """A child's setting: its parent's perturbed, or a new one. `value`: float `[]`, within the range."""
    choose_key, draw_key, move_key = jax.random.split(key, 3)
    low, high = _ends(span)
    most = math.log(method.factor) if span.scale == "log" else method.step * (high - low)
    most = min(most, high - low)  # so that what is reflected once is within the range
    place = jnp.log(value) if span.scale == "log" else value
    place = place + most * jax.random.uniform(move_key, (), minval=-1.0, maxval=1.0)
    place = jnp.where(place > high, 2 * high - place, jnp.where(place < low, 2 * low - place, place))
    is_new = jax.random.bernoulli(choose_key, method.resample)
    return jnp.where(is_new, draw(draw_key, span), _number(place, span))


def _ends(span: Range) -> tuple[float, float]:
    """Where the range begins and ends on its scale."""
    return (math.log(span.low), math.log(span.high)) if span.scale == "log" else (span.low, span.high)


def _number(place: jax.Array, span: Range) -> jax.Array:
    """The setting at a place of its scale; clipped, because rounding leads out of it."""
    return jnp.clip(jnp.exp(place) if span.scale == "log" else place, span.low, span.high)


def _replaced(is_child: jax.Array, new: jax.Array, own: jax.Array) -> jax.Array:
    """`new` in the places of children. Keys as numbers: the check against reuse takes a selection among keys for a use."""
    if _is_key(own):
        chosen = _replaced(is_child, jax.random.key_data(new), jax.random.key_data(own))
        return jax.random.wrap_key_data(chosen, impl=jax.random.key_impl(own))
    return tree.where(is_child, new, own)


def _is_key(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
