"""MAP-Elites of qdax 0.5.0 on an arm with 8 joints.

The work and the measurement are those of `quality_diversity_rollax.py`.
"""

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
from timing import by_turns

ITERATIONS = 40  # per turn
work = json.loads(sys.argv[1])
batch_size, key = work["batch_size"], jax.random.key(0)
if work["work"] == "cvt":
    # Centroids do not affect the speed, and k-means of qdax would take minutes.
    centroids = jax.random.uniform(key, (10_000, 2))
else:
    centroids = compute_euclidean_centroids(grid_shape=(100, 100), minval=0.0, maxval=1.0)
variation = functools.partial(
    isoline_variation, iso_sigma=0.01, line_sigma=0.2, minval=0.0, maxval=1.0
)
emitter = MixingEmitter(lambda x, key: (x, key), variation, 1.0, batch_size)
algorithm = MAPElites(
    arm_scoring_function, emitter, functools.partial(default_qd_metrics, qd_offset=1.0)
)
loop = [(*algorithm.init(jax.random.uniform(key, (batch_size, 8)), centroids, key)[:2], key)]
started = time.perf_counter()
many = (
    jax.jit(lambda loop: jax.lax.scan(algorithm.scan_update, loop, (), length=ITERATIONS))
    .lower(loop[0])
    .compile()
)
compile_seconds = time.perf_counter() - started


def iterate() -> None:
    loop[0], _ = jax.block_until_ready(many(loop[0]))


by_turns(iterate, ITERATIONS * batch_size, compile_seconds, jax.__version__)
