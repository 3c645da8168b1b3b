"""CMA-ME: evolution strategies that maximize the improvement of the archive.

Fontaine et al. 2020, arXiv:1912.02400, algorithm 1. Several CMA-ES searches run in parallel. Each
search ranks its solutions by their effect on the archive, and restarts from an elite when it
stagnates. Deviations: All searches decompose their covariances once per update, while pyribs
decomposes each covariance after a number of generations of its search. The improvement of a
solution is relative to the archive before the whole batch.
"""

from collections.abc import Callable

import jax

from rollax.acting.scoring import Scorer
from rollax.algorithm import Algorithm
from rollax.algorithms.descriptor_cells import make_cells_archive
from rollax.algorithms.quality_diversity import QDConfig, quality_diversity
from rollax.archives.archive import Archive
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.emitters.emitter import Emitter
from rollax.emitters.improvement import cma_es_emitter
from rollax.emitters.ranking import Ranking, RestartRule, SearchRules, Selection
from rollax.environments.environment import Environment
from rollax.types import Solution


@settings_dataclass
class CMAMEConfig(QDConfig):
    """Settings of CMA-ME.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    batch_size: int = static_field(540)
    """(static) Solutions per iteration, over all searches."""
    num_iterations: int = static_field(3)
    """(static) Iterations per update. Covariances are decomposed once per update."""
    num_emitters: int = static_field(15)
    """(static) Number of parallel searches."""
    sigma: float = traced_field(0.5, low=1e-9)
    """Initial standard deviation of a search."""
    ranking: Ranking = static_field("two_stage_improvement")
    """(static) Ranking of solutions: by improvement of the archive, by progress along a random
    direction in descriptor space, or by fitness ("objective"). The "two_stage" variants rank
    new elites before improved ones, and these before the rest.
    """
    selection: Selection = static_field("filter")
    """(static) Parents of the next generation: the solutions that improved the archive
    ("filter") or the better half ("mu")."""
    restart: RestartRule = static_field("no_improvement")
    """(static) When a search restarts: after a generation without improvement ("no_improvement")
    or only on convergence ("basic")."""


def cma_me(environment: Environment, solution: Callable[[jax.Array], Solution]) -> Algorithm:
    """Build CMA-ME, which runs CMA-ES searches for improvements of an archive.

    Args:
        environment: Environment with state descriptors (`DescriptorEnvironment`).
        solution: Function from a random key to an initial solution.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if the settings are inconsistent.
    """

    return quality_diversity(environment, solution, make_cells_archive, make_cma_es_emitter)


def make_cma_es_emitter(config: CMAMEConfig, archive: Archive, score: Scorer) -> Emitter:
    """Build the emitter of CMA-ME and CMA-MAE. `score` is unused."""
    return cma_es_emitter(
        archive,
        config.num_emitters,
        config.sigma,
        SearchRules(config.ranking, config.selection, config.restart),
    )
