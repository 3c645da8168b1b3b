"""Loading of demonstrations from the files of rollax, and from arrays as in D4RL."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollax
from laws.walk import Walk
from rollax import UsageError
from support.demonstrations import random_demonstrations

D4RL = {
    "observations": np.arange(7.0)[:, None],
    "actions": np.zeros((7, 1)),
    "rewards": np.ones(7),
    "terminals": np.array([0, 0, 1, 0, 0, 0, 0]),
    "timeouts": np.array([0, 0, 0, 0, 1, 0, 0]),
}


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_saved_demonstrations_are_loaded_unchanged(tmp_path: Path) -> None:
    data = random_demonstrations(Walk(agents=2))
    loaded = rollax.load_demonstrations(rollax.save_demonstrations(data, tmp_path / "walk.npz"))
    assert loaded.digest() == data.digest() and loaded.metadata == data.metadata


def test_arrays_of_d4rl(tmp_path: Path) -> None:
    """An episode that did not terminate loses its last step, whose next observation is unknown."""
    data = rollax.load_demonstrations(saved(tmp_path / "d4rl.npz", **D4RL))
    assert data.lengths.tolist() == [3, 1, 1]
    assert data.arrays["observations"][:, 0].tolist() == [0, 1, 2, 3, 5]
    assert data.arrays["final_observations"][:, 0].tolist() == [2, 4, 6]
    assert data.arrays["terminated"].tolist() == [False, False, True, False, False]
    assert data.arrays["truncated"].tolist() == [False, False, False, True, True]


def test_arrays_of_d4rl_with_next_observations(tmp_path: Path) -> None:
    path = saved(tmp_path / "d4rl.npz", **D4RL, next_observations=np.arange(1.0, 8)[:, None])
    data = rollax.load_demonstrations(path)
    assert data.lengths.tolist() == [3, 2, 2]
    assert data.arrays["final_observations"][:, 0].tolist() == [3, 5, 7]
    assert np.flatnonzero(data.arrays["truncated"]).tolist() == [4, 6]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"terminals": None}, "got no terminals among"),
        ({"actions": np.zeros((6, 1))}, "actions must have 7 rows"),
        ({"next_observations": np.zeros((6, 1))}, "next_observations must have 7 rows"),
        ({"next_observations": np.zeros(())}, "next_observations must have 7 rows"),
        ({"terminals": np.full(7, 2)}, "terminals must be a list of 0 and 1"),
        ({"timeouts": np.zeros(6)}, "timeouts must have the shape of terminals"),
        (
            {"terminals": np.zeros(7), "timeouts": np.ones(7)},
            "must have an episode with more than one step",
        ),
    ],
)
def test_incomplete_files_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    arrays = {name: value for name, value in (D4RL | changes).items() if value is not None}
    with pytest.raises(UsageError, match=f"d4rl.npz: .*{message}"):
        rollax.load_demonstrations(saved(tmp_path / "d4rl.npz", **arrays))


def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        rollax.load_demonstrations(tmp_path / "none.npz")
    with pytest.raises(UsageError, match="must be Demonstrations"):
        rollax.save_demonstrations({}, tmp_path / "x.npz")  # pyright: ignore[reportArgumentType]
