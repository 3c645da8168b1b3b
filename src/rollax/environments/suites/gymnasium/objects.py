"""Adapter for custom gymnasium environments."""

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollax.environments.host_environment import HostedEnvironment
from rollax.environments.suites.pettingzoo_detection import PETTINGZOO_MESSAGE, is_pettingzoo
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.errors import UsageError
from rollax.runtime.numerics import standard_numerics
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import coerce


@standard_numerics()
@coerce_arguments(name=str | None)
def from_gymnasium(
    make: str | SuiteEnvironment | Callable[..., SuiteEnvironment],
    *,
    name: str | None = None,
    max_episode_steps: int | None = None,
    info_names: Sequence[str] = (),
    layout: str | Mapping[str, str] | None = None,
) -> HostedEnvironment:
    """Convert a gymnasium environment for training.

    A run makes one copy for each of its parallel environments.

    Args:
        make: Gymnasium id, environment from `gymnasium.make`, or function that makes an
            environment. An environment is copied from its `spec`, including wrappers. A function is
            called with `render_mode` if it has this parameter, which rendering requires. Worker
            processes (`env_workers`) require a function at the top level of a module.
        name: Name of the environment and of its run folders. The default is "own/" and the id, or
            the name of the function or class.
        max_episode_steps: Number of steps after which an episode is truncated, in addition to the
            limit of the environment.
        info_names: Names of numbers in `info` that evaluations report but the first step does not
            have, such as `("is_success",)`.
        layout: Axes of observations that are images, one letter per axis: H, W, C (channels) and
            N (stacked frames), as in "HWC", "CHW" or "NHWC". "flat" marks an array that is not an
            image. A dictionary contains one layout for each key of a `Dict`. None recognizes
            layouts from the shapes.

    Returns:
        The environment, whose simulators run on the host.

    Raises:
        UsageError: If `make` does not make a gymnasium environment, an environment object was
            created without `gymnasium.make`, or a space has no counterpart. Also if values or a
            layout do not fit the space, or `max_episode_steps` is not a positive integer.
    """
    from rollax.environments.suites.gymnasium import adapter

    if not isinstance(make, str) and not callable(make):
        name, make = name or _default_name(make), _require_spec(make)
    if isinstance(make, type) and name is None:
        name = f"own/{make.__name__}"
    default = (
        make
        if isinstance(make, str)
        else getattr(make, "__name__", type(make).__name__).strip("<>")
    )
    id = name or f"own/{default.replace('/', '-').replace(':', '-')}"
    max_episode_steps = adapter.to_time_limit(id, max_episode_steps)
    build = functools.partial(_make_env, make, id)
    environment = adapter.make_suite_environment(id, build, None)
    if isinstance(make, str):  # other processes may not have registered the id
        build = functools.partial(_make_env, environment.spec, id)
    known = getattr(getattr(environment, "spec", None), "max_episode_steps", None)
    environment.close()
    limits = [limit for limit in (known, max_episode_steps) if limit is not None]
    layout = dict(layout) if isinstance(layout, Mapping) else layout
    names = coerce("info_names", info_names, tuple[str, ...])
    return adapter.make_hosted_environment(id, build, min(limits, default=None), names, layout)


def _default_name(environment: object) -> str:
    spec = getattr(environment, "spec", None)
    name = str(getattr(spec, "id", type(environment).__name__))
    return f"own/{name.replace('/', '-')}"


def _require_spec(environment: object) -> Any:
    """Return the `EnvSpec` of an environment, which is used to make copies.

    Raises:
        UsageError: If the environment has no spec.
    """
    import gymnasium

    kind = type(environment).__name__
    if is_pettingzoo(environment):
        raise UsageError(PETTINGZOO_MESSAGE)
    if not isinstance(environment, gymnasium.Env):
        raise UsageError(
            "environment must be an environment of gymnasium, an id or a function that makes one, "
            f"got an object of {kind}."
        )
    spec = environment.spec
    if spec is None or any(wrapper.kwargs is None for wrapper in spec.additional_wrappers):
        own = type(environment.unwrapped).__name__
        raise UsageError(
            f"This {kind} cannot be copied, because it was not made by gymnasium.make or a wrapper "
            "does not record its arguments. Pass its class or a function that makes it, for "
            f"example rollax.from_gymnasium({own})."
        )
    return spec


def _make_env(
    make: str | SuiteEnvironment | Callable[..., SuiteEnvironment], id: str, render_mode: str | None
) -> Any:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    from rollax.environments.suites.gymnasium import adapter

    if isinstance(make, EnvSpec) and make.kwargs.get("render_mode") == "human":
        make = copy.deepcopy(make)
        # A window for each environment would wait for the screen.
        make.kwargs["render_mode"] = None
    if isinstance(make, EnvSpec) and ".mujoco." in str(make.entry_point):
        adapter.redirect_mujoco_warnings()
    if isinstance(make, str | EnvSpec):
        return gymnasium.make(
            make, disable_env_checker=True, **adapter.render_arguments(render_mode)
        )
    environment = make(render_mode=render_mode) if accepts_render_mode(make) else make()
    if is_pettingzoo(environment):
        raise UsageError(PETTINGZOO_MESSAGE)
    if not isinstance(environment, gymnasium.Env):
        raise UsageError(
            f"{id}: the function must make a gymnasium.Env, got an object of "
            f"{type(environment).__name__}."
        )
    return environment


def accepts_render_mode(make: Callable[..., SuiteEnvironment]) -> bool:
    """Return whether a function or a class accepts the argument `render_mode`."""
    parameters = inspect.signature(make).parameters.values()
    return any(
        p.name == "render_mode" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters
    )
