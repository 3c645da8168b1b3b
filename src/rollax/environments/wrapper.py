"""Base class of environment wrappers and functions that unwrap environments and states."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from rollax.environments.capabilities import capabilities, has_finite_tasks
from rollax.environments.environment import Environment, Transition
from rollax.environments.environment_text import format_environment_html
from rollax.spaces import ActionSpace, Box, Space
from rollax.types import Action, Observation, State, Task


class Wrapper(eqx.Module):
    """Base class of environment wrappers, which forwards all attributes and methods to `env`.

    A subclass that changes observations or extends the state overrides

    - `step`;
    - `after_reset`, which `reset` and `reset_task` call;
    - `inner_state` if it changes the state, and `inner_obs` if it changes the observation. These
      methods are used to render `env` and to compute its descriptors.
    """

    env: Any

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.env!r})"

    def _repr_html_(self) -> str:
        return format_environment_html(self)

    @property
    def name(self) -> str:
        return self.env.name

    @property
    def observation_space(self) -> Space:
        return self.env.observation_space

    @property
    def action_space(self) -> ActionSpace:
        return self.env.action_space

    @property
    def num_agents(self) -> int | None:
        return self.env.num_agents

    @property
    def agent_types(self) -> tuple[str, ...]:
        return capabilities(self.env).agent_types

    @property
    def waiting_action(self) -> int | None:
        return capabilities(self.env).waiting_action

    @property
    def time_limit(self) -> int | None:
        return self.env.time_limit

    @property
    def info_reductions(self) -> Mapping[str, str]:
        return capabilities(self.env).info_reductions

    @property
    def keeps_task(self) -> bool:
        return capabilities(self.env).keeps_task

    @property
    def task_numbers(self) -> tuple[int, ...]:
        return self.env.task_numbers if has_finite_tasks(self.env) else ()

    def tasks_at(self, indices: jax.Array | np.ndarray) -> Any:
        return self.env.tasks_at(indices)

    @property
    def describe(self) -> Callable[..., str]:
        return self.env.describe

    @property
    def descriptor_space(self) -> Box | None:
        return capabilities(self.env).descriptor_space

    @property
    def descriptor_extraction(self) -> str:
        return capabilities(self.env).descriptor_extraction

    def descriptor(self, state: State) -> jax.Array:
        return self.env.descriptor(self.inner_state(state))

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        return self.after_reset(*self.env.reset(key))

    def sample_task(self, key: jax.Array) -> Any:
        return self.env.sample_task(key)

    def reset_task(self, key: jax.Array, task: Task) -> tuple[State, Observation]:
        return self.after_reset(*self.env.reset_task(key, task))

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        return self.env.step(key, state, action)

    def after_reset(self, state: State, obs: Observation) -> tuple[State, Observation]:
        """Return the wrapper's state and observation after a reset of `env` to `(state, obs)`."""
        return state, obs

    def inner_state(self, state: State) -> Any:
        """Return the state of `env` that a state of the wrapper contains."""
        return state

    def inner_obs(self, state: State, obs: Observation) -> Any:
        """Return the observation of `env`, given a state and an observation of the wrapper.

        If the wrapper removes entries of the observation, these are missing in the result.
        """
        return obs

    def trial_episode(self, state: State) -> tuple[int, int] | None:
        """Return the index of the episode (from 1) and the number of episodes of its trial.

        The result is None for an environment without trials.
        """
        return trial_episode(self.env, self.inner_state(state))

    def state_to_render(
        self, key: jax.Array, state: State, action: Action, next_state: State
    ) -> Any:
        """Return the state to render after `step(key, state, action)`.

        The result differs from `next_state` in wrappers that start the next episode within a step
        (`Trials`). Wrappers that pass `key` and `action` to `env` unchanged may call
        `state_to_render` of `env`.

        Args:
            key: Random key of the step.
            state: State of the wrapper before the step.
            action: Action of the step.
            next_state: State of the wrapper that the step returned.

        Returns:
            State of the wrapper.
        """
        return next_state


def innermost_environment(environment: Environment) -> Any:
    """Return the environment inside all wrappers."""
    while isinstance(environment, Wrapper):
        environment = environment.env
    return environment


class Unwrapped(NamedTuple):
    """Environment inside all wrappers, with its state and its observation."""

    environment: Environment
    state: State
    obs: Observation


def unwrap(environment: Environment, state: State, obs: Observation) -> Unwrapped:
    """Return the environment inside all wrappers, its state and its observation.

    Entries of the observation that wrappers remove are missing.

    Args:
        environment: Environment or wrapper.
        state: State of the environment or wrapper.
        obs: Observation of the environment or wrapper.

    Returns:
        The innermost environment, its state and its observation.
    """
    while isinstance(environment, Wrapper):
        state, obs = environment.inner_state(state), environment.inner_obs(state, obs)
        environment = environment.env
    return Unwrapped(environment, state, obs)


def innermost_state(environment: Environment, state: State) -> Any:
    """Return the state of the environment inside all wrappers."""
    while isinstance(environment, Wrapper):
        environment, state = environment.env, environment.inner_state(state)
    return state


def trial_episode(environment: Environment, state: State) -> tuple[int, int] | None:
    """Return the index of the episode (from 1) and the number of episodes of its trial.

    The result is None for an environment without trials.
    """
    return environment.trial_episode(state) if isinstance(environment, Wrapper) else None


def state_to_render(
    environment: Environment, key: jax.Array, state: State, action: Action, next_state: State
) -> Any:
    """Return the state to render after `step(key, state, action)`.

    The result is `next_state` for environments that are not wrappers. For wrappers, see
    `Wrapper.state_to_render`.
    """
    return (
        environment.state_to_render(key, state, action, next_state)
        if isinstance(environment, Wrapper)
        else next_state
    )
