"""Fixtures of fuzz tests, in which invalid input is refused quickly and without leaving files."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from rollax import UsageError
from rollax.cli.main import main
from rollax.training import loop
from rollax.training.compile import device_memory
from rollax.training.compile import program as programs

MEMORY = 12 * 10**9  # bytes of memory on every machine
QUICK = 20.0  # seconds of processor time for an answer; most need a hundredth of it


class Accepted(Exception):
    """Raised where a run would start, when all checks before compilation have passed."""


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return an empty working folder, in a process where runs end instead of being compiled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def accepted(*_: Any, **__: Any) -> Any:
        raise Accepted

    monkeypatch.setattr(device_memory, "available_memory_bytes", lambda: MEMORY)
    monkeypatch.setattr(programs, "compile_program", accepted)
    monkeypatch.setattr(loop, "run_session", accepted)
    with jax.debug_key_reuse(False):
        yield tmp_path


Answer = Callable[..., str | None]


def is_remedy(message: str) -> bool:
    """Return whether a message is more than the name of the error."""
    return len(message) > 25 and "Traceback" not in message and "object at 0x" not in message


@pytest.fixture
def answer(nowhere: Path) -> Answer:
    """Return a function that calls a function and returns the message of its UsageError, or None.

    Any other error fails the test.
    """

    def ask(function: Callable[[], Any]) -> str | None:
        started = time.process_time()
        try:
            function()
        except UsageError as error:
            assert is_remedy(str(error)), error
            assert list(nowhere.iterdir()) == [], "something was written"
            return str(error)
        except Accepted:
            return None
        finally:
            assert time.process_time() - started < QUICK
        return None

    return ask


@pytest.fixture
def command(nowhere: Path, capsys: pytest.CaptureFixture) -> Callable[..., tuple[int, str]]:
    """Return a function that runs a command and returns its exit code and output.

    The code is 0 if a run would have started. A traceback fails the test.
    """

    def run(*words: str) -> tuple[int, str]:
        started = time.process_time()
        code = 0
        with contextlib.suppress(Accepted):
            try:
                code = main(list(words))
            except SystemExit as end:
                code = int(end.code or 0)
        out, err = capsys.readouterr()
        assert time.process_time() - started < QUICK, words
        assert "Traceback" not in err
        if code:
            assert list(nowhere.iterdir()) == [], "something was written"
        return code, " ".join((out + err).split())

    return run
