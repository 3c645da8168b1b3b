"""Differentiable benchmark functions for quality-diversity algorithms.

Each task is a one-step environment whose action is a solution. The method `score` computes the same
fitness and descriptor without an episode.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rollax.environments.closed_form import Task
from rollax.errors import UsageError
from rollax.spaces import Box

DESCRIPTOR_LIMIT = 5.12  # descriptors are linear up to this absolute value
OPTIMUM = 0.4 * DESCRIPTOR_LIMIT


def sphere(dimensions: int = 100) -> Task:
    """Build the sphere task, with fitness 100 at the optimum and 0 if all numbers are -5.12.

    The fitness decreases with the squared distance from the optimum, 2.048 in every dimension. The
    descriptor is the sum over each half of the solution, where a number x beyond +-5.12 counts as
    5.12 / x.

    Args:
        dimensions: Number of dimensions D of a solution, at least 2.

    Returns:
        The task.

    Raises:
        UsageError: If `dimensions` is below 2.

    References:
        Fontaine et al. 2020 (arXiv:1912.02400), section 4, linear projection.
    """

    def score(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        worst = (DESCRIPTOR_LIMIT + OPTIMUM) ** 2 * dimensions
        return 100 * (1 - jnp.sum((x - OPTIMUM) ** 2) / worst), linear_projection(x)

    return _make_projected_task("task/sphere", score, dimensions)


def rastrigin(dimensions: int = 100) -> Task:
    """Build the Rastrigin task: the negated Rastrigin function with its optimum at 2.048.

    The scale of the fitness and the descriptor are the same as in `sphere`.

    Args:
        dimensions: Number of dimensions D of a solution, at least 2.

    Returns:
        The task.

    Raises:
        UsageError: If `dimensions` is below 2.
    """

    def score(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        worst = _rastrigin_function(jnp.full(dimensions, -DESCRIPTOR_LIMIT - OPTIMUM))
        return 100 * (1 - _rastrigin_function(x - OPTIMUM) / worst), linear_projection(x)

    return _make_projected_task("task/rastrigin", score, dimensions)


def rastrigin_multi(dimensions: int = 100, lag: float = 2.2) -> Task:
    """Build a task with two objectives, negated Rastrigin functions with optima at 0 and `lag`.

    `info` contains the objectives as objective_0 and objective_1. Each objective is scaled so that
    0 is the worst value at the corners of [-2, 4]^D and 100 the optimum. The reward is their mean.
    The descriptor is the first two numbers of the solution.

    Args:
        dimensions: Number of dimensions D of a solution, at least 2.
        lag: Optimum of the second objective in every dimension.

    Returns:
        The task.

    Raises:
        UsageError: If `dimensions` is below 2.

    References:
        Pierrot et al. 2022 (arXiv:2202.03057), section 5.1.
    """
    if dimensions < 2:
        raise UsageError(
            f"task/rastrigin-multi: dimensions ({dimensions}) must be at least 2, "
            "because the first two are the descriptor."
        )
    low, high = -2.0, 4.0

    def objectives(x: jax.Array) -> jax.Array:
        x = jnp.clip(x, low, high)
        centers = jnp.asarray([0.0, lag])
        worst = dimensions * jnp.maximum(
            jax.vmap(_rastrigin_function)(low - centers),
            jax.vmap(_rastrigin_function)(high - centers),
        )
        return 100 * (1 - jax.vmap(lambda center: _rastrigin_function(x - center))(centers) / worst)

    def score(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.mean(objectives(x)), jnp.clip(x[:2], low, high)

    space = Box(low, high, (dimensions,))
    return Task("task/rastrigin-multi", score, space, Box(low, high, (2,)), objectives=objectives)


def _rastrigin_function(offset: jax.Array) -> jax.Array:
    """Return the Rastrigin function at an offset `[D]` from its optimum."""
    return jnp.sum(10 + offset**2 - 10 * jnp.cos(2 * jnp.pi * offset))


def _make_projected_task(
    name: str, score: Callable[[jax.Array], tuple[jax.Array, jax.Array]], dimensions: int
) -> Task:
    if dimensions < 2:
        raise UsageError(
            f"{name}: dimensions ({dimensions}) must be at least 2, "
            "because each half of them gives one number of the descriptor."
        )
    reach = dimensions // 2 * DESCRIPTOR_LIMIT
    return Task(name, score, Box(-math.inf, math.inf, (dimensions,)), Box(-reach, reach, (2,)))


def linear_projection(x: jax.Array) -> jax.Array:
    """Return the sums over both halves of a solution `[D]`, float32 [2].

    A number x beyond +-5.12 counts as 5.12 / x.
    """
    is_far = jnp.abs(x) > DESCRIPTOR_LIMIT
    # The divisor is never 0, so gradients are finite everywhere.
    folded = jnp.where(is_far, DESCRIPTOR_LIMIT / jnp.where(is_far, x, 1.0), x)
    half = x.shape[0] // 2
    return jnp.stack([jnp.sum(folded[:half]), jnp.sum(folded[half:])])


def arm(joints: int = 8) -> Task:
    """Build the planar arm task, whose descriptor is the position of the hand.

    Joint i turns by 2 pi x_i - pi. The shoulder is at (0.5, 0.5), and the links have equal lengths
    with a total of 0.5. The fitness is minus the standard deviation of x after x is clipped to [0,
    1].

    Args:
        joints: Number of joints, at least 1.

    Returns:
        The task.

    Raises:
        UsageError: If `joints` is below 1.

    References:
        Cully et al. 2015 (doi:10.1038/nature14422), extended data, in the units of Mouret's
        fast_map-elites.
    """
    if joints < 1:
        raise UsageError(f"task/arm: joints ({joints}) must be at least 1.")

    def score(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jnp.clip(x, 0.0, 1.0)
        angle = jnp.cumsum(2 * jnp.pi * x - jnp.pi)
        end_position = (
            jnp.stack([jnp.sum(jnp.cos(angle)), jnp.sum(jnp.sin(angle))]) / (2 * joints) + 0.5
        )
        variance = jnp.mean((x - jnp.mean(x)) ** 2)
        # The square root has no derivative at 0, where the gradient is defined as 0.
        is_optimal = variance == 0
        std = jnp.where(is_optimal, 0.0, jnp.sqrt(jnp.where(is_optimal, 1.0, variance)))
        return -std, end_position

    return Task("task/arm", score, Box(0.0, 1.0, (joints,)), Box(0.0, 1.0, (2,)))
