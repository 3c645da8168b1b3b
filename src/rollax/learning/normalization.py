"""Running mean and variance of all batches so far, to normalize what comes next; a pytree that lives in the state."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rollax.acting.streams import Experience
from rollax.learning.losses import mean_and_variance
from rollax.learning.returns import Scalar
from rollax.networks.core import Network, Preprocessed


class Moments(NamedTuple):
    """Mean and population variance of `size` samples, of the structure and shapes of one sample. A pytree of float32 arrays.

    Each sum is kept in two parts (Kahan 1965): one float32, and in `compensation` what rounding has cut off it, which comes
    back with the next batch. Alone, a float32 would drift over millions of updates, and `size` would stop growing at 2^24
    samples of one or 2^30 of sixty-four; with its compensation it is exact up to 2^48.
    """

    mean: Any
    variance: Any
    size: jax.Array  # float []: how many samples
    compensation: tuple[Any, Any, jax.Array]  # what belongs to mean, variance and size besides


def initial(sample: Any) -> Moments:
    """Moments before any sample: mean 0, variance 1, so that normalizing with them changes nothing."""
    zeros = jax.tree.map(lambda x: jnp.zeros(jnp.shape(x), jnp.float32), sample)
    ones, nothing = jax.tree.map(jnp.ones_like, zeros), jax.tree.map(jnp.copy, (zeros, zeros))
    return Moments(zeros, ones, jnp.zeros(()), (*nothing, jnp.zeros(())))


def update(moments: Moments, batch: Any, axes: int, mask: jax.Array | None = None) -> Moments:
    """Adds a batch whose leading `axes` axes count samples (Chan et al. 1979, parallel variance).

    With n samples before and m in the batch, w = m / (n + m) and delta = mean_batch - mean:

    mean     += w delta
    variance += w (variance_batch - variance + (1 - w) delta^2)

    `mask`: which samples count, boolean over these axes; `()` for all.
    """
    leading = tuple(range(axes))
    number = float(math.prod(jax.tree.leaves(batch)[0].shape[:axes]))
    added = jnp.float32(number) if mask is None else jnp.sum(mask.astype(jnp.float32))
    mean_rest, variance_rest, size_rest = moments.compensation
    size, size_rest = add(moments.size, size_rest, added)
    share = added / jnp.maximum(size, 1.0)

    def merge(old: jax.Array, rest: jax.Array, variance: jax.Array, variance_rest: jax.Array, x: jax.Array) -> tuple[Any, ...]:
        batch_mean, batch_variance = (jnp.squeeze(m, leading) for m in mean_and_variance(x.astype(jnp.float32), mask, leading))
        delta = batch_mean - old - rest
        # Before the first sample the variance of 1 stands for none.
        variance = jnp.where(share < 1, variance, 0.0)
        growth = share * (batch_variance - variance + (1 - share) * delta**2)
        return *add(old, rest, share * delta), *add(variance, variance_rest, growth)

    parts = jax.tree.map(merge, moments.mean, mean_rest, moments.variance, variance_rest, batch)
    one = jax.tree.structure(moments.mean)
    means, mean_rest, variances, variance_rest = jax.tree.transpose(one, jax.tree.structure((0, 0, 0, 0)), parts)
    return Moments(means, variances, size, (mean_rest, variance_rest, size_rest))


def add(total: jax.Array, rest: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A compensated sum: `total + rest + x` as the nearest float, and what that leaves (Knuth's TwoSum, for any sizes)."""
    x = x + rest
    new = total + x
    other = new - total
    return new, (total - (new - other)) + (x - other)


def normalize(moments: Moments, sample: Any, clip: float = 10.0) -> Any:
    """clip((x - mean) / sqrt(variance + 1e-8), -clip, clip) for floats; integers and masks stay as they are."""

    def apply(mean: jax.Array, variance: jax.Array, x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return jnp.clip((x.astype(jnp.float32) - mean) * jax.lax.rsqrt(variance + 1e-8), -clip, clip)

    return jax.tree.map(apply, moments.mean, moments.variance, sample)


def normalized(network: Network, moments: Moments) -> Network:
    """The network behind the normalization of its observations."""
    return Preprocessed(network, jax.tree_util.Partial(normalize, moments))


def discounted_returns(
    reward: Float[Array, " T"], ended: Bool[Array, " T"], initial: Float[Array, ""], gamma: Scalar
) -> tuple[Float[Array, ""], Float[Array, " T"]]:
    """g_t = gamma g_{t-1} + r_t from the start of each episode; reward normalization divides by its standard deviation.

    `initial`: g before the first step, from the rollout before. Returns: g after the last step (0 where an episode ended), and
    g `[T]`.
    """

    def forward(running: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        running = gamma * running + step[0]
        return jnp.where(step[1], 0.0, running), running

    return jax.lax.scan(forward, initial, (reward, ended), unroll=8)


def scale_rewards(
    moments: Moments, rollout: Experience, discounted_return: jax.Array, gamma: jax.Array | float
) -> tuple[jax.Array, jax.Array, Moments]:
    """Rewards `[T, S]` over the running standard deviation of discounted returns; those returns, and the moments, after it.

    `discounted_return`: `[S]`, as the rollout before left it.
    """
    ended = rollout.terminated | rollout.truncated
    run = jax.vmap(discounted_returns, in_axes=(1, 1, 0, None), out_axes=(0, 1))
    last, running = run(rollout.reward, ended, discounted_return, gamma)
    moments = update(moments, running, axes=2, mask=rollout.mask)
    return rollout.reward * jax.lax.rsqrt(moments.variance + 1e-8), last, moments
