"""One deterministic environment in JAX and in Gymnasium, with faults for tests of simulators."""

import os
import signal
import time
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.environment import Transition
from rollax.environments.host_environment import HostedEnvironment
from rollax.environments.suites.gymnasium.adapter import make_hosted_environment
from rollax.spaces import ActionSpace, Box, Discrete

LIMIT = 5  # time limit in steps
FULL = 3.0  # sum of actions that ends the task


class Counter(eqx.Module):
    """Environment that observes the time and the sum of its actions, which are the rewards.

    It terminates when the sum is at least `FULL`.
    """

    action_space: ActionSpace = eqx.field(static=True, default=Discrete(2))

    name = "test/counter"
    observation_space = Box(-100.0, 100.0, (2,))
    num_agents = None
    time_limit = LIMIT

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return jnp.zeros(2), jnp.zeros(2)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        added = jnp.sum(jnp.asarray(action, jnp.float32))
        state = state + jnp.stack([jnp.ones(()), added])
        terminated = state[1] >= FULL
        return Transition(
            state, state, added, terminated, (state[0] >= LIMIT) & ~terminated, {"sum": state[1]}
        )


class GymnasiumCounter(gymnasium.Env):
    """Environment of `Counter` in Gymnasium.

    Args:
        continuous: Whether the action is a number.
        fault: Fault to produce, none if empty.
        at: Step of the fault, counted over all episodes.
        render_mode: Render mode of Gymnasium.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 7}

    def __init__(
        self,
        continuous: bool = False,
        fault: str = "",
        at: int = 20,
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(-100.0, 100.0, (2,), np.float64)
        bounded = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)
        self.action_space = bounded if continuous else gymnasium.spaces.Discrete(2, start=7)
        self.fault, self.at, self.render_mode = fault, at, render_mode
        self.start, self.taken, self.state = (0 if continuous else 7), 0, np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = np.zeros(2)
        if self.fault == "spaces" and self.taken >= self.at:
            self.action_space = gymnasium.spaces.Discrete(9)
        return self.state.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        if self.fault and self.taken == self.at:
            self._fail()
        added = np.float32(np.sum(action)) - self.start
        self.state = self.state + [1, added]
        obs = self.state.copy()
        if self.fault == "nan" and self.taken >= self.at:
            obs[0] = np.nan
        if self.fault == "shape" and self.taken >= self.at:
            obs = obs[:1]
        added = np.inf if self.fault == "inf" and self.taken >= self.at else added
        info: Any = {"sum": self.state[1], "name": "counter"}
        if self.fault in ("text", "nothing") and self.taken >= self.at:
            info = {"sum": "three"} if self.fault == "text" else ()
        return obs, float(added), bool(self.state[1] >= FULL), False, info

    def render(self) -> Any:
        return np.full((20, 30, 3), min(int(self.state[0]) * 40, 255), np.uint8)

    def close(self) -> None:
        # not the instance that is only inspected
        if self.fault == "close" and self.taken >= self.at:
            raise RuntimeError("already closed")

    def _fail(self) -> None:
        if self.fault == "raise":
            raise ZeroDivisionError("the counter is broken")
        if self.fault == "hang":
            time.sleep(60)
        if self.fault == "die":
            os._exit(9)
        if self.fault == "interrupt":
            signal.raise_signal(signal.SIGINT)


def on_host(
    continuous: bool = False, fault: str = "", at: int = 20, limit: int | None = LIMIT
) -> HostedEnvironment:
    """Return the counter as a host environment."""
    return make_hosted_environment("test/counter", Made(continuous, fault, at), limit)


class Made:
    """Function that makes a counter, also in another process.

    It has no `__dict__`, so that a run does not record the fault, which represents one in the code
    of a simulator.
    """

    __slots__ = ("arguments",)

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __call__(self, render_mode: str | None) -> GymnasiumCounter:
        return GymnasiumCounter(*self.arguments, render_mode=render_mode)
