"""Shell commands in messages, and a flag for code that runs inside a command."""

import contextlib
import contextvars
import re
import shlex
from collections.abc import Iterator

_is_command_running: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "is_command_running", default=False
)

# A command up to the end of its line or its closing backtick, or an option of a command.
_COMMAND_OR_OPTION = re.compile(
    r"\b(?:rollax|pip|python\d*|ray) [a-z][^\n`]*"
    r"|(?<![\w-])--(?P<option>[a-z][a-z0-9-]*)(?:\.(?P<key>[A-Za-z][\w-]*))?"
)
# Keywords of the Python functions that differ from the names of the options.
_KEYWORDS_BY_OPTION = {"env": "arguments", "eval-env": "eval_arguments", "import": "imports"}


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


def options_to_keywords(text: str) -> str:
    """Replace command-line options in a message with keywords of the Python functions.

    Complete commands stay unchanged.

    >>> options_to_keywords("Raise --env-timeout, or use --env.frame-skip 2.")
    "Raise env_timeout, or use arguments['frame_skip'] 2."
    """

    def replace(match: re.Match[str]) -> str:
        option, key = match["option"], match["key"]
        if option is None:
            return match[0]
        keyword = _KEYWORDS_BY_OPTION.get(option, option.replace("-", "_"))
        return keyword if key is None else f"{keyword}[{key.replace('-', '_')!r}]"

    return _COMMAND_OR_OPTION.sub(replace, text)
