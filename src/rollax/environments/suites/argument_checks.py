"""Checks of arguments and errors of constructors that the adapters of several suites share."""

from collections.abc import Mapping, Sequence

from rollax.errors import UsageError
from rollax.types import Setting


def check_choices(
    id: str, values: Mapping[str, Setting], choices: Mapping[str, Sequence[str]]
) -> None:
    """Check the arguments that are restricted to certain strings.

    Args:
        id: Id of the environment, for error messages.
        values: Values, keyed by argument name. Values of None are not checked.
        choices: Accepted values of each restricted argument, keyed by argument name.

    Raises:
        UsageError: If a value is not accepted.
    """
    for name, accepted in choices.items():
        if values.get(name) is not None and values[name] not in accepted:
            raise UsageError(
                f"{id}: {name} ({values[name]!r}) must be one of {', '.join(accepted)}."
            )


def creation_error(
    suite: str, name: str, arguments: Mapping[str, Setting], error: Exception
) -> UsageError:
    """Return the error for an environment whose constructor fails.

    Args:
        suite: Name of the suite in the message.
        name: Name of the environment in the suite.
        arguments: Arguments of the constructor, keyed by name.
        error: Exception that the constructor raised.
    """
    shown_values = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return UsageError(
        f"{suite} cannot create {name} with {shown_values}: {error or 'it gives no reason'}."
    )
