"""Speed of training as one size grows, such as the number of environments.

Usage: `python benchmarks/growth.py [AXIS ...] [--points FILE] [--out PICTURE]`.

Each point is a `rollax bench` in a separate process. The predicted time is the longer of two times:
the matrix products at the rate of one large product, and the memory traffic at the rate of a copy.
Both rates are measured in the same process. Programs that fit into caches can be faster than
predicted.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from peers import check_names, printed, processor

CARTPOLE = ["ppo", "gymnax/CartPole-v1", "--num-steps", "32", "--num-minibatches", "4"]
FEW = ["--num-envs", "8", "--num-steps", "32", "--num-minibatches", "4"]
MEMORY = ["ppo", "memory/repeat-previous", "--network.core", "gru", "--num-minibatches", "4"]


class Axis(NamedTuple):
    """Size that grows: its title, its values, and the command-line arguments of a run by value."""

    title: str
    values: list[int]
    words: Callable[[int], list[str]]


def powers(first: int, last: int, factor: int = 2) -> list[int]:
    """Return values from `first` to at least `last`, each `factor` times the previous value."""
    values = [first]
    while values[-1] < last:
        values.append(values[-1] * factor)
    return values


AXES = {
    "environments": Axis(
        "environments", powers(4, 65536, 4), lambda n: [*CARTPOLE, "--num-envs", f"{n}"]
    ),
    "members": Axis(
        "members of 4 environments",
        powers(1, 1024, 4),
        lambda n: [*CARTPOLE, "--num-envs", "4", "--seeds", f"{n}"],
    ),
    "hidden": Axis(
        "units of each of two layers",
        powers(32, 2048),
        lambda n: [*CARTPOLE, "--network.hidden", f"{n}", f"{n}"],
    ),
    "sequence": Axis(
        "steps in a row of a GRU",
        powers(8, 512, 4),
        lambda n: [*MEMORY, "--num-envs", "16", "--num-steps", "512", "--sequence-length", f"{n}"],
    ),
    "replay": Axis(
        "transitions in the buffer",
        powers(10_000, 10_000_000, 10),
        lambda n: [
            "td3",
            "gymnax/Pendulum-v1",
            "--network.hidden",
            "64",
            "64",
            "--capacity",
            f"{n}",
        ],
    ),
    "cells": Axis(
        "cells of the archive",
        powers(1_024, 1_048_576, 4),
        lambda n: [
            "map_elites",
            "task/arm",
            "--batch-size",
            "512",
            "--grid",
            f"{round(n**0.5)}",
            f"{round(n**0.5)}",
        ],
    ),
    "agents": Axis(
        "agents",
        powers(2, 256),
        lambda n: ["ppo", "granular/many-navigators", "--env.num-agents", f"{n}", *FEW],
    ),
}


class Point(NamedTuple):
    """Measurement of one size."""

    value: int
    # Median, lowest and highest speed in steps per second. As in `rollax bench`, steps are those of
    # environments or agents, or evaluations.
    rate: float
    low: float
    high: float
    predicted: float
    products: float  # rate of matrix products relative to one large product
    memory: float  # bytes, as predicted by the compiler


def main() -> None:
    arguments = parsed()
    print(f"{processor()}, {arguments.rounds} rounds each")
    found = read(arguments.points)
    for name in arguments.axes or AXES:
        axis, points = AXES[name], found.setdefault(name, {})
        print(
            f"\n| {axis.title} | steps/s | least, greatest | predicted | reached | products | "
            "memory, MB |"
        )
        print("|---|---|---|---|---|---|---|")
        for value in axis.values:
            if value not in points:
                points[value] = measure(axis, value, arguments.rounds)
                if arguments.points:
                    arguments.points.write_text(
                        json.dumps({name: [*each.values()] for name, each in found.items()})
                    )
            print(row(points[value]), flush=True)
    if arguments.out:
        draw(
            {
                name: [found[name][value] for value in AXES[name].values]
                for name in arguments.axes or AXES
            },
            arguments.out,
        )


def read(path: Path | None) -> dict[str, dict[int, Point]]:
    """Return the points in a file by axis and value, or an empty dictionary without a file."""
    kept = json.loads(path.read_text()) if path and path.exists() else {}
    return {name: {point[0]: Point(*point) for point in points} for name, points in kept.items()}


def row(point: Point) -> str:
    reached = f"{point.predicted:,.0f} | {point.rate / point.predicted:.0%} | {point.products:.0%}"
    between = f"{point.low:,.0f} to {point.high:,.0f}"
    return (
        f"| {point.value:,} | {point.rate:,.0f} | {between} | {reached} | "
        f"{point.memory / 1e6:,.1f} |"
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("axes", nargs="*", help=f"of {', '.join(AXES)}; all if none is named")
    parser.add_argument(
        "--rounds", type=int, default=5, help="measurements of about a second at each point"
    )
    parser.add_argument(
        "--points", type=Path, help="a file of what was measured, to go on with after a stop"
    )
    parser.add_argument("--out", type=Path, help="a picture of the curves")
    arguments = parser.parse_args()
    check_names(parser, "axis", arguments.axes, AXES)
    return arguments


def measure(axis: Axis, value: int, rounds: int) -> Point:
    command = [
        sys.executable,
        "-m",
        "rollax",
        "bench",
        *axis.words(value),
        "--rounds",
        f"{rounds}",
        "--json",
    ]
    found = printed(f"{axis.title} {value}", command)
    rates = found["steps_per_second"]
    rate = statistics.median(rates)
    flops, size = (
        sum(share[name] for share in found["shares"].values()) for name in ("flops", "bytes")
    )
    limits = found["limits"]
    # Seconds of an update.
    least = max(flops / limits["product_flops"], size / limits["copy_bytes"])
    seconds = found["update_seconds"]
    reached = flops / seconds / limits["product_flops"]
    return Point(
        value,
        rate,
        min(rates),
        max(rates),
        rate * seconds / least,
        reached,
        found["memory_predicted"] or 0,
    )


def draw(found: dict[str, list[Point]], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    figure, panels = plt.subplots(
        rows, columns, figsize=(3.6 * columns, 2.8 * rows), layout="constrained", squeeze=False
    )
    for name, axes in zip(found, panels.flat, strict=False):
        points = found[name]
        values = [point.value for point in points]
        spread = [
            [point.rate - point.low for point in points],
            [point.high - point.rate for point in points],
        ]
        axes.errorbar(
            values,
            [point.rate for point in points],
            yerr=spread,
            marker="o",
            markersize=3,
            capsize=2,
            label="measured",
        )
        axes.plot(
            values, [point.predicted for point in points], "--", color="gray", label="predicted"
        )
        axes.set(xscale="log", yscale="log", xlabel=AXES[name].title, ylabel="steps/s")
    for axes in panels.flat[len(found) :]:
        axes.set_visible(False)
    panels.flat[0].legend(fontsize="small")
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    main()
