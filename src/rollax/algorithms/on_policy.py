"""Update of on-policy algorithms, which acts for T steps and then learns from the rollout.

PPO, PPO with RND, IMPALA and PQN provide a `learn` function. This module implements acting and the
update around it. If agents do not share all parameters, `learn` runs once for each set of
parameters, on the streams of the agents that use these parameters.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import optax

from rollax import tree
from rollax.acting import held_noise, parameter_sharing
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
from rollax.algorithm import Algorithm, FiniteChecks, Metrics, make_placement
from rollax.environments.environment import Environment
from rollax.learning import losses, minibatches, train_state
from rollax.learning.optimizers import ScheduledOptimizerConfig, rate_metric
from rollax.learning.returns import AdvantageEstimates
from rollax.learning.train_state import TrainState
from rollax.networks.network import Network
from rollax.types import Action, Carry, Flag, Observation, PyTree, Scalar, Settings

OptimizersFn: TypeAlias = Callable[[Settings, float], dict[str, optax.GradientTransformation]]
"""Function `(config, progress)` that returns optimizers, keyed by "actor" and "critic"."""
LayoutFn: TypeAlias = Callable[[Settings, int], minibatches.MinibatchLayout | None]
"""Function `(config, num_streams)` that returns the layout of minibatches, or None."""
SamplerFn: TypeAlias = Callable[..., tuple[Carry, Action, PyTree]]
"""Function `(train, carry, obs, reset, key)` that returns carry, action and extras in training."""


@runtime_checkable
class OnPolicyConfig(Protocol):
    """Settings that all on-policy algorithms share."""

    @property
    def num_envs(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def sharing(self) -> parameter_sharing.Sharing: ...
    @property
    def total_updates(self) -> Scalar: ...


class OnPolicyState(NamedTuple):
    """Training state: all arrays that change between updates.

    Attributes:
        key: Random key of the next update.
        config: Settings of the algorithm. Traced settings are arrays.
        train: Parameters, optimizer states and statistics, a `TrainState`. If agents do not share
            all parameters, a dictionary from group name to `TrainState`.
        actor: Running environments and memory of the policy.
        discounted_return: Discounted return of each running episode, float `[S]`, for the
            normalization of rewards.
        updates: Number of completed updates, int32 `[]`.
    """

    key: jax.Array
    config: Settings
    train: PyTree
    actor: ActorState
    discounted_return: PyTree
    updates: jax.Array


class UpdateKeys(NamedTuple):
    """Random keys of one update.

    Attributes:
        next: Key of the next state.
        act: Key for acting.
        learn: Key for learning.
    """

    next: jax.Array
    act: jax.Array
    learn: jax.Array


class RolloutEnd(NamedTuple):
    """Values around a rollout that `learn` needs, in the streams of one set of parameters.

    Attributes:
        carry: Memory of the policy after the last step.
        obs: Observation with which the next rollout starts.
        agent_done: Whether the agent has terminated or been truncated while the episode of its
            environment continues, bool `[S]`, or None for a single agent.
        discounted_return: Discounted return of each running episode at the start of the rollout,
            float `[S]`. Reward normalization adds the rewards of the rollout to it.
    """

    carry: Carry
    obs: Observation
    agent_done: jax.Array | None
    discounted_return: PyTree


class LearnResult(NamedTuple):
    """Result of learning from a rollout with one set of parameters.

    Attributes:
        train: The updated `TrainState`.
        discounted_return: Discounted return of each running episode after the rollout, `[S]`.
        metrics: Scalar metrics, keyed by name.
        finite: Whether the arrays of the update are finite.
    """

    train: PyTree
    discounted_return: PyTree
    metrics: dict[str, jax.Array]
    finite: FiniteChecks


@runtime_checkable
class LearnFn(Protocol):
    """Function that learns from a rollout `[T, S]` with one set of parameters.

    `progress` is the completed fraction of training, from 0 to 1. The streams `[T, S]` are those of
    the agents that use these parameters.
    """

    def __call__(
        self,
        config: Settings,
        progress: jax.Array,
        train: PyTree,
        rollout: Experience,
        end: RolloutEnd,
        key: jax.Array,
        /,
    ) -> LearnResult: ...


def split_keys(key: jax.Array) -> UpdateKeys:
    """Split the key of a state into the keys of one update."""
    return UpdateKeys(*jax.random.split(key, 3))


def step(
    environment: Environment,
    training_policy: Callable[[OnPolicyState], PolicyFn],
    learn: LearnFn,
    state: OnPolicyState,
) -> tuple[OnPolicyState, Metrics]:
    """Perform one update, which acts for T steps in every environment and then learns.

    Args:
        environment: Environment to train in.
        training_policy: Function from the state to the policy that acts in training.
        learn: Function that learns from the rollout with one set of parameters.
        state: State before the update.

    Returns:
        The state after the update and its metrics.
    """
    keys = split_keys(state.key)
    policy = training_policy(state)
    rollout = unroll(environment, policy, state.actor, keys.act, state.config.num_steps)
    return learn_by_group(environment, learn, state, keys, rollout)


def learn_by_group(
    environment: Environment,
    learn: LearnFn,
    state: OnPolicyState,
    keys: UpdateKeys,
    rollout: Rollout,
) -> tuple[OnPolicyState, Metrics]:
    """Update each set of parameters from the streams of the agents that use it.

    Args:
        environment: Environment to train in.
        learn: Function that learns from the rollout with one set of parameters.
        state: State before the update.
        keys: Random keys of the update.
        rollout: Rollout of all streams.

    Returns:
        The state after the update and its metrics.
    """
    config, actor = state.config, rollout.actor
    rollout = held_noise.remove_from_rollout(rollout)
    groups = parameter_sharing.make_agent_groups(environment, config.sharing)
    end = RolloutEnd(
        carry=flatten_streams(environment, rollout.actor.carry),
        obs=flatten_streams(environment, actor.obs),
        agent_done=flatten_streams(environment, actor.agent_done),
        discounted_return=state.discounted_return,
    )
    progress = state.updates / config.total_updates
    results = parameter_sharing.map_groups(
        groups,
        functools.partial(learn, config, progress),
        state.train,
        parameter_sharing.split_groups(groups, rollout.experience, axis=1),
        parameter_sharing.split_groups(groups, end),
        parameter_sharing.split_key(groups, keys.learn),
    )
    result = parameter_sharing.collect_fields(groups, results)

    values, finite = parameter_sharing.summarize_metrics(groups, result.metrics, result.finite)
    metrics = Metrics(values, rollout.episodes, finite, reward=jnp.sum(rollout.experience.reward))
    state = state._replace(
        key=keys.next,
        train=result.train,
        actor=actor,
        discounted_return=parameter_sharing.join_groups(groups, result.discounted_return),
        updates=state.updates + 1,
    )
    return state, metrics


def finish_update(
    config: ScheduledOptimizerConfig,
    progress: jax.Array,
    train: TrainState,
    rollout: Experience,
    estimates: AdvantageEstimates,
    discounted_return: jax.Array,
    metrics: dict[str, jax.Array],
    prediction: jax.Array | None = None,
) -> LearnResult:
    """Update the observation statistics after learning, and add the common metrics.

    Args:
        config: Settings with the learning rate and its schedule.
        progress: Completed fraction of training, from 0 to 1.
        train: Train state after the gradient steps.
        rollout: The rollout `[T, S]`.
        estimates: Advantages and value targets of the rollout, `[T, S]` each.
        discounted_return: Discounted return of each running episode after the rollout, `[S]`.
        metrics: Metrics of the gradient steps, keyed by name, including "loss".
        prediction: Prediction of the targets, `[T, S]`. None uses the values in the rollout's
            extras.

    Returns:
        The result of `learn`. The added metrics are those of `losses.summarize_update` and the
        learning rate.
    """
    train = train_state.update_observation_statistics(train, rollout)
    parameters = (train.network, train.observations)
    more, finite = losses.summarize_update(
        rollout, estimates.advantage, estimates.target, metrics["loss"], parameters, prediction
    )
    rate = train_state.current_rate(train, config, progress)
    values = metrics | more | rate_metric(config, rate)
    return LearnResult(train, discounted_return, values, finite)


def on_policy(
    environment: Environment,
    network: Callable[[jax.Array], Network],
    learn: LearnFn,
    *,
    make_optimizers: OptimizersFn = train_state.make_optimizers,
    make_train: Callable[..., TrainState] = train_state.init_actor_critic,
    make_layout: LayoutFn = lambda config, num_streams: None,
    make_sampler: Callable[[Settings, jax.Array], SamplerFn] = lambda config, progress: (
        train_state.sample_action_with_extras
    ),
    choose: Callable[..., tuple[Carry, Action]] = train_state.select_action,
) -> Algorithm:
    """Build an on-policy algorithm from its `learn` function.

    Args:
        environment: Environment to train in.
        network: Function from a random key to a network.
        learn: Function that learns from a rollout with one set of parameters.
        make_optimizers: Function `(config, progress)` that returns a dictionary of optimizers with
            the keys "actor" and, for networks with a separate critic, "critic".
        make_train: Function `(network, optimizers, obs, config)` that returns the initial
            `TrainState`.
        make_layout: Function `(config, num_streams)` that returns the layout of minibatches. It
            raises a `ValueError` if a rollout cannot be divided evenly. `init` calls it as a check.
        make_sampler: Function `(config, progress)` that returns the policy for training, a function
            `(train, carry, obs, reset, key)`. This function returns the memory, the action and the
            extras that `learn` needs.
        choose: Policy for evaluation, a function `(config, greedy, train, carry, obs, key)` that
            returns the memory and the action.

    Returns:
        The algorithm. Its config must have the settings `num_envs`, `num_steps`, `sharing`,
        `normalize_observations`, `normalize_rewards` and `total_updates`.
    """
    init = functools.partial(
        init_state, environment, network, make_optimizers, make_train, make_layout
    )

    def agent_groups(state: OnPolicyState) -> parameter_sharing.AgentGroups:
        return parameter_sharing.make_agent_groups(environment, state.config.sharing)

    def training_policy(state: OnPolicyState) -> PolicyFn:
        sampler = make_sampler(state.config, state.updates / state.config.total_updates)
        sampler = held_noise.add_to_sampler(sampler, state.config, state.actor.carry)
        return parameter_sharing.make_policy(agent_groups(state), sampler, state.train)

    def act(
        state: OnPolicyState, obs: Observation, carry: Carry, key: jax.Array, greedy: Flag
    ) -> tuple[Action, Carry]:
        groups = agent_groups(state)
        choose_action = functools.partial(choose, state.config, jnp.asarray(greedy))
        return parameter_sharing.act_agents(groups, choose_action, state.train, obs, carry, key)

    def initial_carry(state: OnPolicyState) -> Carry:
        return parameter_sharing.initial_carry(
            agent_groups(state), lambda train: train.network.initial_carry(), state.train
        )

    def rollouts(state: OnPolicyState) -> RolloutArguments:
        key = split_keys(state.key).act
        return RolloutArguments(training_policy(state), state.actor, key, state.config.num_steps)

    def learn_from_rollout(state: OnPolicyState, rollout: Rollout) -> tuple[OnPolicyState, Metrics]:
        return learn_by_group(environment, learn, state, split_keys(state.key), rollout)

    return Algorithm(
        init=init,
        step=functools.partial(step, environment, training_policy, learn),
        act=act,
        initial_carry=initial_carry,
        acting_state=lambda state: state._replace(actor=None),
        reseed=reseed,
        rollouts=rollouts,
        learn=learn_from_rollout,
        placement=make_placement(("actor", "discounted_return"), {}),
        parts=lambda state: train_state.select_parts(state.train),
    )


def init_state(
    environment: Environment,
    make_network: Callable[[jax.Array], Network],
    make_optimizers: OptimizersFn,
    make_train: Callable[..., TrainState],
    make_layout: LayoutFn,
    key: jax.Array,
    config: OnPolicyConfig,
) -> OnPolicyState:
    """Return the state before the first update.

    Args:
        environment: Environment to train in.
        make_network: Function from a random key to a network.
        make_optimizers: Function `(config, progress)` that returns a dictionary of optimizers.
        make_train: Function `(network, optimizers, obs, config)` that returns the initial
            `TrainState`.
        make_layout: Function `(config, num_streams)` that raises a `ValueError` if a rollout cannot
            be divided evenly.
        key: Random key.
        config: Settings of the algorithm.

    Returns:
        The state.

    Raises:
        ValueError: If `make_layout` raises it.
    """
    config = tree.to_arrays(config)
    groups = parameter_sharing.make_agent_groups(environment, config.sharing)
    for size in parameter_sharing.num_group_streams(groups, config.num_envs):
        make_layout(config, size)
    key, network_key, actor_key = jax.random.split(key, 3)
    optimizers = make_optimizers(config, 0.0)
    networks = parameter_sharing.init_groups(groups, make_network, network_key)
    carry = parameter_sharing.initial_carry(
        groups, lambda each: held_noise.add_to_carry(each, each.initial_carry()), networks
    )
    actor = init_actor(environment, actor_key, config.num_envs, carry)

    def init_train(network: Network, obs: Observation) -> TrainState:
        first_obs = jax.tree.map(lambda x: x[0], obs)
        return make_train(network, optimizers, first_obs, config)

    obs = jax.tree.map(lambda x: x[: groups.num_agents], flatten_streams(environment, actor.obs))
    train = parameter_sharing.map_groups(
        groups, init_train, networks, parameter_sharing.split_groups(groups, obs)
    )
    discounted_return = jnp.zeros(config.num_envs * groups.num_agents)
    return OnPolicyState(key, config, train, actor, discounted_return, jnp.zeros((), jnp.int32))
