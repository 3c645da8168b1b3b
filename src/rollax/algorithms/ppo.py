"""Proximal policy optimization: feed-forward or recurrent, for one agent or many.

Schulman et al. 2017, arXiv:1707.06347 (clipped objective, eq. 7; the whole, eq. 9 and algorithm 1), with generalized advantage
estimation (Schulman et al. 2016, arXiv:1506.02438). Deviations, each usual today: advantages are normalized, values
may be clipped, gradients are clipped by global norm, and the KL divergence may stop the epochs early. Memory is a carry,
cut into sequences that start from what was stored when acting; an agent is a stream, so that this is IPPO (de Witt et al. 2020,
arXiv:2011.09533), and MAPPO (Yu et al. 2021, arXiv:2103.01955) where critics see a "global_state"; actions are a distribution:
none of them is a flag here. docs/algorithms/ppo.md walks through every equation.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rollax import tree
from rollax.acting import agents
from rollax.acting.streams import Experience, Policy, by_stream, unroll
from rollax.algorithm import Algorithm, Finite, Metrics
from rollax.algorithms.on_policy import OnPolicyState, begin, to_algorithm
from rollax.config import number, settings, static
from rollax.environments.core import Environment
from rollax.learning import losses, minibatches, train_state
from rollax.learning.returns import gae, next_values, over_streams, with_values
from rollax.learning.train_state import TrainState
from rollax.networks import windows
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
    normalize_values: bool = static(False)
    """(static) Learn values in units of the running mean and deviation of their targets, which changes no value (PopArt)."""
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
    def steps_per_update(self) -> int:
        """Environment frames in one update."""
        return self.num_envs * self.num_steps


class Batch(NamedTuple):
    """What learning needs of a rollout: `[T, S, ...]`, then `[L, B, ...]`; the carry once a sequence."""

    carry: Any
    obs: Any
    reset: jax.Array
    raw_action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    mask: jax.Array | None


def loss(network: Any, observations: Any, data: Batch, config: PPOConfig, entropy_coefficient: jax.Array) -> Any:
    """-(L_clip - c1 L_value + c2 S) of eq. 9 over a minibatch `[L, B]`, and its metrics."""
    network = train_state.normalized(network, observations)
    _, output = network.unroll(jax.tree.map(lambda x: x[0], data.carry), data.obs, data.reset)
    density = tree.over_steps(lambda policy, raw_action: (policy.log_prob(raw_action), policy.entropy()))
    log_prob, entropy = density(output.policy, data.raw_action)

    by_minibatch = config.normalize_advantages == "minibatch"
    advantage = losses.standardize(data.advantage, data.mask) if by_minibatch else data.advantage
    log_ratio = jnp.clip(log_prob - data.log_prob, -20.0, 20.0)  # beyond it exp overflows, and 0 times its gradient is NaN
    value_clip = config.value_clip if config.clip_values else None
    terms = {
        "policy_loss": -losses.clipped_objective(log_ratio, advantage, config.clip),
        "value_loss": losses.value_error(output.value, data.value, data.target, value_clip),
        "entropy": entropy,
        "approx_kl": jax.lax.stop_gradient(losses.kl_estimate(log_ratio)),
        "clip_fraction": (jnp.abs(jnp.exp(log_ratio) - 1) > config.clip).astype(jnp.float32),
    }
    metrics = losses.means(terms, data.mask)
    total = metrics["policy_loss"] + config.value_coefficient * metrics["value_loss"] - entropy_coefficient * metrics["entropy"]
    return total, {"loss": total, **metrics}


def ppo(environment: Environment, network: Callable[[jax.Array], Network]) -> Algorithm:
    """PPO in `environment` with the network that `network(key)` makes (outputs `ActorCriticOutput`).

    `init` raises ValueError when the sizes in the config do not divide.
    """

    make_train = train_state.new_actor_critic
    init = functools.partial(begin, environment, network, train_state.actor_and_critic, layout=layout, make_train=make_train)

    def explore(state: OnPolicyState) -> Policy:
        return agents.policy(agents.team(environment, state.config.sharing), train_state.sample, state.train)

    def step(state: OnPolicyState) -> tuple[OnPolicyState, Metrics]:
        config, team = state.config, agents.team(environment, state.config.sharing)
        key, act_key, learn_key = jax.random.split(state.key, 3)

        # Act
        actor, rollout, episodes = unroll(environment, explore(state), state.actor, act_key, config.num_steps)

        # Credit and learn: every set of parameters from the streams of its own agents
        last = by_stream(environment, actor.carry), state.discounted_return
        parts = state.train, agents.split(team, rollout, axis=1), agents.split(team, last)
        update = functools.partial(learn, config, state.updates / config.total_updates)
        train, last, *metrics = agents.each(team, update, *parts, agents.make(team, lambda key: key, learn_key))

        values, finite = agents.summarize(team, *metrics)
        state = OnPolicyState(key, config, train, actor, agents.join(team, last), state.updates + 1)
        return state, Metrics(values, episodes, finite)

    return to_algorithm(environment, init, step, train_state.choose, explore)


def layout(config: PPOConfig, num_streams: int) -> minibatches.Layout:
    """How the rollouts of one set of parameters are cut into minibatches."""
    return minibatches.layout(config.num_steps, num_streams, config.sequence_length, config.num_minibatches)


def learn(
    config: Any,
    progress: jax.Array,
    train: TrainState,
    rollout: Experience,
    last: tuple[Any, jax.Array],
    key: jax.Array,
    bonus: Callable[[jax.Array], jax.Array] = lambda advantage: advantage,
) -> tuple[TrainState, jax.Array, dict[str, jax.Array], Finite]:
    """One update of one set of parameters from a rollout `[T, S]`.

    `last`: the memory after the rollout and the discounted returns before it, `[S]` each; `bonus(advantage)`: what the policy
    learns from instead of the advantage, in units of the critic, whose values go on to be learnt from without it.
    """
    # Credit
    train, reward, discounted_return = train_state.scale_rewards(train, rollout, last[1], config.gamma)
    acted = train_state.normalized(train.network, train.observations, train.values)
    rollout = with_values(acted, rollout, config.num_minibatches)
    value = rollout.extras.value
    next_value = next_values(acted, rollout, value, last[0])
    ends = rollout.terminated, rollout.truncated
    advantage = over_streams(gae, 2)(reward, value, next_value, *ends, config.gamma, config.gae_lambda)
    target = advantage + value

    # Learn, in units of the critic
    train = train_state.observe_targets(train, target, rollout.mask)
    mean, std = train_state.value_scale(train.values)
    by_batch = config.normalize_advantages == "batch"
    wanted = bonus(advantage / std)
    scaled = losses.standardize(wanted, rollout.mask) if by_batch else wanted
    starts = windows.starts(rollout.carry, config.sequence_length)
    extras = rollout.extras.raw_action, rollout.extras.log_prob, (value - mean) / std
    cut = layout(config, reward.shape[1])
    batch = Batch(starts, rollout.obs, rollout.reset, *extras, scaled, (target - mean) / std, rollout.mask)
    rows = minibatches.to_rows(batch, cut)
    entropy_coefficient = train_state.anneal(config.entropy_coefficient, config.entropy_final_fraction, progress)
    optimizers = train_state.actor_and_critic(config, progress)

    def minibatch(train: TrainState, order: jax.Array, active: dict[str, jax.Array]) -> tuple[TrainState, dict[str, jax.Array]]:
        data = minibatches.take(rows, order)
        gradient, metrics = jax.grad(loss, has_aux=True)(train.network, train.observations, data, config, entropy_coefficient)
        metrics["grad_norm"] = optax.tree.norm(gradient)
        return train_state.update(train, optimizers, gradient, active), metrics

    epochs = train_state.num_epochs(config, train)
    train, metrics = minibatches.epochs(minibatch, train, cut, key, *epochs, config.target_kl)
    train = train_state.observe(train, rollout)
    more, finite = losses.report(rollout, advantage, target, metrics["loss"], (train.network, train.observations))
    metrics |= more | {"learning_rate": train_state.anneal(config.learning_rate, config.learning_rate_final_fraction, progress)}
    return train, discounted_return, metrics, finite
