"""The suite `task`: closed forms that quality-diversity is measured on. One action is a solution, and ends the episode.

Each is an ordinary environment of one step, so that whatever plays environments plays these; `score` says the same of a
solution without playing.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.convert import convert_all, signature_defaults
from rollax.environments.core import Environment, Transition
from rollax.errors import UsageError
from rollax.spaces import Box

LIMIT = 5.12  # descriptors are linear in a number up to here
OPTIMUM = 0.4 * LIMIT


class TaskState(NamedTuple):
    descriptor: jax.Array  # float32 [K]: of the solution; 0 before there is one


class Task(eqx.Module):
    """A closed form as an environment: the observation says nothing, the action is a solution, the reward its fitness."""

    name: str = eqx.field(static=True)
    function: Callable[[jax.Array], tuple[jax.Array, jax.Array]] = eqx.field(static=True)
    action_space: Box = eqx.field(static=True)
    descriptor_space: Box = eqx.field(static=True)
    is_outside: bool = eqx.field(static=True, default=False)  # scores come from elsewhere: there are no gradients of them
    # Numbers of a solution that `info` has as objective_0, objective_1, ...: float32 [M]; None without.
    objectives: Callable[[jax.Array], jax.Array] | None = eqx.field(static=True, default=None)

    observation_space = Box(0.0, 0.0, (1,))
    descriptor_extraction = "final"
    num_agents = None
    time_limit = 1

    def score(self, solution: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Fitness, float32 [], and descriptor `[K]` of a solution `[D]`."""
        return self.function(solution)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return TaskState(jnp.zeros(self.descriptor_space.shape)), jnp.zeros(1)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        fitness, descriptor = self.score(action)
        yes = jnp.ones((), bool)
        each = () if self.objectives is None else self.objectives(action)
        info = {f"objective_{index}": value for index, value in enumerate(each)}
        return Transition(TaskState(descriptor), jnp.zeros(1), fitness, yes, ~yes, info)

    def descriptor(self, state: TaskState) -> jax.Array:
        return state.descriptor


def sphere(dimensions: int = 100) -> Task:
    """Minus the squared distance from 2.048 in every dimension, scaled: 0 is the corner at -5.12, 100 the optimum.

    The descriptor is the sum over each half of the numbers, where one beyond +-5.12 counts as 5.12 / x: the linear projection
    of Fontaine et al. 2020, arXiv:1912.02400, section 4.
    """

    def score(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        worst = (LIMIT + OPTIMUM) ** 2 * dimensions
        return 100 * (1 - jnp.sum((x - OPTIMUM) ** 2) / worst), linear_projection(x)

    return _projected("task/sphere", score, dimensions)


def rastrigin(dimensions: int = 100) -> Task:
    """Rastrigin's function about 2.048 with its sign turned, scaled and described as the sphere."""

    def score(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        worst = _waves(jnp.full(dimensions, -LIMIT - OPTIMUM))
        return 100 * (1 - _waves(x - OPTIMUM) / worst), linear_projection(x)

    return _projected("task/rastrigin", score, dimensions)


def rastrigin_multi(dimensions: int = 100, lag: float = 2.2) -> Task:
    """Two Rastrigin functions with their signs turned, about 0 and `lag`: `info` has them as objective_0 and objective_1.

    Each is scaled so that 0 is the worst of its values at corners of [-2, 4]^D, 100 its optimum; the reward is their mean. The
    descriptor is the first two numbers. Pierrot et al. 2022, arXiv:2202.03057, section 5.1.
    """
    if dimensions < 2:
        raise UsageError(f"task/rastrigin-multi: dimensions ({dimensions}) must be at least 2, as these are the descriptor")
    low, high = -2.0, 4.0

    def objectives(x: jax.Array) -> jax.Array:
        x = jnp.clip(x, low, high)
        centers = jnp.asarray([0.0, lag])
        worst = dimensions * jnp.maximum(jax.vmap(_waves)(low - centers), jax.vmap(_waves)(high - centers))
        return 100 * (1 - jax.vmap(lambda center: _waves(x - center))(centers) / worst)

    def score(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.mean(objectives(x)), jnp.clip(x[:2], low, high)

    space = Box(low, high, (dimensions,))
    return Task("task/rastrigin-multi", score, space, Box(low, high, (2,)), objectives=objectives)


def _waves(offset: jax.Array) -> jax.Array:
    """Rastrigin's function of the distances from its optimum along each dimension."""
    return jnp.sum(10 + offset**2 - 10 * jnp.cos(2 * jnp.pi * offset))


def _projected(name: str, score: Callable[[jax.Array], tuple[jax.Array, jax.Array]], dimensions: int) -> Task:
    if dimensions < 2:
        raise UsageError(f"{name}: dimensions ({dimensions}) must be at least 2, as each descriptor is of one half of them")
    reach = dimensions // 2 * LIMIT
    return Task(name, score, Box(-math.inf, math.inf, (dimensions,)), Box(-reach, reach, (2,)))


def linear_projection(x: jax.Array) -> jax.Array:
    """The sum over each half of a solution `[D]`, in which x beyond +-5.12 counts as 5.12 / x, float32 [2]."""
    is_far = jnp.abs(x) > LIMIT
    # Division by what is never 0, so that gradients are finite everywhere.
    folded = jnp.where(is_far, LIMIT / jnp.where(is_far, x, 1.0), x)
    half = x.shape[0] // 2
    return jnp.stack([jnp.sum(folded[:half]), jnp.sum(folded[half:])])


def arm(joints: int = 8) -> Task:
    """A planar arm: joint i turns by 2 pi x_i - pi, and the descriptor is where the hand is, (0.5, 0.5) the shoulder.

    Links have equal lengths, 0.5 in all. Fitness: minus the standard deviation of x, whose numbers are clipped to 0 ... 1.
    Cully et al. 2015, doi:10.1038/nature14422, extended data; in these units by Mouret's fast_map-elites.
    """
    if joints < 1:
        raise UsageError(f"task/arm: joints ({joints}) must be at least 1")

    def score(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jnp.clip(x, 0.0, 1.0)
        angle = jnp.cumsum(2 * jnp.pi * x - jnp.pi)
        hand = jnp.stack([jnp.sum(jnp.cos(angle)), jnp.sum(jnp.sin(angle))]) / (2 * joints) + 0.5
        return -jnp.sqrt(jnp.mean((x - jnp.mean(x)) ** 2)), hand

    return Task("task/arm", score, Box(0.0, 1.0, (joints,)), Box(0.0, 1.0, (2,)))


def make(name: str, arguments: dict[str, Any]) -> Environment:
    """The environment of that name.

    Raises: UsageError for values out of range; UnknownNameError for an unknown argument.
    """
    factory = _ENVIRONMENTS[name]
    return factory(**convert_all(f"task/{name}", arguments, signature_defaults(factory)))


def arguments(name: str) -> dict[str, Any]:
    """What the environment accepts, with defaults."""
    return signature_defaults(_ENVIRONMENTS[name])


_ENVIRONMENTS: dict[str, Callable[..., Environment]] = {
    "sphere": sphere,
    "rastrigin": rastrigin,
    "rastrigin-multi": rastrigin_multi,
    "arm": arm,
}
