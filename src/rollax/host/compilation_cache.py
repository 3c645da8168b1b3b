"""Compiled programs kept on disk, so that a second start does not compile them again.

JAX has such a cache (`jax_compilation_cache_dir`); here it is switched on, in a folder of its own for every version of
jaxlib and every processor, as programs for one processor may not run on another. It never ends a run: what cannot be read
or written empties the folder and leaves the cache off for this process, with a word. A program that is read and then
crashes takes the process with it, so a mark on disk stands while a process starts: who finds that of a process that has
ended empties the folder, and who finds that this happened twice, without a good start between them, leaves the cache off.
"""

import atexit
import contextlib
import hashlib
import os
import platform
import socket
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache as jax_cache
from jaxlib import version as jaxlib_version
from platformdirs import user_cache_path

VARIABLE = "ROLLAX_COMPILATION_CACHE"  # "off", or a folder in place of that in the user's cache
MOST_BYTES = 1 << 30
MOST_CRASHES = 2
_OFF = ("off", "0", "false", "no")


class _State:
    """What this process does with the cache."""

    wanted = True
    mark: Path | None = None  # while this process starts
    had_programs = False  # when it started


def off() -> None:
    """Without a cache in this process."""
    _State.wanted = False


def use() -> None:
    """Switches the cache on, unless it is not wanted or JAX's own settings say otherwise. Where it cannot it says why."""
    given = os.environ.get(VARIABLE, "")
    settings: Any = jax.config
    is_set = settings.jax_compilation_cache_dir or not settings.jax_enable_compilation_cache
    if not _State.wanted or given.lower() in _OFF or is_set:
        return
    folder = (Path(given).expanduser() if given else user_cache_path("rollax") / "programs") / _machine()
    try:
        _begin(folder)
    except OSError as error:
        off()
        _say(f"no compilation cache, as {error.filename or folder} cannot be used: {error.strerror or error}")


@contextlib.contextmanager
def used() -> Iterator[None]:
    """As `use`, for checks before a run begins: a process that goes on after one has failed does not count as starting."""
    use()
    try:
        yield
    except BaseException:
        settled()
        raise


def settled() -> None:
    """Programs have run, so that this start is a good one."""
    mark, _State.mark = _State.mark, None
    if mark is None:
        return
    with contextlib.suppress(OSError):
        mark.unlink(missing_ok=True)
        if _State.had_programs:
            _crashes(mark.parent).unlink(missing_ok=True)


def _begin(folder: Path) -> None:
    """The cache in this folder, if starts with it have not crashed."""
    folder.mkdir(parents=True, exist_ok=True)
    mine = f"starting-{socket.gethostname()}-"  # other machines may share the folder
    ended = [mark for mark in folder.glob(f"{mine}*") if not _is_running(mark.name.removeprefix(mine))]
    if ended:
        crashes = _number(folder) + 1
        _empty(folder)
        _crashes(folder).write_text(f"{crashes}\n")
        if crashes < MOST_CRASHES:
            _say("a command ended abruptly while it started, perhaps by a program of the compilation cache, which was emptied")
    if _number(folder) >= MOST_CRASHES:
        off()
        _say(
            f"no compilation cache: {MOST_CRASHES} commands ended abruptly while starting with it; to try again, rm -r {folder}"
        )
        return
    _State.had_programs = any(folder.glob("*-cache"))
    _State.mark = folder / f"{mine}{os.getpid()}"
    _State.mark.touch()
    atexit.register(settled)
    settings: dict[str, Any] = {
        "jax_compilation_cache_dir": str(folder),
        "jax_compilation_cache_max_size": MOST_BYTES,
        "jax_persistent_cache_min_compile_time_secs": 0.0,  # a small program takes longer to compile than to read, too
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()  # it may have been found to be off already
    _watch(folder)


def _watch(folder: Path) -> None:
    """Switches the cache off when JAX warns that an entry cannot be read or written."""
    before = warnings.showwarning

    def show(message: Any, category: Any, filename: str, line: int, file: Any = None, text: str | None = None) -> None:
        if "persistent compilation cache" not in str(message):
            return before(message, category, filename, line, file, text)
        if _State.wanted:
            off()
            jax.config.update("jax_compilation_cache_dir", None)
            jax_cache.reset_cache()
            with contextlib.suppress(OSError):
                _empty(folder)
            _say(
                f"the compilation cache is off for this command, and was emptied: {str(message).partition(': ')[2] or message}"
            )

    warnings.showwarning = show


def _machine() -> str:
    """A name for what programs are compiled for: the version of jaxlib and the processor with what it can do."""
    described = platform.processor() + platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0].splitlines()
        described += "".join(line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part")))
    return f"jaxlib-{jaxlib_version.__version__}-{hashlib.sha256(described.encode()).hexdigest()[:12]}"


def _empty(folder: Path) -> None:
    """Removes the programs and the marks of processes that have ended."""
    for path in folder.iterdir():
        is_ours = path.name.endswith(("-cache", "-atime")) or path.name.startswith("starting-")
        if is_ours and path.is_file() and path != _State.mark:
            path.unlink(missing_ok=True)


def _crashes(folder: Path) -> Path:
    return folder / "crashes"


def _number(folder: Path) -> int:
    """Crashes without a good start since."""
    try:
        return int(_crashes(folder).read_text())
    except (OSError, ValueError):
        return 0


def _is_running(process: str) -> bool:
    """Whether there is a process of this number, another user's included; yes where one cannot ask without harm."""
    if os.name != "posix":
        return True
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _say(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)
