"""Evaluations per second of quality-diversity algorithms by size.

Usage: `python benchmarks/quality_diversity.py [WORK ...]`.

- arm: MAP-Elites on an arm with 8 joints, a grid of 100 x 100 cells, batches of 1,024 and 16,384.
- cvt: like arm, with 10,000 Voronoi cells and batches of 1,024 and 8,192.
- sphere: CMA-MAE in 100 dimensions, 15 searches with 36 solutions each.
- cells, batches, dimensions, seeds: the arm with 10^3 to 10^6 cells, batches of 64 to 65,536, 8 to
  1,000 joints, and 1 to 64 seeds.

Results are medians over the rounds. `--json` prints one JSON object per line.
"""

import argparse
import json
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

import rollax
from rollax import tree
from rollax.algorithms.registry import find_algorithm
from rollax.networks.solutions import PolicyConfig, make_solution
from rollax.populations import population

ROUNDS, SECONDS = 5, 2.0
GRID = {"grid": (100, 100)}
WORKS: dict[str, list[dict[str, Any]]] = {
    "arm": [
        {**GRID, "batch_size": 1024, "num_iterations": 8},
        {**GRID, "batch_size": 16_384, "num_iterations": 2},
    ],
    "cvt": [
        {"cvt_cells": 10_000, "batch_size": size, "num_iterations": 8192 // size}
        for size in (1024, 8192)
    ],
    "sphere": [GRID],
    "cells": [
        {"grid": shape, "batch_size": 1024}
        for shape in ((40, 25), (100, 100), (400, 250), (1000, 1000))
    ],
    "batches": [{**GRID, "batch_size": size} for size in (64, 1024, 8192, 65_536)],
    "dimensions": [{**GRID, "batch_size": 1024, "joints": size} for size in (8, 100, 1000)],
    "seeds": [{**GRID, "batch_size": 1024, "seeds": seeds} for seeds in (1, 8, 64)],
}


def named(work: str) -> tuple[str, str]:
    """Return the algorithm and the task of a work."""
    return ("cma_mae", "task/sphere") if work == "sphere" else ("map_elites", "task/arm")


def compiled(
    name: str, id: str, seeds: int = 1, joints: int = 8, **settings: Any
) -> tuple[Any, Any, int, float]:
    """Compile ten updates of all seeds.

    Returns:
        Program, initial state, number of evaluations per call, and compile time in seconds.
    """
    environment = rollax.make(id, joints=joints) if id == "task/arm" else rollax.make(id)
    _, entry = find_algorithm(name)
    config = entry.config(**settings)
    algorithm = entry.make(environment, lambda key: make_solution(environment, PolicyConfig(), key))
    if seeds == 1:
        state = jax.jit(algorithm.init)(jax.random.key(0), config)
    else:
        algorithm = population(algorithm)
        keys, leaves = jax.vmap(jax.random.key)(jnp.arange(seeds)), tree.to_arrays(config)
        state = jax.jit(algorithm.init)(keys, jax.tree.map(lambda x: jnp.full(seeds, x), leaves))
    many = jax.jit(
        lambda state: jax.lax.scan(lambda s, _: algorithm.step(s), state, None, length=10),
        donate_argnums=0,
    )
    begin = time.monotonic()
    many = many.lower(state).compile()
    return many, state, 10 * config.steps_per_update * seeds, time.monotonic() - begin


def measure(name: str, id: str, **settings: Any) -> dict[str, Any]:
    """Measure `ROUNDS` rounds of about `SECONDS` each.

    Returns:
        Evaluations per second over all seeds in each round, compile time in seconds, size of the
        state in bytes, mean coverage, and version of JAX.
    """
    many, state, each, compiling = compiled(name, id, **settings)
    size, speeds = sum(x.nbytes for x in jax.tree.leaves(state)), []
    state, metrics = jax.block_until_ready(many(state))
    for _ in range(ROUNDS):
        begin, done = time.monotonic(), 0
        while time.monotonic() - begin < SECONDS:
            state, metrics = jax.block_until_ready(many(state))
            done += each
        speeds.append(done / (time.monotonic() - begin))
    coverage = float(jnp.mean(metrics.values["coverage"][-1]))
    return {
        "speeds": speeds,
        "compile_seconds": compiling,
        "bytes": size,
        "coverage": coverage,
        "jax": jax.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("works", nargs="*", help=f"of {', '.join(WORKS)}; all if none is named")
    parser.add_argument("--json", action="store_true", help="one object a line")
    arguments = parser.parse_args()
    if unknown := set(arguments.works) - set(WORKS):
        parser.error(f"unknown work {', '.join(sorted(unknown))}: known are {', '.join(WORKS)}")
    for work in arguments.works or WORKS:
        name, id = named(work)
        for settings in WORKS[work]:
            found = measure(name, id, **settings)
            shown = " ".join(f"{key} {value}" for key, value in settings.items())
            numbers = (
                f"{found['bytes'] / 1e6:,.1f} MB, compiled in {found['compile_seconds']:.1f} s"
            )
            text = (
                f"{statistics.median(found['speeds']):,.0f} evaluations/s, {numbers}, "
                f"coverage {found['coverage']:.3f}"
            )
            line = (
                json.dumps({"work": work, **settings, **found})
                if arguments.json
                else f"{work}: {name} {id} {shown}: {text}"
            )
            print(line, flush=True)


if __name__ == "__main__":
    main()
