"""Wrappers of environments ("views"): other observations, opponents, trials, time limits, repeated actions."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax import tree
from rollax.environments.core import Transition, agent_types, info_reductions
from rollax.environments.view_base import View, innermost, shown_state
from rollax.errors import UnknownNameError, UsageError
from rollax.spaces import Box, Dict, Discrete, Space


class PreviousActionReward(View):
    """Adds the previous action a_(t-1) and its reward r_(t-1) to the observation.

    They are the parts "previous_action", at the start of an episode n for `Discrete(n)` (no action yet), and
    "previous_reward", 0 at the start. The parts of a `Dict` observation stay; any other becomes the part "observation".

    Raises: UsageError for actions that are not `Discrete`, and for environments with agents.
    """

    def __check_init__(self) -> None:
        if not isinstance(self.env.action_space, Discrete) or self.env.num_agents is not None:
            raise UsageError(f"{self.env.name}: the previous action can be observed by one agent with discrete actions only.")

    @property
    def observation_space(self) -> Space:
        more = {"previous_action": Discrete(self.env.action_space.n + 1), "previous_reward": _reward_space()}
        return Dict({**_spaces(self.env.observation_space), **more})

    def after_reset(self, state: Any, obs: Any) -> tuple[Any, Any]:
        return state, self._extended(obs, jnp.asarray(self.env.action_space.n), jnp.zeros(()))

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        after = self.env.step(key, state, action)
        return after._replace(obs=self._extended(after.obs, action, after.reward))

    def inner_obs(self, state: Any, obs: Any) -> Any:
        return _inner_parts(self.env.observation_space, obs)

    def shown_state(self, key: jax.Array, before: Any, action: Any, after: Any) -> Any:
        return shown_state(self.env, key, before, action, after)

    def _extended(self, obs: Any, action: jax.Array, reward: jax.Array) -> dict[str, Any]:
        more = {"previous_action": jnp.asarray(action, jnp.int32), "previous_reward": jnp.asarray(reward, jnp.float32)}
        return {**_parts(self.env.observation_space, obs), **more}


class AgentId(View):
    """Adds the number of the agent, 0 ... A - 1, to its observation: the part "agent_id".

    Raises: UsageError for an environment without agents.
    """

    def __check_init__(self) -> None:
        if self.env.num_agents is None:
            raise UsageError(f"{self.env.name} has no agents to tell apart: leave agent_id off.")

    @property
    def observation_space(self) -> Space:
        return Dict({**_spaces(self.env.observation_space), "agent_id": Discrete(self.env.num_agents)})

    def after_reset(self, state: Any, obs: Any) -> tuple[Any, Any]:
        return state, with_agent_id(self.env.observation_space, obs)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        after = self.env.step(key, state, action)
        return after._replace(obs=with_agent_id(self.env.observation_space, after.obs))

    def inner_obs(self, state: Any, obs: Any) -> Any:
        return _inner_parts(self.env.observation_space, obs)


def with_agent_id(space: Space, obs: Any) -> dict[str, Any]:
    """Observations `[A, ...]` of that space with the part "agent_id"."""
    parts = _parts(space, obs)
    number = jax.tree.leaves(parts)[0].shape[0]
    return {**parts, "agent_id": jnp.arange(number, dtype=jnp.int32)}


class FixedOpponents(View):
    """An environment in which the agents of some types are opponents: they follow fixed policies. All others are the agents.

    A policy was trained in `env`; only the actions of the agents of its type are used. Opponents sample their actions. The
    state is `(state, obs, carries)`: of `env`, what all its agents observe, and the memory of each policy by type. An episode
    is over when it is over for all agents that learn.

    Raises: UnknownNameError for a type that `env` has not, UsageError when no agent is left to learn.
    """

    opponents: dict[str, Any]  # by type: the state of an algorithm
    # By type: the algorithm, and the agents of `env` that it acts for (all, or those that it was trained to be).
    functions: tuple[tuple[str, Any, tuple[int, ...]], ...] = eqx.field(static=True)

    def __check_init__(self) -> None:
        types = agent_types(self.env)
        for agent_type in self.opponents:
            if agent_type not in types:
                raise UnknownNameError("type of agents to play against", agent_type, dict.fromkeys(types))
        if not self.learners:
            raise UsageError(f"{self.env.name}: opponents for {', '.join(self.opponents)} leave no agent that learns.")

    @property
    def learners(self) -> tuple[int, ...]:
        """The agents of `env` that learn, by their numbers."""
        return tuple(i for i, agent_type in enumerate(agent_types(self.env)) if agent_type not in self.opponents)

    @property
    def num_agents(self) -> int:
        return len(self.learners)

    @property
    def agent_types(self) -> tuple[str, ...]:
        return tuple(agent_types(self.env)[i] for i in self.learners)

    def after_reset(self, state: Any, obs: Any) -> tuple[Any, Any]:
        carries = {name: algorithm.initial_carry(self.opponents[name]) for name, algorithm, _ in self.functions}
        return (state, obs, carries), self._of_learners(obs)

    def inner_state(self, state: Any) -> Any:
        return state[0]

    def inner_obs(self, state: Any, obs: Any) -> Any:
        return state[1]

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """One step of all agents of `env`; `action` is that of the learners, `[A, ...]`."""
        inner, obs, carries = state
        env_key, *keys = jax.random.split(key, 1 + len(self.functions))
        place = np.asarray(self.learners)
        actions = jnp.zeros((self.env.num_agents, *action.shape[1:]), action.dtype).at[place].set(action)
        after_carries = {}
        for (name, algorithm, agents), act_key in zip(self.functions, keys, strict=True):
            their_obs = jax.tree.map(lambda x, a=agents: x[np.asarray(a)], obs)
            chosen, after_carries[name] = algorithm.act(self.opponents[name], their_obs, carries[name], act_key, False)
            own = [i for i, agent in enumerate(agents) if agent_types(self.env)[agent] == name]
            actions = actions.at[np.asarray(agents)[own]].set(chosen[np.asarray(own)])
        after = self.env.step(env_key, inner, actions)
        return Transition(
            state=(after.state, after.obs, after_carries),
            obs=self._of_learners(after.obs),
            reward=after.reward[place],
            terminated=after.terminated[place],
            truncated=after.truncated[place],
            info=after.info,
        )

    def _of_learners(self, values: Any) -> Any:
        return jax.tree.map(lambda x: x[np.asarray(self.learners)], values)


class Trials(View):
    """Trials of RL^2 (Duan et al. 2016, arXiv:1611.02779): several episodes of one task as one long episode.

    A trial samples a task and has `episodes` episodes of it, over which a recurrent policy keeps its memory; it terminates with
    the last of them. Where an earlier one ends, the step goes on to the start of the next: `terminated` and `truncated` are
    False, so values reach across. The part "begins" of the observation is 1 where an inner episode has just begun.
    `info["episode_returns"]`, `[episodes]`, adds up to the return of each. The starts of all episodes are made with the trial.

    The state is `(state, starts, episode)`: of `env`; `(state, obs)` of all starts, `[episodes, ...]`; int32 [], from 0.

    Raises: UsageError when `env` is no `TaskEnvironment`, has agents, or `episodes` is below 1.
    """

    episodes: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check_count(self.env.name, "episodes", self.episodes)
        if not callable(getattr(innermost(self.env), "sample_task", None)):
            raise UsageError(f"{self.env.name}: trials need an environment with tasks: add sample_task and reset_task.")
        if self.env.num_agents is not None:
            raise UsageError(f"{self.env.name}: trials are for one agent, but it has {self.env.num_agents}.")

    @property
    def observation_space(self) -> Space:
        return Dict({**_spaces(self.env.observation_space), "begins": Discrete(2)})

    @property
    def info_reductions(self) -> dict[str, str]:
        return {**info_reductions(self.env), "episode_returns": "sum"}

    @property
    def time_limit(self) -> int | None:
        return None if self.env.time_limit is None else self.env.time_limit * self.episodes

    def inner_state(self, state: Any) -> Any:
        return state[0]

    def inner_obs(self, state: Any, obs: Any) -> Any:
        return _inner_parts(self.env.observation_space, obs)

    def trial_episode(self, state: Any) -> tuple[int, int]:
        return int(state[2]) + 1, self.episodes

    def shown_state(self, key: jax.Array, before: Any, action: Any, after: Any) -> Any:
        """The end of an inner episode, where `after` is the start of the next one."""
        inner, starts, episode = before
        return self.env.step(key, inner, action).state, starts, episode

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        task_key, start_key = jax.random.split(key)
        return self.reset_task(start_key, self.sample_task(task_key))

    def reset_task(self, key: jax.Array, task: Any) -> tuple[Any, Any]:
        starts = jax.vmap(lambda k: self.env.reset_task(k, task))(jax.random.split(key, self.episodes))
        state, obs = jax.tree.map(lambda x: x[0], starts)
        return (state, starts, jnp.zeros((), jnp.int32)), self._extended(obs, jnp.ones((), bool))

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        inner, starts, episode = state
        after = self.env.step(key, inner, action)
        returns = jnp.where(jnp.arange(self.episodes) == episode, after.reward, 0.0)
        ended = after.terminated | after.truncated
        over = ended & (episode + 1 == self.episodes)
        begins = ended & ~over
        following = jax.tree.map(lambda x: x[jnp.minimum(episode + 1, self.episodes - 1)], starts)
        inner, obs = tree.where(begins, following, (after.state, after.obs))
        return Transition(
            state=(inner, starts, episode + begins),
            obs=self._extended(obs, begins),
            reward=after.reward,
            terminated=over,
            truncated=jnp.zeros((), bool),
            info={**after.info, "episode_returns": returns},
        )

    def _extended(self, obs: Any, begins: jax.Array) -> dict[str, Any]:
        return {**_parts(self.env.observation_space, obs), "begins": begins.astype(jnp.int32)}


class TimeLimit(View):
    """Truncates episodes after `max_steps` steps, with the true last observation.

    A task that ends with that very step has only terminated. A shorter limit of `env` stays in force. The state is
    `(state of env, steps so far)`.

    Raises: UsageError for a limit below 1.
    """

    max_steps: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check_count(self.env.name, "max_steps", self.max_steps)

    @property
    def time_limit(self) -> int:
        return self.max_steps if self.env.time_limit is None else min(self.max_steps, self.env.time_limit)

    def after_reset(self, state: Any, obs: Any) -> tuple[Any, Any]:
        return (state, jnp.zeros((), jnp.int32)), obs

    def inner_state(self, state: Any) -> Any:
        return state[0]

    def shown_state(self, key: jax.Array, before: Any, action: Any, after: Any) -> Any:
        return shown_state(self.env, key, before[0], action, after[0]), after[1]

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        inner, time = state
        after = self.env.step(key, inner, action)
        is_late = (time + 1 >= self.max_steps) & ~after.terminated
        return after._replace(state=(after.state, time + 1), truncated=after.truncated | is_late)


class ActionRepeat(View):
    """Repeats every action `times` times, or until the episode ends; rewards are summed,
    and so are numbers of `info` that are summed over an episode; of others there is the mean, or the last.

    The action stays the same whatever an "action_mask" says in between. Of `PreviousActionReward` within, "previous_reward" is
    the sum, too; of `Trials` within, it is repeated until the next inner episode "begins".

    Raises: UsageError for fewer times than 1.
    """

    times: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check_count(self.env.name, "times", self.times)

    @property
    def time_limit(self) -> int | None:
        return None if self.env.time_limit is None else -(-self.env.time_limit // self.times)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        def once(key: jax.Array, state: Any) -> Transition:
            after = self.env.step(key, state, action)
            # As an evaluation does: booleans and integers are summed as floats.
            return after._replace(info=jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), after.info))

        def again(before: tuple[Transition, jax.Array], key: jax.Array) -> tuple[tuple[Transition, jax.Array], None]:
            so_far, count = before
            after, agent_done = once(key, so_far.state), so_far.terminated | so_far.truncated
            if isinstance(so_far.obs, dict) and "begins" in so_far.obs:
                agent_done |= so_far.obs["begins"] == 1
            reward = so_far.reward + jnp.where(agent_done, 0.0, after.reward)
            info = jax.tree.map(jnp.add, so_far.info, after.info) | {name: after.info[name] for name in by("last")}
            return tree.where(jnp.all(agent_done), before, (after._replace(reward=reward, info=info), count + 1)), None

        keys, how = jax.random.split(key, self.times), info_reductions(self.env)
        begun = once(keys[0], state)
        by = lambda reduction: [name for name in begun.info if how.get(name, "mean") == reduction]  # noqa: E731
        after, count = jax.lax.scan(again, (begun, jnp.ones(())), keys[1:])[0]
        means = {name: jax.tree.map(lambda x: x / count, after.info[name]) for name in by("mean")}
        if isinstance(after.obs, dict) and "previous_reward" in after.obs:
            after = after._replace(obs=after.obs | {"previous_reward": jnp.asarray(after.reward, jnp.float32)})
        return after._replace(info=after.info | means)


def _spaces(space: Space) -> dict[str, Space]:
    """The spaces of an observation's parts."""
    return space.spaces if isinstance(space, Dict) else {"observation": space}


def _parts(space: Space, value: Any) -> dict[str, Any]:
    """The parts of an observation of that space."""
    return dict(value) if isinstance(space, Dict) else {"observation": value}


def _inner_parts(space: Space, parts: dict[str, Any]) -> Any:
    """The observation of that space among the parts of one that has more: the inverse of `_parts`."""
    return {name: parts[name] for name in space.spaces} if isinstance(space, Dict) else parts["observation"]


def _check_count(name: str, what: str, value: Any) -> None:
    """Raises UsageError for what is no whole number from 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name}: {what} ({value!r}) must be a whole number, at least 1.")


def _reward_space() -> Box:
    return Box(float("-inf"), float("inf"), ())
