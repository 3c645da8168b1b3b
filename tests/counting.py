"""A plugin of pytest that tells run.py what a process counted, in the file that TESTS_RESULT names.

Also what a process holds: memory, and the memory maps, of which Linux grants it 65,530.
"""

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

OUTCOMES = {"passed": ("passed", "xpassed"), "failed": ("failed", "error"), "skipped": ("skipped", "xfailed")}
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


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid.split("::")[0]] += report.duration
    held()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if "TESTS_RESULT" not in os.environ:
        return
    stats = session.config.pluginmanager.get_plugin("terminalreporter").stats
    counts = {name: sum(len(stats.get(outcome, ())) for outcome in outcomes) for name, outcomes in OUTCOMES.items()}
    text = f"{_largest['maps']:,} maps, {_largest['megabytes']:,} MB"
    seconds = {file: round(value, 1) for file, value in _seconds.items()}
    Path(os.environ["TESTS_RESULT"]).write_text(json.dumps(counts | {"seconds": seconds, "held": text}))
