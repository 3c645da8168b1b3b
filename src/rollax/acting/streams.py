"""Vectorized stepping of environments with a policy: single steps, rollouts and restarts.

Environments never reset themselves. Rollouts, replay, evaluation, rendering and checks all use
`step`, which also tracks episode returns and lengths.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting.episode_metrics import (
    MAX_LOGGED_ELEMENTS,
    InfoReduction,
    make_info_reduction,
    sum_ended_episodes,
    sum_ended_info,
    total_sums,
)
from rollax.algorithm import EpisodeSums
from rollax.algorithm import reseed as reseed_keys
from rollax.environments.capabilities import (
    find_acting_agents,
    has_opponents,
    is_on_host,
)
from rollax.environments.environment import Environment, Transition
from rollax.environments.reset_pool import (
    ResetPool,
    discard_pooled_resets,
    init_reset_pool,
    refill_reset_pool,
)
from rollax.environments.trace_cache import trace_once
from rollax.networks import memory_windows
from rollax.scopes import profile_scope
from rollax.spaces import make_zeros
from rollax.types import Carry, Observation, PyTree, State

# (carry, obs, reset, key) -> (carry, action, extras) in one environment. If `reset`, bool [], is
# true, `obs` begins an episode and the policy resets its memory. In multi-agent environments,
# carry, obs, action and extras have a leading axis [A], and `reset` may have it as well.
PolicyFn = Callable[[Any, Any, jax.Array, jax.Array], tuple[Any, Any, Any]]


class ActorState(NamedTuple):
    """State of the environments and the policy between steps.

    Leaves have a leading axis `[E]`, or `[E, A]` for values of individual agents.

    Attributes:
        env_state: States of the environments.
        obs: Observations.
        reset: Whether `obs` begins an episode, bool `[E]`. In simulators on the host, agents may
            return to an episode, so it is `[E, A]` with agents.
        carry: Memory of the policy after the last step. The policy resets the memory before it acts
            if `reset` is true.
        agent_done: Whether an agent has terminated or been truncated in the running episode, or an
            opponent plays it (`OpponentEnvironment`), bool `[E, A]`. None for a single agent.
        episode_return: Return of the running episode, float `[E]` or `[E, A]`.
        episode_length: Number of steps of the running episode, int32 `[E]` or `[E, A]`.
        reset_pool: Precomputed resets, or None if environments do not restart.
        episode_info: Accumulators of the `info` of the running episode
            (`rollax.acting.episode_metrics`), `[E, ...]`. Empty if it is not logged.
    """

    env_state: Any
    obs: Any
    reset: jax.Array
    carry: Any
    agent_done: jax.Array | None
    episode_return: jax.Array
    episode_length: jax.Array
    reset_pool: ResetPool | None
    episode_info: PyTree = {}


class Experience(NamedTuple):
    """One step of all S streams, `[S, ...]`, or a rollout of T steps, `[T, S, ...]`.

    A stream is one agent of one environment, so S is the number of environments times agents.

    Attributes:
        obs: Observations before the step.
        reset: Whether `obs` begins an episode, bool.
        carry: Memory of the policy before the step and before any reset. In a rollout, the memory
            has the format of `rollax.networks.memory_windows`.
        action: Actions passed to the environment.
        extras: Values that the policy returns in addition to the action, for learning.
        reward: Rewards, float. 0 for agents that were done before the step.
        terminated: Whether the step terminated the episode of the agent, bool.
        truncated: Whether the step truncated the episode of the agent, bool.
        next_obs: Observations after the step and before any reset.
        mask: Whether the agent was active, bool. False for agents that were done before the step
            and for opponents. None if agents never end early.
        acts: Whether it was the agent's turn, bool. None in environments without turns.
    """

    obs: Any
    reset: jax.Array
    carry: Any
    action: Any
    extras: Any
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_obs: Any
    mask: jax.Array | None
    acts: jax.Array | None = None


class RolloutArguments(NamedTuple):
    """Arguments of `unroll`, without the environment.

    Attributes:
        policy: Policy that acts.
        actor: Actor state before the rollout.
        key: Random key.
        num_steps: Number of steps T.
    """

    policy: PolicyFn
    actor: ActorState
    key: jax.Array
    num_steps: int


class Rollout(NamedTuple):
    """Experience of T steps in all streams, with the actor state after the last step.

    Attributes:
        actor: Actor state after the rollout.
        experience: Experience `[T, S, ...]`.
        episodes: Sums over the episodes that ended during the rollout.
    """

    actor: ActorState
    experience: Experience
    episodes: EpisodeSums


def make_actor(
    environment: Environment, env_state: State, obs: Observation, carry: Carry
) -> ActorState:
    """Return the actor state at the start of an episode in each of E environments.

    Args:
        environment: Environment to step.
        env_state: States `[E, ...]`.
        obs: Observations `[E, ...]`.
        carry: Initial memory of the policy in one environment.

    Returns:
        The actor state without a reset pool.
    """
    size = jax.tree.leaves(obs)[0].shape[0]
    shape = (size,) if environment.num_agents is None else (size, environment.num_agents)
    carry = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *jnp.shape(x))), carry)
    is_idle = _find_opponents(environment, env_state)
    done = jnp.zeros(shape, bool) if is_idle is None else is_idle
    done = done if (environment.num_agents or 1) > 1 else None
    return ActorState(
        env_state,
        obs,
        jnp.ones(size, bool),
        carry,
        done,
        jnp.zeros(shape),
        jnp.zeros(shape, jnp.int32),
        None,
    )


def _find_opponents(environment: Environment, env_state: State) -> jax.Array | None:
    """Return a mask of the agents that opponents play, bool `[E, A]`, or None without opponents."""
    if not has_opponents(environment):
        return None
    return jax.vmap(environment.opponent_agents)(env_state)


def init_actor(environment: Environment, key: jax.Array, num_envs: int, carry: Carry) -> ActorState:
    """Reset E environments and create the reset pool for automatic restarts.

    For simulators on the host, observations are zeros until the first recorded step.

    Args:
        environment: Environment to step.
        key: Random key.
        num_envs: Number of environments E.
        carry: Initial memory of the policy in one environment.

    Returns:
        The actor state, with a reset pool unless the environment is a simulator on the host.
    """
    if is_on_host(environment):
        zeros = make_zeros(environment.observation_space, environment.num_agents)
        obs = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_envs, *x.shape)), zeros)
        actor = make_actor(environment, (), obs, carry)
        return actor._replace(reset=jnp.ones_like(actor.episode_length, bool))
    (env_state, obs), pool = init_reset_pool(environment, key, num_envs)
    info = _make_logged_info_reduction(environment).start(num_envs)
    actor = make_actor(environment, env_state, obs, carry)
    return actor._replace(reset_pool=pool, episode_info=info)


def _make_logged_info_reduction(environment: Environment) -> InfoReduction:
    return make_info_reduction(environment, max_elements=MAX_LOGGED_ELEMENTS)


def split_step_keys(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Split keys `[E]` into keys for policies and keys for environments, `[E]` each.

    The result is the same as `jax.random.split` of each key. The keys are computed along a single
    axis, because XLA takes three to four times longer to compile threefry with three axes on CPUs.
    """
    both_keys = jax.vmap(jax.random.fold_in)(
        _repeat_keys(keys, 2), jnp.repeat(jnp.arange(2), keys.shape[0])
    )
    return both_keys[: keys.shape[0]], both_keys[keys.shape[0] :]


def _repeat_keys(keys: jax.Array, times: int) -> jax.Array:
    """Concatenate `times` copies of the keys `[E]`, giving `[times * E]`."""
    return jnp.broadcast_to(keys, (times, *keys.shape)).reshape(-1)


def step(
    environment: Environment, policy: PolicyFn, actor: ActorState, keys: tuple[jax.Array, jax.Array]
) -> tuple[ActorState, Experience, Transition]:
    """Step all environments without restarts.

    Args:
        environment: Environment to step.
        policy: Policy that acts.
        actor: Actor state before the step.
        keys: Random keys of the policy and of the environment, `[E]` each, as returned by
            `split_step_keys`.

    Returns:
        The next actor state, the experience with leading axes `[E]` or `[E, A]`, and the
        transition that the environments returned.
    """
    act_keys, env_keys = keys
    with profile_scope("policy"):
        carry, action, extras = jax.vmap(policy)(actor.carry, actor.obs, actor.reset, act_keys)
    with profile_scope("environment"):
        after = jax.vmap(trace_once(environment, "step"))(env_keys, actor.env_state, action)
    mask = None if actor.agent_done is None else ~actor.agent_done
    reward = after.reward if mask is None else jnp.where(mask, after.reward, 0.0)
    done = (
        None if actor.agent_done is None else actor.agent_done | after.terminated | after.truncated
    )
    reset = _broadcast_to_agents(actor.reset, reward)
    acted = actor.obs, reset, actor.carry, action, extras
    acts = find_acting_agents(environment, actor.obs)
    experience = Experience(
        *acted, reward, after.terminated, after.truncated, after.obs, mask, acts
    )
    totals = actor.episode_return + reward, actor.episode_length + (1 if mask is None else mask)
    next_actor = ActorState(
        after.state,
        after.obs,
        jnp.zeros_like(actor.reset),
        carry,
        done,
        *totals,
        actor.reset_pool,
        actor.episode_info,
    )
    return next_actor, experience, after


def _broadcast_to_agents(values: jax.Array, rewards: jax.Array) -> jax.Array:
    """Broadcast one value per environment, `[E]`, to the shape of `rewards`, `[E]` or `[E, A]`."""
    return jnp.broadcast_to(values.reshape(-1, *(1,) * (rewards.ndim - 1)), rewards.shape)


def has_episode_ended(environment: Environment, after: Transition) -> jax.Array:
    """Return whether each episode has ended for all of its agents, bool `[E]`."""
    ended = after.terminated | after.truncated
    return ended if environment.num_agents is None else jnp.all(ended, axis=-1)


@profile_scope("restarts")
def restart_ended_episodes(
    environment: Environment, actor: ActorState, ended: jax.Array
) -> ActorState:
    """Start the next episode in each environment where `ended` is true.

    Args:
        environment: Environment to step.
        actor: Actor state with a reset pool.
        ended: Whether the episode has ended, bool `[E]`.

    Returns:
        The actor state after the restarts.
    """
    assert actor.reset_pool is not None
    pool = refill_reset_pool(environment, actor.reset_pool, ended)
    env_state, obs = tree.where(ended, pool.pooled_reset, (actor.env_state, actor.obs))
    totals = actor.agent_done, actor.episode_return, actor.episode_length, actor.episode_info
    done, total, length, info = tree.where(ended, jax.tree.map(jnp.zeros_like, totals), totals)
    is_opponent = _find_opponents(environment, env_state)
    if is_opponent is not None:
        done = done | is_opponent
    pool = pool._replace(episode=pool.episode + ended)
    return ActorState(env_state, obs, ended, actor.carry, done, total, length, pool, info)


def unroll(
    environment: Environment, policy: PolicyFn, actor: ActorState, key: jax.Array, num_steps: int
) -> Rollout:
    """Step all streams T times with automatic restarts.

    Args:
        environment: Environment to step.
        policy: Policy that acts.
        actor: Actor state.
        key: Random key.
        num_steps: Number of steps T.

    Returns:
        The rollout.
    """

    info_reduction = _make_logged_info_reduction(environment)

    def body(
        actor: ActorState, key_data: tuple[jax.Array, jax.Array]
    ) -> tuple[ActorState, tuple[Experience, EpisodeSums]]:
        impl = jax.random.key_impl(key)
        act_keys, env_keys = (jax.random.wrap_key_data(data, impl=impl) for data in key_data)
        actor, experience, after = step(environment, policy, actor, (act_keys, env_keys))
        ended = has_episode_ended(environment, after)
        actor, info_sums = _add_info(info_reduction, actor, after.info, ended)
        is_counted = _broadcast_to_agents(ended, actor.episode_return)
        is_opponent = _find_opponents(environment, actor.env_state)
        if is_opponent is not None:
            is_counted = is_counted & ~is_opponent
        sums = sum_ended_episodes(actor.episode_return, actor.episode_length, is_counted)._replace(
            info=info_sums
        )
        experience = experience._replace(carry=memory_windows.newest_entries(experience.carry))
        return restart_ended_episodes(environment, actor, ended), (
            flatten_streams(environment, experience),
            sums,
        )

    def run(
        actor: ActorState, keys: jax.Array
    ) -> tuple[ActorState, tuple[Experience, EpisodeSums]]:
        return jax.lax.scan(body, actor, _split_rollout_keys(keys, num_steps))

    first_carry = flatten_streams(environment, actor.carry)
    actor, (experience, sums) = tree.shard_map_over_devices(
        run, in_axes=(0, 0), out_axes=(0, (1, 1))
    )(actor, jax.random.split(key, actor.reset.shape[0]))
    carry = memory_windows.join_entries(first_carry, experience.carry)
    return Rollout(actor, experience._replace(carry=carry), total_sums(environment, sums))


@profile_scope("bookkeeping")
def _add_info(
    reduction: InfoReduction, actor: ActorState, info: dict[str, PyTree], ended: jax.Array
) -> tuple[ActorState, dict[str, tuple[jax.Array, jax.Array]]]:
    """Add the `info` of a step to the running episodes, and return the sums of ended episodes."""
    accumulators = reduction.add(actor.episode_info, info, jnp.ones_like(ended))
    # An episode is as long as that of the agent that ends last.
    length = actor.episode_length.reshape(ended.shape[0], -1).max(axis=1)
    sums = sum_ended_info(reduction.finish(accumulators, length), ended)
    return actor._replace(episode_info=accumulators), sums


def _split_rollout_keys(keys: jax.Array, num_steps: int) -> tuple[jax.Array, jax.Array]:
    """Return the data of the keys of all steps for policies and environments, `[T, E, ...]` each.

    Keys are per environment, so that the results of a device do not depend on other devices. All
    keys are computed at once, because on CPUs threefry is a loop of many small operations,
    independent of the number of keys. The result is key data instead of keys, because JAX's key
    reuse checker counts keys that are passed to a scan as used.

    Args:
        keys: Keys of the rollout, `[E]`.
        num_steps: Number of steps T.
    """
    time = jnp.repeat(jnp.arange(num_steps), keys.shape[0])
    of_steps = split_step_keys(make_step_keys(_repeat_keys(keys, num_steps), time))
    return jax.tree.map(
        lambda x: x.reshape(num_steps, -1, *x.shape[1:]),
        jax.tree.map(jax.random.key_data, of_steps),
    )


def make_step_keys(keys: jax.Array, time: jax.Array) -> jax.Array:
    """Derive the keys of a step from the keys `[E]` of the rollout.

    Args:
        keys: Keys of the rollout, `[E]`.
        time: Index of the step, int32 `[]`, or `[E]` for one index per key.

    Returns:
        The keys, `[E]`.
    """
    return jax.vmap(jax.random.fold_in)(keys, jnp.broadcast_to(time, keys.shape))


def flatten_streams(environment: Environment, values: PyTree) -> Any:
    """Join the environment axis and the agent axis of all leaves to one stream axis.

    Args:
        environment: Environment, which determines whether there is an agent axis.
        values: Pytree with leaves `[E, A, ...]`, or `[E, ...]` without an agent axis.

    Returns:
        Pytree with leaves `[E * A, ...]`, or `values` without an agent axis.
    """
    if environment.num_agents is None:
        return values
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), values)


def reseed(state: State, key: jax.Array) -> Any:
    """Return an algorithm's state with new random keys and an empty reset pool.

    The precomputed resets in the pool are discarded, because they were computed with the old keys.
    """
    return discard_pooled_resets(reseed_keys(state, key))
