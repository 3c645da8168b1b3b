"""Formatting of commands for a shell."""

import shlex


def format_command_line(*arguments: object) -> str:
    """Join words into a command line for a POSIX shell, and quote them where necessary."""
    return shlex.join(map(str, arguments))
