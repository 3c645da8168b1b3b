"""Terms of policy-gradient losses, for one sample each; they work elementwise on arrays of samples."""

import jax
import jax.numpy as jnp


def policy_objective(log_ratio: jax.Array, advantage: jax.Array, clip: jax.Array | float) -> jax.Array:
    """min(r A, clip(r, 1 - epsilon, 1 + epsilon) A), with r = exp(log_ratio): eq. 7 of one sample; to be maximized.

    >>> ratio, advantage = jnp.array([1.1, 1.5, 0.5]), jnp.array([1.0, 1.0, -1.0])
    >>> [round(float(x), 3) for x in policy_objective(jnp.log(ratio), advantage, 0.2)]
    [1.1, 1.2, -0.8]
    """
    ratio = jnp.exp(log_ratio)
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def value_error(value: jax.Array, old: jax.Array, target: jax.Array, clip: jax.Array | float | None) -> jax.Array:
    """(V - target)^2 / 2 of one sample; with `clip`, the larger of that and the same for V within `clip` of the old value."""
    error = (value - target) ** 2
    if clip is not None:
        error = jnp.maximum(error, (old + jnp.clip(value - old, -clip, clip) - target) ** 2)
    return 0.5 * error


def kl_estimate(log_ratio: jax.Array) -> jax.Array:
    """(r - 1) - log r: an unbiased and never negative estimate of KL(old || new) from samples of old (Schulman 2020, k3)."""
    # exp is there already and expm1 is slow; what rounding takes below zero is zero.
    return jnp.maximum(jnp.exp(log_ratio) - 1 - log_ratio, 0.0)
