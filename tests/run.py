"""Run the tests in short-lived processes.

Usage: `python tests/run.py [--all | --rest | --changed] [PYTEST ARGUMENTS]`

Without arguments, the quick set of `quick_set.py` runs. `--all` runs every test that is not marked
slow, `--rest` those that the quick set leaves out, and `--changed` those that changes since main
can affect (`import_graph.py`). Other arguments are passed to pytest: `tests/laws`, `-m slow`, `-k
name`. `python -m pytest FILE` is enough to debug one file.

A process that compiles hundreds of programs crashes, because Linux limits it to 65,530 memory maps
and a program holds hundreds. Files are therefore put into groups of a few minutes, and each group
runs in a process. A process that crashes, hangs, or leaves other processes behind counts as a
failure. Compiled programs are stored in `.cache/programs` between runs.

`--record` writes the processor time of each file to seconds.json, which determines the quick set
and the groups. It compiles everything, as a fresh clone does.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import import_graph
import quick_set
from quick_set import ROOT

GROUP_SECONDS = 150  # of processor time
# Wall time limit of a process in seconds, without `-m` and with it.
LIMIT, LIMIT_SLOW = 60 * 60, 5 * 60 * 60
EXIT_SECONDS = 10  # time for processes to end after the process that started them
AT_A_TIME = max(1, min(4, os.cpu_count() or 1))
PROGRAMS = ROOT / ".cache" / "programs"
PROGRAMS_BYTES = 2**30
MODES = ("--all", "--rest", "--changed")
NOTHING_SELECTED = 5  # exit code of pytest

running: list[subprocess.Popen] = []


class Group(NamedTuple):
    """Outcome of the tests of one process.

    Attributes:
        counts: Numbers of tests by outcome: passed, failed and skipped.
        seconds: Processor time of each file.
        text: Summary in one line, after the output of pytest if a test failed.
    """

    counts: dict[str, int]
    seconds: dict[str, float]
    text: str


def main(words: list[str]) -> int:
    begin = time.monotonic()
    known = quick_set.read_seconds()
    record = "--record" in words
    paths, options = select([word for word in words if word != "--record"], known)
    if not paths:
        print("The changes since main affect no test.")
        return 0
    is_quick = "--part=quick" in options
    total: Counter[str] = Counter(passed=0, failed=0, skipped=0)
    seconds: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="tests-") as folder,
        ThreadPoolExecutor(AT_A_TIME) as pool,
    ):
        programs = Path(folder) / "programs" if record else PROGRAMS
        trim_programs(programs, PROGRAMS_BYTES)
        waiting = [
            pool.submit(run_group, files, options, Path(folder) / str(number), programs)
            for number, files in enumerate(make_groups(quick_set.costs(paths, known, is_quick)))
        ]
        try:
            for future in as_completed(waiting):
                group = future.result()
                print(group.text, flush=True)
                total.update(group.counts)
                seconds |= group.seconds
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                kill(process)
            raise
    if record:
        quick_set.write_seconds(known, seconds, is_quick)
    elif missing := quick_set.files_without_seconds(known):
        print(f"seconds.json lacks {', '.join(missing)}. Run: develop.py test --all --record")
    print(f"in {(time.monotonic() - begin) / 60:.1f} minutes, {AT_A_TIME} at a time")
    shown = {name: n for name, n in total.items() if n or name != "skipped"}
    print(", ".join(f"{n} {name}" for name, n in shown.items()))
    return 0 if total["passed"] and not total["failed"] else 1


def select(words: list[str], known: quick_set.Seconds) -> tuple[list[str], list[str]]:
    """Return the files to run and the options of pytest. A file may name a test (`FILE::TEST`)."""
    modes, paths, options = [], [], []
    for last, word in zip(["", *words[:-1]], words, strict=False):
        is_path = (ROOT / word.split("::")[0]).exists() and last not in ("-k", "-m")
        (modes if word in MODES else paths if is_path else options).append(word)
    if "--changed" in modes:
        return import_graph.affected_tests(import_graph.changed_files()), options
    if "--rest" in modes:
        return quick_set.rest_files(known), ["--part=rest", *options]
    if not words:
        return quick_set.quick_files(known), ["--part=quick"]
    return [file for path in paths or ["tests"] for file in find_tests(path)], options


def find_tests(path: str) -> list[str]:
    """Return the test files of a folder, or the path itself if it is not a folder."""
    if not (ROOT / path).is_dir():
        return [path]
    return [str(file.relative_to(ROOT)) for file in sorted((ROOT / path).rglob("test_*.py"))]


def make_groups(cost: dict[str, float]) -> list[list[str]]:
    """Return groups of files of similar cost, the most expensive group first.

    Files of one folder of tests/ share fixtures that train. They stay together up to
    `GROUP_SECONDS`.
    """
    chunks: list[list[str]] = []
    for file in sorted(cost, key=lambda file: (top_folder(file), file)):
        last = chunks[-1] if chunks and top_folder(chunks[-1][0]) == top_folder(file) else None
        if last is not None and sum(map(cost.__getitem__, [*last, file])) <= GROUP_SECONDS:
            last.append(file)
        else:
            chunks.append([file])
    number = math.ceil(sum(cost.values()) / GROUP_SECONDS / AT_A_TIME) * AT_A_TIME
    groups: list[list[str]] = [[] for _ in range(number)]
    for chunk in sorted(chunks, key=lambda chunk: -sum(map(cost.__getitem__, chunk))):
        min(groups, key=lambda group: sum(map(cost.__getitem__, group))).extend(chunk)
    made = [group for group in groups if group]
    return sorted(made, key=lambda group: -sum(map(cost.__getitem__, group)))


def top_folder(file: str) -> str:
    """Return the folder of tests/ that contains a file, or "" for files in tests/ itself."""
    parts = Path(file).parts
    return parts[1] if len(parts) > 2 else ""


def run_group(files: list[str], options: list[str], folder: Path, programs: Path) -> Group:
    """Run files in a new process, and end what the process leaves behind.

    Args:
        files: Test files, each of which may name a test.
        options: Options of pytest.
        folder: New folder for the output and for temporary files.
        programs: Folder of compiled programs, which other groups may use at the same time.
    """
    folder.mkdir()
    begin, result = time.monotonic(), folder / "result.json"
    limit = LIMIT_SLOW if any(word.startswith("-m") for word in options) else LIMIT
    command = [sys.executable, "-m", "pytest", "-p", "counting"]
    command += ["--basetemp", str(folder / "files"), *files, *options]
    with open(folder / "output", "w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | make_environment(result, programs),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        running.append(process)
        try:
            code, problem = process.wait(limit), "ended with exit code {}, without its counts"
        except subprocess.TimeoutExpired:
            code, problem = -1, f"did not end within {limit} seconds"
        left = [] if code == -1 else wait_for_survivors(process.pid, result)
        kill(process)
        running.remove(process)
        output.seek(0)
        text = output.read()
    counts, seconds, held = {"passed": 0, "failed": 0, "skipped": 0}, {}, "no counts"
    if result.exists():
        document = json.loads(result.read_text())
        counts, seconds, held = document["counts"], document["seconds"], document["held"]
    is_explained = result.exists() and (code in (0, NOTHING_SELECTED) or counts["failed"])
    names = " ".join(files)
    if not is_explained:
        counts["failed"] += 1
        text += f"\nFAILED: the process of {names} {problem.format(code)}\n"
    for pid, test in left:
        counts["failed"] += 1
        text += f"\nFAILED: {test or names} left process {pid} behind\n"
        kill_one(pid)
    summary = f"{names}: {counts['passed']} passed, {counts['failed']} failed"
    summary += f" in {time.monotonic() - begin:.0f} s, {held}"
    return Group(counts, seconds, f"{text}\n{summary}" if counts["failed"] else summary)


def make_environment(result: Path, programs: Path) -> dict[str, str]:
    """Return the environment variables of a process that writes its counts to `result`."""
    path = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "TESTS_RESULT": str(result),
        "JAX_COMPILATION_CACHE_DIR": str(programs),
        # Reading a small program takes less time than compiling it.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def wait_for_survivors(session: int, result: Path) -> list[tuple[int, str]]:
    """Return the processes that still run `EXIT_SECONDS` after the process that started them."""
    end = time.monotonic() + EXIT_SECONDS
    while (left := find_survivors(session, result)) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def find_survivors(session: int, result: Path) -> list[tuple[int, str]]:
    """Return the processes that a group of tests started and that still run.

    Only Linux lists them. A process belongs to the group if it is in its session or has inherited
    the path of its counts.

    Args:
        session: Process id of the group, which leads a session.
        result: File of the counts of the group.

    Returns:
        The process id, and the test that ran when the process started, if it is known.
    """
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, own_session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            lines = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # the process has ended, or belongs to another user
            continue
        variables = dict(line.split("=", 1) for line in lines if "=" in line)
        is_ours = int(own_session) == session or variables.get("TESTS_RESULT") == str(result)
        if is_ours and state not in "ZX":
            test = variables.get("PYTEST_CURRENT_TEST", "").removesuffix(" (call)")
            found.append((int(folder.name), test))
    return found


def kill(process: subprocess.Popen) -> None:
    """Kill a process and its process group."""
    with contextlib.suppress(ProcessLookupError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def kill_one(pid: int) -> None:
    """Kill a process unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def trim_programs(folder: Path, limit: int) -> None:
    """Delete the least recently used programs if together they have more than `limit` bytes.

    A run that uses the folder at the same time compiles deleted programs again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [(file, file.stat()) for file in folder.iterdir()]
    total = sum(stat.st_size for _, stat in files)
    for file, stat in sorted(files, key=lambda pair: pair[1].st_atime):
        if total <= limit:
            return
        file.unlink(missing_ok=True)
        total -= stat.st_size


if __name__ == "__main__":
    # SIGTERM, like Ctrl-C, ends the processes of the tests.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
