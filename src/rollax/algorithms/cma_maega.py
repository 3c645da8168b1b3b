"""CMA-MAEGA: the searches of CMA-MEGA with the acceptance thresholds of CMA-MAE.

Fontaine and Nikolaidis 2023, arXiv:2205.10752. The deviations from the paper are those listed in
the modules `cma_mega` and `cma_mae`.
"""

from collections.abc import Callable

import jax

from rollax.algorithm import Algorithm
from rollax.algorithms.cma_mae import make_threshold_archive
from rollax.algorithms.cma_mega import CMAMEGAConfig, make_cma_mega
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.emitters.ranking import Ranking, RestartRule, Selection
from rollax.environments.environment import Environment
from rollax.types import Solution


@settings_dataclass
class CMAMAEGAConfig(CMAMEGAConfig):
    """Settings of CMA-MAEGA.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    archive_learning_rate: float = traced_field(0.01, 0, 1)
    """Step size with which the threshold of a cell moves toward the fitness of accepted
    solutions, in [0, 1]."""
    threshold_start: float = traced_field(0.0)
    """Initial threshold of every cell. Solutions with a lower fitness do not count as
    improvements, but they may become elites. Set it below the lowest fitness.
    """
    ranking: Ranking = static_field("improvement")
    """(static) Ranking of solutions, as for `cma_me`."""
    selection: Selection = static_field("filter")
    """(static) Parents of the next generation: the solutions that improved the archive
    ("filter") or the better half ("mu")."""
    restart: RestartRule = static_field("basic")
    """(static) When a search restarts: after a generation without improvement ("no_improvement")
    or only on convergence ("basic")."""


def cma_maega(environment: Environment, solution: Callable[[jax.Array], Solution]) -> Algorithm:
    """Build CMA-MAEGA, which is CMA-MEGA with the acceptance thresholds of CMA-MAE.

    Args:
        environment: Task with a differentiable score function (`task/...`).
        solution: Function from a random key to an initial solution.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if the settings are inconsistent.

    Raises:
        UsageError: If the environment has no differentiable score function.
    """
    return make_cma_mega(environment, solution, make_threshold_archive)
