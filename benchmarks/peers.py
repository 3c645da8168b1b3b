"""rollax beside its peers on the same work: `python benchmarks/peers.py`.

Each peer has a virtual environment of its own, made on the first call in benchmarks/.venv-<peer>. The programs take turns,
round by round, so that a machine whose speed drifts treats them alike; the ratio is the median over the rounds of pairs.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
REJAX = ["rejax==0.1.3", "gymnax==0.0.9"]
TORCH = "torch==2.13.0"
SBX = ["sbx-rl==0.28.0", "gymnasium[mujoco]", TORCH]  # it stands on Stable-Baselines3, and that on PyTorch
# environments, minibatches, updates per measurement
SIZES = {64: (4, 60), 2048: (32, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each peer per size")
    parser.add_argument("--repeats", type=int, default=5, help="measurements per process")
    parser.add_argument(
        "--environments", type=int, nargs="+", default=list(SIZES), choices=list(SIZES), help="sizes to measure"
    )
    arguments = parser.parse_args()
    pythons = {"rollax": sys.executable, "rejax": peer_python("rejax", REJAX)}
    print(f"{processor()}, {os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}")
    print("PPO, CartPole-v1, 128 steps, 4 epochs, actor and critic 64 x 64 tanh, float32; medians")
    print(f"{'environments':>12} {'peer':<8} {'steps/s':>12} {'compile s':>10} {'ratio':>7} {'jax':>8}")
    for environments in arguments.environments:
        minibatches, updates = SIZES[environments]
        rounds = []
        for _ in range(arguments.rounds):
            work = [str(n) for n in (environments, minibatches, updates, arguments.repeats)]
            rounds.append({name: measure(name, python, work) for name, python in pythons.items()})
        ratio = statistics.median(rate(one["rollax"]) / rate(one["rejax"]) for one in rounds)
        for name in pythons:
            speed = statistics.median(rate(one[name]) for one in rounds)
            compiling = statistics.median(one[name]["compile_seconds"] for one in rounds)
            shown = f"{ratio:.2f}" if name == "rollax" else "1"
            print(f"{environments:>12} {name:<8} {speed:>12,.0f} {compiling:>10.1f} {shown:>7} {rounds[0][name]['jax']:>8}")


def measure(name: str, python: str, work: list[str]) -> dict:
    command = [python, str(FOLDER / f"ppo_{name}.py"), *work]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or python == sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def rate(measured: dict) -> float:
    return statistics.median(measured["steps_per_second"])


def peer_python(name: str, packages: list[str]) -> str:
    folder = FOLDER / f".venv-{name}"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return str(python)


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    main()
