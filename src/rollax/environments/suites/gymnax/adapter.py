"""Adapter of gymnax environments (1.0 or newer), without automatic resets.

Termination and truncation follow `is_terminated` and `is_truncated` of gymnax. If both are true,
the episode terminates. `done` and `discount` of gymnax are not used. Differences from gymnax:

- Rewards are float32, and `terminated` and `truncated` are bool. UmbrellaChain and BernoulliBandit
  of gymnax return integer rewards.
- States and parameters have fixed dtypes. They can be scanned and vmapped, and changing a parameter
  does not cause recompilation.
- The dtypes of observations match their space. In gymnax, Catch declares floats as integers and
  FourRooms declares integers as floats. Here, both are float32.
- Binary boards of MinAtar are bool, which uses a quarter of the memory of float32.
- The bounds of observations are corrected for MemoryChain, GaussianBandit and MetaMaze.
- `total_mass` and `polemass_length` of CartPole are derived from `masscart`, `masspole` and
  `length`. In gymnax they are independent parameters, so changing a mass changes only part of the
  dynamics.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from rollax.environments.conversion import (
    cast_leaves,
    check_argument_names,
    convert_argument,
    leaf_dtypes,
    signature_defaults,
    to_parameter_array,
    to_positive_int,
)
from rollax.environments.environment import Transition
from rollax.environments.environment_text import format_environment, format_environment_html
from rollax.environments.suites import package_versions
from rollax.environments.suites.argument_checks import creation_error
from rollax.environments.suites.lazy_imports import defer_imports
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.errors import UsageError, describe_error
from rollax.spaces import ActionSpace, Box, Dict, Discrete, Space, map_space
from rollax.types import Action, Observation, PyTree, Setting, State

with defer_imports("seaborn", "matplotlib.pyplot"):
    import gymnax
    from gymnax.environments import environment as gymnax_environment
    from gymnax.environments import spaces as gymnax_spaces

_TIME_LIMIT_ARGUMENT = "max_steps_in_episode"
_UNREACHED_TIME_LIMIT = np.iinfo(np.int32).max  # no episode reaches it

# Parameters of CartPole that are derived from others.
_DERIVED_PARAMS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "CartPole-v1": {
        "total_mass": lambda params: params.masscart + params.masspole,
        "polemass_length": lambda params: params.masspole * params.length,
    }
}


class Gymnax(eqx.Module):
    """Gymnax environment.

    Attributes:
        params: Parameters of the environment as arrays. `DomainRandomization` can sample them. The
            parameter for the time limit is replaced by None.
        dynamics: Gymnax environment.
        name: Id of the environment.
        observation_space: Space of observations.
        action_space: Space of actions.
        state_dtypes: Dtypes of the leaves of a state.
        time_limit: Time limit in steps.
        is_legacy: Whether `done` includes the time limit, as before gymnax 1.0.
        num_agents: None, for a single agent.
    """

    params: Any
    dynamics: Any = eqx.field(static=True)
    name: str = eqx.field(static=True)
    observation_space: Space = eqx.field(static=True)
    action_space: ActionSpace = eqx.field(static=True)
    state_dtypes: tuple[str, ...] = eqx.field(static=True)
    time_limit: int = eqx.field(static=True)
    is_legacy: bool = eqx.field(static=True, default=False)
    num_agents: None = eqx.field(static=True, default=None)

    def __repr__(self) -> str:
        return format_environment(self)

    def _repr_html_(self) -> str:
        return format_environment_html(self)

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Return the state and the observation at the start of an episode."""
        obs, state = self.dynamics.reset_env(key, self._full_params())
        return cast_leaves(state, self.state_dtypes), _cast_to_space(obs, self.observation_space)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        """Return the transition of one step.

        At the time limit, the episode is truncated unless the task has terminated.
        """
        params = self._full_params()
        action = _cast_to_space(action, self.action_space)
        obs, state, reward, done, info = self.dynamics.step_env(key, state, action, params)
        is_truncated = jnp.asarray(self.dynamics.is_truncated(state, params), bool).reshape(())
        terminated = jnp.asarray(done, bool).reshape(())
        if self.is_legacy:
            # At the time limit, `is_terminal` shows termination only with a limit out of reach.
            endless = params.replace(
                **{_TIME_LIMIT_ARGUMENT: jnp.asarray(_UNREACHED_TIME_LIMIT, jnp.int32)}
            )
            terminated &= ~is_truncated | jnp.asarray(
                self.dynamics.is_terminal(state, endless), bool
            ).reshape(())
        return Transition(
            state=cast_leaves(state, self.state_dtypes),
            obs=_cast_to_space(obs, self.observation_space),
            reward=jnp.asarray(reward, jnp.float32).reshape(()),
            terminated=terminated,
            truncated=is_truncated & ~terminated,
            info=_select_scalars(info),
        )

    def _full_params(self) -> Any:
        derived = {
            name: rule(self.params) for name, rule in _get_derived_params(self.dynamics).items()
        }
        return self.params.replace(
            **{_TIME_LIMIT_ARGUMENT: jnp.asarray(self.time_limit, jnp.int32)}, **derived
        )


def make(name: str, arguments: dict[str, Setting]) -> Gymnax:
    """Build a gymnax environment.

    Args:
        name: Name of the environment in gymnax.
        arguments: Constructor arguments and parameters (see `default_arguments`).

    Returns:
        The environment.

    Raises:
        ModuleNotFoundError: If gymnax is not installed.
        UsageError: If gymnax is too old or rejects the arguments.
        UnknownNameError: If an argument does not exist.
    """
    package_versions.require_version("gymnax", "1.0")
    id = f"gymnax/{name}"
    constructor_defaults, _ = _default_constructor_and_params(name)
    constructor_values = {
        key: value for key, value in arguments.items() if key in constructor_defaults
    }
    constructor = {
        key: _to_hashable(id, key, convert_argument(id, key, value, constructor_defaults[key]))
        for key, value in constructor_values.items()
    }
    # Concrete values even inside a traced function, so that cached constants can be reused.
    with jax.ensure_compile_time_eval():
        changed = {
            key: value for key, value in constructor.items() if value != constructor_defaults[key]
        }
        dynamics = _make_dynamics(name, tuple(sorted(changed.items())))
        defaults = _default_params(dynamics)
        parameters = {
            key: value for key, value in arguments.items() if key not in constructor_values
        }
        check_argument_names(id, parameters, (*constructor_defaults, *defaults))
        values = defaults | {
            key: convert_argument(id, key, value, defaults[key])
            for key, value in parameters.items()
        }
        limit = to_positive_int(id, _TIME_LIMIT_ARGUMENT, values.pop(_TIME_LIMIT_ARGUMENT))
        host_values = {
            key: defaults[key] if isinstance(value, Tracer) else value
            for key, value in values.items()
        }
        host_params = dynamics.default_params.replace(
            **host_values,
            **{_TIME_LIMIT_ARGUMENT: type(dynamics.default_params.max_steps_in_episode)(limit)},
        )
    return _build_environment(
        id,
        dynamics,
        host_params,
        {key: to_parameter_array(value, defaults[key]) for key, value in values.items()},
        limit,
    )


def wrap_environment(id: str, dynamics: SuiteEnvironment, params: PyTree) -> Gymnax:
    """Build an environment from a gymnax environment object and its parameters.

    Classes written for gymnax before 1.0 define `is_terminal`, which includes the time limit, but
    not `is_terminated`. They are supported.

    Args:
        id: Id of the environment.
        dynamics: Gymnax environment.
        params: Parameters of the environment, or None for its default parameters.

    Returns:
        The environment.

    Raises:
        UsageError: If `dynamics` is not a gymnax environment, or its methods fail.
    """
    package_versions.require_version("gymnax", "1.0")
    if not isinstance(dynamics, gymnax_environment.Environment):
        raise UsageError(
            "environment must be an environment of gymnax 1.0 or newer, got an object of "
            f"{type(dynamics).__name__}."
        )
    params = dynamics.default_params if params is None else params
    if not (dataclasses.is_dataclass(params) and hasattr(params, _TIME_LIMIT_ARGUMENT)):
        raise UsageError(
            "params must be parameters of the environment, such as its default_params, got an "
            f"object of {type(params).__name__}. Change parameters with "
            "default_params.replace(NAME=VALUE)."
        )
    limit = to_positive_int(id, _TIME_LIMIT_ARGUMENT, getattr(params, _TIME_LIMIT_ARGUMENT))
    names = [
        field.name
        for field in dataclasses.fields(params)
        if field.metadata.get("pytree_node", True)
    ]
    derived = _get_derived_params(dynamics)
    leaves = {
        name: jax.tree.map(lambda leaf: to_parameter_array(leaf, leaf), getattr(params, name))
        for name in names
        if name != _TIME_LIMIT_ARGUMENT and name not in derived
    }
    is_legacy = _method_depth(dynamics, "is_terminal") < _method_depth(dynamics, "is_terminated")
    try:
        callable_dynamics = _add_is_terminated(dynamics) if is_legacy else dynamics
        return _build_environment(id, callable_dynamics, params, leaves, limit, is_legacy)
    except UsageError:
        raise
    except Exception as error:  # a custom class may raise any exception
        raise UsageError(
            f"{id}: from_gymnax must be able to call reset_env, step_env, is_truncated and the "
            f"spaces of {type(dynamics).__name__}, got {describe_error(error)} from one of "
            "them. Add the missing method, or correct the failing one. step_env returns (obs, "
            "state, reward, terminated, info), and the state counts steps in `time`."
        ) from error


def _method_depth(dynamics: SuiteEnvironment, method: str) -> int:
    """Return the position of the class that defines a method in the method resolution order."""
    return next(i for i, kind in enumerate(type(dynamics).__mro__) if method in vars(kind))


def _add_is_terminated(dynamics: SuiteEnvironment) -> Any:
    """Add `is_terminated`, which gymnax 1.0 requires, to a copy of a legacy environment."""
    if type(dynamics).is_terminated is not gymnax_environment.Environment.is_terminated:
        return dynamics
    copied = copy.copy(dynamics)
    object.__setattr__(copied, "is_terminated", copied.is_terminal)
    return copied


def _build_environment(
    id: str,
    dynamics: SuiteEnvironment,
    params: PyTree,
    leaves: dict[str, PyTree],
    limit: int,
    is_legacy: bool = False,
) -> Gymnax:
    """Build a `Gymnax` environment that stores `leaves`, parameters keyed by name, as arrays."""
    observation_space, action_space = _convert_spaces(dynamics, params)
    derived = dict.fromkeys(_get_derived_params(dynamics))
    return Gymnax(
        params=params.replace(**leaves, **derived, **{_TIME_LIMIT_ARGUMENT: None}),
        dynamics=dynamics,
        name=id,
        observation_space=observation_space,
        action_space=action_space,
        state_dtypes=_infer_state_dtypes(dynamics),
        time_limit=limit,
        is_legacy=is_legacy,
    )


def default_arguments(name: str) -> dict[str, Any]:
    """Return the defaults of the constructor arguments and gymnax parameters, keyed by name."""
    package_versions.require_version("gymnax", "1.0")
    constructor, parameters = _default_constructor_and_params(name)
    return constructor | parameters


def _default_constructor_and_params(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the defaults of the constructor arguments and the parameters, each keyed by name."""
    with jax.ensure_compile_time_eval():
        dynamics = _make_dynamics(name, ())
        parameters = _default_params(dynamics)
    return signature_defaults(type(dynamics)), parameters


@functools.cache
def _make_dynamics(name: str, constructor: tuple[tuple[str, Setting], ...]) -> Any:
    """Create a gymnax environment, cached so that equal environments share a compilation."""
    values = dict(constructor)
    seed = values.get("action_mapping_key")
    if seed is not None:
        values["action_mapping_key"] = jax.random.key(seed)
    try:
        return gymnax.make(name, **values)[0]
    except (ValueError, TypeError, AssertionError, IndexError) as error:
        raise creation_error("gymnax", name, dict(constructor), error) from error


def _default_params(dynamics: SuiteEnvironment) -> dict[str, Any]:
    """Return the defaults of the parameters that can be set, keyed by name."""
    params = dynamics.default_params
    values = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    values = {
        key: value for key, value in values.items() if key not in _get_derived_params(dynamics)
    }
    return values | {_TIME_LIMIT_ARGUMENT: int(values[_TIME_LIMIT_ARGUMENT])}


def _to_hashable(id: str, name: str, value: Setting) -> Any:
    if isinstance(value, jax.Array | np.ndarray):
        raise UsageError(
            f"{id}: {name} determines array shapes, so it must be a number, string or list, got an "
            "array."
        )
    return (
        tuple(map(functools.partial(_to_hashable, id, name), value))
        if isinstance(value, list | tuple)
        else value
    )


@functools.cache
def _infer_state_dtypes(dynamics: SuiteEnvironment) -> tuple[str, ...]:
    """Return the dtypes of the leaves of a state after a step."""

    def step() -> Any:
        params, key = jax.tree.map(jnp.asarray, dynamics.default_params), jax.random.key(0)
        reset_key, action_key, step_key = jax.random.split(key, 3)
        _, state = dynamics.reset_env(reset_key, params)
        action = dynamics.action_space(dynamics.default_params).sample(action_key)
        return dynamics.step_env(step_key, jax.tree.map(jnp.asarray, state), action, params)[1]

    return leaf_dtypes(jax.eval_shape(step))


def _convert_spaces(dynamics: SuiteEnvironment, params: PyTree) -> tuple[Space, Any]:
    """Return the observation and action spaces. Bounds and dtypes of observations are corrected."""
    with jax.ensure_compile_time_eval():
        observation_space, action_space = (
            _convert_space(dynamics.observation_space(params)),
            _convert_space(dynamics.action_space(params)),
        )
    if isinstance(observation_space, Box):
        actual = jax.eval_shape(lambda: dynamics.reset_env(jax.random.key(0), params)[0])
        # A custom subclass may return other values, so the module is checked instead of the class.
        is_board = type(dynamics).__module__.startswith("gymnax.environments.minatar.")
        dtype = (
            "bool" if is_board else jnp.promote_types(observation_space.dtype, actual.dtype).name
        )
        low, high = _observation_bounds(dynamics, observation_space)
        observation_space = Box(low, high, observation_space.shape, dtype)
    return observation_space, action_space


def _observation_bounds(dynamics: SuiteEnvironment, space: Box) -> tuple[Any, Any]:
    """Return the bounds of observations, with corrections where the gymnax bounds are wrong."""
    name, unbounded = _name_in_suite(dynamics), float(np.finfo(np.float32).max)
    if name == "MemoryChain-bsuite":  # time left, index of the queried bit, bits as -1 or 1
        bits = dynamics.num_bits
        return (0.0, 0.0, *[-1.0] * bits), (1.0, max(1.0, bits - 1.0), *[1.0] * bits)
    if name == "GaussianBandit-misc":  # last reward, last action one-hot, time
        return (-unbounded, 0.0, 0.0, -unbounded), (unbounded, 1.0, 1.0, unbounded)
    if name == "MetaMaze-misc":  # surroundings and last action one-hot, last reward, time
        num_features = space.shape[0] - 2
        return (*[0.0] * num_features, -unbounded, -unbounded), (
            *[1.0] * num_features,
            unbounded,
            unbounded,
        )
    return space.low, space.high


def _convert_space(space: gymnax_spaces.Space) -> Space:
    if isinstance(space, gymnax_spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, gymnax_spaces.Box):
        return Box(
            np.asarray(space.low).tolist(),
            np.asarray(space.high).tolist(),
            space.shape,
            jnp.dtype(space.dtype).name,
        )
    if isinstance(space, gymnax_spaces.Dict):
        return Dict({name: _convert_space(part) for name, part in space.spaces.items()})
    raise UsageError(f"gymnax's space {space} is not supported. Use Box, Discrete or Dict.")


def _cast_to_space(value: Observation, space: Space) -> Any:
    """Cast a value to the dtypes of a space, without checking its shape."""
    return map_space(lambda part, array: jnp.asarray(array, part.dtype), space, value)


def _select_scalars(info: dict[str, ArrayLike]) -> dict[str, jax.Array]:
    """Return the scalars in `info` as arrays. `discount` is omitted as it repeats `terminated`."""
    arrays = {name: jnp.asarray(value) for name, value in info.items() if name != "discount"}
    return {name: jnp.asarray(x, x.dtype) for name, x in arrays.items() if x.ndim == 0}


def _get_derived_params(dynamics: SuiteEnvironment) -> dict[str, Callable[[Any], Any]]:
    return _DERIVED_PARAMS.get(_name_in_suite(dynamics), {})


def _name_in_suite(dynamics: SuiteEnvironment) -> str:
    """Return the name of a built-in gymnax environment, or "" for a custom class."""
    return dynamics.name if type(dynamics).__module__.startswith("gymnax.") else ""
