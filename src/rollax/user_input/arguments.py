"""Conversion of the arguments of public functions."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from rollax.synonyms.lookup import UnknownSettingError
from rollax.types import TypeHint
from rollax.user_input.coercion import coerce

P = ParamSpec("P")
R = TypeVar("R")


def coerce_arguments(**wanted: TypeHint) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that converts arguments of a function to the given types.

    The decorated function raises a `UsageError` for an argument that cannot be converted and for an
    unknown keyword, and a `TypeError` for a missing argument. Each message is one line that
    contains the name of the argument.

    Args:
        **wanted: Type of each argument to convert. The keyword is the name of the argument.

    Returns:
        The decorator.
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*arguments: P.args, **keywords: P.kwargs) -> R:
            given = _bind_arguments(function.__qualname__, signature, arguments, keywords)
            for name in [name for name in given.arguments if name in wanted]:
                given.arguments[name] = coerce(
                    name, given.arguments[name], wanted[name], f"{function.__qualname__}: "
                )
            return function(*given.args, **given.kwargs)

        return checked

    return decorated


def _bind_arguments(
    called: str,
    signature: inspect.Signature,
    arguments: tuple[object, ...],
    keywords: Mapping[str, object],
) -> inspect.BoundArguments:
    """Bind the arguments of a call to the parameters of the function `called`."""
    parameters = signature.parameters
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    unknown = [] if takes_any else [name for name in keywords if name not in parameters]
    if unknown:
        raise UnknownSettingError(
            "keyword", unknown[0], [name for name in parameters if name != "self"]
        )
    try:
        return signature.bind(*arguments, **keywords)
    except TypeError as error:
        raise TypeError(f"{called}: {error}") from None
