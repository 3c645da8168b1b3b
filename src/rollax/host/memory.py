"""How much memory there is, and whether a run fits into it."""

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
from jax.extend import core

from rollax.errors import UsageError

# Of a container, in both versions of Linux's control groups.
_LIMITS = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")

# Operations whose results are in memory as a whole, where the compiler may fuse others away.
_KEPT = ("scan", "while", "dot_general", "conv_general_dilated")


REMEDY = "fewer num_envs or seeds, or a smaller network"


def check_memory(needed: float, capacity: int | None, what: str, remedy: str = REMEDY) -> None:
    """Raises UsageError when there is not as much memory. `capacity`: of the replay that takes most of it, if there is one."""
    available = memory_in_bytes()
    if available is None or needed <= available:
        return
    remedy = remedy if capacity is None else f"{int(capacity * 0.8 * available / needed)}"
    raise UsageError(f"{what} needs {needed / 1e9:.3g} GB and the memory has {available / 1e9:.3g} GB: try {remedy}")


def is_exhausted(error: BaseException) -> bool:
    """Whether it says that a device, or this process, got no more memory."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def is_plenty(number: float) -> bool:
    """Whether so many bytes are so little that a hundred times as many would fit, and nothing needs to be traced."""
    available = memory_in_bytes()
    return available is None or 100 * number <= available


def largest_result(function: Callable[..., Any], *arguments: Any) -> int:
    """Bytes of the largest result within the function that has to be in memory as a whole: what it needs at the least.

    `arguments`: shapes and types. Nothing is compiled or allocated; what tracing raises is raised.
    """
    return _largest(jax.make_jaxpr(function)(*arguments).jaxpr)


def _largest(jaxpr: core.Jaxpr) -> int:
    kept = [equation for equation in jaxpr.eqns if equation.primitive.name in _KEPT]
    here = [sum(_bytes(variable.aval) for variable in equation.outvars) for equation in kept]
    return max([0, *here, *(_largest(inner) for equation in jaxpr.eqns for inner in _inside(equation))])


def _inside(equation: core.JaxprEqn) -> Iterator[core.Jaxpr]:
    """The programs within an operation, such as the body of a loop."""
    for value in equation.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, core.ClosedJaxpr | core.Jaxpr):
                yield part.jaxpr if isinstance(part, core.ClosedJaxpr) else part


def size_of(tree: Any) -> int:
    """Bytes of the arrays of a tree, or of their shapes."""
    return sum(_bytes(leaf) for leaf in jax.tree.leaves(tree))


def _bytes(leaf: Any) -> int:
    return math.prod(leaf.shape) * leaf.dtype.itemsize


def devices(number: int) -> int:
    """Between how many memories a run on so many devices is split: the devices of a CPU share its memory."""
    return 1 if jax.default_backend() == "cpu" else number


def memory_in_bytes() -> int | None:
    """Of the first device, or what this process may have of the machine's where that is the device; None: not known."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        limits = [int(path.read_text()) for path in _LIMITS if path.is_file() and path.read_text().strip().isdecimal()]
        return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *limits])
    statistics = device.memory_stats()
    return None if statistics is None else statistics.get("bytes_limit")
