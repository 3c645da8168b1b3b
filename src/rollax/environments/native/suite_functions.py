"""Functions of a suite whose environments are made by factories, without further conversion."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rollax.environments.conversion import convert_arguments, signature_defaults
from rollax.environments.environment import Environment
from rollax.types import Setting


class SuiteFunctions(NamedTuple):
    """The functions that the registry calls in the adapter of a suite.

    Attributes:
        make: Function `(name, arguments)` that returns an environment. It raises UsageError if a
            value cannot be converted or is out of range, and UnknownNameError if an argument does
            not exist.
        default_arguments: Function `(name)` that returns the arguments with their defaults.
    """

    make: Callable[[str, dict[str, Setting]], Environment]
    default_arguments: Callable[[str], dict[str, Any]]


def make_suite_functions(
    suite: str, factories: Mapping[str, Callable[..., Environment]]
) -> SuiteFunctions:
    """Return the functions of a suite.

    Args:
        suite: Name of the suite.
        factories: Function that makes each environment, by the name in the suite. The parameters of
            a factory with their defaults are the arguments of the environment.
    """

    def make(name: str, arguments: dict[str, Setting]) -> Environment:
        defaults = signature_defaults(factories[name])
        return factories[name](**convert_arguments(f"{suite}/{name}", arguments, defaults))

    def default_arguments(name: str) -> dict[str, Any]:
        return signature_defaults(factories[name])

    return SuiteFunctions(make, default_arguments)
