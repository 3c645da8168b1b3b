"""Elementwise loss terms, masked means, and metrics of an update."""

import jax
import jax.numpy as jnp

from rollax.acting.streams import Experience
from rollax.algorithm import FiniteChecks, check_finite
from rollax.scopes import profile_scope
from rollax.types import Parameters

# Relative tolerance for equal values that are computed with a few float32 operations each.
ROUNDING_TOLERANCE = 4 * float(jnp.finfo(jnp.float32).eps)

# Beyond this range exp overflows, and 0 times its gradient is NaN.
MAX_LOG_RATIO = 20.0


def log_probability_ratio(log_prob: jax.Array, old_log_prob: jax.Array) -> jax.Array:
    """Return log r of the probability ratio r = new / old, clipped to between -20 and 20."""
    return jnp.clip(log_prob - old_log_prob, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def clipped_objective(
    log_ratio: jax.Array, advantage: jax.Array, clip: jax.Array | float
) -> jax.Array:
    """Compute the clipped surrogate objective of PPO, which training maximizes.

    The objective is min(r A, clip(r, 1 - epsilon, 1 + epsilon) A) with r = exp(log_ratio).

    >>> ratio, advantage = jnp.array([1.1, 1.5, 0.5]), jnp.array([1.0, 1.0, -1.0])
    >>> [round(float(x), 3) for x in clipped_objective(jnp.log(ratio), advantage, 0.2)]
    [1.1, 1.2, -0.8]

    Args:
        log_ratio: Logarithm of the probability ratio, `[...]`.
        advantage: Advantages A, `[...]`.
        clip: Clipping range epsilon.

    Returns:
        The objective of each sample, `[...]`.

    References:
        Schulman et al. 2017, Eq. 7.
    """
    ratio = jnp.exp(log_ratio)
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def squared_value_error(
    value: jax.Array, old: jax.Array, target: jax.Array, clip: jax.Array | float | None
) -> jax.Array:
    """Compute the value loss (V - target)^2 / 2, optionally clipped.

    Args:
        value: Values V, `[...]`.
        old: Values before the update, `[...]`.
        target: Value targets, `[...]`.
        clip: Clipping range, or None for the unclipped loss. With a range, the result is the
            maximum of the loss of V and the loss of V clipped to within `clip` of `old`.

    Returns:
        The loss of each sample, `[...]`.
    """
    error = (value - target) ** 2
    if clip is not None:
        error = jnp.maximum(error, (old + jnp.clip(value - old, -clip, clip) - target) ** 2)
    return 0.5 * error


def estimate_kl(log_ratio: jax.Array) -> jax.Array:
    """Estimate KL(old || new) from samples of the old policy as (r - 1) - log r.

    r is the probability ratio new / old of each sample. The estimate has the shape of `log_ratio`
    and is nonnegative. Its mean over samples is unbiased.

    References:
        Schulman 2020, Approximating KL divergence, estimator k3.
    """
    # exp is computed elsewhere too, and expm1 is slow. The maximum removes negative rounding
    # errors.
    return jnp.maximum(jnp.exp(log_ratio) - 1 - log_ratio, 0.0)


def masked_mean(
    x: jax.Array,
    mask: jax.Array | None = None,
    axes: tuple[int, ...] | None = None,
    keepdims: bool = False,
) -> jax.Array:
    """Return the mean over the samples where `mask` is true, or 0 if there are none.

    Args:
        x: Samples.
        mask: Mask over the leading axes of `x`, bool, or None for all samples.
        axes: Axes to reduce. None reduces all axes.
        keepdims: Whether to keep reduced axes with length 1.

    Returns:
        The mean.
    """
    if mask is None:
        return jnp.mean(x, axes, keepdims=keepdims)
    counts = jnp.broadcast_to(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x.shape)
    number = jnp.sum(counts.astype(x.dtype), axes, keepdims=keepdims)
    # Masked samples may be NaN.
    return jnp.sum(jnp.where(counts, x, 0.0), axes, keepdims=keepdims) / jnp.maximum(number, 1.0)


def policy_mask(mask: jax.Array | None, acts: jax.Array | None) -> jax.Array | None:
    """Return a mask of the samples that contribute to the policy loss.

    They are the samples of active agents in their turn. The action of an agent that waits for its
    turn is forced. Its entropy, KL divergence and policy gradient are always 0 and would dilute the
    means. Value losses include waiting agents, because returns propagate through their steps.

    Args:
        mask: Samples of active agents, bool `[...]`, or None for all samples.
        acts: Samples of agents whose turn it is, bool `[...]`, or None for all samples.

    Returns:
        The mask, bool `[...]`, or None for all samples.
    """
    return mask if acts is None else acts if mask is None else mask & acts


def masked_means(
    terms: dict[str, jax.Array],
    mask: jax.Array | None = None,
    policy_samples: jax.Array | None = None,
    values: tuple[str, ...] = (),
) -> dict[str, jax.Array]:
    """Return the masked mean of each loss term.

    All terms are reduced together, which costs as much as the reduction of a single term.

    Args:
        terms: Arrays of equal shape, keyed by the name of the term.
        mask: Samples to include in the terms named in `values`, bool, or None for all samples.
        policy_samples: Samples to include in all other terms, as returned by `policy_mask`. None
            includes the samples of `mask` in these terms as well.
        values: Names of the terms of the value loss, which use `mask`.

    Returns:
        Scalar means, keyed by the name of the term.
    """
    stacked = jnp.stack(list(terms.values()))
    if policy_samples is None or policy_samples is mask:
        return dict(zip(terms, jax.vmap(lambda x: masked_mean(x, mask))(stacked), strict=True))
    mask = jnp.ones_like(policy_samples) if mask is None else mask
    masks = jnp.stack([mask if name in values else policy_samples for name in terms])
    return dict(zip(terms, jax.vmap(masked_mean)(stacked, masks), strict=True))


def masked_mean_and_variance(
    x: jax.Array, mask: jax.Array | None = None, axes: tuple[int, ...] | None = None
) -> tuple[jax.Array, jax.Array]:
    """Compute the mean and population variance over `axes` with the corrected two-pass algorithm.

    With a first estimate m of the mean and d = x - m, the results are

    mean = m + mean d,    variance = mean d^2 - (mean d)^2

    The mean of equal numbers is therefore exactly that number, independent of the rounding of m.

    Args:
        x: Samples.
        mask: Mask, as in `masked_mean`.
        axes: Axes to reduce, which are kept with length 1. None reduces all axes.

    Returns:
        The mean and the variance.

    References:
        Chan, Golub and LeVeque 1983, Eq. 1.7.
    """
    first = masked_mean(x, mask, axes, keepdims=True)
    difference = x - first
    correction = masked_mean(difference, mask, axes, keepdims=True)
    square = masked_mean(difference**2, mask, axes, keepdims=True)
    return first + correction, jnp.maximum(square - correction**2, 0.0)


def standardize(x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Return (x - mean x) / (std x + 1e-8), with statistics of the samples where `mask` is true.

    If the standard deviation is below the rounding error of float32, all samples are considered
    equal and the result is 0. A single sample is returned unchanged, because its standardized value
    would be 0, and so would the gradient of a policy loss with this advantage.

    Args:
        x: Samples, `[...]`.
        mask: Mask, as in `masked_mean`.

    Returns:
        The standardized samples, `[...]`.
    """
    number = x.size if mask is None else jnp.sum(jnp.broadcast_to(mask, x.shape))
    average, variance = masked_mean_and_variance(x, mask)
    is_equal = variance <= (ROUNDING_TOLERANCE * average) ** 2
    std = jnp.sqrt(jnp.where(is_equal, 1.0, variance))  # the gradient of sqrt is infinite at 0
    standard = jnp.where(is_equal, 0.0, (x - average) / (std + 1e-8))
    return jnp.where(number > 1, standard, x)


@profile_scope("bookkeeping")
def summarize_update(
    rollout: Experience,
    advantage: jax.Array,
    target: jax.Array,
    loss: jax.Array,
    parameters: Parameters,
    prediction: jax.Array | None = None,
) -> tuple[dict[str, jax.Array], FiniteChecks]:
    """Return metrics and finite checks of an update from a rollout.

    Args:
        rollout: Experience `[T, S]` with the value of each observation in its extras.
        advantage: Advantages `[T, S]`.
        target: Value targets `[T, S]`.
        loss: Loss of the update.
        parameters: Network and other arrays that the next update uses.
        prediction: Prediction of the target, `[T, S]`, such as Q(s, a). None uses the values in the
            extras.

    Returns:
        Dictionary with the mean value ("value"), the mean reward ("reward") and the explained
        variance of the value targets ("explained_variance"), and the `FiniteChecks`.
    """
    mask, value = rollout.mask, rollout.extras.value
    predicted = value if prediction is None else prediction

    def variance(x):
        return masked_mean((x - masked_mean(x, mask)) ** 2, mask)

    return {
        "value": masked_mean(value, mask),
        "reward": masked_mean(rollout.reward, mask),
        "explained_variance": 1
        - variance(target - predicted) / jnp.maximum(variance(target), 1e-12),
    }, check_finite(
        (rollout.obs, rollout.next_obs), rollout.reward, advantage, loss, parameters, on_policy=True
    )
