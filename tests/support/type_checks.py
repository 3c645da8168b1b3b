"""Checks of the types of all arguments and results of rollax at every call."""

from collections.abc import Callable
from typing import TypeVar

from beartype import BeartypeConf, beartype

F = TypeVar("F", bound=Callable)

# Integers are accepted as floats (PEP 484).
_check = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check_types(function: F) -> F:
    """Check the types of the arguments and the result of a function at every call.

    Constructors are left out, because JAX builds settings, states and modules with placeholders in
    place of arrays.
    """
    return function if function.__name__ == "__init__" else _check(function)
