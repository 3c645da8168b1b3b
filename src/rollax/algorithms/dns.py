"""Dominated novelty search: MAP-Elites with a population that competes locally in place of cells.

Bahlous-Boldi, Faldor et al. 2025, arXiv:2502.00593. Children are those of `map_elites`; who stays is decided by the distance to
those that are fitter (`archives/dominated.py`). QD score and coverage are those of the population laid on the grid.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax

from rollax.algorithm import Algorithm
from rollax.algorithms.map_elites import MAPElitesConfig, bounds_of, varied
from rollax.algorithms.quality_diversity import quality_diversity
from rollax.archives.core import Archive
from rollax.archives.dominated import dominated
from rollax.config import settings, static
from rollax.environments.core import Environment


@settings
class DNSConfig(MAPElitesConfig):
    """Settings of dominated novelty search. Those marked (static) shape the program; all others are data, so they can be swept
    over."""

    population_size: int = static(1024)
    """Solutions that are kept. (static)"""
    num_neighbors: int = static(3)
    """Fitter solutions to whose mean distance counts. (static)"""


def dns(environment: Environment, solution: Callable[[jax.Array], Any]) -> Algorithm:
    """DNS of the solutions that `solution(key)` begins with. `init` raises UsageError when the parts do not fit."""

    def archive(config: DNSConfig, low: tuple[float, ...], high: tuple[float, ...]) -> Archive:
        return dominated(config.population_size, low, high, config.num_neighbors, config.grid)

    return quality_diversity(environment, solution, archive, functools.partial(varied, bounds=bounds_of(environment)))
