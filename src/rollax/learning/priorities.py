"""Prioritized sampling of sequences from a rollout, with replacement.

Layouts are pooled (`make_layout(is_pooled=True)`): every sequence of every stream is one row, and
all rows form a single group.

References:
    Schaul et al. 2016, arXiv:1511.05952.
"""

import functools
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from rollax.learning.minibatches import MinibatchLayout, shuffle_rows, to_rows
from rollax.types import Scalar


@runtime_checkable
class PriorityConfig(Protocol):
    """Settings of the sampling of trajectories."""

    @property
    def prioritized(self) -> bool: ...
    @property
    def priority_exponent(self) -> Scalar: ...
    @property
    def importance_exponent(self) -> Scalar: ...


def sample_trajectories(
    config: PriorityConfig,
    progress: jax.Array,
    advantage: jax.Array,
    mask: jax.Array | None,
    layout: MinibatchLayout,
) -> tuple[Callable[..., jax.Array], jax.Array]:
    """Return a function that samples the trajectories of an epoch, and their importance weights.

    If `config.prioritized` is false, every trajectory is used once per epoch with weight 1.

    Args:
        config: Settings of the algorithm.
        progress: Completed fraction of training, from 0 to 1.
        advantage: Advantages of the rollout, `[T, S]`.
        mask: Samples of active agents, bool `[T, S]`, or None for all samples.
        layout: Layout of the rollout for minibatches.

    Returns:
        Function `(key, layout)` that returns row indices in the format of
        `shuffle_rows`, and the weight of each trajectory, `[rows, groups, 1,
        block_size]`.
    """
    if not config.prioritized:
        shape = layout.rows, layout.groups, 1, layout.block_size
        return shuffle_rows, jnp.ones(shape)
    priority, size = trajectory_priorities(advantage, mask, layout)
    beta = config.importance_exponent + (1 - config.importance_exponent) * jnp.clip(
        progress, 0.0, 1.0
    )
    weight = importance_weights(priority, config.priority_exponent, beta, size)
    shuffle = functools.partial(sample_rows, priority, config.priority_exponent)
    return shuffle, jnp.expand_dims(weight, (1, 2, 3))


def trajectory_priorities(
    advantage: jax.Array, mask: jax.Array | None, layout: MinibatchLayout
) -> tuple[jax.Array, jax.Array]:
    """Return the priority and the number of active samples of each sequence, `[rows]` each.

    The priority of a sequence is the sum of |A| over its active samples plus 1e-6. Sequences
    without active samples have priority 0.

    Args:
        advantage: Advantages A, `[T, S]`.
        mask: Samples of active agents, bool `[T, S]`, or None for all samples.
        layout: Minibatch layout with `is_pooled`, so that each row is one sequence of one stream.
    """
    counts = jnp.ones_like(advantage, bool) if mask is None else mask

    def by_row(x):
        return jnp.sum(to_rows(x, layout), axis=(1, 2, 3))

    size = by_row(counts.astype(jnp.float32))
    return jnp.where(size > 0, by_row(jnp.where(counts, jnp.abs(advantage), 0.0)) + 1e-6, 0.0), size


def sample_rows(
    priority: jax.Array, exponent: jax.Array | float, key: jax.Array, layout: MinibatchLayout
) -> jax.Array:
    """Sample sequences with replacement, with probabilities proportional to `priority^exponent`.

    With its first two arguments bound, this function can be the argument `shuffle` of
    `minibatches.run_epochs`.

    Args:
        priority: Priorities `[rows]`. Sequences with priority 0 are only sampled if all priorities
            are 0.
        exponent: Exponent of the priorities.
        key: Random key.
        layout: Pooled layout of the rollout.

    Returns:
        Row indices of each minibatch, int32 `[num_minibatches, rows / num_minibatches, 1]`.
    """
    draws = jax.random.categorical(key, log_probabilities(priority, exponent), shape=(layout.rows,))
    return draws.reshape(layout.num_minibatches, -1, 1)


def log_probabilities(priority: jax.Array, exponent: jax.Array | float) -> jax.Array:
    """Return the log-probability with which `sample_rows` samples each sequence, `[rows]`.

    Args:
        priority: Priority of each sequence, `[rows]`.
        exponent: Exponent of the priorities. 0 samples uniformly.

    Returns:
        The log-probabilities, which are finite. For a priority of 0, the value is about -1e9.
    """
    positive = priority > 0
    return jax.nn.log_softmax(
        jnp.where(positive, exponent * jnp.log(jnp.where(positive, priority, 1.0)), -1e9)
    )


def importance_weights(
    priority: jax.Array, exponent: jax.Array | float, beta: jax.Array | float, size: jax.Array
) -> jax.Array:
    """Return importance weights proportional to P^-beta for `sample_rows`, float `[rows]`.

    P is the probability with which `sample_rows` samples a sequence. The weights are scaled so that
    the expected weight of a sample is 1. With `beta` = 1, the expected loss is therefore the mean
    loss of all samples. The paper divides by the largest weight instead, which lets the sequence
    with the lowest priority determine the scale of the loss.

    Args:
        priority: Priorities `[rows]`.
        exponent: Exponent of the priorities.
        beta: Exponent of the importance weights.
        size: Number of active samples of each sequence, `[rows]`. Sequences without active samples
            have weight 0.

    References:
        Schaul et al. 2016, section 3.4.
    """
    log_p = log_probabilities(priority, exponent)
    log_size = jnp.log(jnp.maximum(size, 1e-30))
    log_weight = jnp.where(size > 0, -beta * log_p, 0.0)
    log_scale = jax.nn.logsumexp(log_p + log_size) - jax.nn.logsumexp(log_p + log_weight + log_size)
    return jnp.where(size > 0, jnp.exp(log_weight + log_scale), 0.0)
