"""Adapter of brax environments (0.14 or newer), without wrappers and automatic resets.

`done` of brax terminates an episode, and the time limit (`max_steps`) truncates it. Differences
from brax:

- `info["time_out"]` of inverted_pendulum is not used, because it is true when the pole falls.
- A step does not modify its input state. A step of brax writes into the dictionaries of the state.
- If a simulation becomes non-finite, its episode terminates with the previous observation and zero
  reward. In brax, most tasks continue.
- Rewards are float32, `terminated` and `truncated` are bool, and states have fixed dtypes.

`info` contains the terms of the reward. Evaluations sum them over an episode. Legged robots have a
behavior descriptor: the ground contact of each foot (`descriptor` "contact", averaged over an
episode), or the displacement of the torso ("position"). A foot touches the ground if the lowest
point of its geometry is less than `CONTACT_DISTANCE` above it. The distance is computed from the
current state, because the contacts that a brax backend stores may belong to the previous substep.
"""

import copy
import functools
import operator
import types
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.conversion import (
    cast_leaves,
    check_no_tracers,
    convert_arguments,
    leaf_dtypes,
    signature_defaults,
    to_positive_int,
)
from rollax.environments.environment import Transition
from rollax.environments.environment_text import format_environment, format_environment_html
from rollax.environments.suites import package_versions
from rollax.environments.suites.argument_checks import check_choices, creation_error
from rollax.environments.suites.nonfinite_guard import terminate_nonfinite
from rollax.environments.suites.output_capture import suppress_output
from rollax.environments.suites.physics_parameters import (
    Physics,
    reset_with_physics,
    step_with_physics,
    take_example_step,
)
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.errors import UsageError
from rollax.spaces import Box
from rollax.types import Action, Observation, PyTree, Setting, State

with suppress_output():
    from brax import envs as suite
    from brax import fluid
    from brax import math as rotations

# The swimmer needs this replacement. The fluid module of brax uses jnp only for `jnp.clip`, with an
# argument name that JAX has removed.
fluid.jp = types.SimpleNamespace(**{**vars(jnp), "clip": lambda x, a_min: jnp.maximum(x, a_min)})

BACKENDS = ("spring", "generalized", "positional", "mjx")
DESCRIPTORS = ("contact", "position")
CHOICES = {"backend": BACKENDS, "descriptor": DESCRIPTORS}
# The spring backend is the fastest by far, but does not support the swimmer. Under the generalized
# backend, six times as many random linear policies balance a pendulum, and training on the reacher
# takes a third of the time to reach the target.
_GENERALIZED_BACKEND_NAMES = ("swimmer", "inverted_pendulum", "inverted_double_pendulum", "reacher")
# Weight of the forward reward, with the name that brax uses for its other bodies. 0 removes the
# term.
FORWARD_REWARD_ARGUMENTS: dict[str, dict[str, float]] = {"ant": {"forward_reward_weight": 1.0}}
# In meters. Bodies at rest are closer to the ground than this, slightly above or below.
CONTACT_DISTANCE = 0.001

# Feet of legged robots, and the axes along which they move.
_FOOT_GEOMS = {
    "ant": ("left_foot_geom", "right_foot_geom", "third_foot_geom", "fourth_foot_geom"),
    "halfcheetah": ("bfoot", "ffoot"),
    "hopper": ("foot_geom",),
    "walker2d": ("foot_geom", "foot_left_geom"),
}
_MOTION_AXES = {"ant": (0, 1), "halfcheetah": (0,), "hopper": (0,), "walker2d": (0,)}

# Physics parameters, with their paths in the system of the MJX backend and of brax's own backends.
_PHYSICS_PATHS = {
    "gravity": ("opt.gravity", "gravity"),
    "mass": ("body_mass", "link.inertia.mass"),
    "inertia": ("body_inertia", "link.inertia.i"),
    "damping": ("dof_damping", "dof.damping"),
    "armature": ("dof_armature", "dof.armature"),
    "gear": ("actuator_gear", "actuator.gear"),
    "friction": ("geom_friction", "geom_friction"),
}


class BraxState(NamedTuple):
    """State of an episode.

    Attributes:
        suite_state: Brax state.
        time: Number of steps taken, int32 `[]`.
        origin: Position of the torso at the start in meters, float32 `[3]`.
    """

    suite_state: Any
    time: jax.Array
    origin: jax.Array


class Feet(NamedTuple):
    """Collision shapes of the feet: F spheres and capsules, stored as hashable tuples.

    Attributes:
        link: Indices of the bodies.
        offset: Centers in the frame of the body, in meters.
        axis: Vectors from the center of a capsule to its end, in the frame of the body. 0 for
            spheres.
        radius: Radii in meters.
    """

    link: tuple[int, ...]
    offset: tuple[tuple[float, ...], ...]
    axis: tuple[tuple[float, ...], ...]
    radius: tuple[float, ...]


class Brax(eqx.Module):
    """Brax environment.

    Attributes:
        physics: Physics parameters that the backend reads: gravity `[3]`, mass and inertia of
            bodies, damping and armature of joints, gear of motors, friction of geometries.
            `DomainRandomization` can sample them. Values that brax derives from them once, such as
            inverse weights, are not updated.
        dynamics: Brax environment without wrappers.
        name: Id of the environment.
        observation_space: Space of observations.
        action_space: Space of actions.
        descriptor_space: Space of descriptors, or None.
        feet: Geometries of the feet for the descriptor "contact", or None.
        axes: Axes of the descriptor "position".
        state_dtypes: Dtypes of the leaves of a brax state.
        reward_parts: Names of the reward terms in the metrics of a brax state.
        time_limit: Time limit in steps.
        forward_reward_weight: Weight of "reward_forward" if the brax environment has no such
            setting.
        num_agents: None, for a single agent.
    """

    physics: dict[str, jax.Array]
    dynamics: Any = eqx.field(static=True)
    name: str = eqx.field(static=True)
    observation_space: Box = eqx.field(static=True)
    action_space: Box = eqx.field(static=True)
    descriptor_space: Box | None = eqx.field(static=True)
    feet: Feet | None = eqx.field(static=True)
    axes: tuple[int, ...] = eqx.field(static=True)
    state_dtypes: tuple[str, ...] = eqx.field(static=True)
    reward_parts: tuple[str, ...] = eqx.field(static=True)
    time_limit: int = eqx.field(static=True)
    forward_reward_weight: float = eqx.field(static=True, default=1.0)
    num_agents: None = eqx.field(static=True, default=None)

    def __repr__(self) -> str:
        return format_environment(self)

    def _repr_html_(self) -> str:
        return format_environment_html(self)

    @property
    def descriptor_extraction(self) -> str:
        return "mean" if self.feet else "final"

    @property
    def info_reductions(self) -> dict[str, str]:
        return dict.fromkeys(self.reward_parts, "sum")

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Return the state and the observation at the start of an episode."""
        suite_state = cast_leaves(
            reset_with_physics(_replace_physics, self.dynamics, self.physics, key),
            self.state_dtypes,
        )
        return BraxState(
            suite_state, jnp.zeros((), jnp.int32), _torso_position(suite_state)
        ), suite_state.obs

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        """Return the transition of one step.

        At the time limit, the episode is truncated unless the task has terminated.
        """
        del key  # the dynamics are deterministic
        next_suite_state = step_with_physics(
            _replace_physics, self.dynamics, self.physics, state.suite_state, action
        )
        suite_state = cast_leaves(
            terminate_nonfinite(
                state.suite_state,
                next_suite_state,
                (next_suite_state.pipeline_state.q, next_suite_state.pipeline_state.qd),
            ),
            self.state_dtypes,
        )
        time, terminated = state.time + 1, suite_state.done > 0.5
        reward, info = (
            suite_state.reward,
            {name: suite_state.metrics[name] for name in self.reward_parts},
        )
        if self.forward_reward_weight != 1.0:
            forward = info["reward_forward"]
            info["reward_forward"] = self.forward_reward_weight * forward
            reward = reward + (self.forward_reward_weight - 1.0) * forward
        return Transition(
            state=BraxState(suite_state, time, state.origin),
            obs=suite_state.obs,
            reward=reward,
            terminated=terminated,
            truncated=(time >= self.time_limit) & ~terminated,
            info=info,
        )

    def descriptor(self, state: State) -> jax.Array:
        """Return the behavior descriptor, float32.

        It is the ground contact of each foot, `[F]`, or the displacement of the torso in meters
        along each descriptor axis.
        """
        if self.feet:
            return (
                foot_clearance(self.feet, state.suite_state.pipeline_state.x) < CONTACT_DISTANCE
            ).astype(jnp.float32)
        return (_torso_position(state.suite_state) - state.origin)[np.asarray(self.axes)]


def _replace_physics(dynamics: SuiteEnvironment, physics: Physics) -> Any:
    """Return a copy of a brax environment with other physics parameters."""
    changed = copy.copy(dynamics)
    changed.sys = dynamics.sys.tree_replace(
        {_physics_path(dynamics, name): value for name, value in physics.items()}
    )
    return changed


def _torso_position(state: State) -> jax.Array:
    return state.pipeline_state.x.pos[0]


def foot_clearance(feet: Feet, links: PyTree) -> jax.Array:
    """Return the height of the lowest point of each foot above the ground.

    Args:
        feet: Geometries of F feet.
        links: Positions and rotations of all bodies.

    Returns:
        Heights in meters `[F]`, negative below the ground.
    """
    link = np.asarray(feet.link)
    rotate = jax.vmap(rotations.rotate)
    middle = links.pos[link] + rotate(jnp.asarray(feet.offset, jnp.float32), links.rot[link])
    axis = rotate(jnp.asarray(feet.axis, jnp.float32), links.rot[link])
    return middle[:, 2] - jnp.abs(axis[:, 2]) - jnp.asarray(feet.radius, jnp.float32)


def make(name: str, arguments: dict[str, Setting]) -> Brax:
    """Build a brax environment.

    Args:
        name: Name of the environment in brax.
        arguments: Environment arguments (see `default_arguments`).

    Returns:
        The environment.

    Raises:
        ModuleNotFoundError: If brax is not installed.
        UsageError: If brax is too old or rejects the arguments, or a value is invalid.
        UnknownNameError: If an argument does not exist.
    """
    id, defaults = f"brax/{name}", default_arguments(name)
    check_no_tracers(id, arguments, "Change `physics` inside of transformations.")
    values = defaults | convert_arguments(id, arguments, defaults)
    limit, descriptor = (
        to_positive_int(id, "max_steps", values.pop("max_steps")),
        values.pop("descriptor", None),
    )
    rollax_values = {key: values.pop(key) for key in FORWARD_REWARD_ARGUMENTS.get(name, {})}
    check_choices(id, {"descriptor": descriptor, "backend": values["backend"]}, CHOICES)
    # Concrete values even inside a traced function, so that cached constants can be reused.
    with jax.ensure_compile_time_eval(), jax.debug_key_reuse(False):
        return _build_environment(
            id,
            _make_dynamics(name, tuple(sorted(values.items()))),
            limit,
            descriptor,
            **rollax_values,
        )


def wrap_environment(id: str, dynamics: SuiteEnvironment, max_steps: int) -> Brax:
    """Build an environment from a brax environment object, without its wrappers.

    Args:
        id: Id of the environment.
        dynamics: Brax environment. Its wrappers are removed.
        max_steps: Time limit in steps.

    Returns:
        The environment.

    Raises:
        UsageError: If `dynamics` is not a `PipelineEnv`, or its observations are not one array.
    """
    unwrapped = getattr(dynamics, "unwrapped", dynamics)
    if not isinstance(unwrapped, suite.PipelineEnv) or not hasattr(unwrapped, "sys"):
        raise UsageError(
            "environment must be a PipelineEnv of brax, got an object of "
            f"{type(dynamics).__name__}."
        )
    with jax.ensure_compile_time_eval(), jax.debug_key_reuse(False):
        return _build_environment(id, unwrapped, to_positive_int(id, "max_steps", max_steps), None)


def _build_environment(
    id: str,
    dynamics: SuiteEnvironment,
    limit: int,
    descriptor: str | None,
    forward_reward_weight: float = 1.0,
) -> Brax:
    """Build a `Brax` environment. With a descriptor, `id` must end in the name in brax."""
    name = id.rpartition("/")[2]
    example = jax.eval_shape(lambda key: take_example_step(dynamics, key), jax.random.key(0))
    if not hasattr(example.obs, "shape"):
        raise UsageError(
            f"{id}: observations must be one array, got the parts {', '.join(example.obs)}."
        )
    physics = {
        key: jnp.asarray(
            operator.attrgetter(_physics_path(dynamics, key))(dynamics.sys), jnp.float32
        )
        for key in _active_physics_names(dynamics)
    }
    feet = _make_feet(dynamics, _FOOT_GEOMS[name]) if descriptor == "contact" else None
    axes = _MOTION_AXES[name] if descriptor == "position" else ()
    spaces = {
        "contact": Box(0.0, 1.0, (len(_FOOT_GEOMS.get(name, ())),)),
        "position": Box(-np.inf, np.inf, (len(axes),)),
    }
    return Brax(
        physics=physics,
        dynamics=dynamics,
        name=id,
        observation_space=Box(-np.inf, np.inf, example.obs.shape),
        action_space=Box(-1.0, 1.0, (dynamics.action_size,)),
        descriptor_space=None if descriptor is None else spaces[descriptor],
        feet=feet,
        axes=axes,
        state_dtypes=leaf_dtypes(example),
        reward_parts=tuple(name for name in example.metrics if name.startswith("reward_")),
        time_limit=limit,
        forward_reward_weight=forward_reward_weight,
    )


def default_arguments(name: str) -> dict[str, Any]:
    """Return the defaults of all arguments (of the brax constructor and rollax), keyed by name."""
    package_versions.require_version("brax", "0.14")
    defaults = {
        key: value
        for key, value in signature_defaults(suite._envs[name]).items()
        if key != "kwargs"
    }
    defaults["backend"] = "generalized" if name in _GENERALIZED_BACKEND_NAMES else "spring"
    rollax_defaults = (
        {"descriptor": "contact"} if name in _FOOT_GEOMS else {}
    ) | FORWARD_REWARD_ARGUMENTS.get(name, {})
    return defaults | {"n_frames": 0, "max_steps": 1000} | rollax_defaults


@functools.cache
def _make_dynamics(name: str, arguments: tuple[tuple[str, Setting], ...]) -> Any:
    """Create a brax environment, cached so that equal environments share a compilation."""
    values = {key: value for key, value in arguments if key != "n_frames" or value}
    try:
        with suppress_output():
            return suite.get_environment(name, **values)
    except (ValueError, TypeError, AssertionError, NotImplementedError) as error:
        raise creation_error("brax", name, values, error) from error


def _active_physics_names(dynamics: SuiteEnvironment) -> list[str]:
    """Return the names of the physics parameters that the backend reads.

    The spring and positional backends ignore damping and armature. They raise mass and inertia to
    the power of (1 - scale), so mass or inertia has no effect if its scale is 1.
    """
    if dynamics.backend in ("generalized", "mjx"):
        return list(_PHYSICS_PATHS)
    is_unused = {
        "mass": dynamics.sys.spring_mass_scale == 1,
        "inertia": dynamics.sys.spring_inertia_scale == 1,
    }
    return [
        name
        for name in _PHYSICS_PATHS
        if name not in ("damping", "armature") and not is_unused.get(name, False)
    ]


def _physics_path(dynamics: SuiteEnvironment, name: str) -> str:
    return _PHYSICS_PATHS[name][dynamics.backend != "mjx"]


def _make_feet(dynamics: SuiteEnvironment, names: tuple[str, ...]) -> Feet:
    model = dynamics.sys.mj_model
    geoms = [model.geom(name) for name in names]
    half_lengths = [
        geom.size[1] if int(geom.type[0]) == _CAPSULE_GEOM_TYPE else 0.0 for geom in geoms
    ]
    axes = [
        rotations.rotate(jnp.asarray([0.0, 0.0, 1.0]), jnp.asarray(geom.quat)) for geom in geoms
    ]
    return Feet(
        link=tuple(int(geom.bodyid[0]) - 1 for geom in geoms),
        offset=tuple(tuple(geom.pos.tolist()) for geom in geoms),
        axis=tuple(
            tuple((length * np.asarray(axis, float)).tolist())
            for length, axis in zip(half_lengths, axes, strict=True)
        ),
        radius=tuple(float(geom.size[0]) for geom in geoms),
    )


_CAPSULE_GEOM_TYPE = 3  # of mujoco.mjtGeom
