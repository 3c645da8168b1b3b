"""ME-ES: MAP-Elites by an evolution strategy, which climbs fitness and novelty by turns from elites of the archive.

Colas, Madhavan, Huizinga and Clune 2020, arXiv:2003.01825, for policies of very many numbers: a generation is many
solutions in pairs around a parent, of which one step is learnt (`emitters/strategies.py`). Deviations: the offspring of one
generation is scored together with the pairs of the next, so that a new parent is chosen before the last offspring is known;
equal values have equal ranks; novelty is measured by the last `memory` offspring, not by all; parents are uniform among the
best, as QDax 0.5 has it, where the authors' code draws them in proportion to novelty or fitness.
"""

from collections.abc import Callable
from typing import Any

import jax

from rollax.algorithm import Algorithm
from rollax.algorithms.quality_diversity import QDConfig, cells, quality_diversity
from rollax.archives.core import Archive
from rollax.archives.means import of_first
from rollax.config import number, settings, static
from rollax.emitters.core import Emitter
from rollax.emitters.strategies import Objective, Strategy, strategy
from rollax.environments.core import Environment


@settings
class MEESConfig(QDConfig):
    """Settings of ME-ES. Those marked (static) shape the program; all others are data, so they can be swept over."""

    mean_evaluations: int = static(2)
    """How often an offspring is scored; fitness and descriptor are the means. All others of a batch are pairs around the
    parent, by which it learns. (static)"""
    adds_pairs: bool = static(False)
    """Whether these are for the archive as well. (static)"""
    objective: Objective = static("both")
    """What is climbed: fitness and novelty by turns, or one of them. (static)"""
    num_neighbors: int = static(10)
    """Offspring to whose mean distance novelty is measured. (static)"""
    memory: int = static(1000)
    """How many of the last offspring novelty is measured by. (static)"""
    num_optim_gens: float = number(10.0, low=1)
    """Generations before another parent is taken, as a whole number."""
    sigma: float = number(0.02, low=0)
    """Standard deviation of the solutions around the parent."""
    learning_rate: float = number(0.01, low=0)
    """Adam's step size."""
    weight_decay: float = number(0.005, low=0)
    """Share of the parent's numbers that is subtracted from their gradient."""


def me_es(environment: Environment, solution: Callable[[jax.Array], Any]) -> Algorithm:
    """ME-ES of the solutions that `solution(key)` begins with. `init` raises UsageError when the parts do not fit."""

    def archive(config: MEESConfig, low: tuple[float, ...], high: tuple[float, ...]) -> Archive:
        made = cells(config, low, high)
        return made if config.adds_pairs else of_first(made, config.mean_evaluations)

    return quality_diversity(environment, solution, archive, evolution_strategy)


def evolution_strategy(config: MEESConfig, archive: Archive, score: Any) -> Emitter:
    """The emitter of ME-ES."""
    numbers = Strategy(config.sigma, config.learning_rate, config.weight_decay, config.num_optim_gens)
    return strategy(archive, numbers, config.objective, config.mean_evaluations, config.num_neighbors, config.memory)
