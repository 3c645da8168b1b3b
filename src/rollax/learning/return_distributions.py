"""Losses of distributions of returns: projected categorical distributions and quantiles."""

import jax
import jax.numpy as jnp

from rollax.types import Scalar


def project_categorical(
    atoms: jax.Array, probabilities: jax.Array, support: jax.Array
) -> jax.Array:
    """Project a categorical distribution onto equidistant atoms.

    The probability of each atom is shared between its two neighbors in the support, so that the
    mean does not change. Atoms outside of the support are moved to its ends.

    >>> support = jnp.array([0.0, 1.0, 2.0])
    >>> project_categorical(jnp.array([0.25, 5.0]), jnp.array([0.5, 0.5]), support).tolist()
    [0.375, 0.125, 0.5]

    Args:
        atoms: Atoms of the distribution, `[k]`.
        probabilities: Their probabilities, `[k]`.
        support: Equidistant atoms in ascending order, `[m]` with m > 1.

    Returns:
        The probabilities of the atoms of the support, `[m]`.

    References:
        Bellemare et al. 2017, arXiv:1707.06887, Eq. 7.
    """
    spacing = (support[-1] - support[0]) / (len(support) - 1)
    distance = jnp.abs(jnp.clip(atoms, support[0], support[-1])[:, None] - support[None]) / spacing
    return probabilities @ jnp.clip(1 - distance, 0, 1)


def midpoint_fractions(number: int) -> jax.Array:
    """Return the fractions (i + 1/2) / number for i from 0 to number - 1, `[number]`.

    References:
        Dabney et al. 2018, arXiv:1710.10044, lemma 2.
    """
    return (jnp.arange(number) + 0.5) / number


def quantile_huber_loss(
    quantiles: jax.Array, fractions: jax.Array, targets: jax.Array, delta: Scalar
) -> jax.Array:
    """Compute the quantile regression loss with the Huber loss of pairwise differences.

    The loss is sum_i mean_j |tau_i - 1{u_ij < 0}| H(u_ij) / delta with u_ij = y_j - theta_i, where
    H(u) is u^2 / 2 for |u| <= delta, and delta (|u| - delta / 2) for |u| > delta.

    Args:
        quantiles: Estimated quantiles theta, `[n]`.
        fractions: Fractions tau of the quantiles, `[n]`.
        targets: Samples or quantiles y of the target distribution, `[m]`.
        delta: Threshold of the Huber loss, greater than 0.

    Returns:
        The loss, `[]`.

    References:
        Dabney et al. 2018, arXiv:1710.10044, Eq. 9 and 10; arXiv:1806.06923, Eq. 3.
    """
    difference = targets[None, :] - quantiles[:, None]
    clipped = jnp.clip(difference, -delta, delta)
    huber = jax.lax.stop_gradient(clipped) * difference - 0.5 * jax.lax.stop_gradient(clipped) ** 2
    weight = jnp.abs(fractions[:, None] - (difference < 0))
    return jnp.sum(jnp.mean(weight * huber / delta, axis=1))
