"""Small environments that the check of an algorithm knows the truth of, for discrete and for continuous actions."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.core import Transition
from rollax.spaces import ActionSpace, Box


class Paid(eqx.Module):
    """Episodes of three steps of reward 1, 2 and 3, whatever the action. With `bad` the last reward is NaN."""

    action_space: ActionSpace = eqx.field(static=True)
    bad: bool = eqx.field(static=True, default=False)

    name = "check/paid"
    observation_space = Box(0.0, 3.0, (1,))
    num_agents = None
    time_limit = 3
    total = 6.0

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return jnp.zeros((), jnp.int32), jnp.zeros(1)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        time = state + 1
        reward = time.astype(jnp.float32)
        reward = jnp.where((time == 3) & self.bad, jnp.nan, reward)
        return Transition(
            time, reward[None] if not self.bad else time[None].astype(jnp.float32), reward, time == 3, jnp.zeros((), bool), {}
        )


class StopOrGo(eqx.Module):
    """One step. To stop pays 2 and ends the task; to go on pays 1 and is cut off by time, as it would be for ever.

    With a discount of more than 1/2 going on is better: it is worth 1 / (1 - discount). Who takes time limits for ends stops.
    Discrete actions stop by the last one, continuous ones by their first number above 0.
    """

    action_space: ActionSpace = eqx.field(static=True)

    name = "check/stop-or-go"
    observation_space = Box(0.0, 1.0, (1,))
    num_agents = None
    time_limit = 1

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return jnp.zeros((), jnp.int32), jnp.ones(1)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        stops = jnp.ravel(action)[0] > 0
        return Transition(state, jnp.ones(1), jnp.where(stops, 2.0, 1.0), stops, ~stops, {})
