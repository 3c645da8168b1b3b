"""Running mean and variance of what a run has seen; a pytree that lives in the state."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

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


def mean(x: jax.Array, weight: Any = (), axes: tuple[int, ...] | None = None, keepdims: bool = False) -> jax.Array:
    """The mean over `axes` (all of them by default) of the samples that count: `weight` is true there, or `()` for all.

    `weight`: boolean, the leading axes of `x`; where nothing counts the mean is 0.
    """
    if isinstance(weight, tuple):
        return jnp.mean(x, axes, keepdims=keepdims)
    counts = jnp.broadcast_to(weight.reshape(weight.shape + (1,) * (x.ndim - weight.ndim)), x.shape)
    number = jnp.sum(counts.astype(x.dtype), axes, keepdims=keepdims)
    # What does not count may be anything, also no number.
    return jnp.sum(jnp.where(counts, x, 0.0), axes, keepdims=keepdims) / jnp.maximum(number, 1.0)


def update(moments: Moments, batch: Any, axes: int, weight: Any = ()) -> Moments:
    """Adds a batch whose leading `axes` axes count samples (Chan et al. 1979, parallel variance).

    `weight`: which of them do, boolean over these axes; `()` for all.
    """
    leading = tuple(range(axes))
    number = float(math.prod(jax.tree.leaves(batch)[0].shape[:axes]))
    added = number if isinstance(weight, tuple) else jnp.sum(weight.astype(jnp.float32))
    total = jnp.maximum(moments.size + added, 1.0)

    def merge(old: jax.Array, variance: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = x.astype(jnp.float32)
        batch_mean = mean(x, weight, leading, keepdims=True)
        batch_variance = mean((x - batch_mean) ** 2, weight, leading)
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


def view(moments: Any) -> Callable[[Any], Network]:
    """How networks see observations: normalized by the statistics, or as they are when there are none (`()`)."""
    if moments == ():
        return lambda network: network
    return lambda network: Preprocessed(network, jax.tree_util.Partial(normalize, moments))


def standardize(x: jax.Array, weight: Any = ()) -> jax.Array:
    """Mean 0 and deviation 1 over all of `x` that counts. A single sample stays as it is: it would be 0, and teach nothing."""
    number = x.size if isinstance(weight, tuple) else jnp.sum(jnp.broadcast_to(weight, x.shape))
    centerd = x - mean(x, weight)
    return jnp.where(number > 1, centerd / (jnp.sqrt(mean(centerd**2, weight)) + 1e-8), x)


def means(terms: dict[str, jax.Array], weight: Any = ()) -> dict[str, jax.Array]:
    """The mean of each term, all of one shape, in one reduction: each alone costs as much."""
    together = jax.vmap(lambda x: mean(x, weight))(jnp.stack(list(terms.values())))
    return dict(zip(terms, together, strict=True))
