"""Tests of archives of cells against a brute-force archive in Python, for any batches."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archives.brute import Brute, Member
from configuration import configured
from rollax.archives.archive import ScoredSolutions
from rollax.archives.cells import AcceptanceThreshold
from rollax.archives.grid import grid_archive
from rollax.errors import UsageError

SHAPE, LOW, HIGH = (3, 2), (-1.0, 0.0), (1.0, 4.0)
SIZE = 6  # batch size; shorter batches are padded with solutions that are not finite

# Few values, so that ties and collisions occur. Some are out of bounds, at edges, or not finite.
FITNESS = st.sampled_from([-2.0, -0.5, 0.0, 1.0, 1.0, 2.5, math.nan, math.inf, -math.inf])
FIRST = st.sampled_from([-5.0, -1.0, -0.4, 0.0, 0.5, 1.0, 9.0, math.nan])
SECOND = st.sampled_from([-1.0, 0.0, 1.0, 2.0, 3.9, 4.0, 1e30, math.inf])
BATCHES = st.lists(
    st.lists(st.tuples(FITNESS, FIRST, SECOND), min_size=1, max_size=SIZE), min_size=1, max_size=4
)
THRESHOLDS = st.sampled_from([None, (0.0, 0.0), (-1.0, 0.25), (0.0, 1.0)])


def members_of(batch: list[tuple[float, ...]], start: int) -> list[Member]:
    """Return solutions that are identified by their number."""
    padded = [*batch, *[(math.nan, 0.0, 0.0)] * (SIZE - len(batch))]
    return [Member(start + i, f, (a, b), -(start + i)) for i, (f, a, b) in enumerate(padded)]


def scored(members: list[Member]) -> ScoredSolutions:
    columns = [np.array(column, np.float32) for column in zip(*members, strict=True)]
    return ScoredSolutions(
        {"x": jnp.asarray(columns[0])},
        *(jnp.asarray(column) for column in columns[1:3]),
        jnp.asarray(columns[3]),
    )


EXAMPLE = ScoredSolutions({"x": jnp.zeros(())}, jnp.zeros(()), jnp.zeros(2), jnp.zeros(()))


def compiled(threshold: tuple[float, float] | None) -> tuple[Any, Any]:
    key = None if threshold is None else threshold
    if key not in _COMPILED:
        archive = grid_archive(
            SHAPE, LOW, HIGH, None if threshold is None else AcceptanceThreshold(*threshold)
        )
        _COMPILED[key] = archive, jax.jit(archive.add)
    return _COMPILED[key]


_COMPILED: dict[Any, Any] = {}


def test_additions_in_a_loop_copy_no_column() -> None:
    """The compiled program of many additions has no copy of an array with one entry per cell."""
    cells = 97 * 101  # no other array has this size
    archive = grid_archive((97, 101), LOW, HIGH)
    batch = scored(members_of([(1.0, 0.1, 0.1)], 1))

    def many(state: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, state: archive.add(state, batch)[0], state)

    with configured(jax_disable_most_optimizations=False):
        state = jax.eval_shape(archive.init, jax.random.key(0), EXAMPLE)
        text = jax.jit(many, donate_argnums=0).lower(state).compile().as_text()
    assert f"[{cells}]" in text
    assert re.findall(rf"\[{cells}[\],]\S* copy\(.*", text) == []


def contents(archive: Any, state: Any) -> dict[int, tuple[float, ...]]:
    """Return solution, fitness, descriptor and extras of every member, by cell."""
    elites, mask, *_ = jax.device_get(archive.elites(state))
    rows = zip(
        elites.solution["x"], elites.fitness, elites.descriptor.tolist(), elites.extras, strict=True
    )
    return {
        cell: (x, f, *d, e)
        for cell, ((x, f, d, e), is_there) in enumerate(zip(rows, mask, strict=True))
        if is_there
    }


@settings(deadline=None, max_examples=200)
@given(BATCHES, THRESHOLDS)
def test_archive_equals_the_brute_force_archive(
    batches: list[Any], threshold: tuple[float, float] | None
) -> None:
    archive, add = compiled(threshold)
    brute, state = Brute(SHAPE, LOW, HIGH, threshold), archive.init(jax.random.key(0), EXAMPLE)
    outside = nonfinite = below_threshold = 0.0
    for number, batch in enumerate(batches):
        members = members_of(batch, 1 + number * SIZE)
        expected = brute.add(members)
        before = len(contents(archive, state))
        state, added, counts = add(state, scored(members))
        assert added.status.tolist() == [status for status, _ in expected]
        np.testing.assert_allclose(
            added.improvement, [value for _, value in expected], rtol=1e-5, atol=1e-6
        )
        assert counts.new == len(brute.members) - before
        outside, nonfinite = outside + float(counts.outside), nonfinite + float(counts.nonfinite)
        below_threshold += 0.0 if threshold is None else float(counts.below_threshold)
    flat = {a * SHAPE[1] + b: member for (a, b), member in brute.members.items()}
    found = contents(archive, state)
    assert found == {
        cell: (m.solution, m.fitness, *np.float32(m.descriptor).tolist(), m.extras)
        for cell, m in flat.items()
    }
    assert (outside, nonfinite, below_threshold) == (
        brute.outside,
        brute.nonfinite,
        brute.below_threshold,
    )
    check_metrics(archive, state, [m.fitness for m in brute.members.values()])
    if threshold is not None:
        thresholds = {a * SHAPE[1] + b: value for (a, b), value in brute.thresholds.items()}
        expected = [thresholds.get(cell, threshold[0]) for cell in range(math.prod(SHAPE))]
        np.testing.assert_allclose(state.threshold, expected, rtol=1e-5, atol=1e-6)


def check_metrics(archive: Any, state: Any, fitness: list[float]) -> None:
    values = archive.metrics(state, 2.0)
    assert archive.num_elites(state) == len(fitness)
    assert values["coverage"] == pytest.approx(len(fitness) / archive.size)
    assert values["qd_score"] == pytest.approx(sum(f + 2.0 for f in fitness), abs=1e-5)
    if fitness:
        assert values["fitness_best"] == archive.best(state).fitness == max(fitness)
        assert values["fitness_mean"] == pytest.approx(np.mean(fitness), abs=1e-5)
    else:
        assert np.isnan(values["fitness_best"]) and np.isnan(values["fitness_mean"])


@settings(deadline=None, max_examples=100)
@given(BATCHES)
def test_single_additions_equal_one_batch(batches: list[Any]) -> None:
    """The members do not depend on the batch size if the order of the solutions is the same."""
    archive, add = compiled(None)
    together = alone = archive.init(jax.random.key(0), EXAMPLE)
    for number, batch in enumerate(batches):
        members = members_of(batch, 1 + number * SIZE)
        together, _, _ = add(together, scored(members))
        for member in members:
            alone, _, _ = add(alone, scored(members_of([], 0)[:-1] + [member]))
    assert contents(archive, together) == contents(archive, alone)


def test_members_are_sampled_uniformly() -> None:
    """Every member is equally likely, and only members are sampled."""
    archive, add = compiled(None)
    members = members_of([(1.0, -0.9, 1.0), (2.0, 0.9, 1.0), (0.0, 0.9, 3.0)], 1)
    state, _, _ = add(archive.init(jax.random.key(0), EXAMPLE), scored(members))
    found = np.asarray(archive.sample(state, jax.random.key(1), 30_000).solution["x"])
    shares = {x: np.mean(found == x) for x in np.unique(found)}
    assert set(shares) == {1, 2, 3}
    assert all(abs(share - 1 / 3) < 0.012 for share in shares.values())  # four standard deviations


@pytest.mark.parametrize(
    ("shape", "low", "high", "message"),
    [
        (
            (4,),
            (0.0, 0.0),
            (1.0, 1.0),
            r"grid must have one number per descriptor dimension \(2\), got 4",
        ),
        (
            (4, 4),
            (0.0, 1.0),
            (1.0, 0.0),
            r"descriptor 1 must be finite and in ascending order, got 1 to 0",
        ),
        ((4, 4), (0.0, 0.0), (1.0, math.inf), r"descriptor 1 must be finite .*, got 0 to inf"),
        ((4, 0), (0.0, 0.0), (1.0, 1.0), "at least 1 cell along every dimension"),
        (
            (4, 4),
            (0.0,),
            (1.0, 1.0),
            "numbers of lower and upper descriptor bounds must be equal .*, got 1 and 2",
        ),
        ((100_000, 100_000), (0.0, 0.0), (1.0, 1.0), "Use fewer cells per dimension"),
    ],
)
def test_an_invalid_grid_is_refused(shape: Any, low: Any, high: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        grid_archive(shape, low, high)


@settings(deadline=None, max_examples=50)
@given(BATCHES, THRESHOLDS)
def test_an_emptied_archive_equals_a_new_one(
    batches: list[Any], threshold: tuple[float, float] | None
) -> None:
    """The cell of an elite's descriptor is the cell of the elite."""
    archive, add = compiled(threshold)
    start = state = archive.init(jax.random.key(0), EXAMPLE)
    for number, batch in enumerate(batches):
        state, *_ = add(state, scored(members_of(batch, 1 + number * SIZE)))
    found = archive.elites(state)
    cells = archive.cell_of(state, found.solutions.descriptor)
    assert np.flatnonzero(found.mask).tolist() == np.asarray(cells)[np.asarray(found.mask)].tolist()
    for x, y in zip(jax.tree.leaves(archive.empty(state)), jax.tree.leaves(start), strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == y.dtype
