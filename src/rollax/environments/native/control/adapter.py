"""The suite `control`: continuous actions in small worlds."""

from rollax.environments.native.control.platforms import Platforms
from rollax.environments.native.control.point_maze import REWARDS, PointMaze
from rollax.environments.native.suite_functions import make_suite_functions

CHOICES = {"reward": REWARDS}

_ENVIRONMENTS = {"platforms": Platforms, "point-maze": PointMaze}

make, default_arguments = make_suite_functions("control", _ENVIRONMENTS)
