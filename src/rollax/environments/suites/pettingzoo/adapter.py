"""Adapter of parallel environments of PettingZoo (1.24 or newer), simulators on the host.

PettingZoo uses one dictionary entry per agent. Here, arrays have a leading axis `[A]` in the order
of `possible_agents`, as in compiled environments with agents. All algorithms for several agents can
therefore be used. Agents of one type share parameters if the algorithm supports it. Agents that
have left an episode are masked, and their steps are not used for learning. See `agent_spaces` for
agents with different spaces, and `parallel_simulator` for agents that leave and return.
"""

import functools
import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

from rollax.environments.conversion import convert_arguments, signature_defaults
from rollax.environments.host_environment import HostedEnvironment
from rollax.environments.suites.gymnasium.adapter import (
    frames_per_second,
    installation_hint,
    make_suite_environment,
)
from rollax.environments.suites.pettingzoo import parallel_simulator
from rollax.environments.suites.pettingzoo.parallel_simulator import (
    ParallelSettings,
    ParallelSimulator,
)
from rollax.environments.suites.pettingzoo_detection import AEC_MESSAGE, is_aec
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.errors import UsageError
from rollax.types import Setting

BuildFn = Callable[..., SuiteEnvironment]
_GLOBAL_STATE_ARGUMENT = "global_state"
_RESERVED_ARGUMENTS = ("render_mode", "args", "kwargs")  # constructor arguments set elsewhere
# Classes whose constructors have the arguments of environments that only declare **kwargs.
_ARGUMENT_SOURCES = {
    "butterfly/cooperative_pong_v6": (
        "pettingzoo.butterfly.cooperative_pong.cooperative_pong",
        "CooperativePong",
    ),
    "sisl/multiwalker_v9": ("pettingzoo.sisl.multiwalker.multiwalker_base", "MultiWalkerEnv"),
    "sisl/pursuit_v5": ("pettingzoo.sisl.pursuit.pursuit_base", "Pursuit"),
}
_INTERNAL_ARGUMENTS = {
    "butterfly/cooperative_pong_v6": ("randomizer",),
    "sisl/pursuit_v5": ("evader_controller", "pursuer_controller"),
}


def make(name: str, arguments: dict[str, Setting]) -> HostedEnvironment:
    """Build an environment from its name.

    Args:
        name: Family and name of the environment, for example "mpe/simple_spread_v3".
        arguments: Constructor arguments and `global_state` (see `default_arguments`).

    Returns:
        The environment.

    Raises:
        ModuleNotFoundError: If PettingZoo is not installed.
        UsageError: If PettingZoo rejects the arguments, or a package is missing.
        UnknownNameError: If an argument does not exist.
    """
    id = f"pettingzoo/{name}"
    values = convert_arguments(id, arguments, default_arguments(name))
    has_global_state = values.pop(_GLOBAL_STATE_ARGUMENT, False)
    build = functools.partial(_make_parallel, name, tuple(values.items()))
    return make_parallel_environment(
        build, ParallelSettings(id, None, bool(has_global_state), layout=None)
    )


def default_arguments(name: str) -> dict[str, Any]:
    """Return the defaults of the constructor arguments and `global_state`, keyed by name."""
    if name in _ARGUMENT_SOURCES:
        module, attribute = _ARGUMENT_SOURCES[name]
        constructor = getattr(_import(f"pettingzoo/{name}", module), attribute)
    else:
        constructor = _import_environment(name).raw_env
    excluded = (*_RESERVED_ARGUMENTS, *_INTERNAL_ARGUMENTS.get(name, ()))
    defaults = {k: v for k, v in signature_defaults(constructor).items() if k not in excluded}
    return defaults | {_GLOBAL_STATE_ARGUMENT: False}


def _import_environment(name: str) -> Any:
    """Import the module of an environment, such as `pettingzoo.butterfly.pistonball_v6`."""
    family, _, module = name.partition("/")
    path = f"mpe2.{module}" if family == "mpe" else f"pettingzoo.{family}.{module}"
    return _import(f"pettingzoo/{name}", path)


def _import(id: str, module: str) -> Any:
    """Import a module of PettingZoo. Raise UsageError if a package that it needs is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module:
            version = importlib.metadata.version(module.partition(".")[0])
            raise UsageError(
                f"{module.partition('.')[0]} {version} has no {module}. rollax supports the ids of "
                "PettingZoo 1.27 and MPE2 1.1. Install these versions."
            ) from error
        raise UsageError(
            f"The package {error.name} is not installed, and {id} needs it. {installation_hint(id)}"
        ) from error


def _make_parallel(
    name: str, arguments: tuple[tuple[str, Setting], ...], render_mode: str | None
) -> Any:
    return _import_environment(name).parallel_env(render_mode=render_mode, **dict(arguments))


def make_parallel_environment(build: BuildFn, settings: ParallelSettings) -> HostedEnvironment:
    """Build a host environment from a function that makes parallel environments.

    Args:
        build: Function that makes one parallel environment, called as `build(render_mode=...)`.
        settings: Settings of the conversion.

    Returns:
        The environment, whose simulators run on the host.

    Raises:
        UsageError: If the environment cannot be made, or violates the API of PettingZoo.
    """
    environment = _make_checked(build, settings.name, None)
    warned_parts: set[str] = set()
    try:
        inspected = parallel_simulator.inspect_environment(environment, settings, warned_parts)
        fps = frames_per_second(environment)
    finally:
        environment.close()
    return HostedEnvironment(
        name=settings.name,
        observation_space=inspected.observation_space,
        action_space=inspected.spaces.action_space,
        time_limit=settings.time_limit,
        info_names=inspected.settings.info_names,
        make_simulator=functools.partial(_make_simulator, build, inspected.settings, warned_parts),
        space_conversion=parallel_simulator.make_space_conversion(inspected),
        fps=fps,
        agent_types=tuple(spec.type for spec in inspected.spaces.agents),
    )


def _make_simulator(
    build: BuildFn,
    settings: ParallelSettings,
    warned_parts: set[str],
    shows_frames: bool = False,
) -> ParallelSimulator:
    environment = _make_checked(build, settings.name, "rgb_array" if shows_frames else None)
    return ParallelSimulator(environment, settings, warned_parts)


def _make_checked(build: BuildFn, name: str, render_mode: str | None) -> Any:
    """Make an environment. Raise UsageError if it is not a parallel environment."""
    environment = make_suite_environment(name, build, render_mode)
    if is_aec(environment):
        environment.close()
        raise UsageError(f"{name}: {AEC_MESSAGE}")
    required = ("reset", "step", "observation_space", "action_space")
    missing = [method for method in required if not callable(getattr(environment, method, None))]
    if missing:
        raise UsageError(
            f"{name} must be a parallel environment of PettingZoo, got an object of "
            f"{type(environment).__name__} without the method {missing[0]}. Pass a class or a "
            "function that makes a pettingzoo.ParallelEnv."
        )
    return environment
