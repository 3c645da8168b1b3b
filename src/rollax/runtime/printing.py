"""Printing of untrusted text, such as names of folders and values in config.yaml.

Control characters could move the cursor, hide lines or reorder words. They are therefore printed as
escapes. Passwords in database addresses are masked.
"""

import re
import sys
from typing import TextIO

from rollax.errors import options_to_keywords
from rollax.runtime.shell import is_command_running

# C0 except newline and tab, DEL, C1, bidirectional marks, separators, and surrogates.
_CONTROL_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# A quote ends an address unless it is part of a password. The limit keeps the search linear.
_ADDRESS_PATTERN = re.compile(r"\b[a-zA-Z][\w+.-]*://(?:\S{0,500}@)?[^\s'\"]+")
_SECRET_PATTERN = re.compile(
    r"([?&;][^=&;\s]*(?:pass|pwd|secret|token|key|credential)[^=&;\s]*=)[^&;\s]*", re.IGNORECASE
)
MASK = "***"


def escape_control_characters(text: str) -> str:
    """Return the text with control characters as escapes (`\\u001b`), except newlines and tabs."""
    return text if text.isprintable() else _CONTROL_CHARACTERS.sub(_escape_match, text)


def escape_to_one_line(text: str) -> str:
    """Return the text as one line, with control characters, newlines and tabs as escapes."""
    return (
        text
        if text.isprintable()
        else escape_control_characters(text).replace("\n", "\\n").replace("\t", "\\t")
    )


def _escape_match(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"  # escapes of JSON, so that a line of JSON stays valid


def mask_address(address: str) -> str:
    """Return a database address with its password and query masked.

    >>> mask_address("postgresql://me:p@ss@host/db?password=secret")
    'postgresql://me:***@host/db?***'
    """
    scheme, colon, remainder = address.partition("://")
    if not colon:
        return (
            f"{address.partition(':/')[0]}:{MASK}"
            if ":/" in address and "@" in address
            else address
        )
    user, separator, host = (
        ("", "", remainder) if scheme.startswith("sqlite") else remainder.rpartition("@")
    )
    if set("/?#") & set(user):  # the end of the password is ambiguous
        return f"{scheme}://{MASK}"
    name, has_password, _ = user.partition(":")
    path, has_query, _ = host.partition("?")
    return (
        f"{scheme}://{name}{f':{MASK}' if has_password else ''}{separator}{path}"
        f"{f'?{MASK}' if has_query else ''}"
    )


def mask_secrets(text: str) -> str:
    """Return `text` with the passwords and secrets in URLs masked."""

    def mask(match: re.Match[str]) -> str:
        is_page = match[0].lower().startswith(("http://", "https://")) and "@" not in match[0]
        return _SECRET_PATTERN.sub(rf"\g<1>{MASK}", match[0]) if is_page else mask_address(match[0])

    return _ADDRESS_PATTERN.sub(mask, text) if "://" in text else text


def print_line(text: object, file: TextIO | None = None, flush: bool = False) -> None:
    """Print a line with escaped control characters and masked passwords.

    Args:
        text: Text of the line.
        file: Stream to print to. None prints to standard output.
        flush: Whether to flush the stream.
    """
    print(
        mask_secrets(escape_control_characters(str(text))),
        file=sys.stdout if file is None else file,
        flush=flush,
    )


def print_note(note: str) -> None:
    """Print text to standard error."""
    print_line(note, sys.stderr)


def print_warning(warning: str) -> None:
    """Print a warning to standard error. Outside commands, options become Python keywords."""
    print_note(f"warning: {warning if is_command_running() else options_to_keywords(warning)}")
