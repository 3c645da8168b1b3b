"""Normalization of observations and rewards by their running mean and variance."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rollax.acting.streams import Experience
from rollax.learning.losses import masked_mean_and_variance
from rollax.learning.returns import Scalar
from rollax.networks.network import Network, PreprocessedNetwork
from rollax.types import PyTree


class RoundingErrors(NamedTuple):
    """Rounding errors of the compensated sums of moments.

    Attributes:
        mean: Rounding error of the mean, with the structure and shapes of `Moments.mean`.
        variance: Rounding error of the variance, with the structure and shapes of `Moments.mean`.
        size: Rounding error of the number of samples, float32 `[]`.
    """

    mean: Any
    variance: Any
    size: jax.Array


class Moments(NamedTuple):
    """Running mean and population variance of samples, float32.

    Each running value is stored as a float32 and its rounding error, which is added with the next
    batch. A single float32 would drift over millions of updates, and `size` would stop growing at
    2^24 with batches of one sample or 2^30 with batches of 64. With its compensation, `size` is
    exact up to 2^48.

    Attributes:
        mean: Mean, with the structure and shapes of one sample.
        variance: Population variance, with the structure and shapes of one sample.
        size: Number of samples, float32 `[]`.
        compensation: Rounding errors of mean, variance and size.

    References:
        Kahan 1965.
    """

    mean: Any
    variance: Any
    size: jax.Array
    compensation: RoundingErrors


def init_moments(sample: PyTree) -> Moments:
    """Return moments of 0 samples, with mean 0 and variance 1."""
    zeros = jax.tree.map(lambda x: jnp.zeros(jnp.shape(x), jnp.float32), sample)
    return Moments(
        mean=zeros,
        variance=jax.tree.map(jnp.ones_like, zeros),
        size=jnp.zeros(()),
        compensation=RoundingErrors(
            mean=jax.tree.map(jnp.copy, zeros),
            variance=jax.tree.map(jnp.copy, zeros),
            size=jnp.zeros(()),
        ),
    )


def update_moments(
    moments: Moments, batch: PyTree, axes: int, mask: jax.Array | None = None
) -> Moments:
    """Update the moments with a batch of samples.

    Let n be the number of samples so far, m the number of samples in the batch, w = m / (n + m) and
    delta = mean_batch - mean. The update is

    mean     += w delta
    variance += w (variance_batch - variance + (1 - w) delta^2)

    Args:
        moments: Moments of the samples so far.
        batch: Samples with `axes` leading axes.
        axes: Number of leading axes.
        mask: Samples to include, bool over the leading axes, or None for all samples.

    Returns:
        The updated moments.

    References:
        Chan et al. 1979, parallel variance.
    """
    leading = tuple(range(axes))
    number = float(math.prod(jax.tree.leaves(batch)[0].shape[:axes]))
    added = jnp.float32(number) if mask is None else jnp.sum(mask.astype(jnp.float32))
    errors = moments.compensation
    size, size_error = compensated_add(moments.size, errors.size, added)
    share = added / jnp.maximum(size, 1.0)

    def merge(
        mean: jax.Array,
        mean_error: jax.Array,
        variance: jax.Array,
        variance_error: jax.Array,
        x: jax.Array,
    ) -> MergedLeaf:
        batch_mean, batch_variance = (
            jnp.squeeze(m, leading)
            for m in masked_mean_and_variance(x.astype(jnp.float32), mask, leading)
        )
        delta = batch_mean - mean - mean_error
        # Ignore the initial variance of 1 with the first batch.
        variance = jnp.where(share < 1, variance, 0.0)
        growth = share * (batch_variance - variance + (1 - share) * delta**2)
        mean, mean_error = compensated_add(mean, mean_error, share * delta)
        variance, variance_error = compensated_add(variance, variance_error, growth)
        return MergedLeaf(mean, mean_error, variance, variance_error)

    leaves = jax.tree.map(
        merge, moments.mean, errors.mean, moments.variance, errors.variance, batch
    )
    merged = jax.tree.transpose(
        jax.tree.structure(moments.mean), jax.tree.structure(MergedLeaf(0, 0, 0, 0)), leaves
    )
    return Moments(
        mean=merged.mean,
        variance=merged.variance,
        size=size,
        compensation=RoundingErrors(merged.mean_error, merged.variance_error, size_error),
    )


class MergedLeaf(NamedTuple):
    """Mean and variance of one leaf after a merge, with their rounding errors."""

    mean: Any
    mean_error: Any
    variance: Any
    variance_error: Any


def compensated_add(
    total: jax.Array, error: jax.Array, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Add a number of any magnitude to a compensated sum with Knuth's TwoSum.

    Args:
        total: Sum so far.
        error: Rounding error of the sum.
        x: Number to add.

    Returns:
        The new sum and its rounding error.
    """
    x = x + error
    new = total + x
    other = new - total
    return new, (total - (new - other)) + (x - other)


def normalize(moments: Moments, sample: PyTree, clip: float = 10.0) -> Any:
    """Return clip((x - mean) / sqrt(variance + 1e-8), -clip, clip) for all float leaves x.

    Integers and bools are unchanged.

    Args:
        moments: Moments of samples.
        sample: One sample, a pytree with the structure of `moments.mean`.
        clip: Maximum absolute value of the result.

    Returns:
        The normalized sample.
    """

    def apply(mean: jax.Array, variance: jax.Array, x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return jnp.clip(
            (x.astype(jnp.float32) - mean) * jax.lax.rsqrt(variance + 1e-8), -clip, clip
        )

    return jax.tree.map(apply, moments.mean, moments.variance, sample)


def add_normalization(network: Network, moments: Moments) -> Network:
    """Return `network` wrapped to normalize observations with `moments`."""
    return PreprocessedNetwork(network, jax.tree_util.Partial(normalize, moments))


def discounted_returns(
    reward: Float[Array, " T"], ended: Bool[Array, " T"], initial: Float[Array, ""], gamma: Scalar
) -> tuple[Float[Array, ""], Float[Array, " T"]]:
    """Compute g_t = gamma g_{t-1} + r_t, where g restarts from 0 at each episode.

    Reward normalization divides rewards by the standard deviation of g.

    Args:
        reward: Rewards `[T]`.
        ended: Whether the step ended an episode, bool `[T]`.
        initial: Value of g before the first step, from the previous rollout.
        gamma: Discount factor.

    Returns:
        The value `initial` of the next rollout, which is 0 if the last step ended an episode, and
        g of each step, `[T]`.
    """

    def forward(
        running: jax.Array, step: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        running = gamma * running + step[0]
        return jnp.where(step[1], 0.0, running), running

    return jax.lax.scan(forward, initial, (reward, ended), unroll=8)


class ScaledRewards(NamedTuple):
    """Rewards of a rollout, divided by the running standard deviation of discounted returns.

    Attributes:
        reward: Rewards, `[T, S]`.
        discounted_return: Discounted return of each running episode after the rollout, `[S]`.
        moments: Moments of discounted returns, or None if rewards are not normalized.
    """

    reward: jax.Array
    discounted_return: jax.Array
    moments: Moments | None


def scale_rewards(
    moments: Moments, rollout: Experience, discounted_return: jax.Array, gamma: jax.Array | float
) -> ScaledRewards:
    """Divide rewards by the running standard deviation of discounted returns.

    Args:
        moments: Moments of discounted returns.
        rollout: Rollout `[T, S]`.
        discounted_return: Discounted returns before the rollout, `[S]`.
        gamma: Discount factor.

    Returns:
        The scaled rewards with the updated moments.
    """
    ended = rollout.terminated | rollout.truncated
    run = jax.vmap(discounted_returns, in_axes=(1, 1, 0, None), out_axes=(0, 1))
    last, running = run(rollout.reward, ended, discounted_return, gamma)
    moments = update_moments(moments, running, axes=2, mask=rollout.mask)
    reward = rollout.reward * jax.lax.rsqrt(moments.variance + 1e-8)
    return ScaledRewards(reward, last, moments)
