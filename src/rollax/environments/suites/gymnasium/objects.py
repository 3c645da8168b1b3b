"""Environments of gymnasium of a user's own."""

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from rollax.environments.hosted import Hosted
from rollax.errors import UsageError
from rollax.typed import typed


def from_gymnasium(
    make: Any, *, name: str | None = None, max_episode_steps: int | None = None, info_names: Sequence[str] = ()
) -> Hosted:
    """An environment of gymnasium to train in, made as often as there are environments side by side.

    `make` is an id that gymnasium knows, what `gymnasium.make` made, of which others are made by its `spec`, wrappers included,
    or a function that makes an environment: it is called with `render_mode`, if it has such an argument, which a picture needs.
    Simulators in processes of their own (`env_workers`) need a function at the top of a module. `name` is that of the folder of
    runs. `max_episode_steps` cuts episodes off, besides the environment's own limit. `info_names` are numbers of `info` that
    evaluations are to report beside those of its first step, as `("is_success",)`, which ends alone may have.

    Raises UsageError for what makes no environment of gymnasium, for an object that was made without `gymnasium.make`, for
    spaces that have no counterpart, and for a `max_episode_steps` that is no whole number from 1 on.
    """
    from rollax.environments.suites.gymnasium import adapter

    if not isinstance(make, str) and not callable(make):
        name, make = name or _name_of(make), _spec_of(make)
    if isinstance(make, type) and name is None:
        name = f"own/{make.__name__}"
    default = make if isinstance(make, str) else getattr(make, "__name__", type(make).__name__).strip("<>")
    id = name or f"own/{default.replace('/', '-').replace(':', '-')}"
    max_episode_steps = adapter.checked_limit(id, max_episode_steps)
    build = functools.partial(_build, make, id)
    environment = adapter.made(id, build, None)
    if isinstance(make, str):  # other processes may not have registered it
        build = functools.partial(_build, environment.spec, id)
    known = getattr(getattr(environment, "spec", None), "max_episode_steps", None)
    environment.close()
    limits = [limit for limit in (known, max_episode_steps) if limit is not None]
    return adapter.hosted(id, build, min(limits, default=None), typed("info_names", info_names, tuple[str, ...]))


def _name_of(environment: Any) -> str:
    return f"own/{str(getattr(getattr(environment, 'spec', None), 'id', type(environment).__name__)).replace('/', '-')}"


def _spec_of(environment: Any) -> Any:
    """The recipe of an environment. It is needed as often as there are environments side by side, and in other processes."""
    import gymnasium

    kind = type(environment).__name__
    if not isinstance(environment, gymnasium.Env):
        raise UsageError(f"from_gymnasium takes an environment of gymnasium, an id or a function that makes one, not a {kind}")
    spec = environment.spec
    if spec is None or any(wrapper.kwargs is None for wrapper in spec.additional_wrappers):
        raise UsageError(
            f"this {kind} cannot be made again, as gymnasium.make did not make it or a wrapper keeps no record of its "
            "arguments: give from_gymnasium a function that makes it"
        )
    return spec


def _build(make: Any, id: str, render_mode: str | None) -> Any:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    from rollax.environments.suites.gymnasium import adapter

    if isinstance(make, EnvSpec) and make.kwargs.get("render_mode") == "human":
        make = copy.deepcopy(make)
        make.kwargs["render_mode"] = None  # a window for each, which waits for the screen
    if isinstance(make, str | EnvSpec):
        return gymnasium.make(make, disable_env_checker=True, **adapter.drawing(render_mode))
    made = make(render_mode=render_mode) if _has_render_mode(make) else make()
    if not isinstance(made, gymnasium.Env):
        raise UsageError(f"{id}: the function makes a {type(made).__name__}, which is no gymnasium.Env")
    return made


def _has_render_mode(make: Callable[..., Any]) -> bool:
    parameters = inspect.signature(make).parameters.values()
    return any(p.name == "render_mode" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
