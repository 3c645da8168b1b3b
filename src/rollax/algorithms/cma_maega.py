"""CMA-MAEGA: CMA-MEGA whose archive asks for more slowly.

Fontaine and Nikolaidis 2023, arXiv:2205.10752. The searches are those of CMA-MEGA, the cells those of CMA-MAE; deviations are
theirs.
"""

from collections.abc import Callable
from typing import Any

import jax

from rollax.algorithm import Algorithm
from rollax.algorithms.cma_mega import CMAMEGAConfig, branching
from rollax.algorithms.quality_diversity import cells
from rollax.archives.cells import Threshold
from rollax.archives.core import Archive
from rollax.config import number, settings, static
from rollax.emitters.ranking import Ranking, Restart, Selection
from rollax.environments.core import Environment


@settings
class CMAMAEGAConfig(CMAMEGAConfig):
    """Settings of CMA-MAEGA. Those marked (static) shape the program; all others are data, so they can be swept over."""

    archive_learning_rate: float = number(0.01, 0, 1)
    """How far the threshold of a cell moves towards the fitness that it accepts."""
    threshold_start: float = number(0.0)
    """Where thresholds begin: the least fitness that is worth keeping."""
    ranking: Ranking = static("improvement")
    """What is best, as for `cma_me`. (static)"""
    selection: Selection = static("filter")
    """Parents are the solutions that the archive took, or the better half. (static)"""
    restart: Restart = static("basic")
    """A search begins again when its generation improved nothing, or only when it has converged. (static)"""


def cma_maega(environment: Environment, solution: Callable[[jax.Array], Any]) -> Algorithm:
    """CMA-MAEGA of the solutions that `solution(key)` begins with. Raises as `cma_mega`."""

    def archive(config: CMAMAEGAConfig, low: tuple[float, ...], high: tuple[float, ...]) -> Archive:
        return cells(config, low, high, Threshold(config.threshold_start, config.archive_learning_rate))

    return branching(environment, solution, archive)
