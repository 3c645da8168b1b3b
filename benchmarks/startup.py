"""Startup time of training until compilation starts and until the first evaluation.

    python benchmarks/startup.py                          presets of several algorithms
    python benchmarks/startup.py ppo:gymnax/CartPole-v1   one preset

Each start is a separate process. The first start of a pair has an empty compilation cache, and the
second uses the cache of the first. The CPU time up to the end of a run of 2,000 steps is reported
too, because other load on the machine affects it less than wall time. The environment variable
ROUNDS sets the number of rounds, whose medians are reported.
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
    """Return the seconds of starting Python and importing rollax."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import rollax"], check=True)
    return time.monotonic() - started


def start(pair: str, folder: Path, cache: Path) -> tuple[float, float, float]:
    """Train for 2,000 steps and return times in seconds.

    Args:
        pair: Algorithm and environment, separated by a colon.
        folder: Folder of the new run.
        cache: Folder of the compilation cache.

    Returns:
        Wall time until the message "compiling", wall time until the first evaluation is printed,
        and CPU time of the whole run.
    """
    algorithm, _, environment = pair.partition(":")
    line = [sys.executable, "-u", "-m", "rollax", "train", algorithm, environment]
    line += ["--total-steps", "2000", "--run-dir", str(folder), "--no-tensorboard"]
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAX_COMPILATION", "JAX_PERSISTENT"))
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    with subprocess.Popen(
        line,
        env=kept | {"ROLLAX_COMPILATION_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
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
    print(
        "| | first start: compiling | evaluated | processor | second start: compiling | "
        "evaluated | processor |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for pair in pairs:
        rows: list[list[float]] = []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                cache = Path(folder) / "cache"
                rows.append(
                    [
                        *start(pair, Path(folder) / "a", cache),
                        *start(pair, Path(folder) / "b", cache),
                    ]
                )
        values = [f"{statistics.median(column):.1f}" for column in zip(*rows, strict=True)]
        print(f"| {pair.replace(':', ' on ')} | {' | '.join(values)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "pairs",
        nargs="*",
        metavar="ALGORITHM:ENVIRONMENT",
        help="presets; several families if none is named",
    )
    main(parser.parse_args().pairs or list(PAIRS))
