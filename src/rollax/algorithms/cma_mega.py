"""CMA-MEGA: searches that branch along gradients of fitness and descriptors, with coefficients by CMA-ES.

Fontaine and Nikolaidis 2021, arXiv:2106.03894, algorithm 2. For environments with a closed form, `task/...`. Deviations: a
point and its branches are added to the archive in one batch; points move by plain steps, not by Adam.
"""

from collections.abc import Callable
from typing import Any

import jax

from rollax.acting.scoring import gradients
from rollax.algorithm import Algorithm
from rollax.algorithms.quality_diversity import QDConfig, cells, quality_diversity
from rollax.archives.core import Archive
from rollax.config import number, settings, static
from rollax.emitters.core import Emitter
from rollax.emitters.gradient import gradient_arborescence
from rollax.emitters.ranking import Ranking, Restart, Rules, Selection
from rollax.environments.core import Environment


@settings
class CMAMEGAConfig(QDConfig):
    """Settings of CMA-MEGA. Those marked (static) shape the program; all others are data, so they can be swept over."""

    batch_size: int = static(540)
    """Solutions of an iteration, over all searches. (static)"""
    num_emitters: int = static(15)
    """Searches side by side. (static)"""
    sigma: float = number(10.0, low=1e-9)
    """Standard deviation of coefficients that a search begins with."""
    learning_rate: float = number(1.0, low=0)
    """How far a point moves towards the mean of its best branches."""
    ranking: Ranking = static("two_stage_improvement")
    """What is best, as for `cma_me`. (static)"""
    selection: Selection = static("mu")
    """Parents are the best solutions, as many as the archive took, or the better half of all. (static)"""
    restart: Restart = static("no_improvement")
    """A search begins again when its generation improved nothing, or only when it has converged. (static)"""


def cma_mega(environment: Environment, solution: Callable[[jax.Array], Any]) -> Algorithm:
    """CMA-MEGA of the solutions that `solution(key)` begins with.

    Raises UsageError for an environment without a closed form; `init` does when other parts do not fit.
    """
    return branching(environment, solution, cells)


def branching(environment: Environment, solution: Any, archive: Callable[..., Archive]) -> Algorithm:
    """The algorithm of such searches with an archive, as for `quality_diversity`."""
    slopes = gradients(environment)

    def emitter(config: CMAMEGAConfig, archive: Archive, score: Any) -> Emitter:
        rules = Rules(config.ranking, config.selection, config.restart)
        return gradient_arborescence(archive, slopes, config.num_emitters, config.sigma, config.learning_rate, rules)

    return quality_diversity(environment, solution, archive, emitter)
