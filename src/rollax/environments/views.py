"""Environments seen otherwise: with more in the observation, against others, as trials, cut off, or at a slower rhythm."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax import tree
from rollax.environments.core import Transition, agent_types, descriptor_space
from rollax.errors import UnknownNameError, UsageError
from rollax.spaces import ActionSpace, Box, Dict, Discrete, Space


class View(eqx.Module):
    """An environment that shows another one, `env`, otherwise. What a view does not say itself is as in that one."""

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
    def keeps_task(self) -> bool:
        return getattr(self.env, "keeps_task", False)

    def sample_task(self, key: jax.Array) -> Any:
        return self.env.sample_task(key)

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
        return self.env.descriptor(state)


class Recalling(View):
    """An environment whose observation also tells the action before and the reward that it brought.

    Parts "previous_action", the discrete action or, at the start of an episode, the number of actions (none yet), and
    "previous_reward", 0 at the start. The observation's own parts stay, one that has none is the part "observation".

    Raises: UsageError for actions that are not `Discrete`, and for environments with agents.
    """

    def __check_init__(self) -> None:
        if not isinstance(self.env.action_space, Discrete) or self.env.num_agents is not None:
            raise UsageError(f"{self.env.name}: its previous action can be shown for one agent with discrete actions only.")

    @property
    def observation_space(self) -> Space:
        more = {"previous_action": Discrete(self.env.action_space.n + 1), "previous_reward": _reward_space()}
        return Dict({**_spaces(self.env.observation_space), **more})

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return self._begun(*self.env.reset(key))

    def reset_task(self, key: jax.Array, task: Any) -> tuple[Any, Any]:
        return self._begun(*self.env.reset_task(key, task))

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        after = self.env.step(key, state, action)
        return after._replace(obs=self._extended(after.obs, action, after.reward))

    def _begun(self, state: Any, obs: Any) -> tuple[Any, Any]:
        return state, self._extended(obs, jnp.asarray(self.env.action_space.n), jnp.zeros(()))

    def _extended(self, obs: Any, action: jax.Array, reward: jax.Array) -> dict[str, Any]:
        more = {"previous_action": jnp.asarray(action, jnp.int32), "previous_reward": jnp.asarray(reward, jnp.float32)}
        return {**_parts(self.env.observation_space, obs), **more}


class Identified(View):
    """An environment with agents whose observation also tells which agent it is: the part "agent_id".

    Raises: UsageError for an environment without agents.
    """

    def __check_init__(self) -> None:
        if self.env.num_agents is None:
            raise UsageError(f"{self.env.name} has no agents to tell apart: leave agent_id off.")

    @property
    def observation_space(self) -> Space:
        return Dict({**_spaces(self.env.observation_space), "agent_id": Discrete(self.env.num_agents)})

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state, obs = self.env.reset(key)
        return state, identified(self.env.observation_space, obs)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        after = self.env.step(key, state, action)
        return after._replace(obs=identified(self.env.observation_space, after.obs))


def identified(space: Space, obs: Any) -> dict[str, Any]:
    """Observations `[A, ...]` of that space with the part "agent_id"."""
    parts = _parts(space, obs)
    number = jax.tree.leaves(parts)[0].shape[0]
    return {**parts, "agent_id": jnp.arange(number, dtype=jnp.int32)}


class Against(View):
    """An environment in which the agents of some types follow policies that do not learn; the others are the agents.

    A policy was trained in the environment beneath; of what it does, the part of its type counts. It samples its actions. Its
    memory and what it saw last live in the state. An episode is over when it is for the learners.
    """

    opponents: dict[str, Any]  # by type: the state of an algorithm
    # By type: the algorithm, and the agents beneath that it acts for (all, or those that it learnt to be).
    functions: tuple[tuple[str, Any, tuple[int, ...]], ...] = eqx.field(static=True)

    def __check_init__(self) -> None:
        kinds = agent_types(self.env)
        for kind in self.opponents:
            if kind not in kinds:
                raise UnknownNameError("type of agents to play against", kind, dict.fromkeys(kinds))
        if not self.learners:
            raise UsageError(f"{self.env.name}: opponents for {', '.join(self.opponents)} leave no agent that learns.")

    @property
    def learners(self) -> tuple[int, ...]:
        """The agents beneath that are agents here."""
        return tuple(i for i, kind in enumerate(agent_types(self.env)) if kind not in self.opponents)

    @property
    def num_agents(self) -> int:
        return len(self.learners)

    @property
    def agent_types(self) -> tuple[str, ...]:
        return tuple(agent_types(self.env)[i] for i in self.learners)

    def descriptor(self, state: Any) -> jax.Array:
        return self.env.descriptor(state[0])

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state, obs = self.env.reset(key)
        carries = {kind: algorithm.initial_carry(self.opponents[kind]) for kind, algorithm, _ in self.functions}
        return (state, obs, carries), self._of_learners(obs)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """One step of all agents beneath; the action is that of the learners, `[A, ...]`."""
        inner, obs, carries = state
        env_key, *keys = jax.random.split(key, 1 + len(self.functions))
        place = np.asarray(self.learners)
        actions = jnp.zeros((self.env.num_agents, *action.shape[1:]), action.dtype).at[place].set(action)
        after_carries = {}
        for (kind, algorithm, agents), act_key in zip(self.functions, keys, strict=True):
            seen = jax.tree.map(lambda x, a=agents: x[np.asarray(a)], obs)
            theirs, after_carries[kind] = algorithm.act(self.opponents[kind], seen, carries[kind], act_key, False)
            own = [i for i, agent in enumerate(agents) if agent_types(self.env)[agent] == kind]
            actions = actions.at[np.asarray(agents)[own]].set(theirs[np.asarray(own)])
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
    """Episodes of one task in a row as one long episode, in which a memory lives: RL^2 (Duan et al. 2016, arXiv:1611.02779).

    A trial draws a task and has `episodes` episodes of it; it terminates with the last of them. The ends of those before are no
    ends of experience: values reach across them, and nothing is reset but the inner environment. The part "begins" of the
    observation is 1 where an inner episode has just begun. `info["episode_returns"]`, `[episodes]`, adds up to the return of
    each. The starts of all episodes are drawn with the trial, so none is drawn that is not used.

    `env` is a `TaskEnvironment`.
    """

    episodes: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.episodes < 1:
            raise UsageError(f"{self.env.name}: episodes ({self.episodes}) must be at least 1.")
        if self.env.num_agents is not None:
            raise UsageError(f"{self.env.name}: trials are for one agent, but it has {self.env.num_agents}.")

    @property
    def observation_space(self) -> Space:
        return Dict({**_spaces(self.env.observation_space), "begins": Discrete(2)})

    @property
    def time_limit(self) -> int | None:
        return None if self.env.time_limit is None else self.env.time_limit * self.episodes

    def descriptor(self, state: Any) -> jax.Array:
        return self.env.descriptor(state[0])

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
    """An environment whose episodes are cut off after `max_steps` steps, with the true last observation.

    A task that ends with that very step has terminated. The environment's own limit stays where it is shorter.
    """

    max_steps: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.max_steps < 1:
            raise UsageError(f"{self.env.name}: max_steps ({self.max_steps}) must be at least 1.")

    @property
    def time_limit(self) -> int:
        return self.max_steps if self.env.time_limit is None else min(self.max_steps, self.env.time_limit)

    def descriptor(self, state: Any) -> jax.Array:
        return self.env.descriptor(state[0])

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return self._begun(*self.env.reset(key))

    def reset_task(self, key: jax.Array, task: Any) -> tuple[Any, Any]:
        return self._begun(*self.env.reset_task(key, task))

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        inner, time = state
        after = self.env.step(key, inner, action)
        cut = (time + 1 >= self.max_steps) & ~after.terminated
        return after._replace(state=(after.state, time + 1), truncated=after.truncated | cut)

    def _begun(self, state: Any, obs: Any) -> tuple[Any, Any]:
        return (state, jnp.zeros((), jnp.int32)), obs


class ActionRepeat(View):
    """An environment in which every action is taken `times` times, or until the episode ends.

    Rewards, and what `info` tells, are summed. The action stays the same whatever an "action_mask" says in between.
    """

    times: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.times < 1:
            raise UsageError(f"{self.env.name}: times ({self.times}) must be at least 1.")

    @property
    def time_limit(self) -> int | None:
        return None if self.env.time_limit is None else -(-self.env.time_limit // self.times)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return self.env.reset(key)

    def reset_task(self, key: jax.Array, task: Any) -> tuple[Any, Any]:
        return self.env.reset_task(key, task)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        def once(key: jax.Array, state: Any) -> Transition:
            after = self.env.step(key, state, action)
            # Truths and whole numbers are counted, as an evaluation does.
            return after._replace(info=jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), after.info))

        def again(before: Transition, key: jax.Array) -> tuple[Transition, None]:
            after, is_over = once(key, before.state), before.terminated | before.truncated
            reward = before.reward + jnp.where(is_over, 0.0, after.reward)
            after = after._replace(reward=reward, info=jax.tree.map(jnp.add, before.info, after.info))
            return tree.where(jnp.all(is_over), before, after), None

        keys = jax.random.split(key, self.times)
        return jax.lax.scan(again, once(keys[0], state), keys[1:])[0]


def _spaces(space: Space) -> dict[str, Space]:
    """The spaces of an observation's parts."""
    return space.spaces if isinstance(space, Dict) else {"observation": space}


def _parts(space: Space, value: Any) -> dict[str, Any]:
    """The parts of an observation of that space."""
    return dict(value) if isinstance(space, Dict) else {"observation": value}


def _reward_space() -> Box:
    return Box(float("-inf"), float("inf"), ())
