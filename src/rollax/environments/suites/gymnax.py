"""The environments of gymnax (1.0 or newer), by their raw dynamics: no auto-reset, and ends told apart.

gymnax states in `is_terminated` when the task ended and in `is_truncated` when time was up; here a step that does both has
only terminated. Its own `done` and `discount` are not used. What is put right on the way:

- reward is float32 and ends are bool everywhere (UmbrellaChain and BernoulliBandit give whole-number rewards);
- states and parameters have definite types, so that they can be scanned, vmapped and changed without compiling again;
- observations have one type: Catch calls real numbers integers and FourRooms whole ones real, here both are float32;
- boards of MinAtar, of zeros and ones, are boolean, in a quarter of the memory that gymnax's float32 takes;
- bounds of observations hold: those of MemoryChain, GaussianBandit and MetaMaze do not in gymnax;
- CartPole's `total_mass` and `polemass_length` follow from `masscart`, `masspole` and `length`; in gymnax each is a number of
  its own, so that a changed mass would be half changed.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rollax.environments.convert import (
    as_leaf,
    check_names,
    convert,
    leaf_types,
    signature_defaults,
    step_limit,
    with_types,
)
from rollax.environments.core import Transition
from rollax.environments.suites import version
from rollax.environments.suites.later import later
from rollax.errors import UsageError
from rollax.spaces import ActionSpace, Box, Dict, Discrete, Space

with later("seaborn", "matplotlib.pyplot"):
    import gymnax
    from gymnax.environments import environment as gymnax_environment
    from gymnax.environments import spaces as gymnax_spaces

_LIMIT = "max_steps_in_episode"

# Parameters of CartPole that follow from others, and how.
_DERIVED: dict[str, dict[str, Callable[[Any], Any]]] = {
    "CartPole-v1": {
        "total_mass": lambda params: params.masscart + params.masspole,
        "polemass_length": lambda params: params.masspole * params.length,
    }
}


class Gymnax(eqx.Module):
    """One gymnax environment. The leaves of `params` are its physics: `vmap` over any of them to randomize it."""

    params: Any  # the environment's EnvParams with arrays; its time limit is `time_limit` instead
    dynamics: Any = eqx.field(static=True)
    name: str = eqx.field(static=True)
    observation_space: Space = eqx.field(static=True)
    action_space: ActionSpace = eqx.field(static=True)
    state_types: tuple[str, ...] = eqx.field(static=True)
    time_limit: int = eqx.field(static=True)
    num_agents: None = eqx.field(static=True, default=None)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """`(state, obs)` at the start of an episode."""
        obs, state = self.dynamics.reset_env(key, self._full_params())
        return with_types(state, self.state_types), _typed(obs, self.observation_space)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """One step, without gymnax's reset. `truncated` is the time limit where the task did not end as well."""
        params = self._full_params()
        action = _typed(action, self.action_space)
        obs, state, reward, terminated, info = self.dynamics.step_env(key, state, action, params)
        terminated = jnp.asarray(terminated, bool).reshape(())
        return Transition(
            state=with_types(state, self.state_types),
            obs=_typed(obs, self.observation_space),
            reward=jnp.asarray(reward, jnp.float32).reshape(()),
            terminated=terminated,
            truncated=jnp.asarray(self.dynamics.is_truncated(state, params), bool).reshape(()) & ~terminated,
            info=_scalars(info),
        )

    def _full_params(self) -> Any:
        derived = {name: rule(self.params) for name, rule in _derived(self.dynamics).items()}
        return self.params.replace(**{_LIMIT: jnp.asarray(self.time_limit, jnp.int32)}, **derived)


def make(name: str, arguments: dict[str, Any]) -> Gymnax:
    """The gymnax environment of that name; arguments are fields of its parameters or of its constructor.

    Raises: UsageError when gymnax is too old or refuses the arguments; UnknownNameError for an unknown argument.
    """
    version.require("gymnax", "1.0")
    id = f"gymnax/{name}"
    constructor_defaults, _ = _defaults(name)
    shaping = {key: value for key, value in arguments.items() if key in constructor_defaults}
    constructor = {
        key: _hashable(id, key, convert(id, key, value, constructor_defaults[key])) for key, value in shaping.items()
    }
    # Concrete even inside a traced function, so that the constants may be kept and used again.
    with jax.ensure_compile_time_eval():
        other = {key: value for key, value in constructor.items() if value != constructor_defaults[key]}
        dynamics = _dynamics(name, tuple(sorted(other.items())))
        defaults = _parameters(dynamics)
        given = {key: value for key, value in arguments.items() if key not in shaping}
        check_names(id, given, (*constructor_defaults, *defaults))
        values = defaults | {key: convert(id, key, value, defaults[key]) for key, value in given.items()}
        limit = step_limit(id, _LIMIT, values.pop(_LIMIT))
        known = {key: defaults[key] if isinstance(value, Tracer) else value for key, value in values.items()}
        host = dynamics.default_params.replace(**known, **{_LIMIT: type(dynamics.default_params.max_steps_in_episode)(limit)})
    return _assembled(id, dynamics, host, {key: as_leaf(value, defaults[key]) for key, value in values.items()}, limit)


def wrapped(id: str, dynamics: Any, params: Any) -> Gymnax:
    """The environment around an object of gymnax's and its parameters. Raises UsageError for what is none."""
    version.require("gymnax", "1.0")
    if not isinstance(dynamics, gymnax_environment.Environment):
        raise UsageError(f"from_gymnax takes an environment of gymnax 1.0, not a {type(dynamics).__name__}.")
    params = dynamics.default_params if params is None else params
    if not (dataclasses.is_dataclass(params) and hasattr(params, _LIMIT)):
        raise UsageError(
            f"from_gymnax takes the parameters of an environment, as its default_params are, not a {type(params).__name__}: "
            "default_params.replace(NAME=VALUE) changes some."
        )
    limit = step_limit(id, _LIMIT, getattr(params, _LIMIT))
    names = [field.name for field in dataclasses.fields(params) if field.metadata.get("pytree_node", True)]
    derived = _derived(dynamics)
    leaves = {name: _leaves(getattr(params, name)) for name in names if name != _LIMIT and name not in derived}
    return _assembled(id, dynamics, params, leaves, limit)


def _leaves(value: Any) -> Any:
    return jax.tree.map(lambda leaf: as_leaf(leaf, leaf), value)


def _assembled(id: str, dynamics: Any, params: Any, leaves: dict[str, Any], limit: int) -> Gymnax:
    """The environment of those parameters, of which `leaves` are data."""
    observation_space, action_space = _spaces(dynamics, params)
    derived = dict.fromkeys(_derived(dynamics))
    return Gymnax(
        params=params.replace(**leaves, **derived, **{_LIMIT: None}),
        dynamics=dynamics,
        name=id,
        observation_space=observation_space,
        action_space=action_space,
        state_types=_state_types(dynamics),
        time_limit=limit,
    )


def arguments(name: str) -> dict[str, Any]:
    """The arguments of the constructor and the fields of the parameters, with their defaults."""
    version.require("gymnax", "1.0")
    constructor, parameters = _defaults(name)
    return constructor | parameters


def _defaults(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Defaults of the constructor and of the parameters."""
    with jax.ensure_compile_time_eval():
        dynamics = _dynamics(name, ())
        parameters = _parameters(dynamics)
    return signature_defaults(type(dynamics)), parameters


@functools.cache
def _dynamics(name: str, constructor: tuple[tuple[str, Any], ...]) -> Any:
    """One object for the same arguments, so that making an environment twice does not compile it twice."""
    values = dict(constructor)
    seed = values.get("action_mapping_key")
    if seed is not None:
        values["action_mapping_key"] = jax.random.key(seed)
    try:
        return gymnax.make(name, **values)[0]
    except (ValueError, TypeError, AssertionError, IndexError) as error:
        shown = ", ".join(f"{key}={value!r}" for key, value in constructor)
        raise UsageError(f"gymnax refuses to make {name} with {shown}: {error or 'it states no reason'}.") from error


def _parameters(dynamics: Any) -> dict[str, Any]:
    """The parameters that may be given, and their defaults."""
    params = dynamics.default_params
    values = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    values = {key: value for key, value in values.items() if key not in _derived(dynamics)}
    return values | {_LIMIT: int(values[_LIMIT])}


def _hashable(id: str, name: str, value: Any) -> Any:
    if isinstance(value, jax.Array | np.ndarray):
        raise UsageError(f"{id}: {name} shapes the program, so it must be a plain number, text or list, not an array.")
    return tuple(map(functools.partial(_hashable, id, name), value)) if isinstance(value, list | tuple) else value


@functools.cache
def _state_types(dynamics: Any) -> tuple[str, ...]:
    """The types of a state's leaves after a step, which those of a reset are cast to."""

    def step() -> Any:
        params, key = jax.tree.map(jnp.asarray, dynamics.default_params), jax.random.key(0)
        reset_key, action_key, step_key = jax.random.split(key, 3)
        _, state = dynamics.reset_env(reset_key, params)
        action = dynamics.action_space(dynamics.default_params).sample(action_key)
        return dynamics.step_env(step_key, jax.tree.map(jnp.asarray, state), action, params)[1]

    return leaf_types(jax.eval_shape(step))


def _spaces(dynamics: Any, params: Any) -> tuple[Space, Any]:
    """The spaces of observations and actions, with bounds that hold and the type that observations have."""
    with jax.ensure_compile_time_eval():
        observation_space, action_space = _space(dynamics.observation_space(params)), _space(dynamics.action_space(params))
    if isinstance(observation_space, Box):
        actual = jax.eval_shape(lambda: dynamics.reset_env(jax.random.key(0), params)[0])
        # By module: what a user derives from a game may show other numbers.
        is_board = type(dynamics).__module__.startswith("gymnax.environments.minatar.")
        dtype = "bool" if is_board else jnp.promote_types(observation_space.dtype, actual.dtype).name
        low, high = _bounds(dynamics, observation_space)
        observation_space = Box(low, high, observation_space.shape, dtype)
    return observation_space, action_space


def _bounds(dynamics: Any, space: Box) -> tuple[Any, Any]:
    """The bounds of observations where gymnax states them wrongly, or else its own."""
    name, unbounded = _name_in_suite(dynamics), float(np.finfo(np.float32).max)
    if name == "MemoryChain-bsuite":  # time left, which bit is asked for, the bits as -1 or 1
        bits = dynamics.num_bits
        return (0.0, 0.0, *[-1.0] * bits), (1.0, max(1.0, bits - 1.0), *[1.0] * bits)
    if name == "GaussianBandit-misc":  # last reward, last action one-hot, time
        return (-unbounded, 0.0, 0.0, -unbounded), (unbounded, 1.0, 1.0, unbounded)
    if name == "MetaMaze-misc":  # surroundings and last action one-hot, last reward, time
        shown = space.shape[0] - 2
        return (*[0.0] * shown, -unbounded, -unbounded), (*[1.0] * shown, unbounded, unbounded)
    return space.low, space.high


def _space(space: Any) -> Space:
    if isinstance(space, gymnax_spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, gymnax_spaces.Box):
        return Box(np.asarray(space.low).tolist(), np.asarray(space.high).tolist(), space.shape, jnp.dtype(space.dtype).name)
    if isinstance(space, gymnax_spaces.Dict):
        return Dict({name: _space(part) for name, part in space.spaces.items()})
    raise UsageError(f"rollax has no space like gymnax's {space}: it knows Box, Discrete, MultiDiscrete and Dict.")


def _typed(value: Any, space: Space) -> Any:
    """A value with the space's types. Shapes are left as they are, for `check_environment` to judge."""
    if isinstance(space, Dict):
        return {name: _typed(value[name], part) for name, part in space.items}
    return jnp.asarray(value, space.dtype)


def _scalars(info: dict[str, Any]) -> dict[str, jax.Array]:
    """The scalars of `info` with definite types; `discount` only repeats `terminated`."""
    arrays = {name: jnp.asarray(value) for name, value in info.items() if name != "discount"}
    return {name: jnp.asarray(x, x.dtype) for name, x in arrays.items() if x.ndim == 0}


def _derived(dynamics: Any) -> dict[str, Callable[[Any], Any]]:
    return _DERIVED.get(_name_in_suite(dynamics), {})


def _name_in_suite(dynamics: Any) -> str:
    """What gymnax calls its own environment, whatever its runs are called; "" for what a user derived from one."""
    return dynamics.name if type(dynamics).__module__.startswith("gymnax.") else ""
