"""Conversion of Jumanji environment objects, which must not reset automatically."""

from rollax.environments.conversion import default_object_name
from rollax.environments.environment import Environment
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.runtime.numerics import standard_numerics
from rollax.user_input.arguments import coerce_arguments


@standard_numerics()
@coerce_arguments(name=str | None)
def from_jumanji(environment: SuiteEnvironment, *, name: str | None = None) -> Environment:
    """Convert a Jumanji environment. Episodes are truncated at its `time_limit`.

    Args:
        environment: Jumanji environment. Its wrappers are removed.
        name: Name of the environment and of its run folders, "own/ClassName" by default.

    Returns:
        The environment.

    Raises:
        UsageError: If `environment` is not a Jumanji environment.
    """
    from rollax.environments.suites.jumanji import adapter

    return adapter.wrap_environment(name or default_object_name(environment), environment)
