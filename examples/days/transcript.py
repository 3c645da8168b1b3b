"""Run the example scripts of several users and record their output.

Usage: `python examples/days/transcript.py FOLDER [DAY ...]`.

The commands of a script run one after the other in a new folder. FOLDER/DAY.md contains the
comments of the script as text, and the commands with their output. Commands after "! " must fail,
and their errors are recorded too. The environment variable STEPS sets the number of training steps
(default 200000).
"""

import datetime
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1]
DAYS = sorted(path.stem for path in Path(__file__).parent.glob("*.sh"))
MOST_LINES = 30  # of output per command
MUST_FAIL = "! "  # negation of the exit code in bash


def blocks(day: str) -> list[tuple[str, list[str]]]:
    """Return the comments of a script, each with the commands that follow it.

    The first comment is the title and has no commands.
    """
    found: list[tuple[str, list[str]]] = []
    for line in (EXAMPLES / "days" / f"{day}.sh").read_text().splitlines():
        if line.startswith("# "):
            found.append((line.removeprefix("# "), []))
        elif line:
            found[-1][1].append(line)
    return found


def environment(steps: str) -> dict[str, str]:
    """Return the environment variables of the commands."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return os.environ | {
        "PATH": path,
        "STEPS": steps,
        "EXAMPLES": str(EXAMPLES),
        "PYTHONPATH": _python_path(),
    }


def _python_path() -> str:
    return os.pathsep.join(filter(None, [".", os.environ.get("PYTHONPATH", "")]))


def run(command: str, folder: Path, steps: str) -> str:
    """Run a command and return its output. Exit if it fails, or should fail but does not."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment(steps),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{command}\n{done.stdout}{done.stderr}ended with exit code {done.returncode}")
    return done.stdout + (done.stderr if command.startswith(MUST_FAIL) else "")


def shown(output: str) -> list[str]:
    """Return the lines of output to record, without JSON objects and with long output shortened."""
    lines = [line.rstrip() for line in output.splitlines() if not line.startswith("{")]
    lines = [re.sub(r"(\.\./)+\S*/bin/rollax", "rollax", line) for line in lines]
    cut = len(lines) - MOST_LINES
    return (
        [*lines[: MOST_LINES // 2], f"... ({cut} lines)", *lines[-MOST_LINES // 2 :]]
        if cut > 0
        else lines
    )


def in_full(command: str, steps: str) -> str:
    """Return a command with its variables replaced, as a user would type it."""
    command = command.removeprefix(MUST_FAIL)
    command = re.sub(
        r'"?\$\(\((\d+) \* STEPS\)\)"?', lambda found: str(int(found[1]) * int(steps)), command
    )
    return re.sub(
        r'"([^" ]+)"', r"\1", command.replace("$STEPS", steps).replace("$EXAMPLES", "examples")
    )


def page(day: str, steps: str) -> str:
    """Run the script of a day and return its Markdown page."""
    (title, _), *parts = blocks(day)
    machine = f"Python {platform.python_version()} on {os.cpu_count()} cores"
    lines = [f"# {title.rstrip('.')}", ""]
    lines += [
        (
            f"Commands and output of [{day}.sh](../../examples/days/{day}.sh) with STEPS={steps}, "
            f"recorded with {machine} on {datetime.date.today()}."
        ),
        "",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for words, commands in parts:
            lines += [words, "", "```console"]
            for command in commands:
                print(command, flush=True)
                told = shown(run(command, Path(folder), steps))
                lines += [f"$ {in_full(command, steps)}", *told]
            lines += ["```", ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    target, *days = sys.argv[1:]
    for day in days or DAYS:
        (Path(target) / f"{day}.md").write_text(page(day, os.environ.get("STEPS", "200000")))
