"""Handling of closed, unwritable or non-Unicode standard output and standard error."""

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from rollax.runtime.printing import print_line


class _OutputState:
    """State of standard output in this process."""

    error: OSError | None = None  # error raised by standard output
    is_discarded = False  # whether further writes to standard output are discarded
    was_closed = False  # whether standard output was closed when the process started


def open_closed_descriptors() -> None:
    """Open the null device in place of standard streams that were closed when the process started.

    Otherwise, the next opened file would get the file descriptor of standard output, and libraries
    would write their messages to this file.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
            _OutputState.was_closed |= descriptor == 1
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8")  # noqa: SIM115


def prepare_standard_streams() -> None:
    """Configure encoding and error handling of the standard streams of a command.

    Characters that the locale cannot encode are written as escapes, such as `\\xe9`. Write errors
    of standard output are stored, so that `is_output_error` can identify them.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    for name in ("write", "flush"):
        setattr(sys.stdout, name, _store_errors(getattr(sys.stdout, name)))


def _store_errors(write: Callable[..., object]) -> Callable[..., Any]:
    def store_error(*arguments: object) -> Any:
        try:
            return write(*arguments)
        except OSError as error:
            _OutputState.error = error
            raise

    return store_error


def escape_non_ascii(value: object) -> Any:
    """Return a string with non-ASCII characters as escapes, or any other value unchanged."""
    return value.encode("ascii", "backslashreplace").decode() if isinstance(value, str) else value


def find_output_error() -> OSError | None:
    """Return the write error of standard output, or None if all writes have succeeded."""
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError as error:
            return error
    return _OutputState.error


def is_output_error(error: Exception) -> bool:
    """Return whether `error` was raised by writing to standard output."""
    return error is _OutputState.error


def discard_output(error: Exception) -> None:
    """Warn once on standard error that standard output cannot be written.

    The caller discards further output.
    """
    if _OutputState.is_discarded:
        return
    _OutputState.is_discarded = True
    print_to_stderr(
        f"warning: standard output cannot be written ({_error_reason(error)}). The run continues "
        "without messages."
    )


def print_to_stderr(text: str) -> None:
    """Write a line to standard error if possible."""
    with contextlib.suppress(OSError, ValueError):
        print_line(text, sys.stderr, flush=True)


def _error_reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def finish_output(code: int, is_run_complete: bool) -> int:
    """Flush standard output, report write errors, and return the exit code of the command.

    Args:
        code: Exit code of the command without write errors.
        is_run_complete: Whether the command has written its result to a folder. Write errors then
            cause a warning and do not change the exit code.

    Returns:
        `code`, or 1 if `code` is 0, standard output cannot be written, and `is_run_complete` is
        False. A closed pipe, as in `| head`, does not change the exit code.
    """
    error = find_output_error()
    if _OutputState.was_closed:
        error = error or OSError(0, "it was closed when the command started")
    is_lost, _OutputState.is_discarded, _OutputState.was_closed, _OutputState.error = (
        _OutputState.is_discarded,
        False,
        False,
        None,
    )
    for stream in (sys.stdout, sys.stderr):
        _discard_unwritable(stream)
    if error is None or isinstance(error, BrokenPipeError) and not is_run_complete:
        return code
    if not is_lost:
        kind = "warning" if is_run_complete else "error"
        print_to_stderr(f"{kind}: standard output cannot be written ({_error_reason(error)})")
    return code if is_run_complete else code or 1


def _discard_unwritable(stream: TextIO) -> None:
    """Redirect an unwritable stream to the null device, so that Python exits without an error."""
    try:
        stream.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
            stream.flush()
