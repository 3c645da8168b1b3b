"""Terms of losses, elementwise on arrays of samples; their means over the samples that count; what an update reports."""

from typing import Any

import jax
import jax.numpy as jnp

from rollax.acting.streams import Experience
from rollax.algorithm import Finite, still_finite
from rollax.scopes import scope

# Equal numbers, each computed in a few float32 operations, differ by less than this share of their size.
ROUNDING = 4 * float(jnp.finfo(jnp.float32).eps)


def clipped_objective(log_ratio: jax.Array, advantage: jax.Array, clip: jax.Array | float) -> jax.Array:
    """min(r A, clip(r, 1 - epsilon, 1 + epsilon) A), with r = exp(log_ratio): Schulman et al. 2017, eq. 7; to be maximized.

    >>> ratio, advantage = jnp.array([1.1, 1.5, 0.5]), jnp.array([1.0, 1.0, -1.0])
    >>> [round(float(x), 3) for x in clipped_objective(jnp.log(ratio), advantage, 0.2)]
    [1.1, 1.2, -0.8]
    """
    ratio = jnp.exp(log_ratio)
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def value_error(value: jax.Array, old: jax.Array, target: jax.Array, clip: jax.Array | float | None) -> jax.Array:
    """(V - target)^2 / 2; with `clip`, the larger of that and the same for V within `clip` of the old value."""
    error = (value - target) ** 2
    if clip is not None:
        error = jnp.maximum(error, (old + jnp.clip(value - old, -clip, clip) - target) ** 2)
    return 0.5 * error


def kl_estimate(log_ratio: jax.Array) -> jax.Array:
    """(r - 1) - log r: an unbiased and never negative estimate of KL(old || new) from samples of old (Schulman 2020, k3)."""
    # exp is there already and expm1 is slow; what rounding takes below zero is zero.
    return jnp.maximum(jnp.exp(log_ratio) - 1 - log_ratio, 0.0)


def mean(x: jax.Array, mask: jax.Array | None = None, axes: tuple[int, ...] | None = None, keepdims: bool = False) -> jax.Array:
    """The mean over `axes` (all of them by default) of the samples where `mask` is true, of all where it is None.

    `mask`: bool, the leading axes of `x`; where it is false everywhere the mean is 0.
    """
    if mask is None:
        return jnp.mean(x, axes, keepdims=keepdims)
    counts = jnp.broadcast_to(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x.shape)
    number = jnp.sum(counts.astype(x.dtype), axes, keepdims=keepdims)
    # What does not count may be anything, also no number.
    return jnp.sum(jnp.where(counts, x, 0.0), axes, keepdims=keepdims) / jnp.maximum(number, 1.0)


def means(terms: dict[str, jax.Array], mask: jax.Array | None = None) -> dict[str, jax.Array]:
    """The mean of each term, all of one shape, in one reduction: each alone costs as much."""
    together = jax.vmap(lambda x: mean(x, mask))(jnp.stack(list(terms.values())))
    return dict(zip(terms, together, strict=True))


def mean_and_variance(
    x: jax.Array, mask: jax.Array | None = None, axes: tuple[int, ...] | None = None
) -> tuple[jax.Array, jax.Array]:
    """Mean and population variance over `axes` of the samples that count, as in `mean`; the axes stay, of length 1.

    The corrected two-pass algorithm (Chan, Golub and LeVeque 1983, eq. 1.7): with m a first mean and d = x - m,

    mean = m + mean d,    variance = mean d^2 - (mean d)^2

    so that the mean of equal numbers is that number, however m was rounded.
    """
    first = mean(x, mask, axes, keepdims=True)
    difference = x - first
    correction = mean(difference, mask, axes, keepdims=True)
    square = mean(difference**2, mask, axes, keepdims=True)
    return first + correction, jnp.maximum(square - correction**2, 0.0)


def standardize(x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """(x - mean x) / (std x + 1e-8) over all samples that count, as in `mean`.

    Where the standard deviation is below the rounding of float32, all of `x` is equal and the result is 0. A single sample
    stays as it is: its advantage would be 0, and no gradient would be left.
    """
    number = x.size if mask is None else jnp.sum(jnp.broadcast_to(mask, x.shape))
    average, variance = mean_and_variance(x, mask)
    is_equal = variance <= (ROUNDING * average) ** 2
    std = jnp.sqrt(jnp.where(is_equal, 1.0, variance))  # of 0 the square root has no gradient
    standard = jnp.where(is_equal, 0.0, (x - average) / (std + 1e-8))
    return jnp.where(number > 1, standard, x)


@scope("bookkeeping")
def report(
    rollout: Experience, advantage: jax.Array, target: jax.Array, loss: jax.Array, parameters: Any
) -> tuple[dict[str, jax.Array], Finite]:
    """What an update from a rollout `[T, S]` reports: how well values fit their targets, and what is still finite.

    `parameters`: the network, and what else the next update will compute with.
    """
    mask, value = rollout.mask, rollout.extras.value
    variance = lambda x: mean((x - mean(x, mask)) ** 2, mask)  # noqa: E731
    return {
        "value": mean(value, mask),
        "reward": mean(rollout.reward, mask),
        "explained_variance": 1 - variance(target - value) / jnp.maximum(variance(target), 1e-12),
    }, still_finite((rollout.obs, rollout.next_obs), rollout.reward, advantage, loss, parameters, on_policy=True)
