"""The contract of environments, and the batch of environments that an algorithm acts in.

An environment only steps and resets; it never resets itself. `Streams` runs many copies, restarts those whose episode
ended, and presents every agent of every copy as one stream of experience.
"""

from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax import tree
from rollax.spaces import ActionSpace, Box, Space


class Transition(NamedTuple):
    """The result of one step of one environment. With agents, all but `state` and `info` lead with the axis `[num_agents]`."""

    state: Any
    obs: Any
    reward: jax.Array  # float []
    terminated: jax.Array  # bool []: the task ended; the value after it is 0
    truncated: jax.Array  # bool []: cut off by time; the value after it is that of `obs`
    info: dict[str, jax.Array]  # further numbers of any shape, which an evaluation adds up over the episode


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


def descriptor_space(environment: Any) -> Box | None:
    """The space of the descriptors of an environment's states; None where it has none."""
    return getattr(environment, "descriptor_space", None)


class TimeStep(NamedTuple):
    """What one step of all streams gives, after restarts. `S` streams = environments x agents."""

    obs: Any  # [S, ...]: what to act on next: the first observation of a new episode where one ended
    reward: jax.Array  # float [S]
    terminated: jax.Array  # bool [S]
    truncated: jax.Array  # bool [S]
    final_obs: Any  # [S, ...]: the true observation after the step, before any restart
    info: dict[str, jax.Array]  # [E, ...]


class StreamState(NamedTuple):
    """Everything that changes in a batch of E environments. Every leaf leads with `[E]`, so it shards along one axis."""

    env_state: Any
    obs: Any  # [E, ...] or [E, A, ...]
    reset: jax.Array  # bool [E]: `obs` begins an episode
    key: jax.Array  # key [E]: the n-th episode of an environment begins with `reset(fold_in(key, n))`
    episode: jax.Array  # int32 [E]: how many episodes have begun
    spare: Any  # (env_state, obs) [E, ...]: the start of one episode to come, a cache of the rule above
    spare_episode: jax.Array  # int32 [E]: the number of that episode


FEWEST_STARTS = 16  # drawn together, where there are as many environments
_TASK = np.uint32(2**32 - 1)


class Streams(eqx.Module):
    """`num_envs` copies of an environment that restart by themselves, seen as streams of single agents.

    The start of an environment's n-th episode is a pure function of its own key and n. Every environment keeps one start in
    stock; empty stocks are drawn anew, many together, when one of them is needed. So starts cost about as much as episodes
    are many, not as steps are many, and are the same however the environments are spread over devices.
    """

    env: Any
    num_envs: int = eqx.field(static=True)

    @property
    def num_streams(self) -> int:
        return self.num_envs * (self.env.num_agents or 1)

    def init(self, key: jax.Array) -> StreamState:
        """Starts the first episode of every environment."""
        keys = jax.random.split(key, self.num_envs)
        first = jnp.zeros(self.num_envs, jnp.int32)
        env_state, obs = self._draw(keys, first)
        spare = self._draw(keys, first + 1)
        return StreamState(env_state, obs, jnp.ones(self.num_envs, bool), keys, first + 1, spare, first + 1)

    def step(self, keys: jax.Array, state: StreamState, action: Any) -> tuple[StreamState, TimeStep]:
        """One step of every environment; those whose episode ended begin the next one.

        `keys`: `[E]`, one for each environment; `action`: `[S, ...]`.
        """
        transition = jax.vmap(self.env.step)(keys, state.env_state, self._by_environment(action))
        ended = transition.terminated | transition.truncated
        ended = ended if self.env.num_agents is None else jnp.all(ended, axis=-1)
        state = self._refill(state, ended)
        start_state, start_obs = state.spare
        state = state._replace(
            env_state=tree.where(ended, start_state, transition.state),
            obs=tree.where(ended, start_obs, transition.obs),
            reset=ended,
            episode=state.episode + ended,
        )
        by_stream = self.by_stream((state.obs, transition.reward, transition.terminated, transition.truncated, transition.obs))
        return state, TimeStep(*by_stream, info=transition.info)

    def by_stream(self, values: Any) -> Any:
        """`[E, A, ...]` as `[S, ...]`; without agents the two are the same."""
        if self.env.num_agents is None:
            return values
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), values)

    def spread(self, values: jax.Array) -> jax.Array:
        """A value for each environment `[E]` as one for each of its streams `[S]`."""
        return jnp.repeat(values, self.env.num_agents or 1, axis=0)

    def _by_environment(self, values: Any) -> Any:
        if self.env.num_agents is None:
            return values
        return jax.tree.map(lambda x: x.reshape(-1, self.env.num_agents, *x.shape[1:]), values)

    def _draw(self, keys: jax.Array, episode: jax.Array) -> Any:
        """The start of the given episode of every environment."""
        start_keys = jax.vmap(jax.random.fold_in)(keys, episode)
        if not getattr(self.env, "keeps_task", False):
            return jax.vmap(self.env.reset)(start_keys)
        # The task of an environment follows from its own key, by a number that no episode has.
        tasks = jax.vmap(lambda key: self.env.sample_task(jax.random.fold_in(key, _TASK)))(keys)
        return jax.vmap(self.env.reset_task)(start_keys, tasks)

    def _refill(self, state: StreamState, ended: jax.Array) -> StreamState:
        """Draws new stocks, for a share of the environments at a time, until none that ended has an empty one.

        Those that ended come first, then others whose stock is empty: so a draw is seldom needed, and never larger than useful.
        A `while_loop` rather than a `cond`: under `vmap` a `cond` would draw at every step.
        """
        share = min(self.num_envs, max(FEWEST_STARTS, self.num_envs // 4))

        def urgent(spare_episode: jax.Array) -> jax.Array:
            return ended & (spare_episode != state.episode)

        def missing(carry: tuple[Any, jax.Array]) -> jax.Array:
            return jnp.any(urgent(carry[1]))

        def draw(carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
            spare, spare_episode = carry
            first, empty = urgent(spare_episode), spare_episode != state.episode
            # The rank of each environment among those to draw for: compaction by sums, as sorting is slow.
            rank = jnp.where(first, jnp.cumsum(first), jnp.sum(first) + jnp.cumsum(empty & ~first)) - 1
            place = jnp.where(empty & (rank < share), rank, share)
            # What is left of the share beyond those that need one falls out of range, and is dropped.
            chosen = jnp.full(share, self.num_envs).at[place].set(jnp.arange(self.num_envs), mode="drop")
            keys, episode = (x.at[chosen].get(mode="clip") for x in (state.key, state.episode))
            starts = self._draw(keys, episode)
            put = lambda all, some: all.at[chosen].set(some, mode="drop")  # noqa: E731
            return jax.tree.map(put, spare, starts), put(spare_episode, episode)

        spare, spare_episode = jax.lax.while_loop(missing, draw, (state.spare, state.spare_episode))
        return state._replace(spare=spare, spare_episode=spare_episode)
