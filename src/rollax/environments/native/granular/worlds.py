"""The environments of the suite `granular`: spheres that are pushed or turned to their goals.

After the environments of JaxDEM (github.com/cdelv/JaxDEM): rewards are differences of a potential of the distance to the goal.
Decisions come every `substeps` time steps of the physics, and a reward compares the states at two decisions, so nothing is lost
between. Reaching the goal does not end an episode: to stay there is part of the task. The time limit truncates.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.core import Transition
from rollax.environments.native.granular.common import bounded, check_counts, check_physics, number, same_bodies, towards
from rollax.environments.native.granular.physics import (
    Bodies,
    Domain,
    Material,
    Spheres,
    World,
    advance,
    kinetic_energy,
    length,
    turn,
)
from rollax.errors import UsageError
from rollax.spaces import Ball, Box

REACHED = {"reached": "last"}


class SingleState(NamedTuple):
    spheres: Spheres  # of one sphere: [1, ...]
    orientation: jax.Array  # float [4]: a quaternion, for pictures; (1, 0, 0, 0) where spheres do not roll
    goal: jax.Array  # float [D], or [2] on the floor
    time: jax.Array  # int32 []: decisions so far


def _start(spheres: Spheres, goal: jax.Array) -> SingleState:
    return SingleState(spheres, jnp.eye(4)[0], goal, jnp.zeros((), jnp.int32))


def _apart(state: SingleState) -> jax.Array:
    """From the sphere to the goal, in the goal's dimensions."""
    return state.goal - state.spheres.position[0, : state.goal.shape[0]]


def _place(environment: Any, state: SingleState) -> jax.Array:
    """Where the center is, in shares of the box, in the goal's dimensions."""
    return state.spheres.position[0, : state.goal.shape[0]] / environment.side


def _outcome(environment: Any, bodies: Bodies, before: SingleState, after: SingleState) -> Transition:
    """Reward, ends and info of one decision."""
    near, nearer = (jnp.exp(-length(_apart(state)) / environment.attraction) for state in (before, after))
    slow, fast = (kinetic_energy(bodies, state.spheres)[0] for state in (before, after))
    truncated = after.time >= environment.max_steps
    reached = length(_apart(after)) < environment.goal_radius
    return Transition(
        state=after,
        obs=environment.observe(after),
        reward=nearer - near - environment.effort * (fast - slow),
        terminated=jnp.zeros((), bool),
        truncated=truncated,
        info={"reached": reached.astype(jnp.float32)},
    )


class SingleNavigator(eqx.Module):
    """One sphere in a box, pushed by a force to its goal.

    Action: the force, in shares of `strength`, in the unit ball of D numbers (`dimension`). Observation, float [3 D]: direction
    to the goal, displacement to it clipped to [-3, 3], velocity. Reward of a decision: the increase of exp(-d / attraction), d
    the distance to the goal, less `effort` times the increase of the kinetic energy. So the return without a discount
    is below 1, and near 1 - exp(-d_0 / attraction) for whoever ends at rest at the goal. Start and goal are uniform in the box.

    `info["reached"]`, of which an evaluation takes that of the last step, is 1 if the center is within `goal_radius` of the
    goal.

    Raises: UsageError for another dimension than 2 and 3, counts below 1, or physics that there cannot be.
    """

    dimension: int = eqx.field(static=True, default=2)
    max_steps: int = eqx.field(static=True, default=120)
    substeps: int = eqx.field(static=True, default=5)
    side: jax.Array = number(10.0)
    radius: jax.Array = number(0.5)
    mass: jax.Array = number(1.0)
    strength: jax.Array = number(4.0)
    drag: jax.Array = number(0.4)
    stiffness: jax.Array = number(500.0)
    damping: jax.Array = number(0.15)
    friction: jax.Array = number(0.3)
    grip: jax.Array = number(10.0)
    time_step: jax.Array = number(0.02)
    attraction: jax.Array = number(3.0)
    effort: jax.Array = number(0.01)
    goal_radius: jax.Array = number(0.5)

    name = "granular/single-navigator"
    num_agents = None
    descriptor_extraction = "final"
    info_reductions = REACHED

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
        domain = Domain(jnp.zeros(self.dimension), jnp.broadcast_to(self.side, (self.dimension,)), (False,) * self.dimension)
        material = Material(self.stiffness, self.damping, self.friction, self.grip)
        bodies, still = same_bodies(1, self.mass, self.radius), jnp.zeros(())
        return World(bodies, material, domain, jnp.zeros(self.dimension), self.drag, still, self.time_step)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """The sphere at rest, and the goal."""
        position, goal = jax.random.uniform(key, (2, self.dimension), minval=self.radius, maxval=self.side - self.radius)
        spheres = Spheres(position[None], jnp.zeros((1, self.dimension)), jnp.zeros((1, 1 if self.dimension == 2 else 3)))
        state = _start(spheres, goal)
        return state, self.observe(state)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """The force acts for `substeps` time steps."""
        world, before = self.world, state.spheres
        force = self.strength * bounded(action)
        spheres = advance(world, before, force[None], jnp.zeros_like(before.spin), self.substeps)
        after = state._replace(spheres=spheres, time=state.time + 1)
        return _outcome(self, world.bodies, state, after)

    def observe(self, state: SingleState) -> jax.Array:
        return jnp.concatenate([towards(_apart(state)), state.spheres.velocity[0]])

    def descriptor(self, state: SingleState) -> jax.Array:
        """Where the sphere is, float32 [D], in shares of the box."""
        return _place(self, state)


class SingleRoller(eqx.Module):
    """One sphere on the floor of a box, turned by a torque: only friction moves it to its goal.

    Action: the torque, in shares of `strength`, in the unit ball of 3 numbers. Observation, float [10]: direction to the goal
    on the floor, displacement to it clipped to [-3, 3], velocity `[3]`, speed of the surface (spin times radius) `[3]`.
    Reward of a decision: the increase of exp(-d / attraction), d the distance to the goal on the floor, less `effort` times
    the increase of the kinetic energy, that of the spin included. A spin about the vertical is of no use but costs.
    `strength` is below what makes the sphere slip: 7/2 friction x mass x gravity x radius / 2.5 at most in level rolling.

    `info["reached"]`, of which an evaluation takes that of the last step, is 1 if the center is within `goal_radius` of the
    goal, on the floor.

    Raises: UsageError for counts below 1, or physics that there cannot be.
    """

    max_steps: int = eqx.field(static=True, default=150)
    substeps: int = eqx.field(static=True, default=20)
    side: jax.Array = number(8.0)
    radius: jax.Array = number(0.5)
    mass: jax.Array = number(1.0)
    strength: jax.Array = number(2.0)
    gravity: jax.Array = number(10.0)
    drag: jax.Array = number(0.1)
    spin_drag: jax.Array = number(0.05)
    stiffness: jax.Array = number(2000.0)
    damping: jax.Array = number(0.15)
    friction: jax.Array = number(0.6)
    grip: jax.Array = number(30.0)
    time_step: jax.Array = number(0.005)
    attraction: jax.Array = number(3.0)
    effort: jax.Array = number(0.01)
    goal_radius: jax.Array = number(0.5)

    name = "granular/single-roller"
    num_agents = None
    observation_space = Box(-np.inf, np.inf, (10,))
    action_space = Ball(3)
    descriptor_space = Box(0.0, 1.0, (2,))
    descriptor_extraction = "final"
    info_reductions = REACHED

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
        down = jnp.stack([jnp.zeros(()), jnp.zeros(()), -self.gravity])
        bodies = same_bodies(1, self.mass, self.radius)
        return World(bodies, material, domain, down, self.drag, self.spin_drag, self.time_step)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """The sphere at rest where the floor bears its weight, and the goal on the floor."""
        place, goal = jax.random.uniform(key, (2, 2), minval=self.radius, maxval=self.side - self.radius)
        height = self.radius - self.mass * self.gravity / self.stiffness
        spheres = Spheres(jnp.append(place, height)[None], jnp.zeros((1, 3)), jnp.zeros((1, 3)))
        state = _start(spheres, goal)
        return state, self.observe(state)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """The torque acts for `substeps` time steps."""
        world, before = self.world, state.spheres
        torque = self.strength * bounded(action)
        spheres = advance(world, before, jnp.zeros_like(before.velocity), torque[None], self.substeps)
        # For pictures alone, so the mean of both spins will do.
        mean_spin = (before.spin[0] + spheres.spin[0]) / 2
        orientation = turn(state.orientation, mean_spin, self.substeps * self.time_step)
        after = SingleState(spheres, orientation, state.goal, state.time + 1)
        return _outcome(self, world.bodies, state, after)

    def observe(self, state: SingleState) -> jax.Array:
        surface = self.radius * state.spheres.spin[0]
        return jnp.concatenate([towards(_apart(state)), state.spheres.velocity[0], surface])

    def descriptor(self, state: SingleState) -> jax.Array:
        """Where the sphere is on the floor, float32 [2], in shares of the box."""
        return _place(self, state)
