"""Options whose names the command line cannot know beforehand: `--env.NAME VALUE`, `--sweep.NAME VALUES` and the like."""

from typing import Any

from rollax.errors import UsageError


def take(arguments: list[str], prefix: str) -> tuple[list[str], dict[str, list[str]]]:
    """Splits off `--env.NAME VALUE` and the like, also written `--env.NAME=VALUE`; dashes in names are underscores."""
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
        values = [value] if equals else []
        while not equals and position < len(arguments) and not arguments[position].startswith("--"):
            values.append(arguments[position])
            position += 1
        if not values:
            raise UsageError(f"{word} needs a value")
        taken[name.replace("-", "_")] = values
    return rest, taken


def single(taken: dict[str, list[str]]) -> dict[str, Any]:
    """One value as itself, several as a list."""
    return {name: values[0] if len(values) == 1 else values for name, values in taken.items()}


def number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"--sweep.{name.replace('_', '-')} takes numbers, not {value!r}") from None
