"""Quality-diversity algorithms with small settings, over which the tests of archives run."""

from typing import Any

from rollax import make
from rollax.algorithms.registry import ALGORITHMS

NAMES = [name for name, entry in ALGORITHMS.items() if entry.unit == "evaluations"]
LEARNERS = ("pga_me", "dcrl_me")
PLAYED = (*LEARNERS, "aurora")  # learn from the transitions of policies
CLOSED = [name for name in NAMES if name not in PLAYED]
SMALL = {"batch_size": 12, "num_iterations": 2, "grid": (5, 5)}
# Noise that reaches its bound, and descriptors close enough to each other to affect rewards.
LEARNS = {
    "critic_updates": 4,
    "policy_updates": 2,
    "samples": 4,
    "capacity": 240,
    "critic_hidden": (8,),
    "target_noise": 1.0,
}
SMALLEST: dict[str, dict[str, Any]] = {
    **dict.fromkeys(LEARNERS, LEARNS),
    "map_elites": {"iso_sigma": 2.0},  # adds a second elite as an endpoint of line variation
    "dns": {"population_size": 20},
    "mome": {"front_size": 4},
    "aurora": {
        "num_elites": 20,
        "num_frames": 3,
        "encoder_hidden": (8,),
        "encoder_updates": 5,
        "samples": 8,
    },
    "me_es": {
        "num_neighbors": 3,
        "memory": 5,
        "num_optim_gens": 3.0,
        "sigma": 0.3,
        "learning_rate": 0.5,
    },
    "me_map_elites": {
        "num_emitters": 6,
        "num_iterations": 8,
        "window": 3,
        "iso_sigma": 2.0,
        "zeta": 0.3,
    },
    **dict.fromkeys(("cma_me", "cma_mae", "cma_mega", "cma_maega"), {"num_emitters": 3}),
}


def environment(name: str) -> Any:
    """Return the environment in which the tests run an algorithm."""
    if name in PLAYED:
        return make("control/point-maze", time_limit=10)
    return make("task/rastrigin-multi" if name == "mome" else "task/sphere", dimensions=6)


def config(name: str, **settings: Any) -> Any:
    """Return the small settings of an algorithm with the given changes."""
    return ALGORITHMS[name].config(**(SMALL | SMALLEST.get(name, {}) | settings))
