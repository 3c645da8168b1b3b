"""Twin delayed deep deterministic policy gradient (TD3) for continuous actions.

Fujimoto et al. 2018, arXiv:1802.09477, algorithm 1. Actions and noise are in units of [-1, 1], and
actions are scaled to the bounds of the environment. For a `Ball`, actions are in the unit ball. The
policy and both targets are updated only every `policy_delay` gradient steps, after the critics in
the same step. Deviations: Gradients may be clipped, rewards may be scaled, and exploration noise
may be correlated in time. docs/algorithms/td3.md has all equations.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from rollax import tree
from rollax.action_spaces import normalize_space
from rollax.algorithm import Algorithm
from rollax.algorithms.off_policy import off_policy
from rollax.algorithms.replay_updates import (
    AgentFns,
    make_optimizers,
    start_with_demonstrations,
    update_critics,
)
from rollax.config import settings_dataclass, traced_field
from rollax.environments.environment import Environment
from rollax.learning.train_state import apply_gradients
from rollax.networks.critics import (
    ActorCritics,
    clip_to_box,
    make_projection,
    masked_action,
    min_q,
)
from rollax.networks.interop.network_checks import check_deterministic_actor_critics
from rollax.replay.demonstrations import Demonstrations
from rollax.replay.replay_config import ReplayConfig
from rollax.replay.ring import ReplayBatch, make_uniform_replay
from rollax.types import Carry, Flag, Observation, PyTree, Scalar, State


@settings_dataclass
class TD3Config(ReplayConfig):
    """Settings of TD3.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    policy_delay: float = traced_field(2.0, low=1)
    """Gradient steps of the critics per update of the policy and the targets. Rounded to an
    integer.
    """
    critic_learning_rate: float = traced_field(0.0, low=0)
    """Learning rate of the critics. 0 uses learning_rate."""
    tau: float = traced_field(0.005, 0, 1)
    """Step size of the targets toward their networks."""
    exploration_noise: float = traced_field(0.1, low=0)
    """Standard deviation of the noise added to actions in training."""
    noise_correlation: float = traced_field(0.0, 0, 1)
    """Correlation of the exploration noise between consecutive steps. 0 is white noise."""
    target_noise: float = traced_field(0.2, low=0)
    """Standard deviation of the noise added to actions of the target policy."""
    target_noise_clip: float = traced_field(0.5, low=0)
    """Maximum absolute value of the target policy's noise."""
    reward_scale: float = traced_field(1.0)
    """Factor applied to rewards."""


class TD3Agent(NamedTuple):
    """Networks and optimizer states of TD3.

    Attributes:
        network: Policy and critics.
        target: Target policy and critics.
        optimizer: Optimizer states, keyed by "actor" and "critic".
        steps: Number of gradient steps of the critics, int32 `[]`.
    """

    network: ActorCritics
    target: ActorCritics
    optimizer: dict[str, State]
    steps: jax.Array


def policy_loss(
    actor: Callable[[Observation], jax.Array],
    critic: tuple[Callable[..., jax.Array], ...],
    batch: ReplayBatch,
) -> jax.Array:
    """Return the policy loss, -mean Q_1(s, pi(s)).

    Its gradient is the deterministic policy gradient of algorithm 1.

    Args:
        actor: Policy pi.
        critic: Critics. Only the first critic is used.
        batch: Batch of B transitions.

    Returns:
        The loss.
    """
    return -jnp.mean(jax.vmap(critic[0])(batch.obs, jax.vmap(actor)(batch.obs)))


def td3(
    environment: Environment,
    network: Callable[[jax.Array], ActorCritics],
    demonstrations: Demonstrations | None = None,
) -> Algorithm:
    """Build twin delayed deep deterministic policy gradient (TD3).

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
    network = check_deterministic_actor_critics("td3", environment, network)
    agent_fns = make_agent_fns(environment, lambda key, config: init_agent(network(key), config))
    make_buffer = start_with_demonstrations(
        environment, lambda config: make_uniform_replay(), demonstrations
    )
    return off_policy(environment, agent_fns, make_buffer)


def make_agent_fns(
    environment: Environment, init: Callable[[jax.Array, TD3Config], TD3Agent]
) -> AgentFns:
    """Return the functions of an agent whose noisy actions stay in the action space.

    Args:
        environment: Environment with the action space.
        init: Function from a random key and the settings to an agent.

    Raises:
        UsageError: If the action space is neither a `Ball` nor a bounded `Box`.
    """
    project = make_projection(normalize_space(environment.action_space))
    return AgentFns(
        init=init,
        explore=functools.partial(explore, project=project),
        act=functools.partial(act, project=project),
        update=functools.partial(update, project=project),
    )


def init_agent(network: ActorCritics, config: TD3Config) -> TD3Agent:
    parts = {"actor": network.actor, "critic": network.critic}
    states = {name: each.init(parts[name]) for name, each in optimizers(config).items()}
    return TD3Agent(network, jax.tree.map(jnp.copy, network), states, jnp.zeros((), jnp.int32))


def optimizers(
    config: TD3Config, progress: Scalar = 0.0
) -> dict[str, optax.GradientTransformation]:
    return make_optimizers(config, progress, actor=0.0, critic=config.critic_learning_rate)


def update(
    agent: TD3Agent,
    config: TD3Config,
    batch: ReplayBatch,
    key: jax.Array,
    progress: Scalar = 0.0,
    project: Callable[[jax.Array], jax.Array] = clip_to_box,
) -> tuple[TD3Agent, dict[str, jax.Array]]:
    """Perform one gradient step (algorithm 1).

    Every `policy_delay` steps, the policy and both targets are updated after the critics.

    Args:
        agent: Networks and optimizer states.
        config: Settings of the algorithm.
        batch: Batch of B transitions.
        key: Random key of the target noise.
        progress: Completed fraction of training, from 0 to 1, which ends `frozen_fraction`.
        project: Function that maps a noisy action to the nearest normalized action.

    Returns:
        The updated agent, and metrics keyed by name, including absolute TD errors "td_error" `[B]`.
    """
    optimizer, states = optimizers(config, progress), agent.optimizer
    noise = config.target_noise * jax.random.normal(key, batch.action.shape)
    noise = jnp.clip(noise, -config.target_noise_clip, config.target_noise_clip)
    action = jax.vmap(functools.partial(add_action_noise, project))(
        jax.vmap(agent.target.actor)(batch.next_obs), noise, batch.next_obs
    )
    next_value = min_q(agent.target.critic, batch.next_obs, action)
    target = config.reward_scale * batch.reward + batch.discount * next_value
    learned = update_critics(
        optimizer["critic"], states["critic"], agent.network.critic, batch, target
    )

    def update_policy(before: PyTree) -> PyTree:
        actor, actor_state, target = before
        gradient = jax.grad(policy_loss)(actor, learned.critic, batch)
        actor, actor_state = apply_gradients(optimizer["actor"], actor_state, actor, gradient)
        network: PyTree = ActorCritics(actor, learned.critic)
        return actor, actor_state, optax.incremental_update(network, target, config.tau)

    steps = agent.steps + 1
    is_due = steps % jnp.round(config.policy_delay).astype(jnp.int32) == 0
    before = agent.network.actor, states["actor"], agent.target
    actor, actor_state, target = tree.cond_any_member(is_due, update_policy, before)
    agent = TD3Agent(
        network=ActorCritics(actor, learned.critic),
        target=target,
        optimizer={"actor": actor_state, "critic": learned.optimizer},
        steps=steps,
    )
    return agent, {"loss": learned.loss, "td_error": learned.td_error, "value": learned.value}


def explore(
    agent: TD3Agent,
    config: TD3Config,
    obs: Observation,
    carry: Carry,
    noise: jax.Array,
    key: jax.Array,
    progress: jax.Array,
    project: Callable[[jax.Array], jax.Array] = clip_to_box,
) -> tuple[jax.Array, Carry]:
    """Return the action of the policy plus exploration noise, and the unchanged carry."""
    noise = config.exploration_noise * noise
    return add_action_noise(project, agent.network.actor(obs), noise, obs), carry


def act(
    agent: TD3Agent,
    config: TD3Config,
    obs: Observation,
    carry: Carry,
    key: jax.Array,
    greedy: Flag,
    project: Callable[[jax.Array], jax.Array] = clip_to_box,
) -> tuple[jax.Array, Carry]:
    """Return the action in evaluation and the unchanged carry.

    White exploration noise is added to the action unless `greedy` is true.
    """
    action = agent.network.actor(obs)
    noise = config.exploration_noise * jax.random.normal(key, action.shape)
    noisy = add_action_noise(project, action, noise, obs)
    return jnp.where(jnp.asarray(greedy), action, noisy), carry


def add_action_noise(
    project: Callable[[jax.Array], jax.Array],
    action: jax.Array,
    noise: jax.Array,
    obs: Observation,
) -> jax.Array:
    """Return an action with added noise, projected onto the action space.

    Args:
        project: Projection onto the normalized action space.
        action: Normalized action, float `[n]`.
        noise: Noise, float `[n]`.
        obs: Observation. Dimensions that its "action_mask" forbids are set to 0.
    """
    return masked_action(project(action + noise), obs)
