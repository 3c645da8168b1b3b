"""Soft actor-critic, for continuous actions.

Haarnoja et al. 2018, arXiv:1801.01290, in the form of arXiv:1812.05905 (no value network, two critics, a learned temperature;
its algorithm 1). Actions are normals through tanh within -1 ... 1, which the environment gets scaled to its bounds; densities
are in these units. Deviations: gradients may be clipped, rewards scaled, the policy updated less often than the critics, and
random actions at the start and the noise that drives exploration may be correlated in time. docs/algorithms/sac.md has all
equations.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rollax import tree
from rollax.algorithm import Algorithm
from rollax.algorithms.off_policy import AgentFns, critic_loss, off_policy
from rollax.config import number, settings, static
from rollax.environments.core import Environment
from rollax.learning.train_state import adam, apply_gradients
from rollax.networks.critics import ActorCritics, min_q, num_dimensions, raw_action, sample_actions
from rollax.replay.config import ReplayConfig
from rollax.replay.ring import Batch, uniform
from rollax.spaces import check_bounded


@settings
class SACConfig(ReplayConfig):
    """Settings of SAC. Those marked (static) shape the program; all others are data, so they can be swept over."""

    learn_temperature: bool = static(True)
    """(static) Learn the temperature; off: it stays at initial_temperature."""
    policy_delay: float = number(1.0, low=1)
    """Gradient steps of the critics for each of the policy and the temperature, as a whole number."""
    critic_learning_rate: float = number(0.0, low=0)
    """Step size of the critics; 0: the same as the policy's."""
    temperature_learning_rate: float = number(0.0, low=0)
    """Step size of the temperature; 0: the same as the policy's."""
    tau: float = number(0.005, 0, 1)
    """How far the target critics move towards the critics each gradient step."""
    initial_temperature: float = number(1.0, low=0)
    """Weight of the entropy at the start (alpha)."""
    target_entropy: float = number(-1.0)
    """Entropy to hold, for each dimension of the action (that is not masked), in nats of an action within -1 ... 1."""
    reward_scale: float = number(1.0)
    """What rewards are multiplied by."""
    noise_correlation: float = number(0.0, 0, 1)
    """Correlation of the noise of neighboring steps while exploring; 0: white noise."""


class SACAgent(NamedTuple):
    """Everything that learning changes."""

    network: ActorCritics
    target: tuple[Any, ...]  # the target critics
    log_temperature: jax.Array  # float []
    optimizer: dict[str, Any]
    steps: jax.Array  # int32 []: gradient steps of the critics


def policy_loss(actor: Any, critic: Any, batch: Batch, temperature: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """mean alpha log pi(a|s) - min Q(s, a) with a ~ pi (eq. 7), and the log pi `[B]`."""
    action, log_prob = sample_actions(actor, batch.obs, noise)
    return jnp.mean(temperature * log_prob - min_q(critic, batch.obs, action)), log_prob


def sac(environment: Environment, network: Callable[[jax.Array], ActorCritics]) -> Algorithm:
    """SAC in `environment` with the policy and critics that `network(key)` makes. `init` raises UsageError for wrong sizes."""
    check_bounded(environment.action_space)
    agent_fns = AgentFns(lambda key, config: init(network(key), config), explore, act, update)
    return off_policy(environment, agent_fns, lambda config: uniform())


def init(network: ActorCritics, config: SACConfig) -> SACAgent:
    target = jax.tree.map(jnp.copy, network.critic)
    log_temperature = jnp.log(jnp.asarray(config.initial_temperature, jnp.float32))
    parts = {"actor": network.actor, "critic": network.critic, "temperature": log_temperature}
    states = {name: optimizer.init(parts[name]) for name, optimizer in optimizers(config).items()}
    return SACAgent(network, target, log_temperature, states, jnp.zeros((), jnp.int32))


def optimizers(config: SACConfig) -> dict[str, optax.GradientTransformation]:
    own = {"actor": 0.0, "critic": config.critic_learning_rate, "temperature": config.temperature_learning_rate}
    rates = {name: jnp.where(jnp.asarray(rate) > 0, rate, config.learning_rate) for name, rate in own.items()}
    return {name: adam(rate, config.adam_epsilon, config.max_grad_norm) for name, rate in rates.items()}


def update(agent: SACAgent, config: SACConfig, batch: Batch, key: jax.Array) -> tuple[SACAgent, dict[str, jax.Array]]:
    """One gradient step of the critics and, every `policy_delay`-th time, of policy and temperature, with the new critics."""
    noise, policy_noise = jax.random.normal(key, (2, *batch.action.shape))
    optimizer, states, temperature = optimizers(config), agent.optimizer, jnp.exp(agent.log_temperature)

    action, log_prob = sample_actions(agent.network.actor, batch.next_obs, noise)
    next_value = min_q(agent.target, batch.next_obs, action) - temperature * log_prob
    target = config.reward_scale * batch.reward + batch.discount * next_value  # eqs. 2 and 3
    (loss, (value, td_error)), gradient = jax.value_and_grad(critic_loss, has_aux=True)(agent.network.critic, batch, target)
    critic, critic_state = apply_gradients(optimizer["critic"], states["critic"], agent.network.critic, gradient)

    def update_policy(before: Any) -> Any:
        actor, log_temperature, actor_state, temperature_state = before
        gradient, log_prob = jax.grad(policy_loss, has_aux=True)(actor, critic, batch, temperature, policy_noise)
        actor, actor_state = apply_gradients(optimizer["actor"], actor_state, actor, gradient)
        if config.learn_temperature:
            target_entropy = config.target_entropy * jax.vmap(num_dimensions)(batch.action, batch.obs)
            gradient = temperature * jnp.mean(-log_prob - target_entropy)  # of eq. 18 in the logarithm of alpha
            learnt = apply_gradients(optimizer["temperature"], temperature_state, log_temperature, gradient)
            log_temperature, temperature_state = learnt
        return actor, log_temperature, actor_state, temperature_state

    steps = agent.steps + 1
    is_due = steps % jnp.round(config.policy_delay).astype(jnp.int32) == 0
    before = agent.network.actor, agent.log_temperature, states["actor"], states["temperature"]
    after = tree.when(is_due, update_policy, before)
    actor, log_temperature, actor_state, temperature_state = after

    states = {"actor": actor_state, "critic": critic_state, "temperature": temperature_state}
    target_critic: Any = optax.incremental_update(critic, agent.target, config.tau)
    agent = SACAgent(ActorCritics(actor, critic), target_critic, log_temperature, states, steps)
    metrics = {"loss": loss, "td_error": td_error, "value": value, "entropy": -jnp.mean(log_prob), "temperature": temperature}
    return agent, metrics


def explore(
    agent: SACAgent, config: SACConfig, obs: Any, carry: Any, noise: jax.Array, key: jax.Array, progress: jax.Array
) -> tuple[jax.Array, Any]:
    """A sample of the policy by the given standard normal numbers."""
    policy = agent.network.actor(obs)
    return policy.action(raw_action(policy, noise)), carry


def act(
    agent: SACAgent, config: SACConfig, obs: Any, carry: Any, key: jax.Array, greedy: bool | jax.Array
) -> tuple[jax.Array, Any]:
    """The mode of the policy, or a sample."""
    policy = agent.network.actor(obs)
    return policy.action(tree.where(jnp.asarray(greedy), policy.mode(), policy.sample(key))), carry
