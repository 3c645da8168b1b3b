"""ME-MAP-Elites: emitters of several kinds, of which a bandit keeps those active that fill the archive best.

Cully 2021, arXiv:2007.05352: random variation of elites as in MAP-Elites, and the three kinds of searches of CMA-ME.
Deviations: a search that was not active begins at the elite at which it was left; where an iteration frees several places, the
bandit counts the solutions to come (`emitters/bandit.py`).
"""

from collections.abc import Callable
from typing import Any, Literal

import jax

from rollax.algorithm import Algorithm
from rollax.algorithms.quality_diversity import QDConfig, cells, quality_diversity
from rollax.archives.core import Archive
from rollax.config import number, settings, static
from rollax.emitters.bandit import bandit
from rollax.emitters.core import Emitter
from rollax.emitters.evolution import evolution
from rollax.emitters.ranking import Ranking, Rules
from rollax.emitters.variation import gaussian, iso_line
from rollax.environments.core import Environment
from rollax.errors import UsageError

Kind = Literal["objective", "random_direction", "improvement", "iso_line", "gaussian"]
RANKINGS: dict[Kind, Ranking] = {
    "objective": "objective",
    "random_direction": "two_stage_random_direction",
    "improvement": "two_stage_improvement",
}


@settings
class MEMAPElitesConfig(QDConfig):
    """Settings of ME-MAP-Elites. Those marked (static) shape the program; all others are data, so they can be swept over."""

    batch_size: int = static(540)
    """Solutions of an iteration, over all active emitters. (static)"""
    num_iterations: int = static(3)
    """Iterations of an update: covariances are decomposed once in it. (static)"""
    num_emitters: int = static(15)
    """Emitters that are active side by side. (static)"""
    kinds: tuple[Kind, ...] = static(("objective", "random_direction", "improvement", "iso_line"))
    """Of what kind they may be: CMA-ES by fitness, by a random direction of descriptors, by the improvement of the archive;
    noise and a step along a line between two elites; noise alone. (static)"""
    window: int = static(0, low=0)
    """Iterations whose successes the bandit counts; 0: all. (static)"""
    zeta: float = number(0.05, low=0)
    """How much the bandit prefers kinds that it has seen little of."""
    sigma: float = number(0.5, low=1e-9)
    """Standard deviation that a search begins with."""
    iso_sigma: float = number(0.01, low=0)
    """Standard deviation of the noise."""
    line_sigma: float = number(0.1, low=0)
    """Standard deviation of the step along the line, in units of the distance to the other elite."""


def me_map_elites(environment: Environment, solution: Callable[[jax.Array], Any]) -> Algorithm:
    """ME-MAP-Elites of the solutions that `solution(key)` begins with. `init` raises UsageError when the parts do not fit."""

    return quality_diversity(environment, solution, cells, several)


def several(config: MEMAPElitesConfig, archive: Archive, score: Any) -> Emitter:
    """The emitter of ME-MAP-Elites. Raises UsageError for kinds that are none or given twice."""
    if not config.kinds or len(set(config.kinds)) < len(config.kinds):
        raise UsageError(f"kinds ({' '.join(config.kinds)}) must be one or more different ones: give each once")
    emitters = {kind: of_kind(kind, config, archive) for kind in config.kinds}
    return bandit(emitters, config.num_emitters, config.window, config.zeta)


def of_kind(kind: Kind, config: MEMAPElitesConfig, archive: Archive) -> Emitter:
    """One emitter."""
    if kind == "iso_line":
        return iso_line(archive, config.iso_sigma, config.line_sigma)
    if kind == "gaussian":
        return gaussian(archive, config.iso_sigma)
    return evolution(archive, 1, config.sigma, Rules(RANKINGS[kind]))
