"""Wrapper that selects entries of observations, such as positions without velocities."""

from typing import Any

import equinox as eqx
import jax
import numpy as np

from rollax.environments.environment import Environment, Transition
from rollax.environments.wrapper import Wrapper, state_to_render
from rollax.errors import UsageError
from rollax.spaces import Bound, Box
from rollax.types import Action, Observation, State


class PartialObservation(Wrapper):
    """Wrapper that selects entries of a vector observation.

    Observations of shape `[n]` become observations of shape `[len(kept)]`, in the order of `kept`
    and with the matching bounds.

    Args:
        env: Environment whose observations are a `Box` of shape `[n]`.
        kept: Indices of the selected entries, for example `(0, 2)`.
        name: Name of the wrapper, or None for the name of `env`.

    Raises:
        UsageError: If observations are not a vector, or indices are out of range, repeated or
            missing.
    """

    kept: tuple[int, ...] = eqx.field(static=True)
    display_name: str = eqx.field(static=True)

    def __init__(self, env: Environment, kept: tuple[int, ...], name: str | None = None) -> None:
        self.env = env
        self.kept = tuple(int(entry) for entry in kept)
        self.display_name = env.name if name is None else name

    def __check_init__(self) -> None:
        space = self.env.observation_space
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise UsageError(
                f"{self.name}: observations must be a Box of shape [n] to select entries of them, "
                f"got {space}."
            )
        size = space.shape[0]
        if (
            not self.kept
            or len(set(self.kept)) < len(self.kept)
            or not all(0 <= entry < size for entry in self.kept)
        ):
            raise UsageError(
                f"{self.name}: kept must be at least one distinct index from 0 to {size - 1}, "
                f"got {self.kept}."
            )

    @property
    def name(self) -> str:
        return self.display_name

    @property
    def observation_space(self) -> Box:
        space = self.env.observation_space
        return Box(
            self._select_bound(space.low),
            self._select_bound(space.high),
            (len(self.kept),),
            space.dtype,
        )

    def after_reset(self, state: State, obs: Observation) -> tuple[State, Observation]:
        return state, self._select_entries(obs)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        """Step `env` and select entries of its observation."""
        transition = self.env.step(key, state, action)
        return transition._replace(obs=self._select_entries(transition.obs))

    def state_to_render(
        self, key: jax.Array, state: State, action: Action, next_state: State
    ) -> Any:
        return state_to_render(self.env, key, state, action, next_state)

    def _select_bound(self, bound: Bound) -> Bound:
        if isinstance(bound, float):
            return bound
        full_bound = np.broadcast_to(bound, self.env.observation_space.shape)
        return tuple(full_bound[list(self.kept)].tolist())

    def _select_entries(self, obs: jax.Array) -> jax.Array:
        return obs[..., np.asarray(self.kept)]
