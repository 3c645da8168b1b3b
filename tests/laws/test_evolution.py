"""A population of any algorithm evolves: copies are of the whole state, with keys and settings of their own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.programs import fresh, network_of
from laws.table import BY_NAME, first
from rollax import tree
from rollax.populations import population
from rollax.populations.evolution import Method, Range, evolve, evolving

RANGES = {"learning_rate": Range(1e-3, 1e-1, "log"), "gamma": Range(0.5, 0.99)}
MEMBERS = 3


def raw(leaf: jax.Array) -> np.ndarray:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


@pytest.mark.parametrize("name", first("impala-gru", "dqn-rainbow", "sac"))
def test_any_algorithm_evolves(name: str) -> None:
    """The state keeps its structure, shapes and types; survivors keep every bit; a child is soon another than its parent."""
    row = BY_NAME[name]
    many = population(row.make(row.environment))
    running = evolving(many, RANGES)
    keys = tuple(jax.random.split(jax.random.key(seed), MEMBERS) for seed in (0, 1))
    configs = jax.tree.map(lambda value: jnp.full(MEMBERS, value), tree.as_leaves(row.config))
    step, generation = jax.jit(running.step), jax.jit(lambda state: evolve(many, state, RANGES, Method(fraction=0.4)))
    state = jax.jit(running.init)(keys, configs)
    for _ in range(2):
        state, _ = step(state)
    before = state._replace(total_return=jnp.array([0.0, 5.0, 1.0]), episodes=jnp.ones(MEMBERS))
    after, happened = generation(fresh(before))
    assert happened.parent.tolist() == [1, 1, 2]
    shapes = lambda state: jax.tree.map(lambda x: (x.shape, x.dtype), state)  # noqa: E731
    assert shapes(after) == shapes(before)

    differing = []
    for (path, old), new in zip(
        jax.tree_util.tree_leaves_with_path(before.members), jax.tree.leaves(after.members), strict=True
    ):
        a, b = raw(old), raw(new)
        assert a[1:].tobytes() == b[1:].tobytes()
        if a[1].tobytes() != b[0].tobytes():
            differing.append(jax.tree_util.keystr(path))
    own = {".key", ".actor.starts.key", ".actor.starts.spare_episode"} | {f".config.{name}" for name in RANGES}
    assert set(differing) == own
    stepped, metrics = step(after)
    assert np.all(stepped.is_well)
    assert _parts_that_differ(stepped.members.actor) and _parts_that_differ(network_of(stepped.members))
    np.testing.assert_array_equal(metrics.values["evolve/gamma"], happened.settings["gamma"])


def _parts_that_differ(part: Any) -> int:
    """In how many leaves the first member is not the second, whose copy it was."""
    return sum(raw(leaf)[0].tobytes() != raw(leaf)[1].tobytes() for leaf in jax.tree.leaves(part))
