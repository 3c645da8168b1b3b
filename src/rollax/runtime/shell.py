"""Quoting of shell commands, and a flag for code that runs inside a command."""

import contextlib
import contextvars
import shlex
from collections.abc import Iterator

_is_command_running: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "is_command_running", default=False
)


def format_command_line(*arguments: object) -> str:
    """Join words into a command line for a POSIX shell, and quote them where necessary."""
    return shlex.join(map(str, arguments))


@contextlib.contextmanager
def running_command() -> Iterator[None]:
    """Mark the context as part of a command, so that messages recommend commands, not Python."""
    token = _is_command_running.set(True)
    try:
        yield
    finally:
        _is_command_running.reset(token)


def is_command_running() -> bool:
    """Return whether this code runs inside `running_command`, not in a user's Python program."""
    return _is_command_running.get()
