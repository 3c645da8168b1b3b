"""The suite `control`: continuous actions in worlds small enough to see through.

`control/point-maze` asks for exploration: a goal behind a cup whose open side faces the start. Going straight towards the goal
ends in the cup, and every way out of it begins by going away from the goal. After the deceptive mazes of Lehman and Stanley
2011, "Abandoning Objectives: Evolution through the Search for Novelty Alone".
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rollax.environments.convert import convert_all, signature_defaults
from rollax.environments.core import Environment, Transition
from rollax.errors import UsageError
from rollax.spaces import Box

REWARDS = ("distance", "sparse")
CHOICES = {"reward": REWARDS}
START, GOAL = (0.5, 0.15), (0.5, 0.85)
# Each wall is (left, bottom, right, top): the bottom of the cup, which is up, and its two sides. They overlap, because a point
# may stand on the face of a wall and would slip between two that only touch.
WALLS = ((0.22, 0.56, 0.78, 0.6), (0.22, 0.35, 0.26, 0.6), (0.74, 0.35, 0.78, 0.6))


class MazeState(NamedTuple):
    position: jax.Array  # float32 [2]: (x, y) from 0 to 1
    time: jax.Array  # int32 []: steps taken


class PointMaze(eqx.Module):
    """A point walks round a cup of walls to the goal beyond it.

    Action: a displacement [2], each part from -1 to 1 in units of `step_size`. The point moves along x first and then along y,
    each time as far as the nearest wall: it slides along walls and is never inside one, however long the step.

    Observation: 2 (x, y) - 1, and the goal's position minus the own one; float32 [4], from -1 to 1. With `observe_time` a fifth
    number, from -1 at the start to 1 at the time limit: where the place at the end counts, as for a descriptor, what is best
    depends on the steps that are left (Pardo et al. 2018, arXiv:1712.00378).

    Reward: `reward` "distance" gives minus the distance from the goal at every step, which deceives: the way round the cup
    leads away from the goal at first. "sparse" gives 1 for reaching the goal and 0 before.

    Within `goal_radius` of the goal the task terminates; after `time_limit` steps it is truncated. The point starts in a square
    of half-width `start_spread` around (0.5, 0.15); the goal is (0.5, 0.85). Lengths are in sides of the square world. All
    numbers but the time limit are leaves, start, goal and walls as well.

    Raises: UsageError for numbers out of range.
    """

    step_size: jax.Array
    goal_radius: jax.Array
    start_spread: jax.Array
    start: jax.Array  # float32 [2]
    goal: jax.Array  # float32 [2]
    walls: jax.Array  # float32 [W, 4]: left, bottom, right, top
    time_limit: int = eqx.field(static=True)
    reward: str = eqx.field(static=True)
    observe_time: bool = eqx.field(static=True)

    name = "control/point-maze"
    action_space = Box(-1.0, 1.0, (2,))
    descriptor_space = Box(0.0, 1.0, (2,))
    descriptor_extraction = "final"
    info_reductions = {"reached": "last"}
    num_agents = None

    def __init__(
        self,
        reward: str = "distance",
        time_limit: int = 100,
        step_size: float = 0.05,
        goal_radius: float = 0.1,
        start_spread: float = 0.02,
        observe_time: bool = False,
    ) -> None:
        if reward not in REWARDS:
            raise UsageError(f"{self.name}: reward ({reward!r}) must be one of {', '.join(REWARDS)}.")
        if time_limit < 1:
            raise UsageError(f"{self.name}: time_limit ({time_limit}) must be at least 1.")
        self.reward = reward
        self.time_limit = time_limit
        self.observe_time = observe_time
        self.step_size = self._leaf("step_size", step_size, 1.0)
        self.goal_radius = self._leaf("goal_radius", goal_radius, 1.0)
        # More would let the point start in the cup's sides or outside the world.
        self.start_spread = self._leaf("start_spread", start_spread, 0.15)
        self.start, self.goal, self.walls = (jnp.asarray(x, jnp.float32) for x in (START, GOAL, WALLS))

    def _leaf(self, argument: str, value: Any, high: float) -> jax.Array:
        """The number as an array, within its range where it is known already."""
        if not isinstance(value, Tracer) and not np.all((np.asarray(value) >= 0) & (np.asarray(value) <= high)):
            raise UsageError(f"{self.name}: {argument} ({value}) must be between 0 and {high:g}.")
        return jnp.asarray(value, jnp.float32)

    @property
    def observation_space(self) -> Box:
        """Of 4 numbers, or 5 with the time."""
        return Box(-1.0, 1.0, (5 if self.observe_time else 4,))

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """A uniform draw around the start."""
        position = self.start + self.start_spread * jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        state = MazeState(position, jnp.zeros((), jnp.int32))
        return state, self.observe(state)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """One displacement. `action`: float [2]."""
        shift = self.step_size * jnp.clip(action, -1.0, 1.0)
        after = MazeState(self.move(state.position, shift), state.time + 1)
        distance = jnp.sqrt(jnp.sum((self.goal - after.position) ** 2))
        reached = distance <= self.goal_radius
        reward = reached.astype(jnp.float32) if self.reward == "sparse" else -distance
        late = (after.time >= self.time_limit) & ~reached
        return Transition(after, self.observe(after), reward, reached, late, {"reached": reached.astype(jnp.float32)})

    def move(self, position: jax.Array, shift: jax.Array) -> jax.Array:
        """Where a displacement `[2]` leads from a position outside the walls."""
        low, high = self.walls[:, :2], self.walls[:, 2:]
        x = _stop(position[0], shift[0], position[1], (low[:, 0], high[:, 0]), (low[:, 1], high[:, 1]))
        y = _stop(position[1], shift[1], x, (low[:, 1], high[:, 1]), (low[:, 0], high[:, 0]))
        return jnp.stack([x, y])

    def observe(self, state: MazeState) -> jax.Array:
        """What the policy sees, [4], or [5] with the time."""
        places = (2 * state.position - 1, self.goal - state.position)
        time = (2.0 * state.time[None] / self.time_limit - 1.0,) if self.observe_time else ()
        return jnp.concatenate([*places, *time])

    def descriptor(self, state: MazeState) -> jax.Array:
        """What tells behaviors apart, float32 [2]: the position, from 0 to 1. To be read at an end, before any reset."""
        return state.position


def _stop(place: jax.Array, shift: jax.Array, across: jax.Array, along: Any, sides: Any) -> jax.Array:
    """A coordinate after a shift along its axis, up to the nearest wall or the edge of the world.

    `across` is the other coordinate; walls reach from `along[0]` to `along[1]` on the axis of motion and from `sides[0]` to
    `sides[1]` on the other one, each `[W]`. It compares and clips with the walls' own numbers: no rounding can lead into one.
    """
    is_beside = (across > sides[0]) & (across < sides[1])
    highest = jnp.min(jnp.where(is_beside & (place <= along[0]), along[0], 1.0))
    lowest = jnp.max(jnp.where(is_beside & (place >= along[1]), along[1], 0.0))
    return jnp.clip(place + shift, lowest, highest)


def make(name: str, arguments: dict[str, Any]) -> Environment:
    """The environment of that name.

    Raises: UsageError for values out of range; UnknownNameError for an unknown argument.
    """
    kind = _ENVIRONMENTS[name]
    return kind(**convert_all(f"control/{name}", arguments, signature_defaults(kind)))


def arguments(name: str) -> dict[str, Any]:
    """What the environment accepts, with defaults."""
    return signature_defaults(_ENVIRONMENTS[name])


_ENVIRONMENTS = {"point-maze": PointMaze}
