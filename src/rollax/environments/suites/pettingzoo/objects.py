"""Adapter for custom parallel environments with the API of PettingZoo."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollax.environments.host_environment import HostedEnvironment
from rollax.environments.suites.gymnasium.objects import accepts_render_mode
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.errors import UsageError
from rollax.runtime.numerics import standard_numerics
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import coerce


@standard_numerics()
@coerce_arguments(name=str | None, global_state=bool)
def from_pettingzoo(
    make: Callable[..., SuiteEnvironment],
    *,
    name: str | None = None,
    max_episode_steps: int | None = None,
    global_state: bool = False,
    info_names: Sequence[str] = (),
    layout: str | Mapping[str, str] | None = None,
    **arguments: Any,
) -> HostedEnvironment:
    """Convert a parallel environment with the API of PettingZoo for training.

    A run makes one copy for each of its parallel environments. Agents may leave an episode and
    return, and may have different spaces (see docs/pettingzoo.md). The environment does not have to
    inherit from `pettingzoo.ParallelEnv`.

    Args:
        make: Class of the environment, or function that makes one, such as
            `pistonball_v6.parallel_env`. It is called with `arguments`, and with `render_mode` if
            it has this parameter, which rendering requires. Worker processes (`env_workers`)
            require a class or a function at the top level of a module.
        name: Name of the environment and of its run folders. The default is "own/" and the name of
            the class or function.
        max_episode_steps: Number of steps after which all agents are truncated, in addition to the
            limit of the environment.
        global_state: Whether observations have a part "global_state" for central critics. It is
            `state()` of the environment if it has this method, and otherwise the observations of
            all agents.
        info_names: Names of numbers in the `infos` of agents that evaluations report but the first
            step does not have.
        layout: Axes of observations that are images (see `from_gymnasium`).
        **arguments: Arguments of `make`.

    Returns:
        The environment, whose simulators run on the host.

    Raises:
        UsageError: If `make` does not make a parallel environment, or a space has no counterpart.
            Also if spaces of agents cannot be padded to a common space, values or a layout do not
            fit the space, or `max_episode_steps` is not a positive integer.
    """
    from rollax.environments.suites.gymnasium.adapter import to_time_limit
    from rollax.environments.suites.pettingzoo.adapter import make_parallel_environment
    from rollax.environments.suites.pettingzoo.parallel_simulator import ParallelSettings

    if not callable(make):
        kind = type(make).__name__
        raise UsageError(
            f"make must be a class or a function that makes a parallel environment, got an object "
            f"of {kind}. Pass its class and its arguments, for example "
            f"rollax.from_pettingzoo({kind}, size=5)."
        )
    default = getattr(make, "__name__", type(make).__name__).strip("<>")
    if default in ("parallel_env", "par_fn"):  # all environments of PettingZoo have these names
        default = getattr(make, "__module__", default).rpartition(".")[2]
    id = name or f"own/{default.replace('/', '-').replace(':', '-')}"
    settings = ParallelSettings(
        name=id,
        time_limit=to_time_limit(id, max_episode_steps),
        has_global_state=global_state,
        layout=dict(layout) if isinstance(layout, Mapping) else layout,
        info_names=coerce("info_names", info_names, tuple[str, ...]),
    )
    build = functools.partial(_make_env, make, tuple(arguments.items()))
    return make_parallel_environment(build, settings)


def _make_env(
    make: Callable[..., SuiteEnvironment],
    arguments: tuple[tuple[str, Any], ...],
    render_mode: str | None,
) -> Any:
    is_passed = accepts_render_mode(make) and render_mode is not None
    return make(**dict(arguments), **({"render_mode": render_mode} if is_passed else {}))
