"""CMA-MAE of pyribs on the sphere of 100 dimensions, as `quality_diversity.py sphere` runs it: one object. ribs 0.12.0.

15 searches of 36 on a grid of 100 x 100, thresholds from 0 with rate 0.01, scores by NumPy in batches of 540.
"""

import json
import time

import numpy as np
from ribs.archives import GridArchive
from ribs.emitters import EvolutionStrategyEmitter
from ribs.schedulers import Scheduler

SIZE, LIMIT, ROUNDS, SECONDS = 100, 5.12, 5, 2.0


def sphere(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fitness from 0 to 100 and the sums of both halves, where a number beyond the limit counts as LIMIT / x."""
    best = 0.4 * LIMIT
    fitness = 100 * (1 - np.sum((x - best) ** 2, axis=1) / ((LIMIT + best) ** 2 * SIZE))
    folded = np.where(np.abs(x) > LIMIT, LIMIT / np.where(x == 0, 1.0, x), x)
    return fitness, np.stack([folded[:, : SIZE // 2].sum(axis=1), folded[:, SIZE // 2 :].sum(axis=1)], axis=1)


def main() -> None:
    reach = SIZE // 2 * LIMIT
    grid = {"solution_dim": SIZE, "dims": (100, 100), "ranges": [(-reach, reach)] * 2}
    archive, result = GridArchive(**grid, learning_rate=0.01, threshold_min=0.0), GridArchive(**grid)
    rules = {"sigma0": 0.5, "ranker": "imp", "selection_rule": "mu", "restart_rule": "basic", "batch_size": 36}
    emitters = [EvolutionStrategyEmitter(archive, x0=np.zeros(SIZE), seed=seed, **rules) for seed in range(15)]
    scheduler, speeds = Scheduler(archive, emitters, result_archive=result), []

    def iterate() -> None:
        scheduler.tell(*sphere(scheduler.ask()))

    begin = time.monotonic()
    for _ in range(20):
        iterate()
    compiling = time.monotonic() - begin  # numba's
    for _ in range(ROUNDS):
        begin, done = time.monotonic(), 0
        while time.monotonic() - begin < SECONDS:
            iterate()
            done += 540
        speeds.append(done / (time.monotonic() - begin))
    coverage = float(result.stats.coverage)
    print(json.dumps({"work": "sphere", "speeds": speeds, "compile_seconds": compiling, "coverage": coverage}))


if __name__ == "__main__":
    main()
