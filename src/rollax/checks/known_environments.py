"""Small environments with known returns and optimal behavior, for checking algorithms."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.environment import Transition
from rollax.spaces import ActionSpace, Box
from rollax.types import Action, State


class KnownReturnEnvironment(eqx.Module):
    """Environment with episodes of three steps and rewards of 1, 2 and 3.

    If `has_nan_reward` is True, the last reward is NaN instead of 3.
    """

    action_space: ActionSpace = eqx.field(static=True)
    has_nan_reward: bool = eqx.field(static=True, default=False)

    name = "check/paid"
    observation_space = Box(0.0, 3.0, (1,))
    num_agents = None
    time_limit = 3
    total = 6.0

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return jnp.zeros((), jnp.int32), jnp.zeros(1)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        time = state + 1
        reward = time.astype(jnp.float32)
        reward = jnp.where((time == 3) & self.has_nan_reward, jnp.nan, reward)
        return Transition(
            time,
            reward[None] if not self.has_nan_reward else time[None].astype(jnp.float32),
            reward,
            time == 3,
            jnp.zeros((), bool),
            {},
        )


class TimeLimitEnvironment(eqx.Module):
    """Environment that reveals whether an algorithm treats truncation as termination.

    Episodes have one step. An action stops if its first element is greater than 0, and continues
    otherwise. Stopping gives a reward of 2 and terminates the task. Continuing gives a reward of 1
    and truncates the episode, so the value of continuing is 1 / (1 - discount). With a discount
    factor above 1/2, continuing is optimal. An algorithm that treats truncation as termination
    learns to stop.
    """

    action_space: ActionSpace = eqx.field(static=True)

    name = "check/stop-or-go"
    observation_space = Box(0.0, 1.0, (1,))
    num_agents = None
    time_limit = 1

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return jnp.zeros((), jnp.int32), jnp.ones(1)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        stops = jnp.ravel(action)[0] > 0
        return Transition(state, jnp.ones(1), jnp.where(stops, 2.0, 1.0), stops, ~stops, {})
