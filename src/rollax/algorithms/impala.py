"""IMPALA's actor-critic with V-trace, which learns several times from one rollout although the policy moves away from it.

Espeholt et al. 2018, arXiv:1802.01561 (V-trace, section 4.1; gradients, section 4.2). The lag between the policy that acted and
the one that learns comes from using a rollout more than once (`num_epochs` x `num_minibatches` gradient steps): credit is
computed anew from the current network before each of them. With `objective` "clipped" the policy's loss is that of PPO, with
credit by V-trace. Deviations: advantages may be normalized, rewards scaled, trajectories drawn by priority (Schaul et al. 2016,
arXiv:1511.05952) out of all that there are, with importance weights on every loss; Adam with a clipped norm in place of
RMSProp. The memory that values of final observations within a trajectory need is the one stored when acting.
docs/algorithms/impala.md has the equations.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rollax import tree
from rollax.acting import agents, rollout
from rollax.algorithm import Algorithm
from rollax.algorithms.on_policy import Happened, Learner, actor_and_critic, on_policy, passes
from rollax.config import number, settings, static
from rollax.environments.core import Environment
from rollax.learning import minibatches, normalization, optimizers
from rollax.learning.epochs import epochs
from rollax.learning.losses import kl_estimate, policy_objective, value_error
from rollax.learning.returns import over_streams, vtrace
from rollax.networks.core import Network


@settings
class ImpalaConfig:
    """Settings of IMPALA. Those marked (static) shape the program; all others are data, so they can be swept over."""

    num_envs: int = static(32)
    """(static) Environments run side by side."""
    num_steps: int = static(32)
    """(static) Steps of each environment per update."""
    sequence_length: int = static(32)
    """(static) Steps in a trajectory that credit flows through (a divisor of num_steps)."""
    num_minibatches: int = static(1)
    """(static) Gradient steps per pass over the rollout."""
    num_epochs: int = static(4)
    """(static) Passes over each rollout, by the policy (and by the critic, if critic_epochs is 0)."""
    critic_epochs: int = static(0, low=0)
    """(static) Passes by a separate critic; 0: as many as the policy."""
    objective: Literal["gradient", "clipped"] = static("gradient")
    """(static) The policy's loss: the policy gradient weighted by clipped ratios, or PPO's clipped surrogate."""
    normalize_advantages: bool = static(False)
    """(static) Advantages of a minibatch get mean 0 and deviation 1."""
    normalize_observations: bool = static(False)
    """(static) Shift and scale observations by running statistics."""
    normalize_rewards: bool = static(True)
    """(static) Scale rewards by the running deviation of discounted returns."""
    prioritized: bool = static(False)
    """(static) Draw trajectories by the size of their advantages instead of each once."""
    sharing: agents.Sharing = static("all")
    """(static) Which agents share parameters: all, those of one type, or none (each learns alone)."""
    learning_rate: float = number(1e-3, low=0)
    """Adam's step size (of the policy, where the critic is separate)."""
    critic_learning_rate: float = number(0.0, low=0)
    """Step size of a separate critic; 0: the same as the policy's."""
    learning_rate_final_fraction: float = number(0.0, 0, 1)
    """Share of the learning rates left at the end of training, reached linearly."""
    gamma: float = number(0.99, 0, 1)
    """Discount."""
    vtrace_lambda: float = number(0.95, 0, 1)
    """Decay of the trace."""
    rho_clip: float = number(1.0, low=0, high=float("inf"))
    """Largest weight of a temporal difference (rho-bar): which policy's value is learnt."""
    c_clip: float = number(1.0, low=0, high=float("inf"))
    """Largest weight of a trace (c-bar): how far later differences reach back. More than rho_clip counts as rho_clip."""
    clip: float = number(0.2, low=0)
    """How far the ratio may go from 1, for the clipped objective."""
    value_coefficient: float = number(0.5, low=0)
    """Weight of the value loss."""
    entropy_coefficient: float = number(0.01)
    """Weight of the entropy bonus."""
    entropy_final_fraction: float = number(1.0, 0)
    """Share of the entropy bonus left at the end of training, reached linearly."""
    priority_exponent: float = number(0.8, low=0)
    """How much priorities count, if prioritized is set; 0: not at all."""
    importance_exponent: float = number(0.4, 0, 1)
    """How much of that the importance weights undo at the start; all of it at the end of training."""
    target_kl: float = number(float("inf"), low=0)
    """Stop the policy's epochs of an update after one whose mean KL estimate exceeds this; inf: never."""
    max_grad_norm: float = number(0.5, low=0, high=float("inf"))
    """Global norm to which gradients are clipped, per optimizer."""
    adam_epsilon: float = number(1e-5, low=0)
    """Adam's epsilon."""
    total_updates: float = number(float("inf"), low=1)
    """Updates until the schedules end. The run sets it from its total steps."""

    @property
    def frames_per_update(self) -> int:
        """Environment frames in one update."""
        return self.num_envs * self.num_steps


class Credit(NamedTuple):
    """Float `[L, B]` each, of a network that is held still."""

    target: jax.Array
    advantage: jax.Array
    log_ratio: jax.Array


def credit(network: Network, data: rollout.Trajectory, config: ImpalaConfig) -> Credit:
    """V-trace of trajectories `[L, B]` for the network as it is now."""
    carry, output = network.unroll(jax.tree.map(lambda x: x[0], data.carry), data.obs, data.reset)
    log_prob = tree.over_steps(lambda policy, draw: policy.log_prob(draw))(output.policy, data.draw)
    log_ratio = jnp.clip(log_prob - data.log_prob, -20.0, 20.0)
    next_value = rollout.next_values(network, data._replace(value=output.value), carry)
    ends = data.terminated, data.truncated
    target, advantage = correct(config, data.reward, output.value, next_value, log_ratio, *ends)
    return jax.lax.stop_gradient(Credit(target, advantage, log_ratio))


def correct(config: ImpalaConfig, *arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`vtrace` of streams `[T, S]` by the config's numbers.

    The source takes c-bar <= rho-bar for granted. It is made so here, where a sweep or an evolving population may change both.
    """
    numbers = config.gamma, config.vtrace_lambda, config.rho_clip, jnp.minimum(config.c_clip, config.rho_clip)
    return over_streams(vtrace, len(numbers))(*arrays, *numbers)


def loss(
    network: Any,
    see: Callable[[Any], Network],
    data: rollout.Trajectory,
    weight: jax.Array,
    config: ImpalaConfig,
    entropy_weight: jax.Array,
) -> Any:
    """The loss of section 4.2 over trajectories `[L, B]`, each weighted by `weight` `[1, B]`, and its metrics."""
    fixed = credit(see(network), data, config)
    _, output = see(network).unroll(jax.tree.map(lambda x: x[0], data.carry), data.obs, data.reset)
    density = tree.over_steps(lambda policy, draw: (policy.log_prob(draw), policy.entropy()))
    log_prob, entropy = density(output.policy, data.draw)
    advantage = normalization.standardize(fixed.advantage, data.present) if config.normalize_advantages else fixed.advantage
    ratio = jnp.exp(fixed.log_ratio)
    if config.objective == "clipped":
        objective = policy_objective(jnp.clip(log_prob - data.log_prob, -20.0, 20.0), advantage, config.clip)
    else:
        objective = jnp.minimum(config.rho_clip, ratio) * log_prob * advantage
    weight = jnp.broadcast_to(weight, log_prob.shape)
    terms = {
        "policy_loss": -weight * objective,
        "value_loss": weight * value_error(output.value, output.value, fixed.target, None),
        "entropy": weight * entropy,
        "approx_kl": kl_estimate(fixed.log_ratio),
        "rho_clipped": (ratio > config.rho_clip).astype(jnp.float32),
    }
    metrics = normalization.means(terms, data.present)
    total = metrics["policy_loss"] + config.value_coefficient * metrics["value_loss"] - entropy_weight * metrics["entropy"]
    return total, {"loss": total, **metrics}


def impala(environment: Environment, network: Callable[[jax.Array], Network]) -> Algorithm:
    """IMPALA in `environment` with the network that `network(key)` makes (outputs `ActorCriticOutput`).

    `init` raises ValueError when the sizes in the config do not divide.
    """
    return on_policy(environment, network, actor_and_critic, cut, learn)


def cut(config: ImpalaConfig, num_streams: int) -> minibatches.Layout:
    """How the rollouts of one group are cut."""
    sizes = config.num_steps, num_streams, config.sequence_length, config.num_minibatches
    return minibatches.layout(*sizes, pooled=config.prioritized)


def preference(
    config: ImpalaConfig, progress: jax.Array, advantage: jax.Array, present: Any, layout: minibatches.Layout
) -> tuple[jax.Array, jax.Array]:
    """Priority and importance weight `[rows]` of trajectories by the size of their advantages `[T, S]`, where present."""
    counts = jnp.ones_like(advantage, bool) if isinstance(present, tuple) else present
    by_row = lambda x: jnp.sum(minibatches.to_rows(x, layout), axis=(1, 2, 3))  # noqa: E731
    size = by_row(counts.astype(jnp.float32))
    priority = jnp.where(size > 0, by_row(jnp.where(counts, jnp.abs(advantage), 0.0)) + 1e-6, 0.0)
    beta = config.importance_exponent + (1 - config.importance_exponent) * jnp.clip(progress, 0.0, 1.0)
    return priority, minibatches.importance(priority, config.priority_exponent, beta, size)


def learn(
    config: ImpalaConfig, progress: jax.Array, learner: Learner, happened: Happened, key: jax.Array
) -> tuple[Learner, jax.Array, dict[str, jax.Array]]:
    """One update of one set of parameters: minibatches of trajectories, each with credit of its own."""
    trajectory, carry, discounted = happened
    see = normalization.view(learner.observations)
    reward, discounted, returns = rollout.scale_rewards(trajectory, discounted, learner.returns, config.gamma)
    trajectory = trajectory._replace(reward=reward)
    layout = cut(config, reward.shape[1])
    entropy_weight = config.entropy_coefficient * optimizers.anneal(config.entropy_final_fraction, progress)
    transformations = actor_and_critic(config, progress)

    # Credit of the policy that acted, for priorities and metrics.
    next_value = rollout.next_values(see(learner.network), trajectory, carry)
    ends = trajectory.terminated, trajectory.truncated
    target, advantage = correct(config, reward, trajectory.value, next_value, jnp.zeros_like(reward), *ends)
    shuffle, weights = minibatches.shuffle, jnp.ones((layout.rows, layout.groups, 1, layout.block))
    if config.prioritized:
        priority, weight = preference(config, progress, advantage, trajectory.present, layout)
        shuffle = functools.partial(minibatches.prioritize, priority, config.priority_exponent)
        weights = jnp.expand_dims(weight, (1, 2, 3))
    rows = minibatches.to_rows(trajectory, layout)

    def minibatch(learner: Any, order: jax.Array, active: dict[str, jax.Array]) -> tuple[Any, dict[str, jax.Array]]:
        network, states = learner
        data, weight = minibatches.take((rows, weights), order)
        gradient, metrics = jax.grad(loss, has_aux=True)(network, see, data, weight, config, entropy_weight)
        metrics["grad_norm"] = optax.tree.norm(gradient)
        return optimizers.update(transformations, network, states, gradient, active), metrics

    start, counts = (learner.network, learner.optimizer), passes(config, learner)
    (network, optimizer), metrics = epochs(minibatch, start, layout, key, *counts, config.target_kl, shuffle)
    metrics |= rollout.fit(trajectory, advantage, target)
    return Learner(network, optimizer, learner.observations, returns), discounted, metrics
