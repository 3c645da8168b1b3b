"""Deep Q-learning with replay (Mnih et al. 2015, Nature 518): the update of DQN and its variants.

`dqn`, `c51`, `qr_dqn`, `iqn` and `rainbow` provide `QLearningFns`: the values of actions, the
targets and the loss. This module implements the gradient step, the target network, exploration and
evaluation. Every `target_update_period` gradient steps, the target network moves toward the online
network by a fraction `tau`, and is copied if `tau` is 1. Actions that an "action_mask" forbids are
neither taken nor used in targets. Networks with learned noise (`noisy_layers`) sample it separately
for each action and for each network of a gradient step. Greedy evaluation uses their mean weights.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rollax.acting.exploration import epsilon_schedule
from rollax.acting.streams import Rollout
from rollax.algorithm import Algorithm, Metrics
from rollax.algorithms.off_policy import OffPolicyState, off_policy
from rollax.algorithms.replay_updates import AgentFns, start_with_demonstrations
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.environments.environment import Environment
from rollax.learning.optimizers import make_optimizer
from rollax.learning.train_state import apply_gradients
from rollax.networks.action_values.noisy_layers import has_noise, sample_noise
from rollax.networks.action_values.q_networks import EpsilonGreedy, mask_illegal_values
from rollax.replay.demonstrations import Demonstrations
from rollax.replay.prioritized import make_prioritized_replay, reweight_priorities
from rollax.replay.replay_config import ReplayConfig
from rollax.replay.ring import ReplayBatch, ReplayBuffer, make_uniform_replay
from rollax.types import Carry, Flag, Observation, Parameters, Scalar, State


@settings_dataclass
class QLearningConfig(ReplayConfig):
    """Settings of deep Q-learning.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    num_envs: int = static_field(8)
    """(static) Number of parallel environments."""
    num_steps: int = static_field(64)
    """(static) Steps of each environment per update."""
    capacity: int = static_field(100_000)
    """(static) Capacity of the replay buffer in steps, over all environments."""
    batch_size: int = static_field(64)
    """(static) Samples per gradient step."""
    replay_ratio: float = static_field(0.25, low=0)
    """(static) Gradient steps per environment step."""
    n_step: int = static_field(1)
    """(static) Number of rewards in a target before it bootstraps."""
    double: bool = static_field(True)
    """(static) Select the action of the target with the online network and evaluate it with the
    target network.
    """
    prioritized: bool = static_field(False)
    """(static) Sample steps in proportion to their TD errors."""
    priority_exponent: float = traced_field(0.6, low=0)
    """Exponent of the priorities (alpha). 0 samples uniformly."""
    importance_exponent: float = traced_field(0.4, 0, 1)
    """Exponent of the importance weights at the start (beta). It increases to 1 at the end of
    training.
    """
    priority_epsilon: float = traced_field(1e-3, low=0)
    """Constant added to absolute TD errors so that all priorities are positive."""
    epsilon: float = traced_field(1.0, 0, 1)
    """Probability of a random action at the start."""
    epsilon_final_fraction: float = traced_field(0.05, 0, 1)
    """Final epsilon, as a fraction of 1, reached linearly after exploration_fraction of
    training."""
    exploration_fraction: float = traced_field(0.2, 0, 1)
    """Fraction of training over which epsilon decreases."""
    learning_rate: float = traced_field(5e-4, low=0)
    """Learning rate (Adam)."""
    target_update_period: float = traced_field(1.0, low=1)
    """Gradient steps between updates of the target network."""
    tau: float = traced_field(0.01, 0, 1)
    """Step size of the target network toward the online network; 1 copies it."""
    max_grad_norm: float = traced_field(10.0, low=0, high=float("inf"))
    """Maximum global norm of gradients."""


class QLearningAgent(NamedTuple):
    """Networks and optimizer state of deep Q-learning.

    Attributes:
        network: Online network.
        target: Target network.
        optimizer: Optimizer state.
        steps: Number of gradient steps, int32 `[]`.
    """

    network: Parameters
    target: Parameters
    optimizer: State
    steps: jax.Array


class QLearningFns(NamedTuple):
    """Pure functions that distinguish the variants of deep Q-learning.

    Attributes:
        values: Function `(network, config, obs)` that returns the values of all actions `[n]`.
        targets: Function `(network, target_network, config, batch, key)` that returns the targets
            of a batch of B transitions, `[B, ...]`.
        loss: Function `(network, config, batch, targets, key)` that returns the loss and its
            metrics, keyed by name, including the priorities "td_error" `[B]`.
    """

    values: Callable[[Parameters, Any, Observation], jax.Array]
    targets: Callable[[Parameters, Parameters, Any, ReplayBatch, jax.Array], jax.Array]
    loss: Callable[
        [Parameters, Any, ReplayBatch, jax.Array, jax.Array],
        tuple[jax.Array, dict[str, jax.Array]],
    ]


def q_learning(
    environment: Environment,
    network: Callable[[jax.Array], Parameters],
    fns: QLearningFns,
    demonstrations: Demonstrations | None = None,
) -> Algorithm:
    """Build a variant of deep Q-learning.

    Args:
        environment: Environment with a `Discrete` action space.
        network: Function from a random key to the online network.
        fns: Functions of the variant.
        demonstrations: Demonstrations that fill the replay buffer at the start, or None.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if sizes in the config are inconsistent.

    Raises:
        UsageError: If the demonstrations do not fit the environment.
    """
    agent_fns = AgentFns(
        lambda key, config: init_agent(network(key), config),
        functools.partial(explore, fns),
        functools.partial(act, fns),
        functools.partial(update, fns),
    )

    def make_buffer(config: QLearningConfig) -> ReplayBuffer:
        return (make_prioritized_replay if config.prioritized else make_uniform_replay)(
            config.n_step
        )

    start_buffer = start_with_demonstrations(environment, make_buffer, demonstrations)
    algorithm = off_policy(environment, agent_fns, start_buffer)

    def with_config(state: OffPolicyState, config: QLearningConfig) -> OffPolicyState:
        if not config.prioritized:
            return state._replace(config=config)
        is_same = config.priority_exponent == state.config.priority_exponent

        def reweight(replay):
            return reweight_priorities(replay, config.priority_exponent)

        replay = jax.lax.cond(is_same, lambda replay: replay, reweight, state.replay)
        return state._replace(config=config, replay=replay)

    def add_epsilon(update: Callable[..., tuple[OffPolicyState, Metrics]]) -> Callable[..., Any]:
        def with_epsilon(state: OffPolicyState, *rollout: Rollout) -> tuple[Any, Metrics]:
            epsilon = epsilon_schedule(state.config, state.updates / state.config.total_updates)
            state, metrics = update(state, *rollout)
            return state, metrics._replace(values=metrics.values | {"epsilon": epsilon})

        return with_epsilon

    assert algorithm.learn is not None
    return algorithm._replace(
        step=add_epsilon(algorithm.step),
        learn=add_epsilon(algorithm.learn),
        with_config=with_config,
    )


def init_agent(network: Parameters, config: QLearningConfig) -> QLearningAgent:
    return QLearningAgent(
        network,
        jax.tree.map(jnp.copy, network),
        make_optimizer(config, config.learning_rate, 0.0).init(network),
        jnp.zeros((), jnp.int32),
    )


def update(
    fns: QLearningFns,
    agent: QLearningAgent,
    config: QLearningConfig,
    batch: ReplayBatch,
    key: jax.Array,
    progress: Scalar = 0.0,
) -> tuple[QLearningAgent, dict[str, jax.Array]]:
    """Perform one gradient step, and update the target network if it is due.

    Args:
        fns: Functions of the variant.
        agent: Networks and optimizer state.
        config: Settings of the algorithm.
        batch: Batch of B transitions.
        key: Random key of the samples of targets, of losses and of learned noise.
        progress: Completed fraction of training, from 0 to 1, which ends `frozen_fraction`.

    Returns:
        The updated agent, and the metrics of the loss, including "td_error" `[B]`.
    """
    target_key, loss_key, *noise_keys = jax.random.split(key, 5)
    network, target_network = (
        add_noise(network, noise_key)
        for network, noise_key in zip((agent.network, agent.target), noise_keys, strict=False)
    )
    targets = fns.targets(network, target_network, config, batch, target_key)

    def with_noise(network: Parameters) -> tuple[jax.Array, dict[str, jax.Array]]:
        return fns.loss(add_noise(network, noise_keys[2]), config, batch, targets, loss_key)

    gradient, metrics = jax.grad(with_noise, has_aux=True)(agent.network)
    optimizer = make_optimizer(config, config.learning_rate, progress)
    network, state = apply_gradients(optimizer, agent.optimizer, agent.network, gradient)
    steps = agent.steps + 1
    is_due = steps % jnp.round(config.target_update_period).astype(jnp.int32) == 0
    target_network = optax.incremental_update(
        network, agent.target, jnp.where(is_due, config.tau, 0.0)
    )
    return QLearningAgent(network, target_network, state, steps), metrics


def add_noise(network: Parameters, key: jax.Array) -> Parameters:
    """Return the network with a sample of its noisy weights, or unchanged if it has none."""
    return sample_noise(network, key) if has_noise(network) else network


def explore(
    fns: QLearningFns,
    agent: QLearningAgent,
    config: QLearningConfig,
    obs: Observation,
    carry: Carry,
    noise: jax.Array | None,
    key: jax.Array,
    progress: jax.Array,
) -> tuple[jax.Array, Carry]:
    """Return an epsilon-greedy action with the epsilon at `progress`, and the unchanged carry."""
    return _sample_action(fns, agent, config, obs, key, progress), carry


def act(
    fns: QLearningFns,
    agent: QLearningAgent,
    config: QLearningConfig,
    obs: Observation,
    carry: Carry,
    key: jax.Array,
    greedy: Flag,
) -> tuple[jax.Array, Carry]:
    """Return the action for evaluation and the unchanged carry.

    The action is the best action of the mean weights if `greedy` is true. Otherwise it is the
    action of training with the final epsilon.
    """
    best = jnp.argmax(mask_illegal_values(fns.values(agent.network, config, obs), obs))
    sampled = _sample_action(fns, agent, config, obs, key, jnp.ones(()))
    return jnp.where(jnp.asarray(greedy), best.astype(jnp.int32), sampled), carry


def _sample_action(
    fns: QLearningFns,
    agent: QLearningAgent,
    config: QLearningConfig,
    obs: Observation,
    key: jax.Array,
    progress: jax.Array,
) -> jax.Array:
    network = agent.network
    if has_noise(network):
        noise_key, key = jax.random.split(key)
        network = sample_noise(network, noise_key)
    values = mask_illegal_values(fns.values(network, config, obs), obs)
    return EpsilonGreedy(values, epsilon_schedule(config, progress)).sample(key)
