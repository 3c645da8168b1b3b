"""CMA-MAE of pyribs 0.12.0 on the sphere of 100 dimensions, the same work as `quality_diversity_rollax.py`, measured alike.

15 searches of 36 on a grid of 100 x 100, thresholds from 0 with rate 0.01, scores by NumPy in batches of 540.
"""

import time

import numpy as np
from ribs.archives import GridArchive
from ribs.emitters import EvolutionStrategyEmitter
from ribs.schedulers import Scheduler
from timing import by_turns

SIZE, LIMIT, ITERATIONS = 100, 5.12, 50  # of a turn


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
    scheduler = Scheduler(archive, emitters, result_archive=result)

    def iterate(times: int = ITERATIONS) -> None:
        for _ in range(times):
            scheduler.tell(*sphere(scheduler.ask()))

    started = time.perf_counter()
    iterate(20)
    by_turns(iterate, ITERATIONS * 540, time.perf_counter() - started, "none")  # what is compiled is numba's


if __name__ == "__main__":
    main()
