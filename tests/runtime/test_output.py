"""Tests of output that is closed, full or limited to some characters, which does not stop a run."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rollax
from rollax.runtime import output
from rollax.training.console.progress import LineDisplay, ResilientDisplay
from rollax.training.run_folder import creation
from rollax.training.spec import make_spec
from support.command import PATIENCE
from support.fixtures import compile_once, train  # noqa: F401
from support.runs import FRAMES, SMALL_WORDS, newest

RUN = ["train", "ppo", "probe/memory", *SMALL_WORDS, "--total-steps", str(8 * FRAMES)]
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
needs_full = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="this system has no full device"
)


@pytest.fixture
def shell(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Return a function that runs a command in a shell, with the exit code of the command."""

    def run(words: list[str], redirection: str, **variables: str) -> subprocess.CompletedProcess:
        source = str(Path(rollax.__file__).parents[1])
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": source, **variables}
        line = f'"$@" {redirection}; exit ${{PIPESTATUS[0]}}'
        command = ["bash", "-c", line, "bash", sys.executable, "-m", "rollax", *words]
        return subprocess.run(
            command,
            capture_output=True,
            check=False,
            cwd=tmp_path,
            env=environment,
            timeout=PATIENCE,
            errors="replace",
        )

    return run


@pytest.mark.parametrize(
    "redirection",
    [
        "| head -1",
        ">&-",
        pytest.param("> /dev/full", marks=needs_full),
        pytest.param("> /dev/full 2>&1", marks=needs_full),
    ],
)
def test_a_run_continues_without_output(shell: Callable, tmp_path: Path, redirection: str) -> None:
    """The run ends with exit code 0, and standard error has a warning about standard output."""
    ended = shell([*RUN, "--run-dir", "run"], redirection)
    assert ended.returncode == 0, ended.stderr
    assert newest(tmp_path / "run") == 8 * FRAMES
    assert "Traceback" not in ended.stderr and "Exception ignored" not in ended.stderr
    if "2>&1" not in redirection:
        assert ended.stderr.count("warning: standard output cannot be written") == 1
    # A file that was opened in place of standard output would contain the messages.
    assert b"compiling" not in (tmp_path / "run" / "metrics.jsonl").read_bytes()


@needs_full
@pytest.mark.parametrize(
    ("redirection", "code"), [("| head -1", 0), (">&-", 1), ("> /dev/full", 1)]
)
@pytest.mark.parametrize("words", [["algorithms"], ["--help"], ["eval", "--help"]])
def test_other_commands_without_output(
    shell: Callable, words: list[str], redirection: str, code: int
) -> None:
    """They fail, because their output is their result. A closed pipe is not an error."""
    ended = shell(words, redirection)
    assert ended.returncode == code
    told = [line for line in ended.stderr.splitlines() if line]
    assert len(told) == code and all(
        line.startswith("error: standard output cannot be written") for line in told
    )


def test_folder_names_in_an_ascii_locale(shell: Callable, tmp_path: Path) -> None:
    """Characters that standard output cannot represent are escaped."""
    ended = shell([*RUN, "--run-dir", "l\u00e4ufe"], "", PYTHONIOENCODING="ascii")
    assert ended.returncode == 0, ended.stderr
    assert newest(tmp_path / "l\u00e4ufe") == 8 * FRAMES
    assert "run folder l\\xe4ufe" in ended.stdout
    ended = shell([*RUN, "--run-dir", "run"], "", **C_LOCALE)
    assert ended.returncode == 0, ended.stderr
    assert newest(tmp_path / "run") == 8 * FRAMES


def test_a_folder_name_that_is_not_utf8_raises_usage_error(shell: Callable, tmp_path: Path) -> None:
    """The error is raised before anything is compiled or written."""
    ended = shell([*RUN, "--run-dir", os.fsdecode(b"run-\xff")], "")
    assert ended.returncode == 2
    assert (
        "run_dir must be a path in utf-8, got " in ended.stderr
        and "Choose another name" in ended.stderr
    )
    assert list(tmp_path.iterdir()) == []


def test_a_current_folder_that_is_not_utf8_raises_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / os.fsdecode(b"here-\xff")
    here.mkdir()
    monkeypatch.chdir(here)
    spec = make_spec("ppo", "probe/memory", {}, None, None, rollax.RunOptions(), {})
    with pytest.raises(rollax.UsageError, match="the current folder must be a path in utf-8"):
        creation.create_run_folder(spec)
    assert list(here.iterdir()) == []


class Full:
    """Stream on which every write fails."""

    def __init__(self, error: Exception) -> None:
        self.error, self.attempts = error, 0

    def write(self, text: str) -> None:
        self.attempts += 1
        raise self.error

    def flush(self) -> None:
        raise self.error


@pytest.fixture
def unchanged() -> Iterator[None]:
    """Restore the recorded state of standard output."""
    yield
    output._OutputState.is_discarded = False


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), ValueError("I/O operation on closed file.")]
)
def test_a_display_is_not_used_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    unchanged: None,
    error: Exception,
) -> None:
    stream = Full(error)
    monkeypatch.setattr(sys, "stdout", stream)
    show = ResilientDisplay(LineDisplay())
    show.message("one")
    show.message("two")
    show.close()
    assert stream.attempts == 1
    assert capsys.readouterr().err.startswith("warning: standard output cannot be written (")
