"""Resets and steps of suites whose environments read physics parameters from their attributes."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from rollax.environments.suites.suite import SuiteEnvironment
from rollax.types import State

Physics: TypeAlias = dict[str, jax.Array]
"""Physics parameters, keyed by name."""
ReplacePhysicsFn: TypeAlias = Callable[[SuiteEnvironment, Physics], Any]
"""Function that returns a copy of an environment with other physics parameters."""


# Compiled because a step outside of jit would take seconds.
@functools.partial(jax.jit, static_argnums=(0, 1))
def reset_with_physics(
    replace_physics: ReplacePhysicsFn,
    dynamics: SuiteEnvironment,
    physics: Physics,
    key: jax.Array,
) -> Any:
    """Reset a suite environment that has other physics parameters, and return its state.

    Args:
        replace_physics: Function that returns a copy of an environment with other parameters.
        dynamics: Environment of the suite.
        physics: Physics parameters.
        key: Random key.
    """
    return replace_physics(dynamics, physics).reset(key)


@functools.partial(jax.jit, static_argnums=(0, 1))
def step_with_physics(
    replace_physics: ReplacePhysicsFn,
    dynamics: SuiteEnvironment,
    physics: Physics,
    state: State,
    action: jax.Array,
) -> Any:
    """Step a suite environment that has other physics parameters, and return its state.

    Under jit, the suite receives new dictionaries and may write into them.

    Args:
        replace_physics: Function that returns a copy of an environment with other parameters.
        dynamics: Environment of the suite.
        physics: Physics parameters.
        state: State of the suite.
        action: Action.
    """
    return replace_physics(dynamics, physics).step(state, action)


def take_example_step(dynamics: SuiteEnvironment, key: jax.Array) -> Any:
    """Return the state of a suite environment after one step, to read the dtypes of its leaves."""
    start = jax.tree.map(jnp.asarray, dynamics.reset(key))
    return dynamics.step(start, jnp.zeros(dynamics.action_size))
