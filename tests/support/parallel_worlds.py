"""Environments with the API of PettingZoo's parallel environments, without importing PettingZoo."""

import os
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

import rollax
from rollax.environments.environment import Transition
from rollax.environments.host_environment import HostedEnvironment
from rollax.spaces import Box, Discrete

LIMIT = 5  # time limit in steps
FULL = 3.0  # sum of actions with which an agent terminates


class Counters(eqx.Module):
    """Environment in JAX whose agents observe the time and the sum of their actions.

    The reward of an agent is its action. It terminates when its sum is at least `FULL`.
    """

    name = "test/counters"
    observation_space = Box(-100.0, 100.0, (2,))
    action_space = Discrete(2)
    num_agents = 2
    time_limit = LIMIT

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return (jnp.zeros((2, 2)), jnp.zeros(2, bool)), jnp.zeros((2, 2))

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        values, was_done = state
        added = jnp.asarray(action, jnp.float32)
        moved = values + jnp.stack([jnp.ones(2), added], axis=-1)
        values = jnp.where(was_done[:, None], values, moved)
        terminated = values[:, 1] >= FULL
        truncated = (values[:, 0] >= LIMIT) & ~terminated
        active = (~was_done).astype(jnp.float32)
        return Transition(
            state=(values, terminated | truncated),
            obs=values * active[:, None],
            reward=added,
            terminated=terminated,
            truncated=truncated,
            info={"sum": jnp.sum(values[:, 1] * active) / jnp.sum(active)},
        )


class ParallelCounters:
    """Environment of `Counters` with the API of PettingZoo."""

    possible_agents = ("counter_0", "counter_1")

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.values: dict[str, np.ndarray] = {}

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-100.0, 100.0, (2,), np.float64)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2, start=7)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents = list(self.possible_agents)
        self.values = {agent: np.zeros(2) for agent in self.agents}
        return dict(self.values), {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        assert list(actions) == self.agents
        rewards = {agent: float(action - 7) for agent, action in actions.items()}
        for agent, reward in rewards.items():
            self.values[agent] = self.values[agent] + [1, reward]
        obs = {agent: self.values[agent] for agent in self.agents}
        terminated = {agent: bool(x[1] >= FULL) for agent, x in obs.items()}
        truncated = {agent: bool(x[0] >= LIMIT) for agent, x in obs.items()}
        infos = {agent: {"sum": x[1]} for agent, x in obs.items()}
        self.agents = [x for x in self.agents if not (terminated[x] or truncated[x])]
        return obs, rewards, terminated, truncated, infos

    def render(self) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Shift:
    """Guards that watch a gate, and a runner that is away every other two steps.

    Guard 1 is released at step 3, and returns at step 5. The runner observes more than guards and
    has fewer actions. The gate forbids the last action of a guard at odd steps. All agents are
    truncated after `length` steps.

    Args:
        length: Number of steps of an episode.
        fault: Fault to produce at step `at`, none if empty: "raise" or "die".
        at: Step of the fault, counted over all episodes.
        render_mode: Render mode.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 5}
    possible_agents: tuple[str, ...] = ("guard_0", "guard_1", "runner_0")

    def __init__(
        self, length: int = 7, fault: str = "", at: int = 20, render_mode: str | None = None
    ) -> None:
        self.length, self.fault, self.at, self.render_mode = length, fault, at, render_mode
        self.agents: list[str] = []
        self.time, self.num_steps = 0, 0

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(0.0, 100.0, (3 if agent == "runner_0" else 2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2 if agent == "runner_0" else 3)

    def state(self) -> np.ndarray:
        return np.array([self.time, len(self.agents)], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self.time = list(self.possible_agents), 0
        return self._observe(self.agents), self._infos(self.agents)

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        assert set(actions) == set(self.agents), (actions, self.agents)
        self._fail()
        acted = self.agents
        self.time += 1
        guards_only = self.time % 4 in (2, 3)
        is_released = self.time in (3, 4)
        present = [
            agent
            for agent in self.possible_agents
            if not (agent == "runner_0" and guards_only)
            and not (agent == "guard_1" and is_released)
        ]
        is_over = self.time >= self.length
        observed = [x for x in self.possible_agents if x in acted or x in present]
        terminated = {agent: agent not in present and not is_over for agent in acted}
        truncated = dict.fromkeys(acted, is_over)
        rewards = {agent: float(actions[agent]) for agent in acted}
        self.agents = [] if is_over else present
        return self._observe(observed), rewards, terminated, truncated, self._infos(observed)

    def _observe(self, agents: list[str]) -> dict[str, np.ndarray]:
        return {
            agent: np.arange(self.time + 1, self.time + 4, dtype=np.float32)[
                : self.observation_space(agent).shape[0]
            ]
            for agent in agents
        }

    def _infos(self, agents: list[str]) -> dict[str, Any]:
        masks = {"guard": [True, True, self.time % 2 == 0], "runner": [True, True]}
        return {
            agent: {"action_mask": np.array(masks[agent[:-2]]), "time": self.time}
            for agent in agents
        }

    def _fail(self) -> None:
        self.num_steps += 1
        if self.fault and self.num_steps == self.at:
            if self.fault == "die":
                os._exit(9)
            raise ZeroDivisionError("the gate is broken")

    def render(self) -> Any:
        return np.full((20, 30, 3), min(self.time * 30, 255), np.uint8)

    def close(self) -> None:
        pass


class Pursuit:
    """Chaser that moves along two axes, and prey that moves along one and leaves when caught.

    Args:
        bound: Largest absolute value of an action.
        render_mode: Render mode.
    """

    possible_agents: tuple[str, ...] = ("chaser_0", "prey_0")

    def __init__(self, bound: float = 2.0, render_mode: str | None = None) -> None:
        self.bound, self.render_mode = bound, render_mode
        self.agents: list[str] = []
        self.distance, self.time = np.zeros(2, np.float32), 0
        self.random = np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(-100.0, 100.0, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Box:
        size = 1 if agent == "prey_0" else 2
        return spaces.Box(-self.bound, self.bound, (size,), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self.time = list(self.possible_agents), 0
        if seed is not None:  # without a seed, the random numbers continue
            self.random = np.random.default_rng(seed)
        self.distance = self.random.normal(size=2).astype(np.float32)
        return dict.fromkeys(self.agents, self.distance), {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        assert list(actions) == self.agents
        assert all(self.action_space(agent).contains(value) for agent, value in actions.items())
        self.time += 1
        moved = np.resize(actions.get("prey_0", 0.0), 2) * [1.0, 0.0] - actions["chaser_0"]
        self.distance = (self.distance + 0.1 * moved).astype(np.float32)
        distance = float(np.linalg.norm(self.distance))
        is_caught, is_over = distance < 0.3, self.time >= 8
        rewards = {agent: distance * (-1) ** (agent == "chaser_0") for agent in actions}
        terminated = {agent: is_caught and agent == "prey_0" for agent in actions}
        truncated = {agent: is_over and not terminated[agent] for agent in actions}
        obs = dict.fromkeys(actions, self.distance)
        self.agents = [x for x in actions if not (terminated[x] or truncated[x])]
        return obs, rewards, terminated, truncated, {}

    def close(self) -> None:
        pass


def make_counters() -> HostedEnvironment:
    """Return the environment of `Counters` on the host."""
    return rollax.from_pettingzoo(ParallelCounters, name="test/counters")


def make_shift(**arguments: Any) -> HostedEnvironment:
    """Return `Shift` on the host."""
    return rollax.from_pettingzoo(Shift, name="test/shift", **arguments)


def make_pursuit(**arguments: Any) -> HostedEnvironment:
    """Return `Pursuit` on the host."""
    return rollax.from_pettingzoo(Pursuit, name="test/pursuit", **arguments)
