"""PPO or SAC of rollax in gymnasium.

Usage: `host_rollax.py ppo|sac FRAMES REPEATS`. Prints one JSON object.
"""

import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

import timing

import rollax

name, frames, repeats = sys.argv[1], *map(int, sys.argv[2:])
BEFORE = 2048  # frames of the first run
WORK = {
    "ppo": (
        "gymnasium/CartPole-v1",
        {"num_envs": 8, "num_steps": 128, "num_minibatches": 4, "num_epochs": 4},
        {"hidden": (64, 64)},
    ),
    "sac": (
        "gymnasium/HalfCheetah-v5",
        {"num_envs": 1, "batch_size": 256, "warmup": 100.0},
        {"hidden": (256, 256)},
    ),
}
environment, config, network = WORK[name]


def taken(folder: Path, total_steps: int) -> tuple[float, float]:
    """Train a run and return its wall time and CPU time in seconds.

    The run is evaluated only at the start and the end, with one episode each.
    """
    options = {
        "eval_count": 1,
        "eval_episodes": 1,
        "tensorboard": False,
        "run_dir": folder,
        "checkpoint_minutes": 0.0,
    }
    started, processor = time.perf_counter(), time.process_time()
    rollax.train(
        name,
        environment,
        total_steps=total_steps,
        config=config,
        network=network,
        options=options,
        quiet=True,
    )
    return time.perf_counter() - started, time.process_time() - processor


with tempfile.TemporaryDirectory() as folder:
    numbers = itertools.count()
    found = timing.by_difference(
        lambda n: taken(Path(folder) / str(next(numbers)), n), BEFORE, frames, repeats
    )
print(json.dumps(found))
