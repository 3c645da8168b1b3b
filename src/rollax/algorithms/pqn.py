"""Parallelized Q-network: Q-learning from many environments at once, with neither replay nor target network.

Gallici et al. 2024, arXiv:2407.04811, algorithm 1 with its lambda-returns: networks are normalized layer by layer
(`network.layer_norm`), which is what lets them learn without targets that lag behind. It is the rollout of PPO with an
epsilon-greedy policy, whose value is that of its best action; so it has PPO's memory, learnt from in sequences, and its agents
too. Deviations: Adam (the paper: rectified Adam), and returns bootstrap where an episode was cut off by time; with a memory the
sequences start from stored carries. docs/algorithms/pqn.md has all equations.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rollax.acting import agents, rollout
from rollax.algorithm import Algorithm
from rollax.algorithms.on_policy import Happened, Learner, on_policy
from rollax.config import number, settings, static
from rollax.environments.core import Environment
from rollax.learning import minibatches, normalization, optimizers
from rollax.learning.returns import gae, over_streams
from rollax.networks.core import Network
from rollax.networks.critics import Acting, check_discrete, falling, of_action


@settings
class PQNConfig:
    """Settings of PQN. Those marked (static) shape the program; all others are data, so they can be swept over."""

    num_envs: int = static(64)
    """(static) Environments run side by side."""
    num_steps: int = static(32)
    """(static) Steps of each environment per update."""
    sequence_length: int = static(1)
    """(static) Steps that are learnt from in a row: 1 without memory, more (a divisor of num_steps) with one."""
    num_minibatches: int = static(8)
    """(static) Gradient steps per epoch."""
    num_epochs: int = static(2)
    """(static) Passes over each rollout."""
    normalize_observations: bool = static(False)
    """(static) Shift and scale observations by running statistics."""
    normalize_rewards: bool = static(False)
    """(static) Scale rewards by the running deviation of discounted returns."""
    sharing: agents.Sharing = static("all")
    """(static) Which agents share parameters: all, those of one type, or none (each learns alone)."""
    epsilon: float = number(1.0, 0, 1)
    """Chance of a random action at the start."""
    epsilon_final_fraction: float = number(0.05, 0, 1)
    """Chance of a random action once exploration_fraction of training is over, reached linearly."""
    exploration_fraction: float = number(0.2, 0, 1)
    """Share of training over which that chance falls."""
    learning_rate: float = number(5e-4, low=0)
    """Adam's step size."""
    learning_rate_final_fraction: float = number(1.0, 0, 1)
    """Share of the learning rate left at the end of training, reached linearly."""
    gamma: float = number(0.99, 0, 1)
    """Discount."""
    q_lambda: float = number(0.65, 0, 1)
    """Trace decay of the returns; 0: one step, 1: until the end of the rollout."""
    max_grad_norm: float = number(10.0, low=0, high=float("inf"))
    """Global norm to which gradients are clipped."""
    adam_epsilon: float = number(1e-8, low=0)
    """Adam's epsilon."""
    total_updates: float = number(float("inf"), low=1)
    """Updates until the schedules end. The run sets it from its total steps."""

    @property
    def frames_per_update(self) -> int:
        """Environment frames in one update."""
        return self.num_envs * self.num_steps


class Samples(NamedTuple):
    """What is learnt from: `[T, S, ...]`, then `[L, B, ...]`; the carry once a sequence."""

    carry: Any
    obs: Any
    reset: jax.Array
    action: jax.Array
    target: jax.Array
    present: Any = ()  # which samples count; () for all


def pqn(environment: Environment, network: Callable[[jax.Array], Network]) -> Algorithm:
    """PQN in `environment` with the network that `network(key)` makes, `(carry, obs) -> (carry, action values [n])`.

    `init` raises ValueError when the sizes in the config do not divide. Raises UsageError for actions that are not `Discrete`.
    """
    check_discrete(environment.action_space)
    return on_policy(environment, network, transformations, cut, learn, acting)


def acting(network: Network, config: PQNConfig, progress: jax.Array) -> Acting:
    """Epsilon-greedy, with the chance of this moment."""
    return Acting(network, falling(config, progress))


def cut(config: PQNConfig, num_streams: int) -> minibatches.Layout:
    """How the rollouts of one group are cut."""
    return minibatches.layout(config.num_steps, num_streams, config.sequence_length, config.num_minibatches)


def transformations(config: PQNConfig, progress: jax.Array | float) -> dict[str, optax.GradientTransformation]:
    """The optimizer, by the name that everything has which is no critic apart; `progress` goes from 0 to 1 over the run."""
    rate = config.learning_rate * optimizers.anneal(config.learning_rate_final_fraction, progress)
    return {"actor": optimizers.adam(rate, config.adam_epsilon, config.max_grad_norm)}


def learn(
    config: PQNConfig, progress: jax.Array, learner: Learner, happened: Happened, key: jax.Array
) -> tuple[Learner, jax.Array, dict[str, jax.Array]]:
    """One update of one set of parameters: targets, then epochs of minibatches. Metrics are means over them all."""
    trajectory, carry, discounted = happened
    see = normalization.view(learner.observations)

    # Credit: R_t = r_t + gamma ((1 - lambda) max Q(s_(t+1)) + lambda R_(t+1))
    reward, discounted, returns = rollout.scale_rewards(trajectory, discounted, learner.returns, config.gamma)
    next_value = rollout.next_values(see(acting(learner.network, config, progress)), trajectory, carry)
    ends = trajectory.terminated, trajectory.truncated
    lead = over_streams(gae, 2)(reward, trajectory.value, next_value, *ends, config.gamma, config.q_lambda)
    target = lead + trajectory.value

    # Learn
    starts = jax.tree.map(lambda x: x[:: config.sequence_length], trajectory.carry)
    layout = cut(config, reward.shape[1])
    rows = minibatches.to_rows(
        Samples(starts, trajectory.obs, trajectory.reset, trajectory.draw, target, trajectory.present), layout
    )
    rules, active = transformations(config, progress), {"actor": jnp.ones((), bool)}

    def minibatch(learner: Any, order: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        network, states = learner
        gradient, metrics = jax.grad(loss, has_aux=True)(network, see, minibatches.take(rows, order))
        metrics["grad_norm"] = optax.tree.norm(gradient)
        return optimizers.update(rules, network, states, gradient, active), metrics

    orders = jax.vmap(lambda key: minibatches.shuffle(key, layout))(jax.random.split(key, config.num_epochs))
    start = learner.network, learner.optimizer
    (network, optimizer), metrics = jax.lax.scan(minibatch, start, orders.reshape(-1, *orders.shape[2:]))
    metrics = jax.tree.map(jnp.mean, metrics) | rollout.fit(trajectory, lead, target)
    metrics["epsilon"] = falling(config, progress)
    return Learner(network, optimizer, learner.observations, returns), discounted, metrics


def loss(network: Any, see: Callable[[Any], Network], samples: Samples) -> tuple[jax.Array, dict[str, jax.Array]]:
    """mean (Q(s, a) - R)^2 / 2 of samples `[L, B]`."""
    _, values = see(network).unroll(jax.tree.map(lambda x: x[0], samples.carry), samples.obs, samples.reset)
    chosen = jax.vmap(of_action)(values, samples.action)
    error = chosen - samples.target
    metrics = normalization.means({"loss": 0.5 * error**2, "error": jnp.abs(error), "chosen_value": chosen}, samples.present)
    return metrics["loss"], metrics
