"""Twin delayed deep deterministic policy gradient, for continuous actions.

Fujimoto et al. 2018, arXiv:1802.09477, algorithm 1. Actions lie within -1 ... 1, which the environment gets scaled to its
bounds; all noise is in these units. The policy and both targets learn in every `policy_delay`-th gradient step only, from the
critics that this step has just updated. Deviations: gradients may be clipped, rewards scaled, and the noise of exploration
correlated in time. docs/algorithms/td3.md has all equations.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rollax import tree
from rollax.algorithm import Algorithm
from rollax.algorithms.off_policy import AgentFns, critic_loss, off_policy
from rollax.config import number, settings
from rollax.environments.core import Environment
from rollax.learning.train_state import adam, apply_gradients
from rollax.networks.critics import ActorCritics, masked_action, min_q
from rollax.replay.config import ReplayConfig
from rollax.replay.ring import Batch, uniform
from rollax.spaces import check_bounded


@settings
class TD3Config(ReplayConfig):
    """Settings of TD3. Those marked (static) shape the program; all others are data, so they can be swept over."""

    policy_delay: float = number(2.0, low=1)
    """Gradient steps of the critics for each of the policy and the targets, as a whole number."""
    critic_learning_rate: float = number(0.0, low=0)
    """Step size of the critics; 0: the same as the policy's."""
    tau: float = number(0.005, 0, 1)
    """How far both targets move towards their networks each time."""
    exploration_noise: float = number(0.1, low=0)
    """Deviation of what is added to actions while training."""
    noise_correlation: float = number(0.0, 0, 1)
    """Correlation of that noise between neighboring steps; 0: white noise."""
    target_noise: float = number(0.2, low=0)
    """Deviation of what is added to the target policy's actions."""
    target_noise_clip: float = number(0.5, low=0)
    """Most that is added to them."""
    reward_scale: float = number(1.0)
    """What rewards are multiplied by."""


class TD3Agent(NamedTuple):
    """Everything that learning changes."""

    network: ActorCritics
    target: ActorCritics
    optimizer: dict[str, Any]
    steps: jax.Array  # int32 []: gradient steps of the critics


def policy_loss(actor: Any, critic: Any, batch: Batch) -> jax.Array:
    """-mean Q_1(s, pi(s)): its gradient is the deterministic policy gradient of algorithm 1."""
    return -jnp.mean(jax.vmap(critic[0])(batch.obs, jax.vmap(actor)(batch.obs)))


def td3(environment: Environment, network: Callable[[jax.Array], ActorCritics]) -> Algorithm:
    """TD3 in `environment` with the policy and critics that `network(key)` makes. `init` raises UsageError for wrong sizes."""
    check_bounded(environment.action_space)
    agent_fns = AgentFns(lambda key, config: init(network(key), config), explore, act, update)
    return off_policy(environment, agent_fns, lambda config: uniform())


def init(network: ActorCritics, config: TD3Config) -> TD3Agent:
    parts = {"actor": network.actor, "critic": network.critic}
    states = {name: optimizer.init(parts[name]) for name, optimizer in optimizers(config).items()}
    return TD3Agent(network, jax.tree.map(jnp.copy, network), states, jnp.zeros((), jnp.int32))


def optimizers(config: TD3Config) -> dict[str, optax.GradientTransformation]:
    critic_rate = jnp.where(config.critic_learning_rate > 0, config.critic_learning_rate, config.learning_rate)
    rates = {"actor": config.learning_rate, "critic": critic_rate}
    return {name: adam(rate, config.adam_epsilon, config.max_grad_norm) for name, rate in rates.items()}


def update(agent: TD3Agent, config: TD3Config, batch: Batch, key: jax.Array) -> tuple[TD3Agent, dict[str, jax.Array]]:
    """One gradient step of the critics and, every `policy_delay`-th time, of the policy, with both targets after it."""
    optimizer, states = optimizers(config), agent.optimizer
    noise = config.target_noise * jax.random.normal(key, batch.action.shape)
    noise = jnp.clip(noise, -config.target_noise_clip, config.target_noise_clip)
    action = jax.vmap(perturbed)(jax.vmap(agent.target.actor)(batch.next_obs), noise, batch.next_obs)
    next_value = min_q(agent.target.critic, batch.next_obs, action)
    target = config.reward_scale * batch.reward + batch.discount * next_value
    (loss, (value, td_error)), gradient = jax.value_and_grad(critic_loss, has_aux=True)(agent.network.critic, batch, target)
    critic, critic_state = apply_gradients(optimizer["critic"], states["critic"], agent.network.critic, gradient)

    def update_policy(before: Any) -> Any:
        actor, actor_state, target = before
        gradient = jax.grad(policy_loss)(actor, critic, batch)
        actor, actor_state = apply_gradients(optimizer["actor"], actor_state, actor, gradient)
        network: Any = ActorCritics(actor, critic)
        return actor, actor_state, optax.incremental_update(network, target, config.tau)

    steps = agent.steps + 1
    is_due = steps % jnp.round(config.policy_delay).astype(jnp.int32) == 0
    before = agent.network.actor, states["actor"], agent.target
    actor, actor_state, target = tree.when(is_due, update_policy, before)
    agent = TD3Agent(ActorCritics(actor, critic), target, {"actor": actor_state, "critic": critic_state}, steps)
    return agent, {"loss": loss, "td_error": td_error, "value": value}


def explore(
    agent: TD3Agent, config: TD3Config, obs: Any, carry: Any, noise: jax.Array, key: jax.Array, progress: jax.Array
) -> tuple[jax.Array, Any]:
    """The policy's action with noise."""
    return perturbed(agent.network.actor(obs), config.exploration_noise * noise, obs), carry


def act(
    agent: TD3Agent, config: TD3Config, obs: Any, carry: Any, key: jax.Array, greedy: bool | jax.Array
) -> tuple[jax.Array, Any]:
    """The policy's action or, not greedily, with the noise of exploration, white: there is no step before."""
    action = agent.network.actor(obs)
    noisy = perturbed(action, config.exploration_noise * jax.random.normal(key, action.shape), obs)
    return jnp.where(jnp.asarray(greedy), action, noisy), carry


def perturbed(action: jax.Array, noise: jax.Array, obs: Any) -> jax.Array:
    """clip(action + noise, -1, 1), 0 where the observation's "action_mask" rules a dimension out."""
    return masked_action(jnp.clip(action + noise, -1.0, 1.0), obs)
