"""Solutions that are scored outside of JAX."""

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
    """Best at 1 in every dimension; described by the first two numbers."""
    return -np.sum((x - 1) ** 2, axis=1), x[:, :2]


def search(name: str, **arguments: Any) -> AskTell:
    return AskTell(name, 4, (-2, -2), (2, 2), config=SETTINGS[name], **arguments)


@pytest.mark.parametrize("name", SETTINGS)
def test_it_finds_many_good_ones(name: str) -> None:
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
def test_a_saved_search_goes_on(tmp_path: Path, asked: bool) -> None:
    """As if it had never stopped, also when solutions had been asked for."""
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


def test_several_objectives_are_told_of() -> None:
    config = {"batch_size": 30, "grid": (4, 4), "iso_sigma": 0.2, "reference": (-9.0, -9.0)}
    it = AskTell("mome", 4, (-2, -2), (2, 2), config=config)
    for _ in range(40):
        fitness, descriptor = score(it.ask())
        with pytest.raises(UsageError, match=r"objectives must be \[30, 2\], a number for each that the settings name"):
            it.tell(fitness, descriptor)
        values = it.tell(fitness, descriptor, np.stack([fitness, -np.sum(it.ask() ** 2, axis=1)], axis=1))
    assert 70 < values["hypervolume"] < 78.34 and values["front_mean"] > 1  # 78.33 of the true front
    with pytest.raises(UsageError, match=r"objectives must be \[30, 0\]"):
        other = search("map_elites")
        other.tell(*score(other.ask()), np.zeros((30, 2)))


def test_what_was_not_scored_does_not_enter() -> None:
    it = search("map_elites", start=[0.5, 0.5, 0.5, 0.5])
    x = it.ask()
    fitness, descriptor = score(x)
    fitness[::2] = np.nan
    assert it.tell(fitness, descriptor)["nonfinite"] == 15
    assert set(it.elites()["solution"][:, 0]) <= set(x[1::2, 0])


def test_what_is_refused() -> None:
    it = search("map_elites")
    with pytest.raises(UsageError, match="ask for solutions first"):
        it.tell(np.zeros(30), np.zeros((30, 2)))
    it.ask()
    with pytest.raises(UsageError, match=r"fitness must be \[30\] and descriptor \[30, 2\].*not \[29\] and \[30, 2\]"):
        it.tell(np.zeros(29), np.zeros((30, 2)))
    with pytest.raises(UsageError, match="folder=..."):
        it.save()
    for arguments, message in (
        (("ppo", 4, (0,), (1,)), "does not ask for solutions"),
        (("cma_mega", 4, (0, 0), (1, 1)), "has no closed form to take gradients of"),
        (("pga_me", 4, (0, 0), (1, 1)), "needs policies"),
        (("map_elites", 4, (0, 1), (1, 0)), "lower one first"),
        (("map_elites", 4, (0,), (1, 0)), "1 lower and 2 upper bounds"),
        (("map_elite", 4, (0,), (1,)), "did you mean map_elites"),
    ):
        with pytest.raises(UsageError, match=message):
            AskTell(*arguments)
    with pytest.raises(UsageError, match=r"start must be 4 \(dimensions\) finite numbers"):
        search("map_elites", start=[1.0])
