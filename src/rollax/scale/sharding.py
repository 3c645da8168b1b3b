"""One run over several devices: the environments of a single run, or the members of a population, split between them."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rollax.errors import UsageError


def mesh(num_devices: int, axis: str) -> Mesh:
    """A row of devices. `axis`: "environments" or "members". Raises UsageError when there are not so many."""
    available = jax.devices()
    if num_devices > len(available):
        there = f"{len(available)} ({available[0].platform}); --devices auto takes all of them"
        raise UsageError(f"devices ({num_devices}) is more than there are: {there}")
    return jax.make_mesh((num_devices,), (axis,), axis_types=(AxisType.Auto,), devices=available[:num_devices])


def single_run_shardings(state: Any, placement: Any, over: Mesh) -> Any:
    """Where each leaf of a single run's state lives: split along its first axis where `placement`, a tree of bool, says so and
    the axis divides evenly, else whole everywhere."""
    size = over.shape["environments"]

    def place(is_split: bool, leaf: Any) -> NamedSharding:
        return NamedSharding(over, P("environments") if is_split and leaf.shape[0] % size == 0 else P())

    return jax.tree.map(place, placement, state)


def over_members(function: Callable[..., Any], over: Mesh, in_axes: tuple[Any, ...], out_axes: Any) -> Callable[..., Any]:
    """A function of a population with each device doing its members alone. Axes as in `jax.vmap`, None for what is shared."""

    def spec(axis: int | None) -> P:
        return P() if axis is None else P(*(None,) * axis, "members")

    def is_axis(x: Any) -> bool:
        return x is None or isinstance(x, int)

    in_specs, out_specs = jax.tree.map(spec, (in_axes, out_axes), is_leaf=is_axis)
    return jax.shard_map(function, mesh=over, in_specs=in_specs, out_specs=out_specs, check_vma=False)
