"""Proximal policy optimization: feed-forward or recurrent, for one agent or many.

Schulman et al. 2017, arXiv:1707.06347 (clipped objective, eq. 7; the whole, eq. 9 and algorithm 1), with generalized advantage
estimation (Schulman et al. 2016, arXiv:1506.02438). Deviations, each usual today: advantages are normalized, values
may be clipped, gradients are clipped by global norm, and the KL divergence may stop the epochs early. Memory is a carry,
cut into sequences that start from what was stored when acting; an agent is a stream, so that this is IPPO (de Witt et al. 2020,
arXiv:2011.09533), and MAPPO (Yu et al. 2021, arXiv:2103.01955) where critics see a "global_state"; actions are a distribution:
none of them is a flag here. docs/algorithms/ppo.md walks through every equation.
"""

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
from rollax.learning.returns import gae, over_streams
from rollax.networks.core import Network


@settings
class PPOConfig:
    """Settings of PPO. Those marked (static) shape the program; all others are data, so they can be swept over."""

    num_envs: int = static(64)
    """(static) Environments run side by side."""
    num_steps: int = static(64)
    """(static) Steps of each environment per update."""
    sequence_length: int = static(1)
    """(static) Steps that are learnt from in a row: 1 without memory, more (a divisor of num_steps) with one."""
    num_minibatches: int = static(8)
    """(static) Gradient steps per epoch."""
    num_epochs: int = static(4)
    """(static) Passes over each rollout, by the policy (and by the critic, if critic_epochs is 0)."""
    critic_epochs: int = static(0, low=0)
    """(static) Passes by a separate critic; 0: as many as the policy."""
    normalize_advantages: Literal["minibatch", "batch", "off"] = static("minibatch")
    """(static) Over which samples advantages get mean 0 and deviation 1."""
    clip_values: bool = static(False)
    """(static) Clip the change of the value as well, by value_clip."""
    normalize_observations: bool = static(False)
    """(static) Shift and scale observations by running statistics."""
    normalize_rewards: bool = static(False)
    """(static) Scale rewards by the running deviation of discounted returns."""
    sharing: agents.Sharing = static("all")
    """(static) Which agents share parameters: all, those of one type, or none (each learns alone)."""
    learning_rate: float = number(5e-4, low=0)
    """Adam's step size (of the policy, where the critic is separate)."""
    critic_learning_rate: float = number(0.0, low=0)
    """Step size of a separate critic; 0: the same as the policy's."""
    learning_rate_final_fraction: float = number(1.0, 0, 1)
    """Share of the learning rates left at the end of training, reached linearly: 1 is constant, 0 anneals to zero."""
    gamma: float = number(0.99, 0, 1)
    """Discount."""
    gae_lambda: float = number(0.95, 0, 1)
    """Trace decay of the advantage."""
    clip: float = number(0.2, low=0)
    """How far the importance ratio may go from 1 before its gradient stops (epsilon of eq. 7)."""
    value_clip: float = number(0.2, low=0)
    """How far a value may move per update when clip_values is set, in units of (normalized) return."""
    value_coefficient: float = number(0.5, low=0)
    """Weight of the value loss (c1 of eq. 9)."""
    entropy_coefficient: float = number(0.01)
    """Weight of the entropy bonus (c2 of eq. 9)."""
    entropy_final_fraction: float = number(1.0, 0)
    """Share of the entropy bonus left at the end of training, reached linearly."""
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


class Batch(NamedTuple):
    """What learning needs of a rollout: `[T, S, ...]`, then `[L, B, ...]`; the carry once a sequence."""

    carry: Any
    obs: Any
    reset: jax.Array
    draw: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    present: Any = ()  # which samples count; () for all


def loss(network: Any, see: Callable[[Any], Network], data: Batch, config: PPOConfig, entropy_weight: jax.Array) -> Any:
    """-(L_clip - c1 L_value + c2 S) of eq. 9 over a minibatch `[L, B]`, and its metrics."""
    _, output = see(network).unroll(jax.tree.map(lambda x: x[0], data.carry), data.obs, data.reset)
    density = tree.over_steps(lambda policy, draw: (policy.log_prob(draw), policy.entropy()))
    log_prob, entropy = density(output.policy, data.draw)

    by_minibatch = config.normalize_advantages == "minibatch"
    advantage = normalization.standardize(data.advantage, data.present) if by_minibatch else data.advantage
    log_ratio = jnp.clip(log_prob - data.log_prob, -20.0, 20.0)  # beyond it exp overflows, and 0 times its gradient is NaN
    value_clip = config.value_clip if config.clip_values else None
    terms = {
        "policy_loss": -policy_objective(log_ratio, advantage, config.clip),
        "value_loss": value_error(output.value, data.value, data.target, value_clip),
        "entropy": entropy,
        "approx_kl": jax.lax.stop_gradient(kl_estimate(log_ratio)),
        "clip_fraction": (jnp.abs(jnp.exp(log_ratio) - 1) > config.clip).astype(jnp.float32),
    }
    metrics = normalization.means(terms, data.present)
    total = metrics["policy_loss"] + config.value_coefficient * metrics["value_loss"] - entropy_weight * metrics["entropy"]
    return total, {"loss": total, **metrics}


def ppo(environment: Environment, network: Callable[[jax.Array], Network]) -> Algorithm:
    """PPO in `environment` with the network that `network(key)` makes (outputs `ActorCriticOutput`).

    `init` raises ValueError when the sizes in the config do not divide.
    """
    return on_policy(environment, network, actor_and_critic, cut, learn)


def cut(config: PPOConfig, num_streams: int) -> minibatches.Layout:
    """How the rollouts of one group are cut."""
    return minibatches.layout(config.num_steps, num_streams, config.sequence_length, config.num_minibatches)


def learn(
    config: PPOConfig, progress: jax.Array, learner: Learner, happened: Happened, key: jax.Array
) -> tuple[Learner, jax.Array, dict[str, jax.Array]]:
    """One update of one set of parameters: credit, then epochs of minibatches."""
    trajectory, carry, discounted = happened
    see, present = normalization.view(learner.observations), trajectory.present

    # Credit
    reward, discounted, returns = rollout.scale_rewards(trajectory, discounted, learner.returns, config.gamma)
    next_value = rollout.next_values(see(learner.network), trajectory, carry)
    ends = trajectory.terminated, trajectory.truncated
    advantage = over_streams(gae, 2)(reward, trajectory.value, next_value, *ends, config.gamma, config.gae_lambda)
    target = advantage + trajectory.value

    # Learn
    scaled = normalization.standardize(advantage, present) if config.normalize_advantages == "batch" else advantage
    starts = jax.tree.map(lambda x: x[:: config.sequence_length], trajectory.carry)
    kept = trajectory.obs, trajectory.reset, trajectory.draw, trajectory.log_prob, trajectory.value
    layout = cut(config, reward.shape[1])
    rows = minibatches.to_rows(Batch(starts, *kept, scaled, target, present), layout)
    entropy_weight = config.entropy_coefficient * optimizers.anneal(config.entropy_final_fraction, progress)
    transformations = actor_and_critic(config, progress)

    def minibatch(learner: Any, order: jax.Array, active: dict[str, jax.Array]) -> tuple[Any, dict[str, jax.Array]]:
        network, states = learner
        gradient, metrics = jax.grad(loss, has_aux=True)(network, see, minibatches.take(rows, order), config, entropy_weight)
        metrics["grad_norm"] = optax.tree.norm(gradient)
        return optimizers.update(transformations, network, states, gradient, active), metrics

    start = learner.network, learner.optimizer
    (network, optimizer), metrics = epochs(minibatch, start, layout, key, *passes(config, learner), config.target_kl)
    metrics |= rollout.fit(trajectory, advantage, target)
    return Learner(network, optimizer, learner.observations, returns), discounted, metrics
