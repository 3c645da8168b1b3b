"""OMG-MEGA: MAP-Elites that mutates solutions along gradients of fitness and descriptors.

Fontaine and Nikolaidis 2021, arXiv:2106.03894, algorithm 1. The coefficients of the gradients are
random. The environment must be a task with a differentiable score function (`task/...`).
"""

from collections.abc import Callable

import jax

from rollax.acting.scoring import Scorer, make_gradient_fn
from rollax.algorithm import Algorithm
from rollax.algorithms.descriptor_cells import make_cells_archive
from rollax.algorithms.quality_diversity import QDConfig, quality_diversity
from rollax.archives.archive import Archive
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.emitters.emitter import Emitter
from rollax.emitters.gradient_arborescence import gradient_operator_emitter
from rollax.environments.environment import Environment
from rollax.types import Solution


@settings_dataclass
class OMGMEGAConfig(QDConfig):
    """Settings of OMG-MEGA.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    batch_size: int = static_field(540)
    """(static) Solutions per iteration. Half of them are elites whose gradients are computed."""
    sigma: float = traced_field(0.0, low=0)
    """Standard deviation of the noise added to these elites."""
    gradient_sigma: float = traced_field(10.0, low=0)
    """Standard deviation of the gradient coefficients."""


def omg_mega(environment: Environment, solution: Callable[[jax.Array], Solution]) -> Algorithm:
    """Build OMG-MEGA, which mutates elites along gradients with random coefficients.

    Args:
        environment: Task with a differentiable score function (`task/...`).
        solution: Function from a random key to an initial solution.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if the settings are inconsistent.

    Raises:
        UsageError: If the environment has no differentiable score function.
    """
    slopes = make_gradient_fn(environment)

    def emitter(config: OMGMEGAConfig, archive: Archive, score: Scorer) -> Emitter:
        return gradient_operator_emitter(archive, slopes, config.sigma, config.gradient_sigma)

    return quality_diversity(environment, solution, make_cells_archive, emitter)
