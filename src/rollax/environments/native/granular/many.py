"""Many discs in one box, each with a goal of its own: the environment of the suite `granular` that has agents."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.core import Transition
from rollax.environments.native.granular import lidar
from rollax.environments.native.granular.common import bounded, check_counts, check_physics, number, same_bodies, towards
from rollax.environments.native.granular.neighbors import Neighbors, neighbor_search
from rollax.environments.native.granular.physics import Domain, Material, Spheres, World, advance, kinetic_energy, length
from rollax.errors import UsageError
from rollax.spaces import Ball, Box, Dict, Space


class ManyState(NamedTuple):
    spheres: Spheres  # [A, ...]
    goal: jax.Array  # float [A, 2]
    time: jax.Array  # int32 []: decisions so far
    neighbors: Neighbors | None  # of these positions; None where all pairs are compared


class ManyNavigators(eqx.Module):
    """`num_agents` discs in a box, each pushed by a force to a goal of its own, with the others in the way.

    Action of an agent: the force, in shares of `strength`, in the unit disc. Observation, float [6 + 2 sectors]: direction to
    its goal, displacement to it clipped to [-3, 3], velocity, lidar of the other agents and of the walls (`lidar.py`). Reward
    of a decision: the increase of exp(-d / attraction), d the distance to the goal, plus `shared` times the mean of
    that over all agents, less `effort` times the increase of the kinetic energy, plus `bonus` if at the goal.

    Starts and goals are drawn in different cells of a grid with at least two cells for each agent, `spacing` wide, so that
    neither overlap; the box is as large as the grid. With `global_state` critics see in "global_state" the positions,
    velocities and displacements to the goals of all agents, float [6 num_agents]; lengths in shares of the box.

    `info["at_goal"]`, of which an evaluation takes that of the last step, is the share of agents whose centers are within
    `goal_radius` of their goals.

    `pairs` "listed" compares each agent only with those in a list of neighbors, at most `capacity` each, which pays
    for some hundreds of agents or more and needs jax-md. The list is made for the spacing, radius and reach that the
    environment has when it is made; `info["overflow"]` counts steps in which it was too short.

    Raises: UsageError for counts too small, a spacing in which agents do not fit, or "listed" without jax-md.
    """

    info_reductions = {"at_goal": "last", "overflow": "sum"}

    num_agents: int = eqx.field(static=True, default=16)
    sectors: int = eqx.field(static=True, default=16)
    max_steps: int = eqx.field(static=True, default=120)
    substeps: int = eqx.field(static=True, default=5)
    global_state: bool = eqx.field(static=True, default=False)
    pairs: str = eqx.field(static=True, default="all")
    capacity: int = eqx.field(static=True, default=48)
    spacing: jax.Array = number(1.5)
    radius: jax.Array = number(0.3)
    mass: jax.Array = number(1.0)
    strength: jax.Array = number(4.0)
    drag: jax.Array = number(1.0)
    stiffness: jax.Array = number(500.0)
    damping: jax.Array = number(0.15)
    friction: jax.Array = number(0.2)
    grip: jax.Array = number(10.0)
    time_step: jax.Array = number(0.02)
    reach: jax.Array = number(3.0)
    attraction: jax.Array = number(3.0)
    shared: jax.Array = number(0.2)
    bonus: jax.Array = number(0.01)
    effort: jax.Array = number(0.01)
    goal_radius: jax.Array = number(0.3)
    search: Any = eqx.field(static=True, init=False)

    name = "granular/many-navigators"

    def __post_init__(self) -> None:
        counts = {name: (getattr(self, name), 1) for name in ("num_agents", "max_steps", "substeps", "capacity")}
        check_counts(self.name, **counts, sectors=(self.sectors, 3))
        check_physics(self, "spacing")
        if self.pairs not in ("all", "listed"):
            raise UsageError(f"{self.name}: pairs ({self.pairs!r}) must be all or listed.")
        self.search = self._listed() if self.pairs == "listed" and self.num_agents > 1 else None

    def _listed(self) -> Any:
        """The search for all that an agent's lidar may reach, which is far more than it can touch within a decision."""
        radius = float(self.radius)
        side = self.cells * float(self.spacing)
        return neighbor_search(
            self.num_agents, (side, side), False, float(self.reach) + 2 * radius, self.capacity, 1.8 * radius
        )

    @property
    def cells(self) -> int:
        """Along one side of the grid in which starts and goals are drawn."""
        return int(np.ceil(np.sqrt(2 * self.num_agents)))

    @property
    def agent_types(self) -> tuple[str, ...]:
        return ("navigator",) * self.num_agents

    @property
    def observation_space(self) -> Space:
        own = Box(-np.inf, np.inf, (6 + 2 * self.sectors,))
        if not self.global_state:
            return own
        return Dict({"global_state": Box(-np.inf, np.inf, (6 * self.num_agents,)), "observation": own})

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
        bodies, still = same_bodies(self.num_agents, self.mass, self.radius), jnp.zeros(())
        return World(bodies, material, domain, jnp.zeros(2), self.drag, still, self.time_step)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """All agents at rest."""
        start_key, goal_key = jax.random.split(key)
        agents = self.num_agents
        spheres = Spheres(self._places(start_key), jnp.zeros((agents, 2)), jnp.zeros((agents, 1)))
        state = ManyState(spheres, self._places(goal_key), jnp.zeros((), jnp.int32), self._neighbors(spheres))
        return state, self._observe(state)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """The forces act for `substeps` time steps."""
        world, before = self.world, state.spheres
        force = self.strength * jax.vmap(bounded)(action)
        spheres = advance(world, before, force, jnp.zeros_like(before.spin), self.substeps, state.neighbors)
        after = ManyState(spheres, state.goal, state.time + 1, self._neighbors(spheres))
        near, nearer = (jnp.exp(-self._distances(x) / self.attraction) for x in (state, after))
        energy = kinetic_energy(world.bodies, spheres) - kinetic_energy(world.bodies, before)
        at_goal = self._distances(after) < self.goal_radius
        gain = nearer - near
        reward = gain + self.shared * jnp.mean(gain) + self.bonus * at_goal - self.effort * energy
        is_last = after.time >= self.max_steps
        info = {"at_goal": jnp.mean(at_goal.astype(jnp.float32))}
        if state.neighbors is not None:
            info["overflow"] = state.neighbors.overflow.astype(jnp.float32)
        every = jnp.broadcast_to(is_last, (self.num_agents,))
        return Transition(after, self._observe(after), reward, jnp.zeros_like(every), every, info)

    def descriptor(self, state: ManyState) -> jax.Array:
        """Where the agents are in the mean, float32 [2], in shares of the box."""
        return jnp.mean(state.spheres.position, axis=0) / self.side

    def _places(self, key: jax.Array) -> jax.Array:
        """A place `[A, 2]` for each agent, in a cell of its own."""
        cell_key, place_key = jax.random.split(key)
        cell = jax.random.choice(cell_key, self.cells**2, (self.num_agents,), replace=False)
        corner = jnp.stack([cell // self.cells, cell % self.cells], axis=1) * self.spacing
        within = jax.random.uniform(place_key, (self.num_agents, 2), minval=self.radius, maxval=self.spacing - self.radius)
        return corner + within

    def _neighbors(self, spheres: Spheres) -> Neighbors | None:
        return None if self.search is None else self.search(spheres.position)

    def _distances(self, state: ManyState) -> jax.Array:
        return jax.vmap(length)(state.goal - state.spheres.position)

    def _observe(self, state: ManyState) -> Any:
        spheres, apart = state.spheres, state.goal - state.spheres.position
        own = jnp.concatenate([jax.vmap(towards)(apart), spheres.velocity, self._others(state), self._walls(state)], axis=1)
        if not self.global_state:
            return own
        whole = jnp.concatenate([spheres.position / self.side - 0.5, spheres.velocity, apart / self.side], axis=1)
        return {"global_state": jnp.broadcast_to(whole.reshape(1, -1), (self.num_agents, whole.size)), "observation": own}

    def _others(self, state: ManyState) -> jax.Array:
        """What each agent's lidar sees of the others, `[A, sectors]`."""
        position, agents = state.spheres.position, jnp.arange(self.num_agents)
        near = state.neighbors

        def seen(i: jax.Array, others: jax.Array) -> jax.Array:
            sees = lambda j: lidar.of_disc(position[j] - position[i], self.radius, self.radius, self.reach, self.sectors)  # noqa: E731
            is_other = (others != i) & (others < self.num_agents)
            return jnp.max(jnp.where(is_other[:, None], jax.vmap(sees)(others), 0.0), axis=0)

        if near is None:
            return jax.vmap(seen, (0, None))(agents, agents)
        return jax.vmap(seen)(agents, near.indices)

    def _walls(self, state: ManyState) -> jax.Array:
        high = jnp.broadcast_to(self.side, (2,))
        sees = lambda place: lidar.of_walls(place, high, self.radius, self.reach, self.sectors)  # noqa: E731
        return jax.vmap(sees)(state.spheres.position)
