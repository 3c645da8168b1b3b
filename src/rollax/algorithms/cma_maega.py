"""CMA-MAEGA: the searches of CMA-MEGA with the acceptance thresholds of CMA-MAE.

Fontaine and Nikolaidis 2023, arXiv:2205.10752. Deviations: those of `cma_mega` and `cma_mae`.
"""

from collections.abc import Callable
from typing import Any

import jax

from rollax.algorithm import Algorithm
from rollax.algorithms.cma_mae import cells_with_thresholds
from rollax.algorithms.cma_mega import CMAMEGAConfig, branching
from rollax.config import number, settings, static
from rollax.emitters.ranking import Ranking, Restart, Selection
from rollax.environments.core import Environment


@settings
class CMAMAEGAConfig(CMAMEGAConfig):
    """Settings of CMA-MAEGA. Those marked (static) shape the program; all others are data, so they can be swept over."""

    archive_learning_rate: float = number(0.01, 0, 1)
    """How far the threshold of a cell moves towards the fitness that it accepts."""
    threshold_start: float = number(0.0)
    """Threshold of every cell before it has accepted a solution: lower fitness never enters."""
    ranking: Ranking = static("improvement")
    """What is best, as for `cma_me`. (static)"""
    selection: Selection = static("filter")
    """Parents are the best solutions, as many as the archive took, or the better half of all. (static)"""
    restart: Restart = static("basic")
    """A search begins again when its generation improved nothing, or only when it has converged. (static)"""


def cma_maega(environment: Environment, solution: Callable[[jax.Array], Any]) -> Algorithm:
    """CMA-MAEGA of the solutions that `solution(key)` begins with. Raises as `cma_mega`."""
    return branching(environment, solution, cells_with_thresholds)
