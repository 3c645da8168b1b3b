"""Parallelized Q-network: Q-learning from many environments at once, with neither replay nor target network.

Gallici et al. 2024, arXiv:2407.04811, algorithm 1 with its lambda-returns: networks are normalized layer by layer
(`network.layer_norm`), which is what lets them learn without targets that lag behind. It is the rollout of PPO with an
epsilon-greedy policy, whose value is that of its best action; so it has PPO's memory, learnt from in sequences, and its agents
too. Deviations: Adam (the paper: rectified Adam), and returns bootstrap where an episode was cut off by time; with a memory the
sequences start from stored carries. docs/algorithms/pqn.md has all equations.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rollax.acting import agents
from rollax.acting.exploration import epsilon_schedule
from rollax.acting.streams import Experience, Policy, by_stream, unroll
from rollax.algorithm import Algorithm, Finite, Metrics
from rollax.algorithms.on_policy import OnPolicyState, begin, to_algorithm
from rollax.config import number, settings, static
from rollax.environments.core import Environment
from rollax.learning import losses, minibatches, train_state
from rollax.learning.returns import gae, next_values, over_streams
from rollax.learning.train_state import TrainState
from rollax.networks import windows
from rollax.networks.core import Network, choose_action, sample_action
from rollax.networks.q_networks import EpsilonGreedyNetwork, select_q
from rollax.spaces import check_discrete


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
    def steps_per_update(self) -> int:
        """Environment frames in one update."""
        return self.num_envs * self.num_steps


class Batch(NamedTuple):
    """What learning needs of a rollout: `[T, S, ...]`, then `[L, B, ...]`; the carry once a sequence."""

    carry: Any
    obs: Any
    reset: jax.Array
    action: jax.Array
    target: jax.Array
    mask: jax.Array | None


def loss(network: Any, observations: Any, data: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
    """mean (Q(s, a) - R)^2 / 2 over a minibatch `[L, B]`, and its metrics."""
    network = train_state.normalized(network, observations)
    _, values = network.unroll(jax.tree.map(lambda x: x[0], data.carry), data.obs, data.reset)
    selected_q = jax.vmap(select_q)(values, data.action)
    td_error = selected_q - data.target
    terms = {"loss": 0.5 * td_error**2, "td_error": jnp.abs(td_error), "selected_q": selected_q}
    metrics = losses.means(terms, data.mask)
    return metrics["loss"], metrics


def pqn(environment: Environment, network: Callable[[jax.Array], Network]) -> Algorithm:
    """PQN in `environment` with the network that `network(key)` makes, `(carry, obs) -> (carry, action values [n])`.

    `init` raises ValueError when the sizes in the config do not divide. Raises UsageError for actions that are not `Discrete`.
    """
    check_discrete(environment.action_space)

    init = functools.partial(begin, environment, network, optimizers, layout=layout)

    def explore(state: OnPolicyState) -> Policy:
        act = functools.partial(sample, state.config, state.updates / state.config.total_updates)
        return agents.policy(agents.team(environment, state.config.sharing), act, state.train)

    def step(state: OnPolicyState) -> tuple[OnPolicyState, Metrics]:
        config, team = state.config, agents.team(environment, state.config.sharing)
        key, act_key, learn_key = jax.random.split(state.key, 3)

        progress = state.updates / config.total_updates

        # Act
        actor, rollout, episodes = unroll(environment, explore(state), state.actor, act_key, config.num_steps)

        # Credit and learn: every set of parameters from the streams of its own agents
        last = by_stream(environment, actor.carry), state.discounted_return
        parts = state.train, agents.split(team, rollout, axis=1), agents.split(team, last)
        update = functools.partial(learn, config, progress)
        train, last, *metrics = agents.each(team, update, *parts, agents.make(team, lambda key: key, learn_key))

        values, finite = agents.summarize(team, *metrics)
        state = OnPolicyState(key, config, train, actor, agents.join(team, last), state.updates + 1)
        return state, Metrics(values, episodes, finite)

    return to_algorithm(environment, init, step, choose, explore)


def epsilon_greedy(config: PQNConfig, progress: jax.Array, train: TrainState) -> Network:
    """The network as it acts: its policy is epsilon-greedy, its value that of the best action."""
    return train_state.normalized(EpsilonGreedyNetwork(train.network, epsilon_schedule(config, progress)), train.observations)


def sample(
    config: PQNConfig, progress: jax.Array, train: TrainState, carry: Any, obs: Any, reset: jax.Array, key: jax.Array
) -> tuple[Any, Any, Any]:
    return sample_action(epsilon_greedy(config, progress, train), carry, obs, reset, key)


def choose(config: PQNConfig, greedy: jax.Array, train: TrainState, carry: Any, obs: Any, key: jax.Array) -> tuple[Any, Any]:
    """Not greedily it explores as at the end of training."""
    return choose_action(epsilon_greedy(config, jnp.ones(()), train), carry, obs, key, greedy)


def layout(config: PQNConfig, num_streams: int) -> minibatches.Layout:
    """How the rollouts of one set of parameters are cut into minibatches."""
    return minibatches.layout(config.num_steps, num_streams, config.sequence_length, config.num_minibatches)


def optimizers(config: PQNConfig, progress: jax.Array | float) -> dict[str, optax.GradientTransformation]:
    """The optimizer, by the name that everything has which is no separate critic; `progress` goes from 0 to 1 over the run."""
    rate = train_state.anneal(config.learning_rate, config.learning_rate_final_fraction, progress)
    return {"actor": train_state.adam(rate, config.adam_epsilon, config.max_grad_norm)}


def learn(
    config: PQNConfig, progress: jax.Array, train: TrainState, rollout: Experience, last: tuple[Any, jax.Array], key: jax.Array
) -> tuple[TrainState, jax.Array, dict[str, jax.Array], Finite]:
    """One update of one set of parameters: targets, then epochs of minibatches. Metrics are means over them all."""
    # Credit: R_t = r_t + gamma ((1 - lambda) max Q(s_(t+1)) + lambda R_(t+1))
    train, reward, discounted_return = train_state.scale_rewards(train, rollout, last[1], config.gamma)
    value = rollout.extras.value
    next_value = next_values(epsilon_greedy(config, progress, train), rollout, value, last[0])
    ends = rollout.terminated, rollout.truncated
    advantage = over_streams(gae, 2)(reward, value, next_value, *ends, config.gamma, config.q_lambda)
    target = advantage + value

    # Learn
    starts = windows.starts(rollout.carry, config.sequence_length)
    cut = layout(config, reward.shape[1])
    batch = Batch(starts, rollout.obs, rollout.reset, rollout.extras.raw_action, target, rollout.mask)
    rows, transformations = minibatches.to_rows(batch, cut), optimizers(config, progress)

    def minibatch(train: TrainState, order: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
        gradient, metrics = jax.grad(loss, has_aux=True)(train.network, train.observations, minibatches.take(rows, order))
        metrics["grad_norm"] = optax.tree.norm(gradient)
        return train_state.update(train, transformations, gradient, {"actor": jnp.ones((), bool)}), metrics

    orders = jax.vmap(lambda key: minibatches.shuffle(key, cut))(jax.random.split(key, config.num_epochs))
    train, metrics = jax.lax.scan(minibatch, train, orders.reshape(-1, *orders.shape[2:]))
    metrics = jax.tree.map(jnp.mean, metrics)
    train = train_state.observe(train, rollout)
    more, finite = losses.report(rollout, advantage, target, metrics["loss"], (train.network, train.observations))
    rate = train_state.anneal(config.learning_rate, config.learning_rate_final_fraction, progress)
    metrics |= more | {"learning_rate": rate, "epsilon": epsilon_schedule(config, progress)}
    return train, discounted_return, metrics, finite
