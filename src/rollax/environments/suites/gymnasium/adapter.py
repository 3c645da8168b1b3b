"""The environments of gymnasium (1.1 or newer): simulators in Python and C++ on the host.

Time limits are counted here, so that an end of the task is never mistaken for one by time; gymnasium's own wrappers (checks,
the order of calls, time limits) are left off. Numbers become float32, but for 8-bit images. Where `info` has an "action_mask"
for discrete actions, it becomes a part of the observation, as rollax has it. ALE's games are as `atari` has them.
"""

import copy
import functools
import importlib
import math
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from rollax.environments.convert import convert_all, signature_defaults, step_limit
from rollax.environments.hosted import Hosted
from rollax.environments.suites import version
from rollax.environments.suites.gymnasium import atari, display, pictures, simulator
from rollax.errors import UsageError

LIMIT = "max_episode_steps"
_OURS = ("render_mode", "env", "screen_size")  # of constructors: what is asked for by other means


def make(name: str, arguments: dict[str, Any]) -> Hosted:
    """The environment of that id. Arguments are those of its constructor and `max_episode_steps`; of ALE's games and CarRacing,
    whose limit is in frames, also those of what is done with their pictures.

    Raises: UsageError when gymnasium or the package of the physics is missing or refuses the arguments; UnknownNameError for an
    unknown argument.
    """
    id = f"gymnasium/{name}"
    given = convert_all(id, arguments, _defaults(name))
    limit, chosen = checked_limit(id, given.pop(LIMIT, _limit(name))), None
    if pictures.is_pictured(name):
        chosen = pictures.settings(id, given)
        given = {key: value for key, value in given.items() if key not in pictures.DEFAULTS}
        limit = limit and math.ceil(limit / chosen.frame_skip)
    if atari.is_atari(name):
        build = functools.partial(atari.build, name, atari.settings(id, given))
    else:
        build = functools.partial(build_one, _spec(name), tuple(given.items()))
    if chosen is None:
        return hosted(id, build, limit)
    return hosted(id, functools.partial(pictures.build, chosen, build), limit, pictures.AT_THE_END)


def checked_limit(id: str, limit: Any) -> int | None:
    """The most steps of an episode, None where there is no limit. Raises UsageError for what is no whole number from 1 on."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | np.integer)):
        raise UsageError(f"{id}: {LIMIT} ({limit!r}) must be a whole number.")
    return limit if limit is None else step_limit(id, LIMIT, limit)


def hosted(id: str, build: Callable[..., Any], limit: int | None, info_names: tuple[str, ...] = ()) -> Hosted:
    """What `build(render_mode=...)` makes, as an environment. `info_names`: numbers of `info` that its first step lacks.

    Raises UsageError when it cannot be made, or does not keep gymnasium's contract.
    """
    environment = made(id, build, render_mode=None)
    try:
        seen, masks = simulator.look(environment, id)
        translation = simulator.translation(environment, id, masks)
        fps = int(environment.metadata.get("render_fps", 30))
    finally:
        environment.close()
    make_simulator = functools.partial(simulator.make, functools.partial(made, id, build), id, limit, masks)
    names = tuple(sorted({*seen.info_names, *info_names}))
    found = seen.observation_space, seen.action_space, limit, names
    return Hosted(id, *found, make_simulator, translation=translation, fps=fps)


def made(id: str, build: Callable[..., Any], render_mode: str | None) -> Any:
    """What `build` makes. Raises UsageError that says what it raises."""
    if render_mode is not None:
        display.without_screen()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is a newer version of the environment
            return build(render_mode=render_mode)
    except ModuleNotFoundError as error:
        raise UsageError(f"{id} needs the package {error.name}, which is not installed: {remedy(id)}") from error
    except Exception as error:  # whatever a constructor raises
        if isinstance(error, UsageError):
            raise
        missing = isinstance(error, gymnasium.error.DependencyNotInstalled)
        told = f": {remedy(id)}" if missing else ""
        raise UsageError(
            f"making {id} fails with {type(error).__name__}: {str(error).strip() or 'it says no more'}{told}"
        ) from error


def remedy(id: str) -> str:
    """What to install for an environment."""
    if ":" in id:
        return "install what its package needs"
    box2d = id.split("/", 1)[1].startswith(("LunarLander", "Bipedal", "CarRacing"))
    return f'pip install "rollax[{"box2d" if box2d else "gymnasium"}]"'


def knows(name: str) -> bool:
    """Whether gymnasium has it by now. "package:Name-v0" imports the package, which adds it, as in `gymnasium.make`.

    Raises UsageError when that package cannot be imported.
    """
    package, _, id = name.rpartition(":")
    try:
        if package:
            importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise UsageError(f"gymnasium/{name} needs the package {error.name}, which is not installed") from error
    except Exception as error:  # a package may raise anything
        raise UsageError(f"gymnasium/{name}: importing {package} fails with {type(error).__name__}: {error}") from error
    return id in gymnasium.registry


def arguments(name: str) -> dict[str, Any]:
    """The arguments of the constructor, with the defaults of this id, and the time limit."""
    return _defaults(name)


def build_one(spec: Any, given: tuple[tuple[str, Any], ...], render_mode: str | None) -> Any:
    """gymnasium's environment of this `EnvSpec`, which a process of its own need not have registered, without its wrappers."""
    spec = copy.deepcopy(spec)
    spec.order_enforce = False
    if ".mujoco." in str(spec.entry_point):
        if render_mode is not None:
            display.require_opengl(f"gymnasium/{spec.id}")
        _quiet_mujoco()
    return gymnasium.make(spec, max_episode_steps=-1, disable_env_checker=True, **drawing(render_mode), **dict(given))


def drawing(render_mode: str | None) -> dict[str, Any]:
    """The argument of a constructor that is to draw. Those that never do need not have it."""
    return {} if render_mode is None else {"render_mode": render_mode}


def _quiet_mujoco() -> None:
    """MuJoCo's warnings as Python's, without those that its models are written in an old way: it has a file for them, here."""
    import mujoco

    def warn(message: str) -> None:
        if "deprecated" not in message:
            warnings.warn(f"MuJoCo: {message}", RuntimeWarning, stacklevel=2)

    mujoco.set_mju_user_warning(warn)  # pyright: ignore[reportAttributeAccessIssue]


def _spec(name: str) -> Any:
    version.require("gymnasium", "1.1")
    if atari.is_atari(name):
        atari.register()
    try:
        return gymnasium.spec(name.rpartition(":")[2])
    except gymnasium.error.Error as error:
        raise UsageError(
            f"gymnasium {gymnasium.__version__} has no {name} ({error}): rollax lists the ids of gymnasium 1.3"
        ) from error


def _limit(name: str) -> int | None:
    """Steps of an episode at most."""
    return atari.LIMIT if atari.is_atari(name) else _spec(name).max_episode_steps


@functools.cache
def _constructor(name: str) -> dict[str, Any]:
    """The arguments of the constructor and their defaults."""
    entry_point = _spec(name).entry_point
    if entry_point is None:
        raise UsageError(f"gymnasium/{name} is made many at once alone, which is not offered: it has no entry_point")
    if not isinstance(entry_point, str):
        return signature_defaults(entry_point)
    module, _, function = entry_point.partition(":")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where warnings are errors, those of Box2D's bindings crash the process
            found = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"gymnasium/{name} needs the package {error.name}, which is not installed: {remedy('/' + name)}"
        ) from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise UsageError(f"gymnasium/{name} lacks what it needs: {remedy('/' + name)}") from error
    return signature_defaults(found)


def _defaults(name: str) -> dict[str, Any]:
    if atari.is_atari(name):
        return atari.DEFAULTS | {LIMIT: atari.LIMIT}
    spec = _spec(name)
    own = {key: value for key, value in _constructor(name).items() if key not in _OURS}
    own |= {key: value for key, value in spec.kwargs.items() if key in own} | {LIMIT: _limit(name)}
    return own | (pictures.DEFAULTS if pictures.is_pictured(name) else {})
