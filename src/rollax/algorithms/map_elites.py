"""MAP-Elites: the best solution of every cell of a grid, varied to find better ones and others.

Mouret and Clune 2015, arXiv:1504.04909, algorithm 1, in batches. Children are made of two elites each by Iso+LineDD
(Vassiliades and Mouret 2018, arXiv:1804.03906), of one by Gaussian noise, or by crossover and polynomial mutation (Deb and
Agrawal 1995, 1999).
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np

from rollax.algorithm import Algorithm
from rollax.algorithms.quality_diversity import QDConfig, cells, quality_diversity
from rollax.archives.core import Archive
from rollax.config import LARGEST_INT, number, settings, static
from rollax.emitters.core import Emitter
from rollax.emitters.variation import Crossover, gaussian, iso_line, polynomial
from rollax.environments.core import Environment
from rollax.errors import UsageError
from rollax.networks.solutions import has_closed_form


@settings
class MAPElitesConfig(QDConfig):
    """Settings of MAP-Elites. Those marked (static) shape the program; all others are data, so they can be swept over."""

    variation: Literal["iso_line", "gaussian", "polynomial"] = static("iso_line")
    """How children come about: noise and a step along the line to another elite, noise alone, or crossover and polynomial
    mutation. (static)"""
    iso_sigma: float = number(0.01, low=0)
    """Standard deviation of the noise."""
    line_sigma: float = number(0.2, low=0)
    """Standard deviation of the step along the line, in units of the distance to the other elite."""
    crossover: Crossover = static("uniform")
    """How polynomial variation mixes two elites: numbers of the other one, or numbers around both. (static)"""
    crossover_fraction: float = number(0.5, 0, 1)
    """Share of the numbers that crossover changes."""
    mutation_fraction: float = number(0.1, 0, 1)
    """Share of the numbers that polynomial mutation changes."""
    eta: float = number(20.0, low=0)
    """Distribution index of polynomial mutation and simulated binary crossover: larger ones change less."""
    solution_bounds: tuple[float, float] = static((-5.12, 5.12), low=-LARGEST_INT)
    """Lowest and highest number of polynomial variation, of solutions that have no bounds of their own. (static)"""


def map_elites(environment: Environment, solution: Callable[[jax.Array], Any]) -> Algorithm:
    """MAP-Elites of the solutions that `solution(key)` begins with. `init` raises UsageError when the parts do not fit."""
    return quality_diversity(environment, solution, cells, functools.partial(varied, bounds=bounds_of(environment)))


def varied(config: MAPElitesConfig, archive: Archive, score: Any, bounds: tuple[Any, Any] | None = None) -> Emitter:
    """The emitter of MAP-Elites and DNS; `bounds`: of solutions, where they have some.

    Raises UsageError for bounds in the wrong order.
    """
    if config.variation == "polynomial":
        low, high = bounds or config.solution_bounds
        if bounds is None and not low < high:
            raise UsageError(f"solution_bounds ({low:g} {high:g}) must be two numbers, the lower one first")
        fractions = config.mutation_fraction, config.crossover_fraction
        return polynomial(archive, (low, high), config.eta, *fractions, config.crossover)
    if config.variation == "gaussian":
        return gaussian(archive, config.iso_sigma)
    return iso_line(archive, config.iso_sigma, config.line_sigma)


def bounds_of(environment: Environment) -> tuple[Any, Any] | None:
    """Lowest and highest numbers of solutions, those of actions where these are the solutions; None where there are none."""
    space: Any = environment.action_space
    return (np.asarray(space.low), np.asarray(space.high)) if has_closed_form(environment) and space.is_bounded else None
