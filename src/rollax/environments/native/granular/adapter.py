"""The suite `granular`: spheres that agents move to goals with forces or torques, in pure JAX.

The physics include mass, contacts, friction and spin.
"""

from typing import Any

from rollax.environments.native.granular.many import ManyNavigators
from rollax.environments.native.granular.worlds import SingleNavigator, SingleRoller
from rollax.environments.native.suite_functions import make_suite_functions

CHOICES = {"pairs": ("all", "listed")}

_ENVIRONMENTS: dict[str, Any] = {
    "single-navigator": SingleNavigator,
    "many-navigators": ManyNavigators,
    "single-roller": SingleRoller,
}

make, default_arguments = make_suite_functions("granular", _ENVIRONMENTS)
