"""Speed of XLand-MiniGrid environments and of recurrent PPO in them.

Usage: `python benchmarks/xland.py environment|training|sequences|source`.

- environment: random actions with the restarts of rollax and with the auto-reset wrapper of the
  suite, in turns.
- training: PPO on MiniGrid-Empty-6x6 with several encoders, memories and memory sizes.
- sequences: PPO with several sequence lengths.
- source: the recurrent PPO configuration of the suite, which targets a GPU, with the time of its
  parts.

Results are medians over repeats, and steps are environment frames.
"""

import argparse
import functools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import turns
import xminigrid
from products import count_products
from xminigrid.wrappers import GymAutoResetWrapper

import rollax
from rollax.acting import parameter_sharing, streams
from rollax.algorithms.on_policy import RolloutEnd
from rollax.algorithms.ppo import learn
from rollax.learning import train_state

NAMES = (
    "MiniGrid-Empty-6x6",
    "MiniGrid-DoorKey-5x5",
    "XLand-MiniGrid-R1-9x9",
    "XLand-MiniGrid-R4-13x13",
)
EMPTY = "xminigrid/MiniGrid-Empty-6x6"


def uniform(env: Any, size: int) -> Callable[[jax.Array, Any], jax.Array]:
    return lambda key, state: jax.random.randint(key, (size,), 0, env.action_space.n)


def ours(env: Any, size: int, num_steps: int) -> turns.Program:
    return turns.ours(env, size, num_steps, uniform(env, size))


def theirs(env: Any, name: str, size: int, num_steps: int) -> turns.Program:
    """Build a program of the auto-reset wrapper of the suite with the same task."""
    dynamics, params = xminigrid.make(name)
    dynamics = GymAutoResetWrapper(dynamics)
    if env.tasks != ():
        params = params.replace(ruleset=jax.tree.map(lambda x: x[0], env.tasks))

    def step(key: jax.Array, timestep: Any, action: jax.Array) -> tuple[Any, jax.Array]:
        timestep = jax.vmap(dynamics.step, in_axes=(None, 0, 0))(params, timestep, action)
        return timestep, timestep.reward

    def reset(key):
        return jax.vmap(dynamics.reset, in_axes=(None, 0))(params, jax.random.split(key, size))

    return turns.theirs(reset, step, uniform(env, size), num_steps)


def environment(arguments: argparse.Namespace) -> None:
    turns.header("steps/s")
    for name in NAMES:
        tasks = {"ruleset": 0} if name.startswith("XLand") else {}
        env = rollax.make(f"xminigrid/{name}", previous=False, direction=False, **tasks)
        for size in arguments.copies:
            num_steps = max(32, arguments.frames // size)
            programs = {
                "ours": ours(env, size, num_steps),
                "theirs": theirs(env, name, size, num_steps),
            }
            turns.compare(name, size, size * num_steps, programs, arguments.repeats)


class Update(NamedTuple):
    """Compiled update with its initial state."""

    step: Callable[[Any], Any]
    state: Any
    compiling: float  # seconds
    megabytes: float  # of its arguments and temporary buffers


def update(env: Any, config: rollax.PPOConfig, network: rollax.NetworkConfig) -> Update:
    algorithm = rollax.ppo(env, functools.partial(rollax.actor_critic, env, network))
    state = jax.jit(algorithm.init)(jax.random.key(0), config)
    started = time.perf_counter()
    step = jax.jit(algorithm.step).lower(state).compile()
    compiling = time.perf_counter() - started
    memory = step.memory_analysis()
    return Update(
        step, state, compiling, (memory.argument_size_in_bytes + memory.temp_size_in_bytes) / 1e6
    )


def train(
    config: rollax.PPOConfig, network: rollax.NetworkConfig, repeats: int
) -> tuple[float, float, float]:
    """Return the steps per second, the compile time in seconds and the memory in megabytes."""
    step, state, compiling, size = update(rollax.make(EMPTY), config, network)
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        state, _ = jax.block_until_ready(step(state))
        times.append(time.perf_counter() - started)
    return config.steps_per_update / statistics.median(times[1:]), compiling, size


SHAPE = {
    "num_envs": 1024,
    "num_steps": 32,
    "sequence_length": 32,
    "num_minibatches": 8,
    "num_epochs": 1,
}


def training(arguments: argparse.Namespace) -> None:
    print(f"{'network':<34} {'steps/s':>10} {'compile s':>10} {'MB':>7}")
    for encoder in ("dense", "convolutions"):
        shown: dict[str, Any] = (
            {"hidden": (64,), "filters": ()}
            if encoder == "dense"
            else {"hidden": (), "activation": "relu"}
        )
        for core in ("gru", "mingru"):
            for size in arguments.sizes:
                network = rollax.NetworkConfig(core=core, core_size=size, shared=True, **shown)
                speed, compiling, memory = train(
                    rollax.PPOConfig(**SHAPE), network, arguments.repeats
                )
                print(
                    (
                        f"{f'{encoder}, {core} {size}':<34} {speed:>10,.0f} {compiling:>10.1f} "
                        f"{memory:>7.0f}"
                    ),
                    flush=True,
                )


def sequences(arguments: argparse.Namespace) -> None:
    """Measure PPO with several sequence lengths and an equal number of samples per update."""
    print(f"{'memory':<10} {'length':>7} {'steps/s':>10} {'compile s':>10}")
    for core in ("gru", "mingru"):
        for length in arguments.lengths:
            config = rollax.PPOConfig(
                num_envs=32768 // length,
                num_steps=length,
                sequence_length=length,
                num_minibatches=4,
                num_epochs=1,
            )
            network = rollax.NetworkConfig(
                hidden=(64,), filters=(), core=core, core_size=64, shared=True
            )
            speed, compiling, _ = train(config, network, arguments.repeats)
            print(f"{core:<10} {length:>7} {speed:>10,.0f} {compiling:>10.1f}", flush=True)


def acting(env: Any, state: Any) -> tuple[Any, Any]:
    """Compute only the rollout of an update, and return the actor and the rollout."""
    config = state.config
    policy = parameter_sharing.make_policy(
        parameter_sharing.make_agent_groups(env, config.sharing),
        train_state.sample_action_with_extras,
        state.train,
    )
    actor, rollout, _ = streams.unroll(env, policy, state.actor, state.key, config.num_steps)
    return actor, rollout


def learning(state: Any, actor: Any, rollout: Any) -> Any:
    """Compute only the learning part of an update from its rollout."""
    end = RolloutEnd(actor.carry, actor.obs, actor.agent_done, state.discounted_return)
    return learn(state.config, jnp.zeros(()), state.train, rollout, end, state.key)


def work(state: Any) -> int:
    """Return the number of floating-point operations of the matrix products in an update.

    The network has one forward pass per step of the rollout and one for the last values. Each step
    in an epoch costs three passes, because a gradient takes two products per product of the forward
    pass. Values of truncated steps before the last one are not counted.
    """
    actor, config = state.actor, state.config
    one = jax.tree.map(lambda x: x[0], (actor.carry, actor.obs))
    forward = count_products(
        jax.make_jaxpr(lambda network, carry, obs: network(carry, obs))(
            state.train.network, *one
        ).jaxpr
    )
    return forward * config.num_envs * (config.num_steps * (1 + 3 * config.num_epochs) + 1)


def peak(size: int, precision: str, repeats: int) -> float:
    """Return the highest rate of consecutive square matrix products, in operations per second.

    Products have the default precision of JAX, like those of the networks. On recent GPUs, float32
    products are then computed in TF32.
    """
    count = 8
    left, right = (
        jax.random.normal(key, (size, size), precision)
        for key in jax.random.split(jax.random.key(0))
    )
    right = right / math.sqrt(size)  # keeps the scale of the numbers
    run = jax.jit(lambda x: jax.lax.fori_loop(0, count, lambda _, x: x @ right, x))
    turns.seconds(run, left)
    return 2 * count * size**3 / min(turns.seconds(run, left) for _ in range(repeats))


def source(arguments: argparse.Namespace) -> None:
    """Measure the configuration of training/train_single_task.py of the suite in rollax.

    Encoder, memory and heads of 256 units are those of the suite. All activations are relu, while
    the heads of the suite use tanh, and heads are computed in float32.

    Shares are relative to the time of a whole update: the environment with random actions, the
    additional time of a rollout, and learning, each compiled separately. The difference between
    their sum and 1 is the effect of compiling them as one program.
    """
    env = rollax.make(arguments.env)
    config = rollax.PPOConfig(
        num_envs=arguments.environments,
        num_steps=arguments.steps,
        sequence_length=arguments.steps,
        num_minibatches=arguments.minibatches,
        num_epochs=1,
        learning_rate=1e-3,
    )
    frames = (
        f"{config.num_envs:,} environments x {config.num_steps} steps, "
        f"{config.num_minibatches} minibatches"
    )
    print(f"{arguments.env}, {frames}, GRU {arguments.core_size:,}")
    columns = (
        f"{'environment':>12} {'acting':>7} {'learning':>9} {'sum':>5} {'TFLOP/s':>8} "
        f"{'of peak':>8}"
    )
    print(f"{'precision':<10} {'steps/s':>10} {columns} {'compile s':>10} {'MB':>8}")
    for precision in arguments.precision:
        network = rollax.NetworkConfig(
            hidden=(),
            activation="relu",
            embedding=16,
            core="gru",
            core_size=arguments.core_size,
            head_hidden=(256,),
            shared=True,
            precision=precision,
        )
        begun = update(env, config, network)
        whole, flops, shares = parts(env, begun, arguments.warm_up, arguments.repeats)
        most = peak(arguments.product, precision, arguments.repeats)
        alone, act, teach = (shares[name] for name in ("environment", "acting", "learning"))
        times = f"{alone:>12.3f} {act:>7.3f} {teach:>9.3f} {alone + act + teach:>5.2f}"
        speeds = f"{flops / whole / 1e12:>8.3f} {flops / whole / most:>8.3f}"
        made = f"{begun.compiling:>10.1f} {begun.megabytes:>8,.0f}"
        print(
            f"{precision:<10} {config.steps_per_update / whole:>10,.0f} {times} {speeds} {made}",
            flush=True,
        )


def parts(
    env: Any, begun: Update, warm_up: int, repeats: int
) -> tuple[float, int, dict[str, float]]:
    """Measure an update and its parts.

    In each repeat, all programs are measured from the same state, which then advances by one
    update.

    Returns:
        Seconds of an update, floating-point operations of an update, and times of its parts
        relative to the update.
    """
    step, state = begun.step, begun.state
    for _ in range(warm_up):
        state, _ = step(state)
    config = state.config
    walk, (still, _) = ours(env, config.num_envs, config.num_steps)
    act, teach = (
        jax.jit(functools.partial(acting, env)),
        jax.jit(lambda happened: learning(*happened)),
    )
    measured = []
    for _ in range(repeats + 1):
        # Calls are asynchronous. Work that still runs would slow down the measured programs.
        state, happened = jax.block_until_ready((state, act(state)))
        programs = {
            "environment": (walk, (state.actor._replace(carry=still.carry), state.key)),
            "rollout": (act, state),
            "learning": (teach, (state, *happened)),
            "update": (step, state),
        }
        measured.append({name: turns.seconds(*program) for name, program in programs.items()})
        state, _ = step(state)
    times = measured[1:]  # the first repeat compiles
    shares = {
        name: statistics.median(each[name] / each["update"] for each in times) for name in programs
    }
    shares["acting"] = shares["rollout"] - shares["environment"]
    return statistics.median(each["update"] for each in times), work(state), shares


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("environment", "training", "sequences", "source"))
    parser.add_argument("--copies", type=int, nargs="+", default=[128, 1024, 4096, 16384])
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--lengths", type=int, nargs="+", default=[8, 32, 128, 512])
    parser.add_argument(
        "--frames", type=int, default=1_000_000, help="steps of an environment measurement"
    )
    parser.add_argument("--repeats", type=int, default=5)
    only = parser.add_argument_group("source")
    only.add_argument("--env", default=EMPTY, help="such as xminigrid/XLand-MiniGrid-R4-13x13")
    only.add_argument("--environments", type=int, default=8192)
    only.add_argument("--steps", type=int, default=16)
    only.add_argument("--minibatches", type=int, default=16)
    only.add_argument("--core-size", type=int, default=1024)
    only.add_argument(
        "--precision", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"]
    )
    only.add_argument(
        "--warm-up",
        type=int,
        default=10,
        help="updates before measuring, by which episodes begin and end",
    )
    only.add_argument(
        "--product",
        type=int,
        default=8192,
        help="rows of the square product that tells the device's peak",
    )
    arguments = parser.parse_args()
    print(
        f"jax {jax.__version__} on {jax.devices()[0].device_kind}, xminigrid "
        f"{xminigrid.__version__}"
    )
    {"environment": environment, "training": training, "sequences": sequences, "source": source}[
        arguments.what
    ](arguments)


if __name__ == "__main__":
    main()
