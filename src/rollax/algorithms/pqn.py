"""Parallelized Q-network (PQN): Q-learning in many environments without replay or target network.

Gallici et al. 2024, arXiv:2407.04811, algorithm 1 with lambda-returns. Layer normalization
(`network.layer_norm`) stabilizes learning without target networks. Rollouts are collected as in
PPO, with an epsilon-greedy policy. The value of an observation is the value of its best action.
Recurrent networks and several agents are supported as in PPO. Deviations: The optimizer is Adam
instead of rectified Adam, and returns bootstrap where an episode was truncated. Recurrent networks
learn from sequences that start from the memory stored during the rollout.
docs/algorithms/pqn.md has all equations.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from rollax.acting import parameter_sharing
from rollax.acting.exploration import epsilon_schedule
from rollax.acting.streams import Experience
from rollax.action_spaces import check_discrete
from rollax.algorithm import Algorithm
from rollax.algorithms.on_policy import (
    LearnResult,
    RolloutEnd,
    finish_update,
    on_policy,
)
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.environments.environment import Environment
from rollax.learning import losses, minibatches, normalization, train_state
from rollax.learning.freezing import check_frozen_parts
from rollax.learning.optimizers import (
    OptimizerName,
    ScheduleName,
    make_optimizer,
    scheduled_rate,
)
from rollax.learning.returns import estimate_advantages
from rollax.learning.train_state import TrainState
from rollax.networks import memory_windows
from rollax.networks.action_values.q_networks import EpsilonGreedyNetwork, select_q
from rollax.networks.interop.network_checks import check_recurrent_q_network
from rollax.networks.network import Network, choose_action
from rollax.networks.network import step_network as network_step
from rollax.types import Carry, Observation


@settings_dataclass
class PQNConfig:
    """Settings of PQN.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    num_envs: int = static_field(64)
    """(static) Number of parallel environments."""
    num_steps: int = static_field(32)
    """(static) Steps of each environment per update."""
    sequence_length: int = static_field(1)
    """(static) Consecutive steps in a training sequence: 1 without memory, a divisor of
    num_steps with memory.
    """
    num_minibatches: int = static_field(8)
    """(static) Gradient steps per epoch."""
    gradient_accumulation: int = static_field(1)
    """(static) Parts of a minibatch, processed one after the other, per gradient step."""
    num_epochs: int = static_field(2)
    """(static) Epochs over each rollout."""
    normalize_observations: bool = static_field(False)
    """(static) Normalize observations by running statistics."""
    normalize_rewards: bool = static_field(False)
    """(static) Scale rewards by the running standard deviation of discounted returns."""
    sharing: parameter_sharing.Sharing = static_field("all")
    """(static) Which agents share parameters: all, those of the same type, or none."""
    optimizer: OptimizerName = static_field("adam", takes_function=True)
    """(static) Optimizer of optax. adam with weight_decay is AdamW."""
    learning_rate_schedule: ScheduleName = static_field("linear", takes_function=True)
    """(static) Shape of the change of the learning rates over training."""
    frozen: tuple[str, ...] = static_field(())
    """(static) Parts of the network that are not trained, such as encoder or critic.head."""
    frozen_fraction: float = static_field(1.0, low=0)
    """(static) End of freezing, as a fraction of training. 1 freezes until the end."""
    epsilon: float = traced_field(1.0, 0, 1)
    """Probability of a random action at the start."""
    epsilon_final_fraction: float = traced_field(0.05, 0, 1)
    """Final epsilon, as a fraction of 1, reached linearly after exploration_fraction of
    training."""
    exploration_fraction: float = traced_field(0.2, 0, 1)
    """Fraction of training over which epsilon decreases."""
    learning_rate: float = traced_field(5e-4, low=0)
    """Learning rate."""
    learning_rate_final_fraction: float = traced_field(1.0, 0, 1)
    """Final learning rate as a fraction of the initial one. 1 is constant."""
    learning_rate_warmup_fraction: float = traced_field(0.0, 0, 1)
    """Fraction of training during which the learning rates rise from 0."""
    gamma: float = traced_field(0.99, 0, 1)
    """Discount factor."""
    q_lambda: float = traced_field(0.65, 0, 1)
    """Trace decay of the returns. 0 uses one-step returns, 1 returns until the end of the
    rollout.
    """
    max_grad_norm: float = traced_field(10.0, low=0, high=float("inf"))
    """Maximum global norm of gradients."""
    weight_decay: float = traced_field(0.0, low=0)
    """Decay of the weights per step, in units of the learning rate."""
    adam_epsilon: float = traced_field(1e-8, low=0)
    """Epsilon of the optimizer."""
    total_updates: float = traced_field(float("inf"), low=1)
    """Updates until the schedules end. The run sets it from its total steps."""

    @property
    def steps_per_update(self) -> int:
        """Number of environment steps per update."""
        return self.num_envs * self.num_steps


class PQNExtras(NamedTuple):
    """Extras of the training policy, recorded at each step of one agent.

    Attributes:
        raw_action: The action.
        value: Value of the best action, float `[]`.
        selected_q: Value of the action taken, float `[]`.
    """

    raw_action: jax.Array
    value: jax.Array  # float []
    selected_q: jax.Array  # float []


class PQNBatch(NamedTuple):
    """Training data of a rollout, `[T, S, ...]`, or of a minibatch, `[L, B, ...]`.

    Attributes:
        carry: Memory at the start of each sequence.
        obs: Observations.
        reset: Whether a new episode starts at this step.
        action: Actions taken.
        target: Lambda-returns.
        mask: Whether the agent is active (not done before the step), or None if agents never end
            early.
    """

    carry: Carry
    obs: Observation
    reset: jax.Array
    action: jax.Array
    target: jax.Array
    mask: jax.Array | None


def loss(
    network: Network, obs_moments: normalization.Moments | None, data: PQNBatch
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the loss, the mean of (Q(s, a) - R)^2 / 2 over a minibatch `[L, B]`, and its metrics.

    Args:
        network: Action-value network.
        obs_moments: Observation statistics, or None if observations are not normalized.
        data: Minibatch of B sequences of L steps, `[L, B, ...]`.

    Returns:
        The loss, and the means "loss", "td_error" (absolute) and "selected_q", keyed by name.
    """
    network = train_state.add_normalization(network, obs_moments)
    _, values = network.unroll(jax.tree.map(lambda x: x[0], data.carry), data.obs, data.reset)
    selected_q = jax.vmap(select_q)(values, data.action)
    td_error = selected_q - data.target
    terms = {"loss": 0.5 * td_error**2, "td_error": jnp.abs(td_error), "selected_q": selected_q}
    metrics = losses.masked_means(terms, data.mask)
    return metrics["loss"], metrics


def pqn(environment: Environment, network: Callable[[jax.Array], Network]) -> Algorithm:
    """Build parallelized Q-learning (PQN).

    Args:
        environment: Environment with a `Discrete` action space.
        network: Function from a random key to a network `(carry, obs) -> (carry, action values
            [n])`.

    Returns:
        The algorithm. Its `init` raises a `ValueError` if a rollout cannot be divided evenly.

    Raises:
        UsageError: If the actions are not `Discrete`.
    """
    check_discrete(environment.action_space)
    return on_policy(
        environment,
        check_recurrent_q_network("pqn", environment, network),
        learn,
        make_optimizers=make_optimizers,
        make_train=make_train,
        make_layout=minibatches.make_minibatch_layout,
        make_sampler=lambda config, progress: functools.partial(sample_action, config, progress),
        choose=choose_evaluation_action,
    )


def make_train(
    network: Network,
    optimizers: dict[str, optax.GradientTransformation],
    obs: Observation,
    config: PQNConfig,
) -> TrainState:
    """Check `config.frozen` and return the training state before the first update.

    The arguments are those of `train_state.init_train_state`.

    Raises:
        UsageError: If `config.frozen` contains an unknown part or all parameters.
    """
    check_frozen_parts(config.frozen, network)
    return train_state.init_train_state(network, optimizers, obs, config)


def make_epsilon_greedy_network(
    config: PQNConfig, progress: jax.Array, train: TrainState
) -> EpsilonGreedyNetwork:
    """Build a network with an epsilon-greedy policy and the value of the best action.

    Args:
        config: Settings of the algorithm.
        progress: Completed fraction of training, from 0 to 1, which determines epsilon.
        train: Parameters and observation statistics.

    Returns:
        A network that outputs `ActorCriticOutput`.
    """
    values = train_state.add_normalization(train.network, train.observations)
    return EpsilonGreedyNetwork(values, epsilon_schedule(config, progress))


def sample_action(
    config: PQNConfig,
    progress: jax.Array,
    train: TrainState,
    carry: Carry,
    obs: Observation,
    reset: jax.Array,
    key: jax.Array,
) -> tuple[Carry, jax.Array, PQNExtras]:
    """Sample the action of one agent in one environment.

    Args:
        config: Settings of the algorithm.
        progress: Completed fraction of training, from 0 to 1, which determines epsilon.
        train: Parameters and observation statistics.
        carry: Memory before the step.
        obs: Observation.
        reset: Whether `obs` begins an episode, bool `[]`.
        key: Random key.

    Returns:
        The memory after the step, the action, and its `PQNExtras`.
    """
    carry, output = network_step(
        make_epsilon_greedy_network(config, progress, train), carry, obs, reset
    )
    action = output.policy.sample(key)
    return (
        carry,
        action,
        PQNExtras(action, output.value, select_q(output.policy.values[None], action[None])[0]),
    )


def choose_evaluation_action(
    config: PQNConfig,
    greedy: jax.Array,
    train: TrainState,
    carry: Carry,
    obs: Observation,
    key: jax.Array,
) -> tuple[Carry, jax.Array]:
    """Choose the action of one agent in evaluation.

    The action is the best action if `greedy` is true. Otherwise it is an epsilon-greedy action with
    the final epsilon.

    Args:
        config: Settings of the algorithm.
        greedy: Whether to choose the best action, bool `[]`.
        train: Parameters and observation statistics.
        carry: Memory before the step.
        obs: Observation.
        key: Random key.

    Returns:
        The memory after the step and the action.
    """
    return choose_action(
        make_epsilon_greedy_network(config, jnp.ones(()), train), carry, obs, key, greedy
    )


def make_optimizers(
    config: PQNConfig, progress: jax.Array | float
) -> dict[str, optax.GradientTransformation]:
    """Build the optimizer of the network, with its learning rate at the current progress.

    Args:
        config: Settings of the algorithm.
        progress: Completed fraction of training, from 0 to 1.

    Returns:
        Dictionary with the single key "actor", because the network has no separate critic.
    """
    rate = scheduled_rate(config, config.learning_rate, progress)
    return {"actor": make_optimizer(config, rate, progress)}


def learn(
    config: PQNConfig,
    progress: jax.Array,
    train: TrainState,
    rollout: Experience,
    end: RolloutEnd,
    key: jax.Array,
) -> LearnResult:
    """Update one set of parameters from a rollout `[T, S]` (algorithm 1).

    Args:
        config: Settings of the algorithm.
        progress: Completed fraction of training, from 0 to 1.
        train: Parameters, optimizer states and statistics.
        rollout: Experience of the S streams, `[T, S, ...]`.
        end: `RolloutEnd` of the streams.
        key: Random key of the shuffles.

    Returns:
        New train state, discounted returns, metrics and `FiniteChecks`. Metrics of gradient steps
        are means over all minibatches.
    """
    # Lambda-returns: R_t = r_t + gamma ((1 - lambda) max Q(s_(t+1)) + lambda R_(t+1))
    scaled = train_state.scale_rewards(train, rollout, end.discounted_return, config.gamma)
    train = train._replace(returns=scaled.moments)
    network = make_epsilon_greedy_network(config, progress, train)
    estimates = estimate_advantages(
        network, rollout, scaled.reward, end.carry, config.gamma, config.q_lambda
    )

    # Learn from shuffled minibatches of sequences.
    layout = minibatches.make_minibatch_layout(config, rollout.reward.shape[1])
    batch = PQNBatch(
        carry=memory_windows.carries_at_sequence_starts(rollout.carry, config.sequence_length),
        obs=rollout.obs,
        reset=rollout.reset,
        action=rollout.extras.raw_action,
        target=estimates.target,
        mask=rollout.mask,
    )
    rows, transformations = minibatches.to_rows(batch, layout), make_optimizers(config, progress)

    def gradient_step(
        train: TrainState, order: jax.Array
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        minibatch = minibatches.gather_minibatch(rows, order)
        gradient, metrics = minibatches.accumulate_gradients(
            lambda network, part: loss(network, train.observations, part),
            train.network,
            minibatch,
            config.gradient_accumulation,
        )
        is_active = {"actor": jnp.ones((), bool)}
        return train_state.update_parameters(train, transformations, gradient, is_active), metrics

    epoch_keys = jax.random.split(key, config.num_epochs)
    orders = jax.vmap(lambda key: minibatches.shuffle_rows(key, layout))(epoch_keys)
    train, metrics = jax.lax.scan(gradient_step, train, orders.reshape(-1, *orders.shape[2:]))
    metrics = jax.tree.map(jnp.mean, metrics)
    metrics["epsilon"] = epsilon_schedule(config, progress)
    prediction = rollout.extras.selected_q
    return finish_update(
        config, progress, train, rollout, estimates, scaled.discounted_return, metrics, prediction
    )
