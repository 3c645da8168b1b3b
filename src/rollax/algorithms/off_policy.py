"""Update of off-policy algorithms, which acts, stores transitions and learns from replay.

TD3, SAC and DQN provide an `AgentFns`, and this module implements acting, replay and the update. A
cycle consists of c steps of every environment followed by g gradient steps, where c and g are the
smallest integers with g / (c num_envs) = `replay_ratio`. One update consists of `num_steps / c`
cycles. Actions are random during the first `warmup` frames, and learning starts after max(`warmup`,
`learning_starts`) frames.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting import held_noise, parameter_sharing
from rollax.acting.exploration import (
    ExplorationState,
    denormalize_action,
    init_exploration,
    random_action,
    sample_noise,
)
from rollax.acting.streams import (
    ActorState,
    Experience,
    PolicyFn,
    Rollout,
    RolloutArguments,
    flatten_streams,
    init_actor,
    reseed,
    unroll,
)
from rollax.algorithm import (
    Algorithm,
    EpisodeSums,
    Metrics,
    make_placement,
    uniform_placement,
)
from rollax.algorithms.replay_updates import (
    AgentFns,
    add_to_replay,
    anneal_learning_rates,
    example_step,
    learning_rate_metric,
    select_parts,
    summarize_metrics,
    update_from_replay,
    update_observation_statistics,
    with_normalized_observations,
)
from rollax.environments.capabilities import is_on_host
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.learning import normalization
from rollax.learning.freezing import check_frozen_parts
from rollax.replay.replay_config import ReplayConfig, compute_replay_cycle
from rollax.replay.ring import ReplayBuffer, ReplayState
from rollax.types import Action, Carry, Flag, Observation, Settings, State

PlayFn: TypeAlias = Callable[[RolloutArguments], Rollout]
"""Function that returns the rollout of a cycle: unrolled here, or recorded in host simulators."""


class OffPolicyState(NamedTuple):
    """Training state: all arrays that change between updates.

    Attributes:
        key: Random key of the next update.
        config: Settings of the algorithm. Traced settings are arrays.
        agent: Agent, as returned by `AgentFns.init`.
        observations: Observation statistics, or None if observations are not normalized.
        actor: Running environments and exploration states.
        replay: State of the replay buffer.
        updates: Number of completed updates, int32 `[]`.
    """

    key: jax.Array
    config: Settings
    agent: State
    observations: normalization.Moments | None
    actor: ActorState
    replay: State
    updates: jax.Array


class CycleState(NamedTuple):
    """Fields of `OffPolicyState` that change in each cycle of acting and learning.

    Attributes:
        agent: Agent, as returned by `AgentFns.init`.
        actor: Running environments and exploration states.
        replay: State of the replay buffer.
    """

    agent: State
    actor: ActorState
    replay: State


class CycleResult(NamedTuple):
    """Experience and metrics of one cycle of c steps and g gradient steps.

    Attributes:
        experience: Experience `[c, S, ...]`.
        episodes: Sums over the episodes that ended during the cycle.
        metrics: Metrics of the gradient steps, keyed by name, `[g]` each.
    """

    experience: Experience
    episodes: EpisodeSums
    metrics: dict[str, jax.Array]


def init_state(
    environment: Environment,
    agent_fns: AgentFns,
    buffer: Callable[[Settings], ReplayBuffer],
    key: jax.Array,
    config: ReplayConfig,
) -> OffPolicyState:
    """Return the state before the first update.

    Args:
        environment: Environment to train in.
        agent_fns: Functions of the agent.
        buffer: Function from the config to the replay buffer.
        key: Random key.
        config: Settings of the algorithm.

    Returns:
        The state, with an empty replay buffer.

    Raises:
        UsageError: If the sizes in the config are inconsistent, if `config.frozen` contains an
            unknown part or all parameters, or if the environment is a simulator on the host and an
            update has more than one cycle.
    """
    groups = parameter_sharing.make_agent_groups(environment, "all")
    num_steps, _ = compute_replay_cycle(config)
    if is_on_host(environment) and config.num_steps != num_steps:
        raise UsageError(
            f"num_steps must be {num_steps} in {environment.name}, got {config.num_steps}. Host "
            f"environments run one cycle of acting and learning per update. Set num_steps to "
            f"{num_steps}."
        )
    config = tree.to_arrays(config)
    state_key, agent_key, stream_key, noise_key = jax.random.split(key, 4)
    agent = agent_fns.init(agent_key, config)
    check_frozen_parts(config.frozen, agent.network)
    carry = parameter_sharing.initial_carry(groups, agent_fns.initial_carry, agent)
    actor = init_actor(environment, stream_key, config.num_envs, carry)
    shape = actor.episode_return.shape
    exploring = init_exploration(environment.action_space, noise_key, shape, actor.carry)
    exploring = exploring._replace(held=held_noise.init_held_noise(agent.network, shape))
    obs, memory = jax.tree.map(
        lambda x: x[0], flatten_streams(environment, (actor.obs, actor.carry))
    )
    example = example_step(environment, obs, memory)
    replay = buffer(config).init(example, config.num_envs * groups.num_agents, config)
    observations = normalization.init_moments(obs) if config.normalize_observations else None
    return OffPolicyState(
        key=state_key,
        config=config,
        agent=agent,
        observations=observations,
        actor=actor._replace(carry=exploring),
        replay=replay,
        updates=jnp.zeros((), jnp.int32),
    )


def run_cycle(
    environment: Environment,
    agent_fns: AgentFns,
    buffer: ReplayBuffer,
    play: PlayFn,
    state: OffPolicyState,
    key: jax.Array,
    cycle: CycleState,
    index: jax.Array,
) -> tuple[CycleState, CycleResult]:
    """Run one cycle, which acts, stores the transitions and learns from replay.

    Args:
        environment: Environment to train in.
        agent_fns: Functions of the agent, as returned by `with_normalized_observations`.
        buffer: Replay buffer.
        play: Function that returns the rollout of the cycle.
        state: State before the update.
        key: Random key of the update.
        cycle: Agent, environments and replay buffer before the cycle.
        index: Index of the cycle in its update, int32 `[]`.

    Returns:
        The agent, environments and replay buffer after the cycle, and the result of the cycle.
    """
    config, progress = state.config, state.updates / state.config.total_updates
    num_steps, num_updates = compute_replay_cycle(config)
    act_key, learn_key = cycle_keys(key, index)
    # Act.
    policy = make_exploration_policy(environment, agent_fns, config, cycle.agent, progress)
    rollout = play(RolloutArguments(policy, cycle.actor, act_key, num_steps))
    # Store the transitions.
    replay = add_to_replay(buffer, cycle.replay, rollout.experience)
    # Learn.
    num_frames = state.updates.astype(jnp.float32) * config.steps_per_update + (index + 1) * (
        num_steps * config.num_envs
    )
    is_warm = num_frames >= jnp.maximum(config.warmup, config.learning_starts)
    annealed = anneal_learning_rates(config, progress)
    learn = functools.partial(
        update_from_replay, agent_fns, buffer, annealed, progress, is_warm, learn_key
    )
    (agent, replay), metrics = jax.lax.scan(learn, (cycle.agent, replay), jnp.arange(num_updates))
    result = CycleResult(rollout.experience, rollout.episodes, metrics)
    return CycleState(agent, rollout.actor, replay), result


def update(
    environment: Environment,
    agent_fns: AgentFns,
    buffer: ReplayBuffer,
    play: PlayFn,
    state: OffPolicyState,
) -> tuple[OffPolicyState, Metrics]:
    """Perform one update, which consists of several cycles of acting and learning.

    Args:
        environment: Environment to train in.
        agent_fns: Functions of the agent.
        buffer: Replay buffer.
        play: Function that returns the rollout of a cycle.
        state: State before the update.

    Returns:
        The state after the update and its metrics.
    """
    config, progress = state.config, state.updates / state.config.total_updates
    fns = with_normalized_observations(agent_fns, state.observations)
    key, run_key = jax.random.split(state.key)
    body = functools.partial(run_cycle, environment, fns, buffer, play, state, run_key)
    cycle = CycleState(state.agent, state.actor, state.replay)
    num_cycles = config.num_steps // compute_replay_cycle(config)[0]
    cycle, result = jax.lax.scan(body, cycle, jnp.arange(num_cycles))

    values, finite = summarize_metrics(result.experience, result.metrics, cycle.agent)
    values |= learning_rate_metric(config, progress)
    state = state._replace(
        key=key,
        observations=update_observation_statistics(state.observations, result.experience),
        updates=state.updates + 1,
        **cycle._asdict(),
    )
    episodes = jax.tree.map(jnp.sum, result.episodes)
    return state, Metrics(values, episodes, finite, jnp.sum(result.experience.reward))


def off_policy(
    environment: Environment, agent_fns: AgentFns, buffer: Callable[[Settings], ReplayBuffer]
) -> Algorithm:
    """Build an off-policy algorithm from the functions of its agent.

    Args:
        environment: Environment to train in.
        agent_fns: Functions of the agent.
        buffer: Function from the config to the replay buffer.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if sizes in the config are inconsistent.
    """
    groups = parameter_sharing.make_agent_groups(environment, "all")

    def step(state: OffPolicyState) -> tuple[OffPolicyState, Metrics]:
        def play(arguments: RolloutArguments) -> Rollout:
            return unroll(environment, *arguments)

        return update(environment, agent_fns, buffer(state.config), play, state)

    def learn(state: OffPolicyState, rollout: Rollout) -> tuple[OffPolicyState, Metrics]:
        def play(arguments: RolloutArguments) -> Rollout:
            return rollout

        return update(environment, agent_fns, buffer(state.config), play, state)

    def act(
        state: OffPolicyState, obs: Observation, carry: Carry, key: jax.Array, greedy: Flag
    ) -> tuple[Action, Carry]:
        fns = with_normalized_observations(agent_fns, state.observations)

        def choose(
            agent: State, carry: Carry, obs: Observation, key: jax.Array
        ) -> tuple[Carry, Action]:
            action, carry = fns.act(agent, state.config, obs, carry, key, greedy)
            return carry, denormalize_action(environment.action_space, action)

        return parameter_sharing.act_agents(groups, choose, state.agent, obs, carry, key)

    def initial_carry(state: OffPolicyState) -> Carry:
        return parameter_sharing.initial_carry(groups, agent_fns.initial_carry, state.agent)

    return Algorithm(
        init=functools.partial(init_state, environment, agent_fns, buffer),
        step=step,
        act=act,
        initial_carry=initial_carry,
        acting_state=lambda state: state._replace(actor=None, replay=None),
        reseed=reseed,
        rollouts=functools.partial(next_rollout_arguments, environment, agent_fns),
        learn=learn,
        placement=make_placement(("actor",), {ReplayState: uniform_placement}),
        parts=lambda state: select_parts(state.agent, state.observations, state.replay),
    )


def next_rollout_arguments(
    environment: Environment, agent_fns: AgentFns, state: OffPolicyState
) -> RolloutArguments:
    """Return the arguments of `unroll` for the first cycle of the next update.

    Args:
        environment: Environment to act in.
        agent_fns: Functions of the agent for observations that are not normalized.
        state: State before the update.
    """
    fns = with_normalized_observations(agent_fns, state.observations)
    progress = state.updates / state.config.total_updates
    policy = make_exploration_policy(environment, fns, state.config, state.agent, progress)
    act_key, _ = cycle_keys(jax.random.split(state.key)[1], 0)
    num_steps, _ = compute_replay_cycle(state.config)
    return RolloutArguments(policy, state.actor, act_key, num_steps)


def cycle_keys(key: jax.Array, index: jax.Array | int) -> jax.Array:
    """Return the key for acting and the key for learning in cycle `index` of an update."""
    return jax.random.split(jax.random.fold_in(key, index))


def make_exploration_policy(
    environment: Environment, fns: AgentFns, config: Settings, agent: State, progress: jax.Array
) -> PolicyFn:
    """Build the policy that acts in training.

    The policy takes random actions for the first `warmup` frames, and then those of `fns.explore`.
    Its carry is an `ExplorationState`. Its extra output is the normalized action, which the replay
    buffer stores.

    Args:
        environment: Environment with the action space.
        fns: Functions of the agent.
        config: Settings of the algorithm.
        agent: State of the agent.
        progress: Completed fraction of training, from 0 to 1.
    """
    space = environment.action_space

    def explore(
        agent: State, carry: ExplorationState, obs: Observation, reset: jax.Array, key: jax.Array
    ) -> tuple[ExplorationState, Action, Action]:
        noise_key, random_key, explore_key = jax.random.split(key, 3)
        noise = (
            None
            if carry.noise is None
            else sample_noise(carry.noise, noise_key, config.noise_correlation)
        )
        held, explore_key = held_noise.next_key(carry.held, reset, explore_key, config)
        memory = tree.where(reset, fns.initial_carry(agent), carry.memory)
        action, memory = fns.explore(agent, config, obs, memory, noise, explore_key, progress)
        is_random = carry.steps.astype(jnp.float32) * config.num_envs < config.warmup
        action = tree.where(is_random, random_action(space, obs, noise, random_key), action)
        exploring = ExplorationState(noise, jnp.minimum(carry.steps + 1, 2**30), memory, held)
        return exploring, denormalize_action(space, action), action

    return parameter_sharing.make_policy(
        parameter_sharing.make_agent_groups(environment, "all"), explore, agent
    )
