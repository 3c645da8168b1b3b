"""Means and variances: of a batch, to standardize it, and running ones of all batches so far, to normalize what comes next."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.networks.core import Network, Preprocessed

# Equal numbers, each computed in a few float32 operations, differ by less than this share of their size.
ROUNDING = 4 * float(jnp.finfo(jnp.float32).eps)


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


def mean_and_variance(x: jax.Array, weight: Any = (), axes: tuple[int, ...] | None = None) -> tuple[jax.Array, jax.Array]:
    """Mean and population variance over `axes` of the samples that count, as in `mean`; the axes stay, of length 1.

    The corrected two-pass algorithm (Chan, Golub and LeVeque 1983, eq. 1.7): with m a first mean and d = x - m,

    mean = m + mean d,    variance = mean d^2 - (mean d)^2

    so that the mean of equal numbers is that number, however m was rounded.
    """
    first = mean(x, weight, axes, keepdims=True)
    difference = x - first
    correction = mean(difference, weight, axes, keepdims=True)
    square = mean(difference**2, weight, axes, keepdims=True)
    return first + correction, jnp.maximum(square - correction**2, 0.0)


def update(moments: Moments, batch: Any, axes: int, weight: Any = ()) -> Moments:
    """Adds a batch whose leading `axes` axes count samples (Chan et al. 1979, parallel variance).

    With n samples before and m in the batch, w = m / (n + m) and delta = mean_batch - mean:

    mean     += w delta
    variance += w (variance_batch - variance + (1 - w) delta^2)

    `weight`: which samples count, boolean over these axes; `()` for all.
    """
    leading = tuple(range(axes))
    number = float(math.prod(jax.tree.leaves(batch)[0].shape[:axes]))
    added = jnp.float32(number) if isinstance(weight, tuple) else jnp.sum(weight.astype(jnp.float32))
    mean_rest, variance_rest, size_rest = moments.compensation
    size, size_rest = add(moments.size, size_rest, added)
    share = added / jnp.maximum(size, 1.0)

    def merge(old: jax.Array, rest: jax.Array, variance: jax.Array, variance_rest: jax.Array, x: jax.Array) -> tuple[Any, ...]:
        batch_mean, batch_variance = (
            jnp.squeeze(m, leading) for m in mean_and_variance(x.astype(jnp.float32), weight, leading)
        )
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


def view(moments: Any) -> Callable[[Any], Network]:
    """A network behind the normalization of its observations, or the network itself where there are no moments (`()`)."""
    if moments == ():
        return lambda network: network
    return lambda network: Preprocessed(network, jax.tree_util.Partial(normalize, moments))


def standardize(x: jax.Array, weight: Any = ()) -> jax.Array:
    """(x - mean x) / (std x + 1e-8) over all samples that count, as in `mean`.

    Where the standard deviation is below the rounding error of float32, `x` counts as constant and the result is 0. A single
    sample is returned as it is: standardized it would be 0, without a gradient.
    """
    number = x.size if isinstance(weight, tuple) else jnp.sum(jnp.broadcast_to(weight, x.shape))
    average, variance = mean_and_variance(x, weight)
    is_equal = variance <= (ROUNDING * average) ** 2
    std = jnp.sqrt(jnp.where(is_equal, 1.0, variance))  # of 0 the square root has no gradient
    standard = jnp.where(is_equal, 0.0, (x - average) / (std + 1e-8))
    return jnp.where(number > 1, standard, x)


def means(terms: dict[str, jax.Array], weight: Any = ()) -> dict[str, jax.Array]:
    """The mean of each term, all of one shape, in one reduction: each alone costs as much."""
    together = jax.vmap(lambda x: mean(x, weight))(jnp.stack(list(terms.values())))
    return dict(zip(terms, together, strict=True))
