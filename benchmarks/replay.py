"""Cost of adding to and sampling from replay buffers by size: `python benchmarks/replay.py`.

The table shows the time of one addition and one sampled batch in a compiled loop with a donated
state, as in a run. The time must not grow with the size, apart from slower memory and one more
level of the priority tree for every factor of 16. `peers.py` compares TD3, SAC and DQN with other
libraries.
"""

import argparse
import statistics
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.replay import prioritized, ring
from rollax.replay.ring import ReplayBuffer, ReplayStep

REPEATS, STEPS, BATCH = 5, 2000, 256


class Settings(NamedTuple):
    capacity: int
    batch_size: int = BATCH
    gamma: float = 0.99
    priority_exponent: float = 0.6
    importance_exponent: float = 0.4
    priority_epsilon: float = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--observation", type=int, default=4, help="numbers of an observation")
    arguments = parser.parse_args()
    print(f"one add and one draw of {BATCH}, microseconds; median of {REPEATS}")
    print(f"{'rows':>10} {'bytes':>12} {'uniform':>9} {'3 steps':>9} {'priority':>9}")
    for size in arguments.sizes:
        buffers = (
            ring.make_uniform_replay(),
            ring.make_uniform_replay(3),
            prioritized.make_prioritized_replay(),
        )
        times = [microseconds(buffer, size, arguments.observation) for buffer in buffers]
        needed = ring.size_in_bytes(example(arguments.observation), 1, size)
        print(f"{size:>10,} {needed:>12,} " + " ".join(f"{t:>9.1f}" for t in times))


def example(numbers: int) -> ReplayStep:
    obs, no = jnp.zeros(numbers), jnp.zeros((), bool)
    return ReplayStep(obs, jnp.zeros(1), jnp.zeros(()), no, no, obs, no, ())


def microseconds(buffer: ReplayBuffer, size: int, numbers: int) -> float:
    """Return the microseconds of one addition, one sampled batch and one update of priorities.

    All numbers of the batch are used, so that the compiler cannot remove any work.
    """
    config = Settings(size)
    row = jax.tree.map(lambda x: x[None], example(numbers))

    def body(i: jax.Array, carry: Any) -> Any:
        state, total, key = carry
        key, draw_key = jax.random.split(key)
        state = buffer.add(
            state, row._replace(reward=jnp.full(1, i, jnp.float32)), jnp.ones(1, bool)
        )
        batch, index = buffer.sample(state, config, draw_key, jnp.float32(0))
        state = buffer.update_priorities(
            state, config, index, jnp.abs(batch.reward), jnp.ones((), bool)
        )
        return state, total + sum(jnp.sum(x) for x in jax.tree.leaves(batch)), key

    run = jax.jit(lambda *carry: jax.lax.fori_loop(0, STEPS, body, carry), donate_argnums=0)
    carry = buffer.init(example(numbers), 1, config), jnp.zeros(()), jax.random.key(0)
    full = jax.tree.map(
        jnp.copy,
        ring.ReplayState(*carry[0][:3])
        if isinstance(carry[0], ring.ReplayState)
        else carry[0].replay,
    )
    full = full._replace(size=full.size + size)
    carry = (
        full if isinstance(carry[0], ring.ReplayState) else carry[0]._replace(replay=full),
        *carry[1:],
    )
    carry = jax.block_until_ready(run(*carry))
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        carry = jax.block_until_ready(run(*carry))
        times.append((time.perf_counter() - started) / STEPS * 1e6)
    return statistics.median(times)


if __name__ == "__main__":
    main()
