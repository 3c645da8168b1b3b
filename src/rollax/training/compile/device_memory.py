"""Available memory of devices, and lower bounds of the memory that programs need."""

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
from jax.extend import core

from rollax.errors import UsageError
from rollax.types import Leaf, PyTree

# Memory limits of a container, in both versions of Linux control groups.
_CGROUP_LIMIT_FILES = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)

# Operations whose results are stored as a whole. The compiler may fuse others.
_MATERIALIZED_PRIMITIVES = ("scan", "while", "dot_general", "conv_general_dilated")


MEMORY_REMEDY = "Lower num_envs or seeds, or use a smaller network"


def check_memory(
    needed_bytes: float, capacity: int | None, what: str, remedy: str = MEMORY_REMEDY
) -> None:
    """Check that enough memory is available.

    Args:
        needed_bytes: Required memory in bytes.
        capacity: Capacity of the replay buffer if it needs most of the memory, else None.
        what: Subject of the error message, such as "an update".
        remedy: Remedy for the error message if `capacity` is None.

    Raises:
        UsageError: If less than `needed_bytes` is available.
    """
    available = available_memory_bytes()
    if available is None or needed_bytes <= available:
        return
    remedy = remedy if capacity is None else f"Use {int(capacity * 0.8 * available / needed_bytes)}"
    raise UsageError(
        f"{what} needs {needed_bytes / 1e9:.3g} GB, but only {available / 1e9:.3g} GB are "
        f"available. {remedy}."
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error reports that a device or this process is out of memory."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def is_negligible_size(num_bytes: float) -> bool:
    """Return whether a size in bytes is at most 1 % of memory, so that tracing is unnecessary."""
    available = available_memory_bytes()
    return available is None or 100 * num_bytes <= available


def largest_result_bytes(function: Callable[..., PyTree], *arguments: PyTree) -> int:
    """Return the size in bytes of the largest intermediate result of a function.

    The size is a lower bound of the memory that the function needs. Nothing is compiled or
    allocated.

    Args:
        function: Function to trace. Errors during tracing are raised unchanged.
        *arguments: Arguments, or their shapes and types.

    Returns:
        The size in bytes.
    """
    return _largest_result_bytes(jax.make_jaxpr(function)(*arguments).jaxpr)


def _largest_result_bytes(jaxpr: core.Jaxpr) -> int:
    kept = [
        equation for equation in jaxpr.eqns if equation.primitive.name in _MATERIALIZED_PRIMITIVES
    ]
    here = [sum(_leaf_bytes(variable.aval) for variable in equation.outvars) for equation in kept]
    return max(
        [
            0,
            *here,
            *(
                _largest_result_bytes(inner)
                for equation in jaxpr.eqns
                for inner in _inner_jaxprs(equation)
            ),
        ]
    )


def _inner_jaxprs(equation: core.JaxprEqn) -> Iterator[core.Jaxpr]:
    """Yield the jaxprs nested in an equation, such as the body of a loop."""
    for value in equation.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, core.ClosedJaxpr | core.Jaxpr):
                yield part.jaxpr if isinstance(part, core.ClosedJaxpr) else part


def tree_bytes(tree: PyTree) -> int:
    """Return the total size in bytes of the arrays (or abstract shapes) in a tree."""
    return sum(_leaf_bytes(leaf) for leaf in jax.tree.leaves(tree))


def _leaf_bytes(leaf: Leaf) -> int:
    return math.prod(leaf.shape) * leaf.dtype.itemsize


def num_memories(num_devices: int) -> int:
    """Return the number of separate memories of devices. All CPU devices share one memory."""
    return 1 if jax.default_backend() == "cpu" else num_devices


def available_memory_bytes() -> int | None:
    """Return the total memory of the first device in bytes, or None if it is unknown.

    For a CPU, this is the smaller of the machine's memory and the container's memory limit.
    """
    device = jax.devices()[0]
    if device.platform == "cpu":
        limits = [
            int(path.read_text())
            for path in _CGROUP_LIMIT_FILES
            if path.is_file() and path.read_text().strip().isdecimal()
        ]
        return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *limits])
    statistics = device.memory_stats()
    return None if statistics is None else statistics.get("bytes_limit")
