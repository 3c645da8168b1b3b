"""Categorical DQN (C51): deep Q-learning of the distribution of returns on fixed atoms.

Bellemare et al. 2017, arXiv:1707.06887, algorithm 1. The network returns the logits of a
distribution over `network.atoms` equidistant returns from `v_min` to `v_max` for each action. The
value of an action is the mean of its distribution. All extensions of DQN apply (double Q-learning,
dueling, prioritized replay, n-step returns, noisy networks). docs/algorithms/distributional.md has
all equations.
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
from rollax.learning.return_distributions import project_categorical
from rollax.networks.action_values.q_networks import mask_illegal_values, select_rows
from rollax.networks.interop.network_checks import check_distributional_network
from rollax.replay.demonstrations import Demonstrations
from rollax.replay.ring import ReplayBatch
from rollax.types import Observation

CategoricalNetwork: TypeAlias = Callable[[Observation], jax.Array]
"""Network from an observation to the logits `[n, atoms]`."""


@settings_dataclass
class C51Config(QLearningConfig):
    """Settings of categorical DQN (C51).

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    v_min: float = traced_field(-10.0)
    """Lowest return that the distribution represents. Must be less than v_max."""
    v_max: float = traced_field(10.0)
    """Highest return that the distribution represents, such as the highest sum of discounted
    rewards.
    """


def c51(
    environment: Environment,
    network: Callable[[jax.Array], CategoricalNetwork],
    demonstrations: Demonstrations | None = None,
) -> Algorithm:
    """Build categorical DQN (C51).

    Args:
        environment: Environment with a `Discrete` action space.
        network: Function from a random key to a network from observations to logits `[n, atoms]`.
        demonstrations: Demonstrations that fill the replay buffer at the start, or None.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if sizes in the config are inconsistent.

    Raises:
        UsageError: If the actions are not `Discrete`, or if the demonstrations do not fit the
            environment.
    """
    check_discrete(environment.action_space)
    network = check_distributional_network("c51", "logits of atoms", environment, network)
    return q_learning(environment, network, FNS, demonstrations)


def make_support(config: C51Config, size: int) -> jax.Array:
    """Return the equidistant atoms from `v_min` to `v_max`, `[size]`."""
    return jnp.linspace(config.v_min, config.v_max, size)


def action_values(network: CategoricalNetwork, config: C51Config, obs: Observation) -> jax.Array:
    """Return the means of the distributions of all actions, `[n]`."""
    logits = network(obs)
    return jax.nn.softmax(logits) @ make_support(config, logits.shape[-1])


def targets(
    network: CategoricalNetwork,
    target_network: CategoricalNetwork,
    config: C51Config,
    batch: ReplayBatch,
    key: jax.Array,
) -> jax.Array:
    """Return the projected distributions of R + d Z'(s', a*) of B transitions, `[B, atoms]`.

    The action a* has the highest mean of the online network with `config.double`, otherwise of the
    target network.

    Args:
        network: Online network.
        target_network: Target network, which returns the distributions of Z'.
        config: Settings of the algorithm.
        batch: Batch of B transitions.
        key: Random key (unused).

    References:
        Bellemare et al. 2017, algorithm 1 and Eq. 7.
    """
    chooser = network if config.double else target_network

    def target(next_obs: Observation, reward: jax.Array, discount: jax.Array) -> jax.Array:
        values = mask_illegal_values(action_values(chooser, config, next_obs), next_obs)
        probabilities = jax.nn.softmax(target_network(next_obs)[jnp.argmax(values)])
        support = make_support(config, len(probabilities))
        return project_categorical(reward + discount * support, probabilities, support)

    return jax.vmap(target)(batch.next_obs, batch.reward, batch.discount)


def loss(
    network: CategoricalNetwork,
    config: C51Config,
    batch: ReplayBatch,
    target: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the loss, the mean of w times the cross-entropy to the targets, and its metrics.

    Args:
        network: Online network.
        config: Settings of the algorithm.
        batch: Batch of B transitions with weights w.
        target: Target probabilities, `[B, atoms]`.
        key: Random key (unused).

    Returns:
        The loss, and metrics keyed by name: "loss", "value" (mean of Q(s, a)), and the
        Kullback-Leibler divergences "td_error" `[B]`, which determine priorities as in Rainbow.
    """
    logits = select_rows(jax.vmap(network)(batch.obs), batch.action)
    log_probabilities = jax.nn.log_softmax(logits)
    cross_entropy = -jnp.sum(target * log_probabilities, axis=1)
    entropy = -jnp.sum(jax.scipy.special.xlogy(target, target), axis=1)
    value = jnp.exp(log_probabilities) @ make_support(config, logits.shape[-1])
    total = jnp.mean(batch.weight * cross_entropy)
    divergence = jnp.maximum(cross_entropy - entropy, 0.0)  # rounding may make it negative
    return total, {"loss": total, "td_error": divergence, "value": jnp.mean(value)}


FNS = QLearningFns(action_values, targets, loss)
