"""Numbers of an environment's `info` over an episode: their mean over its steps, their sum, or the last of them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.environments.core import REDUCTIONS, Environment, info_reductions, is_on_host
from rollax.environments.once import once
from rollax.errors import UnknownNameError, UsageError
from rollax.spaces import zeros


class Reducing(NamedTuple):
    """Reduces the `info` of N episodes while they are played."""

    start: Callable[[int], Any]  # (N) -> memory
    add: Callable[[Any, Any, jax.Array], Any]  # (memory, info of a step [N, ...], alive bool [N]) -> memory
    finish: Callable[[Any, jax.Array], Any]  # (memory, lengths int32 [N]) -> by name [N, ...], float32


def reducing(environment: Environment, choices: Mapping[str, str] | None = None) -> Reducing:
    """How the `info` of the environment is reduced: as it says (`InformedEnvironment`), as `choices` say, or by the mean.

    Booleans and integers count as float32. Raises UsageError for a reduction that there is none, UnknownNameError for a name
    that is not in the `info`.
    """
    shapes, by = info_shapes(environment), checked_reductions(environment, choices)

    def start(number: int) -> Any:
        return jax.tree.map(lambda x: jnp.zeros((number, *x.shape)), shapes)

    def add(memory: Any, info: Any, alive: jax.Array) -> Any:
        def one(total: jax.Array, value: jax.Array, reduction: str) -> jax.Array:
            return value.astype(total.dtype) if reduction == "last" else total + value

        new = {name: jax.tree.map(lambda t, v, how=by[name]: one(t, v, how), memory[name], info[name]) for name in memory}
        return tree.where(alive, new, memory)

    def finish(memory: Any, length: jax.Array) -> Any:
        def mean(total: jax.Array) -> jax.Array:
            return total / length.reshape(-1, *(1,) * (total.ndim - 1))

        return {name: jax.tree.map(mean, total) if by[name] == "mean" else total for name, total in memory.items()}

    return Reducing(start, add, finish)


def checked_reductions(environment: Environment, choices: Mapping[str, str] | None = None) -> dict[str, str]:
    """How each number of the `info` is reduced, by name. Raises as `reducing` does."""
    shapes, how = info_shapes(environment), info_reductions(environment) | dict(choices or {})
    for name in choices or {}:
        if name not in shapes:
            raise UnknownNameError(f"number in the info of {environment.name}", name, shapes)
    for name, reduction in how.items():
        if reduction not in REDUCTIONS:
            raise UsageError(f"{environment.name}: info {name} by {reduction!r} must be by one of {', '.join(REDUCTIONS)}")
    return {name: how.get(name, "mean") for name in shapes}


def info_shapes(environment: Environment) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and types of the environment's `info` at one step."""
    if is_on_host(environment):
        host: Any = environment
        return {name: jax.ShapeDtypeStruct((), jnp.float32) for name in host.info_names}

    def info(keys: Any) -> dict[str, jax.Array]:
        action = zeros(environment.action_space)
        if environment.num_agents is not None:
            action = jax.tree.map(lambda x: jnp.broadcast_to(x, (environment.num_agents, *x.shape)), action)
        return once(environment, "step")(keys[0], once(environment, "reset")(keys[1])[0], action).info

    return jax.eval_shape(info, jax.eval_shape(lambda: jax.random.split(jax.random.key(0))))
