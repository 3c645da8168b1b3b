"""Single-sphere environments of the suite `granular`.

They follow the environments of JaxDEM (github.com/cdelv/JaxDEM). Rewards are differences of a
potential, which is a function of the distance to the goal. An environment step consists of
`substeps` physics steps, and its reward compares the states before and after all of them. Reaching
the goal does not end an episode, because staying there is part of the task. Episodes are truncated
at the time limit.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.environment import Transition
from rollax.environments.environment_text import format_environment_html
from rollax.environments.native.granular.common import (
    check_counts,
    check_physics,
    clip_norm,
    make_identical_bodies,
    observe_goal_displacement,
    parameter_field,
)
from rollax.environments.native.granular.physics import (
    Bodies,
    Domain,
    Material,
    Spheres,
    World,
    advance,
    kinetic_energy,
    rotate_orientation,
    safe_norm,
)
from rollax.errors import UsageError
from rollax.spaces import Ball, Box
from rollax.types import Action, Observation, State

INFO_REDUCTIONS = {"reached": "last"}


class SingleState(NamedTuple):
    """State of an environment with one sphere.

    Attributes:
        spheres: State of the sphere, with leading axis [1].
        orientation: Orientation for rendering as a quaternion, float [4]. It is (1, 0, 0, 0) in
            environments without rolling.
        goal: Position of the goal, float [D]. For a sphere that rolls on a floor, the horizontal
            position, float [2].
        time: Number of environment steps so far, int32 [].
    """

    spheres: Spheres
    orientation: jax.Array
    goal: jax.Array
    time: jax.Array


def _init_state(spheres: Spheres, goal: jax.Array) -> SingleState:
    return SingleState(spheres, jnp.eye(4)[0], goal, jnp.zeros((), jnp.int32))


def _goal_displacement(state: SingleState) -> jax.Array:
    """Return the displacement from the sphere to the goal, in the dimensions of the goal."""
    return state.goal - state.spheres.position[0, : state.goal.shape[0]]


class SingleNavigator(eqx.Module):
    """Navigation task: a force pushes a sphere in a box to its goal.

    The action is the force in units of `strength`, in the unit ball of D = `dimension` numbers. The
    observation is float [3 D]: direction to the goal, displacement to it clipped to [-3, 3], and
    velocity. Start and goal are uniform in the box.

    Let d be the distance to the goal. The reward of a step is the increase of exp(-d /
    attraction) minus `effort` times the increase of the kinetic energy. The undiscounted return is
    therefore below 1. It is close to 1 - exp(-d_0 / attraction) for a policy that ends at rest at
    the goal, where d_0 is the distance at the start.

    `info["reached"]` is 1 if the center is within `goal_radius` of the goal. Evaluations report its
    value at the last step.

    Attributes:
        dimension: (static) Number of dimensions, 2 or 3.
        max_steps: (static) Maximum number of environment steps of an episode.
        substeps: (static) Number of physics steps per environment step.
        side: Side of the box, at least the diameter of the sphere.
        radius: Radius of the sphere.
        mass: Mass of the sphere.
        strength: Largest force.
        drag: Force against the velocity, per unit of velocity.
        stiffness: Stiffness of contacts (see `Material`).
        damping: Damping of contacts as a fraction of critical damping, from 0 to below 1.
        friction: Coulomb coefficient of friction.
        grip: Rate at which friction stops slip.
        time_step: Time step of the physics in seconds.
        attraction: Length scale of the reward's potential.
        effort: Cost per unit of kinetic energy that the sphere gains.
        goal_radius: Largest distance at which the goal is reached.

    Raises:
        UsageError: If `dimension` is not 2 or 3, a count is below 1, or a physical parameter is out
            of range.
    """

    dimension: int = eqx.field(static=True, default=2)
    max_steps: int = eqx.field(static=True, default=120)
    substeps: int = eqx.field(static=True, default=5)
    side: jax.Array = parameter_field(10.0)
    radius: jax.Array = parameter_field(0.5)
    mass: jax.Array = parameter_field(1.0)
    strength: jax.Array = parameter_field(4.0)
    drag: jax.Array = parameter_field(0.4)
    stiffness: jax.Array = parameter_field(500.0)
    damping: jax.Array = parameter_field(0.15)
    friction: jax.Array = parameter_field(0.3)
    grip: jax.Array = parameter_field(10.0)
    time_step: jax.Array = parameter_field(0.02)
    attraction: jax.Array = parameter_field(3.0)
    effort: jax.Array = parameter_field(0.01)
    goal_radius: jax.Array = parameter_field(0.5)

    name = "granular/single-navigator"
    num_agents = None
    descriptor_extraction = "final"
    info_reductions = INFO_REDUCTIONS
    _repr_html_ = format_environment_html

    def __check_init__(self) -> None:
        if self.dimension not in (2, 3):
            raise UsageError(f"{self.name}: dimension ({self.dimension}) must be 2 or 3.")
        check_counts(self.name, max_steps=(self.max_steps, 1), substeps=(self.substeps, 1))
        check_physics(self, "side")

    @property
    def observation_space(self) -> Box:
        return Box(-np.inf, np.inf, (3 * self.dimension,))

    @property
    def action_space(self) -> Ball:
        return Ball(self.dimension)

    @property
    def descriptor_space(self) -> Box:
        return Box(0.0, 1.0, (self.dimension,))

    @property
    def time_limit(self) -> int:
        return self.max_steps

    @property
    def world(self) -> World:
        domain = Domain(
            jnp.zeros(self.dimension),
            jnp.broadcast_to(self.side, (self.dimension,)),
            (False,) * self.dimension,
        )
        material = Material(self.stiffness, self.damping, self.friction, self.grip)
        bodies, zero = make_identical_bodies(1, self.mass, self.radius), jnp.zeros(())
        return World(
            bodies, material, domain, jnp.zeros(self.dimension), self.drag, zero, self.time_step
        )

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Sample the position of a sphere at rest and a goal."""
        position, goal = jax.random.uniform(
            key, (2, self.dimension), minval=self.radius, maxval=self.side - self.radius
        )
        spheres = Spheres(
            position[None],
            jnp.zeros((1, self.dimension)),
            jnp.zeros((1, 1 if self.dimension == 2 else 3)),
        )
        state = _init_state(spheres, goal)
        return state, self.observe(state)

    def step(self, key: jax.Array, state: SingleState, action: Action) -> Transition:
        """Apply the force for `substeps` time steps."""
        world, spheres_before = self.world, state.spheres
        force = self.strength * clip_norm(action)
        spheres = advance(
            world, spheres_before, force[None], jnp.zeros_like(spheres_before.spin), self.substeps
        )
        after = state._replace(spheres=spheres, time=state.time + 1)
        return _make_transition(self, world.bodies, state, after)

    def observe(self, state: SingleState) -> jax.Array:
        return jnp.concatenate(
            [observe_goal_displacement(_goal_displacement(state)), state.spheres.velocity[0]]
        )

    def descriptor(self, state: SingleState) -> jax.Array:
        """Return the position as a fraction of the box side, float32 [D]."""
        return _relative_position(self, state)


class SingleRoller(eqx.Module):
    """Rolling task: a torque rolls a sphere on the floor of a box to its goal by friction.

    The action is a torque `[3]` with a norm of at most 1, in units of `strength`. The observation
    is float `[10]`: direction to the goal on the floor `[2]`, displacement to the goal clipped to
    [-3, 3] `[2]`, velocity `[3]`, and surface velocity (spin times radius) `[3]`.

    Let d be the distance to the goal on the floor. The reward of a step is the increase of
    exp(-d / attraction) minus `effort` times the increase of the kinetic energy, including that of
    the spin. Spin about the vertical axis costs energy and does not move the sphere. The default
    `strength` is below the torque at which the sphere slips on the floor, 7/5 friction x mass x
    gravity x radius.

    `info["reached"]` is 1 if the center is within `goal_radius` of the goal on the floor.
    Evaluations report its value at the last step.

    Attributes:
        max_steps: (static) Maximum number of environment steps of an episode.
        substeps: (static) Number of physics steps per environment step.
        side: Side of the box, at least the diameter of the sphere.
        radius: Radius of the sphere.
        mass: Mass of the sphere.
        strength: Largest torque.
        gravity: Gravitational acceleration.
        drag: Force against the velocity, per unit of velocity.
        spin_drag: Torque against the spin, per unit of spin.
        stiffness: Stiffness of contacts (see `Material`).
        damping: Damping of contacts as a fraction of critical damping, from 0 to below 1.
        friction: Coulomb coefficient of friction.
        grip: Rate at which friction stops slip.
        time_step: Time step of the physics in seconds.
        attraction: Length scale of the reward's potential.
        effort: Cost per unit of kinetic energy that the sphere gains.
        goal_radius: Largest distance at which the goal is reached.

    Raises:
        UsageError: If a count is below 1, or a physical parameter is out of range.
    """

    max_steps: int = eqx.field(static=True, default=150)
    substeps: int = eqx.field(static=True, default=20)
    side: jax.Array = parameter_field(8.0)
    radius: jax.Array = parameter_field(0.5)
    mass: jax.Array = parameter_field(1.0)
    strength: jax.Array = parameter_field(2.0)
    gravity: jax.Array = parameter_field(10.0)
    drag: jax.Array = parameter_field(0.1)
    spin_drag: jax.Array = parameter_field(0.05)
    stiffness: jax.Array = parameter_field(2000.0)
    damping: jax.Array = parameter_field(0.15)
    friction: jax.Array = parameter_field(0.6)
    grip: jax.Array = parameter_field(30.0)
    time_step: jax.Array = parameter_field(0.005)
    attraction: jax.Array = parameter_field(3.0)
    effort: jax.Array = parameter_field(0.01)
    goal_radius: jax.Array = parameter_field(0.5)

    name = "granular/single-roller"
    num_agents = None
    observation_space = Box(-np.inf, np.inf, (10,))
    action_space = Ball(3)
    descriptor_space = Box(0.0, 1.0, (2,))
    descriptor_extraction = "final"
    info_reductions = INFO_REDUCTIONS
    _repr_html_ = format_environment_html

    def __check_init__(self) -> None:
        check_counts(self.name, max_steps=(self.max_steps, 1), substeps=(self.substeps, 1))
        check_physics(self, "side")

    @property
    def time_limit(self) -> int:
        return self.max_steps

    @property
    def world(self) -> World:
        domain = Domain(jnp.zeros(3), jnp.broadcast_to(self.side, (3,)), (False,) * 3)
        material = Material(self.stiffness, self.damping, self.friction, self.grip)
        gravity = jnp.stack([jnp.zeros(()), jnp.zeros(()), -self.gravity])
        bodies = make_identical_bodies(1, self.mass, self.radius)
        return World(bodies, material, domain, gravity, self.drag, self.spin_drag, self.time_step)

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Sample a sphere at rest, supported by the floor, and a goal on the floor."""
        position, goal = jax.random.uniform(
            key, (2, 2), minval=self.radius, maxval=self.side - self.radius
        )
        height = self.radius - self.mass * self.gravity / self.stiffness
        spheres = Spheres(jnp.append(position, height)[None], jnp.zeros((1, 3)), jnp.zeros((1, 3)))
        state = _init_state(spheres, goal)
        return state, self.observe(state)

    def step(self, key: jax.Array, state: SingleState, action: Action) -> Transition:
        """Apply the torque for `substeps` time steps."""
        world, spheres_before = self.world, state.spheres
        torque = self.strength * clip_norm(action)
        spheres = advance(
            world,
            spheres_before,
            jnp.zeros_like(spheres_before.velocity),
            torque[None],
            self.substeps,
        )
        # Only pictures use the orientation, so the mean spin is accurate enough.
        mean_spin = (spheres_before.spin[0] + spheres.spin[0]) / 2
        orientation = rotate_orientation(
            state.orientation, mean_spin, self.substeps * self.time_step
        )
        next_state = SingleState(spheres, orientation, state.goal, state.time + 1)
        return _make_transition(self, world.bodies, state, next_state)

    def observe(self, state: SingleState) -> jax.Array:
        surface = self.radius * state.spheres.spin[0]
        return jnp.concatenate(
            [
                observe_goal_displacement(_goal_displacement(state)),
                state.spheres.velocity[0],
                surface,
            ]
        )

    def descriptor(self, state: SingleState) -> jax.Array:
        """Return the position on the floor as a fraction of the box side, float32 [2]."""
        return _relative_position(self, state)


def _relative_position(
    environment: SingleNavigator | SingleRoller, state: SingleState
) -> jax.Array:
    """Return the position as a fraction of the box side, in the dimensions of the goal."""
    return state.spheres.position[0, : state.goal.shape[0]] / environment.side


def _make_transition(
    environment: SingleNavigator | SingleRoller,
    bodies: Bodies,
    old_state: SingleState,
    next_state: SingleState,
) -> Transition:
    """Return the transition between the states before and after an environment step."""
    closeness, next_closeness = (
        jnp.exp(-safe_norm(_goal_displacement(state)) / environment.attraction)
        for state in (old_state, next_state)
    )
    energy, next_energy = (
        kinetic_energy(bodies, state.spheres)[0] for state in (old_state, next_state)
    )
    truncated = next_state.time >= environment.max_steps
    is_at_goal = safe_norm(_goal_displacement(next_state)) < environment.goal_radius
    return Transition(
        state=next_state,
        obs=environment.observe(next_state),
        reward=next_closeness - closeness - environment.effort * (next_energy - energy),
        terminated=jnp.zeros((), bool),
        truncated=truncated,
        info={"reached": is_at_goal.astype(jnp.float32)},
    )
