"""OMG-MEGA: MAP-Elites whose children go along gradients of fitness and descriptors, with random coefficients.

Fontaine and Nikolaidis 2021, arXiv:2106.03894, algorithm 1. For environments with a closed form, `task/...`.
"""

from collections.abc import Callable
from typing import Any

import jax

from rollax.acting.scoring import gradients
from rollax.algorithm import Algorithm
from rollax.algorithms.quality_diversity import QDConfig, cells, quality_diversity
from rollax.archives.core import Archive
from rollax.config import number, settings, static
from rollax.emitters.core import Emitter
from rollax.emitters.gradient import gradient_operator
from rollax.environments.core import Environment


@settings
class OMGMEGAConfig(QDConfig):
    """Settings of OMG-MEGA. Those marked (static) shape the program; all others are data, so they can be swept over."""

    batch_size: int = static(540)
    """Solutions of an iteration, half of them elites whose gradients are taken. (static)"""
    sigma: float = number(0.0, low=0)
    """Standard deviation of the noise that these elites get."""
    gradient_sigma: float = number(10.0, low=0)
    """Standard deviation of the coefficients of gradients."""


def omg_mega(environment: Environment, solution: Callable[[jax.Array], Any]) -> Algorithm:
    """OMG-MEGA of the solutions that `solution(key)` begins with.

    Raises UsageError for an environment without a closed form; `init` does when other parts do not fit.
    """
    slopes = gradients(environment)

    def emitter(config: OMGMEGAConfig, archive: Archive, score: Any) -> Emitter:
        return gradient_operator(archive, slopes, config.sigma, config.gradient_sigma)

    return quality_diversity(environment, solution, cells, emitter)
