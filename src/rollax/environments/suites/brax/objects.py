"""Conversion of brax environment objects, which must not reset automatically."""

from rollax.environments.conversion import default_object_name
from rollax.environments.environment import Environment
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.runtime.numerics import standard_numerics
from rollax.user_input.arguments import coerce_arguments


@standard_numerics()
@coerce_arguments(max_steps=int, name=str | None)
def from_brax(
    environment: SuiteEnvironment, *, max_steps: int = 1000, name: str | None = None
) -> Environment:
    """Convert a brax environment.

    Args:
        environment: Brax environment. Its wrappers are removed.
        max_steps: Time limit in steps, after which episodes are truncated.
        name: Name of the environment and of its run folders, "own/ClassName" by default.

    Returns:
        The environment.

    Raises:
        UsageError: If `environment` is not a brax `PipelineEnv`, its observations are not one
            array, or `max_steps` is not a positive integer.
    """
    from rollax.environments.suites.brax import adapter

    return adapter.wrap_environment(
        name or default_object_name(environment), environment, max_steps
    )
