"""Adapter of Craftax environments (1.6 or newer; Matthews et al. 2024, arXiv:2402.16801).

Episodes do not reset automatically. Craftax has a single flag `done`. Here, death and the defeat of
the boss terminate the episode, and the time limit truncates it. Other differences from Craftax:

- Rewards are float32, `terminated` and `truncated` are bool, and states have fixed dtypes.
- Images are 8-bit pixels. Craftax returns pixels divided by 255.
- The space of symbolic observations is unbounded. Craftax declares [0, 1], but enchantments,
  experience and the health of dead creatures are outside of these bounds.
- Textures stay in memory. Craftax stores them as pickles in its installation folder.

`info` contains a flag for each achievement (1 from the step that unlocks it), the number of
achievements, and the contribution of the step to the score that papers report. This score is the
return in percent of the maximum, which is 226 (22 in Craftax-Classic).
"""

import functools
import importlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rollax.environments.conversion import (
    cast_leaves,
    convert_arguments,
    leaf_dtypes,
    signature_defaults,
    to_parameter_array,
    to_positive_int,
)
from rollax.environments.environment import Transition
from rollax.environments.environment_text import format_environment, format_environment_html
from rollax.environments.suites import package_versions
from rollax.environments.suites.lazy_imports import defer_imports
from rollax.environments.suites.output_capture import suppress_output
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.errors import UsageError
from rollax.spaces import Box, Discrete
from rollax.types import Action, Observation, PyTree, Setting, State

_TIME_LIMIT_ARGUMENT = "max_timesteps"
_UNREACHED_TIME_LIMIT = np.iinfo(np.int32).max  # no episode reaches it
# Arguments for the tests of Craftax. The number of worlds is always nine.
_EXCLUDED_ARGUMENTS = ("fractal_noise_angles", "num_levels")


class Craftax(eqx.Module):
    """Craftax environment.

    Attributes:
        params: Craftax parameters as arrays, such as `day_length`. `DomainRandomization` can sample
            them. The parameter for the time limit is replaced by None.
        dynamics: Craftax environment.
        name: Id of the environment.
        observation_space: Space of observations.
        action_space: Space of actions.
        achievements: Names of the achievements, in the order of the state.
        max_return: Sum of the rewards for all achievements.
        state_dtypes: Dtypes of the leaves of a state.
        time_limit: Time limit in steps.
        num_agents: None, for a single agent.
    """

    params: Any
    dynamics: Any = eqx.field(static=True)
    name: str = eqx.field(static=True)
    observation_space: Box = eqx.field(static=True)
    action_space: Discrete = eqx.field(static=True)
    achievements: tuple[str, ...] = eqx.field(static=True)
    max_return: float = eqx.field(static=True)
    state_dtypes: tuple[str, ...] = eqx.field(static=True)
    time_limit: int = eqx.field(static=True)
    num_agents: None = eqx.field(static=True, default=None)

    def __repr__(self) -> str:
        return format_environment(self)

    def _repr_html_(self) -> str:
        return format_environment_html(self)

    @property
    def info_reductions(self) -> dict[str, str]:
        return {"score_percent": "sum"} | dict.fromkeys(
            ("achievements", *map(_achievement_info_name, self.achievements)), "last"
        )

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Return the state and the observation at the start of an episode."""
        obs, state = _reset(self.dynamics, self.params, key)
        return cast_leaves(state, self.state_dtypes), _convert_observation(
            obs, self.observation_space
        )

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        """Return the transition of one step.

        At the time limit, the episode is truncated unless the player has died or won.
        """
        obs, state, reward, terminated = _step(
            self.dynamics, self.params, key, state, jnp.asarray(action, jnp.int32)
        )
        reward, unlocked = jnp.asarray(reward, jnp.float32), state.achievements.astype(jnp.float32)
        achievement_info = {
            _achievement_info_name(name): unlocked[place]
            for place, name in enumerate(self.achievements)
        }
        return Transition(
            state=cast_leaves(state, self.state_dtypes),
            obs=_convert_observation(obs, self.observation_space),
            reward=reward,
            terminated=terminated,
            truncated=(state.timestep >= self.time_limit) & ~terminated,
            info={
                "achievements": unlocked.sum(),
                "score_percent": reward * (100 / self.max_return),
                **achievement_info,
            },
        )


# Compiled because a step outside of jit would take seconds.
@functools.partial(jax.jit, static_argnums=0)
def _reset(dynamics: SuiteEnvironment, params: PyTree, key: jax.Array) -> Any:
    return dynamics.reset_env(key, params.replace(**{_TIME_LIMIT_ARGUMENT: _UNREACHED_TIME_LIMIT}))


@functools.partial(jax.jit, static_argnums=0)
def _step(
    dynamics: SuiteEnvironment, params: PyTree, key: jax.Array, state: State, action: jax.Array
) -> Any:
    params = params.replace(**{_TIME_LIMIT_ARGUMENT: _UNREACHED_TIME_LIMIT})
    obs, state, reward, done, _ = dynamics.step_env(key, state, action, params)
    return obs, state, reward, jnp.asarray(done, bool)


def _achievement_info_name(achievement: str) -> str:
    return f"achievements/{achievement}"


def _convert_observation(obs: jax.Array, space: Box) -> jax.Array:
    if space.dtype == "uint8":
        return jnp.round(obs * 255).astype(jnp.uint8)
    return obs.astype(space.dtype)


def make(name: str, arguments: dict[str, Setting]) -> Craftax:
    """Build a Craftax environment.

    Args:
        name: Name of the environment in Craftax.
        arguments: Craftax parameters and world sizes (see `default_arguments`).

    Returns:
        The environment.

    Raises:
        ModuleNotFoundError: If Craftax is not installed.
        UsageError: If Craftax is too old or rejects the arguments.
        UnknownNameError: If an argument does not exist.
    """
    id = f"craftax/{name}"
    params, sizes = _default_params_and_sizes(name)
    values = params | sizes | convert_arguments(id, arguments, params | sizes)
    if any(isinstance(values[key], Tracer) for key in sizes):
        raise UsageError(
            f"{id}: {', '.join(sizes)} determine array shapes, so they must be plain values, got "
            "traced ones."
        )
    limit = to_positive_int(id, _TIME_LIMIT_ARGUMENT, values[_TIME_LIMIT_ARGUMENT])
    # Concrete values even inside a traced function, so that cached constants can be reused.
    with jax.ensure_compile_time_eval():
        dynamics = _make_dynamics(name, tuple((key, values[key]) for key in sizes))
        space, types = _infer_space_and_dtypes(id, dynamics)
        enum, largest = _load_achievements(name)
    leaves = {
        key: to_parameter_array(values[key], default)
        for key, default in params.items()
        if key != _TIME_LIMIT_ARGUMENT
    }
    return Craftax(
        params=dynamics.default_params.replace(**leaves, **{_TIME_LIMIT_ARGUMENT: None}),
        dynamics=dynamics,
        name=id,
        observation_space=space,
        action_space=Discrete(int(dynamics.num_actions)),
        achievements=enum,
        max_return=largest,
        state_dtypes=types,
        time_limit=limit,
    )


def default_arguments(name: str) -> dict[str, Any]:
    """Return the defaults of the Craftax parameters and world sizes, keyed by name."""
    params, sizes = _default_params_and_sizes(name)
    return params | sizes


def _import_suite_module(name: str, module: str) -> Any:
    """Import a module of Craftax or Craftax-Classic, even while JAX traces a function."""
    game = "craftax_classic" if name.startswith("Craftax-Classic") else "craftax"
    with defer_imports("matplotlib.pyplot", "pygame"), jax.ensure_compile_time_eval():
        return importlib.import_module(f"craftax.{game}.{module}")


def _load_class(name: str) -> Any:
    package_versions.require_version("craftax", "1.6")
    kind = "pixels" if "Pixels" in name else "symbolic"
    module = _import_suite_module(name, f"envs.craftax_{kind}_env")
    return getattr(module, f"{name.removesuffix('-v1').replace('-', '')}EnvNoAutoReset")


@functools.cache
def _default_params_and_sizes(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the defaults of parameters (can be traced) and world sizes (static), keyed by name."""
    found = _load_class(name)
    with jax.ensure_compile_time_eval():
        defaults = found.default_params.fget(None), found.default_static_params()
    params, sizes = (
        {key: getattr(group, key) for key in signature_defaults(type(group))} for group in defaults
    )
    return (
        {key: value for key, value in params.items() if key not in _EXCLUDED_ARGUMENTS},
        {key: value for key, value in sizes.items() if key not in _EXCLUDED_ARGUMENTS},
    )


@functools.cache
def _make_dynamics(name: str, sizes: tuple[tuple[str, Setting], ...]) -> Any:
    """Create a Craftax environment, cached so that equal environments share a compilation."""
    _import_suite_module(name, "renderer").load_all_textures = lambda: _LazyTextures(name)
    found = _load_class(name)
    with suppress_output():
        return found(found.default_static_params().replace(**dict(sizes)))


class _LazyTextures:
    """Textures of a game, keyed by block size in pixels, and created on first access."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, size: int) -> Any:
        return _load_textures(self.name.startswith("Craftax-Classic"), size)


@functools.cache
def _load_textures(is_classic: bool, size: int) -> Any:
    name = "Craftax-Classic" if is_classic else "Craftax"
    with jax.ensure_compile_time_eval(), suppress_output():
        return _import_suite_module(name, "constants").load_all_textures_given_size(size)


def make_renderer(environment: Craftax, size: int) -> Any:
    """Return the jitted renderer of a Craftax environment.

    Args:
        environment: Craftax environment.
        size: Size of a block in pixels.

    Returns:
        Jitted function from a state to an image `[H, W, 3]` with values from 0 to 255.
    """
    return _make_renderer(environment.dynamics, environment.name.split("/")[1], size)


@functools.cache
def _make_renderer(dynamics: SuiteEnvironment, name: str, size: int) -> Any:
    _import_suite_module(name, "renderer").load_all_textures = lambda: _LazyTextures(name)
    return jax.jit(_import_suite_module(name, "renderer").make_craftax_pixel_renderer(size))


@functools.cache
def _infer_space_and_dtypes(id: str, dynamics: SuiteEnvironment) -> tuple[Box, tuple[str, ...]]:
    """Return the observation space, and the dtypes of the leaves of a state after a step."""

    def step(key: jax.Array) -> Any:
        params = jax.tree.map(jnp.asarray, dynamics.default_params)
        obs, state = dynamics.reset_env(key, params)
        return obs, dynamics.step_env(
            key, jax.tree.map(jnp.asarray, state), jnp.zeros((), jnp.int32), params
        )[1]

    try:
        with jax.debug_key_reuse(False):
            obs, state = jax.eval_shape(step, jax.eval_shape(lambda: jax.random.key(0)))
    except (ValueError, TypeError, IndexError, AssertionError) as error:
        raise UsageError(
            f"Craftax cannot create {id} with these sizes: {str(error).splitlines()[0]}."
        ) from error
    is_picture = len(obs.shape) == 3
    space = Box(0, 255, obs.shape, "uint8") if is_picture else Box(-np.inf, np.inf, obs.shape)
    return space, leaf_dtypes(state)


@functools.cache
def _load_achievements(name: str) -> tuple[tuple[str, ...], float]:
    """Return the achievement names, in the order of the state, and their total reward."""
    constants = _import_suite_module(name, "constants")
    names = sorted(constants.Achievement, key=lambda achievement: achievement.value)
    rewards = getattr(constants, "ACHIEVEMENT_REWARD_MAP", np.ones(len(names)))
    return tuple(achievement.name.lower() for achievement in names), float(np.sum(rewards))
