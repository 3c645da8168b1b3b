"""Tests of searches with solutions that are scored outside of JAX."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollax import AskTell
from rollax.errors import UsageError

SETTINGS: Any = {
    "map_elites": {"batch_size": 30, "grid": (8, 8), "iso_sigma": 0.2},
    "cma_me": {"batch_size": 30, "grid": (8, 8), "num_emitters": 3},
    "cma_mae": {"batch_size": 30, "num_emitters": 3, "cvt_cells": 50, "threshold_start": -10.0},
}


def score(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the fitness, which is best at 1, and the first two numbers as descriptors."""
    return -np.sum((x - 1) ** 2, axis=1), x[:, :2]


def search(name: str, **arguments: Any) -> AskTell:
    return AskTell(name, 4, (-2, -2), (2, 2), config=SETTINGS[name], **arguments)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_search_finds_many_good_solutions(name: str) -> None:
    it = search(name)
    for _ in range(60):
        x = it.ask()
        assert x.shape == (30, 4) and np.array_equal(x, it.ask())
        values = it.tell(*score(x))
    assert values["coverage"] > 0.3 and values["fitness_best"] > -0.5
    table = it.elites()
    np.testing.assert_allclose(table["fitness"], score(table["solution"])[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(table["descriptor_1"], table["solution"][:, 1], rtol=1e-6)
    assert it.iterations == 60


@pytest.mark.parametrize("asked", [False, True])
def test_a_saved_search_continues_exactly(tmp_path: Path, asked: bool) -> None:
    """This includes solutions that were asked for before it was saved."""
    whole, first = search("cma_me"), search("cma_me", folder=tmp_path)
    for it in (whole, first):
        for _ in range(5):
            it.tell(*score(it.ask()))
    if asked:
        first.ask()
    first.save()
    second = search("cma_me", folder=tmp_path)
    assert second.iterations == 5
    for _ in range(3):
        x = whole.ask()
        np.testing.assert_array_equal(second.ask(), x)
        assert second.tell(*score(x)) == whole.tell(*score(x))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("map_elites", {}, "algorithm cma_me, got map_elites"),
        ("cma_me", {"high": (2, 3)}, r"high \[2.0, 2.0\], got \[2.0, 3.0\]"),
        ("cma_me", {"seed": 1}, "seed 0, got 1"),
        ("cma_me", {"config": SETTINGS["cma_me"] | {"sigma": 0.1}}, "sigma 0.5, got 0.1"),
        (
            "cma_me",
            {"config": SETTINGS["cma_me"] | {"grid": (8, 9)}},
            r"grid \[8, 8\], got \[8, 9\]",
        ),
    ],
)
def test_a_folder_of_another_search_raises_usage_error(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    """Elites would be in wrong cells, or settings would be wrong."""
    first = search("cma_me", folder=tmp_path)
    first.tell(*score(first.ask()))
    first.save()
    arguments = {
        "low": (-2, -2),
        "high": (2, 2),
        "config": SETTINGS[name],
        "folder": tmp_path,
    } | changes
    with pytest.raises(UsageError, match=f"was made with .*{message}. Pass the same arguments"):
        AskTell(name, 4, **arguments)


def test_several_objectives() -> None:
    config = {"batch_size": 30, "grid": (4, 4), "iso_sigma": 0.2, "reference": (-9.0, -9.0)}
    it = AskTell("mome", 4, (-2, -2), (2, 2), config=config)
    for _ in range(40):
        fitness, descriptor = score(it.ask())
        with pytest.raises(
            UsageError,
            match=r"objectives must have shape \[30, 2\], one column per objective in the settings",
        ):
            it.tell(fitness, descriptor)
        values = it.tell(
            fitness, descriptor, np.stack([fitness, -np.sum(it.ask() ** 2, axis=1)], axis=1)
        )
    # The true front has 78.33.
    assert 70 < values["hypervolume"] < 78.34 and values["front_mean"] > 1
    with pytest.raises(UsageError, match=r"objectives must have shape \[30, 0\]"):
        other = search("map_elites")
        other.tell(*score(other.ask()), np.zeros((30, 2)))


def test_solutions_without_a_score_are_not_inserted() -> None:
    it = search("map_elites", start=[0.5, 0.5, 0.5, 0.5])
    x = it.ask()
    fitness, descriptor = score(x)
    fitness[::2] = np.nan
    assert it.tell(fitness, descriptor)["nonfinite"] == 15
    assert set(it.elites()["solution"][:, 0]) <= set(x[1::2, 0])


def test_invalid_arguments_of_ask_tell_raise_usage_error() -> None:
    it = search("map_elites")
    with pytest.raises(UsageError, match="Call `ask` first"):
        it.tell(np.zeros(30), np.zeros((30, 2)))
    it.ask()
    with pytest.raises(
        UsageError,
        match=r"fitness must have shape \[30\] and descriptor \[30, 2\].*got \[29\] and \[30, 2\]",
    ):
        it.tell(np.zeros(29), np.zeros((30, 2)))
    with pytest.raises(UsageError, match="folder=..."):
        it.save()
    for arguments, message in (
        (("ppo", 4, (0,), (1,)), "must support ask and tell, got ppo"),
        (("cma_mega", 4, (0, 0), (1, 1)), "must have a closed form to compute gradients"),
        (("pga_me", 4, (0, 0), (1, 1)), "requires an environment with episodes"),
        (("map_elites", 4, (0, 1), (1, 0)), "in ascending order"),
        (
            ("map_elites", 4, (0,), (1, 0)),
            "lower and upper descriptor bounds must be equal .* got 1 and 2",
        ),
        (("map_elite", 4, (0,), (1,)), "did you mean map_elites"),
        (("map_elites", 0, (0, 0), (1, 1)), r"dimensions must be between 1 and \d+, got 0"),
        (("map_elites", -3, (0, 0), (1, 1)), r"dimensions must be between 1 and \d+, got -3"),
        (
            ("map_elites", 3, "ab", (1, 1)),
            r"low \('ab'\) must be a sequence in which every item is a number",
        ),
        (
            ("map_elites", 3, (0, 0), (1, None)),
            r"high .* must be a sequence in which every item is a number",
        ),
        (
            ("map_elites", 3, 0, 1),
            r"grid must have one number per descriptor dimension \(1\), got 32 32",
        ),
        (
            ("map_elites", 10**12, (0, 0), (1, 1)),
            r"dimensions must be between 1 and \d+, got 1000000000000",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            AskTell(*arguments)
    with pytest.raises(
        UsageError,
        match=(
            r"the search needs .* GB, but only .* GB are available. Use fewer cells or "
            r"dimensions"
        ),
    ):
        AskTell("map_elites", 3, (0, 0), (1, 1), config={"grid": (40_000, 40_000)})
    for start, message in (
        ("ab", "must be an array of real numbers"),
        ([1.0], r"start must be 4 \(dimensions\) finite numbers"),
        ([1, 2, 3, np.nan], r"start must be 4 \(dimensions\) finite numbers, got \[1, 2, 3, nan\]"),
    ):
        with pytest.raises(UsageError, match=message):
            search("map_elites", start=start)


@pytest.mark.parametrize(
    "fitness", [["1"] * 30, [[1]] * 15 + [[1, 2]] * 15, np.full(30, 1j), {"a": 1}]
)
def test_scores_must_be_real_numbers(fitness: Any) -> None:
    it = search("map_elites")
    it.ask()
    with pytest.raises(
        UsageError, match=r"fitness must be an array of real numbers, with NaN for missing ones"
    ):
        it.tell(fitness, np.zeros((30, 2)))
    # None is a missing score, and 1e300 exceeds float32.
    assert it.tell([None] * 29 + [1e300], np.zeros((30, 2)))["nonfinite"] == 30


def test_me_es_inserts_the_offspring_once_with_its_mean_scores() -> None:
    """Different scores of one solution are averaged.

    Scores of pairs are used for gradients only.
    """
    it = AskTell(
        "me_es", 4, (-2, -2), (2, 2), config={"batch_size": 12, "grid": (8, 8), "sigma": 0.1}
    )
    for batch in range(3):
        x = it.ask()
        np.testing.assert_array_equal(x[0], x[1])
        fitness, descriptor = score(x)
        fitness[:2] += [1.0, -1.0]
        values = it.tell(fitness, descriptor)
        assert values["new"] + values["better"] <= 1
        if batch == 0:
            table = it.elites()
            np.testing.assert_array_equal(table["solution"], x[:1])
            np.testing.assert_allclose(table["fitness"], score(x[:1])[0], rtol=1e-6)
