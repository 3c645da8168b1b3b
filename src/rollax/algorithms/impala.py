"""IMPALA: an actor-critic with V-trace that learns from each rollout several times.

Espeholt et al. 2018, arXiv:1802.01561 (V-trace: section 4.1, gradients: section 4.2). The learning
policy differs from the acting policy because each rollout is used for `num_epochs` x
`num_minibatches` gradient steps. V-trace targets and advantages are recomputed with the current
network before each gradient step. If `objective` is "clipped", the policy loss is the loss of PPO
with V-trace advantages.

Deviations: Advantages may be normalized, and rewards may be scaled. Trajectories may be sampled by
priority (Schaul et al. 2016, arXiv:1511.05952) from the whole rollout, with importance weights on
every loss term. The optimizer is Adam with a clipped gradient norm instead of RMSProp. Values of
final observations within a trajectory use the memory stored during the rollout.
docs/algorithms/impala.md has the equations.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting import parameter_sharing
from rollax.acting.streams import Experience
from rollax.algorithm import Algorithm
from rollax.algorithms.on_policy import LearnResult, RolloutEnd, finish_update, on_policy
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.environments.environment import Environment
from rollax.learning import losses, minibatches, normalization, priorities, train_state
from rollax.learning.optimizers import AdaptiveScheduleName, OptimizerName, linear_schedule
from rollax.learning.returns import (
    AdvantageEstimates,
    add_values,
    compute_next_values,
    vmap_over_streams,
)
from rollax.learning.train_state import TrainState
from rollax.learning.vtrace import vtrace
from rollax.networks import memory_windows
from rollax.networks.interop.network_checks import check_actor_critic
from rollax.networks.network import Network, evaluate_actions
from rollax.types import Carry


@settings_dataclass
class ImpalaConfig:
    """Settings of IMPALA.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    num_envs: int = static_field(32)
    """(static) Number of parallel environments."""
    num_steps: int = static_field(32)
    """(static) Steps of each environment per update."""
    sequence_length: int = static_field(32)
    """(static) Steps per trajectory for V-trace, a divisor of num_steps."""
    num_minibatches: int = static_field(1)
    """(static) Gradient steps per epoch."""
    gradient_accumulation: int = static_field(1)
    """(static) Parts of a minibatch, processed one after the other, per gradient step."""
    num_epochs: int = static_field(4)
    """(static) Epochs over each rollout for the policy, and for a critic if critic_epochs is 0."""
    critic_epochs: int = static_field(0, low=0)
    """(static) Epochs over each rollout for a separate critic. 0 uses num_epochs."""
    objective: Literal["gradient", "clipped"] = static_field("gradient")
    """(static) Policy loss: policy gradient weighted by clipped ratios, or the clipped objective
    of PPO.
    """
    normalize_advantages: Literal["minibatch", "off"] = static_field("off")
    """(static) Samples over which advantages are normalized to mean 0 and standard deviation 1."""
    normalize_observations: bool = static_field(False)
    """(static) Normalize observations by running statistics."""
    normalize_rewards: bool = static_field(True)
    """(static) Scale rewards by the running standard deviation of discounted returns."""
    prioritized: bool = static_field(False)
    """(static) Draw trajectories in proportion to absolute advantages, not once per epoch."""
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
    learning_rate: float = traced_field(1e-3, low=0)
    """Learning rate, of the policy only if the critic is separate."""
    critic_learning_rate: float = traced_field(0.0, low=0)
    """Learning rate of a separate critic. 0 uses learning_rate."""
    learning_rate_final_fraction: float = traced_field(0.0, 0, 1)
    """Final learning rates as a fraction of the initial ones. 1 is constant."""
    learning_rate_warmup_fraction: float = traced_field(0.0, 0, 1)
    """Fraction of training during which the learning rates rise from 0."""
    learning_rate_kl: float = traced_field(0.01, low=0)
    """KL divergence at which the schedule kl does not change the learning rates."""
    gamma: float = traced_field(0.99, 0, 1)
    """Discount factor."""
    vtrace_lambda: float = traced_field(0.95, 0, 1)
    """Trace decay of V-trace."""
    rho_clip: float = traced_field(1.0, low=0, high=float("inf"))
    """Upper bound of the importance weight of a temporal difference (rho-bar). It determines the
    policy for which values are learned.
    """
    c_clip: float = traced_field(1.0, low=0, high=float("inf"))
    """Upper bound of the trace coefficients (c-bar), at most rho_clip. Smaller values shorten
    the traces.
    """
    clip: float = traced_field(0.2, low=0)
    """Clipping range of the probability ratio if objective is "clipped"."""
    value_coefficient: float = traced_field(0.5, low=0)
    """Weight of the value loss."""
    entropy_coefficient: float = traced_field(0.01)
    """Weight of the entropy bonus."""
    entropy_final_fraction: float = traced_field(1.0, 0)
    """Final entropy bonus as a fraction of the initial one, annealed linearly."""
    priority_exponent: float = traced_field(0.8, low=0)
    """Exponent of the priorities if prioritized is set. 0 draws uniformly."""
    importance_exponent: float = traced_field(0.4, 0, 1)
    """Initial exponent of the importance weights. It rises linearly to 1 over training."""
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


def estimate_advantages(
    config: ImpalaConfig,
    network: Network,
    data: Experience,
    value: jax.Array,
    log_ratio: jax.Array,
    carry: Carry,
) -> AdvantageEstimates:
    """Compute V-trace targets and advantages of streams `[T, S]`. No gradient flows through them.

    The paper assumes c-bar <= rho-bar. This function enforces it, because a sweep or an evolving
    population may change both settings.

    Args:
        config: Settings of the algorithm.
        network: Actor-critic network, with values in units of return.
        data: Experience with the rewards to learn from, `[T, S, ...]`.
        value: Values of the observations before each step, `[T, S]`.
        log_ratio: Logarithm of the probability ratio of the learning policy and the acting policy,
            `[T, S]`.
        carry: Memory of the network after the last step, `[S, ...]`.

    Returns:
        The advantages and value targets.
    """
    network, value, log_ratio, carry = jax.lax.stop_gradient((network, value, log_ratio, carry))
    target, advantage = vmap_over_streams(vtrace, shared=4)(
        data.reward,
        value,
        compute_next_values(network, data, value, carry),
        log_ratio,
        data.terminated,
        data.truncated,
        config.gamma,
        config.vtrace_lambda,
        config.rho_clip,
        jnp.minimum(config.c_clip, config.rho_clip),
    )
    return AdvantageEstimates(advantage, target)


def policy_objective(
    config: ImpalaConfig, log_prob: jax.Array, log_ratio: jax.Array, advantage: jax.Array
) -> jax.Array:
    """Return the objective of the policy for each step, which training maximizes.

    The gradient of the objective is rho A grad log pi (section 4.2). If `config.objective` is
    "clipped", it is instead the clipped objective of PPO.

    Args:
        config: Settings of the algorithm.
        log_prob: Log-probability of each action under the trained policy, log pi, `[L, B]`.
        log_ratio: Log of the ratio of the trained and the acting policy, `[L, B]`.
        advantage: Advantages A, `[L, B]`.
    """
    if config.objective == "clipped":
        return losses.clipped_objective(log_ratio, advantage, config.clip)
    rho = jnp.minimum(config.rho_clip, jnp.exp(jax.lax.stop_gradient(log_ratio)))
    return rho * log_prob * advantage


def loss(
    network: Network,
    observations: normalization.Moments | None,
    values: normalization.Moments | None,
    data: Experience,
    weight: jax.Array,
    config: ImpalaConfig,
    entropy_coefficient: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the loss of section 4.2 over a minibatch of trajectories `[L, B]`, and its metrics.

    In games with turns, all terms except the value loss are means over the steps where the agent
    acts.

    Args:
        network: Actor-critic network.
        observations: Observation statistics, or None if observations are not normalized.
        values: Statistics of value targets, or None if values are not normalized.
        data: Minibatch of B trajectories of L steps.
        weight: Importance weight of each trajectory, `[1, B]`.
        config: Settings of the algorithm.
        entropy_coefficient: Weight of the entropy bonus at the current progress.

    Returns:
        The loss, and its terms and diagnostics as scalar metrics keyed by name.
    """
    network = train_state.add_normalization(network, observations, values)
    carry, output = network.unroll(memory_windows.first_carries(data.carry), data.obs, data.reset)
    log_prob, entropy = evaluate_actions(output.policy, data.extras.raw_action)
    log_ratio = losses.log_probability_ratio(log_prob, data.extras.log_prob)
    estimates = estimate_advantages(config, network, data, output.value, log_ratio, carry)

    mask = losses.policy_mask(data.mask, data.acts)
    _, std = train_state.value_mean_and_std(values)
    if config.normalize_advantages == "minibatch":
        advantage = losses.standardize(estimates.advantage, mask)
    else:
        advantage = estimates.advantage / std
    weight = jnp.broadcast_to(weight, log_prob.shape)
    old_value = jax.lax.stop_gradient(output.value)
    value_error = losses.squared_value_error(output.value, old_value, estimates.target, None)
    fixed_log_ratio = jax.lax.stop_gradient(log_ratio)
    is_clipped = jnp.exp(fixed_log_ratio) > config.rho_clip
    terms = {
        "policy_loss": -weight * policy_objective(config, log_prob, log_ratio, advantage),
        "value_loss": weight * value_error / std**2,
        "entropy": weight * entropy,
        "approx_kl": losses.estimate_kl(fixed_log_ratio),
        "rho_clipped": is_clipped.astype(jnp.float32),
    }
    metrics = losses.masked_means(terms, data.mask, mask, values=("value_loss",))
    total = (
        metrics["policy_loss"]
        + config.value_coefficient * metrics["value_loss"]
        - entropy_coefficient * metrics["entropy"]
    )
    return total, {"loss": total, **metrics}


def impala(environment: Environment, network: Callable[[jax.Array], Network]) -> Algorithm:
    """Build IMPALA, an actor-critic with V-trace.

    Args:
        environment: Environment to train in.
        network: Function from a random key to a network that outputs `ActorCriticOutput`.

    Returns:
        The algorithm. Its `init` raises a `ValueError` if a rollout cannot be divided evenly.
    """
    network = check_actor_critic("impala", environment, network)
    return on_policy(environment, network, learn, make_layout=make_minibatch_layout)


def make_minibatch_layout(config: ImpalaConfig, num_streams: int) -> minibatches.MinibatchLayout:
    """Return the layout that divides rollouts of one parameter group into minibatches.

    Args:
        config: Settings of the algorithm.
        num_streams: Number of streams that share the parameters.

    Returns:
        The layout.

    Raises:
        ValueError: If the rollout cannot be divided evenly into minibatches, or a minibatch cannot
            be divided evenly among devices.
    """
    sizes = config.num_steps, num_streams, config.sequence_length, config.num_minibatches
    layout = minibatches.make_layout(*sizes, config.prioritized, config.gradient_accumulation)
    # Each device computes the values of final observations for its own share.
    size = layout.rows // layout.num_minibatches * layout.groups * layout.block_size
    number, devices = size // config.gradient_accumulation, tree.num_devices()
    if number % devices:
        raise ValueError(
            "The number of sequences in a minibatch (streams x num_steps / sequence_length / "
            "num_minibatches / gradient_accumulation) must be a multiple of devices "
            f"({devices}), got {number}. Lower num_minibatches or sequence_length, or raise "
            "num_envs."
        )
    return layout


def learn(
    config: ImpalaConfig,
    progress: jax.Array,
    train: TrainState,
    rollout: Experience,
    end: RolloutEnd,
    key: jax.Array,
) -> LearnResult:
    """Update one set of parameters from a rollout `[T, S]`.

    Args:
        config: Settings of the algorithm.
        progress: Completed fraction of training, from 0 to 1.
        train: Parameters, optimizer states and statistics.
        rollout: Experience of the S streams, `[T, S, ...]`.
        end: `RolloutEnd` of the streams.
        key: Random key of the shuffles.

    Returns:
        New train state, discounted returns, metrics and `FiniteChecks`.
    """
    scaled = train_state.scale_rewards(train, rollout, end.discounted_return, config.gamma)
    train = train._replace(returns=scaled.moments)

    # Estimate advantages for the policy that acted, for priorities and metrics. The loss of each
    # minibatch estimates advantages again with the current network.
    network = train_state.add_normalization(train.network, train.observations, train.values)
    rollout = add_values(network, rollout, config.num_minibatches)
    data = rollout._replace(reward=scaled.reward)
    same_policy = jnp.zeros_like(scaled.reward)
    estimates = estimate_advantages(
        config, network, data, rollout.extras.value, same_policy, end.carry
    )
    layout = make_minibatch_layout(config, num_streams=rollout.reward.shape[1])
    shuffle, weights = priorities.sample_trajectories(
        config, progress, estimates.advantage, rollout.mask, layout
    )

    # Learn from minibatches of trajectories for some epochs.
    train = train_state.update_value_statistics(train, estimates.target, rollout.mask)
    carries = memory_windows.split_into_sequences(rollout.carry, config.sequence_length)
    rows = minibatches.to_rows(data._replace(carry=carries), layout)
    entropy_coefficient = linear_schedule(
        config.entropy_coefficient, config.entropy_final_fraction, progress
    )

    def minibatch_loss(
        network: Network, train: TrainState, minibatch: tuple[Experience, jax.Array]
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        data, weight = minibatch
        return loss(
            network, train.observations, train.values, data, weight, config, entropy_coefficient
        )

    train, metrics = train_state.fit(
        minibatch_loss, train, (rows, weights), layout, config, progress, key, shuffle
    )
    return finish_update(
        config, progress, train, rollout, estimates, scaled.discounted_return, metrics
    )
