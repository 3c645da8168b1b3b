"""The memory that a run with a replay takes, beside the bytes that it said beforehand: `python benchmarks/replay_memory.py`.

DQN on Breakout-MinAtar, prioritized and not, in this process: resident memory just before the state is made, and its peak after
that, some updates and a checkpoint (Linux tells it in /proc). What is compiled before is not counted, nor the networks, which
are small.
"""

import argparse
import functools
import shutil
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp

import rollax
from rollax.algorithms import ALGORITHMS
from rollax.host.checkpoint import Checkpoints
from rollax.replay import ring
from rollax.replay.ring import Step

KINDS = ALGORITHMS["dqn"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[100_000, 1_000_000])
    arguments = parser.parse_args()
    print(f"{'rows':>10} {'prioritized':>12} {'said, MB':>10} {'peak, MB':>10} {'ratio':>6}")
    for size in arguments.sizes:
        for prioritized in (False, True):
            said, peak = measure(size, prioritized)
            print(f"{size:>10,} {prioritized!s:>12} {said / 1e6:>10,.1f} {peak / 1e6:>10,.1f} {peak / said:>6.3f}")


def measure(capacity: int, prioritized: bool) -> tuple[int, int]:
    """The bytes of the rows as said beforehand, and what the process took more at its peak."""
    environment = rollax.make("gymnax/Breakout-MinAtar")
    config = KINDS.config(num_envs=16, replay_ratio=0.25, warmup=500.0, capacity=capacity, prioritized=prioritized)
    shape = KINDS.network_config(filters=())
    algorithm = KINDS.make(environment, functools.partial(KINDS.make_network, environment, shape))
    init = jax.jit(algorithm.init).lower(jax.random.key(0), config).compile()
    abstract = jax.eval_shape(algorithm.init, jax.random.key(0), config)
    step = jax.jit(algorithm.step, donate_argnums=0).lower(abstract).compile()
    _, obs = environment.reset(jax.random.key(0))
    no, nothing = jnp.zeros((), bool), jnp.zeros(())
    row = Step(obs, jnp.zeros((), jnp.int32), nothing, no, no, obs, no, ())
    said = ring.size_in_bytes(row, config.num_envs, capacity)

    folder = tempfile.mkdtemp()
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, {"row": obs}, {})  # orbax takes some memory when it is used first, whatever is saved
    checkpoints.wait()
    forget_peak()
    before = resident("VmRSS")
    state = init(jax.random.key(0), config)
    # Every page is written to once, as the ring does in time: the system counts a page from then on.
    touched = jax.jit(lambda data: jax.tree.map(lambda x: x | x if x.dtype == bool else x + 0, data), donate_argnums=0)
    rows = state.replay.replay if prioritized else state.replay
    rows = rows._replace(data=touched(rows.data))
    state = state._replace(replay=state.replay._replace(replay=rows) if prioritized else rows)
    for _ in range(4):
        state, _ = jax.block_until_ready(step(state))
    checkpoints.save(2, state, {})
    checkpoints.close()
    shutil.rmtree(folder)
    return said, resident("VmHWM") - before


def resident(what: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main()
