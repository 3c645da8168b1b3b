"""The environments of Craftax (1.6 or newer; Matthews et al. 2024, arXiv:2402.16801), by their raw dynamics: no auto-reset.

Craftax has one `done` for death, a beaten boss and the time limit; here the first two terminate and the last truncates. What
is put right on the way:

- rewards are float32, ends bool, states of definite types, and pictures 8-bit pixels (Craftax gives shares of 255);
- bounds of symbolic observations hold: enchantments, experience and the health of the dead lie outside of 0 ... 1;
- pictures are made of textures that stay in memory: Craftax keeps them, pickled, in the folder it is installed in.

`info` has the achievements, each 1 from the step on that unlocks it, their number, and what the step adds to the score that
papers report: the return in percent of the largest, 226 (of Craftax-Classic 22).
"""

import functools
import importlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rollax.environments.convert import as_leaf, convert_all, leaf_types, signature_defaults, step_limit, with_types
from rollax.environments.core import Transition
from rollax.environments.suites import version
from rollax.environments.suites.later import later
from rollax.environments.suites.silence import silenced
from rollax.errors import UsageError
from rollax.spaces import Box, Discrete

_LIMIT = "max_timesteps"
_NEVER = np.iinfo(np.int32).max  # a time limit that no episode reaches
_LEFT_OUT = ("fractal_noise_angles", "num_levels")  # for the suite's own tests; the worlds are nine


class Craftax(eqx.Module):
    """One environment of the suite. The leaves of `params` are numbers of its rules, such as `day_length`."""

    params: Any  # the suite's EnvParams with arrays, without its time limit
    dynamics: Any = eqx.field(static=True)
    name: str = eqx.field(static=True)
    observation_space: Box = eqx.field(static=True)
    action_space: Discrete = eqx.field(static=True)
    achievements: tuple[str, ...] = eqx.field(static=True)
    largest_return: float = eqx.field(static=True)  # that of all achievements
    state_types: tuple[str, ...] = eqx.field(static=True)
    time_limit: int = eqx.field(static=True)
    num_agents: None = eqx.field(static=True, default=None)

    @property
    def info_reductions(self) -> dict[str, str]:
        return {"score_percent": "sum"} | dict.fromkeys(("achievements", *map(_info_name, self.achievements)), "last")

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """`(state, obs)` at the start of an episode."""
        obs, state = _reset(self.dynamics, self.params, key)
        return with_types(state, self.state_types), _typed(obs, self.observation_space)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """One step. `truncated` is the time limit where the player neither died nor won."""
        obs, state, reward, terminated = _step(self.dynamics, self.params, key, state, jnp.asarray(action, jnp.int32))
        reward, unlocked = jnp.asarray(reward, jnp.float32), state.achievements.astype(jnp.float32)
        told = {_info_name(name): unlocked[place] for place, name in enumerate(self.achievements)}
        return Transition(
            state=with_types(state, self.state_types),
            obs=_typed(obs, self.observation_space),
            reward=reward,
            terminated=terminated,
            truncated=(state.timestep >= self.time_limit) & ~terminated,
            info={"achievements": unlocked.sum(), "score_percent": reward * (100 / self.largest_return), **told},
        )


# Compiled also where a user steps by hand: operation by operation, one step takes seconds.
@functools.partial(jax.jit, static_argnums=0)
def _reset(dynamics: Any, params: Any, key: jax.Array) -> Any:
    return dynamics.reset_env(key, params.replace(**{_LIMIT: _NEVER}))


@functools.partial(jax.jit, static_argnums=0)
def _step(dynamics: Any, params: Any, key: jax.Array, state: Any, action: jax.Array) -> Any:
    params = params.replace(**{_LIMIT: _NEVER})
    obs, state, reward, done, _ = dynamics.step_env(key, state, action, params)
    return obs, state, reward, jnp.asarray(done, bool)


def _info_name(achievement: str) -> str:
    return f"achievements/{achievement}"


def _typed(obs: jax.Array, space: Box) -> jax.Array:
    if space.dtype == "uint8":
        return jnp.round(obs * 255).astype(jnp.uint8)
    return obs.astype(space.dtype)


def make(name: str, arguments: dict[str, Any]) -> Craftax:
    """The environment of that name. Raises UsageError and UnknownNameError for arguments that do not fit."""
    id = f"craftax/{name}"
    params, sizes = _defaults(name)
    given = params | sizes | convert_all(id, arguments, params | sizes)
    if any(isinstance(given[key], Tracer) for key in sizes):
        raise UsageError(f"{id}: {', '.join(sizes)} shape the program, so they must be plain values.")
    limit = step_limit(id, _LIMIT, given[_LIMIT])
    # Concrete even inside a traced function, so that the constants may be kept and used again.
    with jax.ensure_compile_time_eval():
        dynamics = _dynamics(name, tuple((key, given[key]) for key in sizes))
        space, types = _described(id, dynamics)
        enum, largest = _constants(name)
    leaves = {key: as_leaf(given[key], default) for key, default in params.items() if key != _LIMIT}
    return Craftax(
        params=dynamics.default_params.replace(**leaves, **{_LIMIT: None}),
        dynamics=dynamics,
        name=id,
        observation_space=space,
        action_space=Discrete(int(dynamics.num_actions)),
        achievements=enum,
        largest_return=largest,
        state_types=types,
        time_limit=limit,
    )


def arguments(name: str) -> dict[str, Any]:
    """The suite's parameters and the sizes of its worlds, with their defaults."""
    params, sizes = _defaults(name)
    return params | sizes


def _module(name: str, module: str) -> Any:
    """A module of Craftax or of Craftax-Classic, with arrays that any trace may use."""
    game = "craftax_classic" if name.startswith("Craftax-Classic") else "craftax"
    with later("matplotlib.pyplot", "pygame"), jax.ensure_compile_time_eval():
        return importlib.import_module(f"craftax.{game}.{module}")


def _class(name: str) -> Any:
    version.require("craftax", "1.6")
    kind = "pixels" if "Pixels" in name else "symbolic"
    module = _module(name, f"envs.craftax_{kind}_env")
    return getattr(module, f"{name.removesuffix('-v1').replace('-', '')}EnvNoAutoReset")


@functools.cache
def _defaults(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters that may be traced (all but the time limit), and sizes that may not."""
    found = _class(name)
    with jax.ensure_compile_time_eval():
        made = found.default_params.fget(None), found.default_static_params()
    params, sizes = ({key: getattr(each, key) for key in signature_defaults(type(each))} for each in made)
    return (
        {key: value for key, value in params.items() if key not in _LEFT_OUT},
        {key: value for key, value in sizes.items() if key not in _LEFT_OUT},
    )


@functools.cache
def _dynamics(name: str, sizes: tuple[tuple[str, Any], ...]) -> Any:
    """One object for the same arguments, so that making an environment twice does not compile it twice."""
    _module(name, "renderer").load_all_textures = lambda: _Textures(name)
    found = _class(name)
    with silenced():
        return found(found.default_static_params().replace(**dict(sizes)))


class _Textures:
    """The textures of one game by the size of a block in pixels, each made when it is asked for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, size: int) -> Any:
        return _textures(self.name.startswith("Craftax-Classic"), size)


@functools.cache
def _textures(is_classic: bool, size: int) -> Any:
    name = "Craftax-Classic" if is_classic else "Craftax"
    with jax.ensure_compile_time_eval(), silenced():
        return _module(name, "constants").load_all_textures_given_size(size)


def renderer(environment: Craftax, size: int) -> Any:
    """The suite's function from a state to a picture `[H, W, 3]`, 0 ... 255, with blocks of that size in pixels."""
    return _renderer(environment.dynamics, environment.name.split("/")[1], size)


@functools.cache
def _renderer(dynamics: Any, name: str, size: int) -> Any:
    _module(name, "renderer").load_all_textures = lambda: _Textures(name)
    return jax.jit(_module(name, "renderer").make_craftax_pixel_renderer(size))


@functools.cache
def _described(id: str, dynamics: Any) -> tuple[Box, tuple[str, ...]]:
    """The space of observations, and the types of a state as a step leaves it."""

    def step(key: jax.Array) -> Any:
        params = jax.tree.map(jnp.asarray, dynamics.default_params)
        obs, state = dynamics.reset_env(key, params)
        return obs, dynamics.step_env(key, jax.tree.map(jnp.asarray, state), jnp.zeros((), jnp.int32), params)[1]

    try:
        with jax.debug_key_reuse(False):
            obs, state = jax.eval_shape(step, jax.eval_shape(lambda: jax.random.key(0)))
    except (ValueError, TypeError, IndexError, AssertionError) as error:
        raise UsageError(f"Craftax refuses to make {id} with these sizes: {str(error).splitlines()[0]}.") from error
    is_picture = len(obs.shape) == 3
    space = Box(0, 255, obs.shape, "uint8") if is_picture else Box(-np.inf, np.inf, obs.shape)
    return space, leaf_types(state)


@functools.cache
def _constants(name: str) -> tuple[tuple[str, ...], float]:
    """The achievements in the order of a state's, and the sum of their rewards."""
    constants = _module(name, "constants")
    names = sorted(constants.Achievement, key=lambda achievement: achievement.value)
    rewards = getattr(constants, "ACHIEVEMENT_REWARD_MAP", np.ones(len(names)))
    return tuple(achievement.name.lower() for achievement in names), float(np.sum(rewards))
