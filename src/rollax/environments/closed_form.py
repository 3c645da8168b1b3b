"""One-step environments whose action is a solution that a function scores."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.environment import Transition
from rollax.environments.environment_text import format_environment_html
from rollax.spaces import Box
from rollax.types import Action, Observation, State


class TaskState(NamedTuple):
    """State of a task: the descriptor of the solution, float32 [K], or zeros before the step."""

    descriptor: jax.Array


class Task(eqx.Module):
    """One-step environment whose reward and descriptor are a function of the action.

    The action is a solution, the reward is its fitness, and the observation is constant.

    Attributes:
        name: Id of the environment.
        function: Function from a solution `[D]` to its fitness, float32 [], and its descriptor,
            float32 [K].
        action_space: Space of the solutions.
        descriptor_space: Space of the descriptors.
        has_external_scores: Whether scores are computed outside of the environment. Gradients are
            not available in this case.
        objectives: Function from a solution to its M objectives, float32 [M], or None. `info`
            contains the objectives as objective_0, objective_1, ...
    """

    name: str = eqx.field(static=True)
    function: Callable[[jax.Array], tuple[jax.Array, jax.Array]] = eqx.field(static=True)
    action_space: Box = eqx.field(static=True)
    descriptor_space: Box = eqx.field(static=True)
    has_external_scores: bool = eqx.field(static=True, default=False)
    objectives: Callable[[jax.Array], jax.Array] | None = eqx.field(static=True, default=None)

    observation_space = Box(0.0, 0.0, (1,))
    descriptor_extraction = "final"
    num_agents = None
    time_limit = 1
    _repr_html_ = format_environment_html

    def score(self, solution: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the fitness, float32 [], and the descriptor `[K]` of a solution `[D]`."""
        return self.function(solution)

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        return TaskState(jnp.zeros(self.descriptor_space.shape)), jnp.zeros(1)

    def step(self, key: jax.Array, state: TaskState, action: Action) -> Transition:
        fitness, descriptor = self.score(action)
        done = jnp.ones((), bool)
        objectives = () if self.objectives is None else self.objectives(action)
        info = {f"objective_{index}": value for index, value in enumerate(objectives)}
        return Transition(TaskState(descriptor), jnp.zeros(1), fitness, done, ~done, info)

    def descriptor(self, state: TaskState) -> jax.Array:
        return state.descriptor
