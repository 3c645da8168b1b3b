"""Tests of corrected archives, whose elites are re-evaluated."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rollax
from rollax.errors import UsageError
from rollax.training.elites import re_evaluation as correcting
from rollax.training.elites import selection

ARM = {"batch_size": 32, "num_iterations": 2, "grid": (8, 8)}
MAZE = {"batch_size": 32, "num_iterations": 2, "grid": (6, 6), "qd_offset": 100.0}
KEY = jax.random.key(7)


def trained(
    folder: Path, algorithm: str, environment: str, config: dict[str, Any], **more: Any
) -> rollax.Policy:
    options = {"eval_episodes": 4, "eval_count": 1, "tensorboard": False, "run_dir": folder}
    result = rollax.train(
        algorithm, environment, config=config, total_steps=640, options=options, quiet=True, **more
    )
    return rollax.load(result.folder)


def maze(folder: Path, spread: float) -> rollax.Policy:
    arguments = {"time_limit": 20, "start_spread": spread}
    return trained(
        folder,
        "map_elites",
        "control/point-maze",
        MAZE,
        arguments=arguments,
        network={"hidden": (8,)},
    )


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> rollax.Policy:
    return maze(tmp_path_factory.mktemp("corrected") / "run", 0.15)


def same_archive(a: dict[str, np.ndarray], b: dict[str, np.ndarray], per_cell: int = 1) -> None:
    """Check that archives are equal, except for the place of an elite within its cell."""
    np.testing.assert_array_equal(a["place"] // per_cell, b["place"] // per_cell)
    for name in set(a) - {"place"}:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("algorithm", "config"),
    [
        ("map_elites", ARM),
        ("map_elites", {"batch_size": 32, "num_iterations": 2, "cvt_cells": 50}),
        ("cma_mae", ARM | {"num_emitters": 4, "threshold_start": -1.0}),
        ("dns", ARM | {"population_size": 40}),
        ("mome", ARM | {"grid": (4, 4)}),
    ],
    ids=["grid", "voronoi", "thresholds", "population", "fronts"],
)
def test_correction_of_a_closed_form_changes_nothing(
    tmp_path: Path, algorithm: str, config: dict[str, Any]
) -> None:
    policy = trained(
        tmp_path / "run",
        algorithm,
        "task/rastrigin-multi" if algorithm == "mome" else "task/arm",
        config,
    )
    numbers, corrected = policy.correct_archive(5, KEY)
    same_archive(policy.elites(), corrected.elites(), getattr(policy.spec.config, "front_size", 1))
    values = policy.algorithm.state_metrics(policy.state)
    for name, value in values.items():
        assert numbers[f"corrected_{name}"] == pytest.approx(float(value), rel=1e-6)
    assert numbers["elites"] == len(policy.elites()["place"]) > 5
    assert numbers["episodes_per_elite"] == 1 and numbers["kept_cell"] == 1
    assert numbers["fitness_loss"] == pytest.approx(0, abs=1e-6)


def test_correction_without_noise_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes run in blocks of 7, with 3 episodes per elite."""
    policy = maze(tmp_path / "run", 0.0)
    monkeypatch.setattr(correcting, "MAX_PARALLEL_EPISODES", 7)
    numbers, corrected = policy.correct_archive(3, KEY)
    before, after = policy.elites(), corrected.elites()
    np.testing.assert_array_equal(before["place"], after["place"])
    np.testing.assert_allclose(before["fitness"], after["fitness"], rtol=1e-5)
    assert (
        numbers["episodes_per_elite"] == 3
        and numbers["kept_cell"] == 1
        and len(before["place"]) > 7
    )


def test_correction_with_noise_by_hand(noisy: rollax.Policy) -> None:
    """Every cell has the best mean, and metrics describe elites that left their cell."""
    numbers, corrected = noisy.correct_archive(3, KEY)
    table, found = noisy.elites(), selection.get_elites(noisy)
    places = np.sort(table["place"])
    before = jax.tree.map(lambda x: x[places], found.solutions)
    fitness, descriptor, _, _ = correcting.re_evaluate_solutions(noisy, before.solution, 3, KEY)
    cells = np.clip(np.floor(descriptor * 6), 0, 5).astype(int) @ np.array([6, 1])
    kept: dict[int, float] = {}
    for cell, value in zip(cells.tolist(), fitness.tolist(), strict=True):
        kept[cell] = max(value, kept.get(cell, -np.inf))
    after = corrected.elites()
    assert dict(zip(after["place"].tolist(), after["fitness"].tolist(), strict=True)) == kept
    assert numbers["corrected_qd_score"] == pytest.approx(
        sum(kept.values()) + 100 * len(kept), rel=1e-5
    )
    assert numbers["corrected_coverage"] == pytest.approx(len(kept) / 36)
    assert numbers["corrected_fitness_best"] == pytest.approx(max(kept.values()))
    assert numbers["fitness_loss"] == pytest.approx(
        float(np.mean(before.fitness - fitness)), rel=1e-4
    )
    assert (
        numbers["kept_cell"] == pytest.approx(np.mean(cells == places))
        and 0 < numbers["kept_cell"] < 1
    )
    assert noisy.correct_archive(3, KEY)[0] == numbers  # the same key gives the same result
    assert noisy.correct_archive(3, jax.random.key(8))[0] != numbers


def test_nonfinite_elites_are_removed(
    noisy: rollax.Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One elite has no fitness and one has no descriptor. Neither counts as in its cell."""

    def spoilt(
        policy: Any, solutions: Any, num_episodes: int, key: jax.Array
    ) -> correcting.MeanScores:
        fitness, descriptor, places = (
            np.array(scores.fitness),
            np.array(scores.descriptor),
            np.arange(len(scores.fitness)),
        )
        fitness[places == 0], descriptor[places == 1, 0] = np.nan, np.inf
        return correcting.MeanScores(fitness - 1, descriptor, (), num_episodes)

    found = selection.get_elites(noisy)
    places = np.flatnonzero(found.mask)
    scores = jax.tree.map(lambda x: x[places], found.solutions)
    monkeypatch.setattr(correcting, "re_evaluate_solutions", spoilt)
    numbers, corrected = noisy.correct_archive(3, KEY)
    assert sorted(corrected.elites()["place"].tolist()) == places[2:].tolist()
    assert numbers["fitness_loss"] == pytest.approx(1, rel=1e-4)
    assert numbers["kept_cell"] == pytest.approx(1 - 2 / len(places))


def with_archive(policy: rollax.Policy, archive: Any, state: Any) -> rollax.Policy:
    """Return the policy with this archive and archive state."""
    archived = policy.algorithm.archived._replace(archive=lambda _: (archive, state))
    return dataclasses.replace(policy, algorithm=policy.algorithm._replace(archived=archived))


def test_archives_with_other_descriptors_cannot_be_corrected(
    noisy: rollax.Policy,
) -> None:
    """Nor can archives that cannot be emptied."""
    archive, state = selection.get_archive(noisy)
    other = with_archive(noisy, archive._replace(low=(0.0,)), state)
    assert correcting.can_be_corrected(noisy) and not correcting.can_be_corrected(other)
    bare = with_archive(noisy, archive._replace(empty=None), state)
    assert not correcting.can_be_corrected(bare)
    with pytest.raises(UsageError, match="must have cells to insert solutions again"):
        bare.correct_archive(3, KEY)


def test_mean_scores_equal_those_of_evaluate(noisy: rollax.Policy) -> None:
    """Both kinds of means agree over many episodes of one elite."""
    number = 2000
    one = jax.tree.map(
        lambda x: x[None], selection.get_archive(noisy)[0].best(noisy.state.archive).solution
    )
    fitness, descriptor, _, _ = correcting.re_evaluate_solutions(noisy, one, number, KEY)
    values, played = noisy.evaluate(number, jax.random.key(1))
    spread = np.std(played.returns) * np.sqrt(2 / number) * 5 + 1e-4
    assert abs(fitness[0] - values["return_mean"]) < spread
    away = np.abs(descriptor[0] - values["descriptor_mean"])
    assert np.all(away < np.std(played.descriptor, axis=0) * np.sqrt(2 / number) * 5 + 1e-4)


def test_policies_without_an_archive_raise_usage_error(tmp_path: Path) -> None:
    folder = tmp_path / "ppo"
    options = {"eval_episodes": 4, "tensorboard": False, "run_dir": folder}
    rollax.train("ppo", "probe/one-action", total_steps=64, quiet=True, options=options)
    with pytest.raises(UsageError, match="ppo has no archive"):
        rollax.load(folder).correct_archive(3, KEY)
    assert not correcting.can_be_corrected(rollax.load(folder))


def test_an_invalid_number_of_episodes_raises_usage_error(noisy: rollax.Policy) -> None:
    with pytest.raises(UsageError, match=r"episodes must be between 1 and \d+, got 0"):
        noisy.correct_archive(0, KEY)
