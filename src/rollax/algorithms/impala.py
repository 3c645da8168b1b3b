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
from typing import Any, Literal

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
from rollax.learning import losses, minibatches, priorities, train_state
from rollax.learning.returns import next_values, over_streams, with_values
from rollax.learning.train_state import TrainState
from rollax.learning.vtrace import vtrace
from rollax.networks import windows
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
    normalize_advantages: Literal["minibatch", "off"] = static("off")
    """(static) Over which samples advantages get mean 0 and standard deviation 1."""
    normalize_observations: bool = static(False)
    """(static) Shift and scale observations by running statistics."""
    normalize_rewards: bool = static(True)
    """(static) Scale rewards by the running deviation of discounted returns."""
    prioritized: bool = static(False)
    """(static) Draw trajectories by the size of their advantages instead of each once."""
    normalize_values: bool = static(False)
    """(static) Learn values in units of the running mean and deviation of their targets, which changes no value (PopArt)."""
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
    def steps_per_update(self) -> int:
        """Environment frames in one update."""
        return self.num_envs * self.num_steps


def credit(config: ImpalaConfig, *arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Targets and advantages: `vtrace` of streams `[T, S]` by the config's numbers.

    The source takes c-bar <= rho-bar for granted. It is made so here, where a sweep or an evolving population may change both.
    """
    numbers = config.gamma, config.vtrace_lambda, config.rho_clip, jnp.minimum(config.c_clip, config.rho_clip)
    return over_streams(vtrace, len(numbers))(*arrays, *numbers)


def loss(
    network: Any,
    moments: tuple[Any, Any],
    data: Experience,
    weight: jax.Array,
    config: ImpalaConfig,
    entropy_coefficient: jax.Array,
) -> Any:
    """The loss of section 4.2 over trajectories `[L, B]`, each weighted by `weight` `[1, B]`, and its metrics.

    `moments`: of observations and of value targets.
    """
    network, (_, std) = train_state.normalized(network, *moments), train_state.value_scale(moments[1])
    carry, output = network.unroll(windows.first(data.carry), data.obs, data.reset)
    density = tree.over_steps(lambda policy, raw_action: (policy.log_prob(raw_action), policy.entropy()))
    log_prob, entropy = density(output.policy, data.extras.raw_action)
    log_ratio = jnp.clip(log_prob - data.extras.log_prob, -20.0, 20.0)

    # Credit of the network as it is now, which is held still: no gradient goes through targets, advantages and ratios.
    still, value, fixed_ratio, carry = jax.lax.stop_gradient((network, output.value, log_ratio, carry))
    next_value = next_values(still, data, value, carry)
    target, advantage = credit(config, data.reward, value, next_value, fixed_ratio, data.terminated, data.truncated)
    advantage = losses.standardize(advantage, data.mask) if config.normalize_advantages == "minibatch" else advantage / std

    ratio = jnp.exp(fixed_ratio)
    if config.objective == "clipped":
        objective = losses.clipped_objective(log_ratio, advantage, config.clip)
    else:
        objective = jnp.minimum(config.rho_clip, ratio) * log_prob * advantage
    weight = jnp.broadcast_to(weight, log_prob.shape)
    terms = {
        "policy_loss": -weight * objective,
        "value_loss": weight * losses.value_error(output.value, value, target, None) / std**2,
        "entropy": weight * entropy,
        "approx_kl": losses.kl_estimate(fixed_ratio),
        "rho_clipped": (ratio > config.rho_clip).astype(jnp.float32),
    }
    metrics = losses.means(terms, data.mask)
    total = metrics["policy_loss"] + config.value_coefficient * metrics["value_loss"] - entropy_coefficient * metrics["entropy"]
    return total, {"loss": total, **metrics}


def impala(environment: Environment, network: Callable[[jax.Array], Network]) -> Algorithm:
    """IMPALA in `environment` with the network that `network(key)` makes (outputs `ActorCriticOutput`).

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


def layout(config: ImpalaConfig, num_streams: int) -> minibatches.Layout:
    """How the rollouts of one set of parameters are cut into minibatches of trajectories."""
    sizes = config.num_steps, num_streams, config.sequence_length, config.num_minibatches
    cut = minibatches.layout(*sizes, pooled=config.prioritized)
    # The values of final observations are computed on each device for its own share.
    number, devices = cut.rows // cut.num_minibatches * cut.groups * cut.block, tree.num_devices()
    if number % devices:
        raise ValueError(
            f"a minibatch has {number} sequences (streams x num_steps / sequence_length / num_minibatches), which "
            f"devices ({devices}) does not divide: try fewer num_minibatches, a shorter sequence_length or more num_envs"
        )
    return cut


def learn(
    config: ImpalaConfig,
    progress: jax.Array,
    train: TrainState,
    rollout: Experience,
    last: tuple[Any, jax.Array],
    key: jax.Array,
) -> tuple[TrainState, jax.Array, dict[str, jax.Array], Finite]:
    """One update of one set of parameters: minibatches of trajectories, each with credit of its own. `last`: as in PPO."""
    train, reward, discounted_return = train_state.scale_rewards(train, rollout, last[1], config.gamma)
    cut = layout(config, reward.shape[1])

    # Credit of the policy that acted, for priorities and metrics.
    acted = train_state.normalized(train.network, train.observations, train.values)
    rollout = with_values(acted, rollout, config.num_minibatches)
    value = rollout.extras.value
    next_value = next_values(acted, rollout, value, last[0])
    ends = rollout.terminated, rollout.truncated
    target, advantage = credit(config, reward, value, next_value, jnp.zeros_like(reward), *ends)
    shuffle, weights = minibatches.shuffle, jnp.ones((cut.rows, cut.groups, 1, cut.block))
    if config.prioritized:
        priority, size = priorities.of_trajectories(advantage, rollout.mask, cut)
        beta = config.importance_exponent + (1 - config.importance_exponent) * jnp.clip(progress, 0.0, 1.0)
        weight = priorities.importance(priority, config.priority_exponent, beta, size)
        shuffle = functools.partial(priorities.sample, priority, config.priority_exponent)
        weights = jnp.expand_dims(weight, (1, 2, 3))

    # Learn
    train = train_state.observe_targets(train, target, rollout.mask)
    carries = windows.cut(rollout.carry, config.sequence_length)
    rows = minibatches.to_rows(rollout._replace(reward=reward, carry=carries), cut)
    entropy_coefficient = train_state.anneal(config.entropy_coefficient, config.entropy_final_fraction, progress)
    optimizers = train_state.actor_and_critic(config, progress)

    def minibatch(train: TrainState, order: jax.Array, active: dict[str, jax.Array]) -> tuple[TrainState, dict[str, jax.Array]]:
        data, weight = minibatches.take((rows, weights), order)
        arguments = (train.observations, train.values), data, weight, config, entropy_coefficient
        gradient, metrics = jax.grad(loss, has_aux=True)(train.network, *arguments)
        metrics["grad_norm"] = optax.tree.norm(gradient)
        return train_state.update(train, optimizers, gradient, active), metrics

    epochs = train_state.num_epochs(config, train)
    train, metrics = minibatches.epochs(minibatch, train, cut, key, *epochs, config.target_kl, shuffle)
    train = train_state.observe(train, rollout)
    more, finite = losses.report(rollout, advantage, target, metrics["loss"], (train.network, train.observations))
    metrics |= more | {"learning_rate": train_state.anneal(config.learning_rate, config.learning_rate_final_fraction, progress)}
    return train, discounted_return, metrics, finite
