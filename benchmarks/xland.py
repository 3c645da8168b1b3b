"""XLand-MiniGrid: `python benchmarks/xland.py environment`, `... training`, `... sequences`.

`environment`: random actions with rollax's restarts beside the suite's own auto-reset wrapper, taking turns. `training`: PPO on
MiniGrid-Empty-6x6 over memories and their sizes. `sequences`: the cost of learning from sequences of several lengths.
Medians over repeats; steps are environment frames.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import xminigrid
from xminigrid.wrappers import GymAutoResetWrapper

import rollax
from rollax.environments.core import Streams

NAMES = (
    "MiniGrid-Empty-6x6",
    "MiniGrid-DoorKey-5x5",
    "XLand-MiniGrid-R1-9x9",
    "XLand-MiniGrid-R4-13x13",
)


def seconds(run: Callable[[Any], Any], state: Any) -> float:
    """Of one call, everything compiled before."""
    started = time.perf_counter()
    jax.block_until_ready(run(state))
    return time.perf_counter() - started


def ours(env: Any, size: int, num_steps: int) -> tuple[Callable[[Any], Any], Any]:
    streams = Streams(env, size)

    def body(carry: Any, time: jax.Array) -> tuple[Any, jax.Array]:
        state, key = carry
        act_key, env_key = jax.random.split(jax.random.fold_in(key, time))
        action = jax.random.randint(act_key, (size,), 0, env.action_space.n)
        state, after = streams.step(jax.random.split(env_key, size), state, action)
        return (state, key), after.reward.sum()

    run = jax.jit(lambda carry: jax.lax.scan(body, carry, jnp.arange(num_steps)))
    return run, (jax.jit(lambda key: streams.init(key))(jax.random.key(0)), jax.random.key(1))


def theirs(env: Any, name: str, size: int, num_steps: int) -> tuple[Callable[[Any], Any], Any]:
    """The suite's wrapper with the same task."""
    dynamics, params = xminigrid.make(name)
    dynamics = GymAutoResetWrapper(dynamics)
    if env.tasks != ():
        params = params.replace(ruleset=jax.tree.map(lambda x: x[0], env.tasks))

    def body(carry: Any, time: jax.Array) -> tuple[Any, jax.Array]:
        timestep, key = carry
        action = jax.random.randint(jax.random.fold_in(key, time), (size,), 0, dynamics.num_actions(params))
        timestep = jax.vmap(dynamics.step, in_axes=(None, 0, 0))(params, timestep, action)
        return (timestep, key), timestep.reward.sum()

    reset = jax.jit(lambda key: jax.vmap(dynamics.reset, in_axes=(None, 0))(params, jax.random.split(key, size)))
    run = jax.jit(lambda carry: jax.lax.scan(body, carry, jnp.arange(num_steps)))
    return run, (reset(jax.random.key(0)), jax.random.key(1))


def environment(arguments: argparse.Namespace) -> None:
    print(f"{'environment':<26} {'copies':>7} {'rollax':>12} {'wrapper':>12} {'ratio':>6}")
    for name in NAMES:
        tasks = {"ruleset": 0} if name.startswith("XLand") else {}
        env = rollax.make(f"xminigrid/{name}", previous=False, direction=False, **tasks)
        for size in arguments.copies:
            num_steps = max(32, arguments.frames // size)
            programs = {"ours": ours(env, size, num_steps), "theirs": theirs(env, name, size, num_steps)}
            for run, state in programs.values():
                seconds(run, state)
            times = [{key: seconds(*program) for key, program in programs.items()} for _ in range(arguments.repeats)]
            speeds = {key: size * num_steps / statistics.median(t[key] for t in times) for key in programs}
            ratio = statistics.median(t["theirs"] / t["ours"] for t in times)
            print(f"{name:<26} {size:>7} {speeds['ours']:>12,.0f} {speeds['theirs']:>12,.0f} {ratio:>6.2f}", flush=True)


def train(config: rollax.PPOConfig, network: rollax.NetworkConfig, repeats: int) -> tuple[float, float, float]:
    """Steps/s, seconds to compile, megabytes."""
    env = rollax.make("xminigrid/MiniGrid-Empty-6x6")
    algorithm = rollax.ppo(env, functools.partial(rollax.actor_critic, env, network))
    state = jax.jit(algorithm.init)(jax.random.key(0), config)
    started = time.perf_counter()
    step = jax.jit(algorithm.step).lower(state).compile()
    compiling = time.perf_counter() - started
    memory = step.memory_analysis()
    size = (memory.argument_size_in_bytes + memory.temp_size_in_bytes) / 1e6
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        state, _ = jax.block_until_ready(step(state))
        times.append(time.perf_counter() - started)
    return config.frames_per_update / statistics.median(times[1:]), compiling, size


SHAPE = {"num_envs": 1024, "num_steps": 32, "sequence_length": 32, "num_minibatches": 8, "num_epochs": 1}


def training(arguments: argparse.Namespace) -> None:
    print(f"{'network':<34} {'steps/s':>10} {'compile s':>10} {'MB':>7}")
    for encoder in ("dense", "convolutions"):
        shown: dict[str, Any] = {"hidden": (64,), "filters": ()} if encoder == "dense" else {"hidden": (), "activation": "relu"}
        for core in ("gru", "mingru"):
            for size in arguments.sizes:
                network = rollax.NetworkConfig(core=core, core_size=size, shared=True, **shown)
                speed, compiling, memory = train(rollax.PPOConfig(**SHAPE), network, arguments.repeats)
                print(f"{f'{encoder}, {core} {size}':<34} {speed:>10,.0f} {compiling:>10.1f} {memory:>7.0f}", flush=True)


def sequences(arguments: argparse.Namespace) -> None:
    """The same samples for every length: fewer streams where they are longer."""
    print(f"{'memory':<10} {'length':>7} {'steps/s':>10} {'compile s':>10}")
    for core in ("gru", "mingru"):
        for length in arguments.lengths:
            config = rollax.PPOConfig(
                num_envs=32768 // length, num_steps=length, sequence_length=length, num_minibatches=4, num_epochs=1
            )
            network = rollax.NetworkConfig(hidden=(64,), filters=(), core=core, core_size=64, shared=True)
            speed, compiling, _ = train(config, network, arguments.repeats)
            print(f"{core:<10} {length:>7} {speed:>10,.0f} {compiling:>10.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("environment", "training", "sequences"))
    parser.add_argument("--copies", type=int, nargs="+", default=[128, 1024, 4096, 16384])
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--lengths", type=int, nargs="+", default=[8, 32, 128, 512])
    parser.add_argument("--frames", type=int, default=1_000_000, help="steps of an environment measurement")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}, xminigrid {xminigrid.__version__}")
    {"environment": environment, "training": training, "sequences": sequences}[arguments.what](arguments)


if __name__ == "__main__":
    main()
