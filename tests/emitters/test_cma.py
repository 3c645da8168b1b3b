"""Tests of CMA-ES against a reference in NumPy, and of its convergence on a quadratic."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.archives.archive import InsertionResult, ScoredSolutions
from rollax.archives.grid import grid_archive
from rollax.emitters import cma
from rollax.emitters.emitter import EvaluatedBatch
from rollax.emitters.improvement import cma_es_emitter
from rollax.emitters.ranking import SearchRules


class Reference:
    """Algorithm of the tutorial with positive weights, in double precision."""

    def __init__(self, mean: np.ndarray, sigma: float) -> None:
        size = len(mean)
        self.mean, self.sigma, self.covariance = mean, sigma, np.eye(size)
        self.path, self.sigma_path, self.generation, self.is_calm = (
            np.zeros(size),
            np.zeros(size),
            0,
            True,
        )
        self.decompose()

    def decompose(self) -> None:
        self.factor = np.linalg.cholesky(self.covariance)

    def adapt(self, ranked: np.ndarray, parents: int) -> None:
        n = len(self.mean)
        weights = np.array([np.log(parents + 0.5) - np.log(i) for i in range(1, parents + 1)])
        weights /= weights.sum()
        mu = 1 / np.sum(weights**2)
        cc, cs = (4 + mu / n) / (n + 4 + 2 * mu / n), (mu + 2) / (n + mu + 5)
        c1 = 2 / ((n + 1.3) ** 2 + mu)
        cmu = min(1 - c1, 2 * (mu - 2 + 1 / mu) / ((n + 2) ** 2 + mu))
        damps = 1 + 2 * max(0, np.sqrt((mu - 1) / (n + 1)) - 1) + cs
        steps = [(x - self.mean) / self.sigma for x in ranked[:parents]]
        step = sum(w * y for w, y in zip(weights, steps, strict=True))
        self.generation += 1
        self.sigma_path = (1 - cs) * self.sigma_path + np.sqrt(
            cs * (2 - cs) * mu
        ) * np.linalg.solve(self.factor, step)
        length = np.sum(self.sigma_path**2) / n
        self.is_calm = calm = length / (1 - (1 - cs) ** (2 * self.generation)) < 2 + 4 / (n + 1)
        self.path = (1 - cc) * self.path + calm * np.sqrt(cc * (2 - cc) * mu) * step
        rank_mu = sum(w * np.outer(y, y) for w, y in zip(weights, steps, strict=True))
        kept = 1 - c1 - cmu + (0 if calm else c1 * cc * (2 - cc))
        self.covariance = (
            kept * self.covariance + c1 * np.outer(self.path, self.path) + cmu * rank_mu
        )
        self.mean = self.mean + self.sigma * step
        self.sigma *= np.exp(min(1, cs / damps * (length - 1) / 2))


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("parents", [1, 3, 6, 12])
def test_generations_equal_those_of_the_tutorial(parents: int) -> None:
    """The covariance is decomposed every third generation.

    The initial step size is far too small.
    """
    numbers = np.random.default_rng(parents)
    mean = numbers.normal(size=5)
    search = cma.init_search(jnp.asarray(mean), jnp.asarray(1e-3))
    reference = Reference(mean, 1e-3)
    adapt = jax.jit(cma.adapt)
    calm = set()
    for generation in range(30):
        if generation % 3 == 0:
            search = cma.decompose(search)
            reference.decompose()
        points = np.asarray(cma.sample_points(search, jax.random.key(generation), 12))
        ranked = points[np.argsort(np.sum((points * [1, 2, 3, 4, 5] - 3) ** 2, axis=1))]
        search = adapt(search, jnp.asarray(ranked), jnp.asarray(parents))
        reference.adapt(ranked, parents)
        calm.add(bool(reference.is_calm))
        for name in ("mean", "sigma", "covariance", "path", "sigma_path"):
            np.testing.assert_allclose(
                getattr(search, name), getattr(reference, name), rtol=1e-7, atol=1e-10, err_msg=name
            )
    assert calm == {True, False}  # both values of h_sigma occurred


def minimize(
    function: Any, search: cma.SearchDistribution, generations: int, number: int
) -> cma.SearchDistribution:
    def generation(
        search: cma.SearchDistribution, key: jax.Array
    ) -> tuple[cma.SearchDistribution, None]:
        search = cma.decompose(search)
        points = cma.sample_points(search, key, number)
        order = jnp.argsort(jax.vmap(function)(points))
        return cma.adapt(search, points[order], jnp.asarray(number // 2)), None

    return jax.lax.scan(generation, search, jax.random.split(jax.random.key(0), generations))[0]


def test_the_minimum_of_a_quadratic_is_found() -> None:
    """In ten dimensions with scales from 1 to 1000, a value of 1e-9 needs a learned covariance."""
    scales = jnp.logspace(0, 3, 10)
    rotation = jnp.linalg.qr(jax.random.normal(jax.random.key(1), (10, 10)))[0]

    def function(x):
        return jnp.sum(scales * (rotation @ x) ** 2)

    start = cma.init_search(jnp.ones(10), 0.5)
    found = jax.jit(lambda search: minimize(function, search, 400, 16))(start)
    assert function(found.mean) < 1e-9
    found = jax.jit(lambda search: minimize(function, search, 60, 16))(start)
    assert function(found.mean) > 1e-9  # the search has not converged after few generations


def test_convergence_criteria() -> None:
    search = cma.decompose(cma.init_search(jnp.zeros(3), 1.0))
    apart = jnp.asarray([2.0, 1.0]), jnp.asarray([2.0, 0.5])
    assert not cma.has_converged(search, *apart)
    assert cma.has_converged(search, apart[0], apart[0])
    assert cma.has_converged(search._replace(sigma=jnp.asarray(1e-12)), *apart)


@pytest.mark.parametrize("size", [2, 50])
def test_a_covariance_that_float32_cannot_represent_ends_a_search(size: int) -> None:
    """A random rotation makes every pivot larger than the smallest eigenvalue.

    With a larger eigenvalue, the search continues.
    """
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))[0]
    apart = jnp.asarray([2.0]), jnp.asarray([1.0])
    for smallest, is_over in ((1e-9, True), (0.0, True), (1e-4, False), (1e-2, False)):
        covariance = jnp.asarray(
            rotation * np.append(np.ones(size - 1), smallest) @ rotation.T, jnp.float32
        )
        search = cma.decompose(
            cma.init_search(jnp.zeros(size), 1.0)._replace(covariance=covariance)
        )
        assert bool(cma.has_converged(search, *apart)) == is_over, smallest
        if not is_over:
            np.testing.assert_allclose(cma.smallest_eigenvalue(search.factor), smallest, rtol=0.1)


def test_steps_below_the_resolution_of_float32_end_a_search() -> None:
    """The step is compared with the resolution of each coordinate of the mean, finer near 0."""
    apart = jnp.asarray([2.0]), jnp.asarray([1.0])
    for place, sigma, is_over in ((1000.0, 1e-4, True), (1000.0, 1e-2, False), (0.0, 1e-4, False)):
        search = cma.decompose(cma.init_search(jnp.asarray([0.0, place, 0.0]), sigma))
        assert bool(cma.has_converged(search, *apart)) == is_over


def test_fitness_values_that_float32_cannot_distinguish_end_a_search() -> None:
    search = cma.decompose(cma.init_search(jnp.zeros(3), 1.0))
    for best, worst, is_over in (
        (100.0, 100.0 - 7.6e-6, True),
        (100.0, 99.999, False),
        (1e-3, 0.999e-3, False),
    ):
        assert bool(cma.has_converged(search, jnp.asarray([best]), jnp.asarray([worst]))) == is_over


def test_a_search_without_progress_stagnates() -> None:
    """It stagnates after 120 + 30 D / n generations.

    An acceptance or a better value restarts the count.
    """
    yes, no = jnp.ones((), bool), jnp.zeros((), bool)
    search, horizon = cma.init_search(jnp.zeros(6), 1.0), 120 + 30 * 6 // 10
    count = jax.jit(cma.update_stall_count)
    for generation in range(horizon + 1):
        assert not cma.has_stagnated(search, 10)
        search = count(search, jnp.asarray(1.0 - generation % 3), no)
    assert cma.has_stagnated(search, 10)
    assert not cma.has_stagnated(count(search, jnp.asarray(1.5), no), 10)
    accepted = count(search, jnp.asarray(0.0), yes)
    assert not cma.has_stagnated(accepted, 10)
    assert count(accepted, jnp.asarray(0.5), no).num_stalled_generations == 0, (
        "values before an acceptance no longer count"
    )


def test_a_singular_covariance_is_decomposed() -> None:
    """Rank 1 and rounding below 0 are allowed.

    Without a valid covariance the last factor remains.
    """
    search = cma.init_search(jnp.zeros(50), 1.0)
    line = jnp.linspace(1.0, 2.0, 50)
    for covariance in (jnp.outer(line, line), jnp.outer(line, line) - 1e-6 * jnp.eye(50)):
        factor = cma.decompose(search._replace(covariance=covariance)).factor
        assert jnp.allclose(factor @ factor.T, covariance, atol=1e-3)
        assert jnp.all(jnp.triu(factor, 1) == 0) and jnp.all(jnp.diagonal(factor) > 0)
    for covariance in (-jnp.eye(50), jnp.full((50, 50), jnp.nan)):
        assert jnp.all(cma.decompose(search._replace(covariance=covariance)).factor == jnp.eye(50))


def test_samples_have_the_covariance() -> None:
    """The covariance of 200,000 samples is close to a random one."""
    root = jax.random.normal(jax.random.key(0), (4, 4))
    search = cma.decompose(cma.init_search(jnp.ones(4), 2.0)._replace(covariance=root @ root.T))
    points = cma.sample_points(search, jax.random.key(1), 200_000)
    np.testing.assert_allclose(np.cov(points.T), 4 * root @ root.T, atol=0.6)
    np.testing.assert_allclose(points.mean(axis=0), 1.0, atol=0.03)


def test_searches_that_the_archive_rejects_restart() -> None:
    """With random fitness, CMA-ES does not converge. Under "basic", stagnation ends a search."""
    archive = grid_archive((4,), (0.0,), (1.0,))
    emitter = cma_es_emitter(archive, 2, 0.5, SearchRules("objective", "mu", "basic"))
    solutions = jax.random.normal(jax.random.key(0), (20, 6))
    example = ScoredSolutions(solutions[0], jnp.zeros(()), jnp.zeros(1))
    one = ScoredSolutions(solutions[:1], jnp.full(1, 9.0), jnp.full((1, 1), 0.5))
    archive_state = archive.add(archive.init(jax.random.key(1), example), one)[0]
    nothing = InsertionResult(jnp.zeros(20, jnp.int32), jnp.full(20, -1.0))

    def generation(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        ask_key, noise_key, tell_key = jax.random.split(key, 3)
        state, x = emitter.ask(emitter.refresh(state), archive_state, ask_key, 20)
        fitness = jax.random.uniform(noise_key, (20,))
        state = emitter.tell(
            state,
            archive_state,
            EvaluatedBatch(ScoredSolutions(x, fitness, jnp.zeros((20, 1))), nothing),
            tell_key,
        )
        return state, state.num_restarts

    keys = jax.random.split(jax.random.key(2), 600)
    _, restarts = jax.jit(lambda state: jax.lax.scan(generation, state, keys))(
        emitter.init(jax.random.key(3), solutions)
    )
    assert np.all(restarts[: 120 + 30 * 6 // 10 - 1] == 0) and np.all(restarts[-1] > 0)
