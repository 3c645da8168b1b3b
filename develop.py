"""Sets up and runs this checkout with nothing but Python: `python3 develop.py train`, `python3 develop.py test`.

It makes a virtual environment in .venv/, installs the package with pinned versions, and runs the command in it.
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
python3 develop.py train [ARGUMENTS]   set up, then train PPO on CartPole (or: rollax train ARGUMENTS)
python3 develop.py test [ARGUMENTS]    set up, then run the tests (pytest's ARGUMENTS)
python3 develop.py check               set up, then lint, format check and types
python3 develop.py docs [serve]        set up, then build the documentation into site/ (or show it while it is written)
python3 develop.py setup               set up only
"""


def main(words: list[str]) -> int:
    command, arguments = (words[0], words[1:]) if words else ("help", [])
    if command not in ("train", "test", "check", "docs", "setup"):
        print(USAGE, end="")
        return 0 if command in ("help", "-h", "--help") else 2
    if sys.version_info < (3, 11):
        print("rollax needs Python 3.11 or newer", file=sys.stderr)
        return 2
    set_up({"test": "dev", "check": "dev", "docs": "docs"}.get(command, ""))
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
    return 0


def set_up(extra: str) -> None:
    """Installs once for each state of the files that decide what to install."""
    wanted = hashlib.sha256(b"".join((ROOT / f).read_bytes() for f in ("pyproject.toml", "constraints.txt"))).hexdigest()
    done = VENV / f"installed-{extra or 'base'}"
    if done.exists() and done.read_text() == wanted:
        return
    if not BIN.exists():
        print(f"making {VENV.relative_to(ROOT)}", flush=True)
        venv.create(VENV, with_pip=True)
    print("installing (a few minutes the first time)", flush=True)
    package = f"{ROOT}[{extra}]" if extra else str(ROOT)
    pip = [str(BIN / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), "--editable", package], check=True)
    done.write_text(wanted)


def run(program: str, *arguments: str) -> int:
    """A program of the virtual environment, in the checkout. An interrupt is the program's to answer."""
    process = subprocess.Popen([str(BIN / program), *arguments], cwd=ROOT)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        print("the installation failed; the lines above say why", file=sys.stderr)
        sys.exit(error.returncode)
