"""The contract of environments: one that steps and resets, and never resets itself (`rollax.acting.streams` restarts)."""

from typing import Any, NamedTuple, Protocol

import jax

from rollax.spaces import ActionSpace, Box, Space


class Transition(NamedTuple):
    """What one step of one environment gives. With agents, all but `state` and `info` lead with the axis `[num_agents]`."""

    state: Any
    obs: Any
    reward: jax.Array  # float []
    terminated: jax.Array  # bool []: the task ended; the value after it is 0
    truncated: jax.Array  # bool []: cut off by time; the value after it is that of `obs`
    info: dict[str, jax.Array]  # further numbers of any shape, which an evaluation adds up over the episode


class Environment(Protocol):
    """One environment: a pytree whose leaves are its physical parameters, so domain randomization is a `vmap`.

    `num_agents` is None for an environment without an agent axis. With an integer A, observations, actions, rewards and both
    ends lead with an axis `[A]`, the spaces describe one agent, and the episode is over when every agent's has
    ended: an agent that ended early goes on reporting its end until then. Rewards after its own end do not count.

    `time_limit` is the most steps an episode can have, or None when that is not known: evaluation bounds its episodes by it.

    Two parts of an observation that is a `Dict` have a meaning of their own: "action_mask" says which actions are legal, and
    "global_state" is what only critics may see.
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
        """One step. Never resets."""
        ...


class AgentsEnvironment(Environment, Protocol):
    """An environment with agents, which may be of several kinds.

    Kinds whose observations or actions are of other sizes share the spaces of the largest: shorter observations end in zeros,
    and an "action_mask" leaves out the actions, or the numbers of an action, that a kind does not have.
    """

    @property
    def agent_types(self) -> tuple[str, ...]:
        """The kind of each agent, `num_agents` names: ("prey", "predator")."""
        ...


def agent_types(environment: Any) -> tuple[str, ...]:
    """The kind of each agent, "agent" where the environment names none; `()` where there is no axis of agents."""
    number = environment.num_agents
    return () if number is None else getattr(environment, "agent_types", ("agent",) * number)


class TaskEnvironment(Environment, Protocol):
    """An environment whose episodes may differ in their task. `reset(key)` draws a task and begins an episode of it.

    With `keeps_task` each of many copies has one task for good, and what restarts episodes does not call `reset`.
    """

    @property
    def keeps_task(self) -> bool: ...

    def sample_task(self, key: jax.Array) -> Any:
        """A task, a pytree of arrays; `()` where there is only one."""
        ...

    def reset_task(self, key: jax.Array, task: Any) -> tuple[Any, Any]:
        """`(state, obs)` at the start of an episode of that task."""
        ...


EXTRACTIONS = ("final", "mean")  # the descriptor of an episode: that of its last state, or the mean over its states


class DescribedEnvironment(Environment, Protocol):
    """An environment that describes behavior: where its body is, what it touches, apart from what it earns.

    An evaluation makes one descriptor of an episode out of those of its states (`rollax.descriptors`). An environment that
    wraps another one may have `descriptor_space` None where that one describes nothing.
    """

    @property
    def descriptor_space(self) -> Box | None:
        """Box `[D]`, float32."""
        ...

    @property
    def descriptor_extraction(self) -> str:
        """What suits an episode, one of `EXTRACTIONS`: "final" for places, "mean" for contacts."""
        ...

    def descriptor(self, state: Any) -> jax.Array:
        """float32 [D] of a state after a step. Closed under `jit` and `vmap`."""
        ...


def descriptor_space(environment: Any) -> Box | None:
    """The space of the descriptors of an environment's states; None where it describes nothing."""
    return getattr(environment, "descriptor_space", None)
