"""Short forms of command-line options: names without a prefix, and counts such as 1e6.

For example, `--learning-rate` means `--config.learning-rate` if no other group has that name.
"""

import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal

from rollax.errors import UsageError, find_similar_names
from rollax.synonyms.lookup import UnknownSettingError, find_synonym
from rollax.types import TypeHint
from rollax.user_input.coercion import field_types

COUNT_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
COUNT_PATTERN = re.compile(r"(\d[\d_,]*(?:\.\d+)?(?:e\+?\d{1,2})?)([kmgb]?)", re.IGNORECASE)
GENERAL_OPTIONS = ("help", "help_all", "json")
BOOLEAN_WORDS = ("true", "false")
SWITCH_TYPES = (bool, bool | None)


def expand_option_names(
    words: list[str],
    run_options: type,
    groups: Mapping[str, type],
    arguments: Callable[[], Collection[str]],
) -> list[str]:
    """Return the command-line arguments with the full name of every option.

    Args:
        words: Command-line arguments.
        run_options: Options class whose fields never have a prefix.
        groups: Settings classes, keyed by prefix, for example `config.`.
        arguments: Function that returns the argument names of the environment (prefix `env.`).
            It is called only if an option is not a run option.

    Returns:
        The arguments.

    Raises:
        UsageError: If several groups have an option of the same name, or if an option is unknown
            and no option has a similar name.
        UnknownSettingError: If an option is unknown and options with similar names exist, or if
            it is the name of a setting in another library.
    """
    for word in words:
        _check_no_synonym(word, groups)
    return [
        _expand_option_name(word, run_options, groups, arguments)
        if _is_unprefixed_option(word)
        else word
        for word in words
    ]


def _check_no_synonym(word: str, groups: Mapping[str, type]) -> None:
    """Raise UnknownSettingError if the name after a prefix is known only from another library."""
    option = word.partition("=")[0]
    for prefix, kind in groups.items():
        name = option.removeprefix(f"--{prefix}").replace("-", "_")
        is_unknown = option.startswith(f"--{prefix}") and name not in field_types(kind)
        if is_unknown and find_synonym(name, field_types(kind)) is not None:
            options = [f"--{prefix}{_to_dashes(field)}" for field in field_types(kind)]
            raise UnknownSettingError("option", option, options)


def _is_unprefixed_option(word: str) -> bool:
    """Return whether a word is an option without a group prefix such as `config.`."""
    return word.startswith("--") and len(word) > 2 and "." not in word.partition("=")[0]


def _expand_option_name(
    word: str,
    run_options: type,
    groups: Mapping[str, type],
    arguments: Callable[[], Collection[str]],
) -> str:
    """Return an option with its prefix, or unchanged if it is a run option."""
    option, equals, value = word[2:].partition("=")
    name = option.replace("-", "_")
    known = field_types(run_options) | dict.fromkeys(GENERAL_OPTIONS, bool)
    if name in known or _is_negated_switch(name, known):
        return word
    places = [
        prefix
        for prefix, kind in groups.items()
        if name in field_types(kind) or _is_negated_switch(name, field_types(kind))
    ]
    others = set(arguments())
    places += ["env."] * (name in others)
    if not places:
        every = [
            *known,
            *(field for kind in groups.values() for field in field_types(kind)),
            *others,
        ]
        options = sorted({f"--{_to_dashes(field)}" for field in every})
        is_known_elsewhere = find_synonym(option, options) is not None
        if not is_known_elsewhere and not find_similar_names(f"--{option}", options):
            raise UsageError(
                f"unknown option --{option}. Add --help-all to list all options of this pair."
            )
        raise UnknownSettingError("option", f"--{option}", options)
    if len(places) > 1:
        raise UsageError(
            f"--{option} is ambiguous. "
            f"Write {' or '.join(f'--{place}{option}' for place in places)}."
        )
    return f"--{places[0]}{_to_dashes(option)}{equals}{value}"


def _to_dashes(option: str) -> str:
    return option.replace("_", "-")


def _is_negated_switch(name: str, kinds: Mapping[str, TypeHint]) -> bool:
    """Return whether `name` is `no_` followed by the name of a Boolean option in `kinds`."""
    return name.startswith("no_") and kinds.get(name.removeprefix("no_")) in SWITCH_TYPES


def normalize_switches(words: list[str], kinds: Mapping[str, type]) -> list[str]:
    """Convert Boolean options to the syntax that tyro expects.

    For example, `--shared true` becomes `--shared`, and `--shared=false` becomes `--no-shared`. For
    an option that can also be None (`bool | None`), the results are `--shared True` and
    `--shared False`.

    Args:
        words: Command-line arguments.
        kinds: Settings classes, keyed by prefix.

    Returns:
        The arguments.
    """
    found, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        prefix, dot, last = option.removeprefix("--").rpartition(".")
        kind = kinds.get(prefix + dot) if option.startswith("--") else None
        known = {} if kind is None else field_types(kind)
        if _is_negated_switch(last.replace("-", "_"), known) and not equals:
            last, option, equals, value = last[3:], f"--{prefix}{dot}{last[3:]}", "=", "false"
        hint = known.get(last.replace("-", "_"))
        if hint not in SWITCH_TYPES:
            found.append(word)
            continue
        if not equals and rest and rest[0] in BOOLEAN_WORDS:
            value = rest.pop(0)
        if hint is not bool:
            found += [option, {"": "True", "true": "True", "false": "False"}.get(value, value)]
            continue
        found.append({"true": option, "false": f"--{prefix}{dot}no-{last}"}.get(value, word))
    return found


def expand_count(text: str) -> str:
    """Convert a count such as 1e6, 1_000_000, 1,000,000, 100k or 2.5M to digits.

    Any other text is returned unchanged.
    """
    match = COUNT_PATTERN.fullmatch(text)
    if match is None or text.isdecimal():
        return text
    value = Decimal(re.sub("[_,]", "", match[1])) * COUNT_SUFFIXES[match[2].lower()]
    return str(int(value)) if value == value.to_integral_value() else text
