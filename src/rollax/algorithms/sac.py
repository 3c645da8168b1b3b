"""Soft actor-critic (SAC) for continuous, discrete and mixed actions.

Haarnoja et al. 2018, arXiv:1801.01290, in the variant of arXiv:1812.05905, algorithm 1. This
variant has two critics, a learned temperature and no value network. The policy is a normal
distribution squashed to [-1, 1] by tanh, and actions are scaled to the bounds of the environment.
Densities refer to [-1, 1]. For a `Ball`, tanh squashes the norm, and densities refer to the unit
ball. Deviations: Gradients may be clipped, rewards may be scaled, and the
policy may be updated less often than the critics. Exploration noise may be correlated in time,
including the noise of the random actions at the start.

Actions may have discrete parts (Delalleau et al. 2019, arXiv:1912.11077). Critics take the
continuous parts as inputs and return one value for each joint choice of the discrete parts. The
losses average over the choices in closed form, and discrete and continuous parts have separate
temperatures. Without continuous parts, this is discrete SAC (Christodoulou 2019, arXiv:1910.07207).
Deviations: The policy chooses all parts independently given the observation, and the entropy of the
continuous parts is not weighted by the probabilities of the choices that use them.
docs/algorithms/sac.md has all equations.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rollax import tree
from rollax.acting.exploration import sample_normal
from rollax.action_spaces import discrete_sizes, make_normalized_zeros
from rollax.algorithm import Algorithm
from rollax.algorithms.off_policy import off_policy
from rollax.algorithms.replay_updates import (
    AgentFns,
    make_optimizers,
    start_with_demonstrations,
    update_critics,
)
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.environments.environment import Environment
from rollax.learning.optimizers import clipped_adam
from rollax.learning.policy_values import (
    PolicySample,
    expected_min_q,
    sample_continuous,
    sample_mixed,
)
from rollax.learning.train_state import apply_gradients
from rollax.networks.critics import ActorCritics, CriticFn, split_action
from rollax.networks.distributions import transform_noise
from rollax.networks.interop.network_checks import check_stochastic_actor_critics
from rollax.replay.demonstrations import Demonstrations
from rollax.replay.replay_config import ReplayConfig
from rollax.replay.ring import ReplayBatch, make_uniform_replay
from rollax.spaces import ActionSpace
from rollax.types import Action, Carry, Flag, Observation, Parameters, PyTree, Scalar, State

SampleFn = Callable[[Any, Observation, PyTree], PolicySample]
"""Function `(actor, obs, noise)` that samples a policy."""


@settings_dataclass
class SACConfig(ReplayConfig):
    """Settings of SAC.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    learn_temperature: bool = static_field(True)
    """(static) Learn the temperature. If false, it stays at initial_temperature."""
    policy_delay: float = traced_field(1.0, low=1)
    """Gradient steps of the critics per update of policy and temperature. Rounded to an integer."""
    critic_learning_rate: float = traced_field(0.0, low=0)
    """Learning rate of the critics. 0 uses learning_rate."""
    temperature_learning_rate: float = traced_field(0.0, low=0)
    """Learning rate of the temperature. 0 uses learning_rate."""
    tau: float = traced_field(0.005, 0, 1)
    """Step size of the target critics toward the critics, per gradient step."""
    initial_temperature: float = traced_field(1.0, low=0)
    """Initial weight of the entropy (alpha)."""
    target_entropy: float = traced_field(-1.0)
    """Target entropy per unmasked action dimension, in nats for actions in [-1, 1]."""
    discrete_target_entropy: float = traced_field(0.5, 0, 1)
    """Target entropy of the discrete parts, as a fraction of the maximum for legal choices."""
    reward_scale: float = traced_field(1.0)
    """Factor applied to rewards."""
    noise_correlation: float = traced_field(0.0, 0, 1)
    """Correlation of the exploration noise between consecutive steps. 0 is white noise."""
    sde_sample_freq: float = traced_field(0.0, low=0)
    """Steps between draws of the noise weights of gsde. 0 draws them only at episode starts."""


class SACAgent(NamedTuple):
    """Networks, temperature and optimizer states of SAC.

    Attributes:
        network: Policy and critics.
        target: Target critics.
        log_temperature: Logarithms of the temperatures, float `[]`, with the keys of
            `PolicySample.log_prob`.
        optimizer: Optimizer states, keyed by "actor", "critic" and "temperature".
        steps: Number of gradient steps of the critics, int32 `[]`.
    """

    network: ActorCritics
    target: Parameters
    log_temperature: dict[str, jax.Array]
    optimizer: dict[str, State]
    steps: jax.Array


def entropy_cost(temperature: dict[str, jax.Array], sample: PolicySample) -> jax.Array:
    """Return alpha log pi(a|s), summed over the kinds of parts, `[B]`."""
    costs = [temperature[kind] * log_prob for kind, log_prob in sample.log_prob.items()]
    return functools.reduce(operator.add, costs)


def value_target(
    config: SACConfig,
    critic: tuple[CriticFn, ...],
    batch: ReplayBatch,
    temperature: dict[str, jax.Array],
    next_sample: PolicySample,
) -> jax.Array:
    """Return the target of the critics (eqs. 2 and 3), r + gamma (min Q(s', a') - alpha log pi).

    Args:
        config: Settings of the algorithm.
        critic: Target critics.
        batch: Batch of B transitions.
        temperature: Temperatures alpha.
        next_sample: Sample of the policy at the next observations s'.

    Returns:
        The target, float `[B]`.
    """
    next_value = expected_min_q(critic, batch.next_obs, next_sample)
    next_value = next_value - entropy_cost(temperature, next_sample)
    return config.reward_scale * batch.reward + batch.discount * next_value


def policy_loss(
    actor: Callable[[Observation], Any],
    critic: tuple[CriticFn, ...],
    batch: ReplayBatch,
    temperature: dict[str, jax.Array],
    noise: PyTree,
    sample_policy: SampleFn,
) -> tuple[jax.Array, PolicySample]:
    """Return the policy loss (eq. 7), the mean of alpha log pi(a|s) - min Q(s, a) with a ~ pi.

    Args:
        actor: Policy.
        critic: Critics.
        batch: Batch of B transitions.
        temperature: Temperatures alpha.
        noise: Standard normal noise of the continuous parts of actions, `[B, ...]`.
        sample_policy: Function that samples the policy.

    Returns:
        The loss, and the sample of the policy.
    """
    sample = sample_policy(actor, batch.obs, noise)
    cost = entropy_cost(temperature, sample)
    return jnp.mean(cost - expected_min_q(critic, batch.obs, sample)), sample


def temperature_gradient(
    config: SACConfig, temperature: dict[str, jax.Array], sample: PolicySample
) -> dict[str, jax.Array]:
    """Return the gradient of the temperature loss (eq. 18) with respect to log alpha.

    Args:
        config: Settings of the algorithm.
        temperature: Temperatures alpha.
        sample: Sample of the policy. The target entropies exclude dimensions and choices that the
            "action_mask" of an observation forbids.

    Returns:
        The gradient, float32 `[]` for each temperature.
    """
    targets = {
        "continuous": config.target_entropy,
        "discrete": config.discrete_target_entropy,
    }
    return {
        kind: temperature[kind] * jnp.mean(-log_prob - targets[kind] * sample.size[kind])
        for kind, log_prob in sample.log_prob.items()
    }


def sac(
    environment: Environment,
    network: Callable[[jax.Array], ActorCritics],
    demonstrations: Demonstrations | None = None,
) -> Algorithm:
    """Build soft actor-critic (SAC).

    Args:
        environment: Environment whose actions consist of discrete parts, `Ball`s and bounded
            `Box`es.
        network: Function from a random key to the policy and the critics.
        demonstrations: Demonstrations that fill the replay buffer at the start, or None.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if sizes in the config are inconsistent.

    Raises:
        UsageError: If a continuous part of the action space is neither a `Ball` nor a bounded
            `Box`, if the discrete parts have too many joint choices, or if the demonstrations do
            not fit the environment.
    """
    network = check_stochastic_actor_critics("sac", environment, network)
    space = environment.action_space
    agent_fns = AgentFns(
        init=lambda key, config: init_agent(network(key), config, action_kinds(space)),
        explore=explore,
        act=act,
        update=functools.partial(update, sample_policy=make_sampler(space)),
    )
    make_buffer = start_with_demonstrations(
        environment, lambda config: make_uniform_replay(), demonstrations
    )
    return off_policy(environment, agent_fns, make_buffer)


def action_kinds(space: ActionSpace) -> tuple[str, ...]:
    """Return the kinds of parts of an action space, "continuous" and "discrete" or one of them."""
    parts = split_action(make_normalized_zeros(space))._asdict()
    return tuple(kind for kind, arrays in parts.items() if arrays)


def make_sampler(space: ActionSpace) -> SampleFn:
    """Return the function that samples policies over an action space."""
    sizes = discrete_sizes(space)
    return functools.partial(sample_mixed, sizes) if sizes else sample_continuous


def init_agent(
    network: ActorCritics, config: SACConfig, kinds: tuple[str, ...] = ("continuous",)
) -> SACAgent:
    """Return the agent before the first gradient step, with one temperature for each kind."""
    target = jax.tree.map(jnp.copy, network.critic)
    initial = jnp.log(jnp.asarray(config.initial_temperature, jnp.float32))
    log_temperature = dict.fromkeys(kinds, initial)
    parts = {"actor": network.actor, "critic": network.critic, "temperature": log_temperature}
    states = {name: each.init(parts[name]) for name, each in optimizers(config).items()}
    return SACAgent(network, target, log_temperature, states, jnp.zeros((), jnp.int32))


def optimizers(
    config: SACConfig, progress: Scalar = 0.0
) -> dict[str, optax.GradientTransformation]:
    """Return the optimizers of policy and critics, and Adam for the temperature."""
    rate = jnp.where(
        config.temperature_learning_rate > 0, config.temperature_learning_rate, config.learning_rate
    )
    return {
        **make_optimizers(config, progress, actor=0.0, critic=config.critic_learning_rate),
        "temperature": clipped_adam(rate, config.adam_epsilon, config.max_grad_norm),
    }


def update(
    agent: SACAgent,
    config: SACConfig,
    batch: ReplayBatch,
    key: jax.Array,
    progress: Scalar = 0.0,
    sample_policy: SampleFn = sample_continuous,
) -> tuple[SACAgent, dict[str, jax.Array]]:
    """Perform one gradient step (algorithm 1).

    Every `policy_delay` steps, the policy and the temperature are updated with the new critics.

    Args:
        agent: Networks, temperature and optimizer states.
        config: Settings of the algorithm.
        batch: Batch of B transitions.
        key: Random key of the sampled actions.
        progress: Completed fraction of training, from 0 to 1, which ends `frozen_fraction`.
        sample_policy: Function that samples the policy.

    Returns:
        The updated agent, and metrics keyed by name, including absolute TD errors "td_error" `[B]`.
    """
    both_noises = sample_normal(key, batch.action, (2,))
    noise, policy_noise = (jax.tree.map(lambda z, i=i: z[i], both_noises) for i in range(2))
    optimizer, states = optimizers(config, progress), agent.optimizer
    temperature = jax.tree.map(jnp.exp, agent.log_temperature)

    next_sample = sample_policy(agent.network.actor, batch.next_obs, noise)
    target = value_target(config, agent.target, batch, temperature, next_sample)
    learned = update_critics(
        optimizer["critic"], states["critic"], agent.network.critic, batch, target
    )

    def update_policy(before: PyTree) -> PyTree:
        actor, log_temperature, actor_state, temperature_state = before
        gradient, sample = jax.grad(policy_loss, has_aux=True)(
            actor, learned.critic, batch, temperature, policy_noise, sample_policy
        )
        actor, actor_state = apply_gradients(optimizer["actor"], actor_state, actor, gradient)
        if config.learn_temperature:
            gradient = temperature_gradient(config, temperature, sample)
            log_temperature, temperature_state = apply_gradients(
                optimizer["temperature"], temperature_state, log_temperature, gradient
            )
        return actor, log_temperature, actor_state, temperature_state

    steps = agent.steps + 1
    is_due = steps % jnp.round(config.policy_delay).astype(jnp.int32) == 0
    before = agent.network.actor, agent.log_temperature, states["actor"], states["temperature"]
    policy = tree.cond_any_member(is_due, update_policy, before)
    actor, log_temperature, actor_state, temperature_state = policy

    agent = SACAgent(
        network=ActorCritics(actor, learned.critic),
        target=optax.incremental_update(learned.critic, agent.target, config.tau),
        log_temperature=log_temperature,
        optimizer={
            "actor": actor_state,
            "critic": learned.optimizer,
            "temperature": temperature_state,
        },
        steps=steps,
    )
    metrics = {"loss": learned.loss, "td_error": learned.td_error, "value": learned.value}
    return agent, metrics | entropy_metrics(temperature, next_sample)


def entropy_metrics(
    temperature: dict[str, jax.Array], sample: PolicySample
) -> dict[str, jax.Array]:
    """Return the entropy and the temperature of each kind of parts, keyed by metric name."""
    metrics = {}
    for kind, log_prob in sample.log_prob.items():
        prefix = "" if kind == "continuous" else f"{kind}_"
        metrics[f"{prefix}entropy"] = -jnp.mean(log_prob)
        metrics[f"{prefix}temperature"] = temperature[kind]
    return metrics


def explore(
    agent: SACAgent,
    config: SACConfig,
    obs: Observation,
    carry: Carry,
    noise: PyTree,
    key: jax.Array,
    progress: jax.Array,
) -> tuple[Action, Carry]:
    """Return a sample of the policy and the unchanged carry.

    Continuous parts are functions of standard normal `noise`, and discrete parts are sampled.
    """
    policy = agent.network.actor(obs)
    return policy.action(transform_noise(policy, noise, key)), carry


def act(
    agent: SACAgent,
    config: SACConfig,
    obs: Observation,
    carry: Carry,
    key: jax.Array,
    greedy: Flag,
) -> tuple[Action, Carry]:
    """Return the action in evaluation and the unchanged carry.

    The action is the mode of the policy if `greedy` is true, else a sample.
    """
    policy = agent.network.actor(obs)
    return policy.action(tree.where(jnp.asarray(greedy), policy.mode(), policy.sample(key))), carry
