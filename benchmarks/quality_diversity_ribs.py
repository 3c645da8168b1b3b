"""CMA-MAE of pyribs 0.12.0 on the sphere in 100 dimensions.

The work and the measurement are those of `quality_diversity_rollax.py`: 15 searches with 36
solutions each on a grid of 100 x 100 cells, with thresholds that start at 0 and have a learning
rate of 0.01. NumPy scores batches of 540 solutions.
"""

import time

import numpy as np
from ribs.archives import GridArchive
from ribs.emitters import EvolutionStrategyEmitter
from ribs.schedulers import Scheduler
from timing import by_turns

SIZE, LIMIT, ITERATIONS = 100, 5.12, 50  # iterations per turn


def sphere(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the fitness and the descriptors of solutions x.

    The fitness is at most 100. Descriptors are the sums of both halves of a solution, in which
    numbers beyond `LIMIT` are replaced by `LIMIT / x`.
    """
    best = 0.4 * LIMIT
    fitness = 100 * (1 - np.sum((x - best) ** 2, axis=1) / ((LIMIT + best) ** 2 * SIZE))
    folded = np.where(np.abs(x) > LIMIT, LIMIT / np.where(x == 0, 1.0, x), x)
    return fitness, np.stack(
        [folded[:, : SIZE // 2].sum(axis=1), folded[:, SIZE // 2 :].sum(axis=1)], axis=1
    )


def main() -> None:
    reach = SIZE // 2 * LIMIT
    grid = {"solution_dim": SIZE, "dims": (100, 100), "ranges": [(-reach, reach)] * 2}
    archive, result = (
        GridArchive(**grid, learning_rate=0.01, threshold_min=0.0),
        GridArchive(**grid),
    )
    rules = {
        "sigma0": 0.5,
        "ranker": "imp",
        "selection_rule": "mu",
        "restart_rule": "basic",
        "batch_size": 36,
    }
    emitters = [
        EvolutionStrategyEmitter(archive, x0=np.zeros(SIZE), seed=seed, **rules)
        for seed in range(15)
    ]
    scheduler = Scheduler(archive, emitters, result_archive=result)

    def iterate(times: int = ITERATIONS) -> None:
        for _ in range(times):
            scheduler.tell(*sphere(scheduler.ask()))

    started = time.perf_counter()
    iterate(20)
    # The compile time is that of numba.
    by_turns(iterate, ITERATIONS * 540, time.perf_counter() - started, "none")


if __name__ == "__main__":
    main()
