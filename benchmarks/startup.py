"""How long a command takes until it shows something: importing, tracing, compiling, and the first evaluation.

    python benchmarks/startup.py                          presets of several families, the first and the second start
    python benchmarks/startup.py ppo:gymnax/CartPole-v1   one of them

Each start is a process of its own; the first of a pair has an empty compilation cache, the second what the first left there.
Beside wall time stands processor time up to the end of a run of 2,000 steps, which other work on the machine disturbs less.
ROUNDS=5 in the environment takes medians of five.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAIRS = (
    "ppo:gymnax/CartPole-v1",
    "ppo:xminigrid/MiniGrid-Empty-5x5",
    "ppo:jaxmarl/MPE_simple_spread_v3",
    "dqn:gymnax/CartPole-v1",
    "td3:gymnax/Pendulum-v1",
    "sac:gymnax/Pendulum-v1",
    "map_elites:task/arm",
    "cma_mae:task/sphere",
    "pga_me:control/point-maze",
)
ROUNDS = int(os.environ.get("ROUNDS", "3"))


def imported() -> float:
    """Seconds of `import rollax` alone, the interpreter included."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import rollax"], check=True)
    return time.monotonic() - started


def start(pair: str, folder: Path, cache: Path) -> tuple[float, float, float]:
    """Wall seconds until "compiling", until the first evaluation is shown, and processor seconds to the end of 2,000 steps."""
    algorithm, _, environment = pair.partition(":")
    line = [sys.executable, "-u", "-m", "rollax", "train", algorithm, environment]
    line += ["--total-steps", "2000", "--run-dir", str(folder), "--no-tensorboard"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMPILATION", "JAX_PERSISTENT"))}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    with subprocess.Popen(
        line, env=kept | {"ROLLAX_COMPILATION_CACHE": str(cache)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        compiling = evaluated = float("nan")
        text = []
        for row in process.stdout:
            text.append(row)
            if row.startswith("compiling"):
                compiling = time.monotonic() - started
            if " 0 steps " in row and evaluated != evaluated:
                evaluated = time.monotonic() - started
    if process.returncode:
        sys.exit("".join(text))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return compiling, evaluated, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(pairs: list[str]) -> None:
    print(f"import rollax: {statistics.median(imported() for _ in range(ROUNDS)):.1f} s")
    print("| | first start: compiling | evaluated | processor | second start: compiling | evaluated | processor |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for pair in pairs:
        rows: list[list[float]] = []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                cache = Path(folder) / "cache"
                rows.append([*start(pair, Path(folder) / "a", cache), *start(pair, Path(folder) / "b", cache)])
        values = [f"{statistics.median(column):.1f}" for column in zip(*rows, strict=True)]
        print(f"| {pair.replace(':', ' on ')} | {' | '.join(values)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="*", metavar="ALGORITHM:ENVIRONMENT", help="presets; several families if none is named")
    main(parser.parse_args().pairs or list(PAIRS))
