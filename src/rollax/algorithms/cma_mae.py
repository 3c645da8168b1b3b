"""CMA-MAE: CMA-ME with an acceptance threshold per cell that rises slowly.

Fontaine and Nikolaidis 2023, arXiv:2205.10752, algorithm 1. A cell accepts solutions with a fitness
above its threshold. The threshold then moves toward the fitness of the accepted solutions by a
fraction `archive_learning_rate`. If the fraction is 0, searches maximize fitness. If it is 1, the
threshold becomes the mean fitness of the solutions that the cell accepted in the last batch.
Thresholds affect only the searches. The archive keeps the best solution of every cell, like the
result archive of pyribs. Deviation from the paper: One archive contains both thresholds and best
solutions, so a search may restart from an elite that did not exceed the threshold of its cell.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax

from rollax.algorithm import Algorithm
from rollax.algorithms.cma_me import CMAMEConfig, make_cma_es_emitter
from rollax.algorithms.descriptor_cells import CellsConfig, make_cells_archive
from rollax.algorithms.quality_diversity import quality_diversity
from rollax.archives.archive import Archive
from rollax.archives.cells import AcceptanceThreshold
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.emitters.ranking import Ranking, RestartRule, Selection
from rollax.environments.environment import Environment
from rollax.types import Scalar, Solution


@runtime_checkable
class ThresholdConfig(CellsConfig, Protocol):
    """Settings of an archive whose cells have acceptance thresholds."""

    @property
    def threshold_start(self) -> Scalar: ...
    @property
    def archive_learning_rate(self) -> Scalar: ...


@settings_dataclass
class CMAMAEConfig(CMAMEConfig):
    """Settings of CMA-MAE.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    archive_learning_rate: float = traced_field(0.01, 0, 1)
    """Step size with which the threshold of a cell moves toward the fitness of accepted
    solutions, in [0, 1]."""
    threshold_start: float = traced_field(0.0)
    """Initial threshold of every cell. Solutions with a lower fitness do not count as
    improvements, but they may become elites. Set it below the lowest fitness.
    """
    ranking: Ranking = static_field("improvement")
    """(static) Ranking of solutions, as for `cma_me`."""
    selection: Selection = static_field("mu")
    """(static) Parents of the next generation: the solutions that improved the archive
    ("filter") or the better half ("mu")."""
    restart: RestartRule = static_field("basic")
    """(static) When a search restarts: after a generation without improvement ("no_improvement")
    or only on convergence ("basic")."""


def cma_mae(environment: Environment, solution: Callable[[jax.Array], Solution]) -> Algorithm:
    """Build CMA-MAE, which is CMA-ME with slowly rising acceptance thresholds.

    Args:
        environment: Environment with state descriptors (`DescriptorEnvironment`).
        solution: Function from a random key to an initial solution.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if the settings are inconsistent.
    """
    return quality_diversity(environment, solution, make_threshold_archive, make_cma_es_emitter)


def make_threshold_archive(
    config: ThresholdConfig, low: tuple[float, ...], high: tuple[float, ...]
) -> Archive:
    """Build an archive with acceptance thresholds, for CMA-MAE and CMA-MAEGA.

    Args:
        config: Settings of the cells and the thresholds.
        low: Lower bounds of descriptors.
        high: Upper bounds of descriptors.

    Returns:
        The archive.
    """
    return make_cells_archive(
        config, low, high, AcceptanceThreshold(config.threshold_start, config.archive_learning_rate)
    )
