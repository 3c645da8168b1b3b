"""Conversion of MuJoCo Playground environment objects, which must not reset automatically."""

from rollax.environments.conversion import default_object_name
from rollax.environments.environment import Environment
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.runtime.numerics import standard_numerics
from rollax.user_input.arguments import coerce_arguments


@standard_numerics()
@coerce_arguments(episode_length=int | None, name=str | None)
def from_playground(
    environment: SuiteEnvironment, *, episode_length: int | None = None, name: str | None = None
) -> Environment:
    """Convert a MuJoCo Playground environment.

    Args:
        environment: Playground environment. Its wrappers are removed.
        episode_length: Time limit in steps, after which episodes are truncated. None uses the value
            in the configuration of the environment.
        name: Name of the environment and of its run folders, "own/ClassName" by default.

    Returns:
        The environment.

    Raises:
        UsageError: If `environment` is not a Playground environment, or uses Warp.
    """
    from rollax.environments.suites.playground import adapter

    return adapter.wrap_environment(
        name or default_object_name(environment), environment, episode_length
    )
