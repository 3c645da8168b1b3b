"""Small helpers for pytrees: selecting, converting, counting."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

T = TypeVar("T")


def as_leaves(tree: T) -> T:
    """Every leaf as an array of a definite type, so that a Python number never compiles a second program."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        array = jnp.asarray(leaf)
        # A number that came as an argument of `jit` is weakly typed, which this ends.
        return jax.lax.convert_element_type(array, array.dtype)

    return jax.tree.map(convert, tree)


def where(condition: jax.Array, when_true: T, when_false: T) -> T:
    """Selects whole trees by `condition`, whose axes are the leading axes of every leaf.

    `condition`: boolean `[...]`; leaves: `[..., *]`, typed keys included.
    """

    def select(a: jax.Array, b: jax.Array) -> jax.Array:
        shape = condition.shape + (1,) * (jnp.ndim(a) - condition.ndim)
        return jnp.where(condition.reshape(shape), a, b)

    return jax.tree.map(select, when_true, when_false)


@jax.custom_batching.custom_vmap
def any_member(condition: jax.Array) -> jax.Array:
    """The condition (bool []); where `vmap` maps over members, whether it holds for any of them, one for all.

    For `cond` and `while_loop`: conditions of the members' own make `vmap` run both branches, and copy the state of a loop at
    every turn. What runs must then change nothing for a member whose own condition does not hold.
    """
    return condition


@any_member.def_vmap
def _any_member_of_batch(size: int, batched: list[bool], condition: jax.Array) -> tuple[jax.Array, bool]:
    return any_member(jnp.any(condition, axis=0)), False


@jax.custom_batching.custom_vmap
def _own(condition: jax.Array) -> jax.Array:
    """The condition under `vmap`; without, true, so that the compiler drops a selection by it."""
    return jnp.ones_like(condition)


@_own.def_vmap
def _own_of_batch(size: int, batched: list[bool], condition: jax.Array) -> tuple[jax.Array, bool]:
    return condition, True


def when(condition: jax.Array, change: Callable[[T], T], before: T) -> T:
    """`change(before)` where the condition (bool []) holds, else `before`. Under `vmap` it runs where any member's holds."""

    def changed(before: T) -> T:
        return where(_own(condition), change(before), before)

    return jax.lax.cond(any_member(condition), changed, lambda before: before, before)


def all_finite(tree: Any) -> jax.Array:
    """True when no floating-point leaf holds a NaN or an infinity."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    checks = [jnp.all(jnp.isfinite(x)) for x in leaves]
    return jnp.all(jnp.stack(checks)) if checks else jnp.asarray(True)


def over_steps(function: Callable[..., T]) -> Callable[..., T]:
    """`function` of one step over `[L, B]` of them, as one batch of B * L: two nested `vmap`s would make slower products.

    B comes first, because it is the axis that lies over devices: so no step leaves its device.
    """

    def batched(*arguments: Any) -> T:
        length, size = jax.tree.leaves(arguments)[0].shape[:2]
        flat = jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(size * length, *x.shape[2:]), arguments)
        return jax.tree.map(lambda x: x.reshape(size, length, *x.shape[1:]).swapaxes(0, 1), jax.vmap(function)(*flat))

    return batched


def num_devices() -> int:
    """Over how many devices the environments of a run are split: by the mesh in force (`jax.set_mesh`)."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape["environments"] if "environments" in mesh.axis_names else 1


def over_devices(function: Callable[..., T], in_axes: tuple[Any, ...], out_axes: Any) -> Callable[..., T]:
    """Runs `function` once per device on its share of the environments, without any communication.

    `in_axes` and `out_axes` say, as for `jax.vmap` but for whole arguments, along which axis a value is split over the mesh
    axis "environments" of the mesh in force (`jax.set_mesh`); None means whole on every device. Without such an axis this
    is `function` itself.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if num_devices() == 1 or "environments" in mesh.manual_axes:
        return function

    def spec(axis: int | None) -> jax.sharding.PartitionSpec:
        return jax.sharding.PartitionSpec(*(() if axis is None else (None,) * axis + ("environments",)))

    is_axis = lambda x: x is None or isinstance(x, int)  # noqa: E731
    in_specs, out_specs = jax.tree.map(spec, (in_axes, out_axes), is_leaf=is_axis)
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def spread(tree: T, is_split: bool) -> T:
    """The tree `[B, ...]` split along its first axis over the devices of the mesh in force, or whole on every one of them.

    For what the compiler divides by itself, as it follows from there; without a mesh axis "environments" it changes nothing.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if num_devices() == 1 or "environments" in mesh.manual_axes:
        return tree
    where = jax.sharding.PartitionSpec(*(("environments",) if is_split else ()))
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, where), tree)
