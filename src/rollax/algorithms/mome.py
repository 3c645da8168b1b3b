"""MOME: multi-objective quality-diversity with a Pareto front in every cell.

Pierrot et al. 2022, arXiv:2202.03057, algorithm 1. Objectives are values in the environment's
`info`, such as terms of the reward, summed over the episode. The fitness is the return, as in other
algorithms. A parent is sampled by sampling a cell and then a solution of its front.
`archives/pareto_fronts.py` describes the insertion into a full front.
"""

from collections.abc import Callable

import jax

from rollax.acting.scoring import ScoringOptions
from rollax.algorithm import Algorithm
from rollax.algorithms.descriptor_cells import make_cells
from rollax.algorithms.map_elites import MAPElitesConfig, make_variation_emitter
from rollax.algorithms.quality_diversity import quality_diversity
from rollax.archives.archive import Archive
from rollax.archives.pareto_fronts import pareto_front_archive
from rollax.config import MAX_FLOAT32, settings_dataclass, static_field
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.types import Solution


@settings_dataclass
class MOMEConfig(MAPElitesConfig):
    """Settings of MOME.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    objectives: tuple[str, ...] = static_field(("objective_0", "objective_1"))
    """(static) Names in the environment's `info` whose sums over an episode are maximized."""
    reference: tuple[float, ...] = static_field((0.0, 0.0), low=-MAX_FLOAT32)
    """(static) Reference point of the hypervolume, one value per objective. Solutions below it
    contribute 0.
    """
    front_size: int = static_field(50)
    """(static) Maximum number of solutions per front."""


def mome(environment: Environment, solution: Callable[[jax.Array], Solution]) -> Algorithm:
    """Build MOME, which is MAP-Elites with a Pareto front in every cell.

    Args:
        environment: Environment with state descriptors (`DescriptorEnvironment`).
        solution: Function from a random key to an initial solution.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if the settings are inconsistent.
    """
    return quality_diversity(
        environment,
        solution,
        make_pareto_front_archive,
        make_variation_emitter,
        lambda config: ScoringOptions(objectives=config.objectives),
    )


def make_pareto_front_archive(
    config: MOMEConfig, low: tuple[float, ...], high: tuple[float, ...]
) -> Archive:
    """Build an archive with one Pareto front per cell.

    Args:
        config: Settings of fronts and cells.
        low: Lower bounds of descriptors.
        high: Upper bounds of descriptors.

    Returns:
        The archive.

    Raises:
        UsageError: If `config.objectives` is empty, or if `config.reference` does not have one
            number per objective.
    """
    if len(config.objectives) != len(config.reference) or not config.objectives:
        raise UsageError(
            "reference must have one number per objective "
            f"({' '.join(config.objectives)}), got ({' '.join(map(str, config.reference))})."
        )
    return pareto_front_archive(make_cells(config, low, high), config.front_size, config.reference)
