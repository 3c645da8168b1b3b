"""Dominated novelty search (DNS): MAP-Elites with local competition instead of cells.

Bahlous-Boldi, Faldor et al. 2025, arXiv:2502.00593. Offspring are created as in `map_elites`.
Solutions that are far from fitter solutions survive (`archives/dominated_novelty.py`). QD score and
coverage count the best solution in each cell of the grid.
"""

import functools
from collections.abc import Callable

import jax

from rollax.algorithm import Algorithm
from rollax.algorithms.map_elites import (
    MAPElitesConfig,
    get_solution_bounds,
    make_variation_emitter,
)
from rollax.algorithms.quality_diversity import quality_diversity
from rollax.archives.archive import Archive
from rollax.archives.dominated_novelty import dominated_novelty_archive
from rollax.config import settings_dataclass, static_field
from rollax.environments.environment import Environment
from rollax.types import Solution


@settings_dataclass
class DNSConfig(MAPElitesConfig):
    """Settings of dominated novelty search.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    population_size: int = static_field(1024)
    """(static) Number of solutions in the population."""
    num_neighbors: int = static_field(3)
    """(static) Number of nearest fitter solutions over which distances are averaged."""


def dns(environment: Environment, solution: Callable[[jax.Array], Solution]) -> Algorithm:
    """Build dominated novelty search (DNS).

    Args:
        environment: Environment with state descriptors (`DescriptorEnvironment`).
        solution: Function from a random key to an initial solution.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if the settings are inconsistent.
    """

    def archive(config: DNSConfig, low: tuple[float, ...], high: tuple[float, ...]) -> Archive:
        return dominated_novelty_archive(
            config.population_size, low, high, config.num_neighbors, config.grid
        )

    return quality_diversity(
        environment,
        solution,
        archive,
        functools.partial(make_variation_emitter, bounds=get_solution_bounds(environment)),
    )
