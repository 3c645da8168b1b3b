"""Operations on pytrees: selection, conversion, finite checks, vectorization and sharding."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from rollax.types import Leaf, PyTree

T = TypeVar("T")
Axes = int | tuple | None  # axis of all leaves of a pytree, or a tuple with one entry per subtree


def to_arrays(tree: T) -> T:
    """Convert every leaf except random keys to a strongly typed array, to avoid recompilation."""

    def convert(leaf: Leaf) -> Any:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        array = jnp.asarray(leaf)
        # Remove weak types. Python numbers have them as arguments of a jitted function.
        return jax.lax.convert_element_type(array, array.dtype)

    return jax.tree.map(convert, tree)


def where(condition: jax.Array, when_true: T, when_false: T) -> T:
    """Select between two pytrees by a condition over the leading axes of their leaves.

    Args:
        condition: Condition, bool of shape `C`.
        when_true: Pytree with leaves of shape `[*C, ...]`, which may be typed JAX keys.
        when_false: Pytree with the structure and shapes of `when_true`.

    Returns:
        Pytree with the selected values.
    """

    def select(a: jax.Array, b: jax.Array) -> jax.Array:
        shape = condition.shape + (1,) * (jnp.ndim(a) - condition.ndim)
        return jnp.where(condition.reshape(shape), a, b)

    return jax.tree.map(select, when_true, when_false)


@jax.custom_batching.custom_vmap
def any_member(condition: jax.Array) -> jax.Array:
    """Return the condition. Under `vmap` over members, return whether it holds for any member.

    Use the result as the condition of `cond` and `while_loop`. With a condition that differs
    between members, `vmap` would run both branches and copy the loop state in each iteration. The
    branch must leave a member unchanged if the condition is false for this member.

    Args:
        condition: Condition, bool `[]`.

    Returns:
        The condition for all members, bool `[]`.
    """
    return condition


@any_member.def_vmap
def _any_member_vmap(
    size: int, batched: list[bool], condition: jax.Array
) -> tuple[jax.Array, bool]:
    return any_member(jnp.any(condition, axis=0)), False


@jax.custom_batching.custom_vmap
def _member_condition(condition: jax.Array) -> jax.Array:
    """Return the condition under `vmap`, and True otherwise, so that no selection is compiled."""
    return jnp.ones_like(condition)


@_member_condition.def_vmap
def _member_condition_vmap(
    size: int, batched: list[bool], condition: jax.Array
) -> tuple[jax.Array, bool]:
    return condition, True


def cond_any_member(condition: jax.Array, change: Callable[[T], T], before: T) -> T:
    """Return `change(before)` if the condition holds, else `before`.

    Under `vmap`, `change` runs if the condition holds for any member. Members whose condition is
    false are unchanged.

    Args:
        condition: Condition, bool `[]`.
        change: Function from a pytree to a pytree with the same structure, shapes and dtypes.
        before: The pytree.
    """

    def change_members(before: T) -> T:
        return where(_member_condition(condition), change(before), before)

    return jax.lax.cond(any_member(condition), change_members, lambda before: before, before)


def all_finite(tree: PyTree) -> jax.Array:
    """Return whether all floating-point leaves are free of NaN and infinity, bool `[]`."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    checks = [jnp.all(jnp.isfinite(x)) for x in leaves]
    return jnp.all(jnp.stack(checks)) if checks else jnp.asarray(True)


def vmap_over_steps(function: Callable[..., T]) -> Callable[..., T]:
    """Vectorize a function of one step over arrays `[L, B, ...]`, as one batch of B * L steps.

    Two nested `vmap`s would result in smaller and slower matrix products. B is the leading axis of
    the batch, because B is sharded over devices. All steps therefore stay on their device.
    """

    def batched(*arguments: PyTree) -> T:
        length, size = jax.tree.leaves(arguments)[0].shape[:2]
        flat = jax.tree.map(
            lambda x: x.swapaxes(0, 1).reshape(size * length, *x.shape[2:]), arguments
        )
        return jax.tree.map(
            lambda x: x.reshape(size, length, *x.shape[1:]).swapaxes(0, 1),
            jax.vmap(function)(*flat),
        )

    return batched


def num_devices() -> int:
    """Return the number of devices over which environments are split in the current mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape["environments"] if "environments" in mesh.axis_names else 1


def shard_map_over_devices(
    function: Callable[..., T],
    in_axes: tuple[Axes, ...],
    out_axes: Axes,
) -> Callable[..., T]:
    """Split the arguments of a function over devices, which compute without communication.

    The function is returned unchanged if the mesh of `jax.set_mesh` does not have the axis
    "environments".

    Args:
        function: Function to run.
        in_axes: Axis along which each argument is split over devices, or None for replicated
            arguments.
        out_axes: Axis of each result, in the format of `in_axes`.

    Returns:
        The distributed function.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if num_devices() == 1 or "environments" in mesh.manual_axes:
        return function

    def spec(axis: int | None) -> jax.sharding.PartitionSpec:
        return jax.sharding.PartitionSpec(
            *(() if axis is None else (None,) * axis + ("environments",))
        )

    def is_axis(x):
        return x is None or isinstance(x, int)

    in_specs, out_specs = jax.tree.map(spec, (in_axes, out_axes), is_leaf=is_axis)
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def constrain_sharding(tree: T, is_split: bool) -> T:
    """Split or replicate the leaves `[B, ...]` of a pytree over devices in compiled code.

    The constraint has no effect if the mesh does not have the axis "environments".

    Args:
        tree: The pytree.
        is_split: Whether to split the leaves along their first axis. If false, they are replicated.

    Returns:
        The constrained pytree.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if num_devices() == 1 or "environments" in mesh.manual_axes:
        return tree
    where = jax.sharding.PartitionSpec(*(("environments",) if is_split else ()))
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, where), tree)
