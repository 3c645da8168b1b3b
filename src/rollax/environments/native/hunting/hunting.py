"""Hunting: prey and predators that move at constant speeds on the unit square.

It follows the benchmarks of jaxagents (A. Mavritsakis, github.com/amavrits/jax-agents) with these
deviations:

- The time limit truncates the episode, so values bootstrap from the last observation. Survival is
  not the end of the task.
- A continuous heading is a normalized vector instead of an angle, because angles have a
  discontinuity at +-pi.
- Every agent observes the world relative to its own position instead of one shared array, so one
  network can control all agents.
- Predators do not start within reach of the prey, where no policy could avoid a catch.
  `start_distance=0` restores the original behavior.
- Headings are not observed. Positions and time are the full state, because the last moves do not
  affect the future.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from rollax.environments.environment import Transition
from rollax.environments.environment_text import format_environment_html
from rollax.errors import UsageError
from rollax.spaces import ActionSpace, Ball, Box, Discrete
from rollax.types import Action, Observation, State

HEADINGS = ("continuous", "four")
# Rounding dominates the direction of a shorter vector. An agent with such an action stands still.
_MIN_HEADING_LENGTH = 1e-6
# With a larger distance, `reset` may move a predator to a position that is as close as before.
_MAX_START_DISTANCE = 0.35


class HuntingState(NamedTuple):
    """State of a hunt with A agents.

    Attributes:
        positions: Positions (x, y) from 0 to 1, the prey first, float32 [A, 2].
        headings: Unit vectors of the last moves, float32 [A, 2]. They are zero before the first
            move and for agents that stood still.
        time: Number of steps so far, int32 [].
    """

    positions: jax.Array
    headings: jax.Array
    time: jax.Array


class Hunting(eqx.Module):
    """Hunt with one prey, agent 0, that flees from all other agents, the predators.

    For example, `Hunting(speeds=(1.0, 0.5, 0.5))` has two predators. In a step each agent moves by
    `dt` times its speed along its heading and stops at the walls. The prey is caught if a predator
    is then within `catch_radius`, which terminates the task. After `time_limit` steps without a
    catch the episode is truncated.

    The action is a vector [2] with headings "continuous". Only its direction matters, and zero
    stands still. With headings "four" it is 0 (right), 1 (up), 2 (left) or 3 (down).

    The observation of each agent is float32 [2 A + 2], from -1 to 1:

    - its position, 2 (x, y) - 1;
    - the displacement to each other agent, the prey first and then the predators in order;
    - the fraction of the time limit that remains, from 1 to 0;
    - its type, 1 for the prey and -1 for a predator.

    In a step without a catch the reward is `step_reward` for the prey and `-step_reward` for each
    predator. At the catch it is `-catch_reward` for the prey, `catch_reward` for every predator
    within reach, and `assist` times `catch_reward` for the other predators.

    All numbers except the time limit are leaves. Lengths are in units of the side of the square,
    and speeds in sides per unit of time.

    Args:
        speeds: Speed of each agent, the prey first, float [A].
        catch_radius: Distance at which a predator catches the prey.
        dt: Duration of a step.
        time_limit: (static) Maximum number of steps of an episode.
        step_reward: Reward of the prey for each step without a catch.
        catch_reward: Reward of the predators for a catch.
        assist: Fraction of `catch_reward` for predators that are not within reach.
        start_distance: Distance from the prey within which no predator starts, from 0 to 0.35.
        headings: (static) Type of the actions, "continuous" or "four".

    Raises:
        UsageError: If a number is out of range, or `headings` is unknown.
    """

    speeds: jax.Array  # float32 [A], the prey first
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
    _repr_html_ = format_environment_html

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
        self.speeds = self._to_array("speeds", speeds)
        self.catch_radius = self._to_array("catch_radius", catch_radius)
        self.dt = self._to_array("dt", dt)
        self.step_reward = self._to_array("step_reward", step_reward, low=-math.inf)
        self.catch_reward = self._to_array("catch_reward", catch_reward, low=-math.inf)
        self.assist = self._to_array("assist", assist, low=-math.inf)
        self.start_distance = self._to_array(
            "start_distance", start_distance, high=_MAX_START_DISTANCE
        )

    def _check(self) -> None:
        if self.num_agents < 2:
            raise UsageError(
                "hunting: speeds must have at least two entries, the prey first, "
                f"got {self.num_agents}."
            )
        if self.time_limit < 1:
            raise UsageError(f"{self.name}: time_limit ({self.time_limit}) must be at least 1.")
        if self.headings not in HEADINGS:
            raise UsageError(
                f"{self.name}: headings ({self.headings!r}) must be one of {', '.join(HEADINGS)}."
            )

    def _to_array(
        self,
        argument: str,
        value: Sequence[float] | ArrayLike,
        low: float = 0.0,
        high: float = math.inf,
    ) -> jax.Array:
        """Convert a number to a float32 array and, unless it is traced, check its range."""
        if not isinstance(value, Tracer) and not np.all(
            (np.asarray(value) >= low) & (np.asarray(value) <= high)
        ):
            span = f"between {low:g} and {high:g}" if math.isfinite(high) else f"at least {low:g}"
            raise UsageError(
                f"{self.name}: {argument} ({value}) must be "
                f"{span if low > -math.inf else 'a number'}."
            )
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
        # Clipping to a box, unlike a ball, would turn most headings towards the diagonals.
        return Discrete(4) if self.headings == "four" else Ball(2)

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Sample all positions and move predators away from the prey.

        A predator within `start_distance` of the prey is moved by (1/2, 1/2). If it would leave the
        square, it enters on the opposite side. It is then at least sqrt(1/2) - start_distance from
        the prey.
        """
        positions = jax.random.uniform(key, (self.num_agents, 2))
        is_near = _predator_distances(positions) < self.start_distance
        moved = jnp.where(is_near[:, None], (positions[1:] + 0.5) % 1.0, positions[1:])
        positions = jnp.concatenate([positions[:1], moved])
        state = HuntingState(positions, jnp.zeros_like(positions), jnp.zeros((), jnp.int32))
        return state, self.observe(state)

    def step(self, key: jax.Array, state: HuntingState, action: Action) -> Transition:
        """Move all agents by their actions, float [A, 2] or (with four headings) int [A]."""
        headings = self.heading_vectors(action)
        moved = state.positions + self.dt * self.speeds[:, None] * headings
        next_state = HuntingState(jnp.clip(moved, 0.0, 1.0), headings, state.time + 1)
        is_within_reach = _predator_distances(next_state.positions) <= self.catch_radius
        caught = jnp.any(is_within_reach)
        survived = (next_state.time >= self.time_limit) & ~caught
        return Transition(
            state=next_state,
            obs=self.observe(next_state),
            reward=self._compute_rewards(is_within_reach),
            terminated=jnp.broadcast_to(caught, (self.num_agents,)),
            truncated=jnp.broadcast_to(survived, (self.num_agents,)),
            info={"caught": caught.astype(jnp.float32), "survived": survived.astype(jnp.float32)},
        )

    def heading_vectors(self, action: jax.Array) -> jax.Array:
        """Return the unit vectors of actions, `[A, 2]`.

        Continuous actions shorter than 1e-6 give a zero vector.
        """
        if self.headings == "four":
            return jnp.asarray([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])[action]
        length = jnp.sqrt(jnp.sum(action**2, axis=-1, keepdims=True))
        return jnp.where(
            length > _MIN_HEADING_LENGTH, action / jnp.maximum(length, _MIN_HEADING_LENGTH), 0.0
        )

    def observe(self, state: HuntingState) -> jax.Array:
        """Return the observation of each agent, [A, 2 A + 2]."""
        agents = self.num_agents
        others = np.asarray(
            [[other for other in range(agents) if other != agent] for agent in range(agents)]
        )
        offsets = state.positions[others] - state.positions[:, None]
        time_left = jnp.maximum(1 - state.time / self.time_limit, 0.0)
        types = jnp.where(jnp.arange(agents) == 0, 1.0, -1.0)
        parts = [
            2 * state.positions - 1,
            offsets.reshape(agents, -1),
            jnp.full((agents, 1), time_left),
            types[:, None],
        ]
        return jnp.concatenate(parts, axis=1)

    def descriptor(self, state: HuntingState) -> jax.Array:
        """Return the position of the prey, float32 [2].

        At the end of an episode, the prey is there because it was caught or because it survived.
        """
        return state.positions[0]

    def _compute_rewards(self, is_within_reach: jax.Array) -> jax.Array:
        """Return the rewards [A] from a mask of the predators within reach, [A - 1]."""
        sides = jnp.where(jnp.arange(self.num_agents) == 0, 1.0, -1.0)
        share = jnp.concatenate([jnp.full(1, -1.0), jnp.where(is_within_reach, 1.0, self.assist)])
        return jnp.where(
            jnp.any(is_within_reach), self.catch_reward * share, self.step_reward * sides
        )


def _predator_distances(positions: jax.Array) -> jax.Array:
    """Return the distance of each predator from the prey, [A - 1]."""
    return jnp.sqrt(jnp.sum((positions[1:] - positions[:1]) ** 2, axis=-1))
