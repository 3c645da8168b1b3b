"""The suite `hunting`: prey and predators on the unit square."""

from typing import Any

import jax.numpy as jnp

from rollax.environments.conversion import convert_arguments, signature_defaults
from rollax.environments.environment import Environment
from rollax.environments.native.hunting.hunting import HEADINGS, Hunting
from rollax.errors import UsageError
from rollax.types import Setting

CHOICES = {"headings": HEADINGS}


def make(name: str, arguments: dict[str, Setting]) -> Environment:
    """Make a hunting game.

    Args:
        name: Name in the suite `hunting`.
        arguments: Environment arguments, keyed by name.

    Returns:
        The environment.

    Raises:
        UsageError: If a value is out of range.
        UnknownNameError: If an argument is unknown.
    """
    defaults = default_arguments(name)
    values = defaults | convert_arguments(f"hunting/{name}", arguments, defaults)
    prey = values.pop("prey_speed")
    if name == "2-players":
        predators = [values.pop("predator_speed")]
    else:
        predators = list(values.pop("predator_speeds"))
        if len(predators) != 2:
            raise UsageError(
                f"hunting/{name}: predator_speeds must be two numbers, one for each predator, "
                f"got {predators}."
            )
    return Hunting(
        jnp.stack([jnp.asarray(speed, jnp.float32) for speed in (prey, *predators)]), **values
    )


def default_arguments(name: str) -> dict[str, Any]:
    """Return the defaults of the arguments of the game, keyed by argument name."""
    common = signature_defaults(Hunting)
    del common["speeds"]
    if name == "2-players":
        del common["assist"]  # the only predator makes every catch
        return {"prey_speed": 1.0, "predator_speed": 1.0, **common}
    return {"prey_speed": 1.0, "predator_speeds": (0.5, 0.5), **common}
