"""Choice of the quick set, which `develop.py test` runs without arguments.

The quick set has every test marked `quick`, and whole files, the cheapest first, until `BUDGET` is
used. seconds.json has the processor time of each file, and of the marked tests of files that have
some, so the set stays within the budget as files grow.
"""

import json
import re
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parents[1]
SECONDS = ROOT / "tests" / "seconds.json"
BUDGET = 430  # seconds of processor time, to which starting the processes adds about 50 s
# Seconds for a file without an entry in seconds.json, and for its marked tests.
UNKNOWN, UNKNOWN_QUICK = (30.0, 5.0)


class Seconds(TypedDict):
    """Processor time in seconds by file.

    Attributes:
        all: Time of all tests of a file that are not slow.
        quick: Time of the tests of a file that are marked quick.
    """

    all: dict[str, float]
    quick: dict[str, float]


def read_seconds() -> Seconds:
    return json.loads(SECONDS.read_text())


def write_seconds(known: Seconds, measured: dict[str, float], quick: bool) -> None:
    """Write seconds.json with new measurements.

    Files that no longer exist, or have no marked tests, are left out.

    Args:
        known: Content of seconds.json.
        measured: Processor time by file.
        quick: Whether the quick set was measured. Files that are completely in it are left out.
    """
    whole = whole_files(known)
    if quick:
        measured = {file: value for file, value in measured.items() if file not in whole}
    table = known["quick" if quick else "all"]
    table.update(measured)
    files = list_files()
    marked = [file for file in files if has_quick_tests(file)]
    document = {
        name: {file: known[name][file] for file in existing if file in known[name]}
        for name, existing in (("all", files), ("quick", marked))
    }
    SECONDS.write_text(json.dumps(document, indent=1) + "\n")


def list_files() -> list[str]:
    return [str(file.relative_to(ROOT)) for file in sorted((ROOT / "tests").rglob("test_*.py"))]


def files_without_seconds(known: Seconds) -> list[str]:
    return [file for file in list_files() if file not in known["all"]]


def has_quick_tests(file: str) -> bool:
    """Return whether a file marks tests as quick, directly or with `laws.table.first`."""
    return bool(re.search(r"mark\.quick\b|\bmark_quick\(|\bfirst\(", (ROOT / file).read_text()))


def whole_files(known: Seconds) -> set[str]:
    """Return the files whose tests are all in the quick set."""
    files = list_files()
    marked = {
        file: known["quick"].get(file, UNKNOWN_QUICK) for file in files if has_quick_tests(file)
    }
    left, whole = BUDGET - sum(marked.values()), set()
    for file in sorted(set(files) & known["all"].keys(), key=lambda file: known["all"][file]):
        left -= known["all"][file] - marked.get(file, 0.0)
        if left < 0:
            break
        whole.add(file)
    return whole


def quick_files(known: Seconds) -> list[str]:
    """Return the files with at least one test in the quick set."""
    whole = whole_files(known)
    return [file for file in list_files() if file in whole or has_quick_tests(file)]


def rest_files(known: Seconds) -> list[str]:
    """Return the files with tests outside of the quick set."""
    whole = whole_files(known)
    return [file for file in list_files() if file not in whole]


def costs(paths: list[str], known: Seconds, quick: bool) -> dict[str, float]:
    """Return the processor time in seconds that each path is expected to take.

    Args:
        paths: `FILE` or `FILE::TEST`, which has the cost of its file.
        known: Content of seconds.json.
        quick: Whether only the quick set is run.
    """
    whole = whole_files(known) if quick else set(list_files())

    def cost(file: str) -> float:
        if file in whole:
            return known["all"].get(file, UNKNOWN)
        return known["quick"].get(file, UNKNOWN_QUICK)

    return {path: cost(path.split("::")[0]) for path in paths}
