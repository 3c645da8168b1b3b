"""Conversion of gymnax environment objects, which must not reset automatically."""

from rollax.environments.environment import Environment
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.runtime.numerics import standard_numerics
from rollax.types import PyTree
from rollax.user_input.arguments import coerce_arguments


@standard_numerics()
@coerce_arguments(name=str | None)
def from_gymnax(
    environment: SuiteEnvironment, params: PyTree = None, *, name: str | None = None
) -> Environment:
    """Convert a gymnax environment, for example `from_gymnax(*gymnax.make("CartPole-v1"))`.

    Classes written for gymnax before 1.0, whose `is_terminal` includes the time limit, are
    supported.

    Args:
        environment: Gymnax environment.
        params: Parameters of the environment, by default its `default_params`. Fields become leaves
            of the converted environment. Episodes are truncated after `max_steps_in_episode` steps.
        name: Name of the environment and of its run folders. The default is "own/" and the name
            of the gymnax environment.

    Returns:
        The environment.

    Raises:
        UsageError: If `environment` is not a gymnax environment, or its methods fail.
    """
    from rollax.environments.suites.gymnax import adapter

    return adapter.wrap_environment(
        name or f"own/{getattr(environment, 'name', type(environment).__name__)}",
        environment,
        params,
    )
