"""CMA-ES (covariance matrix adaptation evolution strategy) as pure functions.

Hansen 2016, "The CMA Evolution Strategy: A Tutorial", arXiv:1604.00772. Numbers in brackets are
equations of this tutorial. All weights are positive, and the step size adapts by |p|^2 / D - 1
instead of |p| / E|N| - 1, as in the author's pycma ("purecma"). The Cholesky factor A with
A A^T = C replaces the square root C^(1/2) = B D B^T, as in Krause, Arbones and Igel 2016, "CMA-ES
with optimal covariance update and storage complexity". Samples have the same distribution as with
the square root, and the path of the step size is rotated. In 100 dimensions, the factorization
costs a fifteenth of the eigendecomposition. The number of parents may change between calls, because
weights and learning rates are computed in every call.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.types import Scalar

LOWEST_VALUE = float(
    np.finfo(np.float32).min
)  # Initial value, and value of solutions that are not finite.


class SearchDistribution(NamedTuple):
    """Normal distribution N(mean, sigma^2 C) in D dimensions with its adaptation state, float32.

    Attributes:
        mean: Mean, `[D]`.
        sigma: Step size, `[]`.
        covariance: Covariance C, `[D, D]`.
        factor: Lower triangular A with A A^T = C at the time of the last decomposition, `[D, D]`.
        path: Evolution path of the mean in units of sigma, `[D]`.
        sigma_path: Evolution path of the mean in coordinates where C is the identity, `[D]`.
        generation: Number of generations, int32 `[]`.
        best_value: Highest value since the archive last accepted a solution, `[]`.
        num_stalled_generations: Number of generations since the archive last accepted a solution or
            `best_value` last increased, int32 `[]`.
    """

    mean: jax.Array
    sigma: jax.Array
    covariance: jax.Array
    factor: jax.Array
    path: jax.Array
    sigma_path: jax.Array
    generation: jax.Array
    best_value: jax.Array
    num_stalled_generations: jax.Array


class CMAParameters(NamedTuple):
    """Strategy parameters derived from the number of parents mu and the dimension D, float32 `[]`.

    Attributes:
        weights: Recombination weights of B ranked solutions, `[B]`, 0 for solutions that are not
            parents.
        mu_eff: Variance effective selection mass.
        path: Learning rate c_c of the evolution path of the mean.
        sigma: Learning rate c_sigma of the evolution path of the step size.
        rank_one: Learning rate c_1 of the rank-one update.
        rank_mu: Learning rate c_mu of the rank-mu update.
        damping: Damping d_sigma of the step size.
    """

    weights: jax.Array
    mu_eff: jax.Array
    path: jax.Array
    sigma: jax.Array
    rank_one: jax.Array
    rank_mu: jax.Array
    damping: jax.Array


def init_search(mean: jax.Array, sigma: Scalar) -> SearchDistribution:
    """Return the search distribution N(mean, sigma^2 I) before the first generation.

    Args:
        mean: Mean, `[D]`.
        sigma: Standard deviation in all directions.

    Returns:
        The search distribution.
    """
    size = mean.shape[0]
    identity, zeros = jnp.eye(size, dtype=mean.dtype), jnp.zeros_like(mean)
    return SearchDistribution(
        mean=mean,
        sigma=jnp.asarray(sigma, mean.dtype),
        covariance=identity,
        factor=identity,
        path=zeros,
        sigma_path=zeros,
        generation=jnp.zeros((), jnp.int32),
        best_value=jnp.asarray(LOWEST_VALUE, mean.dtype),
        num_stalled_generations=jnp.zeros((), jnp.int32),
    )


@jax.custom_batching.custom_vmap
def _cholesky(matrix: jax.Array) -> jax.Array:
    """Return the Cholesky factor of a matrix.

    With several CPU devices, the matrices of a batch are factorized sequentially. Batched LAPACK
    calls wait for threads of one shared pool, and the calls of several devices deadlock (jaxlib
    0.10).
    """
    return jnp.linalg.cholesky(matrix)


@_cholesky.def_vmap
def _batched_cholesky(
    size: int, batched: list[bool], matrices: jax.Array
) -> tuple[jax.Array, bool]:
    has_multiple_cpus = jax.default_backend() == "cpu" and jax.device_count() > 1
    return jax.lax.map(_cholesky, matrices) if has_multiple_cpus else jnp.linalg.cholesky(
        matrices
    ), True


def decompose(search: SearchDistribution) -> SearchDistribution:
    """Return the search distribution with the Cholesky factor of its current covariance.

    If the factorization fails, the previous factor is kept.
    """
    covariance = search.covariance
    # Rounding may make small eigenvalues negative. This term is about the size of that error.
    jitter = jnp.finfo(covariance.dtype).eps * jnp.trace(covariance)
    factor = _cholesky(covariance + jitter * jnp.eye(covariance.shape[0], dtype=covariance.dtype))
    return search._replace(factor=jnp.where(jnp.all(jnp.isfinite(factor)), factor, search.factor))


def sample_points(search: SearchDistribution, key: jax.Array, num_points: int) -> jax.Array:
    """Sample B points x = m + sigma A z with z ~ N(0, I) [38-40].

    Args:
        search: Search distribution.
        key: Random key.
        num_points: Number of samples B.

    Returns:
        The samples, `[B, D]`.
    """
    noise = jax.random.normal(key, (num_points, search.mean.shape[0]), search.mean.dtype)
    return search.mean[None] + search.sigma * noise @ search.factor.T


def compute_parameters(
    num_solutions: int, num_parents: jax.Array, num_dimensions: int
) -> CMAParameters:
    """Compute the default parameters (table 1 of the tutorial).

    Args:
        num_solutions: Number of solutions B.
        num_parents: Number of parents mu, int32 `[]`, at least 1.
        num_dimensions: Dimension D.

    Returns:
        The parameters.
    """
    index = jnp.arange(1, num_solutions + 1)
    weights = jnp.where(
        index <= num_parents, jnp.log(num_parents + 0.5) - jnp.log(index), 0.0
    )  # [49]
    weights = weights / jnp.sum(weights)
    mu_eff = 1 / jnp.sum(weights**2)
    path = (4 + mu_eff / num_dimensions) / (
        num_dimensions + 4 + 2 * mu_eff / num_dimensions
    )  # [56]
    sigma = (mu_eff + 2) / (num_dimensions + mu_eff + 5)  # [55]
    rank_one = 2 / ((num_dimensions + 1.3) ** 2 + mu_eff)  # [57]
    rank_mu = jnp.minimum(
        1 - rank_one, 2 * (mu_eff - 2 + 1 / mu_eff) / ((num_dimensions + 2) ** 2 + mu_eff)
    )  # [58]
    damping = 1 + 2 * jnp.maximum(0.0, jnp.sqrt((mu_eff - 1) / (num_dimensions + 1)) - 1) + sigma
    return CMAParameters(weights, mu_eff, path, sigma, rank_one, rank_mu, damping)


def adapt(
    search: SearchDistribution, ranked: jax.Array, num_parents: jax.Array
) -> SearchDistribution:
    """Update a search distribution with the solutions of one generation.

    Args:
        search: Search distribution.
        ranked: Solutions `[B, D]`, best first.
        num_parents: Number of parents, int32 `[]`, at least 1.

    Returns:
        The updated search distribution.
    """
    number, size = ranked.shape
    rate = compute_parameters(number, num_parents, size)
    steps = (ranked - search.mean[None]) / search.sigma  # y
    mean_step = rate.weights @ steps
    generation = search.generation + 1
    # A^(-1) y in coordinates where C is the identity, for C^(-1/2) y [43].
    whitened_step = jax.scipy.linalg.solve_triangular(search.factor, mean_step, lower=True)
    sigma_path = (1 - rate.sigma) * search.sigma_path + jnp.sqrt(
        rate.sigma * (2 - rate.sigma) * rate.mu_eff
    ) * whitened_step
    squared = jnp.sum(sigma_path**2) / size
    # While the step size is far too small, the path is not updated, because C would grow too fast
    # [page 31, h_sigma].
    h_sigma = squared / (1 - (1 - rate.sigma) ** (2 * generation)) < 2 + 4 / (size + 1)
    path = (1 - rate.path) * search.path + h_sigma * jnp.sqrt(
        rate.path * (2 - rate.path) * rate.mu_eff
    ) * mean_step  # [45]
    variance_correction = jnp.where(h_sigma, 0.0, rate.rank_one * rate.path * (2 - rate.path))
    covariance = (
        (1 - rate.rank_one - rate.rank_mu + variance_correction) * search.covariance
        + rate.rank_one * jnp.outer(path, path)
        + rate.rank_mu * (steps.T * rate.weights[None]) @ steps
    )  # [47]
    sigma = search.sigma * jnp.exp(jnp.minimum(1.0, rate.sigma / rate.damping * (squared - 1) / 2))
    mean = search.mean + search.sigma * mean_step  # [42]
    return search._replace(
        mean=mean,
        sigma=sigma,
        covariance=covariance,
        path=path,
        sigma_path=sigma_path,
        generation=generation,
    )


def update_stall_count(
    search: SearchDistribution, value: jax.Array, is_accepted: jax.Array
) -> SearchDistribution:
    """Update the number of consecutive generations without progress.

    A generation makes progress if the archive accepts one of its solutions, or if its highest value
    exceeds `best_value`. An accepted solution resets `best_value`, because it changes the values of
    all later solutions.

    Args:
        search: Search distribution after a generation.
        value: Highest ranking value of the generation, `[]`.
        is_accepted: Whether the archive accepted a solution of the generation, bool `[]`.

    Returns:
        The search distribution with updated `best_value` and `num_stalled_generations`.
    """
    has_improved = is_accepted | (value > search.best_value)
    best_value = jnp.where(is_accepted, LOWEST_VALUE, jnp.maximum(search.best_value, value))
    return search._replace(
        best_value=best_value,
        num_stalled_generations=jnp.where(has_improved, 0, search.num_stalled_generations + 1),
    )


def has_stagnated(search: SearchDistribution, num_solutions: int) -> jax.Array:
    """Return whether a search has made no progress for 120 + 30 D / `num_solutions` generations.

    The limit is that of the criterion "Stagnation" of the tutorial (appendix B.3).

    Args:
        search: Search distribution.
        num_solutions: Number of solutions per generation.

    Returns:
        Whether the search has stagnated, bool `[]`.
    """
    return search.num_stalled_generations >= 120 + 30 * search.mean.shape[0] / num_solutions


def has_converged(search: SearchDistribution, best: jax.Array, worst: jax.Array) -> jax.Array:
    """Return whether a search has reached the limits of its numerical precision.

    The result is true if one of these criteria of the tutorial (appendix B.3) holds, with limits
    suited to float32:

    - ConditionCov: The smallest eigenvalue of C consists mostly of the term that `decompose` adds
      against rounding errors.
    - NoEffectCoord: A fifth of a standard deviation changes a coordinate of the mean by less than
      its rounding error.
    - TolX: All standard deviations are below 1e-11.
    - TolFun: The best and worst values of the generation differ by less than their rounding error
      or 1e-12.

    Args:
        search: Search after a generation.
        best: Ranking values of the best solution of the generation, `[K]`.
        worst: Ranking values of the worst solution of the generation, `[K]`.

    Returns:
        Whether the search has converged, bool `[]`.
    """
    epsilon = jnp.finfo(search.factor.dtype).eps
    variances = jnp.sum(search.factor**2, axis=1)
    is_singular = smallest_eigenvalue(search.factor) < 2 * epsilon * jnp.sum(variances)
    deviations = search.sigma * jnp.sqrt(variances)
    has_no_effect = jnp.any(0.2 * deviations < 0.5 * epsilon * jnp.abs(search.mean)) | (
        jnp.max(deviations) < 1e-11
    )
    resolution = jnp.maximum(1e-12, epsilon * jnp.maximum(jnp.abs(best), jnp.abs(worst)))
    return is_singular | has_no_effect | jnp.all(jnp.abs(best - worst) <= resolution)


def smallest_eigenvalue(factor: jax.Array) -> jax.Array:
    """Estimate the smallest eigenvalue of A A^T for a lower triangular A `[D, D]`.

    The estimate is one step of inverse iteration, starting from the coordinate with the smallest
    diagonal element (pivot) of A. The pivot alone overestimates the eigenvalue by a factor of up to
    D.
    """
    solve = functools.partial(jax.scipy.linalg.solve_triangular, factor, lower=True)
    start = jnp.zeros(factor.shape[0], factor.dtype).at[jnp.argmin(jnp.diagonal(factor))].set(1)
    direction = solve(solve(start), trans=1)
    return 1 / jnp.sum(solve(direction / jnp.linalg.norm(direction)) ** 2)
