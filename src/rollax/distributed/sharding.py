"""Sharding of a run over devices, by environments or by members of a population."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rollax.errors import UsageError
from rollax.types import Leaf, PyTree, State


def make_mesh(num_devices: int, axis: str) -> Mesh:
    """Return a mesh of the first devices with a single axis.

    Args:
        num_devices: Number of devices in the mesh.
        axis: Name of the axis, "environments" or "members".

    Raises:
        UsageError: If `num_devices` exceeds the number of available devices.
    """
    available = jax.devices()
    if num_devices > len(available):
        available_text = f"{len(available)} ({available[0].platform})"
        raise UsageError(
            f"devices ({num_devices}) must be at most the number of devices, {available_text}. Use "
            "--devices auto for all of them."
        )
    return jax.make_mesh(
        (num_devices,), (axis,), axis_types=(AxisType.Auto,), devices=available[:num_devices]
    )


def make_run_shardings(state: State, placement: PyTree, mesh: Mesh) -> Any:
    """Return the sharding of each leaf of the state of a run without a population.

    Args:
        state: State of the run.
        placement: Pytree of bools that marks the leaves to split along their first axis. Leaves
            whose first axis does not divide evenly are replicated.
        mesh: Mesh with the axis "environments".

    Returns:
        Pytree of shardings with the structure of the state.
    """
    size = mesh.shape["environments"]

    def make_sharding(is_split: bool, leaf: Leaf) -> NamedSharding:
        return NamedSharding(
            mesh, P("environments") if is_split and leaf.shape[0] % size == 0 else P()
        )

    return jax.tree.map(make_sharding, placement, state)


def shard_map_over_members(
    function: Callable[..., PyTree], mesh: Mesh, in_axes: tuple[PyTree, ...], out_axes: PyTree
) -> Callable[..., Any]:
    """Distribute a function of a population over devices. Each device computes a block of members.

    Args:
        function: Function whose arguments and results have a member axis.
        mesh: Mesh with the axis "members".
        in_axes: Member axis of each argument, as in `jax.vmap`, or None for shared arguments.
        out_axes: Member axis of each result, in the format of `in_axes`.

    Returns:
        The distributed function.
    """

    def make_partition_spec(axis: int | None) -> P:
        return P() if axis is None else P(*(None,) * axis, "members")

    def is_axis(x: Leaf) -> bool:
        return x is None or isinstance(x, int)

    in_specs, out_specs = jax.tree.map(make_partition_spec, (in_axes, out_axes), is_leaf=is_axis)
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )
