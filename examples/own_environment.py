"""A custom environment: a thermostat that keeps a room comfortable for a day with little heating.

Run it with `python examples/own_environment.py`.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

import rollax
from rollax import check_environment, register
from rollax.environments import Transition
from rollax.spaces import Box, Discrete


class Room(NamedTuple):
    temperature: jax.Array  # degrees Celsius, float []
    minute: jax.Array  # minute of the day, int32 []


class Thermostat(eqx.Module):
    """Room that is heated for a day of 96 steps of 15 minutes.

    The actions turn the heating off, to half or to full power. The comfortable temperature is 20
    degrees Celsius.

    Attributes:
        insulation: Share of the temperature difference to the outside that remains after a step. It
            is an array, so that `vmap` can randomize it.
    """

    insulation: jax.Array

    name = "mine/Thermostat"
    observation_space = Box(-5.0, 5.0, (3,))
    action_space = Discrete(3)
    num_agents = None
    time_limit = 96

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        room = Room(jax.random.uniform(key, minval=10.0, maxval=25.0), jnp.zeros((), jnp.int32))
        return room, self._observe(room)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        outside = 5.0 - 5.0 * jnp.cos(2 * jnp.pi * state.minute / 1440) + jax.random.normal(key)
        kept = outside + self.insulation * (state.temperature - outside)
        room = Room(jnp.clip(kept + 0.6 * action, -20.0, 40.0), state.minute + 15)
        reward = -0.1 * jnp.abs(room.temperature - 20.0) - 0.05 * action
        # The time limit truncates the episode instead of terminating it.
        midnight = room.minute >= 15 * self.time_limit
        info = {"temperature": room.temperature}
        return Transition(room, self._observe(room), reward, midnight & False, midnight, info)

    def _observe(self, room: Room) -> jax.Array:
        angle = 2 * jnp.pi * room.minute / 1440
        return jnp.stack([(room.temperature - 20.0) / 10.0, jnp.sin(angle), jnp.cos(angle)])


def thermostat(insulation: float = 0.95) -> Thermostat:
    """Build the environment for `rollax.make("mine/Thermostat", insulation=0.9)`."""
    return Thermostat(jnp.asarray(insulation, jnp.float32))


if __name__ == "__main__":
    print(check_environment(thermostat()))
    register("mine/Thermostat", thermostat)
    rollax.train("ppo", "mine/Thermostat", total_steps=500_000)
