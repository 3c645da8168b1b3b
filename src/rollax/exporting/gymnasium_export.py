"""Conversion of environments to gymnasium, which is an optional dependency."""

import importlib.util
from typing import TYPE_CHECKING

from rollax.environments import registry
from rollax.environments.capabilities import has_closed_form, is_on_host
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.runtime.installation import install_command
from rollax.runtime.numerics import standard_numerics
from rollax.training.argument_validation import validate_environment
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import format_value

if TYPE_CHECKING:
    import rollax.exporting.gymnasium_env

RENDER_MODES = ("rgb_array",)


@standard_numerics()
@coerce_arguments(render_mode=str | None)
def to_gymnasium(
    environment: str | Environment, *, render_mode: str | None = None
) -> "rollax.exporting.gymnasium_env.GymnasiumEnv":
    """Convert an environment in JAX to a gymnasium environment.

    Programs of other libraries, such as Stable-Baselines3, can then use the environment. They step
    it on the host, one environment and one step at a time, which is much slower than training in
    rollax.

    Args:
        environment: Id or environment, such as "gymnax/CartPole-v1", with one agent.
        render_mode: "rgb_array", or None if `render` is not used.

    Returns:
        A `gymnasium.Env`. If the environment has action masks, they are part of the observation,
        and `action_masks()` returns them for sb3-contrib.

    Raises:
        UsageError: If the environment has several agents, runs on the host or scores actions
            without episodes, if the render mode is unknown, or if gymnasium is not installed.
    """
    custom_environment = validate_environment(environment)
    if custom_environment is None:
        assert isinstance(environment, str)
        custom_environment = registry.make(environment)
    name = custom_environment.name
    if render_mode is not None and render_mode not in RENDER_MODES:
        raise UsageError(
            f"render_mode ({format_value(render_mode)}) must be {' or '.join(RENDER_MODES)} or "
            "None."
        )
    if is_on_host(custom_environment):
        raise UsageError(
            f"{name} already runs on the host. Make it with its own library, for example with "
            "gymnasium.make."
        )
    if custom_environment.num_agents is not None:
        raise UsageError(
            f"{name} has {custom_environment.num_agents} agents, but a gymnasium environment has "
            "one. Choose a single-agent environment (see rollax envs)."
        )
    if has_closed_form(custom_environment):
        raise UsageError(
            f"{name} scores solutions without episodes. Choose an environment with episodes (see "
            "rollax envs)."
        )
    if importlib.util.find_spec("gymnasium") is None:
        raise UsageError(
            f"The package gymnasium is not installed. Run: {install_command('gymnasium')}"
        )
    from rollax.exporting.gymnasium_env import GymnasiumEnv

    return GymnasiumEnv(custom_environment, render_mode)
