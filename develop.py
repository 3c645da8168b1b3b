"""Set up and run this checkout with only Python installed.

Usage: `python3 develop.py train`, `python3 develop.py test`

Every command creates a virtual environment in .venv/, installs the package with pinned versions,
and runs there.
"""

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
USAGE = """\
python3 develop.py train [ARGUMENTS]   set up, \
then train PPO on CartPole (or: rollax train ARGUMENTS)
python3 develop.py test                set up, then run the quick tests
python3 develop.py test --all          set up, \
then run all tests that are not slow (--rest: without the quick ones)
python3 develop.py test --changed      set up, then run the tests that changes since main can affect
python3 develop.py test ARGUMENTS      set up, then run the tests that pytest's ARGUMENTS select
python3 develop.py check               set up, then check lint, format and types
python3 develop.py fix                 set up, then fix lint and format
python3 develop.py docs [serve]        set up, \
then build the documentation into site/ (or serve it and rebuild on changes)
python3 develop.py setup               set up only
python3 develop.py placeholders        list what has to be filled in before a release
"""
COMMANDS = ("train", "test", "check", "fix", "docs", "setup")
PLACEHOLDERS = r"github(\.com)?/OWNER|`CONTACT`"


def main(words: list[str]) -> int:
    command, arguments = (words[0], words[1:]) if words else ("help", [])
    if command == "placeholders":
        return find_placeholders()
    if command not in COMMANDS:
        print(USAGE, end="")
        return 0 if command in ("help", "-h", "--help") else 2
    if sys.version_info < (3, 11):
        print("rollax needs Python 3.11 or newer", file=sys.stderr)
        return 2
    set_up({"train": "", "setup": "", "docs": "docs"}.get(command, "dev"))
    if command == "train":
        return run("rollax", "train", *(arguments or ["ppo", "gymnax/CartPole-v1"]))
    if command == "test":
        return run("python", str(ROOT / "tests" / "run.py"), *arguments)
    if command == "docs":
        os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")  # mkdocs is pinned below 2
        return run("mkdocs", *(arguments or ["build", "--strict"]))
    if command == "check":
        checks = (("ruff", "check"), ("ruff", "format", "--check"), ("basedpyright",))
        return max(run(*check) for check in checks)
    if command == "fix":
        return max(run("ruff", "check", "--fix"), run("ruff", "format"))
    return 0


def set_up(extra: str) -> None:
    """Install the package with an extra, unless the dependency files have not changed since."""
    wanted = hashlib.sha256(
        b"".join((ROOT / f).read_bytes() for f in ("pyproject.toml", "constraints.txt"))
    ).hexdigest()
    done = VENV / f"installed-{extra or 'base'}"
    if done.exists() and done.read_text() == wanted:
        return
    if not BIN.exists():
        print(f"creating {VENV.relative_to(ROOT)}", flush=True)
        venv.create(VENV, with_pip=True)
    print("installing (a few minutes the first time)", flush=True)
    package = f"{ROOT}[{extra}]" if extra else str(ROOT)
    pip = [str(BIN / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--constraint", str(ROOT / "constraints.txt"), "--editable", package], check=True
    )
    done.write_text(wanted)


def run(program: str, *arguments: str) -> int:
    """Run a program of the virtual environment in the checkout. It handles interrupts itself."""
    process = subprocess.Popen([str(BIN / program), *arguments], cwd=ROOT)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def find_placeholders() -> int:
    """Print every line with a placeholder, and return 1 if there is any."""
    files = (":!develop.py", ":!docs/release-checklist.md", ":!tests")
    search = ("git", "grep", "-nE", PLACEHOLDERS, "--", *files)
    found = subprocess.run(search, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    print(found, end="")
    return 1 if found else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        print("The installation failed. The lines above have the reason.", file=sys.stderr)
        sys.exit(error.returncode)
