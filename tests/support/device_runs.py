"""Runs on one and on two devices, started by a test in a separate process.

XLA_FLAGS=--xla_force_host_platform_device_count=2 python -m support.device_runs FOLDER CASE...
"""

import json
import sys
from pathlib import Path
from typing import Any

import rollax
from support.runs import FRAMES, Script, metrics, options

NUM_UPDATES = 3
CASES: dict[str, dict[str, Any]] = {
    "pool": {
        "environment": "pgx/tic_tac_toe",
        "options": {"opponent_pool": 2, "opponent_pool_every": FRAMES},
    },
    "kl": {"config": {"learning_rate_schedule": "kl"}},
    "curriculum": {"curriculum": {"gravity": (5, 15)}},
    "curriculum by return": {
        "curriculum": {"gravity": (5, 15)},
        "options": {"curriculum_returns": (5, 20)},
    },
    "randomize": {"randomize": {"gravity": (5, 15)}},
    "gsde": {
        "environment": "gymnax/Pendulum-v1",
        "network": {"std": "gsde"},
        "config": {"sde_sample_freq": 4},
    },
}


def train(folder: Path, devices: int, **arguments: Any) -> list[dict[str, Any]]:
    """Return the lines of metrics of a run."""
    settings = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "num_epochs": 1}
    changed = {"devices": devices, "eval_count": 1, **arguments.pop("options", {})}
    rollax.train(
        "ppo",
        arguments.pop("environment", "gymnax/CartPole-v1"),
        config=settings | arguments.pop("config", {}),
        network={"hidden": (8,)} | arguments.pop("network", {}),
        options=options(folder, NUM_UPDATES, **changed),
        show=Script(),
        **arguments,
    )
    return metrics(folder)


if __name__ == "__main__":
    parent, *names = sys.argv[1:]
    folders = {name: Path(parent) / name.replace(" ", "_") for name in names}
    print(
        json.dumps(
            {
                name: [train(folder / str(n), n, **CASES[name]) for n in (1, 2)]
                for name, folder in folders.items()
            }
        )
    )
