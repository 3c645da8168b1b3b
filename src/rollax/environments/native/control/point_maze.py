"""Point maze, which tests exploration with continuous actions.

The goal is behind a cup of walls whose open side faces the start. The direct way to the goal ends
in the cup, and every way out of the cup first leads away from the goal. The task follows the
deceptive mazes of Lehman and Stanley 2011, "Abandoning Objectives: Evolution through the Search for
Novelty Alone".
"""

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
from rollax.spaces import Box
from rollax.types import Action, Observation, State

REWARDS = ("distance", "sparse")
START, GOAL = (0.5, 0.15), (0.5, 0.85)
# Each wall is (left, bottom, right, top): the upper end of the cup and its two sides. Walls
# overlap, because a point on the face of a wall could pass between two walls that only touch.
WALLS = ((0.22, 0.56, 0.78, 0.6), (0.22, 0.35, 0.26, 0.6), (0.74, 0.35, 0.78, 0.6))


class MazeState(NamedTuple):
    """State of the maze.

    Attributes:
        position: Position (x, y) from 0 to 1, float32 [2].
        time: Number of steps so far, int32 [].
    """

    position: jax.Array
    time: jax.Array


class PointMaze(eqx.Module):
    """Point that walks around a cup of walls to the goal behind it.

    The action is a displacement [2], with components from -1 to 1 in units of `step_size`. The
    point moves along x first and then along y, each time at most to the nearest wall. It slides
    along walls and never enters a wall, for any step size.

    The observation is 2 (x, y) - 1 and the displacement to the goal, float32 [4], from -1 to 1.
    With `observe_time` a fifth number increases from -1 at the start to 1 at the time limit. Use it
    if the final position matters, for example for a descriptor, because the optimal action then
    depends on the remaining steps (Pardo et al. 2018, arXiv:1712.00378).

    The task terminates within `goal_radius` of the goal and is truncated after `time_limit` steps.
    The point starts in a square of half-width `start_spread` around (0.5, 0.15), and the goal is
    (0.5, 0.85). Lengths are in units of the side of the square world. All numbers except the time
    limit are leaves, including start, goal and walls.

    Args:
        reward: (static) "distance" gives minus the distance to the goal at every step. It is
            deceptive, because the way around the cup first leads away from the goal. "sparse" gives
            1 for reaching the goal and 0 before.
        time_limit: (static) Maximum number of steps of an episode.
        step_size: Length of the largest step along each axis, from 0 to 1.
        goal_radius: Radius of the goal, from 0 to 1.
        start_spread: Half-width of the square of start positions, from 0 to 0.15.
        observe_time: (static) Whether the observation includes the time.

    Raises:
        UsageError: If a number is out of range, or `reward` is unknown.
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
    _repr_html_ = format_environment_html

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
            raise UsageError(
                f"{self.name}: reward ({reward!r}) must be one of {', '.join(REWARDS)}."
            )
        if time_limit < 1:
            raise UsageError(f"{self.name}: time_limit ({time_limit}) must be at least 1.")
        self.reward = reward
        self.time_limit = time_limit
        self.observe_time = observe_time
        self.step_size = self._to_array("step_size", step_size, 1.0)
        self.goal_radius = self._to_array("goal_radius", goal_radius, 1.0)
        # A larger spread could start the point in a wall or outside the world.
        self.start_spread = self._to_array("start_spread", start_spread, 0.15)
        self.start, self.goal, self.walls = (
            jnp.asarray(x, jnp.float32) for x in (START, GOAL, WALLS)
        )

    def _to_array(self, argument: str, value: ArrayLike, high: float) -> jax.Array:
        """Convert a number to a float32 array and, unless it is traced, check its range."""
        if not isinstance(value, Tracer) and not np.all(
            (np.asarray(value) >= 0) & (np.asarray(value) <= high)
        ):
            raise UsageError(f"{self.name}: {argument} ({value}) must be between 0 and {high:g}.")
        return jnp.asarray(value, jnp.float32)

    @property
    def observation_space(self) -> Box:
        """Box of 4 numbers, or 5 with the time."""
        return Box(-1.0, 1.0, (5 if self.observe_time else 4,))

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Sample a start position and return the state and the observation."""
        position = self.start + self.start_spread * jax.random.uniform(
            key, (2,), minval=-1.0, maxval=1.0
        )
        state = MazeState(position, jnp.zeros((), jnp.int32))
        return state, self.observe(state)

    def step(self, key: jax.Array, state: MazeState, action: Action) -> Transition:
        """Move the point by `step_size` times the action, float [2]."""
        shift = self.step_size * jnp.clip(action, -1.0, 1.0)
        next_state = MazeState(self.move(state.position, shift), state.time + 1)
        distance = jnp.sqrt(jnp.sum((self.goal - next_state.position) ** 2))
        is_at_goal = distance <= self.goal_radius
        reward = is_at_goal.astype(jnp.float32) if self.reward == "sparse" else -distance
        is_truncated = (next_state.time >= self.time_limit) & ~is_at_goal
        return Transition(
            next_state,
            self.observe(next_state),
            reward,
            is_at_goal,
            is_truncated,
            {"reached": is_at_goal.astype(jnp.float32)},
        )

    def move(self, position: jax.Array, shift: jax.Array) -> jax.Array:
        """Return the position `[2]` after a displacement, with the point stopped by walls.

        Args:
            position: Position outside the walls, [2].
            shift: Displacement, [2].

        Returns:
            Position `[2]` outside the walls and inside the world.
        """
        low, high = self.walls[:, :2], self.walls[:, 2:]
        x = _move_until_wall(
            position[0], shift[0], position[1], (low[:, 0], high[:, 0]), (low[:, 1], high[:, 1])
        )
        y = _move_until_wall(
            position[1], shift[1], x, (low[:, 1], high[:, 1]), (low[:, 0], high[:, 0])
        )
        return jnp.stack([x, y])

    def observe(self, state: MazeState) -> jax.Array:
        """Return the observation of a state, [4], or [5] with the time."""
        positions = (2 * state.position - 1, self.goal - state.position)
        time = (2.0 * state.time[None] / self.time_limit - 1.0,) if self.observe_time else ()
        return jnp.concatenate([*positions, *time])

    def descriptor(self, state: MazeState) -> jax.Array:
        """Return the position as the behavior descriptor, float32 [2], from 0 to 1."""
        return state.position


def _move_until_wall(
    position: jax.Array,
    shift: jax.Array,
    other_position: jax.Array,
    extents: tuple[jax.Array, jax.Array],
    sides: tuple[jax.Array, jax.Array],
) -> jax.Array:
    """Return a coordinate after a shift along its axis, up to the nearest wall or world boundary.

    Walls extend from `extents[0]` to `extents[1]` on the axis of motion and from `sides[0]` to
    `sides[1]` on the other axis, each `[W]`. `other_position` is the other coordinate of the point.
    Positions are compared with and clipped to the exact coordinates of walls, so rounding cannot
    move a point into a wall.
    """
    is_blocked = (other_position > sides[0]) & (other_position < sides[1])
    highest = jnp.min(jnp.where(is_blocked & (position <= extents[0]), extents[0], 1.0))
    lowest = jnp.max(jnp.where(is_blocked & (position >= extents[1]), extents[1], 0.0))
    return jnp.clip(position + shift, lowest, highest)
