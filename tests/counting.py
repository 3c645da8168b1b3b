"""Pytest plugin that writes counts of a process to the file TESTS_RESULT for run.py.

It also measures memory, and memory maps, of which Linux allows 65,530 per process.
"""

import ctypes
import functools
import gc
import json
import os
import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
_Cache = type(functools.cache(lambda: None))
OUTCOMES = {
    "passed": ("passed", "xpassed"),
    "failed": ("failed", "error"),
    "skipped": ("skipped", "xfailed"),
}
_seconds: dict[str, float] = defaultdict(float)
_largest = {"maps": 0, "megabytes": 0}


def held() -> dict[str, int]:
    """Return the memory maps and resident megabytes of this process, or 0 on other systems."""
    if not Path("/proc/self/maps").exists():
        return {"maps": 0, "megabytes": 0}
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    maps = Path("/proc/self/maps").read_bytes().count(b"\n")
    now = {"maps": maps, "megabytes": pages * os.sysconf("SC_PAGESIZE") // 2**20}
    _largest.update({name: max(value, _largest[name]) for name, value in now.items()})
    return now


def forget() -> None:
    """Clear the caches of tests and of JAX, especially compiled programs."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file is not None and TESTS in Path(file).parents:
            for cached in [value for value in vars(module).values() if isinstance(value, _Cache)]:
                cached.cache_clear()
    import jax  # late, because settings must precede its import

    jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # returns free memory to the system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Add the processor time of a test and of its child processes to that of its file."""
    begin = processor_seconds()
    result = yield
    _seconds[item.nodeid.split("::")[0]] += processor_seconds() - begin
    held()
    return result


def processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def pytest_sessionfinish(session: pytest.Session) -> None:
    if "TESTS_RESULT" not in os.environ:
        return
    stats = session.config.pluginmanager.get_plugin("terminalreporter").stats
    counts = {
        name: sum(len(stats.get(outcome, ())) for outcome in outcomes)
        for name, outcomes in OUTCOMES.items()
    }
    text = f"{_largest['maps']:,} maps, {_largest['megabytes']:,} MB"
    seconds = {file: round(value, 1) for file, value in _seconds.items()}
    Path(os.environ["TESTS_RESULT"]).write_text(
        json.dumps({"counts": counts, "seconds": seconds, "held": text})
    )
