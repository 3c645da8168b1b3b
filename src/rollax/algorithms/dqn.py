"""Deep Q-learning (DQN) for discrete actions.

Mnih et al. 2015 (Nature 518), algorithm 1, with optional extensions: double Q-learning (van Hasselt
et al. 2016, arXiv:1509.06461, eq. 4), dueling networks (Wang et al. 2016, arXiv:1511.06581),
prioritized replay (Schaul et al. 2016, arXiv:1511.05952) and n-step returns (Hessel et al. 2018,
arXiv:1710.02298). Every `target_update_period` gradient steps, the target network moves toward the
online network by a fraction `tau`, and is copied if `tau` is 1. Actions that an "action_mask"
forbids are neither taken nor used in targets. docs/algorithms/dqn.md has all equations.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from rollax.acting.exploration import epsilon_schedule
from rollax.acting.streams import Rollout
from rollax.action_spaces import check_discrete
from rollax.algorithm import Algorithm, Metrics
from rollax.algorithms.off_policy import OffPolicyState, off_policy
from rollax.algorithms.replay_updates import AgentFns, start_with_demonstrations
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.environments.environment import Environment
from rollax.learning.optimizers import make_optimizer
from rollax.learning.train_state import apply_gradients
from rollax.networks.interop.network_checks import check_q_network
from rollax.networks.q_networks import EpsilonGreedy, argmax_q, mask_illegal_values, select_q
from rollax.replay.demonstrations import Demonstrations
from rollax.replay.prioritized import make_prioritized_replay, reweight_priorities
from rollax.replay.replay_config import ReplayConfig
from rollax.replay.ring import ReplayBatch, ReplayBuffer, make_uniform_replay
from rollax.types import Carry, Flag, Observation, Parameters, Scalar, State

QNetwork: TypeAlias = Callable[[Observation], jax.Array]
"""Network from an observation to the action values `[n]`."""


@settings_dataclass
class DQNConfig(ReplayConfig):
    """Settings of DQN.

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
    huber_delta: float = traced_field(1.0, low=0, high=float("inf"))
    """TD error beyond which the Huber loss grows linearly. inf uses the squared loss."""
    max_grad_norm: float = traced_field(10.0, low=0, high=float("inf"))
    """Maximum global norm of gradients."""


class DQNAgent(NamedTuple):
    """Networks and optimizer state of DQN.

    Attributes:
        network: Action-value network.
        target: Target network.
        optimizer: Optimizer state.
        steps: Number of gradient steps, int32 `[]`.
    """

    network: Parameters
    target: Parameters
    optimizer: State
    steps: jax.Array


def loss(
    network: QNetwork, batch: ReplayBatch, target: jax.Array, delta: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the loss, the mean of w H(Q(s, a) - y) with the Huber loss H, and its metrics.

    H(x) is x^2 / 2 for |x| <= delta, and delta (|x| - delta / 2) for |x| > delta.

    Args:
        network: Action-value network.
        batch: Batch of B transitions with weights w.
        target: Targets y, `[B]`.
        delta: Threshold of the Huber loss.

    Returns:
        The loss, and metrics keyed by name: "loss", "value" (mean Q), and the absolute TD errors
        "td_error" `[B]`.
    """
    value = select_q(jax.vmap(network)(batch.obs), batch.action)
    td_error = value - target
    clipped = jax.lax.stop_gradient(jnp.clip(td_error, -delta, delta))  # derivative of H
    total = jnp.mean(batch.weight * (clipped * td_error - 0.5 * clipped**2))
    return total, {"loss": total, "td_error": jnp.abs(td_error), "value": jnp.mean(value)}


def dqn(
    environment: Environment,
    network: Callable[[jax.Array], QNetwork],
    demonstrations: Demonstrations | None = None,
) -> Algorithm:
    """Build deep Q-learning (DQN).

    Args:
        environment: Environment with a `Discrete` action space.
        network: Function from a random key to a network from observations to action values `[n]`.
        demonstrations: Demonstrations that fill the replay buffer at the start, or None.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if sizes in the config are inconsistent.

    Raises:
        UsageError: If the actions are not `Discrete`, or if the demonstrations do not fit the
            environment.
    """
    check_discrete(environment.action_space)
    network = check_q_network("dqn", environment, network)
    agent_fns = AgentFns(lambda key, config: init_agent(network(key), config), explore, act, update)

    def make_buffer(config: DQNConfig) -> ReplayBuffer:
        return (make_prioritized_replay if config.prioritized else make_uniform_replay)(
            config.n_step
        )

    start_buffer = start_with_demonstrations(environment, make_buffer, demonstrations)
    algorithm = off_policy(environment, agent_fns, start_buffer)

    def with_config(state: OffPolicyState, config: DQNConfig) -> OffPolicyState:
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


def init_agent(network: Parameters, config: DQNConfig) -> DQNAgent:
    return DQNAgent(
        network,
        jax.tree.map(jnp.copy, network),
        make_optimizer(config, config.learning_rate, 0.0).init(network),
        jnp.zeros((), jnp.int32),
    )


def update(
    agent: DQNAgent,
    config: DQNConfig,
    batch: ReplayBatch,
    key: jax.Array,
    progress: Scalar = 0.0,
) -> tuple[DQNAgent, dict[str, jax.Array]]:
    """Perform one gradient step (algorithm 1), and update the target network if it is due.

    The target network is updated every `target_update_period` gradient steps.

    Args:
        agent: Networks and optimizer state.
        config: Settings of the algorithm.
        batch: Batch of B transitions.
        key: Random key (unused).
        progress: Completed fraction of training, from 0 to 1, which ends `frozen_fraction`.

    Returns:
        The updated agent, and the metrics of `loss`, including "td_error" `[B]`.
    """
    chooser = agent.network if config.double else agent.target
    next_action = jax.vmap(argmax_q, (None, 0))(chooser, batch.next_obs)
    next_value = select_q(jax.vmap(agent.target)(batch.next_obs), next_action)
    target = batch.reward + batch.discount * next_value
    gradient, metrics = jax.grad(loss, has_aux=True)(
        agent.network, batch, target, config.huber_delta
    )
    optimizer = make_optimizer(config, config.learning_rate, progress)
    network, state = apply_gradients(optimizer, agent.optimizer, agent.network, gradient)
    steps = agent.steps + 1
    is_due = steps % jnp.round(config.target_update_period).astype(jnp.int32) == 0
    target_network = optax.incremental_update(
        network, agent.target, jnp.where(is_due, config.tau, 0.0)
    )
    return DQNAgent(network, target_network, state, steps), metrics


def explore(
    agent: DQNAgent,
    config: DQNConfig,
    obs: Observation,
    carry: Carry,
    noise: jax.Array | None,
    key: jax.Array,
    progress: jax.Array,
) -> tuple[jax.Array, Carry]:
    """Return an epsilon-greedy action with the epsilon at `progress`, and the unchanged carry."""
    return EpsilonGreedy(
        mask_illegal_values(agent.network(obs), obs), epsilon_schedule(config, progress)
    ).sample(key), carry


def act(
    agent: DQNAgent,
    config: DQNConfig,
    obs: Observation,
    carry: Carry,
    key: jax.Array,
    greedy: Flag,
) -> tuple[jax.Array, Carry]:
    """Return the action for evaluation and the unchanged carry.

    The action is the best action if `greedy` is true. Otherwise it is an epsilon-greedy action with
    the final epsilon.
    """
    policy = EpsilonGreedy(
        mask_illegal_values(agent.network(obs), obs), epsilon_schedule(config, jnp.ones(()))
    )
    return jnp.where(jnp.asarray(greedy), policy.mode(), policy.sample(key)), carry
