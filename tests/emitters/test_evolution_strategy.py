"""Tests of the evolution strategy of ME-ES: ranks, gradients, novelty and parents."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import make
from rollax.algorithms.registry import ALGORITHMS
from rollax.archives.archive import STATUS_NEW, ScoredSolutions
from rollax.archives.grid import grid_archive
from rollax.emitters.emitter import EvaluatedBatch
from rollax.emitters.evolution_strategy import (
    StrategySettings,
    centered_ranks,
    estimate_gradient,
    me_es_emitter,
    next_parent,
    novelty_scores,
    sample_best_index,
)
from rollax.networks.solutions import ConstantSolution, PolicyConfig, make_solution

WORLD: Any = make("task/sphere", dimensions=20)


@pytest.mark.quick
def test_ranks_are_those_of_the_paper() -> None:
    """They are ordered from -1/2 to 1/2, with the mean for ties and the lowest ranks for NaN.

    A plateau therefore has no gradient.
    """
    values = np.random.default_rng(0).normal(size=11).astype(np.float32)
    expected = np.argsort(np.argsort(values)) / 10 - 0.5
    np.testing.assert_allclose(centered_ranks(jnp.asarray(values)), expected, atol=1e-6)
    assert np.all(np.asarray(centered_ranks(jnp.ones(6))) == 0)
    np.testing.assert_allclose(
        centered_ranks(jnp.asarray([2.0, jnp.nan, 2.0, 5.0])), [0, -0.5, 0, 0.5], atol=1e-6
    )


@pytest.mark.parametrize("ranked", [True, False])
def test_the_gradient_is_that_of_fitness(ranked: bool) -> None:
    """On the sphere, its direction is the analytic one.

    Without ranks, its length is 2 sigma times the analytic one.
    """
    point, sigma = 2 * jax.random.normal(jax.random.key(0), (20,)), 0.05
    noise = jax.random.normal(jax.random.key(1), (4000, 20))
    points = point[None] + sigma * jnp.concatenate([noise, -noise])
    fitness = jax.vmap(lambda x: WORLD.score(x)[0])(points)
    analytic = jax.grad(lambda x: WORLD.score(x)[0])(point)
    found = estimate_gradient(points, centered_ranks(fitness) if ranked else fitness, sigma)
    assert found @ analytic > 0.98 * jnp.linalg.norm(found) * jnp.linalg.norm(analytic)
    if not ranked:
        np.testing.assert_allclose(
            jnp.linalg.norm(found), 2 * sigma * jnp.linalg.norm(analytic), rtol=0.1
        )


def test_novelty_equals_brute_force() -> None:
    """It is the mean distance to the nearest past descriptors, or to all if there are fewer.

    It is NaN without any, or for a descriptor that is not finite.
    """
    numbers = np.random.default_rng(0)
    seen, points = (
        numbers.normal(size=(9, 2)).astype(np.float32),
        numbers.normal(size=(7, 2)).astype(np.float32),
    )
    for number in (1, 2, 6, 9, 30):
        distance = np.sort(
            np.linalg.norm(points[:, None] - seen[None, : min(number, 9)], axis=-1), axis=1
        )[:, :4]
        found = novelty_scores(jnp.asarray(seen), jnp.int32(number), jnp.asarray(points), 4)
        np.testing.assert_allclose(found, distance.mean(axis=1), rtol=1e-5)
    assert np.isnan(novelty_scores(jnp.asarray(seen), jnp.int32(0), jnp.asarray(points), 4)).all()
    assert np.isnan(
        novelty_scores(jnp.asarray(seen), jnp.int32(9), jnp.full((1, 2), jnp.nan), 4)
    ).all()


def emitter(objective: Any = "both", adds_pairs: bool = False, **numbers: float) -> Any:
    settings = {
        "sigma": 0.1,
        "learning_rate": 0.05,
        "weight_decay": 0.1,
        "num_optim_gens": 3.0,
    } | numbers
    archive = grid_archive((8, 8), (-60.0, -60.0), (60.0, 60.0))
    return archive, me_es_emitter(
        archive, StrategySettings(**settings), objective, 2, 3, 6, adds_pairs
    )


def begun(archive: Any, made: Any, at: float = 0.5) -> tuple[Any, Any]:
    solutions = ConstantSolution(jnp.full((42, 20), at))
    example = ScoredSolutions(ConstantSolution(jnp.zeros(20)), jnp.zeros(()), jnp.zeros(2))
    return archive.init(jax.random.key(0), example), made.init(jax.random.key(1), solutions)


def generation(
    archive: Any, made: Any, loop: tuple[Any, Any], key: jax.Array
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Run one batch.

    Returns the archive and the emitter after it, and the batch with its insertion result.
    """
    archive_state, state = loop
    ask_key, tell_key = jax.random.split(key)
    state, solutions = made.ask(state, archive_state, ask_key, 42)
    batch = ScoredSolutions(solutions, *jax.vmap(WORLD.score)(solutions.action))
    archive_state, added, _ = archive.add(archive_state, made.select_insertions(batch))
    return (
        archive_state,
        made.tell(state, archive_state, EvaluatedBatch(batch, added), tell_key),
    ), (
        batch,
        added,
    )


def test_a_generation_is_a_step_of_adam() -> None:
    """The reference has mirrored pairs weighted by ranks, weight decay and two steps of Adam."""
    archive, made = emitter()
    loop = begun(archive, made)
    first_moment, second_moment, parent = np.zeros(20), np.zeros(20), np.full(20, 0.5)
    for step in (1, 2):
        loop, (batch, _) = generation(archive, made, loop, jax.random.key(step))
        x, fitness = np.asarray(batch.solution.action, np.float64), np.asarray(batch.fitness)
        np.testing.assert_allclose(x[:2], np.stack([parent, parent]), rtol=1e-5)
        np.testing.assert_allclose(x[2:22] + x[22:], np.full((20, 20), 2 * parent), rtol=1e-5)
        ranks = np.argsort(np.argsort(fitness[2:])) / 39 - 0.5
        gradient = ((ranks[:20] - ranks[20:])[:, None] * (x[2:22] - parent) / 0.1).sum(
            axis=0
        ) / 20 - 0.1 * parent
        first_moment, second_moment = (
            0.9 * first_moment + 0.1 * gradient,
            0.999 * second_moment + 0.001 * gradient**2,
        )
        length = np.sqrt(second_moment / (1 - 0.999**step)) + 1e-8
        parent = parent + 0.05 * first_moment / (1 - 0.9**step) / length
        np.testing.assert_allclose(loop[1].parent.action, parent, rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(loop[1].parent.action, loop[1].offspring.action)


@pytest.mark.parametrize("adds_pairs", [False, True])
def test_the_offspring_is_inserted_once_with_mean_scores(adds_pairs: bool) -> None:
    """Repeated scores of the offspring become one row.

    If pairs are inserted, they follow with their own scores.
    """
    archive, made = emitter(adds_pairs=adds_pairs)
    loop = begun(archive, made)
    loop, (batch, added) = generation(archive, made, loop, jax.random.key(0))
    assert added.status[0] == STATUS_NEW and added.status.shape == (41 if adds_pairs else 1,)
    assert archive.num_elites(loop[0]) == 1 or adds_pairs
    rows = batch._replace(fitness=jnp.arange(42.0), descriptor=jnp.arange(84.0).reshape(42, 2))
    inserted = made.select_insertions(rows)
    assert inserted.fitness[0] == 0.5
    np.testing.assert_array_equal(inserted.descriptor[0], [1, 2])
    np.testing.assert_array_equal(inserted.solution.action[0], batch.solution.action[0])
    for whole, part in zip(jax.tree.leaves(rows), jax.tree.leaves(inserted), strict=True):
        np.testing.assert_array_equal(part[1:], whole[2:] if adds_pairs else whole[:0])


@pytest.mark.parametrize("objective", ["fitness", "novelty"])
def test_the_objective_improves(objective: Any) -> None:
    """With fitness, every generation is fitter.

    With novelty, generations move away from early descriptors.
    """
    archive, made = emitter(objective, num_optim_gens=100.0, weight_decay=0.0)
    run = jax.jit(
        lambda loop, keys: jax.lax.scan(
            lambda loop, key: generation(archive, made, loop, key), loop, keys
        )
    )
    _, (batch, _) = run(begun(archive, made), jax.random.split(jax.random.key(3), 30))
    start = np.asarray(batch.descriptor[0, 0])
    away = np.linalg.norm(np.asarray(batch.descriptor[:, 0]) - start[None], axis=1)
    if objective == "fitness":
        assert (
            np.all(np.diff(batch.fitness[:, 0]) > 0)
            and batch.fitness[-1, 0] > 99 > 96 > batch.fitness[0, 0]
        )
    else:
        assert away[-1] > 5 and away[-1] > away[10] > away[3]
        seen, number = jnp.asarray(batch.descriptor[:6, 0]), jnp.int32(6)
        measured = novelty_scores(seen, number, batch.descriptor[6:, 0], 3)
        assert measured[-1] > 2 * measured[0]


def test_phases_alternate() -> None:
    """A phase lasts three generations.

    It starts at an elite of the archive with a new state of Adam.
    """
    archive, made = emitter()
    loop = begun(archive, made)
    turns, starts = [], []
    for step in range(9):
        turns.append(float(made.metrics(loop[1])["exploring"]))
        loop, _ = jax.jit(lambda loop, key: generation(archive, made, loop, key))(
            loop, jax.random.key(step)
        )
        starts.append(not np.array_equal(loop[1].parent.action, loop[1].offspring.action))
        count = int(jax.tree.leaves(loop[1].optimizer)[0])
        elites = np.asarray(loop[0].elites.solution.action[loop[0].elites.fitness > -np.inf])
        if starts[-1]:
            assert count == 0 and np.any(
                np.all(elites == np.asarray(loop[1].parent.action), axis=1)
            )
    assert turns == [0, 0, 0, 1, 1, 1, 0, 0, 0] and starts == [False, False, True] * 3


def test_parents_are_sampled_from_the_best() -> None:
    """They are the 2 fittest of the archive or of the last 5 accepted, with equal probability.

    For novelty, they are the 5 most novel.
    """
    archive = grid_archive((10,), (0.0,), (10.0,))
    rows = jnp.arange(8.0)
    batch = ScoredSolutions(ConstantSolution(rows[:, None]), rows, rows[:, None] + 0.5)
    filled = archive.add(
        archive.init(jax.random.key(0), jax.tree.map(lambda x: x[0], batch)), batch
    )[0]
    _, state = begun(*emitter())
    latest = ScoredSolutions(
        ConstantSolution(jnp.arange(100.0, 105.0)[:, None]),
        jnp.asarray([-jnp.inf, 3, 9, 1, 8]),
        jnp.zeros((5, 1)),
    )
    seen = jnp.full((6, 1), 2.5)
    state = state._replace(
        latest_accepted=latest, past_descriptors=seen, num_past_descriptors=jnp.int32(6)
    )
    draws = jax.random.uniform(jax.random.key(1), (2000, 2))
    pick = jax.vmap(
        lambda explores, draw: next_parent(archive, filled, state, explores, 3, draw).action[0],
        (None, 0),
    )
    values, counts = np.unique(pick(jnp.bool_(False), draws), return_counts=True)
    assert values.tolist() == [6, 7, 102, 104] and np.all(np.abs(counts / 2000 - 0.25) < 0.04)
    values, counts = np.unique(pick(jnp.bool_(True), draws), return_counts=True)
    assert values.tolist() == [0, 4, 5, 6, 7] and np.all(np.abs(counts / 2000 - 0.2) < 0.04)
    few = sample_best_index(jnp.asarray([-jnp.inf, 4.0, -jnp.inf]), jnp.int32(2), jnp.float32(0.99))
    assert few == 1


@pytest.mark.parametrize("adds_pairs", [False, True])
def test_pairs_are_added_only_if_chosen(adds_pairs: bool) -> None:
    """The algorithm adds at most one solution per iteration, unless pairs are inserted as well."""
    entry = ALGORITHMS["me_es"]
    made = entry.make(WORLD, lambda key: make_solution(WORLD, PolicyConfig(), key))
    config = entry.config(batch_size=42, num_iterations=5, sigma=2.0, adds_pairs=adds_pairs)
    state, metrics = jax.jit(made.step)(jax.jit(made.init)(jax.random.key(0), config))
    added = metrics.values["new"] + metrics.values["better"]
    assert (added > 5) == adds_pairs and added >= 1


def test_missing_scores_leave_finite_parameters() -> None:
    """Half of the solutions have no fitness, and the first batch has none at all."""
    archive, made = emitter("both")
    archive_state, state = begun(archive, made)
    for step in range(8):
        state, solutions = made.ask(state, archive_state, jax.random.key(step), 42)
        fitness, descriptor = jax.vmap(WORLD.score)(solutions.action)
        fitness = jnp.where((jnp.arange(42) % 2 == 1) | (step == 0), jnp.nan, fitness)
        descriptor = jnp.where(jnp.arange(42)[:, None] % 4 == 3, jnp.inf, descriptor)
        batch = ScoredSolutions(solutions, fitness, descriptor)
        archive_state, added, _ = archive.add(archive_state, made.select_insertions(batch))
        state = made.tell(
            state, archive_state, EvaluatedBatch(batch, added), jax.random.key(100 + step)
        )
        assert jnp.all(jnp.isfinite(state.parent.action)) and jnp.all(
            jnp.isfinite(state.past_descriptors)
        )
    assert archive.num_elites(archive_state) == 0
