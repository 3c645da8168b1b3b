"""Adapter of gymnasium environments (1.1 or newer), which are simulators on the host.

rollax applies the time limit itself to distinguish it from termination. The default wrappers of
gymnasium (PassiveEnvChecker, OrderEnforcing, TimeLimit) are not applied. Numbers become float32,
except 8-bit images. If `info` contains an "action_mask" for discrete actions, the mask is added to
the observation. Atari games have the preprocessing of `atari`.
"""

import copy
import functools
import importlib
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from rollax.environments.conversion import convert_arguments, signature_defaults, to_positive_int
from rollax.environments.host_environment import HostedEnvironment
from rollax.environments.suites import package_versions
from rollax.environments.suites.gymnasium import atari, display, pictures, simulator
from rollax.environments.suites.gymnasium.converters import Layout
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.errors import UsageError, describe_error
from rollax.runtime.installation import install_command
from rollax.types import Setting
from rollax.user_input.coercion import format_value

TIME_LIMIT_ARGUMENT = "max_episode_steps"
_RESERVED_ARGUMENTS = ("render_mode", "env", "screen_size")  # constructor arguments set elsewhere


def make(name: str, arguments: dict[str, Setting]) -> HostedEnvironment:
    """Build an environment from a gymnasium id.

    Args:
        name: Id of the environment in gymnasium.
        arguments: Constructor arguments and `max_episode_steps` (see `default_arguments`). Atari
            games and CarRacing also have arguments for image preprocessing. The time limit of
            CarRacing is in frames.

    Returns:
        The environment.

    Raises:
        ModuleNotFoundError: If gymnasium is not installed.
        UsageError: If gymnasium is too old or rejects the arguments, or a package is missing.
        UnknownNameError: If an argument does not exist.
    """
    id = f"gymnasium/{name}"
    values = convert_arguments(id, arguments, default_arguments(name))
    limit, settings = (
        to_time_limit(id, values.pop(TIME_LIMIT_ARGUMENT, _default_time_limit(name))),
        None,
    )
    if pictures.is_car_racing(name):
        settings = pictures.parse_settings(id, values)
        values = {
            key: value for key, value in values.items() if key not in pictures.DEFAULT_SETTINGS
        }
        limit = limit and math.ceil(limit / settings.frame_skip)
    if atari.is_atari(name):
        build = functools.partial(atari.make_atari, name, atari.parse_settings(id, values))
    else:
        build = functools.partial(make_from_spec, _get_spec(name), tuple(values.items()))
    if settings is None:
        return make_hosted_environment(id, build, limit)
    return make_hosted_environment(
        id,
        functools.partial(pictures.make_car_racing, settings, build),
        limit,
        pictures.FINAL_STEP_INFO_NAMES,
    )


def to_time_limit(id: str, limit: object) -> int | None:
    """Check a time limit and return it as an int, or None.

    Args:
        id: Id of the environment, for error messages.
        limit: Time limit, or None for no limit.

    Returns:
        Time limit in steps, or None.

    Raises:
        UsageError: If the limit is not a positive integer.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | np.integer)):
        raise UsageError(f"{id}: {TIME_LIMIT_ARGUMENT} ({format_value(limit)}) must be an integer.")
    return limit if limit is None else to_positive_int(id, TIME_LIMIT_ARGUMENT, limit)


def make_hosted_environment(
    id: str,
    build: Callable[..., SuiteEnvironment],
    limit: int | None,
    info_names: tuple[str, ...] = (),
    layout: Layout = None,
) -> HostedEnvironment:
    """Build a host environment from a function that makes gymnasium environments.

    Args:
        id: Id of the environment.
        build: Function that makes one gymnasium environment, called as `build(render_mode=...)`.
        limit: Number of steps after which an episode is truncated, or None for no limit.
        info_names: Names of numbers in `info` that evaluations report but the first step does not
            have.
        layout: Image layout (see `converters.convert_observation_space`).

    Returns:
        The environment, whose simulators run on the host.

    Raises:
        UsageError: If the environment cannot be made, or violates the gymnasium API.
    """
    environment = make_suite_environment(id, build, render_mode=None)
    warned_parts: set[str] = set()
    try:
        detected, masks = simulator.inspect_environment(environment, id, layout, warned_parts)
        translation = simulator.space_conversion(environment, id, masks, layout)
        fps = frames_per_second(environment)
    finally:
        environment.close()
    make_simulator = functools.partial(
        simulator.make_simulator,
        functools.partial(make_suite_environment, id, build),
        id,
        limit,
        masks,
        layout,
        warned_parts,
    )
    names = tuple(sorted({*detected.info_names, *info_names}))
    spaces_and_limit = detected.observation_space, detected.action_space, limit, names
    return HostedEnvironment(
        id, *spaces_and_limit, make_simulator, space_conversion=translation, fps=fps
    )


def frames_per_second(environment: SuiteEnvironment) -> int:
    """Return the frame rate in the metadata of the environment, or 30 by default."""
    metadata = getattr(environment, "metadata", None) or {}
    fps = metadata.get("render_fps") or 30
    return int(fps) if isinstance(fps, int | float) else 30


def make_suite_environment(
    id: str, build: Callable[..., SuiteEnvironment], render_mode: str | None
) -> Any:
    """Make an environment of gymnasium or PettingZoo.

    Args:
        id: Id of the environment, for error messages.
        build: Function with the keyword `render_mode` that returns the environment.
        render_mode: Mode of rendering, or None to make an environment that does not render.

    Raises:
        UsageError: If `build` raises an exception.
    """
    if render_mode is not None:
        display.configure_headless_rendering()
    # Otherwise the constructor may write the MuJoCo log into the working directory.
    if "mujoco" in sys.modules:
        redirect_mujoco_warnings()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # gymnasium warns about newer versions
            return build(render_mode=render_mode)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"The package {error.name} is not installed, and {id} needs it. {installation_hint(id)}"
        ) from error
    except Exception as error:  # a constructor may raise any exception
        if isinstance(error, UsageError):
            raise
        is_dependency_missing = isinstance(error, gymnasium.error.DependencyNotInstalled)
        hint = f". {installation_hint(id)}" if is_dependency_missing else ""
        raise UsageError(f"Cannot create {id}: {describe_error(error)}{hint}") from error


def installation_hint(id: str) -> str:
    """Return a sentence with the command that installs the dependencies of an environment."""
    if ":" in id:
        return "Install the dependencies of its package."
    if id.startswith("pettingzoo/"):
        return f"Run: {install_command('pettingzoo')}"
    box2d = id.split("/", 1)[1].startswith(("LunarLander", "Bipedal", "CarRacing"))
    return f"Run: {install_command('box2d' if box2d else 'gymnasium')}"


def is_registered(name: str) -> bool:
    """Return whether a gymnasium id is registered.

    An id such as "package:Name-v0" is registered when its package is imported. This function does
    not import the package.

    Raises:
        UsageError: If the package is not imported.
    """
    package, _, local_name = name.rpartition(":")
    if package and package not in sys.modules:
        raise UsageError(
            f"gymnasium/{name} needs the module {package}, which is not imported. A run folder "
            f"cannot import modules. If you trust it, add --import {package} (in Python: "
            f"import {package})."
        )
    return local_name in gymnasium.registry


def make_from_spec(
    spec: EnvSpec, arguments: tuple[tuple[str, Setting], ...], render_mode: str | None
) -> Any:
    """Make an environment from an `EnvSpec`, without the default wrappers of gymnasium.

    The id in `spec` does not have to be registered in this process.

    Args:
        spec: Specification of the environment.
        arguments: Names and values of constructor arguments.
        render_mode: Mode of rendering, or None.
    """
    spec = copy.deepcopy(spec)
    spec.order_enforce = False
    if ".mujoco." in str(spec.entry_point):
        if render_mode is not None:
            display.require_opengl(f"gymnasium/{spec.id}")
        redirect_mujoco_warnings()
    return gymnasium.make(
        spec,
        max_episode_steps=-1,
        disable_env_checker=True,
        **render_arguments(render_mode),
        **dict(arguments),
    )


def render_arguments(render_mode: str | None) -> dict[str, Any]:
    """Return the keyword argument `render_mode` as a dictionary, which is empty for None.

    Some constructors do not accept the argument.
    """
    return {} if render_mode is None else {"render_mode": render_mode}


def redirect_mujoco_warnings() -> None:
    """Emit MuJoCo warnings as Python warnings instead of writing them to MUJOCO_LOG.TXT.

    Deprecation warnings about models are dropped. An existing handler of the user is not replaced.
    """
    import mujoco

    if mujoco.get_mju_user_warning() is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return

    def warn(message: str) -> None:
        if "deprecated" not in message:
            warnings.warn(f"MuJoCo: {message}", RuntimeWarning, stacklevel=2)

    mujoco.set_mju_user_warning(warn)  # pyright: ignore[reportAttributeAccessIssue]


def _get_spec(name: str) -> Any:
    package_versions.require_version("gymnasium", "1.1")
    if atari.is_atari(name):
        atari.register_games()
    try:
        return gymnasium.spec(name.rpartition(":")[2])
    except gymnasium.error.Error as error:
        raise UsageError(
            f"gymnasium {gymnasium.__version__} has no {name} ({error}). rollax supports the ids "
            "of gymnasium 1.3."
        ) from error


def _default_time_limit(name: str) -> int | None:
    """Return the default time limit in steps, or None."""
    return atari.MAX_EPISODE_STEPS if atari.is_atari(name) else _get_spec(name).max_episode_steps


@functools.cache
def _constructor_arguments(name: str) -> dict[str, Any]:
    """Return the defaults of the arguments of the constructor, keyed by name."""
    entry_point = _get_spec(name).entry_point
    if entry_point is None:
        raise UsageError(
            f"gymnasium/{name} has no entry_point, so gymnasium creates it only as a vector "
            "environment, which rollax does not support."
        )
    if not isinstance(entry_point, str):
        return signature_defaults(entry_point)
    module, _, function = entry_point.partition(":")
    try:
        with warnings.catch_warnings():
            # If warnings are errors, those of Box2D's bindings crash the process.
            warnings.simplefilter("ignore")
            constructor = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"The package {error.name} is not installed, and gymnasium/{name} needs it. "
            f"{installation_hint('/' + name)}"
        ) from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise UsageError(
            f"A dependency of gymnasium/{name} is not installed. {installation_hint('/' + name)}"
        ) from error
    return signature_defaults(constructor)


def default_arguments(name: str) -> dict[str, Any]:
    """Return the defaults of the constructor arguments and the time limit, keyed by name."""
    if atari.is_atari(name):
        return atari.DEFAULT_SETTINGS | {TIME_LIMIT_ARGUMENT: atari.MAX_EPISODE_STEPS}
    spec = _get_spec(name)
    defaults = {
        key: value
        for key, value in _constructor_arguments(name).items()
        if key not in _RESERVED_ARGUMENTS
    }
    defaults |= {key: value for key, value in spec.kwargs.items() if key in defaults} | {
        TIME_LIMIT_ARGUMENT: _default_time_limit(name)
    }
    return defaults | (pictures.DEFAULT_SETTINGS if pictures.is_car_racing(name) else {})
