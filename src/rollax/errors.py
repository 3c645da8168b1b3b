"""Errors that users can correct. Each message contains the value, the reason and a remedy."""

import contextlib
import difflib
import os
import re
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

MAX_NAME_CHARACTERS = 100  # length of a name in an error message
TRACEBACK_VARIABLE = "ROLLAX_TRACEBACK"  # environment variable that enables tracebacks
_NO_MESSAGE = "no message"
# A command up to the end of its line or its closing backtick, or an option of a command.
_COMMAND_OR_OPTION = re.compile(
    r"\b(?:rollax|pip|python\d*|ray) [a-z][^\n`]*"
    r"|(?<![\w-])--(?P<option>[a-z][a-z0-9-]*)(?:\.(?P<key>[A-Za-z][\w-]*))?"
)
# Keywords of the Python functions that differ from the names of the options.
_KEYWORDS_BY_OPTION = {"env": "arguments", "eval-env": "eval_arguments", "import": "imports"}


class UsageError(ValueError):
    """Error that a user can correct.

    The command line prints only the message and exits with code 2. IPython and notebooks print only
    the message, too, with options as Python keywords. The environment variable `ROLLAX_TRACEBACK=1`
    makes them print the traceback.
    """

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython prints in place of the traceback."""
        if os.environ.get(TRACEBACK_VARIABLE):
            return "".join(traceback.format_exception(self)).splitlines()
        return [f"{type(self).__name__}: {options_to_keywords(error_message(self))}"]


class UnknownNameError(UsageError):
    """Error for an unknown name. The message suggests similar names.

    Without similar names, the message lists up to 30 valid names.

    Args:
        kind: Category of the name, such as "environment".
        name: The unknown name.
        names: All known names.
        more: Text that is appended to the message.
        remedy: Suggestion that replaces the one from `names`, or None.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        names: Iterable[str],
        more: str = "",
        remedy: str | None = None,
    ) -> None:
        if len(name) > MAX_NAME_CHARACTERS:
            name = f"{name[:MAX_NAME_CHARACTERS]}..."
        remedy = _suggest_name(name, list(names)) if remedy is None else remedy
        ValueError.__init__(self, f"unknown {kind} {name!r}: {remedy}{more}")


def _suggest_name(name: str, known: list[str]) -> str:
    """Return a sentence with the known names that are similar to `name`, or with all names."""
    close = find_similar_names(name, known)
    if close:
        return f"did you mean {' or '.join(close)}?"
    if known:
        return f"known are: {', '.join(known[:30])}{' ...' if len(known) > 30 else ''}."
    return "there is none."


@contextlib.contextmanager
def add_path_to_errors(path: Path) -> Iterator[None]:
    """Add a path to an `OSError` raised in the block, such as the error for a full disk.

    The message also states that a run resumes from its last checkpoint.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(
            error.errno, f"{error.strerror} (a run resumes from its last checkpoint)", str(path)
        ) from error


def error_message(error: BaseException) -> str:
    """Return the message of an error, or a replacement if its `__str__` fails."""
    try:
        return str(error).strip() or _NO_MESSAGE
    except Exception:  # `__str__` may be defined by the user
        return "the message cannot be shown"


def describe_error(error: BaseException) -> str:
    """Return the type and the message of an error, or only the type if the message is empty.

    A period at the end is removed, because the text becomes a part of a sentence.
    """
    text = error_message(error)
    if text == _NO_MESSAGE:
        return type(error).__name__
    return f"{type(error).__name__}: {text if text.endswith('..') else text.removesuffix('.')}"


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


def find_similar_names(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Return the names that are most similar to `name`, best first.

    Case is ignored. The text after the last `/` is also compared separately, so a name matches
    without its prefix. Equally similar names keep their order. Names with a similarity below 0.6
    are omitted.

    Args:
        name: Name to compare with.
        names: Candidates.
        count: Maximum number of names to return.

    Returns:
        At most `count` names.
    """

    def likeness(candidate: str) -> float:
        whole = difflib.SequenceMatcher(None, name.lower(), candidate.lower()).ratio()
        last = difflib.SequenceMatcher(
            None, _last_component(name), _last_component(candidate)
        ).ratio()
        inside = (
            0.8
            if len(_last_component(name)) >= 3
            and _last_component(name) in _last_component(candidate)
            else 0.0
        )
        return max(whole, last, inside)

    scored = sorted(
        ((likeness(candidate), candidate) for candidate in names), key=lambda pair: -pair[0]
    )
    return [candidate for score, candidate in scored[:count] if score >= 0.6]


def suggest_divisors(number: int, wanted: int) -> str:
    """Return the two divisors of `number` nearest to `wanted` as text, such as "4 or 8"."""
    divisors = sorted(
        (d for d in range(1, number + 1) if number % d == 0), key=lambda d: abs(d - wanted)
    )
    return " or ".join(str(d) for d in sorted(divisors[:2]))


def suggest_multiples(number: int, divisor: int) -> str:
    """Return the multiples of `divisor` around `number` as text, such as "8 or 16"."""
    below = number // divisor * divisor
    return " or ".join(str(n) for n in (below, below + divisor) if n > 0)


def _last_component(name: str) -> str:
    return name.lower().rsplit("/", 1)[-1]
