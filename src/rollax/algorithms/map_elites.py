"""MAP-Elites: the best solution of every cell of a grid, varied to find better ones and others.

Mouret and Clune 2015, arXiv:1504.04909, algorithm 1, in batches. Children are made of two elites each by Iso+LineDD
(Vassiliades and Mouret 2018, arXiv:1804.03906) or of one by Gaussian noise.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax

from rollax.algorithm import Algorithm
from rollax.algorithms.quality_diversity import QDConfig, cells, quality_diversity
from rollax.archives.core import Archive
from rollax.config import number, settings, static
from rollax.emitters.core import Emitter
from rollax.emitters.variation import gaussian, iso_line
from rollax.environments.core import Environment


@settings
class MAPElitesConfig(QDConfig):
    """Settings of MAP-Elites. Those marked (static) shape the program; all others are data, so they can be swept over."""

    variation: Literal["iso_line", "gaussian"] = static("iso_line")
    """How children come about: noise and a step along the line to another elite, or noise alone. (static)"""
    iso_sigma: float = number(0.01, low=0)
    """Standard deviation of the noise."""
    line_sigma: float = number(0.2, low=0)
    """Standard deviation of the step along the line, in units of the distance to the other elite."""


def map_elites(environment: Environment, solution: Callable[[jax.Array], Any]) -> Algorithm:
    """MAP-Elites of the solutions that `solution(key)` begins with. `init` raises UsageError when the parts do not fit."""
    return quality_diversity(environment, solution, cells, varied)


def varied(config: MAPElitesConfig, archive: Archive, score: Any) -> Emitter:
    """The emitter of MAP-Elites and DNS."""
    if config.variation == "gaussian":
        return gaussian(archive, config.iso_sigma)
    return iso_line(archive, config.iso_sigma, config.line_sigma)
