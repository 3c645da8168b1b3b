"""Implicit quantile networks (IQN): deep Q-learning of quantiles at random fractions.

Dabney et al. 2018, arXiv:1806.06923, algorithm 1. The network returns the quantile of the return of
each action for any fraction. A loss compares quantiles at random fractions. All extensions of DQN
apply (double Q-learning, dueling, prioritized replay, n-step returns, noisy networks).
docs/algorithms/distributional.md has all equations.

Deviation: the value of an action, which selects actions in acting and in targets, is the mean of
the quantiles at the midpoints (i + 1/2) / K instead of K random fractions, so that a policy is
deterministic. The risk measures of the paper are not implemented, except the mean.
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp

from rollax.action_spaces import check_discrete
from rollax.algorithm import Algorithm
from rollax.algorithms.q_learning import QLearningConfig, QLearningFns, q_learning
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.environments.environment import Environment
from rollax.learning.return_distributions import midpoint_fractions, quantile_huber_loss
from rollax.networks.action_values.q_networks import mask_illegal_values, select_rows
from rollax.networks.interop.network_checks import check_implicit_quantile_network
from rollax.replay.demonstrations import Demonstrations
from rollax.replay.ring import ReplayBatch
from rollax.types import Observation

ImplicitNetwork: TypeAlias = Callable[[Observation, jax.Array], jax.Array]
"""Network from an observation and fractions `[k]` to the quantiles `[n, k]`."""


@settings_dataclass
class IQNConfig(QLearningConfig):
    """Settings of implicit quantile networks (IQN).

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    num_fractions: int = static_field(16)
    """(static) Number of random fractions per transition in the loss (N)."""
    num_target_fractions: int = static_field(16)
    """(static) Number of random fractions per transition in the target (N')."""
    num_value_fractions: int = static_field(32)
    """(static) Number of quantiles whose mean is the value of an action (K)."""
    huber_delta: float = traced_field(1.0, low=1e-3, high=1e6)
    """Difference beyond which the Huber loss grows linearly (kappa)."""


def iqn(
    environment: Environment,
    network: Callable[[jax.Array], ImplicitNetwork],
    demonstrations: Demonstrations | None = None,
) -> Algorithm:
    """Build implicit quantile networks (IQN).

    Args:
        environment: Environment with a `Discrete` action space.
        network: Function from a random key to a network from observations and fractions `[k]` to
            quantiles `[n, k]`.
        demonstrations: Demonstrations that fill the replay buffer at the start, or None.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if sizes in the config are inconsistent.

    Raises:
        UsageError: If the actions are not `Discrete`, or if the demonstrations do not fit the
            environment.
    """
    check_discrete(environment.action_space)
    network = check_implicit_quantile_network("iqn", environment, network)
    return q_learning(environment, network, FNS, demonstrations)


def action_values(network: ImplicitNetwork, config: IQNConfig, obs: Observation) -> jax.Array:
    """Return the means of K quantiles of all actions, `[n]`."""
    return jnp.mean(network(obs, midpoint_fractions(config.num_value_fractions)), axis=-1)


def targets(
    network: ImplicitNetwork,
    target_network: ImplicitNetwork,
    config: IQNConfig,
    batch: ReplayBatch,
    key: jax.Array,
) -> jax.Array:
    """Return quantiles of R + d Z'(s', a*) at random fractions, `[B, num_target_fractions]`.

    The action a* has the highest value of the online network with `config.double`, otherwise of the
    target network.

    Args:
        network: Online network.
        target_network: Target network, which returns the quantiles of Z'.
        config: Settings of the algorithm.
        batch: Batch of B transitions.
        key: Random key of the fractions.
    """
    chooser = network if config.double else target_network
    fractions = jax.random.uniform(key, (len(batch.reward), config.num_target_fractions))

    def target(
        next_obs: Observation, reward: jax.Array, discount: jax.Array, fractions: jax.Array
    ) -> jax.Array:
        values = mask_illegal_values(action_values(chooser, config, next_obs), next_obs)
        return reward + discount * target_network(next_obs, fractions)[jnp.argmax(values)]

    return jax.vmap(target)(batch.next_obs, batch.reward, batch.discount, fractions)


def loss(
    network: ImplicitNetwork,
    config: IQNConfig,
    batch: ReplayBatch,
    target: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the loss, the mean of w times the quantile Huber loss, and its metrics.

    Args:
        network: Online network.
        config: Settings with `huber_delta`.
        batch: Batch of B transitions with weights w.
        target: Quantiles of the targets, `[B, num_target_fractions]`.
        key: Random key of the fractions.

    Returns:
        The loss, and metrics keyed by name: "loss", "value" (mean of the sampled quantiles), and
        the absolute differences of the means, "td_error" `[B]`.
    """
    fractions = jax.random.uniform(key, (len(batch.reward), config.num_fractions))
    quantiles = select_rows(jax.vmap(network)(batch.obs, fractions), batch.action)
    errors = jax.vmap(quantile_huber_loss, (0, 0, 0, None))(
        quantiles, fractions, target, config.huber_delta
    )
    value = jnp.mean(quantiles, axis=1)
    td_error = jnp.abs(value - jnp.mean(target, axis=1))
    total = jnp.mean(batch.weight * errors)
    return total, {"loss": total, "td_error": td_error, "value": jnp.mean(value)}


FNS = QLearningFns(action_values, targets, loss)
