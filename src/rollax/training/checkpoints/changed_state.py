"""Changes to the settings or the random keys of a training state."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from rollax.algorithm import Algorithm
from rollax.distributed import processes
from rollax.training.compile import keys
from rollax.training.spec import Spec
from rollax.types import State


def with_settings(algorithm: Algorithm, state: State, values: Mapping[str, float]) -> State:
    """Return the state with new values of traced settings, equal for all members.

    Args:
        algorithm: Algorithm, vectorized over members if the state is of a population.
        state: State of a single run or of a population.
        values: New values, keyed by the name of the setting.
    """
    config = algorithm.config(state)
    new_values = {name: _full_like(getattr(config, name), value) for name, value in values.items()}
    return algorithm.with_config(state, dataclasses.replace(config, **new_values))


def with_parameters(algorithm: Algorithm, state: State, values: Mapping[str, float]) -> State:
    """Return the state with new values of environment parameters, equal for all members.

    Args:
        algorithm: Algorithm with a curriculum, vectorized over members if the state is of a
            population.
        state: State of a single run or of a population.
        values: New values, keyed by the name of the parameter.
    """
    assert algorithm.with_parameters is not None, "only a curriculum has such parameters"
    changed = algorithm.with_parameters(state, dict(values))

    def place(old: jax.Array, new: jax.Array) -> jax.Array:
        return new if new is old else jax.device_put(new, old.sharding)

    return jax.tree.map(place, state, changed)


def _full_like(template: jax.Array, value: float) -> jax.Array:
    """Return an array filled with `value`, with the shape, dtype and sharding of `template`."""
    return jax.jit(
        lambda: jnp.full(template.shape, value, template.dtype), out_shardings=template.sharding
    )()


def with_rollback_keys(
    algorithm: Algorithm, spec: Spec, state: State, updates: int, rollback_index: int
) -> State:
    """Return the state with new random keys, so that a rollback does not repeat the failure.

    Args:
        algorithm: Algorithm, vectorized over members if the state is of a population.
        spec: Specification of the run.
        state: State of a single run or of a population.
        updates: Number of completed updates.
        rollback_index: Number of the rollback to this update, starting at 1.
    """
    member_keys = [
        keys.rollback_key(int(member["seed"]), updates, rollback_index) for member in spec.members()
    ]
    key = member_keys[0] if len(member_keys) == 1 else jnp.stack(member_keys)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    if processes.num_processes() > 1:
        key = processes.replicate(key, jax.tree.leaves(shardings)[0].mesh)
    return jax.jit(algorithm.reseed, out_shardings=shardings)(state, key)
