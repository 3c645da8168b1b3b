"""CMA-ME: evolution strategies that climb how much a solution improves the archive.

Fontaine et al. 2020, arXiv:1912.02400, algorithm 1. Several CMA-ES search side by side; each ranks its own solutions by what
the archive made of them, and begins again at an elite when it gets no further. Deviations: all searches decompose their
covariances together, once an update, where pyribs counts for each since it began; what a search is told is measured against the
archive before the whole batch.
"""

from collections.abc import Callable
from typing import Any

import jax

from rollax.algorithm import Algorithm
from rollax.algorithms.quality_diversity import QDConfig, cells, quality_diversity
from rollax.archives.core import Archive
from rollax.config import number, settings, static
from rollax.emitters.core import Emitter
from rollax.emitters.evolution import evolution
from rollax.emitters.ranking import Ranking, Restart, Rules, Selection
from rollax.environments.core import Environment


@settings
class CMAMEConfig(QDConfig):
    """Settings of CMA-ME. Those marked (static) shape the program; all others are data, so they can be swept over."""

    batch_size: int = static(540)
    """Solutions of an iteration, over all searches. (static)"""
    num_iterations: int = static(3)
    """Iterations of an update: covariances are decomposed once in it. (static)"""
    num_emitters: int = static(15)
    """Searches side by side. (static)"""
    sigma: float = number(0.5, low=1e-9)
    """Standard deviation that a search begins with."""
    ranking: Ranking = static("two_stage_improvement")
    """What is best: the improvement of the archive, how far in a random direction of descriptors, or fitness; "two_stage" puts
    new elites before better ones and these before the rest. (static)"""
    selection: Selection = static("filter")
    """Parents are the best solutions, as many as the archive took, or the better half of all. (static)"""
    restart: Restart = static("no_improvement")
    """A search begins again when its generation improved nothing, or only when it has converged. (static)"""


def cma_me(environment: Environment, solution: Callable[[jax.Array], Any]) -> Algorithm:
    """CMA-ME of the solutions that `solution(key)` begins with. `init` raises UsageError when the parts do not fit."""

    return quality_diversity(environment, solution, cells, searches)


def searches(config: Any, archive: Archive, score: Any) -> Emitter:
    """The emitter of CMA-ME and CMA-MAE."""
    return evolution(archive, config.num_emitters, config.sigma, Rules(config.ranking, config.selection, config.restart))
