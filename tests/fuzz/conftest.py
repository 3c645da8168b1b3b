"""What users may write, and how each of it has to be answered: at once, with a remedy, and with nothing left behind."""

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

MEMORY = 12 * 10**9  # bytes, of every machine
QUICK = 20.0  # seconds of processors for an answer; most take a hundredth of it


class Accepted(Exception):
    """A run would have begun: everything that is checked before compiling was found good."""


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder; runs end where they would be compiled, and their folder is removed by the test's own."""
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
    """Whether a message is more than the name of what is wrong."""
    return len(message) > 25 and "Traceback" not in message and "object at 0x" not in message


@pytest.fixture
def answer(nowhere: Path) -> Answer:
    """`answer(function)`: the message of the UsageError, or None where it was accepted. Fails for anything else."""

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
    """`command("train", ...)`: the exit code, 0 where a run would have begun, and what was said. Fails for a traceback."""

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
