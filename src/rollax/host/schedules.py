"""A run's state with other schedules or other random numbers ahead."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rollax.algorithm import Algorithm
from rollax.host import keys
from rollax.host.settings import Spec
from rollax.scale import processes


def with_total_updates(algorithm: Algorithm, state: Any, total_updates: int) -> Any:
    """The state with schedules that end at another number of updates. `algorithm`: of the state, also a population's."""
    config = algorithm.config(state)
    total = _filled(config.total_updates, total_updates)
    return algorithm.with_config(state, dataclasses.replace(config, total_updates=total))


def _filled(like: jax.Array, value: float) -> jax.Array:
    """An array full of a value, where another is."""
    return jax.jit(lambda: jnp.full(like.shape, value, like.dtype), out_shardings=like.sharding)()


def with_learning_rate(algorithm: Algorithm, state: Any, learning_rate: float) -> Any:
    """The state with this learning rate from now on, without a schedule; rates of parts that have their own keep the ratio."""
    config = algorithm.config(state)
    ratio = learning_rate / config.learning_rate
    new = {"learning_rate": _filled(config.learning_rate, learning_rate)}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name == "learning_rate_final_fraction":
            new[field.name] = _filled(value, 1.0)
        elif field.name.endswith("_learning_rate") and not field.metadata.get("static"):
            new[field.name] = jax.jit(jnp.multiply, out_shardings=value.sharding)(value, ratio)
    return algorithm.with_config(state, dataclasses.replace(config, **new))


def with_other_keys(algorithm: Algorithm, spec: Spec, state: Any, updates: int, number: int) -> Any:
    """The state with other random numbers ahead, so that going back does not repeat what went wrong."""
    each = [keys.rollback(int(member["seed"]), updates, number) for member in spec.members()]
    key = each[0] if len(each) == 1 else jnp.stack(each)
    where = jax.tree.map(lambda leaf: leaf.sharding, state)
    if processes.count() > 1:
        key = processes.everywhere(key, jax.tree.leaves(where)[0].mesh)
    return jax.jit(algorithm.reseed, out_shardings=where)(state, key)
