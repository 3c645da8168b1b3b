"""Evolution of populations of any algorithm: copies have the whole state, but new keys."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.programs import fresh, network_of
from laws.table import BY_NAME, LEARNERS, NAMES, first
from rollax import tree
from rollax.algorithms.registry import ALGORITHMS
from rollax.populations import population
from rollax.populations.evolution import EPISODE_RETURN, EvolutionConfig, Range, evolve, evolving
from rollax.training.compile.run_check import has_episode_metrics
from support.parameters import mark_quick

RANGES = {"learning_rate": Range(1e-3, 1e-1, "log"), "gamma": Range(0.5, 0.99)}
MEMBERS = 3


def raw(leaf: jax.Array) -> np.ndarray:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


@pytest.mark.parametrize("name", first("impala-gru", "dqn-rainbow", "sac", among=LEARNERS))
def test_any_algorithm_evolves(name: str) -> None:
    """The state keeps its structure, shapes and types, and members that survive do not change.

    A copy differs from its parent after a step.
    """
    row = BY_NAME[name]
    many = population(row.make(row.environment))
    running = evolving(many, RANGES)
    keys = tuple(jax.random.split(jax.random.key(seed), MEMBERS) for seed in (0, 1))
    configs = jax.tree.map(lambda value: jnp.full(MEMBERS, value), tree.to_arrays(row.config))
    step, generation = (
        jax.jit(running.step),
        jax.jit(lambda state: evolve(many, state, RANGES, EvolutionConfig(fraction=0.4))),
    )
    state = jax.jit(running.init)(keys, configs)
    for _ in range(2):
        state, _ = step(state)
    before = state._replace(total_return=jnp.array([0.0, 5.0, 1.0]), episodes=jnp.ones(MEMBERS))
    after, happened = generation(fresh(before))
    assert happened.parent.tolist() == [1, 1, 2]

    def shapes(state):
        return jax.tree.map(lambda x: (x.shape, x.dtype), state)

    assert shapes(after) == shapes(before)

    differing = []
    for (path, old), new in zip(
        jax.tree_util.tree_leaves_with_path(before.members),
        jax.tree.leaves(after.members),
        strict=True,
    ):
        a, b = raw(old), raw(new)
        assert a[1:].tobytes() == b[1:].tobytes()
        if a[1].tobytes() != b[0].tobytes():
            differing.append(jax.tree_util.keystr(path))
    own = {".key", ".actor.reset_pool.key", ".actor.reset_pool.pooled_episode"} | {
        f".config.{name}" for name in RANGES
    }
    assert set(differing) == own
    stepped, metrics = step(after)
    assert np.all(stepped.is_finite)
    assert _parts_that_differ(stepped.members.actor) and _parts_that_differ(
        network_of(stepped.members)
    )
    np.testing.assert_array_equal(metrics.values["evolve/gamma"], happened.settings["gamma"])


def _parts_that_differ(part: Any) -> int:
    """Return the number of leaves in which the first member differs from the second, its parent."""
    return sum(raw(leaf)[0].tobytes() != raw(leaf)[1].tobytes() for leaf in jax.tree.leaves(part))


@pytest.mark.parametrize("name", mark_quick(NAMES, "ppo", "map_elites"))
def test_every_algorithm_declares_a_metric_that_it_reports(name: str) -> None:
    """It is the mean return for algorithms with episodes, otherwise another metric."""
    row = BY_NAME[name]
    metric, algorithm = ALGORITHMS[row.algorithm].evolve_metric, row.make(row.environment)
    state = jax.eval_shape(algorithm.init, jax.random.key(0), row.config)
    has_episodes = row.family in ("on-policy", "replay")
    assert has_episode_metrics(algorithm, state) == has_episodes
    assert (metric == EPISODE_RETURN) == has_episodes
    values = jax.eval_shape(algorithm.step, state)[1].values
    reported = values | jax.eval_shape(algorithm.state_metrics, state)
    assert metric == EPISODE_RETURN or metric in reported


@pytest.mark.parametrize(
    "name",
    [
        "map_elites",
        "mome",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("dns", "aurora")),
    ],
)
def test_archives_evolve(name: str) -> None:
    """The member with the highest score is copied with its archive, and gets new settings."""
    entry, row = ALGORITHMS[name], BY_NAME[name]
    ranges = {"iso_sigma": Range(1e-4, 1.0, "log")}
    many = population(row.make(row.environment))
    running = evolving(many, ranges, entry.evolve_metric)
    keys = tuple(jax.random.split(key, 4) for key in jax.random.split(jax.random.key(1)))
    config = tree.to_arrays(entry.config(batch_size=16, num_iterations=2, grid=(6, 6)))
    state = jax.jit(running.init)(keys, jax.tree.map(lambda value: jnp.full(4, value), config))
    for _ in range(3):
        state, metrics = jax.jit(running.step)(state)
    score = np.asarray(metrics.values[entry.evolve_metric])
    assert np.isfinite(score).all() and len(set(score)) == 4
    archive = jax.tree.map(raw, state.members.archive)
    after, happened = jax.jit(lambda state: evolve(many, state, ranges))(state)
    np.testing.assert_allclose(happened.fitness, score, rtol=1e-5)
    worst, best = int(np.argmin(score)), int(np.argmax(score))
    assert happened.parent.tolist() == [best if index == worst else index for index in range(4)]
    jax.tree.map(
        lambda new, old: np.testing.assert_array_equal(raw(new)[worst], old[best]),
        after.members.archive,
        archive,
    )
    assert happened.settings["iso_sigma"][worst] != state.members.config.iso_sigma[best]
    assert not np.isclose(
        happened.settings["iso_sigma"][worst], state.members.config.iso_sigma[worst]
    )
