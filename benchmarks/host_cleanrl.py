"""PPO or SAC on gymnasium by CleanRL's own scripts, the same work as `host_rollax.py`, in a virtual environment of its own.

`host_cleanrl.py FOLDER ppo|sac FRAMES REPEATS`; FOLDER is a copy of vwxyzjn/cleanrl. Prints one JSON object. HalfCheetah is v4
here, the same body and rewards: the scripts read the ends of episodes as gymnasium 0.29 tells them, which has no v5. Actor and
temperature learn at every step, as in the other programs, and not two times at every second one.
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
    "ppo": "ppo.py --env-id CartPole-v1 --num-envs 8 --num-steps 128 --num-minibatches 4 --update-epochs 4",
    "sac": "sac_continuous_action.py --env-id HalfCheetah-v4 --batch-size 256 --learning-starts 100 --policy-frequency 1",
}


def run(copy: Path, work: str, frames: int) -> tuple[float, float]:
    """Wall and processor seconds of a script; what it writes goes into a folder that is deleted."""
    script, *arguments = WORK[work].split()
    command = [sys.executable, str(copy / "cleanrl" / script), *arguments, "--no-cuda", "--total-timesteps", str(frames)]
    environment = os.environ | {"PYTHONPATH": str(copy)}
    started, before = time.perf_counter(), _of_children()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
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
