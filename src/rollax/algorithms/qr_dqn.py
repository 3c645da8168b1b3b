"""Quantile regression DQN (QR-DQN): deep Q-learning of the quantiles of returns.

Dabney et al. 2018, arXiv:1710.10044, algorithm 1. The network returns `network.quantiles` quantiles
of the return of each action, at the fractions (i + 1/2) / N. The value of an action is the mean of
its quantiles. All extensions of DQN apply (double Q-learning, dueling, prioritized replay, n-step
returns, noisy networks). docs/algorithms/distributional.md has all equations.
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp

from rollax.action_spaces import check_discrete
from rollax.algorithm import Algorithm
from rollax.algorithms.q_learning import QLearningConfig, QLearningFns, q_learning
from rollax.config import settings_dataclass, traced_field
from rollax.environments.environment import Environment
from rollax.learning.return_distributions import midpoint_fractions, quantile_huber_loss
from rollax.networks.action_values.q_networks import mask_illegal_values, select_rows
from rollax.networks.interop.network_checks import check_distributional_network
from rollax.replay.demonstrations import Demonstrations
from rollax.replay.ring import ReplayBatch
from rollax.types import Observation

QuantileNetwork: TypeAlias = Callable[[Observation], jax.Array]
"""Network from an observation to the quantiles `[n, quantiles]`."""


@settings_dataclass
class QRDQNConfig(QLearningConfig):
    """Settings of quantile regression DQN (QR-DQN).

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    huber_delta: float = traced_field(1.0, low=1e-3, high=1e6)
    """Difference beyond which the Huber loss grows linearly (kappa)."""


def qr_dqn(
    environment: Environment,
    network: Callable[[jax.Array], QuantileNetwork],
    demonstrations: Demonstrations | None = None,
) -> Algorithm:
    """Build quantile regression DQN (QR-DQN).

    Args:
        environment: Environment with a `Discrete` action space.
        network: Function from a random key to a network from observations to quantiles
            `[n, quantiles]`.
        demonstrations: Demonstrations that fill the replay buffer at the start, or None.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if sizes in the config are inconsistent.

    Raises:
        UsageError: If the actions are not `Discrete`, or if the demonstrations do not fit the
            environment.
    """
    check_discrete(environment.action_space)
    network = check_distributional_network("qr_dqn", "quantiles", environment, network)
    return q_learning(environment, network, FNS, demonstrations)


def action_values(network: QuantileNetwork, config: QRDQNConfig, obs: Observation) -> jax.Array:
    """Return the means of the quantiles of all actions, `[n]`."""
    return jnp.mean(network(obs), axis=-1)


def targets(
    network: QuantileNetwork,
    target_network: QuantileNetwork,
    config: QRDQNConfig,
    batch: ReplayBatch,
    key: jax.Array,
) -> jax.Array:
    """Return the quantiles of R + d Z'(s', a*) of a batch of B transitions, `[B, quantiles]`.

    The action a* has the highest mean of the online network with `config.double`, otherwise of the
    target network.

    Args:
        network: Online network.
        target_network: Target network, which returns the quantiles of Z'.
        config: Settings of the algorithm.
        batch: Batch of B transitions.
        key: Random key (unused).
    """
    chooser = network if config.double else target_network

    def target(next_obs: Observation, reward: jax.Array, discount: jax.Array) -> jax.Array:
        values = mask_illegal_values(action_values(chooser, config, next_obs), next_obs)
        return reward + discount * target_network(next_obs)[jnp.argmax(values)]

    return jax.vmap(target)(batch.next_obs, batch.reward, batch.discount)


def loss(
    network: QuantileNetwork,
    config: QRDQNConfig,
    batch: ReplayBatch,
    target: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the loss, the mean of w times the quantile Huber loss, and its metrics.

    Args:
        network: Online network.
        config: Settings with `huber_delta`.
        batch: Batch of B transitions with weights w.
        target: Quantiles of the targets, `[B, quantiles]`.
        key: Random key (unused).

    Returns:
        The loss, and metrics keyed by name: "loss", "value" (mean of Q(s, a)), and the absolute
        differences of the means, "td_error" `[B]`.
    """
    quantiles = select_rows(jax.vmap(network)(batch.obs), batch.action)
    fractions = midpoint_fractions(quantiles.shape[1])
    errors = jax.vmap(quantile_huber_loss, (0, None, 0, None))(
        quantiles, fractions, target, config.huber_delta
    )
    value = jnp.mean(quantiles, axis=1)
    td_error = jnp.abs(value - jnp.mean(target, axis=1))
    total = jnp.mean(batch.weight * errors)
    return total, {"loss": total, "td_error": td_error, "value": jnp.mean(value)}


FNS = QLearningFns(action_values, targets, loss)
