"""The suite `granular`: spheres with mass, contact, friction and spin, in pure JAX, pushed or turned to their goals."""

from typing import Any

from rollax.environments.convert import convert_all, signature_defaults
from rollax.environments.core import Environment
from rollax.environments.native.granular.many import ManyNavigators
from rollax.environments.native.granular.worlds import SingleNavigator, SingleRoller

CHOICES = {"pairs": ("all", "listed")}

_ENVIRONMENTS: dict[str, Any] = {
    "single-navigator": SingleNavigator,
    "many-navigators": ManyNavigators,
    "single-roller": SingleRoller,
}


def make(name: str, arguments: dict[str, Any]) -> Environment:
    """The environment of that name.

    Raises: UsageError for values that do not fit; UnknownNameError for an unknown argument.
    """
    factory = _ENVIRONMENTS[name]
    return factory(**convert_all(f"granular/{name}", arguments, signature_defaults(factory)))


def arguments(name: str) -> dict[str, Any]:
    """What the environment accepts, with the defaults."""
    return signature_defaults(_ENVIRONMENTS[name])
