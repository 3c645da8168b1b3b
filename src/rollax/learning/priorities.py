"""Prioritized sampling of sequences from a rollout, with replacement.

Every sequence of every stream is a row. All rows form a single group (`make_layout(pooled=True)`).

References:
    Schaul et al. 2016, arXiv:1511.05952.
"""

import jax
import jax.numpy as jnp

from rollax.learning.minibatches import MinibatchLayout, to_rows


def trajectory_priorities(
    advantage: jax.Array, mask: jax.Array | None, layout: MinibatchLayout
) -> tuple[jax.Array, jax.Array]:
    """Return the priority and the number of samples of each row, `[rows]` each.

    The priority of a row is the sum of |A| over its samples plus 1e-6. Rows without samples have
    priority 0.

    Args:
        advantage: Advantages A, `[T, S]`.
        mask: Samples that count, bool `[T, S]`, or None for all samples.
        layout: Pooled layout of the rollout.
    """
    counts = jnp.ones_like(advantage, bool) if mask is None else mask

    def by_row(x):
        return jnp.sum(to_rows(x, layout), axis=(1, 2, 3))

    size = by_row(counts.astype(jnp.float32))
    return jnp.where(size > 0, by_row(jnp.where(counts, jnp.abs(advantage), 0.0)) + 1e-6, 0.0), size


def sample_rows(
    priority: jax.Array, exponent: jax.Array | float, key: jax.Array, layout: MinibatchLayout
) -> jax.Array:
    """Sample rows with replacement, with probabilities proportional to `priority^exponent`.

    It replaces `minibatches.shuffle_rows` in `minibatches.run_epochs`.

    Args:
        priority: Priorities `[rows]`. Rows with priority 0 are only sampled if all priorities are
            0.
        exponent: Exponent of the priorities.
        key: Random key.
        layout: Pooled layout of the rollout.

    Returns:
        Indices of rows, int32 `[num_minibatches, rows / num_minibatches, 1]`.
    """
    draws = jax.random.categorical(key, log_probabilities(priority, exponent), shape=(layout.rows,))
    return draws.reshape(layout.num_minibatches, -1, 1)


def log_probabilities(priority: jax.Array, exponent: jax.Array | float) -> jax.Array:
    """Return the log-probabilities with which `sample_rows` samples each row, `[rows]`.

    They are finite, also for priorities of 0.
    """
    positive = priority > 0
    return jax.nn.log_softmax(
        jnp.where(positive, exponent * jnp.log(jnp.where(positive, priority, 1.0)), -1e9)
    )


def importance_weights(
    priority: jax.Array, exponent: jax.Array | float, beta: jax.Array | float, size: jax.Array
) -> jax.Array:
    """Return importance weights proportional to P^-beta for rows from `sample_rows`, `[rows]`.

    The weights are scaled so that the expected weight of a sample is 1. With `beta` = 1, the
    expected loss is therefore the mean loss of all samples. The paper divides by the largest weight
    instead, which lets the row with the lowest priority determine the scale of the loss.

    Args:
        priority: Priorities `[rows]`.
        exponent: Exponent of the priorities.
        beta: Exponent of the importance weights.
        size: Number of samples of each row, `[rows]`. Rows without samples have weight 0.

    References:
        Schaul et al. 2016, section 3.4.
    """
    log_p = log_probabilities(priority, exponent)
    log_size = jnp.log(jnp.maximum(size, 1e-30))
    log_weight = jnp.where(size > 0, -beta * log_p, 0.0)
    log_scale = jax.nn.logsumexp(log_p + log_size) - jax.nn.logsumexp(log_p + log_weight + log_size)
    return jnp.where(size > 0, jnp.exp(log_weight + log_scale), 0.0)
