"""CMA-MAE: CMA-ME with an acceptance threshold for every cell that rises slowly, so that searches leave a region gradually.

Fontaine and Nikolaidis 2023, arXiv:2205.10752, algorithm 1. A cell accepts what is above its threshold, which moves towards the
fitness accepted by `archive_learning_rate`: with 0 the searches climb fitness, with 1 it is CMA-ME. Deviation: one archive
holds both the thresholds and the best solutions, so a search that begins again begins at one of the best.
"""

from collections.abc import Callable
from typing import Any

import jax

from rollax.algorithm import Algorithm
from rollax.algorithms.cma_me import CMAMEConfig, searches
from rollax.algorithms.quality_diversity import cells, quality_diversity
from rollax.archives.cells import Threshold
from rollax.archives.core import Archive
from rollax.config import number, settings, static
from rollax.emitters.ranking import Ranking, Restart, Selection
from rollax.environments.core import Environment


@settings
class CMAMAEConfig(CMAMEConfig):
    """Settings of CMA-MAE. Those marked (static) shape the program; all others are data, so they can be swept over."""

    archive_learning_rate: float = number(0.01, 0, 1)
    """How far the threshold of a cell moves towards the fitness that it accepts."""
    threshold_start: float = number(0.0)
    """Threshold of every cell before it has accepted a solution: lower fitness never enters."""
    ranking: Ranking = static("improvement")
    """What is best, as for `cma_me`. (static)"""
    selection: Selection = static("mu")
    """Parents are the best solutions, as many as the archive took, or the better half of all. (static)"""
    restart: Restart = static("basic")
    """A search begins again when its generation improved nothing, or only when it has converged. (static)"""


def cma_mae(environment: Environment, solution: Callable[[jax.Array], Any]) -> Algorithm:
    """CMA-MAE of the solutions that `solution(key)` begins with. `init` raises UsageError when the parts do not fit."""
    return quality_diversity(environment, solution, cells_with_thresholds, searches)


def cells_with_thresholds(config: Any, low: tuple[float, ...], high: tuple[float, ...]) -> Archive:
    """The archive of CMA-MAE and CMA-MAEGA."""
    return cells(config, low, high, Threshold(config.threshold_start, config.archive_learning_rate))
