"""Tests of polynomial mutation and crossover against their densities in NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import make
from rollax.algorithms.registry import ALGORITHMS
from rollax.archives.archive import ScoredSolutions
from rollax.archives.grid import grid_archive
from rollax.emitters.variation import (
    iso_line_emitter,
    polynomial_emitter,
    polynomial_mutation,
    simulated_binary_crossover,
)
from rollax.networks.solutions import ConstantSolution, PolicyConfig, make_solution

N = 200_000
UNIFORM = jax.random.uniform(jax.random.key(0), (N,))


def side_variance(reach: float, eta: float) -> float:
    """Return E[delta^2] of the density (1 - s)^eta over 0 ... reach, by a sum."""
    s = (np.arange(100_000) + 0.5) / 100_000 * reach
    density = (1 - s) ** eta
    return float(np.sum(s**2 * density) / np.sum(density))


@pytest.mark.parametrize("eta", [0.0, 1.0, 20.0])
@pytest.mark.parametrize("place", [0.5, 0.1])
def test_mutation_has_its_density(eta: float, place: float) -> None:
    """Between bounds of -2 and 6, half of the mutations go to either side, up to the bound.

    In the middle, the mean is unchanged.
    """
    low, high = jnp.float32(-2), jnp.float32(6)
    x = -2 + 8 * place
    delta = (np.asarray(polynomial_mutation(jnp.full(N, x), low, high, eta, UNIFORM)) - x) / 8
    assert abs(np.mean(delta < 0) - 0.5) < 0.005
    for side, reach in ((delta[delta < 0], place), (delta[delta > 0], 1 - place)):
        assert np.max(np.abs(side)) <= reach * (1 + 1e-5)
        np.testing.assert_allclose(np.mean(side**2), side_variance(reach, eta), rtol=0.03)
    if place == 0.5:
        assert abs(np.mean(delta)) < 4 * np.std(delta) / np.sqrt(N)


def test_mutation_reaches_the_bounds_and_stays_within_them() -> None:
    """Uniform numbers 0 and 1 give the bounds, and 1/2 gives the number itself.

    From a bound, mutations go inward only.
    """
    low, high = jnp.float32(-2), jnp.float32(6)
    ends = polynomial_mutation(jnp.full(3, 1.0), low, high, 5.0, jnp.asarray([0.0, 0.5, 1.0]))
    np.testing.assert_allclose(ends, [-2, 1, 6], atol=1e-5)
    for bound in (-2.0, 6.0):
        inside = polynomial_mutation(jnp.full(N, bound), low, high, 2.0, UNIFORM)
        assert jnp.all((inside >= -2) & (inside <= 6)) and np.std(inside) > 0.1


@pytest.mark.parametrize("eta", [1.0, 5.0])
def test_crossover_has_its_density(eta: float) -> None:
    """The moments of beta are those of simulated binary crossover.

    E[beta; beta <= 1] = (eta + 1) / (2 (eta + 2)) and E[beta; beta > 1] = (eta + 1) / (2 eta), with
    probability 1/2 each. The two children have the mean of their parents.
    """
    x, y = jnp.full(N, 3.0), jnp.full(N, 1.0)
    child = np.asarray(simulated_binary_crossover(x, y, eta, UNIFORM))
    beta = child - 2
    assert abs(np.mean(beta <= 1) - 0.5) < 0.005
    np.testing.assert_allclose(np.mean(beta * (beta <= 1)), (eta + 1) / (2 * (eta + 2)), rtol=0.02)
    if eta > 1:  # for eta = 1 the variance is infinite
        np.testing.assert_allclose(np.mean(beta * (beta > 1)), (eta + 1) / (2 * eta), rtol=0.02)
    np.testing.assert_allclose(
        child + np.asarray(simulated_binary_crossover(y, x, eta, UNIFORM)), 4.0, rtol=1e-6
    )


def elites(rows: jax.Array) -> tuple[Any, Any]:
    """Return an archive with these solutions, one per cell."""
    number = rows.shape[0]
    archive = grid_archive((number,), (0.0,), (1.0,))
    place = (jnp.arange(number) + 0.5)[:, None] / number
    batch = ScoredSolutions(ConstantSolution(rows), jnp.zeros(number), place)
    state = archive.init(jax.random.key(0), jax.tree.map(lambda x: x[0], batch))
    return archive, archive.add(state, batch)[0]


@pytest.mark.quick
@pytest.mark.parametrize("crossover", ["uniform", "simulated_binary"])
def test_fractions_are_shares_of_the_parameters(crossover: Any) -> None:
    """Mutation changes its share of parameters, and crossover its share where parents differ."""
    rows = jnp.stack([jnp.full(400, 0.25), jnp.full(400, 0.5)])
    archive, state = elites(rows)
    for mutation, crossed, expected in ((0.0, 0.3, 0.15), (0.2, 0.0, 0.2), (0.0, 0.0, 0.0)):
        emitter = polynomial_emitter(
            archive, (jnp.zeros(400), jnp.ones(400)), 20.0, mutation, crossed, crossover
        )
        _, children = emitter.ask(
            emitter.init(jax.random.key(1), ConstantSolution(rows)), state, jax.random.key(2), 500
        )
        x = np.asarray(children.action)
        parent = np.where(np.mean(x == 0.25, axis=1) > np.mean(x == 0.5, axis=1), 0.25, 0.5)
        assert abs(np.mean(x != parent[:, None]) - expected) < 0.02


@pytest.mark.parametrize("crossover", ["uniform", "simulated_binary"])
def test_bounds_apply_to_each_parameter(crossover: Any) -> None:
    """All children are within them, also those of elites outside."""
    rows = jnp.stack([jnp.full(400, -3.0), jnp.full(400, 7.0)])
    archive, state = elites(rows)
    high = jnp.concatenate([jnp.ones(200), jnp.full(200, 2.0)])
    emitter = polynomial_emitter(archive, (jnp.zeros(400), high), 1.0, 0.5, 0.5, crossover)
    _, children = emitter.ask(
        emitter.init(jax.random.key(1), ConstantSolution(rows)), state, jax.random.key(2), 500
    )
    x = np.asarray(children.action)
    assert np.all((x >= 0) & (x <= high[None])) and x[:, 200:].mean() > 1.5 * x[:, :200].mean()


def test_children_lie_on_the_line_through_their_parents() -> None:
    """They are at x + 0.5 z (y - x) with a normal z, without isotropic noise.

    Half of the children have one elite as both parents.
    """
    first, second = jnp.asarray([1.0, 2.0, 3.0]), jnp.asarray([2.0, 0.0, 3.5])
    archive, state = elites(jnp.stack([first, second]))
    emitter = iso_line_emitter(archive, 0.0, 0.5)
    start = emitter.init(jax.random.key(1), ConstantSolution(first[None]))
    _, children = emitter.ask(start, state, jax.random.key(2), 4000)
    place = (np.asarray(children.action) - np.asarray(first)) / np.asarray(second - first)
    np.testing.assert_allclose(place, np.broadcast_to(place[:, :1], place.shape), atol=1e-4)
    from_parent = np.minimum(np.abs(place[:, 0]), np.abs(place[:, 0] - 1))
    assert abs(np.mean(from_parent < 1e-5) - 0.5) < 0.05
    # E[z^2] for a first parent at 0. At 1 the child is at 1 - 0.5 z, so on average (place - 1/2)^2
    # is 1/4 + E[(0.5 z)^2] / 2.
    assert abs(np.mean((place[:, 0] - 0.5) ** 2) - (0.25 + 0.25 / 2)) < 0.03


def test_children_of_map_elites_are_within_bounds() -> None:
    """The bounds of the arm are 0 ... 1, and those of policies are given."""
    arm: Any = make("task/arm")
    maze: Any = make("control/point-maze", time_limit=3)
    for world, low, high in ((arm, 0.0, 1.0), (maze, -0.3, 0.4)):
        made = ALGORITHMS["map_elites"].make(
            world, lambda key, world=world: make_solution(world, PolicyConfig(hidden=(8,)), key)
        )
        config = ALGORITHMS["map_elites"].config(
            batch_size=64,
            num_iterations=2,
            grid=(8, 8),
            variation="polynomial",
            solution_bounds=(-0.3, 0.4),
            eta=1.0,
        )
        state, metrics = jax.jit(made.step)(jax.jit(made.init)(jax.random.key(0), config))
        assert made.archived is not None
        _, children = made.archived.ask(state)
        for leaf in jax.tree.leaves(children):
            assert jnp.all((leaf >= low) & (leaf <= high))
        assert metrics.values["new"] > 2
