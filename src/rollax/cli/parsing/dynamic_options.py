"""Parsing of command-line arguments with tyro, and without tyro for names such as `--env.NAME`."""

import itertools
import re
from typing import Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from rollax.cli.parsing.flags import expand_count
from rollax.errors import UsageError
from rollax.types import TypeHint
from rollax.user_input.coercion import format_value

# A command with one of these flags prints its help and does nothing else.
HELP_FLAGS = ("-h", "--help", "--help-all")
MAX_STEP_DIGITS = 18
NUMBER_LIST_PATTERN = re.compile(r"[-+.\deE]+(,[-+.\deE]+)+")  # numbers separated by commas

OPTION_TYPES = ConstructorRegistry()


@OPTION_TYPES.primitive_rule
def _count_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    """Return a tyro rule that parses integers such as 1e6 and 100k."""
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: int(expand_count(words[0])),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    )


def parse_options(kind: TypeHint, arguments: list[str], program: str) -> Any:
    """Parse command-line arguments into an instance of `kind` with tyro.

    Args:
        kind: Class of the options.
        arguments: Command-line arguments.
        program: Program name in the help.

    Returns:
        The instance.

    Raises:
        UsageError: If an option is given twice.
        SystemExit: If tyro prints help, or rejects an argument (exit code 2).
    """
    check_given_once(arguments)
    return tyro.cli(kind, args=arguments, prog=program, registry=OPTION_TYPES)


def parse_known_options(
    kind: TypeHint, arguments: list[str], program: str
) -> tuple[Any, list[str]]:
    """Parse the arguments that are options of `kind`, and return all other arguments unparsed.

    Args:
        kind: Class of the options.
        arguments: Command-line arguments.
        program: Program name in error messages.

    Returns:
        The instance of `kind`, and the remaining arguments.

    Raises:
        UsageError: If an option is given twice.
        SystemExit: If tyro rejects the value of an option (exit code 2).
    """
    check_given_once(arguments)
    return tyro.cli(
        kind, args=arguments, prog=program, registry=OPTION_TYPES, return_unknown_args=True
    )


def check_given_once(arguments: list[str]) -> None:
    """Raise UsageError if an option occurs twice, in any spelling or in its negated form."""
    given: set[str] = set()
    for word in arguments:
        if word.startswith("--"):
            name = word.partition("=")[0].replace("_", "-")
            option = name.replace("--no-", "--", 1).replace(".no-", ".", 1)
            if option in given:
                raise UsageError(f"{name} is given twice. Remove one of them.")
            given.add(option)


def take_prefixed_options(
    arguments: list[str], prefix: str
) -> tuple[list[str], dict[str, list[str]]]:
    """Split off options such as `--env.NAME VALUE` or `--env.NAME=VALUE`.

    Args:
        arguments: Command-line arguments.
        prefix: Prefix of the options, for example `--env.`.

    Returns:
        The remaining arguments, and the values of each option, keyed by NAME. Dashes in names
        become underscores.

    Raises:
        UsageError: If an option has no name or no value, or is given twice.
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
            raise UsageError(f"{word} needs a name. Write {prefix}NAME VALUE.")
        if not values:
            raise UsageError(f"{word} needs a value.")
        if name in taken:
            raise UsageError(f"{word.partition('=')[0]} is given twice. Remove one of them.")
        taken[name] = values
    return rest, taken


def take_option_values(
    arguments: list[str], option: str, needs: str = "a value"
) -> tuple[list[str], list[str]]:
    """Split off every occurrence of an option with its value.

    Args:
        arguments: Command-line arguments.
        option: Name of the option with dashes.
        needs: Noun phrase for the error message, such as "a value".

    Returns:
        The remaining arguments, and the values in the order of the command line.

    Raises:
        UsageError: If an occurrence has no value.
    """
    rest: list[str] = []
    values: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name != option:
            rest.append(word)
            continue
        if not equals and (not words or words[0].startswith("--")):
            raise UsageError(f"{option} needs {needs}.")
        values.append(value if equals else words.pop(0))
    return rest, values


def take_option_value(arguments: list[str], option: str) -> tuple[list[str], str | None]:
    """Split off an option and its value.

    Args:
        arguments: Command-line arguments.
        option: Name of the option with dashes.

    Returns:
        The remaining arguments, and the value of the option or None.

    Raises:
        UsageError: If the option has no value or is given twice.
    """
    rest, values = take_option_values(arguments, option)
    if len(values) > 1:
        raise UsageError(f"{option} is given twice. Remove one of them.")
    return rest, values[0] if values else None


def unwrap_single_values(taken: dict[str, list[str]]) -> dict[str, Any]:
    """Replace each list that contains one value by that value."""
    return {name: values[0] if len(values) == 1 else values for name, values in taken.items()}


def check_single_values(arguments: list[str], names: list[str]) -> None:
    """Check that each option `--config.NAME` with a name in `names` has at most one number.

    Raises:
        UsageError: If an option has several numbers. The message suggests `--sweep.NAME`.
    """
    for position, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        after = itertools.takewhile(
            lambda each: not each.startswith("--"), arguments[position + 1 :]
        )
        values, name = (
            [value] * bool(equals) + list(after),
            option.removeprefix("--config.").replace("_", "-"),
        )
        if (
            option.startswith("--config.")
            and name in names
            and len(values) > 1
            and all(map(_is_number, values))
        ):
            raise UsageError(
                f"{option} takes one number, got {len(values)}. To train with each of them, "
                f"use --sweep.{name} {' '.join(values)}."
            )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def parse_number(option: str, value: str) -> float:
    """Convert a value of an option such as `--sweep.NAME` to a float.

    Raises:
        UsageError: If the value is not a number.
    """
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"{option.replace('_', '-')} must be numbers, got {value!r}.") from None


def check_seed(seed: int) -> None:
    """Raise UsageError if the seed for evaluation episodes is out of range for a random key."""
    if not 0 <= seed < 2**32:
        raise UsageError(f"seed must be at least 0 and less than 2^32, got {format_value(seed)}.")


def check_checkpoint_name(checkpoint: str) -> None:
    """Raise UsageError if the checkpoint is a number with more digits than a valid step."""
    if checkpoint.isdecimal() and len(checkpoint) > MAX_STEP_DIGITS:
        raise UsageError(
            f"checkpoint must be last, best or a step, got {format_value(checkpoint)}."
        )


def split_number_lists(arguments: list[str]) -> list[str]:
    """Split comma-separated values of `--cell` and `--descriptor`, for example `--cell 3,4`."""
    option, apart = "", list[str]()
    for word in arguments:
        option = word if word.startswith("--") else option
        is_list = option in ("--cell", "--descriptor") and NUMBER_LIST_PATTERN.fullmatch(word)
        apart += word.split(",") if is_list else [word]
    return apart
