"""MAP-Elites: an archive with the best solution per cell, and offspring of random elites.

Mouret and Clune 2015, arXiv:1504.04909, algorithm 1, with batches of solutions. Offspring are
created by Iso+LineDD from two elites (Vassiliades and Mouret 2018, arXiv:1804.03906), by Gaussian
noise from one elite, or by crossover and polynomial mutation from two elites (Deb and Agrawal 1995,
1999).
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np

from rollax.acting.scoring import Scorer
from rollax.algorithm import Algorithm
from rollax.algorithms.descriptor_cells import make_cells_archive
from rollax.algorithms.quality_diversity import QDConfig, quality_diversity
from rollax.archives.archive import Archive
from rollax.config import MAX_INT32, settings_dataclass, static_field, traced_field
from rollax.emitters.emitter import Emitter
from rollax.emitters.variation import (
    Crossover,
    gaussian_emitter,
    iso_line_emitter,
    polynomial_emitter,
)
from rollax.environments.capabilities import has_closed_form
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.types import Solution


@settings_dataclass
class MAPElitesConfig(QDConfig):
    """Settings of MAP-Elites.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    variation: Literal["iso_line", "gaussian", "polynomial"] = static_field("iso_line")
    """(static) Variation operator: "iso_line" adds noise and a step along the line to another
    elite, "gaussian" adds noise, "polynomial" applies crossover and polynomial mutation.
    """
    iso_sigma: float = traced_field(0.01, low=0)
    """Standard deviation of the noise."""
    line_sigma: float = traced_field(0.2, low=0)
    """Standard deviation of the step along the line, relative to the distance to the other
    elite."""
    crossover: Crossover = static_field("uniform")
    """(static) Crossover of the polynomial variation: "uniform" copies numbers of the other
    elite, "simulated_binary" samples numbers around both.
    """
    crossover_fraction: float = traced_field(0.5, 0, 1)
    """Fraction of the numbers that crossover changes."""
    mutation_fraction: float = traced_field(0.1, 0, 1)
    """Fraction of the numbers that polynomial mutation changes."""
    eta: float = traced_field(20.0, low=0)
    """Distribution index of polynomial mutation and simulated binary crossover. Larger values
    change less.
    """
    solution_bounds: tuple[float, float] = static_field((-5.12, 5.12), low=-MAX_INT32)
    """(static) Lower and upper bound of the polynomial variation for solutions without bounds."""


def map_elites(environment: Environment, solution: Callable[[jax.Array], Solution]) -> Algorithm:
    """Build MAP-Elites, which varies the elites of an archive with one elite per cell.

    Args:
        environment: Environment with state descriptors (`DescriptorEnvironment`).
        solution: Function from a random key to an initial solution.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if the settings are inconsistent.
    """
    return quality_diversity(
        environment,
        solution,
        make_cells_archive,
        functools.partial(make_variation_emitter, bounds=get_solution_bounds(environment)),
    )


def make_variation_emitter(
    config: MAPElitesConfig,
    archive: Archive,
    score: Scorer,
    bounds: tuple[np.ndarray, np.ndarray] | None = None,
) -> Emitter:
    """Build the variation emitter that MAP-Elites, DNS, AURORA and MOME share.

    Args:
        config: Settings of the variation.
        archive: Archive with the parents.
        score: Scorer (unused).
        bounds: Lower and upper bounds of solutions for the polynomial variation. None uses
            `config.solution_bounds`.

    Returns:
        The emitter.

    Raises:
        UsageError: If the lower bound in `config.solution_bounds` is not below the upper bound.
    """
    if config.variation == "polynomial":
        low, high = bounds or config.solution_bounds
        if bounds is None and not low < high:
            raise UsageError(
                f"solution_bounds must be two numbers in ascending order, got {low:g} {high:g}."
            )
        return polynomial_emitter(
            archive,
            bounds=(low, high),
            eta=config.eta,
            mutation_fraction=config.mutation_fraction,
            crossover_fraction=config.crossover_fraction,
            crossover=config.crossover,
        )
    if config.variation == "gaussian":
        return gaussian_emitter(archive, config.iso_sigma)
    return iso_line_emitter(archive, config.iso_sigma, config.line_sigma)


def get_solution_bounds(environment: Environment) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the bounds of a task's solutions (`task/...`), or None if solutions are unbounded.

    Returns:
        Arrays of lower and upper bounds with the shape of a solution. None for policies and for
        tasks without finite bounds.
    """
    space: Any = environment.action_space
    return (
        (np.asarray(space.low), np.asarray(space.high))
        if has_closed_form(environment) and space.is_bounded
        else None
    )
