"""Conversion of Pgx game objects, which must not reset automatically."""

from typing import Literal

from rollax.environments.conversion import default_object_name
from rollax.environments.environment import MultiAgentEnvironment
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.runtime.numerics import standard_numerics
from rollax.user_input.arguments import coerce_arguments


@standard_numerics()
@coerce_arguments(opponent=Literal["agents", "random", "greedy"], name=str | None)
def from_pgx(
    environment: SuiteEnvironment,
    *,
    opponent: Literal["agents", "random", "greedy"] = "agents",
    name: str | None = None,
) -> MultiAgentEnvironment:
    """Convert a Pgx game. Its players become agents.

    Args:
        environment: Pgx game for two or more players.
        opponent: Opponent of the first player: "agents" (the policy), "random" or "greedy" (looks
            two moves ahead).
        name: Name of the environment and of its run folders, "own/ClassName" by default.

    Returns:
        The environment.

    Raises:
        UsageError: If `environment` is not a Pgx game for two or more players, or the game does not
            support the opponent.
    """
    from rollax.environments.suites.pgx import adapter

    return adapter.wrap_environment(name or default_object_name(environment), environment, opponent)
