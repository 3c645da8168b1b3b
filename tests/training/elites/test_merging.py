"""Tests of merging archives, and of comparing two archives cell by cell."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import assume, given, settings

import rollax
from archives.test_cells import BATCHES, EXAMPLE, compiled, contents, members_of, scored
from rollax.errors import UsageError
from rollax.training.elites import selection
from rollax.training.elites.merging import collect_elites
from rollax.training.elites.re_evaluation import insert_elites

ARM = {"batch_size": 32, "num_iterations": 2, "grid": (8, 8)}
KINDS = {
    "grid": ("map_elites", ARM),
    "voronoi": ("map_elites", {"batch_size": 32, "num_iterations": 2, "cvt_cells": 50}),
    "population": ("dns", ARM | {"population_size": 40}),
    "thresholds": ("cma_mae", ARM | {"num_emitters": 4, "threshold_start": -1.0, "grid": (4, 4)}),
}


def trained(
    folder: Path, kind: str = "grid", seed: int = 0, environment: str = "task/arm", **more: Any
) -> rollax.Policy:
    algorithm, config = KINDS[kind]
    options = {"eval_episodes": 4, "eval_count": 1, "tensorboard": False, "run_dir": folder}
    given = {"config": config, "seed": seed, "options": options, "quiet": True} | more
    rollax.train(algorithm, environment, total_steps=320, **given)
    return rollax.load(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[rollax.Policy]]:
    folder = tmp_path_factory.mktemp("merging")
    return {
        kind: [trained(folder / f"{kind}-{seed}", kind, seed) for seed in range(2)]
        for kind in KINDS
    }


@settings(deadline=None, max_examples=50)
@given(BATCHES, BATCHES)
def test_a_merged_archive_equals_that_of_all_solutions(first: list[Any], second: list[Any]) -> None:
    """Elites of two archives are added at once, and compared with one archive of all solutions."""
    archive, add = compiled(None)
    parts, everything, number = [], archive.init(jax.random.key(0), EXAMPLE), 1
    for batches in (first, second):
        state = archive.init(jax.random.key(0), EXAMPLE)
        for batch in batches:
            members = scored(members_of(batch, number))
            number += len(members.fitness)
            state, everything = add(state, members)[0], add(everything, members)[0]
        found = archive.elites(state)
        rows = np.flatnonzero(found.mask)
        parts.append(jax.tree.map(lambda x, rows=rows: np.asarray(x)[rows], found.solutions))
    # Merging without elites raises an error before.
    assume(any(len(part.fitness) for part in parts))
    merged = insert_elites(archive, state, jax.tree.map(lambda *rows: np.concatenate(rows), *parts))
    assert contents(archive, merged) == contents(archive, everything)
    assert int(merged.filled) == int(everything.filled)
    if int(merged.filled):
        assert float(archive.best(merged).fitness) == float(archive.best(everything).fitness)


@pytest.mark.parametrize("kind", ["grid", "voronoi", "thresholds"])
def test_a_merged_archive_has_the_best_of_every_cell(runs: Any, kind: str) -> None:
    a, b = runs[kind]
    merged = rollax.merge_archives([a, b])

    def cell_of(x):
        return selection.get_archive(a)[0].cell_of(a.state.archive, x)

    best: dict[int, float] = {}
    for part in (collect_elites(a), collect_elites(b)):
        for cell, fitness in zip(
            cell_of(part.descriptor).tolist(), part.fitness.tolist(), strict=True
        ):
            best[cell] = max(fitness, best.get(cell, -np.inf))
    table = merged.elites()
    assert dict(zip(table["place"].tolist(), table["fitness"].tolist(), strict=True)) == best
    assert len(best) > len(a.elites()["place"]) or kind == "thresholds"
    assert merged.step == a.step + b.step and "Merged from 2 archives" in merged.warnings[0]


def test_merged_populations_equal_the_population_of_all(runs: Any) -> None:
    a, b = runs["population"]
    archive, state = selection.get_archive(a)
    everyone = jax.tree.map(
        lambda *rows: np.concatenate(rows), collect_elites(a), collect_elites(b)
    )
    example = jax.tree.map(lambda x: x[0], everyone)
    expected, *_ = archive.add(archive.init(jax.random.key(0), example), everyone)
    merged = rollax.merge_archives([a, b])
    for x, y in zip(jax.tree.leaves(merged.state.archive), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("kind", KINDS)
def test_merging_one_archive_changes_nothing(runs: Any, kind: str) -> None:
    a = runs[kind][0]
    for name, column in rollax.merge_archives([a]).elites().items():
        np.testing.assert_array_equal(column, a.elites()[name])
    numbers = rollax.compare_archives(a, a).numbers()
    assert numbers["equal"] == numbers["both"] > 0 == numbers["only_a"] == numbers["only_b"]
    assert numbers["mean_difference"] == 0 and numbers["qd_score_a"] == numbers["qd_score_b"]


def test_a_merged_archive_is_a_run(runs: Any, tmp_path: Path) -> None:
    """Its folder can be loaded and resumed."""
    merged = rollax.merge_archives(runs["voronoi"], folder=tmp_path / "merged")
    loaded = rollax.load(tmp_path / "merged")
    for x, y in zip(
        jax.tree.leaves(merged.state.archive), jax.tree.leaves(loaded.state.archive), strict=True
    ):
        np.testing.assert_array_equal(x, y)
    assert loaded.step == merged.step == 640
    place = merged.elites()["place"][3]
    wanted = [float(merged.elites()[f"descriptor_{k}"][3]) for k in range(2)]
    assert (
        merged.elite(descriptor=wanted).state.archive.best
        == loaded.elite(descriptor=wanted).state.archive.best
        == place
    )
    with pytest.raises(UsageError, match="Choose another --run-dir"):
        rollax.merge_archives(runs["voronoi"], folder=tmp_path / "merged")
    result = rollax.resume(tmp_path / "merged", total_steps=1280, quiet=True)
    assert result.status == "done" and result.steps == 1280
    assert result.evaluation["qd_score"] >= float(
        merged.algorithm.state_metrics(merged.state)["qd_score"]
    )
    before, after = (
        set(merged.elites()["place"].tolist()),
        set(rollax.load(tmp_path / "merged").elites()["place"].tolist()),
    )
    assert before < after


def test_members_of_a_population_are_merged(tmp_path: Path) -> None:
    """The result has the settings of the first one."""
    folder = tmp_path / "members"
    trained(folder, sweep={"iso_sigma": [0.01, 0.3]}, network={})
    members = [rollax.load(folder, member=i) for i in (1, 0)]
    merged = rollax.merge_archives(members, folder=tmp_path / "merged")
    numbers, _ = members[0].correct_archive(2, jax.random.key(0))
    assert numbers["kept_cell"] == 1 and numbers["elites"] == len(members[0].elites()["place"])
    loaded = rollax.load(tmp_path / "merged")
    assert loaded.member is None and loaded.spec.num_members == 1
    assert (
        loaded.spec.config.iso_sigma == pytest.approx(0.3) == float(loaded.state.config.iso_sigma)
    )
    np.testing.assert_array_equal(loaded.elites()["fitness"], merged.elites()["fitness"])


def test_a_comparison_by_hand(runs: Any) -> None:
    a, b = runs["grid"]
    found = rollax.compare_archives(a, b)
    by_place = [
        dict(zip(x.elites()["place"].tolist(), x.elites()["fitness"].tolist(), strict=True))
        for x in (a, b)
    ]
    assert found.cell.tolist() == sorted({*by_place[0], *by_place[1]})
    for fitness, kept in zip((found.fitness_a, found.fitness_b), by_place, strict=True):
        assert {
            int(c): f for c, f in zip(found.cell, fitness.tolist(), strict=True) if not np.isnan(f)
        } == kept
    both = [cell for cell in by_place[0] if cell in by_place[1]]
    numbers = found.numbers()
    assert numbers["both"] == len(both) and numbers["only_a"] == len(by_place[0]) - len(both)
    assert numbers["only_b"] == len(by_place[1]) - len(both)
    assert numbers["better_b"] == sum(by_place[1][cell] > by_place[0][cell] for cell in both)
    assert numbers["better_a"] == sum(by_place[1][cell] < by_place[0][cell] for cell in both)
    mean = np.mean([by_place[1][cell] - by_place[0][cell] for cell in both])
    assert numbers["mean_difference"] == pytest.approx(mean, rel=1e-4)
    for name, policy in (("a", a), ("b", b)):
        for metric, value in policy.algorithm.state_metrics(policy.state).items():
            assert numbers[f"{metric}_{name}"] == pytest.approx(float(value), rel=1e-6)


@pytest.mark.parametrize("kind", ["voronoi", "population", "thresholds"])
def test_other_archives_are_compared_in_the_cells_of_the_first(runs: Any, kind: str) -> None:
    a, b = runs["grid"][0], runs[kind][1]
    part, best = collect_elites(b), {}
    cells = np.clip(np.floor(part.descriptor * 8), 0, 7).astype(int) @ np.array([8, 1])
    for cell, fitness in zip(cells.tolist(), part.fitness.tolist(), strict=True):
        best[cell] = max(fitness, best.get(cell, -np.inf))
    found = rollax.compare_archives(a, b)
    assert {
        int(c): f
        for c, f in zip(found.cell, found.fitness_b.tolist(), strict=True)
        if not np.isnan(f)
    } == best
    assert found.metrics_b["coverage"] == pytest.approx(len(best) / 64)
    # The offset of arms is 1.
    assert found.metrics_b["qd_score"] == pytest.approx(sum(best.values()) + len(best), rel=1e-5)
    back = rollax.compare_archives(b, a).numbers()
    assert back["coverage_a"] == pytest.approx(
        float(b.algorithm.state_metrics(b.state)["coverage"])
    )


def test_incompatible_archives_raise_usage_error(runs: Any, tmp_path: Path) -> None:
    a = runs["grid"][0]
    longer = trained(tmp_path / "longer", arguments={"joints": 9})
    other = trained(tmp_path / "sphere", environment="task/sphere", arguments={"dimensions": 8})
    for function in (
        lambda b: rollax.merge_archives([a, b]),
        lambda b: rollax.compare_archives(a, b),
    ):
        with pytest.raises(
            UsageError, match="got task/arm and task/sphere, whose fitness cannot be compared"
        ):
            function(other)
        with pytest.raises(UsageError, match="is not a run"):
            function(tmp_path)
    with pytest.raises(
        UsageError,
        match="Solutions of map_elites must have the shapes of those of the first archive",
    ):
        rollax.merge_archives([a, longer])
    # solutions may have different shapes
    assert rollax.compare_archives(a, longer).numbers()["both"] > 0
    with pytest.raises(UsageError, match="runs must contain at least one archive"):
        rollax.merge_archives([])
    for alone in (str(tmp_path), tmp_path, a, None):
        with pytest.raises(
            UsageError,
            match=r"must be a sequence of policies or folders, got .* Put a single one in a list",
        ):
            rollax.merge_archives(alone)
