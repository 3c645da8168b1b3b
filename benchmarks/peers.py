"""Comparison of rollax with other libraries ("peers") on the same work.

Usage: `python benchmarks/peers.py [WORK ...] [--purejaxrl FOLDER]`.

- PPO with rejax and PureJaxRL: equal environments, steps (128), epochs (4), minibatches and
  updates, and actors and critics of 64 x 64 units.
- TD3, SAC and DQN with rejax and sbx: batches of 256 samples (64 for DQN) and one gradient step per
  frame (for DQN, one per step of its 10 environments).
- MAP-Elites with qdax, and CMA-MAE with pyribs.

Each library has a virtual environment (benchmarks/.venv-<peer>). It is created by the first call
with the newest Python version in which the library can be installed and the newest JAX that it
supports.

All programs of a work are started and then take turns of about one second, so that changes in
machine speed affect all of them. A ratio compares two turns of the same round. Results are medians
over the rounds with quartiles. The best peer has the highest median speed. PureJaxRL is not a
package, so FOLDER must be a copy of luchris429/purejaxrl. Without it, PureJaxRL is left out.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent
TORCH = "torch==2.13.0"
REJAX = ["rejax==0.1.3", "gymnax==0.0.9"]
SBX = ["sbx-rl==0.28.0", "gymnasium[mujoco]", TORCH]  # Stable-Baselines3 requires PyTorch
PACKAGES = {
    "rollax": ["--editable", str(FOLDER.parent)],
    "rejax": REJAX,
    "purejaxrl": ["jax", "flax", "distrax", "optax", "gymnax==0.0.9"],
    "sbx": SBX,
    "qdax": ["qdax==0.5.0"],
    "ribs": ["ribs==0.12.0"],
}
PYTHONS = ("python3.13", "python3.12", "python3.11")  # the newest first
PPO_OF_PUREJAXRL = {
    "LR": 2.5e-4,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
}
PPO_OF_PUREJAXRL |= {"MAX_GRAD_NORM": 0.5, "ANNEAL_LR": False, "DEBUG": False}


class Work(NamedTuple):
    """Work of one turn of about a second, equal for all libraries."""

    title: str  # label in the figure
    program: str  # prefix of the scripts, which are named <program>_<peer>.py
    settings: dict[str, Any]  # argument of the scripts
    peers: tuple[str, ...]


def ppo(
    title: str,
    environment: str,
    num_envs: int,
    minibatches: int,
    seeds: int,
    updates: int,
    activation: str = "tanh",
) -> Work:
    """Return a work of PPO updates with 128 steps per environment and 4 epochs for each seed."""
    names = "environment", "num_envs", "minibatches", "seeds", "updates", "activation"
    given = environment, num_envs, minibatches, seeds, updates, activation
    return Work(title, "ppo", dict(zip(names, given, strict=True)), ("rejax", "purejaxrl"))


def off_policy(title: str, algorithm: str, width: int, frames: int) -> Work:
    return Work(
        title,
        "off_policy",
        {"algorithm": algorithm, "width": width, "frames": frames},
        ("rejax", "sbx"),
    )


def quality_diversity(title: str, work: str, batch_size: int, peer: str) -> Work:
    return Work(title, "quality_diversity", {"work": work, "batch_size": batch_size}, (peer,))


WORKS = {
    "2048": ppo("PPO, CartPole, 2,048 environments", "CartPole-v1", 2048, 32, 1, 2),
    "64": ppo("PPO, CartPole, 64 environments", "CartPole-v1", 64, 4, 1, 40),
    "4": ppo("PPO, CartPole, 4 environments", "CartPole-v1", 4, 4, 1, 300),
    "4x8": ppo("PPO, CartPole, 4 environments, 8 seeds", "CartPole-v1", 4, 4, 8, 50),
    "4x64": ppo("PPO, CartPole, 4 environments, 64 seeds", "CartPole-v1", 4, 4, 64, 8),
    "breakout": ppo("PPO, Breakout-MinAtar", "Breakout-MinAtar", 64, 8, 1, 10, "relu"),
    "spaceinvaders": ppo(
        "PPO, SpaceInvaders-MinAtar", "SpaceInvaders-MinAtar", 64, 8, 1, 8, "relu"
    ),
    "td3": off_policy("TD3, Pendulum, 64 x 64", "td3", 64, 4000),
    "sac": off_policy("SAC, Pendulum, 64 x 64", "sac", 64, 2000),
    "dqn": off_policy("DQN, CartPole, 64 x 64", "dqn", 64, 40_000),
    "td3-256": off_policy("TD3, Pendulum, 256 x 256", "td3", 256, 600),
    "sac-256": off_policy("SAC, Pendulum, 256 x 256", "sac", 256, 400),
    "arm": quality_diversity("MAP-Elites, arm, grid", "arm", 1024, "qdax"),
    "cvt": quality_diversity("MAP-Elites, arm, Voronoi cells", "cvt", 1024, "qdax"),
    "sphere": quality_diversity("CMA-MAE, sphere", "sphere", 540, "ribs"),
}


class Turn(NamedTuple):
    """Measurement of one turn of a program."""

    rate: float  # steps per second
    processor: float  # CPU seconds per million steps


class Program(NamedTuple):
    """Running program that waits for its turns."""

    process: subprocess.Popen[str]
    compile_seconds: float
    jax: str


class Ratio(NamedTuple):
    """Ratio of rollax to a peer: median and quartiles over the rounds."""

    middle: float
    low: float
    high: float


def main() -> None:
    arguments = parsed()
    copy = arguments.purejaxrl and arguments.purejaxrl.resolve()
    left_out = {*arguments.leave_out, *([] if copy else ["purejaxrl"])}
    print(
        f"{processor()}, {os.cpu_count()} processors, {platform.system()}; medians of "
        f"{arguments.rounds} rounds (quartiles)\n"
    )
    print(
        "| work | | steps/s | processor s / 1e6 steps | compiling, s | jax | rollax to it | by "
        "processor time |"
    )
    print("|---|---|---|---|---|---|---|---|")
    ratios = {}
    for name in arguments.works or WORKS:
        work = WORKS[name]
        if not (peers := [peer for peer in work.peers if peer not in left_out]):
            continue
        programs = {peer: begin(peer, work, copy) for peer in ["rollax", *peers]}
        rounds = [
            {peer: turn(peer, program) for peer, program in programs.items()}
            for _ in range(arguments.rounds)
        ]
        for program in programs.values():
            end(program)
        for peer, program in programs.items():
            print(row(name, peer, program, rounds), flush=True)
        best = max(peers, key=lambda peer: median(rounds, peer, "rate"))
        ratios[name] = best, ratio(rounds, lambda one: one["rollax"].rate / one[best].rate)  # noqa: B023 - called here
    for name, (best, found) in ratios.items():
        print(f"{name}: {shown(found)} times {best}")
    if arguments.out:
        draw(ratios, arguments.out)


def begin(peer: str, work: Work, copy: Path | None) -> Program:
    """Start the program of a peer and wait until it has compiled its work."""
    words = [json.dumps(work.settings)]
    if peer == "purejaxrl":
        words = (
            [
                str(copy / "purejaxrl"),
                json.dumps(of_purejaxrl(work)),
                str(work.settings["seeds"]),
                "turns",
            ]
            if copy
            else []
        )
    command = [
        peer_python(peer, PACKAGES[peer], True),
        str(FOLDER / f"{work.program}_{peer}.py"),
        *words,
    ]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment_of(command[0]),
    )
    ready = answer(peer, process)
    return Program(process, ready["compile_seconds"], ready["jax"])


def turn(peer: str, program: Program) -> Turn:
    assert program.process.stdin is not None
    program.process.stdin.write("\n")
    program.process.stdin.flush()
    return Turn(**answer(peer, program.process))


def answer(peer: str, process: "subprocess.Popen[str]") -> dict:
    """Return the next JSON line that a program prints. Exit if the program has ended."""
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        sys.exit(f"{peer} failed")
    return json.loads(line)


def end(program: Program) -> None:
    assert program.process.stdin is not None
    program.process.stdin.close()
    program.process.wait()


def median(rounds: list[dict[str, Turn]], peer: str, field: str) -> float:
    return statistics.median(getattr(one[peer], field) for one in rounds)


def ratio(rounds: list[dict[str, Turn]], of: Callable[[dict[str, Turn]], float]) -> Ratio:
    found = [of(one) for one in rounds]
    low, middle, high = (
        statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    )
    return Ratio(middle, low, high)


def shown(found: Ratio) -> str:
    return f"{found.middle:.2f} ({found.low:.2f} to {found.high:.2f})"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("works", nargs="*", help=f"of {', '.join(WORKS)}; all if none is named")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each program per work")
    parser.add_argument(
        "--leave-out",
        nargs="+",
        default=[],
        metavar="PEER",
        help="such as sbx, which installs PyTorch",
    )
    parser.add_argument(
        "--purejaxrl", type=Path, help="the folder of a copy of luchris429/purejaxrl"
    )
    parser.add_argument("--out", type=Path, help="a picture of the ratios")
    arguments = parser.parse_args()
    check_names(parser, "work", arguments.works, WORKS)
    check_names(parser, "peer", arguments.leave_out, PACKAGES)
    if arguments.purejaxrl and not (arguments.purejaxrl / "purejaxrl" / "ppo.py").exists():
        parser.error(
            f"--purejaxrl ({arguments.purejaxrl}) is no copy of luchris429/purejaxrl: it has no "
            "purejaxrl/ppo.py"
        )
    return arguments


def check_names(
    parser: argparse.ArgumentParser, what: str, given: list[str], known: Iterable[str]
) -> None:
    """Exit with a list of the known names if a name is unknown."""
    if unknown := set(given) - set(known):
        parser.error(
            f"unknown {what} {', '.join(sorted(unknown))}: it is one of {', '.join(known)}"
        )


def row(name: str, peer: str, program: Program, rounds: list[dict[str, Turn]]) -> str:
    ratios = ["", ""]
    if peer != "rollax":
        by_time = ratio(rounds, lambda one: one["rollax"].rate / one[peer].rate)
        ratios = [
            shown(by_time),
            shown(ratio(rounds, lambda one: one[peer].processor / one["rollax"].processor)),
        ]
    measured = f"{median(rounds, peer, 'rate'):,.0f} | {median(rounds, peer, 'processor'):.2f}"
    return (
        f"| {name} | {peer} | {measured} | {program.compile_seconds:.1f} | {program.jax} "
        f"| {' | '.join(ratios)} |"
    )


def printed(what: str, command: list[str]) -> dict:
    """Run a program and return the JSON object in the last line that it prints."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment_of(command[0])
    )
    if done.returncode:
        sys.exit(f"{what} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def environment_of(python: str) -> dict[str, str]:
    """Return the environment variables for a Python interpreter.

    PYTHONPATH is removed for interpreters other than the current one.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONPATH" or python == sys.executable
    }


def of_purejaxrl(work: Work) -> dict:
    """Return the settings of PureJaxRL for a work."""
    given = work.settings
    return {
        "ENV_NAME": given["environment"],
        "NUM_ENVS": given["num_envs"],
        "NUM_STEPS": 128,
        "TOTAL_TIMESTEPS": given["num_envs"] * 128 * given["updates"],
        "UPDATE_EPOCHS": 4,
        "NUM_MINIBATCHES": given["minibatches"],
        "ACTIVATION": given["activation"],
    } | PPO_OF_PUREJAXRL


def draw(best: dict[str, tuple[str, Ratio]], out: Path) -> None:
    """Draw the ratio to the best peer of each work, with its quartiles."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import matplotlib.ticker

    figure, axes = plt.subplots(figsize=(8, 0.35 * len(best) + 1), layout="constrained")
    for place, (peer, (middle, low, high)) in enumerate(best.values()):
        axes.errorbar(
            middle,
            place,
            xerr=[[middle - low], [high - middle]],
            fmt="o",
            markersize=4,
            capsize=4,
            color="C0",
        )
        where = {"xytext": (8, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
        axes.annotate(f"{middle:.3g} x {peer}", (high, place), **where)
    axes.axvline(1, color="gray", linewidth=0.8)
    axes.margins(x=0.25)  # space for annotations
    if max(found.high for _, found in best.values()) > 4:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    axes.set_yticks(range(len(best)), [WORKS[name].title for name in best])
    axes.invert_yaxis()
    axes.set_xlabel("steps/s as a multiple of the best peer's, median and quartiles")
    figure.savefig(out, dpi=150)


def peer_python(name: str, packages: list[str], newest: bool = False) -> str:
    """Return the interpreter of a virtual environment, which is created if it does not exist.

    Args:
        name: Name of the virtual environment.
        packages: Arguments of `pip install`.
        newest: Whether to use the newest Python version in which the packages can be installed,
            instead of the current one.
    """
    folder = FOLDER / f".venv-{name}"
    python = folder / "bin" / "python"
    found = [path for each in PYTHONS if (path := shutil.which(each))] if newest else []
    for last, path in enumerate([*found, sys.executable]):
        if python.exists():
            break
        subprocess.run([path, "-m", "venv", str(folder)], check=True)
        installing = subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", *packages], check=last == len(found)
        )
        if installing.returncode:
            shutil.rmtree(folder)
    return str(python)


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    main()
