"""Plant faults in a copy of the source, and report those that tests notice.

`python tests/planted_faults.py [NUMBER ...]` plants the faults of planted_faults.yaml with these
numbers, by default all of them, one at a time. Each is a mistake that reinforcement learning can
make without an error, such as a mask that is not applied. A fault is noticed if one of the tests
named with it fails. The exit code is 1 if a fault survives.

All named tests run once without a fault first, because a test that fails anyway notices nothing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
TABLE = Path(__file__).with_suffix(".yaml")
# Hypothesis would search for the smallest example of a failure, which takes minutes. 10 is added
# to the exit code of pytest, because Python itself ends with 1, the code of a failed test, if it
# cannot start pytest.
PYTEST = """
import sys
import pytest

class AnyFailure:
    def pytest_configure(self):
        from hypothesis import Phase, settings
        settings.register_profile("any failure", phases=[Phase.explicit, Phase.generate])
        settings.load_profile("any failure")

sys.exit(10 + pytest.main(sys.argv[1:], plugins=[AnyFailure()]))
"""
OUTCOMES = {10: "survived", 11: "noticed"}


class Fault(NamedTuple):
    """Fault in one file.

    Attributes:
        number: Number of the fault, from 1.
        breaks: What the fault breaks, in one sentence.
        file: File, relative to src/rollax.
        before: Text that occurs once in the file.
        after: Text in its place.
        tests: Tests that should fail, as arguments of pytest relative to tests/.
    """

    number: int
    breaks: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def plant(self, text: str) -> str:
        """Return the text of the file with the fault.

        Raises:
            ValueError: If the text to replace does not occur exactly once.
        """
        count = text.count(self.before)
        if count != 1:
            raise ValueError(
                f"fault {self.number}: {self.before!r} must occur once in {self.file}, got {count}."
            )
        return text.replace(self.before, self.after)


def read_faults() -> list[Fault]:
    """Return the faults of the table."""
    rows = yaml.safe_load(TABLE.read_text())
    return [
        Fault(number, **row | {"tests": tuple(row["tests"])}) for number, row in enumerate(rows, 1)
    ]


def group_by_folder(tests: Iterable[str]) -> list[list[str]]:
    """Return the tests by their top folder, because modules of two folders may share a name."""
    groups: dict[str, list[str]] = {}
    for test in dict.fromkeys(tests):
        groups.setdefault(test.split("/")[0], []).append(test)
    return list(groups.values())


def run_tests(tests: Iterable[str], source: Path) -> tuple[int, str]:
    """Return the exit code of `PYTEST` and its output, with the package in the folder `source`."""
    path = os.pathsep.join(filter(None, (str(source), os.environ.get("PYTHONPATH"))))
    arguments = ["-x", "-p", "no:cacheprovider", *(f"tests/{test}" for test in tests)]
    result = subprocess.run(
        [sys.executable, "-c", PYTEST, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout


def run_with_fault(fault: Fault, source: Path) -> str:
    """Return "noticed" or "survived". The files in `source` are as before afterwards.

    Raises:
        RuntimeError: If the tests do not run to a result, for example because of an import error.
    """
    file = source / "rollax" / fault.file
    text = file.read_text()
    file.write_text(fault.plant(text))
    try:
        code, output = run_tests(fault.tests, source)
    finally:
        file.write_text(text)
    if code not in OUTCOMES:
        raise RuntimeError(f"fault {fault.number}: the tests ended with code {code}:\n{output}")
    return OUTCOMES[code]


def main(numbers: set[int]) -> int:
    """Plant the faults of these numbers, or all faults, and print a line for each."""
    faults = [fault for fault in read_faults() if not numbers or fault.number in numbers]
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        shutil.copytree(SOURCE, folder, dirs_exist_ok=True)
        for tests in group_by_folder(test for fault in faults for test in fault.tests):
            code, output = run_tests(tests, Path(folder))
            if OUTCOMES.get(code) != "survived":
                print(f"{output}\nThe tests must pass without a fault.")
                return 1
        for fault in faults:
            begin = time.monotonic()
            outcome = run_with_fault(fault, Path(folder))
            counts[outcome] += 1
            seconds = time.monotonic() - begin
            print(
                f"{fault.number:3} {outcome:8} {seconds:4.0f} s  {fault.file}: {fault.breaks}",
                flush=True,
            )
    print(f"{counts['noticed']} noticed, {counts['survived']} survived")
    return int(counts["survived"] > 0)


if __name__ == "__main__":
    sys.exit(main({int(word) for word in sys.argv[1:]}))
