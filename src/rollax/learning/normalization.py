"""Running mean and variance of what a run has seen; a pytree that lives in the state."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.acting.streams import Experience
from rollax.learning.losses import mean
from rollax.learning.returns import discounted_returns
from rollax.networks.core import Network, Preprocessed


class Moments(NamedTuple):
    """Mean and population variance of `size` samples, of the structure and shapes of one sample."""

    mean: Any
    variance: Any
    size: jax.Array  # float []: how many samples


def initial(sample: Any) -> Moments:
    """Moments before any sample: mean 0, variance 1, so that normalizing with them changes nothing."""
    zeros = jax.tree.map(lambda x: jnp.zeros(jnp.shape(x), jnp.float32), sample)
    return Moments(zeros, jax.tree.map(jnp.ones_like, zeros), jnp.zeros(()))


def update(moments: Moments, batch: Any, axes: int, mask: jax.Array | None = None) -> Moments:
    """Adds a batch whose leading `axes` axes count samples (Chan et al. 1979, parallel variance).

    `mask`: which of them do, bool over these axes; None for all.
    """
    leading = tuple(range(axes))
    number = float(math.prod(jax.tree.leaves(batch)[0].shape[:axes]))
    added = number if mask is None else jnp.sum(mask.astype(jnp.float32))
    total = jnp.maximum(moments.size + added, 1.0)

    def merge(old: jax.Array, variance: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = x.astype(jnp.float32)
        batch_mean = mean(x, mask, leading, keepdims=True)
        batch_variance = mean((x - batch_mean) ** 2, mask, leading)
        delta = jnp.squeeze(batch_mean, leading) - old
        share = added / total
        merged = (1 - share) * variance + share * batch_variance + share * (1 - share) * delta**2
        return old + share * delta, merged

    pairs = jax.tree.map(merge, moments.mean, moments.variance, batch)
    means, variances = jax.tree.transpose(jax.tree.structure(moments.mean), jax.tree.structure((0, 0)), pairs)
    return Moments(means, variances, moments.size + added)


def normalize(moments: Moments, sample: Any, clip: float = 10.0) -> Any:
    """Shifts and scales a sample to mean 0 and variance 1, clipped to +-`clip`; integers and masks stay as they are."""

    def apply(mean: jax.Array, variance: jax.Array, x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return jnp.clip((x.astype(jnp.float32) - mean) * jax.lax.rsqrt(variance + 1e-8), -clip, clip)

    return jax.tree.map(apply, moments.mean, moments.variance, sample)


def normalized(network: Network, moments: Moments) -> Network:
    """The network behind the normalization of its observations."""
    return Preprocessed(network, jax.tree_util.Partial(normalize, moments))


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
