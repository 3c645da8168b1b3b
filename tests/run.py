"""Runs the tests in processes that end: `python tests/run.py [PYTEST ARGUMENTS]`, also `... tests/laws`, `-m slow`, `-k name`.

A process that compiles hundreds of programs ends in a crash: Linux grants it 65,530 memory maps, and a program holds hundreds.
So files are put together in groups of a few minutes, and each group has a process of its own, two to four of them at a time.
One that crashes or does not end is killed and counts as failed. To debug one file, `python -m pytest FILE` is enough.

`--record` writes how long each file took to seconds.json, from which groups are made; a file that it lacks counts as UNKNOWN.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SECONDS = ROOT / "tests" / "seconds.json"
TOGETHER, UNKNOWN = 150, 30  # seconds: of a group, and of a file whose time is not known
LIMIT, LIMIT_SLOW = 30 * 60, 5 * 60 * 60  # seconds that a process may take, without `-m` and with it
AT_A_TIME = max(1, min(4, os.cpu_count() or 1))


def main(words: list[str]) -> int:
    record = "--record" in words
    paths, options = selection([word for word in words if word != "--record"])
    known = json.loads(SECONDS.read_text())
    total, seconds, begin = {"passed": 0, "failed": 0, "skipped": 0}, {}, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tests-") as folder, ThreadPoolExecutor(AT_A_TIME) as pool:
        waiting = [pool.submit(run, n, group, options, Path(folder)) for n, group in enumerate(groups(paths, known))]
        try:
            for future in as_completed(waiting):
                result = future.result()
                print(result["text"], flush=True)
                total = {name: count + result[name] for name, count in total.items()}
                seconds |= result["seconds"]
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in RUNNING:
                kill(process)
            raise
    if record:
        SECONDS.write_text(json.dumps(dict(sorted((known | seconds).items())), indent=1) + "\n")
    print(f"in {(time.monotonic() - begin) / 60:.1f} minutes, {AT_A_TIME} at a time")
    print(", ".join(f"{count} {name}" for name, count in total.items() if count or name != "skipped"))
    return 0 if total["passed"] and not total["failed"] else 1


def selection(words: list[str]) -> tuple[list[str], list[str]]:
    """What of pytest's arguments says which files (`FILE`, `FILE::TEST` or a folder), and the rest."""
    paths, options = [], []
    for last, word in zip(["", *words[:-1]], words, strict=False):
        is_path = (ROOT / word.split("::")[0]).exists() and last not in ("-k", "-m")
        (paths if is_path else options).append(word)
    return paths or ["tests"], options


def files(paths: list[str]) -> Iterator[str]:
    for path in paths:
        if (ROOT / path).is_dir():
            yield from (str(file.relative_to(ROOT)) for file in sorted((ROOT / path).rglob("test_*.py")))
        else:
            yield path


def groups(paths: list[str], known: dict[str, float]) -> list[list[str]]:
    """Files of one folder, of up to `TOGETHER` seconds in all, those that take longest first."""
    cost = {file: known.get(file.split("::")[0], UNKNOWN) for file in files(paths)}
    made: list[list[str]] = []
    for file in sorted(cost, key=lambda file: (Path(file).parent, -cost[file])):
        fits = [g for g in made if Path(g[0]).parent == Path(file).parent and sum(map(cost.get, [*g, file])) <= TOGETHER]
        if fits:
            fits[0].append(file)
        else:
            made.append([file])
    return sorted(made, key=lambda group: -sum(cost[file] for file in group))


RUNNING: list[subprocess.Popen] = []


def run(number: int, group: list[str], options: list[str], folder: Path) -> dict[str, Any]:
    """One group in a process of its own: what it counted, and what to print."""
    place = folder / str(number)
    place.mkdir()
    tests = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, tests)),
        "TESTS_RESULT": str(place / "result.json"),
        # Programs that several processes need are compiled by one of them.
        "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # a small one takes longer to compile than to read, too
    }
    line = [sys.executable, "-m", "pytest", "-p", "counting", "--basetemp", str(place / "files"), *group, *options]
    begin, limit = time.monotonic(), LIMIT_SLOW if any(word.startswith("-m") for word in options) else LIMIT
    with open(place / "output", "w+", errors="replace") as output:
        process = subprocess.Popen(line, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True)
        RUNNING.append(process)
        try:
            code, end = process.wait(limit), "ended with exit code {}, without its counts"
        except subprocess.TimeoutExpired:
            code, end = -1, f"did not end within {limit} seconds"
        kill(process)  # also what it has started
        RUNNING.remove(process)
        output.seek(0)
        text = output.read()
    counted = {"passed": 0, "failed": 0, "skipped": 0, "seconds": {}, "held": "no counts"}
    if (place / "result.json").exists():
        counted |= json.loads((place / "result.json").read_text())
        end = end if code not in (0, 5) and not counted["failed"] else ""  # 5: nothing of these files is selected
    if end:
        counted["failed"] += 1
        text += f"\nFAILED: the process of {' '.join(group)} {end.format(code)}\n"
    summary = f"{' '.join(group)}: {counted['passed']} passed, {counted['failed']} failed"
    summary += f" in {time.monotonic() - begin:.0f} s, {counted['held']}"
    return counted | {"text": f"{text}\n{summary}" if counted["failed"] else summary}


def kill(process: subprocess.Popen) -> None:
    """A process with all that it started; nothing where all have ended."""
    try:
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except ProcessLookupError:
        pass
    process.wait()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
