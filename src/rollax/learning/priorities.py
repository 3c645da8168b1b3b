"""Minibatches of sequences sampled in proportion to priorities, with replacement (Schaul et al. 2016, arXiv:1511.05952).

The rollout is laid out as one pool: every sequence of every stream is a row of its own, and all of them compete.
"""

import jax
import jax.numpy as jnp

from rollax.learning.minibatches import Layout, to_rows


def of_trajectories(advantage: jax.Array, mask: jax.Array | None, cut: Layout) -> tuple[jax.Array, jax.Array]:
    """Priority of each trajectory, sum |A| over the samples of `[T, S]` that count, and how many these are, `[rows]` each."""
    counts = jnp.ones_like(advantage, bool) if mask is None else mask
    by_row = lambda x: jnp.sum(to_rows(x, cut), axis=(1, 2, 3))  # noqa: E731
    size = by_row(counts.astype(jnp.float32))
    return jnp.where(size > 0, by_row(jnp.where(counts, jnp.abs(advantage), 0.0)) + 1e-6, 0.0), size


def sample(priority: jax.Array, exponent: jax.Array | float, key: jax.Array, cut: Layout) -> jax.Array:
    """As `minibatches.shuffle`, but rows of a pool are sampled with replacement, each with a
    probability proportional to `priority^exponent`.

    `priority`: `[rows]`, 0 where there is nothing to learn from: such a row is drawn only if all are.
    """
    draws = jax.random.categorical(key, log_probability(priority, exponent), shape=(cut.rows,))
    return draws.reshape(cut.num_minibatches, -1, 1)


def log_probability(priority: jax.Array, exponent: jax.Array | float) -> jax.Array:
    """log P `[rows]` by which `sample` draws: finite, also for a priority of 0."""
    positive = priority > 0
    return jax.nn.log_softmax(jnp.where(positive, exponent * jnp.log(jnp.where(positive, priority, 1.0)), -1e9))


def importance(priority: jax.Array, exponent: jax.Array | float, beta: jax.Array | float, size: jax.Array) -> jax.Array:
    """Weights `[rows]` proportional to `P^-beta` (Schaul et al. 2016, section 3.4) against the preference of `sample`.

    `size`: `[rows]`, how many samples of a row count; there is no weight where none does. The mean weight of the samples that
    are drawn is 1, so that with `beta` 1 the losses that are drawn have the mean of all. Deviation: the source divides by the
    largest weight, by which the least of all rows would set the size of every loss.
    """
    log_p = log_probability(priority, exponent)
    log_size = jnp.log(jnp.maximum(size, 1e-30))
    log_weight = jnp.where(size > 0, -beta * log_p, 0.0)
    log_scale = jax.nn.logsumexp(log_p + log_size) - jax.nn.logsumexp(log_p + log_weight + log_size)
    return jnp.where(size > 0, jnp.exp(log_weight + log_scale), 0.0)
