"""Persistent compilation cache on disk, so that later processes start without recompilation.

JAX provides the cache (`jax_compilation_cache_dir`). This module enables it, in a separate folder
for each version of jaxlib and each processor, because programs for one processor may not run on
another.

A cache error never ends a run. If an entry cannot be read or written, the folder is emptied and the
cache is disabled for this process, with a warning. A cached program that crashes ends the process,
so a marker file exists while a process starts. If a process finds the marker of a process that no
longer runs, it empties the folder. After two such crashes without a successful start between them,
the cache stays disabled.
"""

import atexit
import contextlib
import hashlib
import os
import platform
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import jax
from jax.experimental.compilation_cache import compilation_cache as jax_cache
from jaxlib import version as jaxlib_version
from platformdirs import user_cache_path

from rollax.runtime import output
from rollax.runtime.shell import format_command_line

# "off", or a folder in place of the one in the user's cache.
CACHE_ENVIRONMENT_VARIABLE = "ROLLAX_COMPILATION_CACHE"
MAX_CACHE_BYTES = 1 << 30
MAX_CRASHES = 2
_OFF_VALUES = ("off", "0", "false", "no")


class _CacheState:
    """State of the cache in this process."""

    is_enabled = True
    marker: Path | None = None  # marker file, while this process starts
    has_cached_programs = False  # at the start of this process


def disable() -> None:
    """Disable the cache in this process."""
    _CacheState.is_enabled = False


def enable() -> None:
    """Enable the cache, unless the user or the settings of JAX disable it.

    If the cache cannot be enabled, print a warning with the reason.
    """
    chosen_folder = os.environ.get(CACHE_ENVIRONMENT_VARIABLE, "")
    settings: Any = jax.config
    is_set = settings.jax_compilation_cache_dir or not settings.jax_enable_compilation_cache
    if not _CacheState.is_enabled or chosen_folder.lower() in _OFF_VALUES or is_set:
        return
    folder = (
        Path(chosen_folder).expanduser()
        if chosen_folder
        else user_cache_path("rollax") / "programs"
    ) / _machine_tag()
    try:
        _enable_in_folder(folder)
    except OSError as error:
        disable()
        _warn(
            f"The compilation cache is disabled, because {error.filename or folder} cannot be "
            f"used: {error.strerror or error}"
        )


@contextlib.contextmanager
def enable_for_checks() -> Iterator[None]:
    """Return a context manager that enables the cache for checks before a run.

    If a check raises an exception, the start of the process is marked as successful, because the
    process may continue.
    """
    enable()
    try:
        yield
    except BaseException:
        confirm_start()
        raise


def confirm_start() -> None:
    """Mark the start of this process as successful. Call this after compiled programs have run."""
    marker, _CacheState.marker = _CacheState.marker, None
    if marker is None:
        return
    with contextlib.suppress(OSError):
        marker.unlink(missing_ok=True)
        if _CacheState.has_cached_programs:
            _crash_file(marker.parent).unlink(missing_ok=True)


def _enable_in_folder(folder: Path) -> None:
    """Enable the cache in a folder, unless `MAX_CRASHES` starts with this folder have crashed."""
    folder.mkdir(parents=True, exist_ok=True)
    marker_prefix = f"starting-{socket.gethostname()}-"  # several machines may share the folder
    crashed_markers = [
        marker
        for marker in folder.glob(f"{marker_prefix}*")
        if not _is_running(marker.name.removeprefix(marker_prefix))
    ]
    if crashed_markers:
        crashes = _read_num_crashes(folder) + 1
        _clear_folder(folder)
        _crash_file(folder).write_text(f"{crashes}\n")
        if crashes < MAX_CRASHES:
            _warn(
                "A command ended abruptly while it started, perhaps because of a program from the "
                "compilation cache. The cache was emptied."
            )
    if _read_num_crashes(folder) >= MAX_CRASHES:
        disable()
        _warn(
            f"The compilation cache is disabled, because {MAX_CRASHES} commands ended abruptly "
            "while starting with it. To enable it again, run: "
            f"{format_command_line('rm', '-r', folder)}"
        )
        return
    _CacheState.has_cached_programs = any(folder.glob("*-cache"))
    _CacheState.marker = folder / f"{marker_prefix}{os.getpid()}"
    _CacheState.marker.touch()
    atexit.register(confirm_start)
    settings: dict[str, Any] = {
        "jax_compilation_cache_dir": str(folder),
        "jax_compilation_cache_max_size": MAX_CACHE_BYTES,
        # Even small programs take longer to compile than to read.
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()  # JAX may already have cached that there is no cache
    _disable_on_warning(folder)


def _disable_on_warning(folder: Path) -> None:
    """Disable the cache when JAX warns that an entry cannot be read or written."""
    old_showwarning = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        line: int,
        file: TextIO | None = None,
        text: str | None = None,
    ) -> None:
        if "persistent compilation cache" not in str(message):
            return old_showwarning(message, category, filename, line, file, text)
        if _CacheState.is_enabled:
            disable()
            jax.config.update("jax_compilation_cache_dir", None)
            jax_cache.reset_cache()
            with contextlib.suppress(OSError):
                _clear_folder(folder)
            _warn(
                "The compilation cache is disabled for this command and was emptied: "
                f"{str(message).partition(': ')[2] or message}"
            )

    warnings.showwarning = show


def _machine_tag() -> str:
    """Return a folder name that identifies the jaxlib version and the processor model."""
    described = platform.processor() + platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0].splitlines()
        described += "".join(
            line
            for line in lines
            if line.startswith(("model name", "flags", "Features", "CPU part"))
        )
    return (
        f"jaxlib-{jaxlib_version.__version__}-{hashlib.sha256(described.encode()).hexdigest()[:12]}"
    )


def _clear_folder(folder: Path) -> None:
    """Remove the cached programs, and all start markers except this process's."""
    for path in folder.iterdir():
        is_cache_file = path.name.endswith(("-cache", "-atime")) or path.name.startswith(
            "starting-"
        )
        if is_cache_file and path.is_file() and path != _CacheState.marker:
            path.unlink(missing_ok=True)


def _crash_file(folder: Path) -> Path:
    return folder / "crashes"


def _read_num_crashes(folder: Path) -> int:
    """Return the number of crashes since the last successful start."""
    try:
        return int(_crash_file(folder).read_text())
    except (OSError, ValueError):
        return 0


def _is_running(process_id: str) -> bool:
    """Return whether a process with this id exists, including processes of other users.

    On platforms where the check could affect the process, the result is always True.
    """
    if os.name != "posix":
        return True
    try:
        os.kill(int(process_id), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _warn(text: str) -> None:
    output.print_to_stderr(f"warning: {text}")
