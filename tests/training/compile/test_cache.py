"""Tests of the cache of compiled programs: reuse, and warnings instead of errors."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys
import jax, jax.numpy as jnp
from jax._src import monitoring
from rollax.training.compile import cache

seen = []
monitoring.register_event_listener(lambda name, **_: seen.append(name))
cache.enable()
value = jax.jit(lambda x: jnp.sin(x) @ x)(jnp.arange(9.0).reshape(3, 3))
if "crash" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
if "settle" in sys.argv:
    cache.confirm_start()
print(float(value.sum()), sum("cache_hits" in name for name in seen), \
jax.config.jax_compilation_cache_dir)
"""


def start(cache: Path | str, *words: str, **environment: str) -> tuple[int, str, int, str, str]:
    """Return the results of a process that compiles.

    Returns:
        Exit code, value, number of programs that were read, folder of the cache, and standard
        error.
    """
    given = {"ROLLAX_COMPILATION_CACHE": str(cache), "JAX_PLATFORMS": "cpu"} | environment
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env=kept | given,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode:
        return done.returncode, "", 0, "", done.stderr
    value, hits, folder = done.stdout.split()
    return 0, value, int(hits), folder, done.stderr


def folder_of(cache: Path) -> Path:
    (folder,) = cache.iterdir()
    return folder


def programs(cache: Path) -> set[str]:
    return {path.name for path in folder_of(cache).glob("*-cache")}


@pytest.mark.quick
def test_a_second_start_reads_the_programs_of_the_first(tmp_path: Path) -> None:
    _, value, hits, folder, said = start(tmp_path, "settle")
    written = programs(tmp_path)
    assert hits == 0 and written and not said and Path(folder).parent == tmp_path
    _, again, hits, _, said = start(tmp_path)
    assert again == value and hits == len(written) and programs(tmp_path) == written and not said
    assert not list(folder_of(tmp_path).glob("starting-*"))


def test_the_cache_can_be_disabled_or_replaced_by_the_user(tmp_path: Path) -> None:
    code, _, _, folder, said = start("off")
    assert (code, folder, said) == (0, "None", "")
    own = tmp_path / "own"
    assert start(tmp_path / "ours", JAX_COMPILATION_CACHE_DIR=str(own))[3] == str(own)
    assert start(tmp_path / "ours", JAX_ENABLE_COMPILATION_CACHE="0")[3] == "None"
    assert not (tmp_path / "ours").exists()


def test_damaged_programs_are_reported_and_removed(tmp_path: Path) -> None:
    _, value, *_ = start(tmp_path)
    for path in folder_of(tmp_path).glob("*-cache"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    code, again, hits, folder, said = start(tmp_path)
    assert (code, again, hits, folder) == (0, value, 0, "None")
    assert (
        said.count("warning:") == 1
        and "The compilation cache is disabled for this command and was emptied" in said
    )
    assert not programs(tmp_path)
    assert start(tmp_path)[4] == "" and programs(tmp_path)


def test_a_cache_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    code, _, _, folder, said = start(tmp_path / "file")
    assert (
        (code, folder) == (0, "None")
        and said.startswith("warning: The compilation cache is disabled, because ")
        and "Not a directory" in said
    )
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.name != "posix", reason="a process is asked for by a signal")
def test_the_cache_is_emptied_after_one_crash_and_disabled_after_two(tmp_path: Path) -> None:
    """After a successful start with the cache, the next crash counts as the first one."""
    start(tmp_path)
    assert start(tmp_path, "crash")[0] == -9
    assert len(list(folder_of(tmp_path).glob("starting-*"))) == 1
    _, _, hits, _, said = start(tmp_path)
    assert (
        hits == 0
        and "A command ended abruptly while it started" in said
        and said.count("warning:") == 1
    )
    assert start(tmp_path)[2] > 0  # a successful start
    start(tmp_path, "crash")
    start(tmp_path)  # empties it
    start(tmp_path, "crash")
    _, _, hits, folder, said = start(tmp_path)
    assert (hits, folder) == (0, "None")
    assert (
        "2 commands ended abruptly while starting with it. To enable it again, run: rm -r "
        f"{tmp_path}"
    ) in said
    assert start(tmp_path)[3] == "None"


@pytest.mark.skipif(os.name != "posix", reason="a process is asked for by a signal")
def test_markers_of_other_processes_are_not_removed(tmp_path: Path) -> None:
    """These are markers of a running process and of another machine, and unrelated files."""
    start(tmp_path)
    folder = folder_of(tmp_path)
    marks = [
        folder / f"starting-{socket.gethostname()}-{os.getpid()}",
        folder / "starting-elsewhere-1",
        folder / "notes",
    ]
    for path in marks:
        path.write_text("")
    _, _, hits, _, said = start(tmp_path)
    assert hits > 0 and not said and all(path.exists() for path in marks)
