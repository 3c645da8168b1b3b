"""Soft actor-critic (SAC) for continuous actions.

Haarnoja et al. 2018, arXiv:1801.01290, in the variant of arXiv:1812.05905, algorithm 1. This
variant has two critics, a learned temperature and no value network. The policy is a normal
distribution squashed to [-1, 1] by tanh, and actions are scaled to the bounds of the environment.
Densities refer to [-1, 1]. For a `Ball`, tanh squashes the norm, and densities refer to the unit
ball. Deviations: Gradients may be clipped, rewards may be scaled, and the
policy may be updated less often than the critics. Exploration noise may be correlated in time,
including the noise of the random actions at the start. docs/algorithms/sac.md has all equations.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from rollax import tree
from rollax.algorithm import Algorithm
from rollax.algorithms.network_checks import check_stochastic_actor_critics
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
from rollax.learning.train_state import apply_gradients
from rollax.networks.critics import (
    ActorCritics,
    CriticFn,
    min_q,
    num_action_dimensions,
    sample_actions,
)
from rollax.networks.distributions import SquashedPolicy
from rollax.replay.demonstrations import Demonstrations
from rollax.replay.replay_config import ReplayConfig
from rollax.replay.ring import ReplayBatch, make_uniform_replay
from rollax.types import Carry, Flag, Observation, Parameters, PyTree, Scalar, State


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
    reward_scale: float = traced_field(1.0)
    """Factor applied to rewards."""
    noise_correlation: float = traced_field(0.0, 0, 1)
    """Correlation of the exploration noise between consecutive steps. 0 is white noise."""


class SACAgent(NamedTuple):
    """Networks, temperature and optimizer states of SAC.

    Attributes:
        network: Policy and critics.
        target: Target critics.
        log_temperature: Logarithm of the temperature, float `[]`.
        optimizer: Optimizer states, keyed by "actor", "critic" and "temperature".
        steps: Number of gradient steps of the critics, int32 `[]`.
    """

    network: ActorCritics
    target: Parameters
    log_temperature: jax.Array
    optimizer: dict[str, State]
    steps: jax.Array


def policy_loss(
    actor: Callable[[Observation], SquashedPolicy],
    critic: tuple[CriticFn, ...],
    batch: ReplayBatch,
    temperature: jax.Array,
    noise: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Return the policy loss (eq. 7), the mean of alpha log pi(a|s) - min Q(s, a) with a ~ pi.

    Args:
        actor: Policy.
        critic: Critics.
        batch: Batch of B transitions.
        temperature: Temperature alpha.
        noise: Standard normal noise of the sampled actions, `[B, ...]` with the shape of an action.

    Returns:
        The loss, and the log-probabilities log pi(a|s), `[B]`.
    """
    action, log_prob = sample_actions(actor, batch.obs, noise)
    return jnp.mean(temperature * log_prob - min_q(critic, batch.obs, action)), log_prob


def temperature_gradient(
    config: SACConfig, temperature: jax.Array, log_prob: jax.Array, batch: ReplayBatch
) -> jax.Array:
    """Return the gradient of the temperature loss (eq. 18) with respect to log alpha.

    Args:
        config: Settings of the algorithm.
        temperature: Temperature alpha.
        log_prob: Log-probabilities of sampled actions, `[B]`.
        batch: Batch of B transitions. The target entropy excludes action dimensions that the
            "action_mask" of an observation forbids.

    Returns:
        The gradient, float32 `[]`.
    """
    num_dimensions = jax.vmap(num_action_dimensions)(batch.action, batch.obs)
    return temperature * jnp.mean(-log_prob - config.target_entropy * num_dimensions)


def sac(
    environment: Environment,
    network: Callable[[jax.Array], ActorCritics],
    demonstrations: Demonstrations | None = None,
) -> Algorithm:
    """Build soft actor-critic (SAC).

    Args:
        environment: Environment whose action space is a `Ball` or a bounded `Box`.
        network: Function from a random key to the policy and the critics.
        demonstrations: Demonstrations that fill the replay buffer at the start, or None.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if sizes in the config are inconsistent.

    Raises:
        UsageError: If the action space is neither a `Ball` nor a bounded `Box`, or if the
            demonstrations do not fit the environment.
    """
    network = check_stochastic_actor_critics("sac", environment, network)
    agent_fns = AgentFns(lambda key, config: init_agent(network(key), config), explore, act, update)
    make_buffer = start_with_demonstrations(
        environment, lambda config: make_uniform_replay(), demonstrations
    )
    return off_policy(environment, agent_fns, make_buffer)


def init_agent(network: ActorCritics, config: SACConfig) -> SACAgent:
    target = jax.tree.map(jnp.copy, network.critic)
    log_temperature = jnp.log(jnp.asarray(config.initial_temperature, jnp.float32))
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
) -> tuple[SACAgent, dict[str, jax.Array]]:
    """Perform one gradient step (algorithm 1).

    Every `policy_delay` steps, the policy and the temperature are updated with the new critics.

    Args:
        agent: Networks, temperature and optimizer states.
        config: Settings of the algorithm.
        batch: Batch of B transitions.
        key: Random key of the sampled actions.
        progress: Completed fraction of training, from 0 to 1, which ends `frozen_fraction`.

    Returns:
        The updated agent, and metrics keyed by name, including absolute TD errors "td_error" `[B]`.
    """
    noise, policy_noise = jax.random.normal(key, (2, *batch.action.shape))
    optimizer, states = optimizers(config, progress), agent.optimizer
    temperature = jnp.exp(agent.log_temperature)

    action, log_prob = sample_actions(agent.network.actor, batch.next_obs, noise)
    next_value = min_q(agent.target, batch.next_obs, action) - temperature * log_prob
    target = config.reward_scale * batch.reward + batch.discount * next_value  # eqs. 2 and 3
    learned = update_critics(
        optimizer["critic"], states["critic"], agent.network.critic, batch, target
    )

    def update_policy(before: PyTree) -> PyTree:
        actor, log_temperature, actor_state, temperature_state = before
        gradient, log_prob = jax.grad(policy_loss, has_aux=True)(
            actor, learned.critic, batch, temperature, policy_noise
        )
        actor, actor_state = apply_gradients(optimizer["actor"], actor_state, actor, gradient)
        if config.learn_temperature:
            gradient = temperature_gradient(config, temperature, log_prob, batch)
            log_temperature, temperature_state = apply_gradients(
                optimizer["temperature"], temperature_state, log_temperature, gradient
            )
        return actor, log_temperature, actor_state, temperature_state

    steps = agent.steps + 1
    is_due = steps % jnp.round(config.policy_delay).astype(jnp.int32) == 0
    before = agent.network.actor, agent.log_temperature, states["actor"], states["temperature"]
    after = tree.cond_any_member(is_due, update_policy, before)
    actor, log_temperature, actor_state, temperature_state = after

    target_critic = optax.incremental_update(learned.critic, agent.target, config.tau)
    agent = SACAgent(
        network=ActorCritics(actor, learned.critic),
        target=target_critic,
        log_temperature=log_temperature,
        optimizer={
            "actor": actor_state,
            "critic": learned.optimizer,
            "temperature": temperature_state,
        },
        steps=steps,
    )
    metrics = {
        "loss": learned.loss,
        "td_error": learned.td_error,
        "value": learned.value,
        "entropy": -jnp.mean(log_prob),
        "temperature": temperature,
    }
    return agent, metrics


def explore(
    agent: SACAgent,
    config: SACConfig,
    obs: Observation,
    carry: Carry,
    noise: jax.Array,
    key: jax.Array,
    progress: jax.Array,
) -> tuple[jax.Array, Carry]:
    """Return the sample of the policy for standard normal `noise`, and the unchanged carry."""
    policy = agent.network.actor(obs)
    return policy.action(policy.transform_noise(noise)), carry


def act(
    agent: SACAgent,
    config: SACConfig,
    obs: Observation,
    carry: Carry,
    key: jax.Array,
    greedy: Flag,
) -> tuple[jax.Array, Carry]:
    """Return the action in evaluation and the unchanged carry.

    The action is the mode of the policy if `greedy` is true, else a sample.
    """
    policy = agent.network.actor(obs)
    return policy.action(tree.where(jnp.asarray(greedy), policy.mode(), policy.sample(key))), carry
