"""The suite `hunting`: prey and predators on the unit square, each with a heading of its own and a constant speed.

After the benchmarks of jaxagents (A. Mavritsakis, github.com/amavrits/jax-agents). Deviations, each with its reason:

- the time limit truncates: surviving is no end of the task, so its value is that of the last observation;
- a continuous heading is a vector that is normalized, not an angle: an angle clipped to +-pi has a seam, and a policy that
  wants to go left has to jump across it;
- every agent observes the world from where it is, not all of them the same array, so that one network can serve all;
- predators do not begin within reach of the prey, where no policy could change anything (`start_distance=0`: as there);
- headings are no part of the observation: positions and time are the whole state, the last moves change nothing after them.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rollax.environments.convert import convert_all, signature_defaults
from rollax.environments.core import Environment, Transition
from rollax.errors import UsageError
from rollax.spaces import ActionSpace, Ball, Box, Discrete

HEADINGS = ("continuous", "four")
CHOICES = {"headings": HEADINGS}
# A vector shorter than this has no heading that rounding would not decide: who gives one stands still.
_SHORTEST = 1e-6
# Beyond it a predator that is moved away from the prey (see `reset`) may be as near as before.
_MOST_DISTANCE = 0.35


class HuntingState(NamedTuple):
    positions: jax.Array  # float32 [A, 2]: (x, y) from 0 to 1, the prey first
    headings: jax.Array  # float32 [A, 2]: of the last move, length 1; zero for who stood still and before the first move
    time: jax.Array  # int32 []: steps taken


class Hunting(eqx.Module):
    """Agent 0, the prey, flees from all other agents, the predators: `Hunting(speeds=(1.0, 0.5, 0.5))`.

    In a step each player moves `dt` x its speed along its heading and stops at the walls. The prey is caught when a predator is
    within `catch_radius` after that: the task terminates. After `time_limit` steps without a catch it is truncated.

    Actions: with `headings` "continuous" a vector [2] in any direction, whose length does not matter (zero stands still);
    with "four" 0 right, 1 up, 2 left, 3 down.

    Observation of each agent, float32 [2 A + 2], from -1 to 1:

    - own position, 2 (x, y) - 1;
    - for each other agent, the prey first and the predators by number, its position minus the own one;
    - the share of the time that is left, from 1 to 0;
    - the own kind: 1 prey, -1 predator.

    Rewards: in a step without a catch `step_reward` for the prey and minus that for each predator; at the catch minus
    `catch_reward` for the prey, `catch_reward` for every predator within reach and `assist` x `catch_reward` for the others.

    All numbers but the time limit are leaves. Lengths are in sides of the square, speeds in sides per unit of time.

    Raises: UsageError for numbers out of range.
    """

    speeds: jax.Array  # float32 [A]: the prey's first
    catch_radius: jax.Array
    dt: jax.Array
    step_reward: jax.Array
    catch_reward: jax.Array
    assist: jax.Array
    start_distance: jax.Array
    num_agents: int = eqx.field(static=True)
    time_limit: int = eqx.field(static=True)
    headings: str = eqx.field(static=True)

    descriptor_space = Box(0.0, 1.0, (2,))
    descriptor_extraction = "final"
    info_reductions = {"caught": "sum", "survived": "sum"}

    def __init__(
        self,
        speeds: Sequence[float] | jax.Array,
        catch_radius: float = 0.2,
        dt: float = 0.01,
        time_limit: int = 200,
        step_reward: float = 1.0,
        catch_reward: float = 100.0,
        assist: float = 0.5,
        start_distance: float = 0.3,
        headings: str = "continuous",
    ) -> None:
        self.num_agents = len(speeds)
        self.time_limit = time_limit
        self.headings = headings
        self._check()
        self.speeds = self._leaf("speeds", speeds)
        self.catch_radius = self._leaf("catch_radius", catch_radius)
        self.dt = self._leaf("dt", dt)
        self.step_reward = self._leaf("step_reward", step_reward, low=-math.inf)
        self.catch_reward = self._leaf("catch_reward", catch_reward, low=-math.inf)
        self.assist = self._leaf("assist", assist, low=-math.inf)
        self.start_distance = self._leaf("start_distance", start_distance, high=_MOST_DISTANCE)

    def _check(self) -> None:
        if self.num_agents < 2:
            raise UsageError(f"hunting: speeds has {self.num_agents} entry: it must have two at least, the prey's first.")
        if self.time_limit < 1:
            raise UsageError(f"{self.name}: time_limit ({self.time_limit}) must be at least 1.")
        if self.headings not in HEADINGS:
            raise UsageError(f"{self.name}: headings ({self.headings!r}) must be one of {', '.join(HEADINGS)}.")

    def _leaf(self, argument: str, value: Any, low: float = 0.0, high: float = math.inf) -> jax.Array:
        """The number as an array, within its range where it is known already."""
        if not isinstance(value, Tracer) and not np.all((np.asarray(value) >= low) & (np.asarray(value) <= high)):
            span = f"between {low:g} and {high:g}" if math.isfinite(high) else f"at least {low:g}"
            raise UsageError(f"{self.name}: {argument} ({value}) must be {span if low > -math.inf else 'a number'}.")
        return jnp.asarray(value, jnp.float32)

    @property
    def name(self) -> str:
        return f"hunting/{self.num_agents}-players"

    @property
    def agent_types(self) -> tuple[str, ...]:
        return ("prey", *["predator"] * (self.num_agents - 1))

    @property
    def observation_space(self) -> Box:
        return Box(-1.0, 1.0, (2 * self.num_agents + 2,))

    @property
    def action_space(self) -> ActionSpace:
        # A ball treats all directions alike; clipping to a box would turn most headings towards the diagonals.
        return Discrete(4) if self.headings == "four" else Ball(2)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """All positions are uniform draws; a predator within `start_distance` of the prey is then moved by (1/2, 1/2).

        Who would leave the square enters it on the opposite side, and is at least sqrt(1/2) - start_distance from the prey.
        """
        positions = jax.random.uniform(key, (self.num_agents, 2))
        is_near = _distances(positions) < self.start_distance
        moved = jnp.where(is_near[:, None], (positions[1:] + 0.5) % 1.0, positions[1:])
        positions = jnp.concatenate([positions[:1], moved])
        state = HuntingState(positions, jnp.zeros_like(positions), jnp.zeros((), jnp.int32))
        return state, self.observe(state)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """One move of all. `action`: float [A, 2] or int [A]."""
        headings = self.heading(action)
        moved = state.positions + self.dt * self.speeds[:, None] * headings
        after = HuntingState(jnp.clip(moved, 0.0, 1.0), headings, state.time + 1)
        within = _distances(after.positions) <= self.catch_radius
        caught = jnp.any(within)
        survived = (after.time >= self.time_limit) & ~caught
        return Transition(
            state=after,
            obs=self.observe(after),
            reward=self._rewards(within),
            terminated=jnp.broadcast_to(caught, (self.num_agents,)),
            truncated=jnp.broadcast_to(survived, (self.num_agents,)),
            info={"caught": caught.astype(jnp.float32), "survived": survived.astype(jnp.float32)},
        )

    def heading(self, action: jax.Array) -> jax.Array:
        """The unit vectors `[A, 2]` that actions mean; zero for a vector that has no direction."""
        if self.headings == "four":
            return jnp.asarray([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])[action]
        length = jnp.sqrt(jnp.sum(action**2, axis=-1, keepdims=True))
        return jnp.where(length > _SHORTEST, action / jnp.maximum(length, _SHORTEST), 0.0)

    def observe(self, state: HuntingState) -> jax.Array:
        """What each agent sees, [A, 2 A + 2]."""
        agents = self.num_agents
        others = np.asarray([[other for other in range(agents) if other != agent] for agent in range(agents)])
        offsets = state.positions[others] - state.positions[:, None]
        left = jnp.maximum(1 - state.time / self.time_limit, 0.0)
        types = jnp.where(jnp.arange(agents) == 0, 1.0, -1.0)
        parts = [2 * state.positions - 1, offsets.reshape(agents, -1), jnp.full((agents, 1), left), types[:, None]]
        return jnp.concatenate(parts, axis=1)

    def descriptor(self, state: HuntingState) -> jax.Array:
        """Where the prey is, float32 [2]: at the end of an episode, where it was caught or survived."""
        return state.positions[0]

    def _rewards(self, within: jax.Array) -> jax.Array:
        """Of all agents, [A], by which predators are within reach, [A - 1]."""
        sides = jnp.where(jnp.arange(self.num_agents) == 0, 1.0, -1.0)
        share = jnp.concatenate([jnp.full(1, -1.0), jnp.where(within, 1.0, self.assist)])
        return jnp.where(jnp.any(within), self.catch_reward * share, self.step_reward * sides)


def _distances(positions: jax.Array) -> jax.Array:
    """Of each predator from the prey, [A - 1]."""
    return jnp.sqrt(jnp.sum((positions[1:] - positions[:1]) ** 2, axis=-1))


def make(name: str, arguments: dict[str, Any]) -> Environment:
    """The hunt of that name.

    Raises: UsageError for numbers out of range; UnknownNameError for an unknown argument.
    """
    defaults = _arguments(name)
    values = defaults | convert_all(f"hunting/{name}", arguments, defaults)
    prey = values.pop("prey_speed")
    if name == "2-players":
        predators = [values.pop("predator_speed")]
    else:
        predators = list(values.pop("predator_speeds"))
        if len(predators) != 2:
            raise UsageError(f"hunting/{name}: predator_speeds ({predators}) must be two numbers, one for each predator.")
    return Hunting(jnp.stack([jnp.asarray(speed, jnp.float32) for speed in (prey, *predators)]), **values)


def arguments(name: str) -> dict[str, Any]:
    """What the hunt accepts, with defaults."""
    return _arguments(name)


def _arguments(name: str) -> dict[str, Any]:
    common = signature_defaults(Hunting)
    del common["speeds"]
    if name == "2-players":
        del common["assist"]  # the only predator makes every catch itself
        return {"prey_speed": 1.0, "predator_speed": 1.0, **common}
    return {"prey_speed": 1.0, "predator_speeds": (0.5, 0.5), **common}
