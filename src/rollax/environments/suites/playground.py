"""MuJoCo Playground (0.2 or newer; Zakka et al. 2025, arXiv:2502.08844): the tasks of the DeepMind Control Suite in MJX.

Raw environments have no horizon: `done` is what ends the task, here only a simulation that has broken, and the time limit is
rollax's own. Physics are computed by JAX (`impl`), not by Warp, Playground's default, whose states cannot begin anew one by
one. What is put right on the way:

- a step writes into the dictionaries of the state that it is given; here that state stays as it was;
- a simulation that breaks gives numbers that are not finite, from which nothing could learn any more; here that step has the
  observation before it and no reward;
- rewards are float32, ends bool, and states of definite types.

Where observations are a dictionary, "privileged_state" is the part "global_state", which critics alone see. `info` has the
parts that rewards are made of. Tasks of locomotion and manipulation are not offered: they clone a repository of robots.
"""

import copy
import functools
import importlib
import importlib.metadata
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rollax.environments.convert import convert_all, leaf_types, step_limit, with_types
from rollax.environments.core import Transition
from rollax.environments.suites.breaking import as_finite
from rollax.environments.suites.later import without_their_own
from rollax.environments.suites.silence import silenced
from rollax.errors import UsageError
from rollax.spaces import Box, Dict

without_their_own("mujoco_playground", "mujoco_playground._src")
with silenced(), jax.ensure_compile_time_eval():
    suite: Any = importlib.import_module("mujoco_playground._src.dm_control_suite")

CHOICES = {"impl": ("jax",)}
_LIMIT = "episode_length"
_LEFT_OUT = ("action_repeat", "vision")  # a view repeats actions (`ActionRepeat`); pictures need Warp
# Numbers of the physics, and where MuJoCo's model has them.
_PHYSICS = {
    "gravity": "opt.gravity",
    "mass": "body_mass",
    "inertia": "body_inertia",
    "damping": "dof_damping",
    "armature": "dof_armature",
    "gear": "actuator_gear",
    "friction": "geom_friction",
}


class PlaygroundState(NamedTuple):
    raw: Any  # the suite's own state
    time: jax.Array  # int32 []: steps taken


class Playground(eqx.Module):
    """One task of the suite. The leaves are its physics; what MuJoCo derives from them once stays as it is."""

    physics: dict[str, jax.Array]
    dynamics: Any = eqx.field(static=True)
    name: str = eqx.field(static=True)
    observation_space: Box | Dict = eqx.field(static=True)
    action_space: Box = eqx.field(static=True)
    state_types: tuple[str, ...] = eqx.field(static=True)
    told: tuple[str, ...] = eqx.field(static=True)  # numbers of the suite's metrics
    time_limit: int = eqx.field(static=True)
    num_agents: None = eqx.field(static=True, default=None)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """`(state, obs)` at the start of an episode."""
        raw = with_types(_reset(self.dynamics, self.physics, key), self.state_types)
        return PlaygroundState(raw, jnp.zeros((), jnp.int32)), _observed(raw.obs)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """One step. `truncated` is the time limit where the simulation did not break."""
        del key  # the suite has one in its state
        after = _step(self.dynamics, self.physics, state.raw, jnp.asarray(action))
        raw = with_types(as_finite(state.raw, after, (after.data.qpos, after.data.qvel)), self.state_types)
        time, terminated = state.time + 1, raw.done > 0.5
        return Transition(
            state=PlaygroundState(raw, time),
            obs=_observed(raw.obs),
            reward=jnp.asarray(raw.reward, jnp.float32),
            terminated=terminated,
            truncated=(time >= self.time_limit) & ~terminated,
            info={name: jnp.asarray(raw.metrics[name], jnp.float32) for name in self.told},
        )


# Compiled also where a user steps by hand: operation by operation, one step takes seconds.
@functools.partial(jax.jit, static_argnums=0)
def _reset(dynamics: Any, physics: dict[str, jax.Array], key: jax.Array) -> Any:
    return _moved_by(dynamics, physics).reset(key)


@functools.partial(jax.jit, static_argnums=0)
def _step(dynamics: Any, physics: dict[str, jax.Array], raw: Any, action: jax.Array) -> Any:
    # Within `jit` the suite is given new dictionaries, which it may write into.
    return _moved_by(dynamics, physics).step(raw, action)


def _moved_by(dynamics: Any, physics: dict[str, jax.Array]) -> Any:
    """The suite's environment with other physics."""
    moved = copy.copy(dynamics)
    moved._mjx_model = dynamics.mjx_model.tree_replace({_PHYSICS[name]: value for name, value in physics.items()})
    return moved


def _observed(obs: Any) -> Any:
    return {_PARTS.get(name, name): part for name, part in obs.items()} if isinstance(obs, dict) else obs


_PARTS = {"privileged_state": "global_state"}


def make(name: str, arguments: dict[str, Any]) -> Playground:
    """The task of that name. Raises UsageError and UnknownNameError for arguments that do not fit."""
    id, defaults = f"playground/{name}", _defaults(name)
    given = defaults | convert_all(id, arguments, defaults)
    if any(isinstance(value, Tracer) for value in given.values()):
        raise UsageError(f"{id}: its arguments shape the program, so they must be plain values; its physics are leaves.")
    limit = step_limit(id, _LIMIT, given[_LIMIT])
    _check_implementation(id, given["impl"])
    # Concrete even inside a traced function, so that the constants may be kept and used again.
    with jax.ensure_compile_time_eval(), jax.debug_key_reuse(False):
        return _assembled(id, _dynamics(name, tuple(sorted(given.items()))), limit)


def _check_implementation(id: str, impl: str) -> None:
    """Raises UsageError for physics by Warp: a part of their state is that of all copies, and none can begin anew by itself."""
    if impl != "jax":
        raise UsageError(f"{id}: impl ({impl!r}) must be jax, as config_overrides={{'impl': 'jax'}} has it in Playground.")


def arguments(name: str) -> dict[str, Any]:
    """The plain values of the suite's configuration of the task, physics by JAX."""
    return dict(_defaults(name))


def wrapped(id: str, dynamics: Any, episode_length: int | None) -> Playground:
    """The environment around an object of Playground's, without its wrappers. Raises UsageError for what is none."""
    dynamics = getattr(dynamics, "unwrapped", dynamics)
    if not callable(getattr(dynamics, "reset", None)) or not hasattr(dynamics, "_mjx_model"):
        raise UsageError(f"from_playground takes an environment of MuJoCo Playground, not a {type(dynamics).__name__}.")
    _check_implementation(id, dynamics.mjx_model.impl.value)
    limit = dynamics._config.episode_length if episode_length is None else episode_length
    with jax.ensure_compile_time_eval(), jax.debug_key_reuse(False):
        return _assembled(id, dynamics, step_limit(id, _LIMIT, limit))


def _assembled(id: str, dynamics: Any, limit: int) -> Playground:
    """The environment around an object of the suite's."""
    example = jax.eval_shape(functools.partial(_two_steps, dynamics), jax.eval_shape(lambda: jax.random.key(0)))
    space = jax.tree.map(lambda x: Box(-np.inf, np.inf, x.shape), _observed(example.obs))
    model = dynamics.mjx_model
    return Playground(
        physics={key: jnp.asarray(_value(model, place), jnp.float32) for key, place in _PHYSICS.items()},
        dynamics=dynamics,
        name=id,
        observation_space=Dict(space) if isinstance(space, dict) else space,
        action_space=Box(-1.0, 1.0, (dynamics.action_size,)),
        state_types=leaf_types(example),
        told=tuple(name for name, value in example.metrics.items() if value.shape == ()),
        time_limit=limit,
    )


@functools.cache
def _defaults(name: str) -> dict[str, Any]:
    version = importlib.metadata.version("playground")
    if tuple(map(int, version.split(".")[:2])) < (0, 2):
        raise UsageError(f'rollax needs playground 0.2 or newer and found {version}: pip install --upgrade "playground>=0.2"')
    found = suite.get_default_config(name).to_dict()
    plain = {key: value for key, value in found.items() if isinstance(value, bool | int | float | str)}
    return {key: value for key, value in plain.items() if key not in _LEFT_OUT} | {"impl": "jax"}


@functools.cache
def _dynamics(name: str, given: tuple[tuple[str, Any], ...]) -> Any:
    """One object for the same arguments, so that making an environment twice does not compile it twice."""
    try:
        with silenced():
            return suite.load(name, config_overrides=dict(given))
    except (ValueError, TypeError, AssertionError, NotImplementedError, RuntimeError) as error:
        shown = ", ".join(f"{key}={value!r}" for key, value in given)
        raise UsageError(f"Playground refuses to make {name} with {shown}: {error or 'it states no reason'}.") from error


def _two_steps(dynamics: Any, key: jax.Array) -> Any:
    """A state that a step has made: its types are those that all states have."""
    start = jax.tree.map(jnp.asarray, dynamics.reset(key))
    return dynamics.step(start, jnp.zeros(dynamics.action_size))


def _value(model: Any, place: str) -> Any:
    return functools.reduce(getattr, place.split("."), model)
