"""Deep Q-learning, for discrete actions.

Mnih et al. 2015 (Nature 518), algorithm 1, with what came after, each by a setting: double Q-learning (van Hasselt et al. 2016,
arXiv:1509.06461, eq. 4), dueling networks (Wang et al. 2016, arXiv:1511.06581), prioritized replay (Schaul et al. 2016,
arXiv:1511.05952), returns of several steps (Hessel et al. 2018, arXiv:1710.02298). Targets are copies or move softly. Actions
that an "action_mask" forbids are neither taken nor believed in targets. docs/algorithms/dqn.md has all equations.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rollax.acting.exploration import epsilon_schedule
from rollax.algorithm import Algorithm, Metrics
from rollax.algorithms.off_policy import AgentFns, OffPolicyState, off_policy
from rollax.config import number, settings, static
from rollax.environments.core import Environment
from rollax.learning.train_state import adam, apply_gradients
from rollax.networks.q_networks import EpsilonGreedy, argmax_q, mask_actions, select_q
from rollax.replay.config import ReplayConfig
from rollax.replay.prioritized import prioritized, reweighted
from rollax.replay.ring import Batch, uniform
from rollax.spaces import check_discrete


@settings
class DQNConfig(ReplayConfig):
    """Settings of DQN. Those marked (static) shape the program; all others are data, so they can be swept over."""

    num_envs: int = static(8)
    """(static) Environments run side by side."""
    num_steps: int = static(64)
    """(static) Steps of each environment between two lines of metrics."""
    capacity: int = static(100_000)
    """(static) Steps that are remembered, of all environments together."""
    batch_size: int = static(64)
    """(static) Samples a gradient step."""
    replay_ratio: float = static(0.25, low=0)
    """(static) Gradient steps per environment step."""
    n_step: int = static(1)
    """(static) Steps of reward in a target before the value."""
    double: bool = static(True)
    """(static) The network chooses the action of the target, the target network says what it is worth."""
    prioritized: bool = static(False)
    """(static) Draw steps in proportion to their errors."""
    priority_exponent: float = number(0.6, low=0)
    """How much priorities matter when drawing (alpha); 0: not at all."""
    importance_exponent: float = number(0.4, 0, 1)
    """How much of that bias the loss takes back at the start (beta); all of it at the end."""
    priority_epsilon: float = number(1e-3, low=0)
    """What is added to errors, so that none is never drawn again."""
    epsilon: float = number(1.0, 0, 1)
    """Chance of a random action at the start."""
    epsilon_final_fraction: float = number(0.05, 0, 1)
    """Chance of a random action once exploration_fraction of training is over, reached linearly."""
    exploration_fraction: float = number(0.2, 0, 1)
    """Share of training over which that chance falls."""
    learning_rate: float = number(5e-4, low=0)
    """Adam's step size."""
    target_update_period: float = number(1.0, low=1)
    """Gradient steps between two moves of the target network."""
    tau: float = number(0.01, 0, 1)
    """How far it moves towards the network each time; 1: a copy."""
    huber_delta: float = number(1.0, low=0, high=float("inf"))
    """Error from which on the loss grows linearly (Huber's delta); inf: nowhere."""
    max_grad_norm: float = number(10.0, low=0, high=float("inf"))
    """Global norm to which gradients are clipped."""


class DQNAgent(NamedTuple):
    """Everything that learning changes."""

    network: Any
    target: Any
    optimizer: Any
    steps: jax.Array  # int32 []: gradient steps


def loss(network: Any, batch: Batch, target: jax.Array, delta: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """mean w H(Q(s, a) - y), with Huber's H: x^2 / 2 up to |x| = delta, linear beyond."""
    value = select_q(jax.vmap(network)(batch.obs), batch.action)
    td_error = value - target
    clipped = jax.lax.stop_gradient(jnp.clip(td_error, -delta, delta))  # the derivative of H
    total = jnp.mean(batch.weight * (clipped * td_error - 0.5 * clipped**2))
    return total, {"loss": total, "td_error": jnp.abs(td_error), "value": jnp.mean(value)}


def dqn(environment: Environment, network: Callable[[jax.Array], Any]) -> Algorithm:
    """DQN in `environment` with the action values that `network(key)` makes. `init` raises UsageError for wrong sizes."""
    check_discrete(environment.action_space)
    agent_fns = AgentFns(lambda key, config: init(network(key), config), explore, act, update)
    algorithm = off_policy(
        environment, agent_fns, lambda config: (prioritized if config.prioritized else uniform)(config.n_step)
    )

    def with_config(state: OffPolicyState, config: DQNConfig) -> OffPolicyState:
        if not config.prioritized:
            return state._replace(config=config)
        is_same = config.priority_exponent == state.config.priority_exponent
        reweight = lambda replay: reweighted(replay, config.priority_exponent)  # noqa: E731
        replay = jax.lax.cond(is_same, lambda replay: replay, reweight, state.replay)
        return state._replace(config=config, replay=replay)

    def with_epsilon(state: OffPolicyState) -> tuple[OffPolicyState, Metrics]:
        epsilon = epsilon_schedule(state.config, state.updates / state.config.total_updates)
        state, metrics = algorithm.step(state)
        return state, metrics._replace(values=metrics.values | {"epsilon": epsilon})

    return algorithm._replace(step=with_epsilon, with_config=with_config)


def init(network: Any, config: DQNConfig) -> DQNAgent:
    return DQNAgent(network, jax.tree.map(jnp.copy, network), optimizer(config).init(network), jnp.zeros((), jnp.int32))


def optimizer(config: DQNConfig) -> optax.GradientTransformation:
    return adam(config.learning_rate, config.adam_epsilon, config.max_grad_norm)


def update(agent: DQNAgent, config: DQNConfig, batch: Batch, key: jax.Array) -> tuple[DQNAgent, dict[str, jax.Array]]:
    """One gradient step; then the target network moves, if it is its turn."""
    chooser = agent.network if config.double else agent.target
    next_action = jax.vmap(argmax_q, (None, 0))(chooser, batch.next_obs)
    next_value = select_q(jax.vmap(agent.target)(batch.next_obs), next_action)
    target = batch.reward + batch.discount * next_value
    gradient, metrics = jax.grad(loss, has_aux=True)(agent.network, batch, target, config.huber_delta)
    network, state = apply_gradients(optimizer(config), agent.optimizer, agent.network, gradient)
    steps = agent.steps + 1
    is_due = steps % jnp.round(config.target_update_period).astype(jnp.int32) == 0
    target_network = optax.incremental_update(network, agent.target, jnp.where(is_due, config.tau, 0.0))
    return DQNAgent(network, target_network, state, steps), metrics


def explore(
    agent: DQNAgent, config: DQNConfig, obs: Any, carry: Any, noise: Any, key: jax.Array, progress: jax.Array
) -> tuple[jax.Array, Any]:
    """Epsilon-greedy."""
    return EpsilonGreedy(mask_actions(agent.network(obs), obs), epsilon_schedule(config, progress)).sample(key), carry


def act(
    agent: DQNAgent, config: DQNConfig, obs: Any, carry: Any, key: jax.Array, greedy: bool | jax.Array
) -> tuple[jax.Array, Any]:
    """The best action or, not greedily, epsilon-greedy as at the end of training."""
    policy = EpsilonGreedy(mask_actions(agent.network(obs), obs), epsilon_schedule(config, jnp.ones(())))
    return jnp.where(jnp.asarray(greedy), policy.mode(), policy.sample(key)), carry
