"""Rainbow: categorical DQN with double Q-learning, priorities, dueling, n-step returns and noise.

Hessel et al. 2018, arXiv:1710.02298. It is `c51` with the defaults of the paper for these
extensions: noisy layers explore instead of random actions. docs/algorithms/distributional.md
compares all settings with the paper.
"""

from collections.abc import Callable

import jax

from rollax.action_spaces import check_discrete
from rollax.algorithm import Algorithm
from rollax.algorithms.c51 import FNS, C51Config, CategoricalNetwork
from rollax.algorithms.q_learning import q_learning
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.environments.environment import Environment
from rollax.networks.interop.network_checks import check_distributional_network
from rollax.replay.demonstrations import Demonstrations


@settings_dataclass
class RainbowConfig(C51Config):
    """Settings of Rainbow.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    n_step: int = static_field(3)
    """(static) Number of rewards in a target before it bootstraps."""
    prioritized: bool = static_field(True)
    """(static) Sample steps in proportion to a power of the divergences of their targets."""
    priority_exponent: float = traced_field(0.5, low=0)
    """Exponent of the priorities (alpha). 0 samples uniformly."""
    epsilon: float = traced_field(0.0, 0, 1)
    """Probability of a random action at the start. The noise of the network explores without."""


def rainbow(
    environment: Environment,
    network: Callable[[jax.Array], CategoricalNetwork],
    demonstrations: Demonstrations | None = None,
) -> Algorithm:
    """Build Rainbow.

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
    network = check_distributional_network("rainbow", "logits of atoms", environment, network)
    return q_learning(environment, network, FNS, demonstrations)
