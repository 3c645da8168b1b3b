"""Memory use of a run with a replay buffer compared with the predicted bytes.

Usage: `python benchmarks/replay_memory.py`. Requires Linux, because the memory is read from /proc.

Runs DQN on Breakout-MinAtar with and without prioritized replay. The measured memory is the peak of
the resident memory after the state is created, over some updates and a checkpoint, minus the
resident memory before. Compiled programs are not included. The prediction omits the networks, which
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
from rollax.algorithms.registry import ALGORITHMS
from rollax.replay import ring
from rollax.replay.ring import ReplayStep
from rollax.training.checkpoints.store import Checkpoints

KINDS = ALGORITHMS["dqn"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="*", default=[100_000, 1_000_000])
    arguments = parser.parse_args()
    print(f"{'rows':>10} {'prioritized':>12} {'said, MB':>10} {'peak, MB':>10} {'ratio':>6}")
    for size in arguments.sizes:
        for prioritized in (False, True):
            said, peak = measure(size, prioritized)
            print(
                f"{size:>10,} {prioritized!s:>12} {said / 1e6:>10,.1f} {peak / 1e6:>10,.1f} "
                f"{peak / said:>6.3f}"
            )


def measure(capacity: int, prioritized: bool) -> tuple[int, int]:
    """Return the predicted bytes of the replay rows, and the measured peak of additional memory."""
    environment = rollax.make("gymnax/Breakout-MinAtar")
    config = KINDS.config(
        num_envs=16, replay_ratio=0.25, warmup=500.0, capacity=capacity, prioritized=prioritized
    )
    shape = KINDS.network_config(filters=())
    algorithm = KINDS.make(environment, functools.partial(KINDS.make_network, environment, shape))
    init = jax.jit(algorithm.init).lower(jax.random.key(0), config).compile()
    abstract = jax.eval_shape(algorithm.init, jax.random.key(0), config)
    step = jax.jit(algorithm.step, donate_argnums=0).lower(abstract).compile()
    _, obs = environment.reset(jax.random.key(0))
    no, nothing = jnp.zeros((), bool), jnp.zeros(())
    row = ReplayStep(obs, jnp.zeros((), jnp.int32), nothing, no, no, obs, no, ())
    said = ring.size_in_bytes(row, config.num_envs, capacity)

    folder = tempfile.mkdtemp()
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, {"row": obs}, {})  # the first use of orbax allocates memory
    checkpoints.wait()
    forget_peak()
    before = resident("VmRSS")
    state = init(jax.random.key(0), config)
    # Write to every page, as a full ring has done. The system counts a page after the first write.
    touched = jax.jit(
        lambda data: jax.tree.map(lambda x: x | x if x.dtype == bool else x + 0, data),
        donate_argnums=0,
    )
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
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what)
    )
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main()
