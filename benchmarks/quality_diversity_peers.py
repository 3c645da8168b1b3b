"""Quality-diversity beside its peers on the same work: `python benchmarks/quality_diversity_peers.py [--rounds N]`.

Each peer has a virtual environment of its own, made on the first call. The programs take turns, round by round, so that a
machine whose speed drifts treats them alike; the ratio is the median over the rounds of pairs.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys

from peers import FOLDER, peer_python, processor

PEERS = {"qdax": ["qdax==0.5.0"], "ribs": ["ribs==0.12.0"]}
WORKS = {"arm": "qdax", "cvt": "qdax", "sphere": "ribs"}


def lines(python: str, program: str, work: str) -> list[dict]:
    """What a program prints of a work, one object for each of its sizes."""
    command = [python, str(FOLDER / program), work, *(["--json"] if program == "quality_diversity.py" else [])]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or python == sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{program} {work} failed:\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each program per work")
    parser.add_argument("--works", nargs="+", default=list(WORKS), choices=list(WORKS))
    arguments = parser.parse_args()
    pythons = {name: peer_python(name, packages) for name, packages in PEERS.items()}
    print(f"{processor()}, {os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}; medians")
    for work in arguments.works:
        peer = WORKS[work]
        rounds = []
        for _ in range(arguments.rounds):
            mine = lines(sys.executable, "quality_diversity.py", work)
            rounds.append((mine, lines(pythons[peer], f"quality_diversity_{peer}.py", work)))
        for index in range(len(rounds[0][0])):
            speeds = [[statistics.median(side[index]["speeds"]) for side in one] for one in rounds]
            ratio = statistics.median(a / b for a, b in speeds)
            mine, other = (statistics.median(column) for column in zip(*speeds, strict=True))
            size = rounds[0][0][index].get("batch_size", 540)
            print(
                f"{work:<8} batch {size:>7,}  rollax {mine:>12,.0f}/s  {peer} {other:>10,.0f}/s  ratio {ratio:.1f}", flush=True
            )


if __name__ == "__main__":
    main()
