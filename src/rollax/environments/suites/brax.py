"""The environments of brax (0.14 or newer), by their raw dynamics: no wrappers, and ends told apart.

brax's `done` is the end of the task; the time limit (`max_steps`) is rollax's own and truncates. What is put right on the way:

- `info["time_out"]` of inverted_pendulum is not used: it is true where the pole falls, which is no time-out;
- a step of brax writes into the dictionary of the state that it is given; here that state stays as it was;
- a simulation that breaks gives numbers that are not finite, and most tasks go on with them; here its episode ends, with the
  observation before it and no reward;
- rewards are float32, ends bool, and states of definite types.

`info` has the parts of the reward; its sum over an episode is the return's. Of what moves on legs, a state describes behavior:
which feet touch the ground (`descriptor` "contact", in the mean over an episode the share of time), or how far the torso has
come ("position"). A foot touches the ground when the lowest point of its geometry is less than `TOUCH` above it. That is what
the suite's own contacts measure, but in the state as it is: those in a backend's state can be of the substep before.
"""

import copy
import functools
import types
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rollax.environments.convert import convert_all, leaf_types, signature_defaults, step_limit, with_types
from rollax.environments.core import Transition
from rollax.environments.suites import version
from rollax.environments.suites.breaking import as_finite
from rollax.environments.suites.silence import silenced
from rollax.errors import UsageError
from rollax.spaces import Box

with silenced():
    from brax import envs as suite
    from brax import fluid
    from brax import math as rotations

# For the swimmer: brax names an argument of `jnp.clip` as JAX no longer does. It is the only use in that module.
fluid.jp = types.SimpleNamespace(**{**vars(jnp), "clip": lambda x, a_min: jnp.maximum(x, a_min)})

BACKENDS = ("spring", "generalized", "positional", "mjx")
DESCRIPTORS = ("contact", "position")
CHOICES = {"backend": BACKENDS, "descriptor": DESCRIPTORS}
# The spring backend is the fastest by far. But it does not know the swimmer, and of linear policies drawn at random six times
# as many balance a pendulum under the generalized one, and there an arm reaches its target in a third of the training.
_EXACT = ("swimmer", "inverted_pendulum", "inverted_double_pendulum", "reacher")
TOUCH = 0.001  # metres; bodies at rest lie within it of the ground, a little below or above

# The feet of what moves on legs, and along which axes it moves.
_FEET = {
    "ant": ("left_foot_geom", "right_foot_geom", "third_foot_geom", "fourth_foot_geom"),
    "halfcheetah": ("bfoot", "ffoot"),
    "hopper": ("foot_geom",),
    "walker2d": ("foot_geom", "foot_left_geom"),
}
_AXES = {"ant": (0, 1), "halfcheetah": (0,), "hopper": (0,), "walker2d": (0,)}

# Numbers of the physics, and where a system has them: for MuJoCo's own engine, and for those of brax.
_PHYSICS = {
    "gravity": ("opt.gravity", "gravity"),
    "mass": ("body_mass", "link.inertia.mass"),
    "inertia": ("body_inertia", "link.inertia.i"),
    "damping": ("dof_damping", "dof.damping"),
    "armature": ("dof_armature", "dof.armature"),
    "gear": ("actuator_gear", "actuator.gear"),
    "friction": ("geom_friction", "geom_friction"),
}


class BraxState(NamedTuple):
    raw: Any  # the suite's own state
    time: jax.Array  # int32 []: steps taken
    origin: jax.Array  # float32 [3]: where the torso was at the start


class Feet(NamedTuple):
    """Spheres and capsules that belong to bodies. Tuples, so that they can be static."""

    link: tuple[int, ...]
    offset: tuple[tuple[float, ...], ...]  # of the middle, in the body's frame
    axis: tuple[tuple[float, ...], ...]  # from the middle to an end of a capsule, in the body's frame; 0 of a sphere
    radius: tuple[float, ...]


class Brax(eqx.Module):
    """One environment of the suite.

    The leaves are those of its physics that its engine reads: gravity [3], mass and inertia of bodies, damping and armature of
    joints, gear of motors, friction of geometries. What the suite derives from them once (inverse weights) stays as it is.
    """

    physics: dict[str, jax.Array]
    dynamics: Any = eqx.field(static=True)
    name: str = eqx.field(static=True)
    observation_space: Box = eqx.field(static=True)
    action_space: Box = eqx.field(static=True)
    descriptor_space: Box | None = eqx.field(static=True)
    feet: Feet | None = eqx.field(static=True)
    axes: tuple[int, ...] = eqx.field(static=True)
    state_types: tuple[str, ...] = eqx.field(static=True)
    reward_parts: tuple[str, ...] = eqx.field(static=True)  # of the suite's metrics
    time_limit: int = eqx.field(static=True)
    num_agents: None = eqx.field(static=True, default=None)

    @property
    def descriptor_extraction(self) -> str:
        return "mean" if self.feet else "final"

    @property
    def info_reductions(self) -> dict[str, str]:
        return dict.fromkeys(self.reward_parts, "sum")

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """`(state, obs)` at the start of an episode."""
        raw = with_types(_reset(self.dynamics, self.physics, key), self.state_types)
        return BraxState(raw, jnp.zeros((), jnp.int32), _torso(raw)), raw.obs

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """One step. `truncated` is the time limit where the task did not end as well."""
        del key  # the dynamics are deterministic
        after = _step(self.dynamics, self.physics, state.raw, action)
        raw = with_types(as_finite(state.raw, after, (after.pipeline_state.q, after.pipeline_state.qd)), self.state_types)
        time, terminated = state.time + 1, raw.done > 0.5
        return Transition(
            state=BraxState(raw, time, state.origin),
            obs=raw.obs,
            reward=raw.reward,
            terminated=terminated,
            truncated=(time >= self.time_limit) & ~terminated,
            info={name: raw.metrics[name] for name in self.reward_parts},
        )

    def descriptor(self, state: Any) -> jax.Array:
        """float32 [feet]: 1 for a foot on the ground, or [axes]: metres from the start."""
        if self.feet:
            return (clearance(self.feet, state.raw.pipeline_state.x) < TOUCH).astype(jnp.float32)
        return (_torso(state.raw) - state.origin)[np.asarray(self.axes)]


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
    moved.sys = dynamics.sys.tree_replace({_place(dynamics, name): value for name, value in physics.items()})
    return moved


def _torso(raw: Any) -> jax.Array:
    return raw.pipeline_state.x.pos[0]


def clearance(feet: Feet, links: Any) -> jax.Array:
    """Metres from the lowest point of each foot to the ground `[F]`, below 0 inside of it. `links`: where all bodies are."""
    link = np.asarray(feet.link)
    turned = jax.vmap(rotations.rotate)
    middle = links.pos[link] + turned(jnp.asarray(feet.offset, jnp.float32), links.rot[link])
    axis = turned(jnp.asarray(feet.axis, jnp.float32), links.rot[link])
    return middle[:, 2] - jnp.abs(axis[:, 2]) - jnp.asarray(feet.radius, jnp.float32)


def make(name: str, arguments: dict[str, Any]) -> Brax:
    """The environment of that name. Raises UsageError and UnknownNameError for arguments that do not fit."""
    id, defaults = f"brax/{name}", _defaults(name)
    if any(isinstance(value, Tracer) for value in arguments.values()):
        raise UsageError(f"{id}: its arguments shape the program, so they must be plain values; its physics are leaves.")
    given = defaults | convert_all(id, arguments, defaults)
    limit, descriptor = step_limit(id, "max_steps", given.pop("max_steps")), given.pop("descriptor", None)
    for key, value in (("descriptor", descriptor), ("backend", given["backend"])):
        if value is not None and value not in CHOICES[key]:
            raise UsageError(f"{id}: {key} ({value!r}) must be one of {', '.join(CHOICES[key])}.")
    # Concrete even inside a traced function, so that the constants may be kept and used again.
    with jax.ensure_compile_time_eval(), jax.debug_key_reuse(False):
        return _assembled(id, _dynamics(name, tuple(sorted(given.items()))), limit, descriptor)


def wrapped(id: str, dynamics: Any, max_steps: int) -> Brax:
    """The environment around an object of brax's, without its wrappers. Raises UsageError for what is none."""
    raw = getattr(dynamics, "unwrapped", dynamics)
    if not isinstance(raw, suite.PipelineEnv) or not hasattr(raw, "sys"):
        raise UsageError(f"from_brax takes a PipelineEnv of brax, not a {type(dynamics).__name__}.")
    with jax.ensure_compile_time_eval(), jax.debug_key_reuse(False):
        return _assembled(id, raw, step_limit(id, "max_steps", max_steps), None)


def _assembled(id: str, dynamics: Any, limit: int, descriptor: str | None) -> Brax:
    """The environment around an object of the suite's; one with a descriptor has an id of it."""
    name = id.rpartition("/")[2]
    example = jax.eval_shape(lambda key: _two_steps(dynamics, key), jax.random.key(0))
    if not hasattr(example.obs, "shape"):
        raise UsageError(f"{id}: its observations must be one array, and have the parts {', '.join(example.obs)}.")
    physics = {key: jnp.asarray(_value(dynamics.sys, _place(dynamics, key)), jnp.float32) for key in _acting(dynamics)}
    feet = _feet(dynamics, _FEET[name]) if descriptor == "contact" else None
    axes = _AXES[name] if descriptor == "position" else ()
    spaces = {"contact": Box(0.0, 1.0, (len(_FEET.get(name, ())),)), "position": Box(-np.inf, np.inf, (len(axes),))}
    return Brax(
        physics=physics,
        dynamics=dynamics,
        name=id,
        observation_space=Box(-np.inf, np.inf, example.obs.shape),
        action_space=Box(-1.0, 1.0, (dynamics.action_size,)),
        descriptor_space=None if descriptor is None else spaces[descriptor],
        feet=feet,
        axes=axes,
        state_types=leaf_types(example),
        reward_parts=tuple(name for name in example.metrics if name.startswith("reward_")),
        time_limit=limit,
    )


def arguments(name: str) -> dict[str, Any]:
    """The arguments of the suite's constructor and those of rollax, with their defaults."""
    return _defaults(name)


def _defaults(name: str) -> dict[str, Any]:
    version.require("brax", "0.14")
    found = {key: value for key, value in signature_defaults(suite._envs[name]).items() if key != "kwargs"}
    found["backend"] = "generalized" if name in _EXACT else "spring"
    own = {"descriptor": "contact"} if name in _FEET else {}
    return found | {"n_frames": 0, "max_steps": 1000} | own


@functools.cache
def _dynamics(name: str, given: tuple[tuple[str, Any], ...]) -> Any:
    """One object for the same arguments, so that making an environment twice does not compile it twice."""
    values = {key: value for key, value in given if key != "n_frames" or value}
    try:
        with silenced():
            return suite.get_environment(name, **values)
    except (ValueError, TypeError, AssertionError, NotImplementedError) as error:
        shown = ", ".join(f"{key}={value!r}" for key, value in values.items())
        raise UsageError(f"brax refuses to make {name} with {shown}: {error or 'it states no reason'}.") from error


def _two_steps(dynamics: Any, key: jax.Array) -> Any:
    """A state that a step has made: its types are those that all states have."""
    start = jax.tree.map(jnp.asarray, dynamics.reset(key))
    return dynamics.step(start, jnp.zeros(dynamics.action_size))


def _acting(dynamics: Any) -> list[str]:
    """The numbers of the physics that its engine reads: brax's own two have no damping and armature, and take mass and inertia
    to the power of 1 less a scale of the body, which is 0 of some."""
    if dynamics.backend in ("generalized", "mjx"):
        return list(_PHYSICS)
    idle = {"mass": dynamics.sys.spring_mass_scale == 1, "inertia": dynamics.sys.spring_inertia_scale == 1}
    return [name for name in _PHYSICS if name not in ("damping", "armature") and not idle.get(name, False)]


def _place(dynamics: Any, name: str) -> str:
    return _PHYSICS[name][dynamics.backend != "mjx"]


def _value(system: Any, place: str) -> Any:
    return functools.reduce(getattr, place.split("."), system)


def _feet(dynamics: Any, names: tuple[str, ...]) -> Feet:
    model = dynamics.sys.mj_model
    geoms = [model.geom(name) for name in names]
    half = [geom.size[1] if int(geom.type[0]) == _CAPSULE else 0.0 for geom in geoms]
    turned = [rotations.rotate(jnp.asarray([0.0, 0.0, 1.0]), jnp.asarray(geom.quat)) for geom in geoms]
    return Feet(
        link=tuple(int(geom.bodyid[0]) - 1 for geom in geoms),
        offset=tuple(tuple(geom.pos.tolist()) for geom in geoms),
        axis=tuple(tuple((length * np.asarray(axis, float)).tolist()) for length, axis in zip(half, turned, strict=True)),
        radius=tuple(float(geom.size[0]) for geom in geoms),
    )


_CAPSULE = 3  # of mujoco.mjtGeom
