"""Processes of the command line."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 300  # seconds, because machines that run tests are busy
_started: list[subprocess.Popen] = []


@pytest.fixture(autouse=True)
def _end_commands() -> Iterator[None]:
    """Kill the processes that a test started, whether it passed or not."""
    yield
    while _started:
        process = _started.pop()
        process.kill()
        process.wait()


def end_with_test(process: subprocess.Popen) -> subprocess.Popen:
    """Return a process, which is killed when the test that runs now ends."""
    _started.append(process)
    return process


class Command:
    """A `rollax` process whose output can be waited for.

    It is killed when the test that started it ends.

    Args:
        *words: Words of the command line.
        cache: Folder of compiled programs to share. None shares nothing.
        quick: Whether programs are compiled as in this process, and shared with it. Otherwise
            they are compiled as those of users are.
        program: Words before those of the command line.
        platforms: Platforms of JAX. An empty string leaves the choice to JAX.
    """

    def __init__(
        self,
        *words: Any,
        cache: Path | None = None,
        quick: bool = False,
        program: Sequence[str] = ("-m", "rollax"),
        platforms: str = "cpu",
    ) -> None:
        environment = {**os.environ, "JAX_PLATFORMS": platforms, "PYTHONUNBUFFERED": "1"}
        source = str(Path(__file__).parents[2] / "src")
        environment["PYTHONPATH"] = os.pathsep.join(
            [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        if not quick:
            environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0"
            environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        if cache is not None:
            environment |= {
                "JAX_COMPILATION_CACHE_DIR": str(cache),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            }
        line = [sys.executable, *program, *map(str, words)]
        pipe = subprocess.PIPE
        self.process = end_with_test(
            subprocess.Popen(
                line, stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL, text=True, env=environment
            )
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        with stream:
            lines.extend(line.rstrip("\n") for line in stream)

    def wait_for(self, condition: Any) -> None:
        """Wait until a line of output matches a pattern, or a function is true.

        The test fails if the process ends before.
        """
        is_met = (
            condition
            if callable(condition)
            else lambda: any(re.search(condition, line) for line in self.out)
        )
        end = time.monotonic() + PATIENCE
        while not is_met():
            assert self.process.poll() is None, (
                f"ended with {self.process.returncode} before: {self.out} {self.err}"
            )
            assert time.monotonic() < end, f"took too long: {self.out} {self.err}"
            time.sleep(0.005)

    def finish(self) -> int:
        try:
            code = self.process.wait(PATIENCE)
        finally:
            self.process.kill()
        for reader in self._readers:
            reader.join(10)
        return code

    def stop(self, number: int) -> int:
        """Send a signal and wait for the end of the process."""
        self.process.send_signal(number)
        return self.finish()
