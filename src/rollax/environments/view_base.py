"""The base of all wrappers of environments, and what lies within them: what pictures and descriptors need."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from rollax.environments.core import Transition, agent_types, descriptor_space, info_reductions, task_numbers
from rollax.spaces import ActionSpace, Box, Space


class View(eqx.Module):
    """A wrapper of an environment `env`: an environment whose members are those of `env` unless a subclass has others.

    A subclass that changes observations or adds to the state overrides

    - `step`;
    - `after_reset`, from which `reset` and `reset_task` follow;
    - `inner_state` where its state is not that of `env`, and `inner_obs` where its observation is not. Descriptors and
      pictures of `env` follow from these two.
    """

    env: Any

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
        return agent_types(self.env)

    @property
    def time_limit(self) -> int | None:
        return self.env.time_limit

    @property
    def info_reductions(self) -> dict[str, str]:
        return info_reductions(self.env)

    @property
    def keeps_task(self) -> bool:
        return getattr(self.env, "keeps_task", False)

    @property
    def task_numbers(self) -> tuple[int, ...]:
        return task_numbers(self.env)

    def tasks_at(self, places: Any) -> Any:
        return self.env.tasks_at(places)

    @property
    def describe(self) -> Callable[..., str]:
        return self.env.describe

    @property
    def descriptor_space(self) -> Box | None:
        return descriptor_space(self.env)

    @property
    def descriptor_extraction(self) -> str:
        return self.env.descriptor_extraction

    def descriptor(self, state: Any) -> jax.Array:
        return self.env.descriptor(self.inner_state(state))

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return self.after_reset(*self.env.reset(key))

    def sample_task(self, key: jax.Array) -> Any:
        return self.env.sample_task(key)

    def reset_task(self, key: jax.Array, task: Any) -> tuple[Any, Any]:
        return self.after_reset(*self.env.reset_task(key, task))

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        return self.env.step(key, state, action)

    def after_reset(self, state: Any, obs: Any) -> tuple[Any, Any]:
        """`(state, obs)` at the start of an episode, from those of `env`."""
        return state, obs

    def inner_state(self, state: Any) -> Any:
        """The state of `env` within the state of this view."""
        return state

    def inner_obs(self, state: Any, obs: Any) -> Any:
        """The observation of `env`, as far as the state and the observation of this view contain it."""
        return obs

    def trial_episode(self, state: Any) -> tuple[int, int] | None:
        """Which episode of its trial a state belongs to, from 1, and the number of episodes; None where there are no trials."""
        return trial_episode(self.env, self.inner_state(state))

    def shown_state(self, key: jax.Array, before: Any, action: Any, after: Any) -> Any:
        """The state that a picture shows after the step `(key, before, action)`, which led to the state `after`.

        The two differ where a step goes on to the start of another episode (`Trials`). A view that gives `key` and `action` to
        `env` unchanged can hand this on to `env`.
        """
        return after


def innermost(environment: Any) -> Any:
    """The environment within all views."""
    while isinstance(environment, View):
        environment = environment.env
    return environment


def unwrap(environment: Any, state: Any, obs: Any) -> tuple[Any, Any, Any]:
    """The environment within all views, with its state and as much of its observation as they let through."""
    while isinstance(environment, View):
        state, obs = environment.inner_state(state), environment.inner_obs(state, obs)
        environment = environment.env
    return environment, state, obs


def inner_state(environment: Any, state: Any) -> Any:
    """The state of the environment within all views."""
    while isinstance(environment, View):
        environment, state = environment.env, environment.inner_state(state)
    return state


def trial_episode(environment: Any, state: Any) -> tuple[int, int] | None:
    """Which episode of its trial a state belongs to, from 1, and the number of episodes; None where there are no trials."""
    return environment.trial_episode(state) if isinstance(environment, View) else None


def shown_state(environment: Any, key: jax.Array, before: Any, action: Any, after: Any) -> Any:
    """The state that a picture shows after a step: `View.shown_state`, or `after` for an environment that is no view."""
    return environment.shown_state(key, before, action, after) if isinstance(environment, View) else after
