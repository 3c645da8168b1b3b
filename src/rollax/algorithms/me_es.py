"""ME-ES: an evolution strategy that maximizes fitness and novelty from elites of the archive.

Colas, Madhavan, Huizinga and Clune 2020, arXiv:2003.01825. The algorithm is suited to policies with
many parameters. A generation consists of many antithetic pairs around a parent, which are used to
estimate one gradient step (`emitters/evolution_strategy.py`).

Deviations: The offspring of a generation is scored together with the pairs of the next generation.
A new parent is therefore selected before the score of the last offspring is available. Equal
fitness or novelty values have equal ranks. Novelty is measured against the last `memory` offspring
instead of all offspring. Parents are sampled uniformly from the best elites, as in QDax 0.5. The
authors' code samples parents in proportion to novelty or fitness.
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
from rollax.emitters.evolution_strategy import Objective, StrategySettings, me_es_emitter
from rollax.environments.environment import Environment
from rollax.types import Solution


@settings_dataclass
class MEESConfig(QDConfig):
    """Settings of ME-ES.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    mean_evaluations: int = static_field(2)
    """(static) Number of evaluations of each offspring. It is inserted once, with the mean
    fitness and descriptor. All other solutions of a batch are pairs around the
    parent, which estimate the gradient.
    """
    adds_pairs: bool = static_field(False)
    """(static) Also insert the perturbed solutions into the archive."""
    objective: Objective = static_field("both")
    """(static) Objective: fitness, novelty, or both in alternation."""
    num_neighbors: int = static_field(10)
    """(static) Number of nearest offspring over which novelty is averaged."""
    memory: int = static_field(1000)
    """(static) Number of recent offspring against which novelty is measured."""
    num_optim_gens: float = traced_field(10.0, low=1)
    """Generations per parent. Rounded to an integer."""
    sigma: float = traced_field(0.02, low=0)
    """Standard deviation of the perturbations around the parent."""
    learning_rate: float = traced_field(0.01, low=0)
    """Learning rate (Adam)."""
    weight_decay: float = traced_field(0.005, low=0)
    """Weight decay coefficient, as a multiple of the parameters that is subtracted from the
    gradient.
    """


def me_es(environment: Environment, solution: Callable[[jax.Array], Solution]) -> Algorithm:
    """Build ME-ES, an evolution strategy that maximizes fitness and novelty.

    Args:
        environment: Environment with state descriptors (`DescriptorEnvironment`).
        solution: Function from a random key to an initial solution.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if the settings are inconsistent.
    """
    return quality_diversity(environment, solution, make_cells_archive, make_me_es_emitter)


def make_me_es_emitter(config: MEESConfig, archive: Archive, score: Scorer) -> Emitter:
    """Build the emitter of ME-ES. `score` is unused."""
    return me_es_emitter(
        archive,
        settings=StrategySettings(
            config.sigma, config.learning_rate, config.weight_decay, config.num_optim_gens
        ),
        objective=config.objective,
        num_evaluations=config.mean_evaluations,
        num_neighbors=config.num_neighbors,
        memory=config.memory,
        adds_pairs=config.adds_pairs,
    )
