"""Environment in which all events that an algorithm has to handle occur within a few steps."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments import Transition
from rollax.spaces import Box, Discrete


class WalkState(NamedTuple):
    place: jax.Array  # float [3]
    left: jax.Array  # int32 []: remaining steps


class Walk(eqx.Module):
    """Episodes of 1 to 5 steps, some of which terminate and some are truncated.

    Rewards depend on state, action and chance. With `agents`, there are that many walks that share
    only the length of the episode. With `early`, the first agent walks to the end, and each other
    agent leaves one step before the previous agent.
    """

    drift: float = 0.1
    continuous: bool = eqx.field(static=True, default=False)
    agents: int | None = eqx.field(static=True, default=None)
    early: bool = eqx.field(static=True, default=False)

    name, time_limit = "test/walk", None
    observation_space = Box(-10.0, 10.0, (3,))

    @property
    def action_space(self) -> Box | Discrete:
        return Box(-1.0, 1.0, (3,)) if self.continuous else Discrete(3)

    @property
    def num_agents(self) -> int | None:
        return self.agents

    @property
    def agent_types(self) -> tuple[str, ...]:
        return ("walker", "runner", "runner", "walker")[: self.agents or 0]

    def reset(self, key: jax.Array) -> tuple[WalkState, jax.Array]:
        place_key, length_key = jax.random.split(key)
        place = jax.random.uniform(place_key, (*self._shape(), 3), minval=-1.0, maxval=1.0)
        return WalkState(place, jax.random.randint(length_key, (), 1, 6)), place

    def step(self, key: jax.Array, state: WalkState, action: jax.Array) -> Transition:
        push = action if self.continuous else jax.nn.one_hot(action, 3)
        place = (
            0.8 * state.place
            + 0.3 * push
            + 0.1 * jax.random.normal(key, state.place.shape)
            - self.drift
        )
        reward = place[..., 0] - jnp.sum(place**2, axis=-1)
        end = jnp.broadcast_to(state.left == 1, self._shape())
        cut = end & (place[..., 1] > 0)
        if self.early:
            gone = state.left <= jnp.arange(self.agents or 1)
            reward = jnp.where(gone, 0.0, reward)
            cut, end = (
                cut & ~gone & (jnp.arange(self.agents or 1) == 0),
                end | (state.left - 1 <= jnp.arange(self.agents or 1)),
            )
        return Transition(WalkState(place, state.left - 1), place, reward, end & ~cut, cut, {})

    def _shape(self) -> tuple[int, ...]:
        return () if self.agents is None else (self.agents,)


class Counter:
    """Counter that is incremented at trace time."""

    count = 0


class Counted(eqx.Module):
    """Environment that counts how often its `step` is traced."""

    env: Any
    counter: Counter = eqx.field(static=True)

    @property
    def name(self) -> str:
        return self.env.name

    @property
    def observation_space(self) -> Any:
        return self.env.observation_space

    @property
    def action_space(self) -> Any:
        return self.env.action_space

    @property
    def num_agents(self) -> int | None:
        return self.env.num_agents

    @property
    def time_limit(self) -> int | None:
        return self.env.time_limit

    @property
    def agent_types(self) -> tuple[str, ...]:
        return self.env.agent_types

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return self.env.reset(key)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        self.counter.count += 1
        return self.env.step(key, state, action)
