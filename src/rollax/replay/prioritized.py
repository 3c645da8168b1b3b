"""Prioritized experience replay: a sum tree, and the replay that is sampled by it.

Schaul et al. 2016, arXiv:1511.05952, proportional variant (section 3.3), for transition i with TD error delta_i:

p_i  = |delta_i| + epsilon            a new transition has the largest priority so far
P(i) = p_i^alpha / sum_k p_k^alpha                                                     (eq. 1)
w_i  = (N P(i))^-beta / max_j w_j     the maximum over the batch                       (section 3.4)

beta rises linearly to 1 at the end of training. Deviation: the paper's maximum is over the whole replay.

A node of the tree has 16 children rather than two: a million leaves are five levels, and a level costs about the same however
wide a node. On every path that changed sums are taken anew from the children, so rounding errors do not add up.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.replay import ring
from rollax.replay.ring import Batch, Replay, ReplayBuffer, Step

CHILDREN = 16


class SumTree(NamedTuple):
    """Weights by index, and their sums. From the root: float [nodes of this level, CHILDREN]; the last one is the weights."""

    levels: tuple[jax.Array, ...]


def init(size: int) -> SumTree:
    """Weights 0 for `size` indices."""
    return from_weights(jnp.zeros(size))


def from_weights(weight: jax.Array) -> SumTree:
    """The tree of these weights `[size]`, none below 0. Takes time in proportion to their number."""
    levels: list[jax.Array] = []
    while not levels or levels[0].shape[0] > 1:
        nodes = -(-weight.size // CHILDREN)
        levels.insert(0, jnp.pad(weight, (0, nodes * CHILDREN - weight.size)).reshape(nodes, CHILDREN))
        weight = jnp.sum(levels[0], axis=1)
    return SumTree(tuple(levels))


def total(tree: SumTree) -> jax.Array:
    """The sum of all weights."""
    return jnp.sum(tree.levels[0])


def get(tree: SumTree, index: jax.Array) -> jax.Array:
    """The weights at `index` [B]."""
    return tree.levels[-1][index // CHILDREN, index % CHILDREN]


def put(tree: SumTree, index: jax.Array, weight: jax.Array, keep: jax.Array) -> SumTree:
    """Sets weights `[B]`, none below 0, where `keep`. Takes time in proportion to B and the number of levels.

    Where an index comes twice, it must come with the same weight.
    """
    levels = []
    for level in reversed(tree.levels):
        node = jnp.where(keep, index // CHILDREN, level.shape[0])  # out of range: not written
        level = level.at[node, index % CHILDREN].set(weight, mode="drop")
        index = index // CHILDREN
        weight = jnp.sum(level[index], axis=1)
        levels.insert(0, level)
    return SumTree(tuple(levels))


def find(tree: SumTree, point: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The indices [B] at which running sums of weights exceed `point` [B] from 0 ... total, and the weights there, never 0.

    For points uniform in that range, each index comes in proportion to its weight.
    """
    upper = jnp.triu(jnp.ones((CHILDREN, CHILDREN)))
    node = jnp.zeros(point.shape, jnp.int32)
    found = jnp.zeros(point.shape)
    for level in tree.levels:
        weight = level[node]
        running = jnp.dot(weight, upper, precision="highest")
        # Rounding may put the point beyond the last sum: then it is the last child that weighs anything.
        last = CHILDREN - 1 - jnp.argmax(weight[:, ::-1] > 0, axis=1)
        child = jnp.minimum(jnp.sum(running <= point[:, None], axis=1), last)
        before = jnp.take_along_axis(running - weight, child[:, None], axis=1)[:, 0]
        found = jnp.take_along_axis(weight, child[:, None], axis=1)[:, 0]
        point, node = jnp.maximum(point - before, 0.0), node * CHILDREN + child.astype(jnp.int32)
    return node, found


class Prioritized(NamedTuple):
    """A replay with the priority of each transition, and the tree by which it is sampled."""

    replay: Replay
    tree: SumTree  # of p^alpha
    priority: jax.Array  # float [S * N]: p, from which the tree can be made again for another alpha
    largest: jax.Array  # float []: the largest p so far
    largest_weight: jax.Array  # float []: the same to the power of alpha


def reweighted(state: Prioritized, exponent: jax.Array | float) -> Prioritized:
    """The replay sampled by p^exponent of all priorities, as if alpha had always been that.

    Takes time in proportion to the capacity: for where a member's settings change.
    """
    num_streams, places = state.replay.cursor.size, state.priority.size // state.replay.cursor.size
    is_filled = jnp.broadcast_to(jnp.arange(places), (num_streams, places)) < state.replay.size[:, None]
    weight = jnp.where(is_filled.reshape(-1), jnp.power(state.priority, exponent), 0.0)
    return state._replace(tree=from_weights(weight), largest_weight=jnp.power(state.largest, exponent))


def _put(
    state: Prioritized, index: jax.Array, priority: jax.Array, weight: jax.Array, keep: jax.Array, replay: Replay
) -> Prioritized:
    """The replay with priorities `[B]` and their weights p^alpha at `index`, where `keep`."""
    place = jnp.where(keep, index, state.priority.size)  # out of range: not written
    priorities = state.priority.at[place].set(priority, mode="drop")
    return state._replace(replay=replay, tree=put(state.tree, index, weight, keep), priority=priorities)


def prioritized(num_steps: int = 1) -> ReplayBuffer:
    """Transitions in proportion to p^alpha, p of when they were last learned from; returns over `num_steps` steps.

    Besides what `ring.uniform` needs the config has `priority_exponent` (alpha), `importance_exponent` (beta at the start) and
    `priority_epsilon` (epsilon).
    """

    def start(example: Step, num_streams: int, config: Any) -> Prioritized:
        ring.check_enough(num_streams, config.capacity, config.batch_size)
        rows, size = ring.init(example, num_streams, config.capacity), num_streams * (config.capacity // num_streams)
        return Prioritized(rows, init(size), jnp.zeros(size), jnp.ones(()), jnp.ones(()))

    def add(state: Prioritized, rows: Step, keep: jax.Array) -> Prioritized:
        after = ring.add(state.replay, rows, keep)
        priority, weight = (jnp.full(keep.shape, x) for x in (state.largest, state.largest_weight))
        return _put(state, ring.newest(after), priority, weight, keep, after)

    def sample(state: Prioritized, config: Any, key: jax.Array, progress: jax.Array) -> tuple[Batch, jax.Array]:
        size = config.batch_size
        # One point in each of B equal parts of the whole, as in the paper's appendix B.2.1.
        part = (jnp.arange(size) + jax.random.uniform(key, (size,))) / size
        # Read once: to read the weights again after `update_priorities`, XLA would keep a copy of them all.
        index, weight = find(state.tree, part * total(state.tree))
        batch = ring.returns(state.replay, index, num_steps, config.gamma)
        correction = config.importance_exponent + (1 - config.importance_exponent) * jnp.clip(progress, 0.0, 1.0)
        # N and the sum are the same for all and cancel. The bound keeps weights finite where a priority is 0.
        importance = jnp.power(jnp.maximum(weight, 1e-12) / jnp.maximum(jnp.min(weight), 1e-12), -correction)
        return batch._replace(weight=importance), index

    def update_priorities(
        state: Prioritized, config: Any, index: jax.Array, td_error: jax.Array, is_active: jax.Array
    ) -> Prioritized:
        priority = td_error + config.priority_epsilon
        weight = jnp.power(priority, config.priority_exponent)
        largest = jnp.where(is_active, jnp.maximum(state.largest, jnp.max(priority)), state.largest)
        largest_weight = jnp.where(is_active, jnp.maximum(state.largest_weight, jnp.max(weight)), state.largest_weight)
        state = _put(state, index, priority, weight, jnp.broadcast_to(is_active, index.shape), state.replay)
        return state._replace(largest=largest, largest_weight=largest_weight)

    return ReplayBuffer(
        init=start,
        add=add,
        can_sample=lambda state, config: ring.can_sample(state.replay, config.batch_size),
        sample=sample,
        update_priorities=update_priorities,
    )
