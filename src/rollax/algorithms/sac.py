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
from rollax.algorithms.off_policy import Learner, critic_loss, off_policy
from rollax.algorithms.replay_config import ReplayConfig
from rollax.config import number, settings, static
from rollax.environments.core import Environment
from rollax.learning import optimizers
from rollax.networks.critics import ActorCritics, check_bounded, draw, least, num_dimensions, sample
from rollax.replay.ring import Batch, uniform


@settings
class SACConfig(ReplayConfig):
    """Settings of SAC. Those marked (static) shape the program; all others are data, so they can be swept over."""

    policy_delay: int = static(1)
    """(static) Gradient steps of the critics for each of the policy and the temperature."""
    critic_rate: float = number(1.0, low=0)
    """Step size of the critics, as a multiple of learning_rate."""
    temperature_rate: float = number(1.0, low=0)
    """Step size of the temperature, as a multiple of learning_rate; 0: it stays as it is."""
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


def sac(environment: Environment, network: Callable[[jax.Array], ActorCritics]) -> Algorithm:
    """SAC in `environment` with the policy and critics that `network(key)` makes. `init` raises UsageError for wrong sizes."""
    check_bounded(environment.action_space)
    learner = Learner(lambda key, config: init(network(key), config), explore, act, update)
    return off_policy(environment, learner, lambda config: uniform())


def init(network: ActorCritics, config: SACConfig) -> SACAgent:
    target = jax.tree.map(jnp.copy, network.critic)
    log_temperature = jnp.log(jnp.asarray(config.initial_temperature, jnp.float32))
    parts = {"actor": network.actor, "critic": network.critic, "temperature": log_temperature}
    states = {name: optimizer.init(parts[name]) for name, optimizer in transformations(config).items()}
    return SACAgent(network, target, log_temperature, states, jnp.zeros((), jnp.int32))


def transformations(config: SACConfig) -> dict[str, optax.GradientTransformation]:
    rates = {"actor": 1.0, "critic": config.critic_rate, "temperature": config.temperature_rate}
    adam = lambda rate: optimizers.adam(config.learning_rate * rate, config.adam_epsilon, config.max_grad_norm)  # noqa: E731
    return {name: adam(rate) for name, rate in rates.items()}


def update(agent: SACAgent, config: SACConfig, batch: Batch, key: jax.Array) -> tuple[SACAgent, dict[str, jax.Array]]:
    """One gradient step of the critics and, every `policy_delay`-th time, of policy and temperature, with the new critics."""
    noise, policy_noise = jax.random.normal(key, (2, *batch.action.shape))
    adam, states, temperature = transformations(config), agent.optimizer, jnp.exp(agent.log_temperature)

    action, log_prob = sample(agent.network.actor, batch.next_obs, noise)
    next_value = least(agent.target, batch.next_obs, action) - temperature * log_prob
    target = config.reward_scale * batch.reward + batch.discount * next_value  # eqs. 2 and 3
    (loss, (value, error)), slope = jax.value_and_grad(critic_loss, has_aux=True)(agent.network.critic, batch, target)
    critic, critic_state = optimizers.descend(adam["critic"], states["critic"], agent.network.critic, slope)

    def improve(learnt: Any) -> Any:
        actor, log_temperature, actor_state, temperature_state = learnt
        slope, log_prob = jax.grad(policy_loss, has_aux=True)(actor, critic, batch, temperature, policy_noise)
        actor, actor_state = optimizers.descend(adam["actor"], actor_state, actor, slope)
        goal = config.target_entropy * jax.vmap(num_dimensions)(batch.action, batch.obs)
        slope = temperature * jnp.mean(-log_prob - goal)  # of eq. 18 in the logarithm of alpha
        log_temperature, temperature_state = optimizers.descend(adam["temperature"], temperature_state, log_temperature, slope)
        return actor, log_temperature, actor_state, temperature_state

    steps = agent.steps + 1
    learnt = agent.network.actor, agent.log_temperature, states["actor"], states["temperature"]
    is_due = steps % config.policy_delay == 0
    # A conditional costs a copy of what goes through it, so there is none where there is nothing to decide.
    learnt = improve(learnt) if config.policy_delay == 1 else jax.lax.cond(is_due, improve, lambda same: same, learnt)
    actor, log_temperature, actor_state, temperature_state = learnt

    states = {"actor": actor_state, "critic": critic_state, "temperature": temperature_state}
    target_critic = optimizers.blend(agent.target, critic, config.tau)
    agent = SACAgent(ActorCritics(actor, critic), target_critic, log_temperature, states, steps)
    metrics = {"loss": loss, "error": error, "value": value, "entropy": -jnp.mean(log_prob), "temperature": temperature}
    return agent, metrics


def policy_loss(actor: Any, critic: Any, batch: Batch, temperature: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """mean alpha log pi(a|s) - min Q(s, a) with a ~ pi (eq. 7), and the log pi `[B]`."""
    action, log_prob = sample(actor, batch.obs, noise)
    return jnp.mean(temperature * log_prob - least(critic, batch.obs, action)), log_prob


def explore(agent: SACAgent, config: SACConfig, obs: Any, noise: jax.Array, key: jax.Array, progress: jax.Array) -> jax.Array:
    """A draw from the policy by the given standard normal numbers."""
    policy = agent.network.actor(obs)
    return policy.action(draw(policy, noise))


def act(agent: SACAgent, config: SACConfig, obs: Any, key: jax.Array, greedy: bool | jax.Array) -> jax.Array:
    """The action in the middle of the policy, or a draw from it."""
    policy = agent.network.actor(obs)
    return policy.action(tree.where(jnp.asarray(greedy), policy.mode(), policy.sample(key)))
