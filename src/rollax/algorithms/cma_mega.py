"""CMA-MEGA: gradient arborescence with coefficients adapted by CMA-ES.

Fontaine and Nikolaidis 2021, arXiv:2106.03894, algorithm 2. Searches branch along the gradients of
fitness and descriptors. The environment must be a task with a differentiable score function
(`task/...`). Deviations: A point and its branches are added to the archive in one batch, and points
move by plain gradient steps instead of Adam.
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
from rollax.emitters.gradient_arborescence import gradient_arborescence_emitter
from rollax.emitters.ranking import Ranking, RestartRule, SearchRules, Selection
from rollax.environments.environment import Environment
from rollax.types import Solution


@settings_dataclass
class CMAMEGAConfig(QDConfig):
    """Settings of CMA-MEGA.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    batch_size: int = static_field(540)
    """(static) Solutions per iteration, over all searches."""
    num_emitters: int = static_field(15)
    """(static) Number of parallel searches."""
    sigma: float = traced_field(10.0, low=1e-9)
    """Initial standard deviation of the gradient coefficients."""
    learning_rate: float = traced_field(1.0, low=0)
    """Step size of a point toward the mean of its best branches."""
    ranking: Ranking = static_field("two_stage_improvement")
    """(static) Ranking of solutions, as for `cma_me`."""
    selection: Selection = static_field("mu")
    """(static) Parents of the next generation: the solutions that improved the archive
    ("filter") or the better half ("mu")."""
    restart: RestartRule = static_field("no_improvement")
    """(static) When a search restarts: after a generation without improvement ("no_improvement")
    or only on convergence ("basic")."""


def cma_mega(environment: Environment, solution: Callable[[jax.Array], Solution]) -> Algorithm:
    """Build CMA-MEGA, where CMA-ES adapts steps along the gradients of fitness and descriptors.

    Args:
        environment: Task with a differentiable score function (`task/...`).
        solution: Function from a random key to an initial solution.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if the settings are inconsistent.

    Raises:
        UsageError: If the environment has no differentiable score function.
    """
    return make_cma_mega(environment, solution, make_cells_archive)


def make_cma_mega(
    environment: Environment,
    solution: Callable[[jax.Array], Solution],
    archive: Callable[..., Archive],
) -> Algorithm:
    """Build CMA-MEGA with the given archive.

    Args:
        environment: Task with a differentiable score function (`task/...`).
        solution: Function from a random key to an initial solution.
        archive: Function `(config, low, high)` that returns the archive.

    Returns:
        The algorithm.

    Raises:
        UsageError: If the environment has no differentiable score function.
    """
    slopes = make_gradient_fn(environment)

    def emitter(config: CMAMEGAConfig, archive: Archive, score: Scorer) -> Emitter:
        rules = SearchRules(config.ranking, config.selection, config.restart)
        return gradient_arborescence_emitter(
            archive, slopes, config.num_emitters, config.sigma, config.learning_rate, rules
        )

    return quality_diversity(environment, solution, archive, emitter)
