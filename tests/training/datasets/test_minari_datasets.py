"""Local data sets of Minari as demonstrations."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import rollax
from rollax import UsageError
from rollax.training.datasets.minari_datasets import is_minari_id


def test_ids_are_recognized() -> None:
    assert all(map(is_minari_id, ("mujoco/hopper/expert-v0", "D4RL/door/human-v2", "pole-v10")))
    assert not any(map(is_minari_id, ("data.npz", "runs/data", "a//b-v0", "../b v0", "a-v0.npz")))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="package minari is not installed"):
        rollax.load_demonstrations("mujoco/hopper/expert-v0")


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_a_local_data_set_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    minari = pytest.importorskip("minari")
    import gymnasium
    from minari.data_collector import EpisodeBuffer  # pyright: ignore[reportMissingImports]

    buffers = [
        EpisodeBuffer(
            observations=list(np.arange(4 * (n + 1), dtype=np.float32).reshape(n + 1, 4)),
            actions=[1] * n,
            rewards=[1.0] * n,
            terminations=[False] * (n - 1) + [n == 3],
            truncations=[False] * (n - 1) + [n != 3],
        )
        for n in (3, 2)
    ]
    minari.create_dataset_from_buffers(
        "test/pole-v0",
        buffer=buffers,
        observation_space=gymnasium.spaces.Box(-100, 100, (4,), np.float32),
        action_space=gymnasium.spaces.Discrete(2),
    )
    data = rollax.load_demonstrations("test/pole-v0")
    assert data.lengths.tolist() == [3, 2] and data.metadata["policy"] == "test/pole-v0"
    assert data.arrays["observations"][3].tolist() == [0, 1, 2, 3]
    assert data.arrays["final_observations"][0].tolist() == [12, 13, 14, 15]
    assert data.arrays["terminated"].tolist() == [False, False, True, False, False]
    environment = rollax.make("gymnax/CartPole-v1")
    data.to_steps(environment.observation_space, environment.action_space, None)
    with pytest.raises(UsageError, match="must be on this machine, got test/pole-v0"):
        rollax.load_demonstrations("test/other-v0")
