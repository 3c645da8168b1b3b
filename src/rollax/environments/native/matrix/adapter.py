"""The suite `matrix`: games of two players with a payoff matrix."""

from collections.abc import Callable

from rollax.environments.environment import Environment
from rollax.environments.native.matrix.rock_paper_scissors import RockPaperScissors
from rollax.environments.native.suite_functions import make_suite_functions

_GAMES: dict[str, Callable[..., Environment]] = {"rock-paper-scissors": RockPaperScissors}

make, default_arguments = make_suite_functions("matrix", _GAMES)
