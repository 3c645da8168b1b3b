"""Wrappers for observations, opponents, trials, time limits, action repeat and stacked frames."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax import tree
from rollax.environments.capabilities import capabilities, has_tasks
from rollax.environments.environment import Environment, Transition
from rollax.environments.image_layouts import FLAT, image_layout
from rollax.environments.randomization import DomainRandomization as DomainRandomization
from rollax.environments.wrapper import Wrapper, innermost_environment, state_to_render
from rollax.errors import UnknownNameError, UsageError
from rollax.spaces import Box, Dict, Discrete, Grid, MultiDiscrete, Space, flatten_space
from rollax.types import Action, Observation, PyTree, State, Task


class PreviousActionReward(Wrapper):
    """Wrapper that adds the previous action a_(t-1) and reward r_(t-1) to the observation.

    For `Discrete(n)` actions, the entry "previous_action" is n at the start of an episode. The
    entry "previous_reward" is 0 at the start. All entries of a `Dict` observation are kept. Any
    other observation becomes the entry "observation".

    Raises:
        UsageError: If actions are not `Discrete`, the environment has agents, or the observation
            already has an entry of the same name.
    """

    def __check_init__(self) -> None:
        if not isinstance(self.env.action_space, Discrete) or self.env.num_agents is not None:
            raise UsageError(
                f"{self.env.name}: the previous action needs an environment with discrete actions "
                "and without agents."
            )
        _check_unused_part_names(self.env, "previous_action", "previous_reward")

    @property
    def observation_space(self) -> Space:
        added_parts = {
            "previous_action": Discrete(self.env.action_space.n + 1),
            "previous_reward": Box(float("-inf"), float("inf"), ()),
        }
        return Dict({**_part_spaces(self.env.observation_space), **added_parts})

    def after_reset(self, state: State, obs: Observation) -> tuple[State, Observation]:
        return state, self._extend_observation(
            obs, jnp.asarray(self.env.action_space.n), jnp.zeros(())
        )

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        after = self.env.step(key, state, action)
        return after._replace(obs=self._extend_observation(after.obs, action, after.reward))

    def inner_obs(self, state: State, obs: Observation) -> Any:
        return _from_parts(self.env.observation_space, obs)

    def state_to_render(
        self, key: jax.Array, state: State, action: Action, next_state: State
    ) -> Any:
        return state_to_render(self.env, key, state, action, next_state)

    def _extend_observation(
        self, obs: Observation, action: jax.Array, reward: jax.Array
    ) -> dict[str, Any]:
        added_parts = {
            "previous_action": jnp.asarray(action, jnp.int32),
            "previous_reward": jnp.asarray(reward, jnp.float32),
        }
        return {**_to_parts(self.env.observation_space, obs), **added_parts}


class AgentId(Wrapper):
    """Wrapper that adds the index of each agent, 0 ... A - 1, to its observation as "agent_id".

    Raises:
        UsageError: If the environment has no agent axis, or the observation already has an entry
            "agent_id".
    """

    def __check_init__(self) -> None:
        if self.env.num_agents is None:
            raise UsageError(f"{self.env.name} has no agents. Turn off agent_id.")
        _check_unused_part_names(self.env, "agent_id")

    @property
    def observation_space(self) -> Space:
        return Dict(
            {**_part_spaces(self.env.observation_space), "agent_id": Discrete(self.env.num_agents)}
        )

    def after_reset(self, state: State, obs: Observation) -> tuple[State, Observation]:
        return state, add_agent_id(self.env.observation_space, obs)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        after = self.env.step(key, state, action)
        return after._replace(obs=add_agent_id(self.env.observation_space, after.obs))

    def inner_obs(self, state: State, obs: Observation) -> Any:
        return _from_parts(self.env.observation_space, obs)


def add_agent_id(space: Space, obs: Observation) -> dict[str, Any]:
    """Add the entry "agent_id" to the observations of all agents.

    Args:
        space: Observation space without "agent_id".
        obs: Observations with leading axis `[A]`.

    Returns:
        Dictionary of observations, including "agent_id", int32 [A].
    """
    parts = _to_parts(space, obs)
    number = jax.tree.leaves(parts)[0].shape[0]
    return {**parts, "agent_id": jnp.arange(number, dtype=jnp.int32)}


class FixedOpponents(Wrapper):
    """Wrapper that controls all agents of some types (opponents) with trained policies.

    The remaining agents learn. Each policy was trained in `env`, controls the agents of one type,
    and samples its actions. An episode ends when it has ended for all learning agents. The state is
    `(state, obs, carries)`: the state of `env`, the observations of all agents of `env`, and the
    recurrent state of each policy, keyed by agent type.

    Attributes:
        env: The environment with all agents.
        opponents: Algorithm state of each policy, keyed by agent type.
        functions: One tuple per policy: agent type, algorithm, and indices of the agents in `env`
            whose actions the algorithm computes. These are the agents that the policy was trained
            for, either all agents or the agents of one type.

    Raises:
        UnknownNameError: If `env` has no agent of one of the types.
        UsageError: If no learning agent remains.
    """

    opponents: dict[str, Any]
    functions: tuple[tuple[str, Any, tuple[int, ...]], ...] = eqx.field(static=True)

    def __check_init__(self) -> None:
        types = capabilities(self.env).agent_types
        for agent_type in self.opponents:
            if agent_type not in types:
                raise UnknownNameError("type of opponents", agent_type, dict.fromkeys(types))
        if not self.learning_agents:
            raise UsageError(
                f"{self.env.name}: opponents for {', '.join(self.opponents)} leave no agent "
                "to learn. Remove one type of opponents."
            )

    @property
    def learning_agents(self) -> tuple[int, ...]:
        """Indices of the learning agents in `env`."""
        return tuple(
            i
            for i, agent_type in enumerate(capabilities(self.env).agent_types)
            if agent_type not in self.opponents
        )

    @property
    def num_agents(self) -> int:
        return len(self.learning_agents)

    @property
    def agent_types(self) -> tuple[str, ...]:
        return tuple(capabilities(self.env).agent_types[i] for i in self.learning_agents)

    def after_reset(self, state: State, obs: Observation) -> tuple[State, Observation]:
        carries = {
            name: algorithm.initial_carry(self.opponents[name])
            for name, algorithm, _ in self.functions
        }
        return (state, obs, carries), self._select_learners(obs)

    def inner_state(self, state: State) -> Any:
        return state[0]

    def inner_obs(self, state: State, obs: Observation) -> Any:
        return state[1]

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        """Step all agents of `env`.

        Args:
            key: Random key.
            state: State of the wrapper.
            action: Actions of the learning agents, `[A, ...]`.

        Returns:
            Transition of the learning agents.
        """
        inner, obs, carries = state
        env_key, *keys = jax.random.split(key, 1 + len(self.functions))
        learner_indices = np.asarray(self.learning_agents)
        zeros = jax.tree.map(
            lambda x: jnp.zeros((self.env.num_agents, *x.shape[1:]), x.dtype), action
        )
        actions = _set_rows(zeros, learner_indices, action)
        after_carries = {}
        for (name, algorithm, agents), act_key in zip(self.functions, keys, strict=True):
            opponent_obs = jax.tree.map(lambda x, a=agents: x[np.asarray(a)], obs)
            opponent_actions, after_carries[name] = algorithm.act(
                self.opponents[name], opponent_obs, carries[name], act_key, False
            )
            acting_positions = [
                i
                for i, agent in enumerate(agents)
                if capabilities(self.env).agent_types[agent] == name
            ]
            acting = np.asarray(acting_positions)
            chosen = jax.tree.map(
                lambda x, rows=acting_positions: x[np.asarray(rows)], opponent_actions
            )
            actions = _set_rows(actions, np.asarray(agents)[acting], chosen)
        transition = self.env.step(env_key, inner, actions)
        return Transition(
            state=(transition.state, transition.obs, after_carries),
            obs=self._select_learners(transition.obs),
            reward=transition.reward[learner_indices],
            terminated=transition.terminated[learner_indices],
            truncated=transition.truncated[learner_indices],
            info=transition.info,
        )

    def _select_learners(self, values: PyTree) -> Any:
        return jax.tree.map(lambda x: x[np.asarray(self.learning_agents)], values)


class Trials(Wrapper):
    """Wrapper for trials of RL^2, which join several episodes of one task to one long episode.

    A trial samples a task and consists of `episodes` inner episodes with this task. A recurrent
    policy keeps its recurrent state during the whole trial. The trial terminates with its last
    episode. When an earlier episode ends, the same step returns the start of the next episode.
    `terminated` and `truncated` are then False, so values bootstrap across episodes. The entry
    "begins" of the observation is 1 at the start of each inner episode. The initial states of all
    episodes are sampled at the start of the trial.

    The sum of `info["episode_returns"]`, `[episodes]`, over a trial is the return of each episode.
    The sums of `info["episodes_terminated"]` and `info["episodes_truncated"]` over a trial are the
    fractions of its episodes that terminated and that were truncated.

    The state is `(state, starts, episode)`: the state of `env`, `(state, obs)` at the start of all
    episodes with leading axis `[episodes]`, and the episode index from 0, int32 [].

    Raises:
        UsageError: If `env` is not a `TaskEnvironment` or has an agent axis, or if `episodes` is
            below 1.

    References:
        Duan et al. 2016, "RL^2: Fast Reinforcement Learning via Slow Reinforcement Learning"
        (arXiv:1611.02779).
    """

    episodes: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check_positive_int(self.env.name, "episodes", self.episodes)
        if not has_tasks(innermost_environment(self.env)):
            raise UsageError(
                f"{self.env.name}: trials need an environment with tasks. "
                "Add sample_task and reset_task."
            )
        if self.env.num_agents is not None:
            raise UsageError(
                f"{self.env.name}: trials need an environment without agents, "
                f"got {self.env.num_agents} agents."
            )
        _check_unused_part_names(self.env, "begins")

    @property
    def observation_space(self) -> Space:
        return Dict({**_part_spaces(self.env.observation_space), "begins": Discrete(2)})

    @property
    def info_reductions(self) -> dict[str, str]:
        summed_names = ("episode_returns", "episodes_terminated", "episodes_truncated")
        return {**capabilities(self.env).info_reductions, **dict.fromkeys(summed_names, "sum")}

    @property
    def time_limit(self) -> int | None:
        return None if self.env.time_limit is None else self.env.time_limit * self.episodes

    def inner_state(self, state: State) -> Any:
        return state[0]

    def inner_obs(self, state: State, obs: Observation) -> Any:
        return _from_parts(self.env.observation_space, obs)

    def trial_episode(self, state: State) -> tuple[int, int]:
        return int(state[2]) + 1, self.episodes

    def state_to_render(
        self, key: jax.Array, state: State, action: Action, next_state: State
    ) -> Any:
        """Return the state after the step, even if `next_state` starts the next inner episode."""
        inner, starts, episode = state
        return self.env.step(key, inner, action).state, starts, episode

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        task_key, start_key = jax.random.split(key)
        return self.reset_task(start_key, self.sample_task(task_key))

    def reset_task(self, key: jax.Array, task: Task) -> tuple[State, Observation]:
        starts = jax.vmap(lambda k: self.env.reset_task(k, task))(
            jax.random.split(key, self.episodes)
        )
        state, obs = jax.tree.map(lambda x: x[0], starts)
        return (state, starts, jnp.zeros((), jnp.int32)), self._extend_observation(
            obs, jnp.ones((), bool)
        )

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        inner, starts, episode = state
        transition = self.env.step(key, inner, action)
        returns = jnp.where(jnp.arange(self.episodes) == episode, transition.reward, 0.0)
        is_episode_end = transition.terminated | transition.truncated
        is_trial_end = is_episode_end & (episode + 1 == self.episodes)
        begins = is_episode_end & ~is_trial_end
        next_start = jax.tree.map(lambda x: x[jnp.minimum(episode + 1, self.episodes - 1)], starts)
        inner, obs = tree.where(begins, next_start, (transition.state, transition.obs))
        return Transition(
            state=(inner, starts, episode + begins),
            obs=self._extend_observation(obs, begins),
            reward=transition.reward,
            terminated=is_trial_end,
            truncated=jnp.zeros((), bool),
            info={
                **transition.info,
                "episode_returns": returns,
                "episodes_terminated": transition.terminated.astype(jnp.float32) / self.episodes,
                "episodes_truncated": (transition.truncated & ~transition.terminated).astype(
                    jnp.float32
                )
                / self.episodes,
            },
        )

    def _extend_observation(self, obs: Observation, begins: jax.Array) -> dict[str, Any]:
        return {**_to_parts(self.env.observation_space, obs), "begins": begins.astype(jnp.int32)}


class TimeLimit(Wrapper):
    """Wrapper that truncates episodes after `max_steps` steps.

    The last step returns the actual next observation. An episode that terminates at the same step
    is not truncated. A shorter limit of `env` still applies. The state is `(state, time)`: the
    state of `env`, and the number of steps so far, int32 [].

    Raises:
        UsageError: If `max_steps` is below 1.
    """

    max_steps: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check_positive_int(self.env.name, "max_steps", self.max_steps)

    @property
    def time_limit(self) -> int:
        return (
            self.max_steps
            if self.env.time_limit is None
            else min(self.max_steps, self.env.time_limit)
        )

    def after_reset(self, state: State, obs: Observation) -> tuple[State, Observation]:
        return (state, jnp.zeros((), jnp.int32)), obs

    def inner_state(self, state: State) -> Any:
        return state[0]

    def state_to_render(
        self, key: jax.Array, state: State, action: Action, next_state: State
    ) -> Any:
        return state_to_render(self.env, key, state[0], action, next_state[0]), next_state[1]

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        inner, time = state
        transition = self.env.step(key, inner, action)
        is_truncated = (time + 1 >= self.max_steps) & ~transition.terminated
        return transition._replace(
            state=(transition.state, time + 1), truncated=transition.truncated | is_truncated
        )


class ActionRepeat(Wrapper):
    """Wrapper that repeats every action `times` times, or until the episode ends.

    Rewards are summed. Values of `info` are summed, averaged or taken from the last step, according
    to `info_reductions`. The same action is repeated even if the "action_mask" changes. If `env`
    contains `PreviousActionReward`, the entry "previous_reward" is also the sum of rewards. If
    `env` contains `Trials`, the repetition stops when an inner episode begins.

    Raises:
        UsageError: If `times` is below 1.
    """

    times: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check_positive_int(self.env.name, "times", self.times)

    @property
    def time_limit(self) -> int | None:
        return None if self.env.time_limit is None else -(-self.env.time_limit // self.times)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        def step_once(key: jax.Array, state: State) -> Transition:
            transition = self.env.step(key, state, action)
            # Evaluations also sum booleans and integers as floats.
            return transition._replace(
                info=jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), transition.info)
            )

        def repeat(
            carry: tuple[Transition, jax.Array], key: jax.Array
        ) -> tuple[tuple[Transition, jax.Array], None]:
            accumulated, count = carry
            transition, agent_done = (
                step_once(key, accumulated.state),
                accumulated.terminated | accumulated.truncated,
            )
            if isinstance(accumulated.obs, dict) and "begins" in accumulated.obs:
                agent_done |= accumulated.obs["begins"] == 1
            reward = accumulated.reward + jnp.where(agent_done, 0.0, transition.reward)
            info = jax.tree.map(jnp.add, accumulated.info, transition.info) | {
                name: transition.info[name] for name in select_names("last")
            }
            return tree.where(
                jnp.all(agent_done),
                carry,
                (transition._replace(reward=reward, info=info), count + 1),
            ), None

        keys, reductions = jax.random.split(key, self.times), capabilities(self.env).info_reductions
        first = step_once(keys[0], state)

        def select_names(reduction: str) -> list[str]:
            return [name for name in first.info if reductions.get(name, "mean") == reduction]

        transition, count = jax.lax.scan(repeat, (first, jnp.ones(())), keys[1:])[0]
        means = {
            name: jax.tree.map(lambda x: x / count, transition.info[name])
            for name in select_names("mean")
        }
        if isinstance(transition.obs, dict) and "previous_reward" in transition.obs:
            transition = transition._replace(
                obs=transition.obs
                | {"previous_reward": jnp.asarray(transition.reward, jnp.float32)}
            )
        return transition._replace(info=transition.info | means)


def _set_rows(values: PyTree, rows: np.ndarray, new_values: PyTree) -> Any:
    """Replace rows of each array of a pytree, `[A, ...]`, by new values `[len(rows), ...]`."""
    return jax.tree.map(lambda x, y: x.at[rows].set(y), values, new_values)


class FrameStack(Wrapper):
    """Wrapper whose observation contains the last `frames` observations, oldest first.

    An episode starts with copies of its first observation. The last frame after its last step is
    the last observation of the episode. A `Box` gets a leading axis of frames, which is the axis N
    of a picture. The symbols of all frames of a `Grid` share its last axis, and a `Discrete` or
    `MultiDiscrete` becomes a `MultiDiscrete`. The entry "action_mask" is not stacked. The state is
    `(state, frames)`: the state of `env`, and the last observations, `[frames, ...]` or `[A,
    frames, ...]` with agents.

    Raises:
        UsageError: If `frames` is below 1, or a picture of `env` already has stacked frames.
    """

    frames: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check_positive_int(self.env.name, "frames", self.frames)
        for name, space in flatten_space(self.env.observation_space, "observation").items():
            if isinstance(space, Box) and "N" in (image_layout(space) or ""):
                raise UsageError(
                    f"{self.env.name}: {name} must not have stacked frames already, got {space}. "
                    "Remove FrameStack or the option frame_stack."
                )

    @property
    def observation_space(self) -> Space:
        return _map_frames(self._stack_space, self.env.observation_space)

    def after_reset(self, state: State, obs: Observation) -> tuple[State, Observation]:
        axis = int(self.num_agents is not None)
        frames = jax.tree.map(lambda x: jnp.stack([x] * self.frames, axis), obs)
        return (state, frames), self._arrange(frames)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        inner, frames = state
        axis = int(self.num_agents is not None)
        transition = self.env.step(key, inner, action)

        def push(old: jax.Array, new: jax.Array) -> jax.Array:
            kept = jax.lax.slice_in_dim(old, 1, None, axis=axis)
            return jnp.concatenate([kept, jnp.expand_dims(new, axis).astype(old.dtype)], axis)

        frames = jax.tree.map(push, frames, transition.obs)
        return transition._replace(state=(transition.state, frames), obs=self._arrange(frames))

    def inner_state(self, state: State) -> Any:
        return state[0]

    def inner_obs(self, state: State, obs: Observation) -> Any:
        return self._newest(state[1])

    def state_to_render(
        self, key: jax.Array, state: State, action: Action, next_state: State
    ) -> Any:
        return state_to_render(self.env, key, state[0], action, next_state[0]), next_state[1]

    def _stack_space(self, space: Space) -> Space:
        """Return the space of the stacked values of a space without parts."""
        if isinstance(space, Box):
            layout = image_layout(space)
            shape = (self.frames, *space.shape)
            layout = FLAT if layout is None else f"N{layout}"
            return Box(space.low, space.high, shape, space.dtype, layout)
        if isinstance(space, Grid):
            return Grid(space.cells, space.sizes * self.frames, space.dtype)
        if isinstance(space, Discrete):
            return MultiDiscrete((space.n,) * self.frames, space.dtype)
        if isinstance(space, MultiDiscrete):
            return MultiDiscrete(space.sizes * self.frames, space.dtype)
        raise UsageError(f"{self.env.name}: frames of {space} cannot be stacked. Use a Box.")

    def _newest(self, frames: PyTree) -> Any:
        """Return the newest of the last observations."""
        return jax.tree.map(lambda x: x[-1] if self.num_agents is None else x[:, -1], frames)

    def _arrange(self, frames: PyTree) -> Observation:
        """Return the observation that contains the last observations."""

        def arrange(space: Space, values: jax.Array) -> jax.Array:
            if isinstance(space, Grid):
                return jnp.moveaxis(values, 0, 2).reshape(*space.cells, -1)
            return values if isinstance(space, Box) else values.reshape(-1)

        def arrange_one(frames: PyTree) -> Observation:
            obs = _map_frames(arrange, self.env.observation_space, frames)
            if isinstance(obs, dict) and "action_mask" in obs:
                obs["action_mask"] = jax.tree.map(lambda x: x[-1], frames["action_mask"])
            return obs

        return arrange_one(frames) if self.num_agents is None else jax.vmap(arrange_one)(frames)


def _map_frames(function: Callable[..., Any], space: Space, *values: PyTree) -> Any:
    """Apply a function to each array of an observation space except those of "action_mask"."""
    if not isinstance(space, Dict):
        return function(space, *values)
    results = {
        name: _map_frames(function, part, *(value[name] for value in values))
        for name, part in space.items
        if name != "action_mask"
    }
    if "action_mask" in space.spaces:
        results["action_mask"] = values[0]["action_mask"] if values else space.spaces["action_mask"]
    return results if values else Dict(results)


def _part_spaces(space: Space) -> dict[str, Space]:
    """Return the space of each entry of an observation, keyed by name."""
    return space.spaces if isinstance(space, Dict) else {"observation": space}


def _check_unused_part_names(env: Environment, *names: str) -> None:
    """Raise UsageError if the observation already has an entry with one of the names."""
    for name in names:
        if name in _part_spaces(env.observation_space):
            raise UsageError(
                f"{env.name}: observations must not have a part {name!r}, which the wrapper adds. "
                "Rename that part."
            )


def _to_parts(space: Space, value: Observation) -> dict[str, Any]:
    """Return an observation as a dictionary. A single array gets the key "observation"."""
    return dict(value) if isinstance(space, Dict) else {"observation": value}


def _from_parts(space: Space, parts: dict[str, Observation]) -> Any:
    """Return the observation of `space` from a dictionary with the same or additional entries."""
    return (
        {name: parts[name] for name in space.spaces}
        if isinstance(space, Dict)
        else parts["observation"]
    )


def _check_positive_int(name: str, argument: str, value: object) -> None:
    """Raise UsageError if the value is not a positive integer."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name}: {argument} ({value!r}) must be an integer of at least 1.")
