"""Quality-diversity search with an external evaluation in NumPy, through the ask-tell interface."""

import numpy as np

import rollax


def drag(shapes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the fitness `[B]` and descriptors `[B, 2]` of shapes `[B, 6]`, like a simulator."""
    return -np.sum((shapes - 0.3) ** 2, axis=1), np.stack(
        [shapes[:, :3].mean(axis=1), shapes[:, 3:].std(axis=1)], axis=1
    )


search = rollax.AskTell("cma_me", 6, low=(-1, 0), high=(1, 1), config={"grid": (20, 20)})
for step in range(30):
    shapes = search.ask()
    fitness, descriptor = drag(shapes)
    values = search.tell(fitness=fitness, descriptor=descriptor)
    if step % 10 == 9:
        print(
            f"step {step + 1}: {values['coverage']:.0%} of the cells, best "
            f"{values['fitness_best']:.4f}"
        )
