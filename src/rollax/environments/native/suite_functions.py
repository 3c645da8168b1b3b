"""Adapter functions for suites whose environments are made by one factory function per name."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rollax.environments.conversion import convert_arguments, signature_defaults
from rollax.environments.environment import Environment
from rollax.types import Setting


class SuiteFunctions(NamedTuple):
    """The functions that the registry calls in the adapter of a suite.

    Attributes:
        make: Function `make(name, arguments)` that returns an environment. It raises UsageError if
            a value cannot be converted or is out of range, and UnknownNameError if an argument does
            not exist.
        default_arguments: Function `default_arguments(name)` that returns the defaults of the
            arguments, keyed by argument name.
    """

    make: Callable[[str, dict[str, Setting]], Environment]
    default_arguments: Callable[[str], dict[str, Any]]


def make_suite_functions(
    suite: str, factories: Mapping[str, Callable[..., Environment]]
) -> SuiteFunctions:
    """Build the adapter functions of a suite.

    Args:
        suite: Name of the suite.
        factories: Factory functions, keyed by the name of the environment in the suite. The
            parameters of a factory are the arguments of the environment.
    """

    def make(name: str, arguments: dict[str, Setting]) -> Environment:
        defaults = signature_defaults(factories[name])
        return factories[name](**convert_arguments(f"{suite}/{name}", arguments, defaults))

    def default_arguments(name: str) -> dict[str, Any]:
        return signature_defaults(factories[name])

    return SuiteFunctions(make, default_arguments)
