"""A plugin of pytest that tells run.py what a process counted, in the file that TESTS_RESULT names.

Also what a process holds: memory, and the memory maps, of which Linux grants it 65,530.
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
    """Memory maps and resident megabytes of this process; none where the system does not say."""
    if not Path("/proc/self/maps").exists():
        return {"maps": 0, "megabytes": 0}
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    maps = Path("/proc/self/maps").read_bytes().count(b"\n")
    now = {"maps": maps, "megabytes": pages * os.sysconf("SC_PAGESIZE") // 2**20}
    _largest.update({name: max(value, _largest[name]) for name, value in now.items()})
    return now


def forget() -> None:
    """Empties what functions of the tests keep, and what jax does: compiled programs above all."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file is not None and TESTS in Path(file).parents:
            for cached in [value for value in vars(module).values() if isinstance(value, _Cache)]:
                cached.cache_clear()
    import jax  # late: settings of it come before its import

    jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(
            0
        )  # gives what is free back to the system, which counts it otherwise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Add the processor time of a test, and of the processes that it waited for, to that of its file."""
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
