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
    """Moments before any sample: mean 0, variance 1, so that normalising with them changes nothing."""
    zeros = jax.tree.map(lambda x: jnp.zeros(jnp.shape(x), jnp.float32), sample)
    return Moments(zeros, jax.tree.map(jnp.ones_like, zeros), jnp.zeros(()))


def update(moments: Moments, batch: Any, axes: int) -> Moments:
    """Adds a batch whose leading `axes` axes count samples (Chan et al. 1979, parallel variance)."""
    leading = tuple(range(axes))
    added = float(math.prod(jax.tree.leaves(batch)[0].shape[:axes]))
    total = moments.size + added

    def merge(mean: jax.Array, variance: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = x.astype(jnp.float32)
        batch_mean = jnp.mean(x, leading)
        batch_variance = jnp.var(x, leading)
        delta = batch_mean - mean
        weight = added / total
        merged = (1 - weight) * variance + weight * batch_variance + weight * (1 - weight) * delta**2
        return mean + weight * delta, merged

    pairs = jax.tree.map(merge, moments.mean, moments.variance, batch)
    mean, variance = jax.tree.transpose(jax.tree.structure(moments.mean), jax.tree.structure((0, 0)), pairs)
    return Moments(mean, variance, total)


def normalise(moments: Moments, sample: Any, clip: float = 10.0) -> Any:
    """Shifts and scales a sample to mean 0 and variance 1, clipped to +-`clip`; integers and masks stay as they are."""

    def apply(mean: jax.Array, variance: jax.Array, x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return jnp.clip((x.astype(jnp.float32) - mean) * jax.lax.rsqrt(variance + 1e-8), -clip, clip)

    return jax.tree.map(apply, moments.mean, moments.variance, sample)


def view(moments: Any) -> Callable[[Any], Network]:
    """How networks see observations: normalised by the statistics, or as they are when there are none (`()`)."""
    if moments == ():
        return lambda network: network
    return lambda network: Preprocessed(network, jax.tree_util.Partial(normalise, moments))


def standardise(x: jax.Array) -> jax.Array:
    """Mean 0 and deviation 1 over all of `x`."""
    return (x - jnp.mean(x)) / (jnp.std(x) + 1e-8)
