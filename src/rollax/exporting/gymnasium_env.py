"""Environments in JAX as gymnasium environments, for programs of other libraries."""

from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces as gymnasium_spaces

from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.runtime.numerics import standard_numerics
from rollax.spaces import (
    ActionSpace,
    Ball,
    Box,
    Dict,
    Discrete,
    Grid,
    MultiDiscrete,
    Space,
    Tuple,
    map_space,
)
from rollax.types import Action, Observation, PyTree

ACTION_MASK = "action_mask"  # part of an observation that marks legal actions


class GymnasiumEnv(gymnasium.Env):
    """A gymnasium environment that steps a single-agent environment in JAX.

    `reset` and `step` each run one compiled program on the default device. Episodes are a
    deterministic function of the seed and of the actions.
    """

    def __init__(self, environment: Environment, render_mode: str | None = None) -> None:
        """Convert the spaces. Programs are compiled at the first `reset` and `step`.

        Args:
            environment: Single-agent environment in JAX.
            render_mode: "rgb_array", or None if `render` is not used.
        """
        self.rollax_environment = environment
        self.observation_space = to_gymnasium_space(environment.observation_space)
        self.action_space = to_gymnasium_space(environment.action_space)
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["rgb_array"]}
        if render_mode is not None:
            from rollax.visualization.render.drawings import find_drawing

            self._drawing = find_drawing(environment)
            self.metadata["render_fps"] = self._drawing.fps
        # Functions, because bound methods of modules with arrays are not hashable.
        self._reset = jax.jit(lambda key: environment.reset(key))
        self._step = jax.jit(lambda key, state, action: environment.step(key, state, action))
        self._key: Any = None
        self._state: PyTree = None
        self._obs: Observation = None
        self._needs_reset = True

    @standard_numerics()
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seed of this episode and of the following ones. None continues the random numbers
                of the previous seed.
            options: Has no effect.

        Returns:
            The observation and an empty `info`.
        """
        super().reset(seed=seed)
        if seed is not None or self._key is None:
            self._key = jax.random.key(int(self.np_random.integers(2**31)))
        self._state, obs = self._reset(self._next_key())
        self._obs = to_gymnasium_observation(self.rollax_environment.observation_space, obs)
        self._needs_reset = False
        return self._obs, {}

    @standard_numerics()
    def step(self, action: Action) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Perform one step.

        Args:
            action: Action in `action_space`.

        Returns:
            Observation, reward, whether the episode terminated, whether it was truncated, and
            `info`.

        Raises:
            gymnasium.error.ResetNeeded: If the episode has ended or none has started.
        """
        if self._needs_reset:
            raise gymnasium.error.ResetNeeded("call reset() before step(): no episode is running.")
        environment = self.rollax_environment
        values = to_rollax_action(environment.action_space, action)
        step = self._step(self._next_key(), self._state, values)
        self._state = step.state
        self._obs = to_gymnasium_observation(environment.observation_space, step.obs)
        terminated, truncated = bool(step.terminated), bool(step.truncated)
        self._needs_reset = terminated or truncated
        return self._obs, float(step.reward), terminated, truncated, _to_scalars(step.info)

    @standard_numerics()
    def render(self) -> Any:
        """Return an image of the state, uint8 `[H, W, 3]`, or None if `render_mode` is None.

        Raises:
            gymnasium.error.ResetNeeded: If no episode has started.
        """
        if self.render_mode is None:
            return None
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset() before render().")
        from rollax.visualization.render.drawings import draw_episode

        state = jax.device_get(self._state)
        (picture,) = draw_episode(self._drawing, self.rollax_environment, [state], [self._obs])
        return np.asarray(picture.convert("RGB"))

    def action_masks(self) -> np.ndarray:
        """Return the mask of legal actions as a flat bool array, for sb3-contrib's MaskablePPO.

        Raises:
            UsageError: If observations have no action mask.
        """
        if not isinstance(self._obs, dict) or ACTION_MASK not in self._obs:
            raise UsageError(
                f"{self.rollax_environment.name} has no action mask in its current observation. "
                "Use an algorithm without masks, or call reset() first."
            )
        masks = jax.tree.leaves(self._obs[ACTION_MASK])
        return np.concatenate([np.asarray(mask, bool).reshape(-1) for mask in masks])

    def _next_key(self) -> jax.Array:
        """Return a random key that has not been used before."""
        self._key, key = jax.random.split(self._key)
        return key


def to_gymnasium_space(space: Space) -> gymnasium_spaces.Space:
    """Convert a space to gymnasium.

    A `Ball` becomes the `Box` around it. A `Grid` becomes a `Box` of integers, and a `Box` of
    booleans becomes a `MultiBinary`.
    """
    match space:
        case Dict():
            return gymnasium_spaces.Dict(
                {name: to_gymnasium_space(part) for name, part in space.items}
            )
        case Tuple():
            return gymnasium_spaces.Tuple([to_gymnasium_space(part) for part in space.parts])
        case Discrete():
            return gymnasium_spaces.Discrete(space.n)
        case MultiDiscrete():
            return gymnasium_spaces.MultiDiscrete(np.asarray(space.sizes))
        case Ball():
            return gymnasium_spaces.Box(-space.radius, space.radius, space.shape, np.float32)
        case Box(dtype="bool"):
            return gymnasium_spaces.MultiBinary(space.shape)
        case Grid():
            low, high = 0, np.asarray(space.sizes) - 1
        case Box():
            low, high = space.low, space.high
    dtype: Any = np.dtype(space.dtype)
    low, high = (np.broadcast_to(bound, space.shape).astype(dtype) for bound in (low, high))
    return gymnasium_spaces.Box(low, high, space.shape, dtype)


def to_rollax_action(space: ActionSpace, action: Action) -> Any:
    """Convert an action to the dtypes of the space.

    For a `Ball`, an action outside of the ball is scaled to its surface.
    """
    if isinstance(space, Dict | Tuple):
        return map_space(to_rollax_action, space, action)
    values = np.asarray(action).astype(space.dtype)
    if isinstance(space, Ball):
        values = values * min(1.0, space.radius / max(float(np.linalg.norm(values)), 1e-12))
        return values.astype(space.dtype)
    return values


def to_gymnasium_observation(space: Space, obs: Observation) -> Any:
    """Convert an observation to NumPy arrays, and an integer of `Discrete` to `np.int64`."""
    if isinstance(space, Dict):
        return {name: to_gymnasium_observation(part, obs[name]) for name, part in space.items}
    return np.int64(obs) if isinstance(space, Discrete) else np.asarray(obs)


def _to_scalars(info: dict[str, jax.Array]) -> dict[str, Any]:
    """Convert values to NumPy arrays, and arrays without axes to scalars."""
    return {name: np.asarray(value)[()] for name, value in jax.device_get(info).items()}
