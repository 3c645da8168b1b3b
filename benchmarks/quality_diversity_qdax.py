"""MAP-Elites of qdax on the arm of 8 joints, as `quality_diversity.py arm | cvt` runs it: one object a line. qdax 0.5.0."""

import functools
import json
import sys
import time

import jax
from qdax.core.containers.mapelites_repertoire import compute_euclidean_centroids
from qdax.core.emitters.mutation_operators import isoline_variation
from qdax.core.emitters.standard_emitters import MixingEmitter
from qdax.core.map_elites import MAPElites
from qdax.tasks.arm import arm_scoring_function
from qdax.utils.metrics import default_qd_metrics

ROUNDS, SECONDS, ITERATIONS = 5, 2.0, 10


def measure(work: str, batch_size: int) -> dict:
    key = jax.random.key(0)
    if work == "cvt":  # where centroids lie does not matter for speed, and k-means of qdax takes minutes for so many
        centroids = jax.random.uniform(key, (10_000, 2))
    else:
        centroids = compute_euclidean_centroids(grid_shape=(100, 100), minval=0.0, maxval=1.0)
    variation = functools.partial(isoline_variation, iso_sigma=0.01, line_sigma=0.2, minval=0.0, maxval=1.0)
    emitter = MixingEmitter(lambda x, key: (x, key), variation, 1.0, batch_size)
    algorithm = MAPElites(arm_scoring_function, emitter, functools.partial(default_qd_metrics, qd_offset=1.0))
    state = algorithm.init(jax.random.uniform(key, (batch_size, 8)), centroids, key)[:2]
    scan = lambda loop: jax.lax.scan(algorithm.scan_update, loop, (), length=ITERATIONS)  # noqa: E731
    begin = time.monotonic()
    many = jax.jit(scan).lower((*state, key)).compile()
    compiling, speeds = time.monotonic() - begin, []
    loop, metrics = jax.block_until_ready(many((*state, key)))
    for _ in range(ROUNDS):
        begin, done = time.monotonic(), 0
        while time.monotonic() - begin < SECONDS:
            loop, metrics = jax.block_until_ready(many(loop))
            done += ITERATIONS * batch_size
        speeds.append(done / (time.monotonic() - begin))
    coverage = float(metrics["coverage"][-1]) / 100
    return {"work": work, "batch_size": batch_size, "speeds": speeds, "compile_seconds": compiling, "coverage": coverage}


if __name__ == "__main__":
    for batch in {"arm": (1024, 16_384), "cvt": (1024, 8192)}[sys.argv[1]]:
        print(json.dumps({**measure(sys.argv[1], batch), "jax": jax.__version__}), flush=True)
