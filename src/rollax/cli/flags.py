"""Options as people type them: `--learning-rate` for `--config.learning-rate` where one thing has it, and 1e6 for a million."""

import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from types import UnionType
from typing import Any, Union, get_args, get_origin

from rollax.errors import UnknownNameError, UsageError, near
from rollax.typed import hints

SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
COUNT = re.compile(r"(\d[\d_,]*(?:\.\d+)?(?:e\+?\d{1,2})?)([kmgb]?)", re.IGNORECASE)
OTHERS = ("help", "help_all", "json")
TRUTHS = ("true", "false")


def whole_words(words: list[str], run: type, groups: Mapping[str, type], arguments: Callable[[], Collection[str]]) -> list[str]:
    """The words with every option in full.

    `run`: whose options have no prefix; `groups`: settings by prefix ("config."); `arguments()`: names of those of the
    environment ("env."), asked for only where an option is none of a run.

    Raises UsageError for a name that several of them have, UnknownNameError for one that none has.
    """
    return [_whole(word, run, groups, arguments) if _is_option(word) else word for word in words]


def _is_option(word: str) -> bool:
    """Whether it is an option without a prefix."""
    return word.startswith("--") and len(word) > 2 and "." not in word.partition("=")[0]


def _whole(word: str, run: type, groups: Mapping[str, type], arguments: Callable[[], Collection[str]]) -> str:
    option, equals, value = word[2:].partition("=")
    name = option.replace("-", "_")
    known = hints(run) | dict.fromkeys(OTHERS, bool)
    if name in known or _negated(name, known):
        return word
    places = [prefix for prefix, kind in groups.items() if name in hints(kind) or _negated(name, hints(kind))]
    others = set(arguments())
    places += ["env."] * (name in others)
    if not places:
        every = [*known, *(field for kind in groups.values() for field in hints(kind)), *others]
        options = sorted({f"--{_dashed(field)}" for field in every})
        if not near(f"--{option}", options):
            raise UsageError(f"unknown option --{option}: --help-all shows all of this pair")
        raise UnknownNameError("option", f"--{option}", options)
    if len(places) > 1:
        raise UsageError(f"--{option} may be {' or '.join(f'--{place}{option}' for place in places)}: write one of them")
    return f"--{places[0]}{_dashed(option)}{equals}{value}"


def _dashed(option: str) -> str:
    return option.replace("_", "-")


def _negated(name: str, kinds: Mapping[str, Any]) -> bool:
    """Whether it switches off something that is on or off."""
    return kinds.get(name.removeprefix("no_")) is bool and name.startswith("no_")


def counts(words: list[str], kinds: Mapping[str, type]) -> list[str]:
    """The words with whole numbers written out where an option takes whole numbers: 1e6, 100k, 2.5M. `kinds`: by prefix."""
    found, is_count = [], False
    for word in words:
        if not word.startswith("--"):
            found.append(written_out(word) if is_count else word)
            continue
        option, equals, value = word.partition("=")
        prefix, dot, last = option[2:].rpartition(".")
        kind = kinds.get(prefix + dot)
        is_count = kind is not None and _takes_whole_numbers(hints(kind).get(last.replace("-", "_")))
        found.append(f"{option}={written_out(value)}" if equals and is_count else word)
    return found


def switches(words: list[str], kinds: Mapping[str, type]) -> list[str]:
    """The words with `--shared true` as `--shared` and `--shared=false` as `--no-shared`. `kinds`: by prefix."""
    found, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        prefix, dot, last = option.removeprefix("--").rpartition(".")
        kind = kinds.get(prefix + dot) if option.startswith("--") else None
        if kind is None or hints(kind).get(last.replace("-", "_")) is not bool:
            found.append(word)
            continue
        if not equals and rest and rest[0] in TRUTHS:
            value = rest.pop(0)
        found.append({"true": option, "false": f"--{prefix}{dot}no-{last}"}.get(value, word))
    return found


def _takes_whole_numbers(hint: Any) -> bool:
    """Whether int is what it takes, also several or none of them."""
    inner = get_args(hint) if get_origin(hint) in (tuple, Union, UnionType) else ()
    return hint is int or any(_takes_whole_numbers(part) for part in inner)


def written_out(text: str) -> str:
    """1e6, 1_000_000, 1,000,000, 100k or 2.5M in digits; anything else, such as what is no whole number, as it is."""
    match = COUNT.fullmatch(text)
    if match is None or text.isdecimal():
        return text
    value = Decimal(re.sub("[_,]", "", match[1])) * SUFFIXES[match[2].lower()]
    return str(int(value)) if value == value.to_integral_value() else text
