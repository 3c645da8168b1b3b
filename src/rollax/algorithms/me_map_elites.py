"""ME-MAP-Elites: emitters of several kinds, among which a bandit selects.

Cully 2021, arXiv:2007.05352. An emitter is a variation of random elites as in MAP-Elites, or a
CMA-ES search with one of three rankings as in CMA-ME. The bandit activates the kinds whose
solutions enter the archive most often. Deviations: A search that becomes active again starts from
an elite that was sampled when the search last finished. If several emitters finish in one
iteration, the selection of each successor counts the solutions that the other active emitters will
create (`emitters/bandit.py`).
"""

from collections.abc import Callable
from typing import Literal

import jax

from rollax.acting.scoring import Scorer
from rollax.algorithm import Algorithm
from rollax.algorithms.descriptor_cells import make_cells_archive
from rollax.algorithms.quality_diversity import QDConfig, quality_diversity
from rollax.archives.archive import Archive
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.emitters.bandit import bandit_emitter
from rollax.emitters.emitter import Emitter
from rollax.emitters.improvement import cma_es_emitter
from rollax.emitters.ranking import Ranking, SearchRules
from rollax.emitters.variation import gaussian_emitter, iso_line_emitter
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.types import Solution

EmitterKind = Literal["objective", "random_direction", "improvement", "iso_line", "gaussian"]
RANKING_BY_KIND: dict[EmitterKind, Ranking] = {
    "objective": "objective",
    "random_direction": "two_stage_random_direction",
    "improvement": "two_stage_improvement",
}


@settings_dataclass
class MEMAPElitesConfig(QDConfig):
    """Settings of ME-MAP-Elites.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    batch_size: int = static_field(540)
    """(static) Solutions per iteration, over all active emitters."""
    num_iterations: int = static_field(3)
    """(static) Iterations per update. Covariances are decomposed once per update."""
    num_emitters: int = static_field(15)
    """(static) Number of active emitters."""
    kinds: tuple[EmitterKind, ...] = static_field(
        ("objective", "random_direction", "improvement", "iso_line")
    )
    """(static) Kinds of emitters: CMA-ES ranked by fitness ("objective"), by a random descriptor
    direction or by improvement; Iso+LineDD ("iso_line"); or Gaussian noise.
    """
    window: int = static_field(0, low=0)
    """(static) Number of recent iterations whose successes the bandit counts. 0 counts all."""
    zeta: float = traced_field(0.05, low=0)
    """Exploration coefficient of the bandit. Larger values favor kinds with few selections."""
    sigma: float = traced_field(0.5, low=1e-9)
    """Initial standard deviation of a search."""
    iso_sigma: float = traced_field(0.01, low=0)
    """Standard deviation of the noise."""
    line_sigma: float = traced_field(0.1, low=0)
    """Standard deviation of the step along the line, relative to the distance to the other
    elite."""


def me_map_elites(environment: Environment, solution: Callable[[jax.Array], Solution]) -> Algorithm:
    """Build ME-MAP-Elites, where a bandit selects among several kinds of emitters.

    Args:
        environment: Environment with state descriptors (`DescriptorEnvironment`).
        solution: Function from a random key to an initial solution.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if the settings are inconsistent.
    """

    return quality_diversity(environment, solution, make_cells_archive, make_me_map_elites_emitter)


def make_me_map_elites_emitter(
    config: MEMAPElitesConfig, archive: Archive, score: Scorer
) -> Emitter:
    """Build the emitter of ME-MAP-Elites.

    Args:
        config: Settings of the algorithm.
        archive: Archive with the parents.
        score: Scorer (unused).

    Returns:
        The emitter.

    Raises:
        UsageError: If `config.kinds` is empty or has duplicates.
    """
    if not config.kinds or len(set(config.kinds)) < len(config.kinds):
        raise UsageError(
            f"kinds must be one or more different kinds, got ({' '.join(config.kinds)}). "
            "List each kind once."
        )
    emitters = {kind: make_emitter_of_kind(kind, config, archive) for kind in config.kinds}
    return bandit_emitter(emitters, config.num_emitters, config.window, config.zeta)


def make_emitter_of_kind(kind: EmitterKind, config: MEMAPElitesConfig, archive: Archive) -> Emitter:
    """Build one emitter of a kind: a variation of elites, or one CMA-ES search."""
    if kind == "iso_line":
        return iso_line_emitter(archive, config.iso_sigma, config.line_sigma)
    if kind == "gaussian":
        return gaussian_emitter(archive, config.iso_sigma)
    return cma_es_emitter(archive, 1, config.sigma, SearchRules(RANKING_BY_KIND[kind]))
