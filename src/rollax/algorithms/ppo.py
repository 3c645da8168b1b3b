"""Proximal policy optimization (PPO), feed-forward or recurrent, for one or several agents.

Schulman et al. 2017, arXiv:1707.06347 (clipped objective: eq. 7, full objective: eq. 9 and
algorithm 1), with generalized advantage estimation (Schulman et al. 2016, arXiv:1506.02438). These
deviations are common practice: Advantages are normalized, values may be clipped, gradients are
clipped by their global norm, and the KL divergence may stop the epochs early.

Recurrent networks learn from sequences that start from the memory stored during the rollout. Each
agent is a stream. With several agents, the algorithm is IPPO (de Witt et al. 2020,
arXiv:2011.09533), or MAPPO (Yu et al. 2021, arXiv:2103.01955) if critics observe a "global_state".
All action spaces are supported. docs/algorithms/ppo.md explains every equation.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from rollax.acting import parameter_sharing
from rollax.acting.streams import Experience
from rollax.algorithm import Algorithm
from rollax.algorithms.on_policy import LearnResult, RolloutEnd, finish_update, on_policy
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.environments.environment import Environment
from rollax.learning import losses, minibatches, normalization, train_state
from rollax.learning.optimizers import AdaptiveScheduleName, OptimizerName, linear_schedule
from rollax.learning.returns import AdvantageEstimates, add_values, estimate_advantages
from rollax.learning.train_state import TrainState
from rollax.networks import memory_windows
from rollax.networks.interop.network_checks import check_actor_critic
from rollax.networks.network import Network, evaluate_actions
from rollax.types import Carry, Observation


@settings_dataclass
class PPOConfig:
    """Settings of PPO.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    num_envs: int = static_field(64)
    """(static) Number of parallel environments."""
    num_steps: int = static_field(64)
    """(static) Steps of each environment per update."""
    sequence_length: int = static_field(1)
    """(static) Consecutive steps in a training sequence: 1 without memory, a divisor of
    num_steps with memory.
    """
    num_minibatches: int = static_field(8)
    """(static) Gradient steps per epoch."""
    gradient_accumulation: int = static_field(1)
    """(static) Parts of a minibatch, processed one after the other, per gradient step."""
    num_epochs: int = static_field(4)
    """(static) Epochs over each rollout for the policy, and for the critic if critic_epochs is
    0.
    """
    critic_epochs: int = static_field(0, low=0)
    """(static) Epochs over each rollout for a separate critic. 0 uses num_epochs."""
    normalize_advantages: Literal["minibatch", "batch", "off"] = static_field("minibatch")
    """(static) Samples over which advantages are normalized to mean 0 and standard deviation 1."""
    clip_values: bool = static_field(False)
    """(static) Clip the change of the value prediction by value_clip."""
    normalize_observations: bool = static_field(False)
    """(static) Normalize observations by running statistics."""
    normalize_rewards: bool = static_field(False)
    """(static) Scale rewards by the running standard deviation of discounted returns."""
    normalize_values: bool = static_field(False)
    """(static) Normalize value targets by running statistics and preserve outputs (PopArt)."""
    sharing: parameter_sharing.Sharing = static_field("all")
    """(static) Which agents share parameters: all, those of the same type, or none."""
    optimizer: OptimizerName = static_field("adam", takes_function=True)
    """(static) Optimizer of optax. adam with weight_decay is AdamW."""
    learning_rate_schedule: AdaptiveScheduleName = static_field("linear", takes_function=True)
    """(static) Shape of the change of the learning rates. kl adapts them to the KL divergence."""
    frozen: tuple[str, ...] = static_field(())
    """(static) Parts of the network that are not trained, such as encoder or critic.head."""
    frozen_fraction: float = static_field(1.0, low=0)
    """(static) End of freezing, as a fraction of training. 1 freezes until the end."""
    learning_rate: float = traced_field(5e-4, low=0)
    """Learning rate, of the policy only if the critic is separate."""
    critic_learning_rate: float = traced_field(0.0, low=0)
    """Learning rate of a separate critic. 0 uses learning_rate."""
    learning_rate_final_fraction: float = traced_field(1.0, 0, 1)
    """Final learning rates as a fraction of the initial ones. 1 is constant."""
    learning_rate_warmup_fraction: float = traced_field(0.0, 0, 1)
    """Fraction of training during which the learning rates rise from 0."""
    learning_rate_kl: float = traced_field(0.01, low=0)
    """KL divergence at which the schedule kl does not change the learning rates."""
    gamma: float = traced_field(0.99, 0, 1)
    """Discount factor."""
    gae_lambda: float = traced_field(0.95, 0, 1)
    """Trace decay of the advantage."""
    clip: float = traced_field(0.2, low=0)
    """Clipping range of the probability ratio (epsilon of eq. 7)."""
    value_clip: float = traced_field(0.2, low=0)
    """Clipping range of the value prediction if clip_values is set, in units of the (normalized)
    return.
    """
    value_coefficient: float = traced_field(0.5, low=0)
    """Weight of the value loss (c1 of eq. 9)."""
    entropy_coefficient: float = traced_field(0.01)
    """Weight of the entropy bonus (c2 of eq. 9)."""
    entropy_final_fraction: float = traced_field(1.0, 0)
    """Final entropy bonus as a fraction of the initial one, annealed linearly."""
    sde_sample_freq: float = traced_field(0.0, low=0)
    """Steps between draws of the noise weights of gsde. 0 draws them only at episode starts."""
    target_kl: float = traced_field(float("inf"), low=0)
    """Stop the policy's epochs of an update once the mean KL estimate of an epoch exceeds this
    value."""
    max_grad_norm: float = traced_field(0.5, low=0, high=float("inf"))
    """Maximum global norm of gradients, per optimizer."""
    weight_decay: float = traced_field(0.0, low=0)
    """Decay of the weights per step, in units of the learning rate."""
    adam_epsilon: float = traced_field(1e-5, low=0)
    """Epsilon of the optimizer."""
    total_updates: float = traced_field(float("inf"), low=1)
    """Updates until the schedules end. The run sets it from its total steps."""

    @property
    def steps_per_update(self) -> int:
        """Number of environment steps per update."""
        return self.num_envs * self.num_steps


class PPOBatch(NamedTuple):
    """Training data of a rollout, `[T, S, ...]`, or of a minibatch, `[L, B, ...]`.

    Attributes:
        carry: Memory at the start of each sequence.
        obs: Observations.
        reset: Whether a new episode starts at this step.
        raw_action: Actions as sampled from the policy distribution, before squashing or clipping.
        log_prob: Log-probability of each action when it was taken.
        value: Value prediction when the action was taken.
        advantage: Advantage estimate.
        target: Target of the value prediction.
        mask: Whether the agent is active (not done before the step), or None if agents never end
            early.
        acts: Whether it is the agent's turn, or None in environments without turns.
    """

    carry: Carry
    obs: Observation
    reset: jax.Array
    raw_action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    mask: jax.Array | None
    acts: jax.Array | None


def loss(
    network: Network,
    observations: normalization.Moments | None,
    data: PPOBatch,
    config: PPOConfig,
    entropy_coefficient: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the loss -(L_clip - c1 L_value + c2 S) of eq. 9 over a minibatch, and its metrics.

    In games with turns, all terms except the value loss are means over the steps where the agent
    acts.

    Args:
        network: Actor-critic network.
        observations: Observation statistics, or None if observations are not normalized.
        data: Minibatch of B sequences of L steps, `[L, B, ...]`. Its carry is `[1, B, ...]`.
        config: Settings of the algorithm.
        entropy_coefficient: Weight of the entropy bonus at the current progress (c2).

    Returns:
        The loss, and its terms and diagnostics as scalar metrics keyed by name.
    """
    network = train_state.add_normalization(network, observations)
    first_carry = jax.tree.map(lambda x: x[0], data.carry)
    _, output = network.unroll(first_carry, data.obs, data.reset)
    log_prob, entropy = evaluate_actions(output.policy, data.raw_action)
    log_ratio = losses.log_probability_ratio(log_prob, data.log_prob)
    value_clip = config.value_clip if config.clip_values else None
    terms = {
        "policy_loss": -losses.clipped_objective(log_ratio, data.advantage, config.clip),
        "value_loss": losses.squared_value_error(output.value, data.value, data.target, value_clip),
        "entropy": entropy,
        "approx_kl": jax.lax.stop_gradient(losses.estimate_kl(log_ratio)),
        "clip_fraction": (jnp.abs(jnp.exp(log_ratio) - 1) > config.clip).astype(jnp.float32),
    }
    mask = losses.policy_mask(data.mask, data.acts)
    metrics = losses.masked_means(terms, data.mask, mask, values=("value_loss",))
    total = (
        metrics["policy_loss"]
        + config.value_coefficient * metrics["value_loss"]
        - entropy_coefficient * metrics["entropy"]
    )
    return total, {"loss": total, **metrics}


def ppo(environment: Environment, network: Callable[[jax.Array], Network]) -> Algorithm:
    """Build proximal policy optimization (PPO).

    Args:
        environment: Environment to train in.
        network: Function from a random key to a network that outputs `ActorCriticOutput`.

    Returns:
        The algorithm. Its `init` raises a `ValueError` if a rollout cannot be divided evenly.
    """
    network = check_actor_critic("ppo", environment, network)
    return on_policy(environment, network, learn, make_layout=minibatches.make_minibatch_layout)


def learn(
    config: PPOConfig,
    progress: jax.Array,
    train: TrainState,
    rollout: Experience,
    end: RolloutEnd,
    key: jax.Array,
    policy_advantage: Callable[[jax.Array], jax.Array] = lambda advantage: advantage,
) -> LearnResult:
    """Update one set of parameters from a rollout `[T, S]` (algorithm 1, lines 4 to 7).

    Args:
        config: Settings of the algorithm.
        progress: Completed fraction of training, from 0 to 1.
        train: Parameters, optimizer states and statistics.
        rollout: Experience of the S streams, `[T, S, ...]`.
        end: `RolloutEnd` of the streams.
        key: Random key of the shuffles.
        policy_advantage: Function from the advantages `[T, S]`, divided by the standard deviation
            of the value targets, to the advantages in the policy loss. It does not affect the value
            loss.

    Returns:
        New train state, discounted returns, metrics and `FiniteChecks`.
    """
    # Estimate advantages by GAE, with the values of the network that acted.
    scaled = train_state.scale_rewards(train, rollout, end.discounted_return, config.gamma)
    train = train._replace(returns=scaled.moments)
    network = train_state.add_normalization(train.network, train.observations, train.values)
    rollout = add_values(network, rollout, config.num_minibatches)
    estimates = estimate_advantages(
        network, rollout, scaled.reward, end.carry, config.gamma, config.gae_lambda
    )

    # Learn from shuffled minibatches of sequences for some epochs.
    train = train_state.update_value_statistics(train, estimates.target, rollout.mask)
    batch = make_batch(config, train, rollout, estimates, policy_advantage)
    layout = minibatches.make_minibatch_layout(config, num_streams=rollout.reward.shape[1])
    entropy_coefficient = linear_schedule(
        config.entropy_coefficient, config.entropy_final_fraction, progress
    )

    def minibatch_loss(
        network: Network, train: TrainState, minibatch: PPOBatch
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        return loss(network, train.observations, minibatch, config, entropy_coefficient)

    rows = minibatches.to_rows(batch, layout)
    prepare = functools.partial(normalize_minibatch, config)
    train, metrics = train_state.fit(
        minibatch_loss, train, rows, layout, config, progress, key, prepare=prepare
    )
    return finish_update(
        config, progress, train, rollout, estimates, scaled.discounted_return, metrics
    )


def normalize_minibatch(config: PPOConfig, minibatch: PPOBatch) -> PPOBatch:
    """Standardize the advantages of a minibatch if `normalize_advantages` is "minibatch"."""
    if config.normalize_advantages != "minibatch":
        return minibatch
    mask = losses.policy_mask(minibatch.mask, minibatch.acts)
    return minibatch._replace(advantage=losses.standardize(minibatch.advantage, mask))


def make_batch(
    config: PPOConfig,
    train: TrainState,
    rollout: Experience,
    estimates: AdvantageEstimates,
    policy_advantage: Callable[[jax.Array], jax.Array],
) -> PPOBatch:
    """Return the training data of a rollout, `[T, S, ...]`.

    Values and targets are normalized with the statistics of the value targets. Advantages are
    divided by the standard deviation of the targets, transformed by `policy_advantage`, and
    standardized over the rollout if `normalize_advantages` is "batch".

    Args:
        config: Settings of the algorithm.
        train: Training state with the statistics of the value targets.
        rollout: Rollout, `[T, S, ...]`, whose extras contain the values.
        estimates: Advantages and value targets of the rollout.
        policy_advantage: Function from advantages `[T, S]` to those of the policy objective.
    """
    mean, std = train_state.value_mean_and_std(train.values)
    advantage = policy_advantage(estimates.advantage / std)
    if config.normalize_advantages == "batch":
        advantage = losses.standardize(advantage, losses.policy_mask(rollout.mask, rollout.acts))
    return PPOBatch(
        carry=memory_windows.carries_at_sequence_starts(rollout.carry, config.sequence_length),
        obs=rollout.obs,
        reset=rollout.reset,
        raw_action=rollout.extras.raw_action,
        log_prob=rollout.extras.log_prob,
        value=(rollout.extras.value - mean) / std,
        advantage=advantage,
        target=(estimates.target - mean) / std,
        mask=rollout.mask,
        acts=rollout.acts,
    )
