"""Changes to the schedules, the learning rate or the random keys of a training state."""

import dataclasses

import jax
import jax.numpy as jnp

from rollax.algorithm import Algorithm
from rollax.distributed import processes
from rollax.training.compile import keys
from rollax.training.spec import Spec
from rollax.types import State


def with_total_updates(algorithm: Algorithm, state: State, total_updates: int) -> State:
    """Return the state with schedules that end after `total_updates` updates.

    Args:
        algorithm: Algorithm, vectorized over members if the state is of a population.
        state: State of a single run or of a population.
        total_updates: Number of updates at which schedules end.

    Returns:
        The state with `total_updates` replaced in its config.
    """
    config = algorithm.config(state)
    total = _full_like(config.total_updates, total_updates)
    return algorithm.with_config(state, dataclasses.replace(config, total_updates=total))


def _full_like(template: jax.Array, value: float) -> jax.Array:
    """Return an array filled with `value`, with the shape, dtype and sharding of `template`."""
    return jax.jit(
        lambda: jnp.full(template.shape, value, template.dtype), out_shardings=template.sharding
    )()


def with_learning_rate(algorithm: Algorithm, state: State, learning_rate: float) -> State:
    """Return the state with a constant learning rate.

    Settings `*_learning_rate`, for example of a critic, keep their ratio to `learning_rate`.

    Args:
        algorithm: Algorithm, vectorized over members if the state is of a population.
        state: State of a single run or of a population.
        learning_rate: New learning rate.
    """
    config = algorithm.config(state)
    ratio = learning_rate / config.learning_rate
    new_values = {"learning_rate": _full_like(config.learning_rate, learning_rate)}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name == "learning_rate_final_fraction":
            new_values[field.name] = _full_like(value, 1.0)
        elif field.name.endswith("_learning_rate") and not field.metadata.get("static"):
            new_values[field.name] = jax.jit(jnp.multiply, out_shardings=value.sharding)(
                value, ratio
            )
    return algorithm.with_config(state, dataclasses.replace(config, **new_values))


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
