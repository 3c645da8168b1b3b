"""The contract of environments: one that steps and resets, and never resets itself (`rollax.acting.streams` restarts)."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax

from rollax.spaces import ActionSpace, Box, Space


class Transition(NamedTuple):
    """The result of one step of one environment. With agents, all but `state` and `info` lead with the axis `[num_agents]`."""

    state: Any
    obs: Any
    reward: jax.Array  # float []
    terminated: jax.Array  # bool []: the task ended; the value after it is 0
    truncated: jax.Array  # bool []: cut off by time; the value after it is that of `obs`
    info: dict[str, jax.Array]  # further numbers of any shape, each reduced over an episode as `info_reductions` says


class Environment(Protocol):
    """A (partially observed) Markov decision process: a pytree whose leaves are its physical parameters.

    `reset(key)` samples s_0 and o_0; `step(key, s, a)` samples s', o', r. All randomness comes from the key, so that a batch of
    environments, or domain randomization, is a `vmap`.

    `num_agents` is None for an environment without an axis of agents. With an integer A, observations, actions, rewards and
    both ends lead with an axis `[A]`, and the spaces are those of one agent. The episode is over when it has ended for every
    agent: one that ended earlier goes on reporting its end until then, and its rewards from then on do not count.

    `time_limit` is the largest number of steps of an episode, or None when that is not known.

    Two parts of an observation that is a `Dict` are no inputs of the policy: "action_mask" says which actions are legal, and
    "global_state" is observed by critics alone.
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

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """`(state, obs)` at the start of an episode."""
        ...

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """One step. It never resets: after an end it returns the last state and observation of the episode."""
        ...


class Simulator(Protocol):
    """One environment on the host, which keeps its own state. Observations and actions are NumPy arrays of its spaces."""

    def reset(self, seed: int | None) -> Any:
        """The observation at the start of an episode; `None` goes on with the simulator's own random numbers."""
        ...

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        """`(obs, reward, terminated, truncated, info)`. It never resets: `obs` is the true one after the step."""
        ...

    def frame(self) -> Any:
        """The picture of the state, uint8 `[height, width, 3]`."""
        ...

    def close(self) -> None: ...


class HostEnvironment(Environment, Protocol):
    """An environment that no program of JAX can contain: `rollax.train` acts in simulators of it, on the host.

    Its `reset` and `step` raise UsageError; `num_agents` is None.
    """

    @property
    def info_names(self) -> tuple[str, ...]:
        """Which numbers of a simulator's `info` evaluations report, float32 each."""
        ...

    @property
    def make_simulator(self) -> Callable[..., Simulator]:
        """`make_simulator(shows_frames=False)`: pickle can send it to other processes, where these are to run simulators."""
        ...

    @property
    def make_pool(self) -> Callable[[int, int], Any] | None:
        """`make_pool(num_envs, seed)` makes many simulators that step together (`rollax.host.pools`); None: there is none."""
        ...


def is_on_host(environment: Any) -> bool:
    """Whether simulators on the host are the environment (`HostEnvironment`)."""
    return callable(getattr(environment, "make_simulator", None))


class AgentsEnvironment(Environment, Protocol):
    """An environment with agents, which may be of several types.

    All types have the spaces of the largest: shorter observations end in zeros, and an "action_mask" excludes the actions, or
    the numbers of an action, that a type does not have.
    """

    @property
    def agent_types(self) -> tuple[str, ...]:
        """The type of each agent, `num_agents` names: ("prey", "predator")."""
        ...


def agent_types(environment: Any) -> tuple[str, ...]:
    """The type of each agent, "agent" where the environment names none; `()` where there is no axis of agents."""
    number = environment.num_agents
    return () if number is None else getattr(environment, "agent_types", ("agent",) * number)


def agent_names(environment: Any) -> tuple[str, ...]:
    """What each agent is called: its type, and with it a number from 0 where there are several of that type."""
    types = agent_types(environment)
    return tuple(kind if types.count(kind) == 1 else f"{kind}_{types[:i].count(kind)}" for i, kind in enumerate(types))


class InformedEnvironment(Environment, Protocol):
    """An environment that says how evaluations take a number of its `info` over an episode."""

    @property
    def info_reductions(self) -> Mapping[str, str]:
        """One of `REDUCTIONS` by name: "sum" for events and parts of the reward, "last" for a state. Others: the mean."""
        ...


REDUCTIONS = ("mean", "sum", "last")  # over the steps of an episode; "last" is the value at its last step


def info_reductions(environment: Any) -> dict[str, str]:
    """What the environment says of its `info`; a name that is missing has the mean."""
    return dict(getattr(environment, "info_reductions", {}))


class TaskEnvironment(Environment, Protocol):
    """An environment with a distribution of tasks. `reset(key)` samples a task and begins an episode of it."""

    @property
    def keeps_task(self) -> bool:
        """True: each of many copies has one task for all its episodes, which begin with `reset_task` in place of `reset`."""
        ...

    def sample_task(self, key: jax.Array) -> Any:
        """A task, a pytree of arrays; `()` where there is only one."""
        ...

    def reset_task(self, key: jax.Array, task: Any) -> tuple[Any, Any]:
        """`(state, obs)` at the start of an episode of that task."""
        ...


class ListedTasksEnvironment(TaskEnvironment, Protocol):
    """An environment whose tasks are a list, so that an evaluation can say which of them fail."""

    @property
    def task_numbers(self) -> tuple[int, ...]:
        """What each task that episodes sample is called by."""
        ...

    def tasks_at(self, places: Any) -> Any:
        """The tasks at those places of the list, int `[N]`: a pytree whose leaves lead with `[N]`."""
        ...

    def describe(self, *numbers: int) -> str:
        """The tasks of those numbers in words."""
        ...


def task_numbers(environment: Any) -> tuple[int, ...]:
    """What the tasks of the environment are called by; `()` where they are no list."""
    return getattr(environment, "task_numbers", ())


EXTRACTIONS = ("final", "mean")  # the descriptor of an episode: that of its last state, or the mean over its states


class DescribedEnvironment(Environment, Protocol):
    """An environment with behavior descriptors d(s), as quality-diversity uses them: a position, contacts with the ground.

    An evaluation extracts the descriptor of an episode from those of its states (`rollax.descriptors`). A view has the
    `descriptor_space` None where its environment has no descriptors.
    """

    @property
    def descriptor_space(self) -> Box | None:
        """Box `[D]`, float32."""
        ...

    @property
    def descriptor_extraction(self) -> str:
        """How to extract that of an episode, one of `EXTRACTIONS`: "final" for positions, "mean" for contacts."""
        ...

    def descriptor(self, state: Any) -> jax.Array:
        """float32 [D] of a state after a step. It can be compiled and vmapped."""
        ...


class ScoredEnvironment(DescribedEnvironment, Protocol):
    """An environment of one step whose action is a solution, and whose reward and descriptor are a closed form of it."""

    def score(self, solution: Any) -> tuple[jax.Array, jax.Array]:
        """What the step would give: reward, float32 [], and descriptor, float32 [D]. It can be differentiated."""
        ...


def descriptor_space(environment: Any) -> Box | None:
    """The space of the descriptors of an environment's states; None where it has none."""
    return getattr(environment, "descriptor_space", None)
