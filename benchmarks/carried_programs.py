"""Programs that `accelerator.py` starts, and their results, which they print as JSON lines."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from accelerator_rows import words

FOLDER = Path(__file__).resolve().parent
LAST_LINES = 3  # of the error output of a program that fails


class Failure(Exception):
    """End of a program without success, with the end of its error output."""


def start(task: dict[str, Any], peers: Path | None = None, purejaxrl: str = "") -> "Child":
    """Start the program of a task.

    Args:
        task: Task of a row of accelerator_rows.py.
        peers: Folder of the packages of peers, if it is the task of a peer.
        purejaxrl: Folder with ppo.py of PureJaxRL.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if peers is None:
        command = [str(FOLDER / "accelerator_worker.py"), json.dumps(task)]
    else:
        command = [str(FOLDER / task["program"]), *words(task, purejaxrl)]
        paths = [str(peers.resolve()), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return Child([sys.executable, *command], environment)


class Child:
    """Running program.

    Args:
        command: Command line.
        environment: Environment variables.
    """

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `end`
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(line)
        self.lines.put(None)

    def _continue(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def _next(self, deadline: float) -> dict[str, Any] | None:
        """Return the next result, or None after the last one.

        Raises:
            Failure: If the program has failed.
            queue.Empty: If the deadline has passed.
        """
        line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
        if line is not None:
            return json.loads(line)
        if self.process.wait():
            self.errors.seek(0)
            last = [text.strip() for text in self.errors.read().splitlines() if text.strip()]
            raise Failure(" / ".join(last[-LAST_LINES:]) or f"exit code {self.process.returncode}")
        return None

    def results(self, seconds: float, deadline: float) -> Iterator[dict[str, Any]]:
        """Let the program use the device, and yield its results, of which the last one counts."""
        self._continue()
        while (found := self._next(deadline)) is not None:
            yield found

    def take_turns(self, seconds: float, deadline: float) -> Iterator[dict[str, Any]]:
        """Let a program of `timing.by_turns` run for some seconds, and yield its results."""
        ready = self._next(deadline)
        if ready is None:
            return
        rates: list[float] = []
        end = time.monotonic() + seconds
        while not rates or time.monotonic() < end:
            self._continue()
            turn = self._next(deadline)
            assert turn is not None, "the program ended between turns"
            rates.append(turn["rate"])
            yield {"rates": rates, "compile_seconds": {"all": ready["compile_seconds"]}}

    def end(self) -> None:
        """End the program and its own child processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.errors.close()
