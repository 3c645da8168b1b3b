"""MOME: quality-diversity for several objectives at once, with the Pareto front of every cell in place of its best solution.

Pierrot et al. 2022, arXiv:2202.03057, algorithm 1. Objectives are numbers of the environment's `info`, summed over the episode,
such as the terms of its reward; fitness stays the return. Parents are drawn by cell first, then within its front. Which of a
full front leaves is said in `archives/fronts.py`.
"""

from collections.abc import Callable
from typing import Any

import jax

from rollax.acting.scoring import Watched
from rollax.algorithm import Algorithm
from rollax.algorithms.map_elites import MAPElitesConfig, varied
from rollax.algorithms.quality_diversity import division, quality_diversity
from rollax.archives.core import Archive
from rollax.archives.fronts import fronts
from rollax.config import LARGEST_FLOAT, settings, static
from rollax.environments.core import Environment
from rollax.errors import UsageError


@settings
class MOMEConfig(MAPElitesConfig):
    """Settings of MOME. Those marked (static) shape the program; all others are data, so they can be swept over."""

    objectives: tuple[str, ...] = static(("objective_0", "objective_1"))
    """Names in the environment's `info`, whose sums over an episode are to be large. (static)"""
    reference: tuple[float, ...] = static((0.0, 0.0), low=-LARGEST_FLOAT)
    """For each objective the value that hypervolumes are measured from; solutions below it add none. (static)"""
    front_size: int = static(50)
    """Most solutions of the front of a cell. (static)"""


def mome(environment: Environment, solution: Callable[[jax.Array], Any]) -> Algorithm:
    """MOME of the solutions that `solution(key)` begins with. `init` raises UsageError when the parts do not fit."""
    return quality_diversity(
        environment, solution, fronts_of_cells, varied, lambda config: Watched(objectives=config.objectives)
    )


def fronts_of_cells(config: MOMEConfig, low: tuple[float, ...], high: tuple[float, ...]) -> Archive:
    """The archive that the settings ask for."""
    if len(config.objectives) != len(config.reference) or not config.objectives:
        raise UsageError(
            f"reference ({' '.join(map(str, config.reference))}) must have a number for each of objectives "
            f"({' '.join(config.objectives)})"
        )
    return fronts(division(config, low, high), config.front_size, config.reference)
