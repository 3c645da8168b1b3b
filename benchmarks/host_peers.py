"""Comparison of training in gymnasium environments with other libraries on the same work.

Usage: `python benchmarks/host_peers.py [ppo] [sac] [--cleanrl FOLDER]`.

- PPO on CartPole-v1: 8 environments in one process, 128 steps, 4 epochs of 4 minibatches, 64 x 64
  tanh.
- SAC on HalfCheetah-v5: 1 environment, one gradient step on 256 samples per step, 256 x 256.

rollax, CleanRL, and Stable-Baselines3 together with sbx each have a virtual environment. It is
created by the first call with the newest Python version in which the packages can be installed.
CleanRL is not a package, so FOLDER must be a copy of vwxyzjn/cleanrl. The programs take turns, and
results are medians over the rounds.
"""

import argparse
import os
import platform
import statistics
from pathlib import Path

from peers import FOLDER, SBX, TORCH, peer_python, printed, processor
from timing import medians

ROLLAX = ["--editable", f"{FOLDER.parent}[gymnasium]"]
CLEANRL = [TORCH, "gymnasium[mujoco]==0.29.1", "tensorboard", "tyro"]
FRAMES = {"ppo": 40_960, "sac": 2_000}


def programs(cleanrl: Path | None) -> dict[str, list[str]]:
    """Return the interpreter, the script and its first arguments for each library."""
    other = peer_python("sbx", SBX, True)
    found = {
        "rollax": [peer_python("rollax-gymnasium", ROLLAX, True), "host_rollax.py"],
        "sbx": [other, "host_sb3.py", "sbx"],
        "sb3": [other, "host_sb3.py", "sb3"],
    }
    if cleanrl is not None:
        found["cleanrl"] = [peer_python("cleanrl", CLEANRL, True), "host_cleanrl.py", str(cleanrl)]
    return found


def measure(
    peer: str, program: list[str], work: str, frames: int, repeats: int
) -> tuple[float, float]:
    python, file, *first = program
    return medians(
        printed(
            f"{peer} {work}", [python, str(FOLDER / file), *first, work, str(frames), str(repeats)]
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "works",
        nargs="*",
        default=list(FRAMES),
        help=f"of {', '.join(FRAMES)}; all if none is named",
    )
    parser.add_argument("--rounds", type=int, default=3, help="processes of each program per work")
    parser.add_argument("--repeats", type=int, default=2, help="measurements per process")
    parser.add_argument(
        "--frames",
        type=int,
        help="frames of a measurement, to try it out; default: those of each work",
    )
    parser.add_argument(
        "--cleanrl",
        type=Path,
        help="the folder of a copy of vwxyzjn/cleanrl; CleanRL is left out without",
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.works) - set(FRAMES):
        parser.error(f"unknown work {', '.join(sorted(unknown))}: it is one of {', '.join(FRAMES)}")
    copy = arguments.cleanrl and arguments.cleanrl.resolve()
    if copy and not (copy / "cleanrl" / "ppo.py").exists():
        parser.error(f"--cleanrl ({copy}) is no copy of vwxyzjn/cleanrl: it has no cleanrl/ppo.py")
    peers = programs(copy)
    print(
        f"{processor()}, {os.cpu_count()} processors, {platform.system()}, Python "
        f"{platform.python_version()}; medians"
    )
    print(
        "| work | | steps/s | steps/s of a processor | rollax to it |\n|---|---|---|---|---|",
        flush=True,
    )
    for work in arguments.works:
        frames = arguments.frames or FRAMES[work]
        rounds = [
            {
                peer: measure(peer, program, work, frames, arguments.repeats)
                for peer, program in peers.items()
            }
            for _ in range(arguments.rounds)
        ]
        for peer in peers:
            speed, effort = (statistics.median(one[peer][i] for one in rounds) for i in (0, 1))
            ratio = statistics.median(one["rollax"][0] / one[peer][0] for one in rounds)
            print(f"| {work} | {peer} | {speed:,.0f} | {effort:,.0f} | {ratio:.2f} |", flush=True)
        if copy is None:
            print(f"| {work} | cleanrl | left out: --cleanrl names no copy | | |", flush=True)


if __name__ == "__main__":
    main()
