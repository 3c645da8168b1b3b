"""Multi-agent environment of the suite `granular`: discs in one box with individual goals."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.environment import Transition
from rollax.environments.environment_text import format_environment_html
from rollax.environments.native.granular import lidar
from rollax.environments.native.granular.common import (
    check_counts,
    check_physics,
    clip_norm,
    make_identical_bodies,
    observe_goal_displacement,
    parameter_field,
)
from rollax.environments.native.granular.neighbors import Neighbors, make_neighbor_search
from rollax.environments.native.granular.physics import (
    Domain,
    Material,
    Spheres,
    World,
    advance,
    kinetic_energy,
    safe_norm,
)
from rollax.errors import UsageError
from rollax.spaces import Ball, Box, Dict, Space
from rollax.types import Action, Observation, State


class ManyState(NamedTuple):
    """State of `ManyNavigators` with A agents.

    Attributes:
        spheres: Positions, velocities and spins, each with leading axis [A].
        goal: Goals, float [A, 2].
        time: Number of environment steps so far, int32 [].
        neighbors: Neighbor list at these positions, or None if all pairs are compared.
    """

    spheres: Spheres
    goal: jax.Array
    time: jax.Array
    neighbors: Neighbors | None


class ManyNavigators(eqx.Module):
    """Multi-agent navigation: each agent pushes its disc to its goal and avoids other discs.

    The action of an agent is the force in units of `strength`, in the unit disc. The observation is
    float [6 + 2 sectors]: direction to the goal, displacement to it clipped to [-3, 3], velocity,
    and lidar readings of the other agents and of the walls (`lidar.py`).

    Let d be the distance to the goal. The gain of a step is the increase of exp(-d /
    attraction). The reward is the gain, plus `shared` times the mean gain of all agents, minus
    `effort` times the increase of the kinetic energy, plus `bonus` at the goal.

    Starts and goals are sampled in different cells of a grid with at least two cells of width
    `spacing` per agent. Therefore, neither agents at the start nor goals overlap. The box
    has the size of the grid. With `global_state` the observation has an entry "global_state" for
    critics with the positions, velocities and goal displacements of all agents, float [6
    num_agents]. Its lengths are fractions of the box side.

    `info["at_goal"]` is the fraction of agents whose centers are within `goal_radius` of their
    goals. Evaluations report its value at the last step.

    With `pairs` "listed", each agent is compared only with a list of at most `capacity` neighbors.
    This is faster for several hundred agents or more and needs jax-md. The list is sized for the
    `spacing`, `radius` and `reach` at construction. `info["overflow"]` is 1 in a step whose list
    was too short. Evaluations sum it.

    Attributes:
        num_agents: (static) Number of agents.
        sectors: (static) Number of lidar sectors, at least 3.
        max_steps: (static) Maximum number of environment steps of an episode.
        substeps: (static) Number of physics steps per environment step.
        global_state: (static) Whether the observation has an entry "global_state" for critics.
        pairs: (static) Pairs to compare, "all" or "listed".
        capacity: (static) Maximum number of listed neighbors per agent.
        spacing: Width of a grid cell, at least the diameter of an agent.
        radius: Radius of an agent.
        mass: Mass of an agent.
        strength: Largest force of an agent.
        drag: Force against the velocity, per unit of velocity.
        stiffness: Stiffness of contacts (see `Material`).
        damping: Damping of contacts as a fraction of critical damping, from 0 to below 1.
        friction: Coulomb coefficient of friction.
        grip: Rate at which friction stops slip.
        time_step: Time step of the physics in seconds.
        reach: Range of the lidar.
        attraction: Length scale of the reward's potential.
        shared: Weight of the mean gain of all agents in the reward.
        bonus: Reward for each step that ends at the goal.
        effort: Cost per unit of kinetic energy that an agent gains.
        goal_radius: Largest distance at which an agent is at its goal.

    Raises:
        UsageError: If a count is too small, discs do not fit into `spacing`, a physical parameter
            is out of range, or `pairs` is "listed" without jax-md.
    """

    info_reductions = {"at_goal": "last", "overflow": "sum"}

    num_agents: int = eqx.field(static=True, default=16)
    sectors: int = eqx.field(static=True, default=16)
    max_steps: int = eqx.field(static=True, default=120)
    substeps: int = eqx.field(static=True, default=5)
    global_state: bool = eqx.field(static=True, default=False)
    pairs: str = eqx.field(static=True, default="all")
    capacity: int = eqx.field(static=True, default=48)
    spacing: jax.Array = parameter_field(1.5)
    radius: jax.Array = parameter_field(0.3)
    mass: jax.Array = parameter_field(1.0)
    strength: jax.Array = parameter_field(4.0)
    drag: jax.Array = parameter_field(1.0)
    stiffness: jax.Array = parameter_field(500.0)
    damping: jax.Array = parameter_field(0.15)
    friction: jax.Array = parameter_field(0.2)
    grip: jax.Array = parameter_field(10.0)
    time_step: jax.Array = parameter_field(0.02)
    reach: jax.Array = parameter_field(3.0)
    attraction: jax.Array = parameter_field(3.0)
    shared: jax.Array = parameter_field(0.2)
    bonus: jax.Array = parameter_field(0.01)
    effort: jax.Array = parameter_field(0.01)
    goal_radius: jax.Array = parameter_field(0.3)
    search: Any = eqx.field(static=True, init=False)

    name = "granular/many-navigators"
    _repr_html_ = format_environment_html

    def __post_init__(self) -> None:
        counts = {
            name: (getattr(self, name), 1)
            for name in ("num_agents", "max_steps", "substeps", "capacity")
        }
        check_counts(self.name, **counts, sectors=(self.sectors, 3))
        check_physics(self, "spacing")
        if self.pairs not in ("all", "listed"):
            raise UsageError(f"{self.name}: pairs ({self.pairs!r}) must be all or listed.")
        self.search = (
            self._make_neighbor_search() if self.pairs == "listed" and self.num_agents > 1 else None
        )

    def _make_neighbor_search(self) -> Any:
        """Build the neighbor search with a cutoff at the lidar range.

        The search runs once per environment step. Agents that touch during a step are much closer
        than the cutoff at its start, so the search also finds them.
        """
        radius = float(self.radius)
        side = self.cells * float(self.spacing)
        return make_neighbor_search(
            self.num_agents,
            (side, side),
            False,
            float(self.reach) + 2 * radius,
            self.capacity,
            1.8 * radius,
        )

    @property
    def cells(self) -> int:
        """Number of cells per side of the grid of starts and goals."""
        return int(np.ceil(np.sqrt(2 * self.num_agents)))

    @property
    def agent_types(self) -> tuple[str, ...]:
        return ("navigator",) * self.num_agents

    @property
    def observation_space(self) -> Space:
        own = Box(-np.inf, np.inf, (6 + 2 * self.sectors,))
        if not self.global_state:
            return own
        return Dict(
            {"global_state": Box(-np.inf, np.inf, (6 * self.num_agents,)), "observation": own}
        )

    @property
    def action_space(self) -> Ball:
        return Ball(2)

    @property
    def descriptor_space(self) -> Box:
        return Box(0.0, 1.0, (2,))

    @property
    def descriptor_extraction(self) -> str:
        return "final"

    @property
    def time_limit(self) -> int:
        return self.max_steps

    @property
    def side(self) -> jax.Array:
        return self.cells * self.spacing

    @property
    def world(self) -> World:
        domain = Domain(jnp.zeros(2), jnp.broadcast_to(self.side, (2,)), (False, False))
        material = Material(self.stiffness, self.damping, self.friction, self.grip)
        bodies, zero = (
            make_identical_bodies(self.num_agents, self.mass, self.radius),
            jnp.zeros(()),
        )
        return World(bodies, material, domain, jnp.zeros(2), self.drag, zero, self.time_step)

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Sample positions and goals of all agents. The agents start at rest."""
        start_key, goal_key = jax.random.split(key)
        agents = self.num_agents
        spheres = Spheres(
            self._sample_positions(start_key), jnp.zeros((agents, 2)), jnp.zeros((agents, 1))
        )
        state = ManyState(
            spheres,
            self._sample_positions(goal_key),
            jnp.zeros((), jnp.int32),
            self._find_neighbors(spheres),
        )
        return state, self._observe(state)

    def step(self, key: jax.Array, state: ManyState, action: Action) -> Transition:
        """Apply the forces for `substeps` time steps."""
        world, spheres_before = self.world, state.spheres
        force = self.strength * jax.vmap(clip_norm)(action)
        spheres = advance(
            world,
            spheres_before,
            force,
            jnp.zeros_like(spheres_before.spin),
            self.substeps,
            state.neighbors,
        )
        next_state = ManyState(spheres, state.goal, state.time + 1, self._find_neighbors(spheres))
        closeness, next_closeness = (
            jnp.exp(-self._goal_distances(x) / self.attraction) for x in (state, next_state)
        )
        energy = kinetic_energy(world.bodies, spheres) - kinetic_energy(
            world.bodies, spheres_before
        )
        at_goal = self._goal_distances(next_state) < self.goal_radius
        gain = next_closeness - closeness
        reward = gain + self.shared * jnp.mean(gain) + self.bonus * at_goal - self.effort * energy
        is_last = next_state.time >= self.max_steps
        info = {"at_goal": jnp.mean(at_goal.astype(jnp.float32))}
        if state.neighbors is not None:
            info["overflow"] = state.neighbors.overflow.astype(jnp.float32)
        is_last_by_agent = jnp.broadcast_to(is_last, (self.num_agents,))
        return Transition(
            next_state,
            self._observe(next_state),
            reward,
            jnp.zeros_like(is_last_by_agent),
            is_last_by_agent,
            info,
        )

    def descriptor(self, state: ManyState) -> jax.Array:
        """Return the mean position of the agents as a fraction of the box side, float32 [2]."""
        return jnp.mean(state.spheres.position, axis=0) / self.side

    def _sample_positions(self, key: jax.Array) -> jax.Array:
        """Sample a position for each agent in a separate cell, `[A, 2]`."""
        cell_key, place_key = jax.random.split(key)
        cell = jax.random.choice(cell_key, self.cells**2, (self.num_agents,), replace=False)
        corner = jnp.stack([cell // self.cells, cell % self.cells], axis=1) * self.spacing
        offset = jax.random.uniform(
            place_key, (self.num_agents, 2), minval=self.radius, maxval=self.spacing - self.radius
        )
        return corner + offset

    def _find_neighbors(self, spheres: Spheres) -> Neighbors | None:
        return None if self.search is None else self.search(spheres.position)

    def _goal_distances(self, state: ManyState) -> jax.Array:
        return jax.vmap(safe_norm)(state.goal - state.spheres.position)

    def _observe(self, state: ManyState) -> Any:
        spheres, displacement = state.spheres, state.goal - state.spheres.position
        agent_obs = jnp.concatenate(
            [
                jax.vmap(observe_goal_displacement)(displacement),
                spheres.velocity,
                self._agent_readings(state),
                self._wall_readings(state),
            ],
            axis=1,
        )
        if not self.global_state:
            return agent_obs
        global_state = jnp.concatenate(
            [spheres.position / self.side - 0.5, spheres.velocity, displacement / self.side], axis=1
        )
        return {
            "global_state": jnp.broadcast_to(
                global_state.reshape(1, -1), (self.num_agents, global_state.size)
            ),
            "observation": agent_obs,
        }

    def _agent_readings(self, state: ManyState) -> jax.Array:
        """Return the lidar readings of the other agents for each agent, `[A, sectors]`."""
        position, agents = state.spheres.position, jnp.arange(self.num_agents)
        neighbors = state.neighbors

        def read_lidar(agent: jax.Array, other_agents: jax.Array) -> jax.Array:
            def read_disc(other):
                return lidar.disc_readings(
                    position[other] - position[agent],
                    self.radius,
                    self.radius,
                    self.reach,
                    self.sectors,
                )

            is_other = (other_agents != agent) & (other_agents < self.num_agents)
            return jnp.max(
                jnp.where(is_other[:, None], jax.vmap(read_disc)(other_agents), 0.0), axis=0
            )

        if neighbors is None:
            return jax.vmap(read_lidar, (0, None))(agents, agents)
        return jax.vmap(read_lidar)(agents, neighbors.indices)

    def _wall_readings(self, state: ManyState) -> jax.Array:
        high = jnp.broadcast_to(self.side, (2,))

        def read_walls(position):
            return lidar.wall_readings(position, high, self.radius, self.reach, self.sectors)

        return jax.vmap(read_walls)(state.spheres.position)
