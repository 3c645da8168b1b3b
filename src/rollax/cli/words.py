"""Words of the command line: by hand options whose names are not known beforehand (`--env.NAME VALUE`), the rest by tyro."""

import itertools
import json
import math
import sys
from typing import Any

import tyro

from rollax.errors import UsageError

HELP = ("-h", "--help", "--help-all")  # a command with one of these prints its help and does nothing else


def parse(kind: Any, arguments: list[str], program: str, description: str | None = None) -> Any:
    """The words as an instance of `kind`. What does not fit ends the program with exit code 2, as tyro says it.

    Raises UsageError for an option that is given twice.
    """
    given: set[str] = set()
    for word in arguments:
        if word.startswith("--"):
            name = word.partition("=")[0].replace("_", "-")
            option = name.replace("--no-", "--", 1).replace(".no-", ".", 1)
            if option in given:
                raise UsageError(f"{name} is given twice: leave one of them out")
            given.add(option)
    return tyro.cli(kind, args=arguments, prog=program, description=description)


def take(arguments: list[str], prefix: str) -> tuple[list[str], dict[str, list[str]]]:
    """Splits off `--env.NAME VALUE` and the like, also written `--env.NAME=VALUE`; dashes in names are underscores.

    Raises UsageError for one without a name or a value, or that is given twice.
    """
    rest: list[str] = []
    taken: dict[str, list[str]] = {}
    position = 0
    while position < len(arguments):
        word = arguments[position]
        position += 1
        if not word.startswith(prefix):
            rest.append(word)
            continue
        name, equals, value = word.removeprefix(prefix).partition("=")
        name = name.replace("-", "_")
        values = [value] if equals else []
        while not equals and position < len(arguments) and not arguments[position].startswith("--"):
            values.append(arguments[position])
            position += 1
        if not name:
            raise UsageError(f"{word} needs a name: {prefix}NAME VALUE")
        if not values:
            raise UsageError(f"{word} needs a value")
        if name in taken:
            raise UsageError(f"{word.partition('=')[0]} is given twice: leave one of them out")
        taken[name] = values
    return rest, taken


def take_value(arguments: list[str], option: str) -> tuple[list[str], str | None]:
    """Splits off an option and its value. Raises UsageError for one without a value, or that is given twice."""
    positions = [index for index, word in enumerate(arguments) if word == option or word.startswith(f"{option}=")]
    if not positions:
        return arguments, None
    if len(positions) > 1:
        raise UsageError(f"{option} is given twice: leave one of them out")
    (index,) = positions
    word, rest = arguments[index], arguments[:index] + arguments[index + 1 :]
    if "=" in word:
        return rest, word.partition("=")[2]
    if index == len(rest) or rest[index].startswith("--"):
        raise UsageError(f"{option} needs a value")
    return rest[:index] + rest[index + 1 :], rest[index]


def single(taken: dict[str, list[str]]) -> dict[str, Any]:
    """One value as itself, several as a list."""
    return {name: values[0] if len(values) == 1 else values for name, values in taken.items()}


def check_single(arguments: list[str], names: list[str]) -> None:
    """Raises UsageError where several numbers are given to `--config.NAME` of these names: what is meant is a sweep."""
    for position, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        after = itertools.takewhile(lambda each: not each.startswith("--"), arguments[position + 1 :])
        values, name = [value] * bool(equals) + list(after), option.removeprefix("--config.").replace("_", "-")
        if option.startswith("--config.") and name in names and len(values) > 1 and all(map(_is_number, values)):
            raise UsageError(
                f"{option} takes one number: to train with each of {len(values)}, --sweep.{name} {' '.join(values)}"
            )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"--sweep.{name.replace('_', '-')} takes numbers, not {value!r}") from None


def close(summary: dict[str, Any], wanted: bool) -> None:
    """Ends the output with one JSON object, where it is wanted or where no person reads."""
    if wanted or not sys.stdout.isatty():
        print(json.dumps({name: _json_value(value) for name, value in summary.items()}), flush=True)


def _json_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_value(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
