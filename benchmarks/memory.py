"""Cost of memory networks in training: `python benchmarks/memory.py`.

Measures updates of PPO on memory/repeat-previous with a GRU and with gated transformers of
increasing memory length. Results are medians over repeats. Megabytes are the arguments and
temporary buffers of the compiled update.
"""

import argparse
import statistics
import time
from typing import Any

import jax

import rollax

SHAPE = {
    "num_envs": 64,
    "num_steps": 64,
    "sequence_length": 64,
    "num_minibatches": 8,
    "num_epochs": 4,
}


def measure(network: rollax.NetworkConfig, repeats: int) -> tuple[float, float, float]:
    """Return the steps per second, the compile time in seconds and the memory in megabytes."""
    env, config = rollax.make("memory/repeat-previous"), rollax.PPOConfig(**SHAPE)
    algorithm = rollax.ppo(env, lambda key: rollax.actor_critic(env, network, key))
    state = jax.jit(algorithm.init)(jax.random.key(0), config)
    started = time.perf_counter()
    step = jax.jit(algorithm.step).lower(state).compile()
    compiling, memory = time.perf_counter() - started, step.memory_analysis()
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        state, _ = jax.block_until_ready(step(state))
        times.append(time.perf_counter() - started)
    megabytes = (memory.argument_size_in_bytes + memory.temp_size_in_bytes) / 1e6
    return config.steps_per_update / statistics.median(times[1:]), compiling, megabytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[16, 64, 256], help="what the transformer remembers"
    )
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    cores: dict[str, dict[str, Any]] = {"gru": {"core": "gru"}}
    cores |= {
        f"gtrxl, {steps} steps": {"core": "gtrxl", "core_memory": steps}
        for steps in arguments.steps
    }
    print(f"{'memory':<18} {'steps/s':>9} {'compile s':>10} {'MB':>6}")
    for name, core in cores.items():
        network = rollax.NetworkConfig(
            hidden=(64,), core_size=64, core_layers=arguments.layers, shared=True, **core
        )
        speed, compiling, megabytes = measure(network, arguments.repeats)
        print(f"{name:<18} {speed:>9,.0f} {compiling:>10.1f} {megabytes:>6.0f}", flush=True)


if __name__ == "__main__":
    main()
