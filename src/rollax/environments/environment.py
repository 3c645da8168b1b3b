"""Interfaces of environments.

Environments never reset themselves. `rollax.acting.streams` restarts episodes.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from rollax.spaces import ActionSpace, Box, Space
from rollax.types import Action, Observation, State, Task


class Transition(NamedTuple):
    """Result of one step of one environment.

    In an environment with agents, `obs`, `reward`, `terminated` and `truncated` have a leading axis
    `[num_agents]`.

    Attributes:
        state: State after the step.
        obs: Observation after the step.
        reward: Reward, float [].
        terminated: Whether the task ended, bool []. If True, the value after the step is 0.
        truncated: Whether the episode was cut off, for example by a time limit, bool []. If True,
            the value after the step is the value of `obs`.
        info: Additional numeric arrays of any shape, keyed by name. Evaluations reduce each array
            over the steps of an episode according to `info_reductions`.
    """

    state: Any
    obs: Any
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    info: dict[str, jax.Array]


@runtime_checkable
class Environment(Protocol):
    """A (partially observed) Markov decision process.

    An environment is a pytree whose leaves are its physical parameters. `reset(key)` samples s_0
    and o_0, and `step(key, s, a)` samples s', o' and r. All randomness comes from the key, so a
    batch of environments is a `vmap` over keys.

    `num_agents` is None for an environment without an agent axis. If it is an integer A, then
    observations, actions, rewards, `terminated` and `truncated` have a leading axis `[A]`, and the
    spaces describe one agent. The episode ends when every agent is terminated or truncated. Until
    then, the flags of agents that ended earlier remain set, and their rewards are ignored.

    `time_limit` is the maximum number of steps of an episode, or None if it is unknown.

    Two keys of a `Dict` observation have a special meaning: "action_mask" is a mask of the legal
    actions, and "global_state" is an input of critics. Neither is an input of the policy.
    """

    @property
    def name(self) -> str: ...
    @property
    def observation_space(self) -> Space: ...
    @property
    def action_space(self) -> ActionSpace: ...
    @property
    def num_agents(self) -> int | None: ...
    @property
    def time_limit(self) -> int | None: ...

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Return `(state, obs)` at the start of an episode."""
        ...

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        """Return the transition of one step.

        A step never resets. If it ends the episode, it returns the last state and observation.
        """
        ...


@runtime_checkable
class Simulator(Protocol):
    """Single stateful environment that runs on the host, outside of JAX.

    Observations and actions are NumPy arrays in the spaces of the environment.
    """

    def reset(self, seed: int | None) -> Any:
        """Return the observation at the start of an episode.

        Args:
            seed: Seed of the simulator, or None to keep using its current random state.
        """
        ...

    def step(self, action: Action) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        """Return `(obs, reward, terminated, truncated, info)`.

        A step never resets, so `obs` is always the observation that follows the action.
        """
        ...

    def frame(self) -> Any:
        """Return an image of the state, uint8 `[height, width, 3]`."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class MultiAgentSimulator(Protocol):
    """Single stateful environment with an agent axis that runs on the host, outside of JAX.

    Observations, actions, rewards, `terminated` and `truncated` are NumPy arrays with a leading
    axis `[A]`. Agents may leave an episode, and they may return later. An agent that is not in the
    episode has an observation of zeros in which all of its actions are legal, and its action is
    ignored. If an agent was not in the episode before a step, its reward is 0, and `terminated` and
    `truncated` have the same values as in its last step in the episode.
    """

    @property
    def active(self) -> np.ndarray:
        """Whether each agent is in the episode after the last reset or step, bool `[A]`.

        The episode ends when it is false for all agents.
        """
        ...

    def reset(self, seed: int | None) -> Any:
        """Return the observations at the start of an episode (see `Simulator.reset`)."""
        ...

    def step(
        self, action: Action
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Mapping[str, Any]]:
        """Return `(obs, reward, terminated, truncated, info)` (see `Simulator.step`)."""
        ...

    def frame(self) -> Any:
        """Return an image of the state, uint8 `[height, width, 3]`."""
        ...

    def close(self) -> None: ...


class SpaceConversion(NamedTuple):
    """Conversion of observations and actions between a suite and rollax, for `Policy.predict`.

    Both functions accept a single value or a batch.

    Attributes:
        observation: Function from suite observations to rollax observations. It raises `UsageError`
            for values that are not suite observations.
        action: Function from rollax actions and the suite observations that caused them to suite
            actions.
        description: Description of the suite's observation space, for error messages.
    """

    observation: Callable[[Any], Any]
    action: Callable[[Any, Any], Any]
    description: str


@runtime_checkable
class HostEnvironment(Environment, Protocol):
    """An environment that runs in simulators on the host, outside of JAX.

    `rollax.train` steps the simulators. The methods `reset` and `step` of the environment itself
    raise `UsageError`. If `num_agents` is not None, simulators are `MultiAgentSimulator`s.
    """

    @property
    def info_names(self) -> tuple[str, ...]:
        """Names of the numbers in a simulator's `info` that evaluations report, as float32."""
        ...

    @property
    def make_simulator(self) -> Callable[..., Simulator | MultiAgentSimulator]:
        """Function `make_simulator(shows_frames=False)` that makes one simulator.

        It must be picklable to run simulators in other processes.
        """
        ...

    @property
    def make_pool(self) -> Callable[[int, int], Any] | None:
        """Function `make_pool(num_envs, seed)` that makes a pool of vectorized simulators, or None.

        See `rollax.training.simulators.pools`.
        """
        ...


@runtime_checkable
class MultiAgentEnvironment(Environment, Protocol):
    """An environment with agents of one or several types.

    All types share the spaces of the largest type. Shorter observations are padded with zeros. An
    "action_mask" excludes the actions, or the dimensions of actions, that a type does not have.
    """

    @property
    def agent_types(self) -> tuple[str, ...]:
        """Type of each agent, for example `("prey", "predator")`."""
        ...


@runtime_checkable
class OpponentEnvironment(MultiAgentEnvironment, Protocol):
    """An environment with opponents that do not learn and may play some agents of an episode."""

    def opponent_agents(self, state: State) -> jax.Array:
        """Return a mask of the agents that an opponent plays in this episode, bool `[A]`.

        It is constant during an episode.
        """
        ...


@runtime_checkable
class TurnBasedEnvironment(MultiAgentEnvironment, Protocol):
    """Environment whose agents take turns, with an "action_mask" in its observations."""

    @property
    def waiting_action(self) -> int | None:
        """Index of the only legal action of an agent that waits for its turn, or None."""
        ...


@runtime_checkable
class InfoReductionsEnvironment(Environment, Protocol):
    """An environment that declares how evaluations reduce its `info` over an episode."""

    @property
    def info_reductions(self) -> Mapping[str, str]:
        """Reduction of `info` values over an episode, keyed by their name in `info`.

        A reduction is one of `INFO_REDUCTIONS`. Use "sum" for events and reward terms, and "last"
        for numbers that describe the state. The default is "mean".
        """
        ...


# Reductions over the steps of an episode. "last" is the value at the last step.
INFO_REDUCTIONS = ("mean", "sum", "last")


@runtime_checkable
class TaskEnvironment(Environment, Protocol):
    """An environment with a distribution of tasks.

    `reset(key)` samples a task and starts an episode with it.
    """

    @property
    def keeps_task(self) -> bool:
        """Whether each copy of the environment keeps one task for all its episodes.

        If it is True, episodes start with `reset_task` instead of `reset`.
        """
        ...

    def sample_task(self, key: jax.Array) -> Any:
        """Sample a task. It is a pytree of arrays, or `()` if there is only one task."""
        ...

    def reset_task(self, key: jax.Array, task: Task) -> tuple[State, Observation]:
        """Return `(state, obs)` at the start of an episode with the task."""
        ...


@runtime_checkable
class FiniteTaskEnvironment(TaskEnvironment, Protocol):
    """An environment with a finite list of tasks.

    Evaluations of such an environment report which tasks fail.
    """

    @property
    def task_numbers(self) -> tuple[int, ...]:
        """Unique number of each task that episodes can sample."""
        ...

    def tasks_at(self, indices: jax.Array | np.ndarray) -> Any:
        """Return the tasks at the given positions in `task_numbers`.

        Args:
            indices: Positions in `task_numbers`, int `[N]`.

        Returns:
            Pytree whose leaves have a leading axis `[N]`.
        """
        ...

    def describe(self, *numbers: int) -> str:
        """Return a description of the tasks with the given entries of `task_numbers`."""
        ...


# The descriptor of an episode is the descriptor of its last state or the mean over its states.
DESCRIPTOR_EXTRACTIONS = ("final", "mean")


@runtime_checkable
class DescriptorEnvironment(Environment, Protocol):
    """An environment with behavior descriptors d(s) for quality-diversity.

    Examples of descriptors are positions and ground contacts. Evaluations compute the descriptor of
    an episode from the descriptors of its states (`rollax.acting.descriptors`). In a wrapper of an
    environment without descriptors, `descriptor_space` is None.
    """

    @property
    def descriptor_space(self) -> Box:
        """Space of the descriptors, a float32 `Box` of shape `[D]`."""
        ...

    @property
    def descriptor_extraction(self) -> str:
        """Method to compute the descriptor of an episode, one of `DESCRIPTOR_EXTRACTIONS`.

        "final" uses the last state, for example for positions. "mean" averages over all states, for
        example for contacts.
        """
        ...

    def descriptor(self, state: State) -> jax.Array:
        """Return the descriptor of a state after a step, float32 [D].

        The function must support `jit` and `vmap`.
        """
        ...


@runtime_checkable
class ClosedFormEnvironment(DescriptorEnvironment, Protocol):
    """A one-step environment whose action is a solution that the method `score` evaluates."""

    def score(self, solution: Action) -> tuple[jax.Array, jax.Array]:
        """Return the reward, float32 [], and the descriptor, float32 [D], of a solution.

        A step returns the same values. The function must be differentiable.
        """
        ...
