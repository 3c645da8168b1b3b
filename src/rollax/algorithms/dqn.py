"""Deep Q-learning (DQN) for discrete actions.

Mnih et al. 2015 (Nature 518), algorithm 1, with optional extensions: double Q-learning (van Hasselt
et al. 2016, arXiv:1509.06461, eq. 4), dueling networks (Wang et al. 2016, arXiv:1511.06581),
prioritized replay (Schaul et al. 2016, arXiv:1511.05952), n-step returns (Hessel et al. 2018,
arXiv:1710.02298) and noisy networks (Fortunato et al. 2018, arXiv:1706.10295). `q_learning`
contains the gradient step and exploration. docs/algorithms/dqn.md has all equations.
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
from rollax.networks.action_values.q_networks import argmax_q, select_q
from rollax.networks.interop.network_checks import check_q_network
from rollax.replay.demonstrations import Demonstrations
from rollax.replay.ring import ReplayBatch
from rollax.types import Observation

QNetwork: TypeAlias = Callable[[Observation], jax.Array]
"""Network from an observation to the action values `[n]`."""


@settings_dataclass
class DQNConfig(QLearningConfig):
    """Settings of DQN.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    huber_delta: float = traced_field(1.0, low=0, high=float("inf"))
    """TD error beyond which the Huber loss grows linearly. inf uses the squared loss."""


def dqn(
    environment: Environment,
    network: Callable[[jax.Array], QNetwork],
    demonstrations: Demonstrations | None = None,
) -> Algorithm:
    """Build deep Q-learning (DQN).

    Args:
        environment: Environment with a `Discrete` action space.
        network: Function from a random key to a network from observations to action values `[n]`.
        demonstrations: Demonstrations that fill the replay buffer at the start, or None.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if sizes in the config are inconsistent.

    Raises:
        UsageError: If the actions are not `Discrete`, or if the demonstrations do not fit the
            environment.
    """
    check_discrete(environment.action_space)
    network = check_q_network("dqn", environment, network)
    return q_learning(environment, network, FNS, demonstrations)


def action_values(network: QNetwork, config: DQNConfig, obs: Observation) -> jax.Array:
    """Return the action values of an observation, `[n]`."""
    return network(obs)


def targets(
    network: QNetwork,
    target_network: QNetwork,
    config: DQNConfig,
    batch: ReplayBatch,
    key: jax.Array,
) -> jax.Array:
    """Return the targets y = R + d Q'(s', a*) of a batch of B transitions, `[B]`.

    The action a* is the best one of the online network with `config.double`, otherwise of the
    target network.

    Args:
        network: Online network.
        target_network: Target network Q'.
        config: Settings of the algorithm.
        batch: Batch of B transitions.
        key: Random key (unused).
    """
    chooser = network if config.double else target_network
    next_action = jax.vmap(argmax_q, (None, 0))(chooser, batch.next_obs)
    next_value = select_q(jax.vmap(target_network)(batch.next_obs), next_action)
    return batch.reward + batch.discount * next_value


def loss(
    network: QNetwork, config: DQNConfig, batch: ReplayBatch, target: jax.Array, key: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the loss, the mean of w H(Q(s, a) - y) with the Huber loss H, and its metrics.

    H(x) is x^2 / 2 for |x| <= delta, and delta (|x| - delta / 2) for |x| > delta.

    Args:
        network: Action-value network.
        config: Settings with delta, the `huber_delta`.
        batch: Batch of B transitions with weights w.
        target: Targets y, `[B]`.
        key: Random key (unused).

    Returns:
        The loss, and metrics keyed by name: "loss", "value" (mean Q), and the absolute TD errors
        "td_error" `[B]`.
    """
    delta = config.huber_delta
    value = select_q(jax.vmap(network)(batch.obs), batch.action)
    td_error = value - target
    clipped = jax.lax.stop_gradient(jnp.clip(td_error, -delta, delta))  # derivative of H
    total = jnp.mean(batch.weight * (clipped * td_error - 0.5 * clipped**2))
    return total, {"loss": total, "td_error": jnp.abs(td_error), "value": jnp.mean(value)}


FNS = QLearningFns(action_values, targets, loss)
