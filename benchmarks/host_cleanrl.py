"""PPO or SAC of CleanRL in gymnasium, with the same work as `host_rollax.py`.

Usage: `host_cleanrl.py FOLDER ppo|sac FRAMES REPEATS`. FOLDER is a copy of vwxyzjn/cleanrl. The
program runs in a separate virtual environment and prints one JSON object.

The scripts of CleanRL require gymnasium 0.29, which has HalfCheetah-v4 but not v5. Both have the
same body and rewards. The actor and the temperature are updated once per step, as in the other
programs, instead of twice every second step.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import timing

BEFORE = 2048  # frames of the first run
WORK = {
    "ppo": (
        "ppo.py --env-id CartPole-v1 --num-envs 8 --num-steps 128 --num-minibatches 4 "
        "--update-epochs 4"
    ),
    "sac": (
        "sac_continuous_action.py --env-id HalfCheetah-v4 --batch-size 256 --learning-starts "
        "100 --policy-frequency 1"
    ),
}


def run(copy: Path, work: str, frames: int) -> tuple[float, float]:
    """Run a script in a temporary folder and return its wall time and CPU time in seconds."""
    script, *arguments = WORK[work].split()
    command = [
        sys.executable,
        str(copy / "cleanrl" / script),
        *arguments,
        "--no-cuda",
        "--total-timesteps",
        str(frames),
    ]
    environment = os.environ | {"PYTHONPATH": str(copy)}
    started, before = time.perf_counter(), _of_children()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    if done.returncode:
        sys.exit(done.stderr)
    return time.perf_counter() - started, _of_children() - before


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    copy, work, frames, repeats = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
    print(json.dumps(timing.by_difference(lambda n: run(copy, work, n), BEFORE, frames, repeats)))


if __name__ == "__main__":
    main()
