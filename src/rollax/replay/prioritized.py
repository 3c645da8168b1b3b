"""Prioritized sampling: a tree of sums, and the replay that is drawn from by it.

Schaul et al. 2016, arXiv:1511.05952, proportional variant: P(i) = p_i^alpha / sum_k p_k^alpha, p_i = |error_i| + epsilon.
A new step has the largest priority there was. Weights are (N P(i))^-beta over the largest of the batch (section 3.4), with beta
rising in a straight line to 1 at the end of training.

A node has 16 children rather than two: a million leaves are five levels, and a level costs about the same however wide a node.
Sums are taken anew from the children on every path that changed, so rounding errors never add up.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.replay import ring
from rollax.replay.ring import Batch, Replay, ReplayBuffer, Step

CHILDREN = 16


class SumTree(NamedTuple):
    """Weights by index, and their sums."""

    levels: tuple[
        jax.Array, ...
    ]  # from the root: float [nodes of this level, CHILDREN]; the last one's entries are the weights


def init(size: int) -> SumTree:
    """Weights 0 for `size` indices."""
    levels: list[jax.Array] = []
    while not levels or levels[0].shape[0] > 1:
        size = -(-size // CHILDREN)
        levels.insert(0, jnp.zeros((size, CHILDREN)))
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
    """A replay, and how likely each of its rows is drawn."""

    replay: Replay
    tree: SumTree
    largest: jax.Array  # float []: the largest priority there was, to the power of alpha


def prioritized(num_steps: int = 1) -> ReplayBuffer:
    """Steps in proportion to the errors that they had when they were last learnt from; returns over `num_steps` steps.

    Besides that of `ring.uniform` the config has `priority_exponent` (alpha), `importance_exponent` (beta at the start) and
    `priority_epsilon` (epsilon).
    """

    def start(example: Step, num_streams: int, config: Any) -> Prioritized:
        ring.check_enough(num_streams, config.capacity, config.batch_size)
        rows = ring.init(example, num_streams, config.capacity)
        return Prioritized(rows, init(num_streams * (config.capacity // num_streams)), jnp.ones(()))

    def add(state: Prioritized, rows: Step, keep: jax.Array) -> Prioritized:
        after = ring.add(state.replay, rows, keep)
        weight = jnp.full(keep.shape, state.largest)
        return state._replace(replay=after, tree=put(state.tree, ring.newest(after), weight, keep))

    def sample(state: Prioritized, config: Any, key: jax.Array, progress: jax.Array) -> tuple[Batch, jax.Array]:
        size = config.batch_size
        # One point in each of B equal parts of the whole, as in the paper's appendix B.2.1.
        part = (jnp.arange(size) + jax.random.uniform(key, (size,))) / size
        # Read once: a second look at the weights, which `update_priorities` may overtake, would make XLA copy them all.
        index, weight = find(state.tree, part * total(state.tree))
        batch = ring.returns(state.replay, index, num_steps, config.gamma)
        correction = config.importance_exponent + (1 - config.importance_exponent) * jnp.clip(progress, 0.0, 1.0)
        # N and the sum are the same for all, and fall out. With an exponent of 0, or nothing kept yet, no weight may become
        # infinite.
        importance = jnp.power(jnp.maximum(weight, 1e-12) / jnp.maximum(jnp.min(weight), 1e-12), -correction)
        return batch._replace(weight=importance), index

    def update_priorities(
        state: Prioritized, config: Any, index: jax.Array, td_error: jax.Array, is_active: jax.Array
    ) -> Prioritized:
        weight = jnp.power(td_error + config.priority_epsilon, config.priority_exponent)
        keep = jnp.broadcast_to(is_active, index.shape)
        largest = jnp.where(is_active, jnp.maximum(state.largest, jnp.max(weight)), state.largest)
        return Prioritized(state.replay, put(state.tree, index, weight, keep), largest)

    return ReplayBuffer(
        init=start,
        add=add,
        can_sample=lambda state, config: ring.can_sample(state.replay, config.batch_size),
        sample=sample,
        update_priorities=update_priorities,
    )
