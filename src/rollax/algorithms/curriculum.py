"""Curriculum, which changes parameters of the environment while an algorithm trains in it.

A curriculum is a function from an algorithm to an algorithm. Its state contains the progress of the
curriculum, so a change of a parameter compiles nothing, and a resumed run continues it exactly.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.algorithm import Algorithm, EpisodeSums, Metrics, uniform_placement
from rollax.environments.environment import Environment
from rollax.environments.randomization import find_parameters, with_parameters
from rollax.errors import UsageError
from rollax.types import Leaf, Scalar, Settings, State

METRIC_PREFIX = "curriculum/"
NUM_EPISODES = 100  # approximate number of episodes in the mean return that a curriculum follows


class Curriculum(NamedTuple):
    """Values of environment parameters as functions of a level from 0 to 1.

    Attributes:
        values: Values at equally spaced levels from 0 to 1, keyed by the name of the parameter.
            Between them, the value is interpolated linearly. A parameter with one value is constant
            until `Algorithm.with_parameters` changes it.
        returns: Returns of training at which the level is 0 and 1, or None if the level is the
            completed fraction of training.
    """

    values: Mapping[str, tuple[float, ...]]
    returns: tuple[float, float] | None = None

    @property
    def adjustable(self) -> tuple[str, ...]:
        """Names of the parameters with one value, which `Algorithm.with_parameters` may change."""
        return tuple(name for name, values in self.values.items() if len(values) == 1)


class CurriculumState(NamedTuple):
    """Training state of an algorithm with a curriculum.

    Attributes:
        inner: State of the algorithm.
        updates: Number of completed updates, int32 `[]`.
        level: Highest level that the mean return has reached, float32 `[]`.
        weighted_return: Sum of the returns of the last episodes, weighted by their age, float32
            `[]`.
        weight: Sum of these weights, at most 1, float32 `[]`.
        adjusted: Values of the parameters without a schedule, keyed by name.
    """

    inner: Any
    updates: jax.Array
    level: jax.Array
    weighted_return: jax.Array
    weight: jax.Array
    adjusted: dict[str, jax.Array]


def with_curriculum(
    make: Callable[[Environment], Algorithm], environment: Environment, curriculum: Curriculum
) -> Algorithm:
    """Build an algorithm whose environment follows a curriculum.

    In each update, the parameters have the values at the level before the update. They apply to
    running episodes immediately.

    Args:
        make: Function from an environment, whose parameters may be traced, to the algorithm.
        environment: Environment to train in.
        curriculum: Values of the parameters.

    Returns:
        The algorithm. It reports the value of each parameter as `curriculum/<name>`.

    Raises:
        UnknownNameError: If the environment has no leaf with the name of a parameter.
        UsageError: If a leaf is not numeric, or the algorithm keeps an archive.
    """
    indices = find_parameters(environment, curriculum.values)
    leaves = jax.tree.leaves(environment)
    templates = {
        name: _numeric_leaf(environment, name, leaves[index])
        for name, index in zip(curriculum.values, indices, strict=True)
    }
    for name, template in templates.items():
        _check_integer_bounds(environment, name, template, curriculum.values[name])
    base = make(fixed_parameters(environment, curriculum, level=0))
    if base.archived is not None:
        raise UsageError(
            "curriculum must be used with an algorithm that trains a policy. An archive compares "
            "solutions that were evaluated with equal parameters. Remove curriculum."
        )

    def init(key: jax.Array, config: Settings) -> CurriculumState:
        return init_state(curriculum, base.init(key, config))

    def step(state: CurriculumState) -> tuple[CurriculumState, Metrics]:
        progress = state.updates / base.config(state.inner).total_updates
        values = current_values(curriculum, state, progress)
        replaced = [cast_like(templates[name], value) for name, value in values.items()]
        inner, metrics = make(with_parameters(environment, indices, replaced)).step(state.inner)
        state = state._replace(inner=inner, updates=state.updates + 1)
        if curriculum.returns is not None:
            state = follow_return(state, metrics.episodes, curriculum.returns)
        reported = {f"{METRIC_PREFIX}{name}": value for name, value in values.items()}
        return state, metrics._replace(values=metrics.values | reported)

    return Algorithm(
        init=init,
        step=step,
        act=lambda state, *arguments: base.act(state.inner, *arguments),
        initial_carry=lambda state: base.initial_carry(state.inner),
        acting_state=lambda state: state._replace(inner=base.acting_state(state.inner)),
        reseed=lambda state, key: state._replace(inner=base.reseed(state.inner, key)),
        config=lambda state: base.config(state.inner),
        with_config=lambda state, config: state._replace(
            inner=base.with_config(state.inner, config)
        ),
        state_metrics=lambda state: base.state_metrics(state.inner),
        placement=lambda state: uniform_placement(state, False)._replace(
            inner=base.placement(state.inner)
        ),
        parts=lambda state: base.parts(state.inner),
        with_parameters=adjust_parameters,
    )


def init_state(curriculum: Curriculum, inner: State) -> CurriculumState:
    """Return the state before the first update.

    Args:
        curriculum: Values of the parameters.
        inner: Initial state of the algorithm.
    """
    adjusted = {
        name: jnp.asarray(curriculum.values[name][0], jnp.float32) for name in curriculum.adjustable
    }
    return CurriculumState(
        inner=inner,
        updates=jnp.zeros((), jnp.int32),
        level=jnp.zeros(()),
        weighted_return=jnp.zeros(()),
        weight=jnp.zeros(()),
        adjusted=adjusted,
    )


def current_values(
    curriculum: Curriculum, state: CurriculumState, progress: jax.Array
) -> dict[str, jax.Array]:
    """Return the value of each parameter in the next update, float32 `[]` each.

    Args:
        curriculum: Values of the parameters.
        state: State before the update.
        progress: Completed fraction of training, from 0 to 1.
    """
    level = progress if curriculum.returns is None else state.level
    return {
        name: state.adjusted[name] if len(values) == 1 else interpolate(values, level)
        for name, values in curriculum.values.items()
    }


def adjust_parameters(state: CurriculumState, values: Mapping[str, Scalar]) -> CurriculumState:
    """Return the state with other values of parameters that have no schedule."""
    changed = {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}
    return state._replace(adjusted=state.adjusted | changed)


def follow_return(
    state: CurriculumState, episodes: EpisodeSums, returns: tuple[float, float]
) -> CurriculumState:
    """Return the state after an update, with the level that its mean return has reached.

    The mean is over about the last `NUM_EPISODES` episodes. The level changes after half of them
    have ended, and never falls.

    Args:
        state: State after the update, with the level before it.
        episodes: Sums over the episodes that ended during the update.
        returns: Returns at which the level is 0 and 1.
    """
    number = jnp.asarray(episodes.number, jnp.float32)
    mean_of_update = episodes.total_return / jnp.maximum(number, 1.0)
    number = jnp.where(jnp.isfinite(mean_of_update), number, 0.0)
    mean_of_update = jnp.where(number > 0, mean_of_update, 0.0)
    keep = (1.0 - 1.0 / NUM_EPISODES) ** number
    weighted_return = keep * state.weighted_return + (1.0 - keep) * mean_of_update
    weight = keep * state.weight + (1.0 - keep)
    low, high = returns
    mean_return = weighted_return / jnp.maximum(weight, 1e-6)
    reached = jnp.clip((mean_return - low) / (high - low), 0.0, 1.0)
    # Half an episode less than half of them, because sums in float32 are rounded.
    min_weight = 1.0 - (1.0 - 1.0 / NUM_EPISODES) ** ((NUM_EPISODES - 1) / 2)
    level = jnp.where(weight >= min_weight, jnp.maximum(state.level, reached), state.level)
    return state._replace(level=level, weighted_return=weighted_return, weight=weight)


def interpolate(values: Sequence[float], level: jax.Array) -> jax.Array:
    """Return the value at a level from 0 to 1, float32 `[]`.

    >>> float(interpolate((5.0, 10.0, 30.0), jnp.asarray(0.75)))
    20.0

    Args:
        values: Values at equally spaced levels from 0 to 1.
        level: Level, float `[]`.
    """
    levels = np.linspace(0.0, 1.0, len(values)).astype(np.float32)
    return jnp.interp(level, levels, np.asarray(values, np.float32))


def fixed_parameters(
    environment: Environment, curriculum: Curriculum, level: int = 1
) -> Environment:
    """Return the environment with the values of its parameters at the first or the last level.

    Args:
        environment: Environment or wrapper.
        curriculum: Values of the parameters. Names may be a part of those of the run.
        level: 0 for the first values, or 1 for the last values.
    """
    indices = find_parameters(environment, curriculum.values)
    leaves = jax.tree.leaves(environment)
    values = [
        cast_like(
            _numeric_leaf(environment, name, leaves[index]),
            jnp.asarray(points[-1] if level else points[0]),
        )
        for (name, points), index in zip(curriculum.values.items(), indices, strict=True)
    ]
    return with_parameters(environment, indices, values)


def cast_like(leaf: np.ndarray, value: jax.Array) -> jax.Array:
    """Return a number with the shape and dtype of a leaf. Integers are rounded."""
    number = jnp.round(value) if leaf.dtype.kind in "iu" else value
    return jnp.broadcast_to(number, leaf.shape).astype(leaf.dtype)


def _check_integer_bounds(
    environment: Environment, name: str, leaf: np.ndarray, values: Sequence[float]
) -> None:
    """Raise UsageError if a value overflows in the dtype of an integer leaf."""
    if leaf.dtype.kind not in "iu":
        return
    bounds = np.iinfo(leaf.dtype)
    for value in values:
        if not bounds.min <= round(value) <= bounds.max:
            raise UsageError(
                f"{environment.name}: the curriculum of {name} must consist of {leaf.dtype} "
                f"values, got {value:g}. Choose values from {bounds.min} to {bounds.max}."
            )


def _numeric_leaf(environment: Environment, name: str, leaf: Leaf) -> np.ndarray:
    """Return a leaf as an array, or raise UsageError if it is not numeric."""
    array = jnp.asarray(leaf)
    dtype = array.dtype
    if not (jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.floating)):
        raise UsageError(
            f"{environment.name}: {name} must be a number to follow a curriculum, got {dtype}. "
            "Change it with a phase: rollax.resume(RUN, arguments={...})."
        )
    return np.asarray(array)
