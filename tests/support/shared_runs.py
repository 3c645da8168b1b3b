"""Finished runs that tests of several folders read."""

from pathlib import Path

import pytest

import rollax
from rollax.cli.main import main
from support.fixtures import programs_compiled_once
from support.runs import FRAMES, NETWORK, SMALL, SMALL_WORDS, Script, options


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    with programs_compiled_once():
        rollax.train(
            "ppo",
            "probe/memory",
            config=SMALL,
            network=NETWORK,
            options=options(folder),
            show=Script(),
        )
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small run of the command line, with three evaluations."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    words = ["train", "ppo", "probe/memory", "--total-steps", str(4 * FRAMES), "--eval-count", "2"]
    with programs_compiled_once():
        assert main([*words, *SMALL_WORDS, "--run-dir", str(folder)]) == 0
    return folder
