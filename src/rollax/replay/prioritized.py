"""Prioritized experience replay with a sum tree.

This is the proportional variant (section 3.3). For transition i with TD error delta_i:

p_i  = |delta_i| + epsilon
P(i) = p_i^alpha / sum_k p_k^alpha                                                     (Eq. 1)
w_i  = (N P(i))^-beta / max_j w_j                                                      (section 3.4)

New transitions get the largest priority so far. beta increases linearly to 1 over training. max_j
w_j is the largest weight in the batch. In the paper, it is the largest weight in the whole replay.

A node of the tree has 16 children instead of two. A million leaves therefore need only five levels,
and the cost of a level hardly depends on the width of its nodes. Sums on changed paths are
recomputed from the children, so that rounding errors do not accumulate.

References:
    Schaul et al. 2016, arXiv:1511.05952.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from rollax.replay import ring
from rollax.replay.ring import ReplayBatch, ReplayBuffer, ReplayState, ReplayStep
from rollax.types import Scalar

CHILDREN_PER_NODE = 16


class SumTree(NamedTuple):
    """Tree whose leaves are weights and whose inner nodes are sums of their children.

    Attributes:
        levels: Levels from the root to the leaves, float `[nodes, CHILDREN_PER_NODE]` each.
    """

    levels: tuple[jax.Array, ...]


def init_sum_tree(size: int) -> SumTree:
    """Return a tree of `size` zero weights."""
    return build_sum_tree(jnp.zeros(size))


def build_sum_tree(weight: jax.Array) -> SumTree:
    """Return the sum tree of nonnegative weights `[size]`. The cost is O(size)."""
    levels: list[jax.Array] = []
    while not levels or levels[0].shape[0] > 1:
        nodes = -(-weight.size // CHILDREN_PER_NODE)
        levels.insert(
            0,
            jnp.pad(weight, (0, nodes * CHILDREN_PER_NODE - weight.size)).reshape(
                nodes, CHILDREN_PER_NODE
            ),
        )
        weight = jnp.sum(levels[0], axis=1)
    return SumTree(tuple(levels))


def total_weight(tree: SumTree) -> jax.Array:
    """Return the sum of all weights."""
    return jnp.sum(tree.levels[0])


def set_weights(tree: SumTree, index: jax.Array, weight: jax.Array, keep: jax.Array) -> SumTree:
    """Set the weights at B indices. The cost is proportional to B times the number of levels.

    Args:
        tree: Tree.
        index: Indices `[B]`. Duplicate indices must have the same weight.
        weight: Nonnegative weights `[B]`.
        keep: Whether to set each weight, bool `[B]`.

    Returns:
        The updated tree.
    """
    levels = []
    for level in reversed(tree.levels):
        # Indices out of range are not written.
        node = jnp.where(keep, index // CHILDREN_PER_NODE, level.shape[0])
        level = level.at[node, index % CHILDREN_PER_NODE].set(weight, mode="drop")
        index = index // CHILDREN_PER_NODE
        weight = jnp.sum(level[index], axis=1)
        levels.insert(0, level)
    return SumTree(tuple(levels))


def find_indices(tree: SumTree, point: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return, for each point, the first index whose cumulative sum of weights exceeds the point.

    If the points are uniform between 0 and the total weight, indices are sampled in proportion to
    their weights.

    Args:
        tree: Tree.
        point: Points `[B]` between 0 and the total weight.

    Returns:
        Indices and their weights, `[B]` each. The weights are positive.
    """
    upper = jnp.triu(jnp.ones((CHILDREN_PER_NODE, CHILDREN_PER_NODE)))
    node = jnp.zeros(point.shape, jnp.int32)
    drawn_weight = jnp.zeros(point.shape)
    for level in tree.levels:
        weight = level[node]
        cumulative = jnp.dot(weight, upper, precision="highest")
        # If rounding puts the point beyond the last sum, select the last child with positive
        # weight.
        last = CHILDREN_PER_NODE - 1 - jnp.argmax(weight[:, ::-1] > 0, axis=1)
        child = jnp.minimum(jnp.sum(cumulative <= point[:, None], axis=1), last)
        preceding = jnp.take_along_axis(cumulative - weight, child[:, None], axis=1)[:, 0]
        drawn_weight = jnp.take_along_axis(weight, child[:, None], axis=1)[:, 0]
        point, node = (
            jnp.maximum(point - preceding, 0.0),
            node * CHILDREN_PER_NODE + child.astype(jnp.int32),
        )
    return node, drawn_weight


class PrioritizedReplayState(NamedTuple):
    """Replay with priorities and a sum tree for sampling.

    Attributes:
        replay: Replay of S streams with up to N transitions each.
        tree: Sum tree of the weights p^alpha of all transitions.
        priority: Priorities p, float `[S * N]`. They are stored so that the tree can be rebuilt for
            another alpha.
        max_priority: Largest priority so far, float `[]`.
        max_weight: Largest p^alpha so far, float `[]`.
    """

    replay: ReplayState
    tree: SumTree
    priority: jax.Array
    max_priority: jax.Array
    max_weight: jax.Array


def reweight_priorities(
    state: PrioritizedReplayState, exponent: jax.Array | float
) -> PrioritizedReplayState:
    """Rebuild the sum tree for another exponent alpha. The cost is O(capacity).

    This is necessary when the setting `priority_exponent` changes, for example by population-based
    training.

    Args:
        state: Replay state.
        exponent: New exponent alpha.

    Returns:
        The replay state with the new tree.
    """
    num_streams, places = state.replay.cursor.size, state.priority.size // state.replay.cursor.size
    is_filled = (
        jnp.broadcast_to(jnp.arange(places), (num_streams, places)) < state.replay.size[:, None]
    )
    weight = jnp.where(is_filled.reshape(-1), jnp.power(state.priority, exponent), 0.0)
    return state._replace(
        tree=build_sum_tree(weight), max_weight=jnp.power(state.max_priority, exponent)
    )


def _set_priorities(
    state: PrioritizedReplayState,
    index: jax.Array,
    priority: jax.Array,
    weight: jax.Array,
    keep: jax.Array,
    replay: ReplayState,
) -> PrioritizedReplayState:
    """Set priorities p `[B]` and weights p^alpha `[B]` at `index` `[B]`, and replace the replay.

    Priorities and weights are only set where `keep` is true.
    """
    place = jnp.where(keep, index, state.priority.size)  # indices out of range are not written
    priorities = state.priority.at[place].set(priority, mode="drop")
    return state._replace(
        replay=replay, tree=set_weights(state.tree, index, weight, keep), priority=priorities
    )


@runtime_checkable
class PrioritizedReplayConfig(ring.ReplaySettings, Protocol):
    """Settings of a replay buffer with prioritized sampling."""

    @property
    def priority_exponent(self) -> Scalar: ...
    @property
    def priority_epsilon(self) -> Scalar: ...
    @property
    def importance_exponent(self) -> Scalar: ...


def make_prioritized_replay(num_steps: int = 1) -> ReplayBuffer:
    """Build a replay buffer that samples transitions with probability proportional to p^alpha.

    Args:
        num_steps: Number of steps of n-step returns.

    Returns:
        The replay buffer. Its functions take a `PrioritizedReplayConfig` with `priority_exponent`
        (alpha), `importance_exponent` (initial beta) and `priority_epsilon` (epsilon).
    """

    def sample(
        state: PrioritizedReplayState,
        config: PrioritizedReplayConfig,
        key: jax.Array,
        progress: jax.Array,
    ) -> tuple[ReplayBatch, jax.Array]:
        size = config.batch_size
        # Stratified sampling: one point in each of B equal parts (appendix B.2.1 of the paper).
        part = (jnp.arange(size) + jax.random.uniform(key, (size,))) / size
        # Weights are read here, because XLA would copy all of them to read after
        # `update_priorities`.
        index, weight = find_indices(state.tree, part * total_weight(state.tree))
        batch = ring.make_nstep_batch(state.replay, index, num_steps, config.gamma)
        correction = config.importance_exponent + (1 - config.importance_exponent) * jnp.clip(
            progress, 0.0, 1.0
        )
        # N and the sum of weights cancel. The lower bound keeps the result finite for priority 0.
        importance = jnp.power(
            jnp.maximum(weight, 1e-12) / jnp.maximum(jnp.min(weight), 1e-12), -correction
        )
        return batch._replace(weight=importance), index

    return ReplayBuffer(
        init=init_prioritized_replay,
        add=add_with_largest_priority,
        can_sample=lambda state, config: ring.can_sample(state.replay, config.batch_size),
        sample=sample,
        update_priorities=update_priorities,
    )


def init_prioritized_replay(
    example: ReplayStep, num_streams: int, config: PrioritizedReplayConfig
) -> PrioritizedReplayState:
    """Return an empty replay for transitions with the shapes and dtypes of `example`.

    Args:
        example: One transition.
        num_streams: Number of streams S.
        config: Settings with the capacity and the batch size.

    Raises:
        UsageError: If the capacity is too small for a batch, or too large.
    """
    ring.check_capacity(num_streams, config.capacity, config.batch_size)
    rows, size = (
        ring.init_replay(example, num_streams, config.capacity),
        num_streams * (config.capacity // num_streams),
    )
    return PrioritizedReplayState(
        rows, init_sum_tree(size), jnp.zeros(size), jnp.ones(()), jnp.ones(())
    )


def add_with_largest_priority(
    state: PrioritizedReplayState, rows: ReplayStep, keep: jax.Array
) -> PrioritizedReplayState:
    """Add one transition per stream, with the largest priority so far.

    Args:
        state: State of the replay.
        rows: Transitions, `[S, ...]`.
        keep: Whether to add each transition, bool `[S]`.
    """
    after = ring.add_row_per_stream(state.replay, rows, keep)
    priority, weight = (jnp.full(keep.shape, x) for x in (state.max_priority, state.max_weight))
    return _set_priorities(state, ring.newest_indices(after), priority, weight, keep, after)


def update_priorities(
    state: PrioritizedReplayState,
    config: PrioritizedReplayConfig,
    index: jax.Array,
    td_error: jax.Array,
    is_active: jax.Array,
) -> PrioritizedReplayState:
    """Set the priorities of sampled transitions. If `is_active` is false, nothing changes.

    Args:
        state: Replay state.
        config: Settings with `priority_exponent` and `priority_epsilon`.
        index: Indices of the transitions, int32 `[B]`, as returned by `ReplayBuffer.sample`.
        td_error: Absolute TD errors, float `[B]`.
        is_active: Whether learning has started, bool `[]`.

    Returns:
        The updated replay state.
    """
    priority = td_error + config.priority_epsilon
    weight = jnp.power(priority, config.priority_exponent)
    largest = jnp.where(
        is_active, jnp.maximum(state.max_priority, jnp.max(priority)), state.max_priority
    )
    largest_weight = jnp.where(
        is_active, jnp.maximum(state.max_weight, jnp.max(weight)), state.max_weight
    )
    state = _set_priorities(
        state, index, priority, weight, jnp.broadcast_to(is_active, index.shape), state.replay
    )
    return state._replace(max_priority=largest, max_weight=largest_weight)
