"""Tests of archives of Pareto fronts against a brute-force archive in Python.

Hypervolumes and crowding distances are compared with their definitions.
"""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollax.archives.archive import STATUS_IMPROVED, STATUS_NEW, STATUS_REJECTED, ScoredSolutions
from rollax.archives.grid import grid_cells
from rollax.archives.pareto_fronts import crowding_distance, hypervolume, pareto_front_archive
from rollax.errors import UsageError

SHAPE, LOW, HIGH, SIZE, FRONT = (2, 2), (0.0, 0.0), (1.0, 1.0), 6, 3
VALUE = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, -1.0, math.nan, math.inf])
PLACE = st.sampled_from([-1.0, 0.2, 0.8, 2.0, math.nan])
BATCHES = st.lists(
    st.lists(st.tuples(VALUE, VALUE, PLACE, PLACE), min_size=1, max_size=SIZE),
    min_size=1,
    max_size=5,
)
EXAMPLE = ScoredSolutions({"x": jnp.zeros(())}, jnp.zeros(()), jnp.zeros(2), jnp.zeros(2))


class Row:
    def __init__(self, number: int, a: float, b: float, x: float, y: float) -> None:
        self.number, self.objectives, self.place = float(number), (a, b), (x, y)
        self.fitness = float(np.float32(a) + np.float32(b))

    @property
    def finite(self) -> bool:
        return all(map(math.isfinite, (*self.objectives, *self.place)))

    @property
    def cell(self) -> int:
        a, b = (int(min(max(math.floor(v * 2), 0), 1)) for v in self.place)
        return 2 * a + b


def crowding(front: list[Row]) -> list[float]:
    """Return the crowding distance of every row, by its definition in single precision."""
    total = np.zeros(len(front), np.float32)
    for k in range(2):
        order = sorted(range(len(front)), key=lambda i: front[i].objectives[k])
        values = np.array([front[i].objectives[k] for i in order], np.float32)
        extent = values[-1] - values[0]
        for rank, i in enumerate(order):
            if rank in (0, len(order) - 1):
                total[i] += np.inf
            else:
                total[i] += (values[rank + 1] - values[rank - 1]) / (extent if extent > 0 else 1)
    return total.tolist()


def covers(a: Row, b: Row) -> bool:
    """Return whether a is at least as good as b in every objective."""
    return all(p >= q for p, q in zip(a.objectives, b.objectives, strict=True))


def brute_add(slots: dict[int, list[Row | None]], batch: list[Row]) -> list[bool]:
    """Add one row after the other to the slots of its cell, and return whether each entered."""
    entered = []
    for row in batch:
        entered.append(False)
        if not row.finite:
            continue
        slot = slots.setdefault(row.cell, [None] * FRONT)
        there = [other for other in slot if other is not None]
        if any(covers(other, row) for other in there):
            continue
        slot[:] = [None if other is None or covers(row, other) else other for other in slot]
        if None in slot:
            index = slot.index(None)
        else:
            distances = crowding([*slot, row])  # pyright: ignore
            index = max(i for i, d in enumerate(distances) if d == min(distances))
        if index < FRONT:
            slot[index], entered[-1] = row, True
    return entered


def scored(rows: list[Row]) -> ScoredSolutions:
    padded = [*rows, *[Row(0, math.nan, 0.0, 0.0, 0.0)] * (SIZE - len(rows))]
    columns = [
        jnp.asarray(np.array([getattr(r, n) for r in padded], np.float32))
        for n in ("number", "fitness", "place")
    ]
    objectives = jnp.asarray(np.array([r.objectives for r in padded], np.float32))
    return ScoredSolutions({"x": columns[0]}, columns[1], columns[2], objectives)


ARCHIVE = pareto_front_archive(grid_cells(SHAPE, LOW, HIGH), FRONT, (0.0, 0.0))
ADD = jax.jit(ARCHIVE.add)


@settings(deadline=None, max_examples=100)
@given(BATCHES)
def test_archive_equals_the_brute_force_archive(batches: list[Any]) -> None:
    state, slots = ARCHIVE.init(jax.random.key(0), EXAMPLE), {}
    alone = state
    for number, values in enumerate(batches):
        rows = [Row(1 + number * SIZE + i, *v) for i, v in enumerate(values)]
        was = set(slots)
        entered = brute_add(slots, rows)
        state, added, counts = ADD(state, scored(rows))
        status = [
            (STATUS_NEW if r.cell not in was else STATUS_IMPROVED) if e else STATUS_REJECTED
            for r, e in zip(rows, entered, strict=True)
        ]
        assert added.status.tolist() == status + [STATUS_REJECTED] * (SIZE - len(rows))
        assert counts.new == len(slots) - len(was) and counts.better == sum(entered) - counts.new
        for row in rows:  # Single additions equal one batch.
            alone = ADD(alone, scored([row]))[0]
    for each in (state, alone):
        found = jax.device_get(ARCHIVE.elites(each))
        for place, is_there in enumerate(found.mask):
            row = slots.get(place // FRONT, [None] * FRONT)[place % FRONT]
            assert is_there == (row is not None)
            if row is not None:
                elite = jax.tree.map(lambda x, place=place: x[place], found.solutions)
                assert (elite.solution["x"], elite.fitness) == (row.number, row.fitness)
                assert (*elite.extras.tolist(), *elite.descriptor.tolist()) == (
                    *row.objectives,
                    *np.float32(row.place).tolist(),
                )
    check_metrics(state, slots)


def check_metrics(state: Any, slots: dict[int, list[Row | None]]) -> None:
    values = ARCHIVE.metrics(state, 1.0)
    there = [[r for r in slot if r is not None] for slot in slots.values()]
    assert values["coverage"] == pytest.approx(len(slots) / 4)
    assert ARCHIVE.num_elites(state) == sum(map(len, there))
    assert values["qd_score"] == pytest.approx(
        sum(max(r.fitness for r in front) + 1.0 for front in there), abs=1e-5
    )

    def volume(rows):
        return brute_volume(np.array([r.objectives for r in rows]).reshape(-1, 2))

    assert values["moqd_score"] == pytest.approx(sum(map(volume, there)), abs=1e-4)
    assert values["hypervolume"] == pytest.approx(volume(sum(there, [])), abs=1e-4)
    if there:
        assert ARCHIVE.best(state).fitness == max(r.fitness for front in there for r in front)


def brute_volume(points: np.ndarray) -> float:
    """Return the volume above 0 that the points dominate, by inclusion and exclusion."""
    total = 0.0
    for size in range(1, len(points) + 1):
        for subset in itertools.combinations(np.maximum(points, 0.0), size):
            total += (-1) ** (size + 1) * np.prod(np.min(subset, axis=0))
    return float(total)


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_hypervolume_equals_inclusion_and_exclusion(objectives: int) -> None:
    points = np.random.default_rng(objectives).normal(0.5, 1.0, (7, objectives)).astype(np.float32)
    mask = np.arange(7) != 3
    found = hypervolume(jnp.asarray(points), jnp.asarray(mask), (0.0,) * objectives)
    np.testing.assert_allclose(found, brute_volume(points[mask]), rtol=1e-4)
    shifted = hypervolume(jnp.asarray(points - 2.0), jnp.asarray(mask), (-2.0,) * objectives)
    np.testing.assert_allclose(shifted, found, rtol=1e-4)


@pytest.mark.quick
def test_the_ends_of_a_front_have_infinite_crowding_distance() -> None:
    points = jnp.asarray([[0.0, 4.0], [1.0, 3.0], [3.0, 1.0], [4.0, 0.0]])
    np.testing.assert_allclose(
        crowding_distance(points), [np.inf, 3 / 4 + 3 / 4, 3 / 4 + 3 / 4, np.inf]
    )


def test_parents_are_sampled_by_cell_and_then_within_its_front() -> None:
    rows = [
        Row(1, 0, 2, 0.2, 0.2),
        Row(2, 2, 0, 0.2, 0.2),
        Row(3, 1, 1, 0.2, 0.2),
        Row(4, 1, 1, 0.8, 0.2),
    ]
    state, _, _ = ADD(ARCHIVE.init(jax.random.key(0), EXAMPLE), scored(rows))
    found = np.asarray(ARCHIVE.sample(state, jax.random.key(1), 30_000).solution["x"])
    shares = [np.mean(found == x) for x in (1, 2, 3, 4)]
    # Four standard deviations.
    np.testing.assert_allclose(shares, [1 / 6, 1 / 6, 1 / 6, 1 / 2], atol=0.012)


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match=r"front_size must be at least 1, .* got 0 x"):
        pareto_front_archive(grid_cells(SHAPE, LOW, HIGH), 0, (0.0, 0.0))
    with pytest.raises(UsageError, match="must have one number per objective, got"):
        pareto_front_archive(grid_cells(SHAPE, LOW, HIGH), 3, (0.0,)).init(
            jax.random.key(0), EXAMPLE
        )
