"""An environment of one's own: keep a thermostat's room comfortable for a day, heating as little as possible.

Run it: python examples/own_environment.py
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
    minute: jax.Array  # int32 [], in steps of 15


class Thermostat(eqx.Module):
    """Heat off, half or full every quarter of an hour; comfort is 20 degrees; the day has 96 quarters."""

    insulation: jax.Array  # share of the difference to outside that is kept: a leaf, so it can be randomized by vmap

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
        midnight = room.minute >= 15 * self.time_limit  # cut off by time: the room goes on existing tomorrow
        info = {"temperature": room.temperature}
        return Transition(room, self._observe(room), reward, midnight & False, midnight, info)

    def _observe(self, room: Room) -> jax.Array:
        angle = 2 * jnp.pi * room.minute / 1440
        return jnp.stack([(room.temperature - 20.0) / 10.0, jnp.sin(angle), jnp.cos(angle)])


def thermostat(insulation: float = 0.95) -> Thermostat:
    """What `rollax.make("mine/Thermostat", insulation=0.9)` calls."""
    return Thermostat(jnp.asarray(insulation, jnp.float32))


if __name__ == "__main__":
    print(check_environment(thermostat()))
    register("mine/Thermostat", thermostat)
    rollax.train("ppo", "mine/Thermostat", total_steps=500_000)
