"""PPO by rollax beside its peers on the same work: `python benchmarks/peers.py [WORK ...] --purejaxrl FOLDER`.

Everyone trains the same environments, steps (128), epochs (4), minibatches and updates, with an actor and a critic of 64 x 64,
in a virtual environment of its own (benchmarks/.venv-<peer>), made on the first call with the newest Python that is found and
the newest JAX that installs for it. The programs take turns, round by round, so that a machine whose speed drifts treats them
alike: a ratio is that to the best peer of the same round, the median over the rounds, with the least and the greatest.
PureJaxRL is no package: its `ppo.py` is that of a copy of luchris429/purejaxrl that FOLDER names; without it is left out.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

from timing import medians

FOLDER = Path(__file__).resolve().parent
REJAX = ["rejax==0.1.3", "gymnax==0.0.9"]
PUREJAXRL = ["jax", "flax", "distrax", "optax", "gymnax==0.0.9"]
TORCH = "torch==2.13.0"
SBX = ["sbx-rl==0.28.0", "gymnasium[mujoco]", TORCH]  # it stands on Stable-Baselines3, and that on PyTorch
PYTHONS = ("python3.13", "python3.12", "python3.11")  # the newest that all peers take, first


PPO_OF_PUREJAXRL = {"LR": 2.5e-4, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2, "ENT_COEF": 0.01, "VF_COEF": 0.5}
PPO_OF_PUREJAXRL |= {"MAX_GRAD_NORM": 0.5, "ANNEAL_LR": False, "DEBUG": False}


class Work(NamedTuple):
    """What everyone does. An update is 128 steps of `num_envs` environments and 4 epochs, of each of the seeds."""

    environment: str
    num_envs: int
    minibatches: int
    seeds: int
    updates: int  # of a measurement
    activation: str = "tanh"


WORKS = {
    "2048": Work("CartPole-v1", 2048, 32, 1, 4),
    "64": Work("CartPole-v1", 64, 4, 1, 60),
    "4": Work("CartPole-v1", 4, 4, 1, 400),
    "4x8": Work("CartPole-v1", 4, 4, 8, 80),
    "4x64": Work("CartPole-v1", 4, 4, 64, 12),
    "breakout": Work("Breakout-MinAtar", 64, 8, 1, 20, "relu"),
    "spaceinvaders": Work("SpaceInvaders-MinAtar", 64, 8, 1, 15, "relu"),
}


class Found(NamedTuple):
    """What one program measured in one round."""

    rate: float  # steps a second
    processor: float  # seconds of processors for a million steps
    compiling: float  # seconds
    jax: str


def main() -> None:
    arguments = parsed()
    copy = arguments.purejaxrl and arguments.purejaxrl.resolve()
    pythons = {
        "rollax": peer_python("rollax", ["--editable", str(FOLDER.parent)], True),
        "rejax": peer_python("rejax", REJAX, True),
    }
    if copy:
        pythons["purejaxrl"] = peer_python("purejaxrl", PUREJAXRL, True)
    print(f"{processor()}, {os.cpu_count()} processors, {platform.system()}; medians of {arguments.rounds} rounds\n")
    print("| work | | steps/s | processor s / 1e6 steps | compiling, s | jax | rollax to it |\n|---|---|---|---|---|---|---|")
    ratios = {}
    for name in arguments.works or WORKS:
        rounds = []
        for _ in range(arguments.rounds):
            measured = {peer: measure(peer, python, WORKS[name], arguments, copy) for peer, python in pythons.items()}
            rounds.append(measured)
        best = sorted(one["rollax"].rate / max(one[peer].rate for peer in pythons if peer != "rollax") for one in rounds)
        ratios[name] = statistics.median(best), best[0], best[-1]
        for peer in pythons:
            print(row(name, peer, rounds), flush=True)
    for name, (middle, low, high) in ratios.items():
        print(f"{name}: {middle:.2f} times the best peer ({low:.2f} to {high:.2f})")
    if arguments.out:
        draw(ratios, arguments.out)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", help=f"of {', '.join(WORKS)}; all if none is named")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each program per work")
    parser.add_argument("--repeats", type=int, default=3, help="measurements per process, of which the median counts")
    parser.add_argument("--purejaxrl", type=Path, help="the folder of a copy of luchris429/purejaxrl")
    parser.add_argument("--out", type=Path, help="a picture of the ratios")
    arguments = parser.parse_args()
    if unknown := set(arguments.works) - set(WORKS):
        parser.error(f"unknown work {', '.join(sorted(unknown))}: it is one of {', '.join(WORKS)}")
    if arguments.purejaxrl and not (arguments.purejaxrl / "purejaxrl" / "ppo.py").exists():
        parser.error(f"--purejaxrl ({arguments.purejaxrl}) is no copy of luchris429/purejaxrl: it has no purejaxrl/ppo.py")
    return arguments


def row(name: str, peer: str, rounds: list[dict[str, Found]]) -> str:
    median = lambda field: statistics.median(getattr(one[peer], field) for one in rounds)  # noqa: E731
    ratio = statistics.median(one["rollax"].rate / one[peer].rate for one in rounds)
    shown = "" if peer == "rollax" else f"{ratio:.2f}"
    figures = f"{median('rate'):,.0f} | {median('processor'):.2f} | {median('compiling'):.1f} | {rounds[0][peer].jax}"
    return f"| {name} | {peer} | {figures} | {shown} |"


def measure(peer: str, python: str, work: Work, arguments: argparse.Namespace, copy: Path | None) -> Found:
    first = [json.dumps(work._asdict())]
    if peer == "purejaxrl":
        first = [str(copy / "purejaxrl"), json.dumps(of_purejaxrl(work)), str(work.seeds)] if copy else []
    found = printed(peer, [python, str(FOLDER / f"ppo_{peer}.py"), *first, str(arguments.repeats)])
    rate, of_processor = medians(found)
    return Found(rate, 1e6 / of_processor, found["compile_seconds"], found["jax"])


def printed(what: str, command: list[str]) -> dict:
    """The JSON object that a program ends with. PYTHONPATH is for this program's Python alone."""
    is_own = command[0] == sys.executable
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or is_own}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{what} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def of_purejaxrl(work: Work) -> dict:
    """The work as its settings."""
    return {
        "ENV_NAME": work.environment,
        "NUM_ENVS": work.num_envs,
        "NUM_STEPS": 128,
        "TOTAL_TIMESTEPS": work.num_envs * 128 * work.updates,
        "UPDATE_EPOCHS": 4,
        "NUM_MINIBATCHES": work.minibatches,
        "ACTIVATION": work.activation,
    } | PPO_OF_PUREJAXRL


def draw(ratios: dict[str, tuple[float, float, float]], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 0.5 * len(ratios) + 1.2), layout="constrained")
    for place, (middle, low, high) in enumerate(ratios.values()):
        axes.errorbar(middle, place, xerr=[[middle - low], [high - middle]], fmt="o", capsize=3, color="C0")
    axes.axvline(1, color="gray", linewidth=0.8)
    axes.set_yticks(range(len(ratios)), list(ratios))
    axes.invert_yaxis()
    axes.set_xlabel("steps/s of rollax, as a multiple of the best peer's (median, least, greatest round)")
    figure.savefig(out, dpi=150)


def peer_python(name: str, packages: list[str], newest: bool = False) -> str:
    """Python of a virtual environment with these packages: of the newest Python that is found, or of this one."""
    folder = FOLDER / f".venv-{name}"
    python = folder / "bin" / "python"
    if not python.exists():
        found = next((path for each in PYTHONS if (path := shutil.which(each))), None) if newest else None
        if found is None:
            venv.create(folder, with_pip=True)
        else:
            subprocess.run([found, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return str(python)


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    main()
