"""Environments of gymnasium beside peers on the same work: `python benchmarks/host_peers.py [ppo] [sac]`.

PPO on CartPole-v1 (8 environments in one process, 128 steps, 4 epochs of 4 minibatches, 64 x 64 tanh), SAC on HalfCheetah-v5
(1 environment, a gradient step of 256 samples for each step, 256 x 256). Stable-Baselines3 and sbx have a virtual environment
of their own, made on the first call. The programs take turns, round by round; a figure is the median over the rounds.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys

from peers import FOLDER, peer_python, processor

PACKAGES = ["sbx-rl==0.28.0", "gymnasium[mujoco]"]  # sbx stands on Stable-Baselines3
FRAMES = {"ppo": 40_960, "sac": 2_000}
PEERS = ("rollax", "sbx", "sb3")


def measure(peer: str, python: str, work: str, repeats: int) -> dict:
    program = ["host_rollax.py"] if peer == "rollax" else ["host_sb3.py", peer]
    command = [python, str(FOLDER / program[0]), *program[1:], work, str(FRAMES[work]), str(repeats)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or python == sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{peer} {work} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", default=list(FRAMES), help=f"of {', '.join(FRAMES)}; all if none is named")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each program per work")
    parser.add_argument("--repeats", type=int, default=2, help="measurements per process")
    arguments = parser.parse_args()
    if unknown := set(arguments.works) - set(FRAMES):
        parser.error(f"unknown work {', '.join(sorted(unknown))}: it is one of {', '.join(FRAMES)}")
    other = peer_python("sbx", PACKAGES)
    print(f"{processor()}, {os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}; medians")
    print("| work | | steps/s | steps/s of a processor | rollax to it |\n|---|---|---|---|---|", flush=True)
    for work in arguments.works:
        rounds = [
            {peer: measure(peer, sys.executable if peer == "rollax" else other, work, arguments.repeats) for peer in PEERS}
            for _ in range(arguments.rounds)
        ]
        for peer in PEERS:
            each = [{name: statistics.median(one[name]["steps_per_second"]) for name in PEERS} for one in rounds]
            effort = statistics.median(statistics.median(one[peer]["steps_per_processor_second"]) for one in rounds)
            speed, ratio = (statistics.median(x) for x in ([e[peer] for e in each], [e["rollax"] / e[peer] for e in each]))
            print(f"| {work} | {peer} | {speed:,.0f} | {effort:,.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
