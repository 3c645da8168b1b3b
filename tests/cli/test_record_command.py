"""Command `rollax record`, and training from its file."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import rollax as library
from support.fixtures import compile_once

__all__ = ["compile_once"]


@pytest.mark.quick
def test_a_recorded_file_is_imitated(rollax: Any, finished: Path, tmp_path: Path) -> None:
    done = rollax("record", finished, "-o", "data.npz", "--episodes", 6)
    assert done.code == 0, done.err
    assert done.lines[0] == "data.npz" and done.lines[1].startswith("6 episodes, ")
    data = library.load_demonstrations("data.npz")
    assert data.num_episodes == 6 and data.metadata["policy"] == "ppo"
    words = ["--total-steps", "64", "--batch-size", "8", "--num-gradient-steps", "2"]
    words += ["--hidden", "8", "--eval-episodes", "4", "--no-tensorboard", "--run-dir", "clone"]
    trained = rollax("train", "bc", "probe/memory", "--demonstrations", "data.npz", *words)
    assert trained.code == 0, trained.err
    assert "Demonstrations: 6 episodes" in trained.out
    assert rollax("eval", "clone", "--episodes", "4").code == 0


def test_the_default_file_is_in_the_run_and_not_overwritten(
    rollax: Any, finished: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    done = rollax("record", "run", "--episodes", 2, "--seed", 3, "--json")
    assert done.code == 0 and done.object["episodes"] == 2
    assert done.object["file"] == "run/recordings/best-2-episodes-seed-3.npz"
    assert (run / "recordings" / "best-2-episodes-seed-3.npz").exists()
    again = rollax("record", "run", "--episodes", 2, "--seed", 3)
    assert again.code == 2 and "is not overwritten" in again.err
    other = rollax("record", "run", "--env.delay", "3")
    assert other.code == 2 and "requires --environment" in other.err


def test_help_lists_the_options(rollax: Any) -> None:
    assert "rollax record RUN" in rollax().out
    help_text = rollax("record", "--help").out
    names = "out episodes checkpoint environment seed stochastic member max-steps json"
    assert all(f"--{name}" in help_text for name in names.split())


def test_missing_demonstrations(rollax: Any) -> None:
    done = rollax("train", "bc", "probe/memory")
    assert done.code == 2 and "rollax record RUN -o FILE" in done.err
