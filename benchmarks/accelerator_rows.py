"""Rows of `accelerator.py`, the most telling ones first.

`train` rows are updates of rollax, `peer` rows the same work in another library, and `steps` rows
environments with random actions.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from peers import WORKS, Work, of_purejaxrl

Settings = dict[str, Any]
POINT_MAZE = {"grid": (32, 32), "qd_offset": 100.0}
# Recurrent PPO of training/train_single_task.py of XLand-MiniGrid.
XLAND_PPO = {"num_steps": 16, "sequence_length": 16, "num_minibatches": 16, "num_epochs": 1}
FEED_FORWARD = {"num_steps": 128, "num_epochs": 4}


class Row(NamedTuple):
    """Row of the table.

    Attributes:
        title: Text of the table, in which {size} is replaced.
        size: Number of seeds, environments or solutions that the row varies.
        small: The same with `--small`.
        settings: Function from the size to the task of the program that measures the row.
        kind: Kind of the program.
        frames: Steps or evaluations of the whole task, whose time is derived from the speed.
        published: Published speed of comparable work.
        packages: Packages that the row imports, and that may be missing.
        reference: Row of rollax that does the same work.
    """

    title: str
    size: int
    small: int
    settings: Callable[[int], Settings]
    kind: Literal["limits", "train", "peer", "steps"] = "train"
    frames: float | None = None
    published: str = ""
    packages: tuple[str, ...] = ()
    reference: str = ""


def training(algorithm: str, environment: str, **rest: Any) -> Settings:
    """Return the task of a training run.

    Args:
        algorithm: Name of the algorithm.
        environment: Id of the environment.
        **rest: `config` and `network`, whose other settings keep their defaults, and `seeds`.
    """
    return {"algorithm": algorithm, "environment": environment, **rest}


def cartpole(seeds: int, num_envs: int, num_minibatches: int) -> Settings:
    config = {**FEED_FORWARD, "num_envs": num_envs, "num_minibatches": num_minibatches}
    return training("ppo", "gymnax/CartPole-v1", config=config, seeds=seeds)


def breakout(num_envs: int, precision: str) -> Settings:
    config = {**FEED_FORWARD, "num_envs": num_envs, "num_minibatches": 8}
    network = {"activation": "relu", "filters": (), "precision": precision}
    return training("ppo", "gymnax/Breakout-MinAtar", config=config, network=network)


def xland(environment: str, num_envs: int, precision: str = "float32") -> Settings:
    network = {
        "hidden": (),
        "activation": "relu",
        "embedding": 16,
        "core": "gru",
        "core_size": num_envs // 8,
        "head_hidden": (num_envs // 32,),
        "shared": True,
        "precision": precision,
    }
    config = {**XLAND_PPO, "num_envs": num_envs}
    return training("ppo", f"xminigrid/{environment}", config=config, network=network)


def cheetah(environment: str, num_envs: int) -> Settings:
    config = {"num_envs": num_envs, "num_steps": 20, "num_minibatches": 32, "num_epochs": 4}
    config["normalize_observations"] = True
    return training("ppo", environment, config=config, network={"hidden": (256, 256)})


def replay(algorithm: str, width: int) -> Settings:
    """Return a task with one environment and one gradient step per frame."""
    environment = "gymnax/CartPole-v1" if algorithm == "dqn" else "gymnax/Pendulum-v1"
    config = {"num_envs": 1, "replay_ratio": 1.0, "batch_size": 256, "capacity": 1_000_000}
    network = {"hidden": (width, width), "layer_norm": False}
    return training(algorithm, environment, config=config, network=network)


def illuminate(algorithm: str, environment: str, **config: Any) -> Settings:
    return training(algorithm, environment, config=config)


def peer(name: str, work: str, updates: int, **sizes: int) -> Settings:
    """Return the task of a peer: a work of peers.py with other sizes, and updates per turn."""
    settings = WORKS[work].settings | sizes | {"updates": updates}
    return {"peer": name, "program": f"ppo_{name}.py", "work": settings}


def words(task: Settings, purejaxrl: str) -> list[str]:
    """Return the arguments of the program of a peer."""
    work = Work("", "ppo", task["work"], ())
    if task["peer"] != "purejaxrl":
        return [dumped(work.settings)]
    return [purejaxrl, dumped(of_purejaxrl(work)), str(work.settings["seeds"]), "turns"]


def dumped(settings: Settings) -> str:
    import json

    return json.dumps(settings)


def peers_of(row: str, work: str, title: str, size: int, small: int, **rest: Any) -> dict[str, Row]:
    """Return the rows of PureJaxRL and rejax for a row of rollax.

    Args:
        row: Name of the row.
        work: Work of peers.py.
        title: Title of the row.
        size: Size of the row.
        small: Size with `--small`.
        **rest: `varied` is the size in the work that the row varies, `updates` the number of
            updates per turn, and `frames` the steps of the whole task.
    """
    return {
        f"{row}-{name}": Row(
            f"{shown}: {title}",
            size,
            small,
            # Small turns are short, because they run on a CPU.
            lambda n, name=name: peer(
                name, work, rest["updates"] if n == size else 2, **{rest["varied"]: n}
            ),
            kind="peer",
            frames=rest["frames"],
            packages=("distrax",) if name == "purejaxrl" else (name,),
            reference=row,
        )
        for name, shown in (("purejaxrl", "PureJaxRL"), ("rejax", "rejax"))
    }


SEEDS, COPIES = "PPO, CartPole, {size} seeds x 4 environments", "PPO, CartPole, {size} environments"
BREAKOUT = "PPO, Breakout-MinAtar, {size} environments"
ROWS: dict[str, Row] = {
    "limits": Row("limits of the device", 0, 0, lambda n: {}, kind="limits"),
    # 500,000 steps per seed.
    "seeds": Row(SEEDS, 2048, 16, lambda n: cartpole(n, 4, 4), frames=2048 * 500_000.0),
    **peers_of("seeds", "4", SEEDS, 2048, 16, varied="seeds", updates=32, frames=2048 * 5e5),
    "environments": Row(COPIES, 65_536, 128, lambda n: cartpole(1, n, 32), frames=1e9),
    **peers_of(
        "environments", "2048", COPIES, 65_536, 128, varied="num_envs", updates=8, frames=1e9
    ),
    "breakout": Row(BREAKOUT, 4096, 64, lambda n: breakout(n, "float32"), frames=1e8),
    "breakout-bfloat16": Row(
        f"{BREAKOUT}, bfloat16", 4096, 64, lambda n: breakout(n, "bfloat16"), frames=1e8
    ),
    "fourrooms": Row(
        "recurrent PPO, MiniGrid-FourRooms, {size} environments",
        8192,
        64,
        lambda n: xland("MiniGrid-FourRooms", n),
        frames=5e7,
        published="XLand-MiniGrid: 92,600 steps/s on one T4",
        packages=("xminigrid",),
    ),
    "halfcheetah": Row(
        "PPO, brax HalfCheetah, {size} environments",
        4096,
        32,
        lambda n: cheetah("brax/halfcheetah", n),
        frames=5e7,
        published="97,530 frames/s on a laptop RTX 4060",
        packages=("brax",),
    ),
    "sac": Row(
        "SAC, Pendulum, {size} x {size}, one gradient step per frame",
        256,
        16,
        lambda n: replay("sac", n),
        frames=1e6,
        published="LeanRL: 725 frames/s on an H100",
    ),
    "td3": Row(
        "TD3, Pendulum, {size} x {size}, one gradient step per frame",
        256,
        16,
        lambda n: replay("td3", n),
        frames=1e6,
        published="LeanRL: 936 frames/s on an H100",
    ),
    "map_elites": Row(
        "MAP-Elites, arm, batches of {size}",
        16_384,
        256,
        lambda n: illuminate("map_elites", "task/arm", batch_size=n, grid=(100, 100)),
        frames=1e9,
    ),
    "pga_me": Row(
        "PGA-ME, point maze, batches of {size}",
        1024,
        16,
        lambda n: illuminate(
            "pga_me", "control/point-maze", batch_size=n, critic_updates=min(n, 300), **POINT_MAZE
        ),
        frames=1e6,
    ),
    "dqn": Row(
        "DQN, CartPole, {size} x {size}, one gradient step per frame",
        256,
        16,
        lambda n: replay("dqn", n),
        frames=1e6,
    ),
    "r4-steps": Row(
        "random actions, XLand R4-13x13, {size} copies",
        8192,
        64,
        lambda n: {"program": "ours", "environment": "XLand-MiniGrid-R4-13x13", "copies": n},
        kind="steps",
        packages=("xminigrid",),
    ),
    "r4-steps-suite": Row(
        "XLand-MiniGrid: random actions, R4-13x13, {size} copies",
        8192,
        64,
        lambda n: {"program": "theirs", "environment": "XLand-MiniGrid-R4-13x13", "copies": n},
        kind="steps",
        packages=("xminigrid",),
        reference="r4-steps",
    ),
    "r4": Row(
        "recurrent PPO, XLand R4-13x13, {size} environments",
        8192,
        64,
        lambda n: xland("XLand-MiniGrid-R4-13x13", n),
        frames=5e7,
        packages=("xminigrid",),
    ),
    **peers_of(
        "breakout", "breakout", BREAKOUT, 4096, 64, varied="num_envs", updates=8, frames=1e8
    ),
    "fourrooms-bfloat16": Row(
        "recurrent PPO, MiniGrid-FourRooms, {size} environments, bfloat16",
        8192,
        64,
        lambda n: xland("MiniGrid-FourRooms", n, "bfloat16"),
        frames=5e7,
        packages=("xminigrid",),
    ),
    "cheetah-run": Row(
        "PPO, Playground CheetahRun, {size} environments",
        4096,
        32,
        lambda n: cheetah("playground/CheetahRun", n),
        frames=5e7,
        packages=("mujoco_playground",),
    ),
}
