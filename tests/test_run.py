"""The runner of the tests: what crashes, hangs or fails is said and counted, and nothing is waited for in vain."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

import run

CASES = {
    "pass": "def test_it(): assert True",
    "fail": "def test_it(): assert 1 + 1 == 3",
    "broken": "import no_such_module",
    "crash": "import os\ndef test_it(): os.abort()",
    "exit": "import os\ndef test_it(): os._exit(0)",
    "hang": "import time\ndef test_it(): time.sleep(100)",
    "nothing": "def helper(): ...",
}


def written(folder: Path, case: str) -> str:
    file = folder / f"test_{case}.py"
    file.write_text(CASES[case])
    return str(file)


@pytest.fixture
def result(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(run, "LIMIT", 100 if request.param != "hang" else 5)
    return run.run(0, [written(tmp_path, request.param)], ["-p", "no:timeout"], tmp_path)


@pytest.mark.parametrize(
    ("result", "passed", "failed", "said"),
    [
        ("pass", 1, 0, "1 passed, 0 failed"),
        ("fail", 0, 1, "assert (1 + 1) == 3"),
        ("broken", 0, 1, "no_such_module"),
        ("crash", 0, 1, "ended with exit code -6"),
        ("exit", 0, 1, "without its counts"),
        ("hang", 0, 1, "did not end within 5 seconds"),
        ("nothing", 0, 0, "0 passed, 0 failed"),
    ],
    indirect=["result"],
)
def test_every_end_is_counted(result: dict[str, Any], passed: int, failed: int, said: str) -> None:
    assert (result["passed"], result["failed"]) == (passed, failed)
    assert said in result["text"]
    assert ("test_" in result["text"].splitlines()[-1]) and not run.RUNNING


STARTS = """
import subprocess, sys
def test_it():
    process = subprocess.Popen([sys.executable, "-c", {program!r}], stdout=subprocess.PIPE)
    assert process.stdout.readline()
    test_it.process = process
"""
LOCKS = """
import fcntl, time
file = open({path!r}, "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(os.name != "posix", reason="groups of processes are POSIX's")
def test_what_a_test_started_ends_with_it(tmp_path: Path) -> None:
    """A lock is held as long as the process that a test has started lives."""
    import fcntl

    file, lock = tmp_path / "test_start.py", tmp_path / "lock"
    file.write_text(STARTS.format(program=LOCKS.format(path=str(lock))))
    assert run.run(0, [str(file)], [], tmp_path)["passed"] == 1
    end = time.monotonic() + 10
    with open(lock) as held:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < end, "the process lives on"
                time.sleep(0.1)


def test_which_words_are_files() -> None:
    words = ["tests/laws", "-m", "slow", "-k", "tests", "tests/test_tree.py::test_x", "-x"]
    assert run.selection(words) == (["tests/laws", "tests/test_tree.py::test_x"], ["-m", "slow", "-k", "tests", "-x"])
    assert run.selection(["-x"]) == (["tests"], ["-x"])


def test_groups() -> None:
    """Every file once, so many seconds together at most, none beside files of another folder, and the heaviest first."""
    every = sorted(run.files(["tests"]))
    known = {file: float(5 + 17 * number % 90) for number, file in enumerate(every[1:])}
    made, cost = run.groups(["tests"], known), lambda group: sum(known.get(file, run.UNKNOWN) for file in group)
    assert sorted(file for group in made for file in group) == every
    assert all(len({Path(file).parent for file in group}) == 1 for group in made)
    assert all(cost(group) <= run.TOGETHER or len(group) == 1 for group in made)
    assert [cost(group) for group in made] == sorted(map(cost, made), reverse=True)
    assert len(made) < len(every)


@pytest.mark.parametrize(("case", "code", "end"), [("pass", 0, "1 passed, 0 failed"), ("nothing", 1, "0 passed, 0 failed")])
def test_the_last_line(case: str, code: int, end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main([written(tmp_path, case)]) == code
    assert capsys.readouterr().out.splitlines()[-1] == end
