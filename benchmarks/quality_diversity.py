"""Evaluations a second of quality-diversity: `python benchmarks/quality_diversity.py [arm | cvt | million | sphere]`.

The arm of 8 joints by MAP-Elites with batches of 1,024 and 16,384 on a grid of 100 x 100 (arm), among 10,000 Voronoi cells
(cvt), and on a grid of 1,000 x 1,000 (million); the sphere of 100 dimensions by CMA-MAE, 15 searches of 36 (sphere). Medians of
five rounds.
"""

import statistics
import sys
import time
from typing import Any

import jax

import rollax
from rollax.algorithms import find
from rollax.networks.solutions import PolicyConfig, solution

ROUNDS, SECONDS = 5, 2.0


def measure(name: str, id: str, **settings: Any) -> None:
    """Prints the median of evaluations a second over ROUNDS rounds of about SECONDS each."""
    environment, (_, entry) = rollax.make(id), find(name)
    config = entry.config(**settings)
    algorithm = entry.make(environment, lambda key: solution(environment, PolicyConfig(), key))
    state = jax.jit(algorithm.init)(jax.random.key(0), config)
    many = jax.jit(lambda state: jax.lax.scan(lambda s, _: algorithm.step(s), state, None, length=10), donate_argnums=0)
    each, speeds = 10 * config.steps_per_update, []
    state, metrics = jax.block_until_ready(many(state))
    for _ in range(ROUNDS):
        begin, done = time.monotonic(), 0
        while time.monotonic() - begin < SECONDS:
            state, metrics = jax.block_until_ready(many(state))
            done += each
        speeds.append(done / (time.monotonic() - begin))
    coverage = float(metrics.values["coverage"][-1])
    shown = " ".join(f"{key} {value}" for key, value in settings.items())
    print(f"{name} {id} {shown}: {statistics.median(speeds):,.0f} evaluations/s, coverage {coverage:.3f}", flush=True)


def main(what: list[str]) -> None:
    for task in what or ["arm", "cvt", "million", "sphere"]:
        if task == "sphere":
            measure("cma_mae", "task/sphere", grid=(100, 100))
            continue
        cells = {"arm": {"grid": (100, 100)}, "cvt": {"cvt_cells": 10_000}, "million": {"grid": (1000, 1000)}}[task]
        for batch_size, num_iterations in ((1024, 8), (16_384, 2)):
            measure("map_elites", "task/arm", batch_size=batch_size, num_iterations=num_iterations, **cells)


if __name__ == "__main__":
    main(sys.argv[1:])
