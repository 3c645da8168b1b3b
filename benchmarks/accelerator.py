"""Speed of large workloads on a GPU or TPU, in float32 and bfloat16.

Usage: `python benchmarks/accelerator.py [WORK ...] [--small]`.

Each row is a `rollax bench` in a separate process, compared with a predicted speed as in growth.py.
The prediction is the longer of two times: the matrix products at the rate of one large product, and
the memory traffic at the rate of a copy. Both rates are measured in the same process.

XLand-MiniGrid has a separate benchmark (xland.py). `--small` divides sizes by 64 to test the
benchmark on a CPU.
"""

import argparse
import sys
from collections.abc import Callable

from growth import Axis, Point, measure
from peers import check_names

Words = Callable[[int], list[str]]  # command-line arguments of a run, given its size
WORKS: dict[str, tuple[str, int, Words]] = {
    "seeds": (
        "CartPole, 4 environments each, seeds",
        2048,
        lambda n: [
            "ppo",
            "gymnax/CartPole-v1",
            "--num-envs",
            "4",
            "--num-minibatches",
            "4",
            "--seeds",
            f"{n}",
        ],
    ),
    "breakout": (
        "Breakout of MinAtar, environments",
        4096,
        lambda n: [
            "ppo",
            "gymnax/Breakout-MinAtar",
            "--num-envs",
            f"{n}",
            "--num-minibatches",
            "8",
        ],
    ),
    "cartpole": (
        "CartPole, environments",
        65536,
        lambda n: ["ppo", "gymnax/CartPole-v1", "--num-envs", f"{n}", "--num-minibatches", "32"],
    ),
}
PRECISIONS = "float32", "bfloat16"
FRAMES = 1e8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("works", nargs="*", help=f"of {', '.join(WORKS)}; all if none is named")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of about a second each")
    parser.add_argument("--small", action="store_true", help="sizes divided by 64")
    arguments = parser.parse_args()
    check_names(parser, "work", arguments.works, WORKS)
    print(f"{machine()}, {arguments.rounds} rounds each\n")
    print(
        f"| work | precision | steps/s | least, greatest | {FRAMES:.0e} steps take | reached | "
        "products | memory, MB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in arguments.works or WORKS:
        title, number, words = WORKS[name]
        number = number // 64 if arguments.small else number
        for precision in PRECISIONS:
            more = ["--network.precision", precision]
            axis = Axis(
                f"{title}: {number:,}",
                [number],
                lambda n, words=words, more=more: [*words(n), *more],
            )
            print(row(axis.title, precision, measure(axis, number, arguments.rounds)), flush=True)


def machine() -> str:
    import jax

    device = jax.devices()[0]
    return (
        f"{device.device_kind} ({device.platform}), jax {jax.__version__}, Python "
        f"{sys.version.split()[0]}"
    )


def row(title: str, precision: str, point: Point) -> str:
    between, minutes = f"{point.low:,.0f} to {point.high:,.0f}", FRAMES / point.rate / 60
    shares = f"{point.rate / point.predicted:.0%} | {point.products:.0%}"
    return (
        f"| {title} | {precision} | {point.rate:,.0f} | {between} | {minutes:,.1f} min | "
        f"{shares} | {point.memory / 1e6:,.1f} |"
    )


if __name__ == "__main__":
    main()
