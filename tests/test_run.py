"""Tests of the test runner: failures, crashes, timeouts, survivors, groups, and programs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import import_graph
import quick_set
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
KNOWN: quick_set.Seconds = {"all": {}, "quick": {}}


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "EXIT_SECONDS", 1)
    monkeypatch.setattr(run, "PROGRAMS", tmp_path / "programs")


def write(folder: Path, case: str) -> str:
    file = folder / f"test_{case}.py"
    file.write_text(CASES[case])
    return str(file)


@pytest.fixture
def group(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> run.Group:
    monkeypatch.setattr(run, "LIMIT", 100 if request.param != "hang" else 5)
    file = write(tmp_path, request.param)
    return run.run_group([file], ["-p", "no:timeout"], tmp_path / "group", tmp_path / "programs")


@pytest.mark.parametrize(
    ("group", "passed", "failed", "text"),
    [
        ("pass", 1, 0, "1 passed, 0 failed"),
        ("fail", 0, 1, "assert (1 + 1) == 3"),
        ("broken", 0, 1, "no_such_module"),
        ("crash", 0, 1, "ended with exit code -6"),
        ("exit", 0, 1, "without its counts"),
        ("hang", 0, 1, "did not end within 5 seconds"),
        ("nothing", 0, 0, "0 passed, 0 failed"),
    ],
    indirect=["group"],
)
def test_every_outcome_is_counted(group: run.Group, passed: int, failed: int, text: str) -> None:
    assert (group.counts["passed"], group.counts["failed"]) == (passed, failed)
    assert text in group.text
    assert "test_" in group.text.splitlines()[-1] and not run.running


STARTS = """
import subprocess, sys
def test_it():
    process = subprocess.Popen([sys.executable, "-c", {program!r}], stdout=subprocess.PIPE{more})
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the processes of a session")
@pytest.mark.parametrize("more", ["", ", start_new_session=True"])
def test_a_surviving_process_is_a_failure_and_is_killed(tmp_path: Path, more: str) -> None:
    """The process holds a lock while it lives. The message names the test that started it."""
    import fcntl

    file, lock = tmp_path / "test_start.py", tmp_path / "lock"
    file.write_text(STARTS.format(program=LOCKS.format(path=str(lock)), more=more))
    group = run.run_group([str(file)], [], tmp_path / "group", tmp_path / "programs")
    assert (group.counts["passed"], group.counts["failed"]) == (1, 1)
    assert "test_start.py::test_it left process" in group.text
    end = time.monotonic() + 60
    with open(lock) as held:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < end, "the process lives on"
                time.sleep(0.1)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no SIGTERM")
def test_a_terminated_runner_leaves_no_process_behind(tmp_path: Path) -> None:
    file, note = tmp_path / "test_hang.py", tmp_path / "pid"
    file.write_text(
        "import os, pathlib, time\n"
        "def test_it():\n"
        f"    pathlib.Path({str(note)!r}).write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n"
    )
    runner = subprocess.Popen([sys.executable, run.__file__, str(file)], cwd=run.ROOT)
    try:
        wait_until(lambda: note.exists() and bool(note.read_text()), "the test did not start")
        runner.send_signal(signal.SIGTERM)
        assert runner.wait(60) != 0
        wait_until(lambda: not is_alive(int(note.read_text())), "the test lives on")
    finally:
        runner.kill()


def wait_until(is_true: Callable[[], bool], message: str) -> None:
    """Wait for up to two minutes, because the machine may be busy."""
    end = time.monotonic() + 120
    while not is_true():
        assert time.monotonic() < end, message
        time.sleep(0.1)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(os.name != "posix", reason="only POSIX has SIGHUP")
def test_ignored_signals_are_not_inherited(tmp_path: Path) -> None:
    """nohup ignores SIGHUP, and child processes inherit this unless they reset it."""
    file = Path(__file__).parent / "runtime" / "test_shell.py"
    check = "import signal, sys; sys.exit(signal.getsignal(signal.SIGHUP) != signal.SIG_DFL)"
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import subprocess, sys\n"
        f"def pytest_runtest_call(): assert subprocess.call([sys.executable, '-c', {check!r}]) == 0"
    )
    words = [sys.executable, "-m", "pytest", "-p", "plugin", str(file), "-k", "quotes"]
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    result = subprocess.run(
        ["nohup", *words],
        cwd=run.ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.quick
def test_words_are_parsed_as_paths_modes_or_options() -> None:
    words = ["tests/test_tree.py::test_x", "tests/test_run.py", "-m", "slow", "-k", "tests", "-x"]
    assert run.select(words, KNOWN) == (words[:2], words[2:])
    every = quick_set.list_files()
    assert run.select(["-x"], KNOWN) == (every, ["-x"])
    assert run.select(["--all", "-x"], KNOWN) == (every, ["-x"])
    quick, options = run.select([], KNOWN)
    assert options == ["--part=quick"] and 0 < len(quick) < len(every)
    assert run.select(["--rest"], KNOWN) == (every, ["--part=rest"])


def test_changed_tests_are_those_of_the_import_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = ["tests/test_tree.py"]
    monkeypatch.setattr(import_graph, "changed_files", lambda: changed)
    paths, options = run.select(["--changed", "-x"], KNOWN)
    assert (paths, options) == (import_graph.affected_tests(changed), ["-x"])
    monkeypatch.setattr(import_graph, "changed_files", list)
    assert run.main(["--changed"]) == 0


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_groups_have_every_file_once_and_similar_costs(
    slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most expensive group is the first. Files of a folder stay together up to the limit."""
    monkeypatch.setattr(run, "AT_A_TIME", slots)
    cost = {file: 5.0 + 17 * n % 90 for n, file in enumerate(quick_set.list_files())}
    groups = run.make_groups(cost)
    totals = [sum(map(cost.__getitem__, group)) for group in groups]
    assert sorted(file for group in groups for file in group) == sorted(cost)
    assert totals == sorted(totals, reverse=True)
    assert len(groups) % slots == 0 and max(totals) < 2 * run.GROUP_SECONDS
    few = run.make_groups({file: 1.0 for file in cost if "/cli/" in file or "/laws/" in file})
    for folder in ("cli", "laws"):
        assert sum(any(f"/{folder}/" in file for file in group) for group in few) == 1


def test_an_expensive_file_has_its_own_group() -> None:
    cost = {"tests/laws/test_a.py": 400.0, "tests/laws/test_b.py": 1.0}
    assert run.make_groups(cost)[0] == ["tests/laws/test_a.py"]


@pytest.mark.parametrize(
    ("case", "code", "end"),
    [("pass", 0, "1 passed, 0 failed"), ("nothing", 1, "0 passed, 0 failed")],
)
def test_the_last_line_has_the_counts(
    case: str, code: int, end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main([write(tmp_path, case)]) == code
    assert capsys.readouterr().out.splitlines()[-1] == end


def test_files_without_seconds_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = quick_set.read_seconds()
    known["all"] = dict.fromkeys(quick_set.list_files(), 1.0)
    del known["all"]["tests/test_tree.py"]
    monkeypatch.setattr(quick_set, "read_seconds", lambda: known)
    run.main([write(tmp_path, "pass")])
    assert "seconds.json lacks tests/test_tree.py." in capsys.readouterr().out


def test_recently_used_programs_are_not_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    run.trim_programs(folder, 10)
    for n in range(4):
        file = folder / f"program-{n}"
        file.write_bytes(b"1234")
        os.utime(file, (n, n))
    run.trim_programs(folder, 16)
    assert len(list(folder.iterdir())) == 4
    run.trim_programs(folder, 10)
    assert sorted(file.name for file in folder.iterdir()) == ["program-2", "program-3"]
