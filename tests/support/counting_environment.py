"""Environment with info values in every step, and its evaluation."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.acting.evaluation import Episodes, make_evaluator
from rollax.algorithm import Algorithm
from rollax.environments import Transition
from rollax.spaces import Box, Discrete

EPISODES, LONGEST = 24, 5


class Counting(eqx.Module):
    """Environment with episodes of 1 to 5 steps and info values in every step.

    Steps after the end, which should not be taken, have NaN. With `agents`, agent i ends i steps
    after agent 0, and the episode ends with the last agent.
    """

    agents: int | None = eqx.field(static=True, default=None)
    names: tuple[str, ...] = eqx.field(static=True, default=("steps", "right", "place"))

    name = "test/counting"
    info_reductions = dict.fromkeys(
        ("steps", "right", "place", "step", "return_mean", "event"), "sum"
    )
    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)
    time_limit = None

    @property
    def num_agents(self) -> int | None:
        return self.agents

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        left = jax.random.randint(key, (), 1, LONGEST + 1)
        return (left, jnp.zeros((), jnp.int32)), jnp.zeros((*self._shape(), 1))

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        left, time = state[0] - 1, state[1] + 1
        place = jnp.zeros(()) if self.agents is None else jnp.arange(self.agents)
        ended = jnp.broadcast_to(left + place, self._shape()) <= 0
        last = left + (self.agents or 1) - 1
        told = jnp.where(last >= 0, 1.0, jnp.nan)
        right = jnp.all(action == 1)
        numbers = dict(
            zip(self.names, (told, right, told * jax.nn.one_hot(time - 1, 8)), strict=True)
        )
        cut = ended & (time % 2 == 0)
        reward = 2 * jnp.broadcast_to(told, self._shape())
        return Transition(
            (left, time), jnp.zeros((*self._shape(), 1)), reward, ended & ~cut, cut, numbers
        )

    def _shape(self) -> tuple[int, ...]:
        return () if self.agents is None else (self.agents,)


def constant(environment: Any) -> Algorithm:
    """Return an algorithm without memory whose action is its state."""
    return Algorithm(
        None, None, lambda state, obs, carry, key, greedy: (state, carry), lambda state: ()
    )  # pyright: ignore


def evaluated(
    environment: Any, action: int = 1, max_steps: int = 20, info: dict[str, str] | None = None
) -> Episodes:
    run = jax.jit(
        make_evaluator(environment, constant(environment), EPISODES, max_steps, True, info=info)
    )
    return jax.tree.map(np.asarray, run(jnp.asarray(action), jax.random.key(0)))
