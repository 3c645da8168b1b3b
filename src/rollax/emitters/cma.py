"""The covariance matrix adaptation evolution strategy, CMA-ES, as functions of one search distribution.

Hansen 2016, "The CMA Evolution Strategy: A Tutorial", arXiv:1604.00772; numbers in brackets are its equations. Weights are
positive only, and the step size follows |p|^2 / D - 1 in place of |p| / E|N| - 1, as in the author's pycma ("purecma"). In
place of the root C^(1/2) = B D B^T stands the Cholesky factor A, A A^T = C, as in Krause, Arbones and Igel 2016, "CMA-ES with
optimal covariance update and storage complexity": samples have the same distribution, the path of the step size is another
rotation of the same, and a factor costs a fifteenth of eigenvectors (100 dimensions). How many parents there are may differ
from call to call: their weights and all rates follow from that number.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Search(NamedTuple):
    """A normal distribution N(mean, sigma^2 C) and what adapts it, D dimensions, float32."""

    mean: jax.Array  # [D]
    sigma: jax.Array  # []
    covariance: jax.Array  # [D, D]
    factor: jax.Array  # [D, D]: lower triangular A with A A^T = C, of C when it was last decomposed
    path: jax.Array  # [D]: of the mean, in units of sigma
    sigma_path: jax.Array  # [D]: likewise, without what C explains
    generation: jax.Array  # int32 []


class Rates(NamedTuple):
    """What follows from the number of parents mu and of dimensions, float32; weights are `[B]`, 0 beyond mu."""

    weights: jax.Array
    mu_eff: jax.Array
    path: jax.Array
    sigma: jax.Array
    rank_one: jax.Array
    rank_mu: jax.Array
    damping: jax.Array


def begin(mean: jax.Array, sigma: Any) -> Search:
    """A search from a mean `[D]`, with equal deviations in all directions."""
    size = mean.shape[0]
    identity, zeros = jnp.eye(size, dtype=mean.dtype), jnp.zeros_like(mean)
    return Search(mean, jnp.asarray(sigma, mean.dtype), identity, identity, zeros, zeros, jnp.zeros((), jnp.int32))


@jax.custom_batching.custom_vmap
def _cholesky(matrix: jax.Array) -> jax.Array:
    """The factor of a matrix. Of many on the devices of a CPU, one after the other: LAPACK's calls of a batch each wait for
    threads of one pool, and those of several devices for one another, for ever (jaxlib 0.10)."""
    return jnp.linalg.cholesky(matrix)


@_cholesky.def_vmap
def _cholesky_of_many(size: int, batched: list[bool], matrices: jax.Array) -> tuple[jax.Array, bool]:
    is_apart = jax.default_backend() == "cpu" and jax.device_count() > 1
    return jax.lax.map(_cholesky, matrices) if is_apart else jnp.linalg.cholesky(matrices), True


def decompose(search: Search) -> Search:
    """The search with the factor of its covariance as it is now."""
    covariance = search.covariance
    # Rounding may leave eigenvalues below 0 that are nearly 0; this is about what is lost of them.
    lost = jnp.finfo(covariance.dtype).eps * jnp.trace(covariance)
    factor = _cholesky(covariance + lost * jnp.eye(covariance.shape[0], dtype=covariance.dtype))
    return search._replace(factor=jnp.where(jnp.all(jnp.isfinite(factor)), factor, search.factor))


def sample(search: Search, key: jax.Array, number: int) -> jax.Array:
    """x = m + sigma A z, z ~ N(0, I) [38-40], `[B, D]`."""
    noise = jax.random.normal(key, (number, search.mean.shape[0]), search.mean.dtype)
    return search.mean[None] + search.sigma * noise @ search.factor.T


def rates(number: int, parents: jax.Array, size: int) -> Rates:
    """Table 1 of the tutorial, for the best `parents` (int32 [], at least 1) of `number` solutions."""
    index = jnp.arange(1, number + 1)
    weights = jnp.where(index <= parents, jnp.log(parents + 0.5) - jnp.log(index), 0.0)  # [49]
    weights = weights / jnp.sum(weights)
    mu_eff = 1 / jnp.sum(weights**2)
    path = (4 + mu_eff / size) / (size + 4 + 2 * mu_eff / size)  # [56]
    sigma = (mu_eff + 2) / (size + mu_eff + 5)  # [55]
    rank_one = 2 / ((size + 1.3) ** 2 + mu_eff)  # [57]
    rank_mu = jnp.minimum(1 - rank_one, 2 * (mu_eff - 2 + 1 / mu_eff) / ((size + 2) ** 2 + mu_eff))  # [58]
    damping = 1 + 2 * jnp.maximum(0.0, jnp.sqrt((mu_eff - 1) / (size + 1)) - 1) + sigma
    return Rates(weights, mu_eff, path, sigma, rank_one, rank_mu, damping)


def adapt(search: Search, ranked: jax.Array, parents: jax.Array) -> Search:
    """One generation: the search after solutions `[B, D]`, best first, of which the first `parents` count."""
    number, size = ranked.shape
    rate = rates(number, parents, size)
    steps = (ranked - search.mean[None]) / search.sigma  # y
    mean_step = rate.weights @ steps
    generation = search.generation + 1
    # Coordinates in which C is the identity: A^(-1) y, for C^(-1/2) y [43].
    white = jax.scipy.linalg.solve_triangular(search.factor, mean_step, lower=True)
    sigma_path = (1 - rate.sigma) * search.sigma_path + jnp.sqrt(rate.sigma * (2 - rate.sigma) * rate.mu_eff) * white
    squared = jnp.sum(sigma_path**2) / size
    # While the step size is far too small, the path is left as it is: it would make C grow too fast [page 31, h_sigma].
    is_calm = squared / (1 - (1 - rate.sigma) ** (2 * generation)) < 2 + 4 / (size + 1)
    path = (1 - rate.path) * search.path + is_calm * jnp.sqrt(rate.path * (2 - rate.path) * rate.mu_eff) * mean_step  # [45]
    lost = jnp.where(is_calm, 0.0, rate.rank_one * rate.path * (2 - rate.path))
    covariance = (
        (1 - rate.rank_one - rate.rank_mu + lost) * search.covariance
        + rate.rank_one * jnp.outer(path, path)
        + rate.rank_mu * (steps.T * rate.weights[None]) @ steps
    )  # [47]
    sigma = search.sigma * jnp.exp(jnp.minimum(1.0, rate.sigma / rate.damping * (squared - 1) / 2))
    mean = search.mean + search.sigma * mean_step  # [42]
    return search._replace(
        mean=mean, sigma=sigma, covariance=covariance, path=path, sigma_path=sigma_path, generation=generation
    )


def has_converged(search: Search, best: jax.Array, worst: jax.Array) -> jax.Array:
    """Whether nothing more comes of the search, bool []: C is singular, no step is left, or all were ranked alike.

    `best`, `worst`: what the first and the last of a generation were ranked by, `[K]`. The limits are those of pyribs; the
    axes of C are told from the diagonal of its factor, which lies between the smallest and the largest.
    """
    axes = jnp.diagonal(search.factor)
    is_singular = jnp.max(axes) > 1e7 * jnp.min(axes)
    return is_singular | (search.sigma * jnp.max(axes) < 1e-11) | (jnp.max(jnp.abs(best - worst)) < 1e-12)
