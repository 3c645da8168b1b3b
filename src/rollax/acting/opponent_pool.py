"""Wrapper that lets policies from a pool play some of the agents of an environment."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax import tree
from rollax.algorithm import Algorithm
from rollax.environments.environment import Transition
from rollax.environments.wrapper import Wrapper, state_to_render
from rollax.types import Action, Carry, Observation, PyTree, State

WIN_RATE_NAME = "win_rate_opponent_{}"  # entry of `info` for each policy, by its index


class PoolPolicies(NamedTuple):
    """Functions of policies that share one algorithm.

    Attributes:
        algorithm: Algorithm of the policies.
        agents: Indices of the agents whose actions the algorithm computes.
    """

    algorithm: Algorithm
    agents: tuple[int, ...]


class PoolRuns(Wrapper):
    """Environment of a run together with the policies of other runs in its pool of opponents.

    It behaves like `env`. The policies are used when the algorithm of the run is built.

    Attributes:
        env: The environment.
        states: Algorithm state of each policy.
        functions: Functions of each policy.
    """

    states: tuple[Any, ...]
    functions: tuple[PoolPolicies, ...] = eqx.field(static=True)


class PoolEpisode(NamedTuple):
    """State of `PoolOpponents`: one episode of an environment with A agents.

    Attributes:
        env_state: State of the environment.
        obs: Observations of all agents, `[A, ...]`.
        is_opponent: Whether a policy of the pool plays the agent in this episode, bool `[A]`.
        opponent: Index of the policy in the pool, int32 `[]`. It is -1 before the first step.
        carries: Memory of the policy, one entry per group of policies with one algorithm.
        agent_done: Whether an agent has terminated or been truncated, bool `[A]`.
        margin: Mean return of the learning agents minus the mean return of the opponents,
            float32 `[]`.
    """

    env_state: Any
    obs: Any
    is_opponent: jax.Array
    opponent: jax.Array
    carries: tuple[Any, ...]
    agent_done: jax.Array
    margin: jax.Array


class PoolOpponents(Wrapper):
    """Wrapper that lets policies of a pool play some of the agents in a part of the episodes.

    An episode uses the pool with probability `fraction`. Then one of the `seats` is sampled at the
    reset, and a policy is sampled at the first step. The policy plays these agents during the whole
    episode and samples its actions. The actions that the learner passes for them are ignored.

    The state is a `PoolEpisode`. At the end of an episode, the entry `win_rate_opponent_<index>` of
    `info` is 1 if the learning agents had a higher mean return than policy `index`, 0.5 for equal
    returns, and 0 otherwise. It is NaN for all other policies and in other episodes.

    Attributes:
        env: The environment with all agents.
        policies: Algorithm states of the policies, one entry per group. A group consists of the
            policies of one algorithm. The leaves of an entry have a leading axis of policies.
        log_weights: Logarithm of the sampling weight of each policy over all groups, float32 `[P]`.
        fraction: Probability that an episode uses the pool, float32 `[]`.
        functions: Functions of each group of policies.
        seats: Possible sets of agents that an opponent plays, one tuple of bools `[A]` per set.
    """

    policies: tuple[Any, ...]
    log_weights: jax.Array
    fraction: jax.Array
    functions: tuple[PoolPolicies, ...] = eqx.field(static=True)
    seats: tuple[tuple[bool, ...], ...] = eqx.field(static=True)

    @property
    def info_reductions(self) -> dict[str, str]:
        names = (WIN_RATE_NAME.format(index) for index in range(len(self.log_weights)))
        return {**super().info_reductions, **dict.fromkeys(names, "last")}

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        seat_key, reset_key = jax.random.split(key)
        return self._start(seat_key, *self.env.reset(reset_key))

    def reset_task(self, key: jax.Array, task: PyTree) -> tuple[State, Observation]:
        seat_key, reset_key = jax.random.split(key)
        return self._start(seat_key, *self.env.reset_task(reset_key, task))

    def _start(
        self, key: jax.Array, env_state: State, obs: Observation
    ) -> tuple[PoolEpisode, Observation]:
        """Return the state at the start of an episode. The policy is sampled at the first step."""
        use_key, seat_key = jax.random.split(key)
        seat = jax.random.randint(seat_key, (), 0, len(self.seats))
        is_used = jax.random.uniform(use_key) < self.fraction
        first_carries = (
            jax.eval_shape(jax.vmap(functions.algorithm.initial_carry), states)
            for functions, states in zip(self.functions, self.policies, strict=True)
        )
        episode = PoolEpisode(
            env_state=env_state,
            obs=obs,
            is_opponent=jnp.asarray(self.seats)[seat] & is_used,
            opponent=jnp.full((), -1, jnp.int32),
            carries=tuple(
                jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), carry)
                for carry in first_carries
            ),
            agent_done=jnp.zeros(self.num_agents, bool),
            margin=jnp.zeros(()),
        )
        return episode, obs

    def step(self, key: jax.Array, state: PoolEpisode, action: Action) -> Transition:
        """Step all agents of `env`.

        Args:
            key: Random key.
            state: State of the wrapper.
            action: Actions of all agents, `[A, ...]`. Those of the opponents are replaced.

        Returns:
            Transition of all agents.
        """
        env_key, draw_key, act_key = jax.random.split(key, 3)
        is_first = state.opponent < 0
        drawn = jax.random.categorical(draw_key, self.log_weights).astype(jnp.int32)
        opponent = jnp.where(is_first, drawn, state.opponent)
        action, carries = self._act(act_key, state, opponent, is_first, action)
        transition = self.env.step(env_key, state.env_state, action)
        ended = transition.terminated | transition.truncated
        reward = jnp.where(state.agent_done, 0.0, transition.reward)
        episode = PoolEpisode(
            env_state=transition.state,
            obs=transition.obs,
            is_opponent=state.is_opponent,
            opponent=opponent,
            carries=carries,
            agent_done=state.agent_done | ended,
            margin=state.margin
            + _masked_mean(reward, ~state.is_opponent)
            - _masked_mean(reward, state.is_opponent),
        )
        return transition._replace(
            state=episode, info={**transition.info, **self._win_rates(episode)}
        )

    def _act(
        self,
        key: jax.Array,
        state: PoolEpisode,
        opponent: jax.Array,
        is_first: jax.Array,
        action: Action,
    ) -> tuple[Action, tuple[Carry, ...]]:
        """Return the actions of all agents, and the memory of the opponent after the step.

        All policies of the pool act on the observations of every environment, and the action of the
        opponent is selected. Gathering the parameters of one policy per environment would be
        slower, because it replaces products of matrices by products with vectors.
        """
        carries, start = [], 0
        keys = jax.random.split(key, len(self.functions))
        for functions, states, carry, group_key in zip(
            self.functions, self.policies, state.carries, keys, strict=True
        ):
            size = jax.tree.leaves(states)[0].shape[0]
            index = jnp.clip(opponent - start, 0, size - 1)
            is_chosen = (opponent >= start) & (opponent < start + size)
            first = jax.vmap(functions.algorithm.initial_carry)(states)
            carry = tree.where(is_first, _select(first, index), carry)
            agents = np.asarray(functions.agents)
            actions, after = jax.vmap(functions.algorithm.act, in_axes=(0, None, None, None, None))(
                states,
                jax.tree.map(lambda x, rows=agents: x[rows], state.obs),
                carry,
                group_key,
                False,
            )
            replaced = jax.tree.map(
                lambda x, y, rows=agents: x.at[rows].set(y.astype(x.dtype)),
                action,
                _select(actions, index),
            )
            action = tree.where(state.is_opponent & is_chosen, replaced, action)
            carries.append(_select(after, index))
            start += size
        return action, tuple(carries)

    def _win_rates(self, episode: PoolEpisode) -> dict[str, jax.Array]:
        """Return the result of an episode so far, keyed by the name of each policy."""
        result = 0.5 + 0.5 * jnp.sign(episode.margin)
        is_used = jnp.any(episode.is_opponent)
        return {
            WIN_RATE_NAME.format(index): jnp.where(
                is_used & (episode.opponent == index), result, jnp.nan
            )
            for index in range(len(self.log_weights))
        }

    def opponent_agents(self, state: PoolEpisode) -> jax.Array:
        """Return a mask of the agents that an opponent plays, bool `[A]`."""
        return state.is_opponent

    def inner_state(self, state: PoolEpisode) -> Any:
        return state.env_state

    def state_to_render(
        self, key: jax.Array, state: PoolEpisode, action: Action, next_state: PoolEpisode
    ) -> Any:
        env_key, _, _ = jax.random.split(key, 3)
        inner = state_to_render(self.env, env_key, state.env_state, action, next_state.env_state)
        return next_state._replace(env_state=inner)


def _select(values: PyTree, index: jax.Array) -> Any:
    """Return the entry of an index along the leading axis of all leaves."""
    return jax.tree.map(lambda x: x[index], values)


def _masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the mean of the values where the mask is true, or 0 if it is false everywhere."""
    return jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(jnp.sum(mask), 1)
