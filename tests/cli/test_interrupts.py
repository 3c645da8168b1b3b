"""Tests of Ctrl-C in commands: the exit code, and the command that continues a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollax.cli.main import COMMANDS
from support.runs import FRAMES, SMALL_WORDS

Rollax = Callable[..., Any]
TRAIN = ["train", "ppo", "probe/memory", "--total-steps", 2 * FRAMES, *SMALL_WORDS]


def test_an_interrupt_before_a_run(rollax: Rollax, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C before there is a folder gives exit code 130 and one line that names no command."""
    from rollax import api

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "train", interrupted)
    monkeypatch.setitem(COMMANDS, "ls", interrupted)
    for words in (TRAIN, ["ls"]):
        outcome = rollax(*words)
        assert (outcome.code, outcome.err) == (130, "error: Interrupted.\n")


def test_an_interrupt_in_a_run_names_its_folder(
    rollax: Rollax, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second Ctrl-C aborts the run, and the message contains a command that continues it."""
    from rollax.training import execution

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(execution.programs, "compile_program", interrupted)
    outcome = rollax(*TRAIN)
    assert outcome.code == 130
    (line,) = [line for line in outcome.err.splitlines() if line.startswith("error:")]
    assert line.startswith("error: Interrupted. Run `rollax resume ")
    folder = line.split("`")[1].removeprefix("rollax resume ")
    assert (tmp_path / folder / "config.yaml").exists()
