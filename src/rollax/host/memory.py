"""How much memory there is, and whether a run fits into it."""

import os
from pathlib import Path

import jax

from rollax.errors import UsageError

# Of a container, in both versions of Linux's control groups.
_LIMITS = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_memory(needed: float, capacity: int | None, what: str) -> None:
    """Raises UsageError when there is not as much memory. `capacity`: of the replay that takes most of it, if there is one."""
    available = memory_in_bytes()
    if available is None or needed <= available:
        return
    remedy = "fewer num_envs or seeds" if capacity is None else f"{int(capacity * 0.8 * available / needed)}"
    raise UsageError(f"{what} needs {needed / 1e9:.3g} GB and the memory has {available / 1e9:.3g} GB: try {remedy}")


def memory_in_bytes() -> int | None:
    """Of the first device, or what this process may have of the machine's where that is the device; None: not known."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        limits = [int(path.read_text()) for path in _LIMITS if path.is_file() and path.read_text().strip().isdecimal()]
        return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *limits])
    statistics = device.memory_stats()
    return None if statistics is None else statistics.get("bytes_limit")
