"""Learning from replay: what adding and drawing cost by size; TD3, SAC, DQN beside their peers: `python benchmarks/replay.py`.

The first table shows the time of one add and one draw inside a compiled loop whose state is donated, as in a run: it must not
grow with the size, but for memory that is farther away and a level of the tree every 16 times. The second runs the same work in
rollax, rejax and, if asked to, sbx by turns, as `peers.py` does.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.replay import prioritized, ring
from rollax.replay.ring import ReplayBuffer, Step

FOLDER = Path(__file__).resolve().parent
REPEATS, STEPS, BATCH = 5, 2000, 256
WORK = {"td3": 2000, "sac": 2000, "dqn": 40_000}  # frames of one measurement


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
    parser.add_argument(
        "--widths", type=int, nargs="*", default=[64, 256], help="of the networks beside rejax; none: leave out"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sbx", action="store_true", help="beside sbx as well, which installs PyTorch")
    arguments = parser.parse_args()
    print(f"one add and one draw of {BATCH}, microseconds; median of {REPEATS}")
    print(f"{'rows':>10} {'bytes':>12} {'uniform':>9} {'3 steps':>9} {'priority':>9}")
    for size in arguments.sizes:
        buffers = ring.uniform(), ring.uniform(3), prioritized.prioritized()
        times = [microseconds(buffer, size, arguments.observation) for buffer in buffers]
        needed = ring.size_in_bytes(example(arguments.observation), 1, size)
        print(f"{size:>10,} {needed:>12,} " + " ".join(f"{t:>9.1f}" for t in times))
    for width in arguments.widths:
        for name in WORK:
            beside(name, width, arguments.rounds, arguments.sbx)


def example(numbers: int) -> Step:
    obs, no = jnp.zeros(numbers), jnp.zeros((), bool)
    return Step(obs, jnp.zeros(1), jnp.zeros(()), no, no, obs, no, ())


def microseconds(buffer: ReplayBuffer, size: int, numbers: int) -> float:
    """Of one add and one draw, of which every number is used, and one update of priorities."""
    config = Settings(size)
    row = jax.tree.map(lambda x: x[None], example(numbers))

    def body(i: jax.Array, carry: Any) -> Any:
        state, total, key = carry
        key, draw_key = jax.random.split(key)
        state = buffer.add(state, row._replace(reward=jnp.full(1, i, jnp.float32)), jnp.ones(1, bool))
        batch, index = buffer.sample(state, config, draw_key, jnp.float32(0))
        state = buffer.update_priorities(state, config, index, jnp.abs(batch.reward), jnp.ones((), bool))
        return state, total + sum(jnp.sum(x) for x in jax.tree.leaves(batch)), key

    run = jax.jit(lambda *carry: jax.lax.fori_loop(0, STEPS, body, carry), donate_argnums=0)
    carry = buffer.init(example(numbers), 1, config), jnp.zeros(()), jax.random.key(0)
    full = jax.tree.map(jnp.copy, ring.Replay(*carry[0][:3]) if isinstance(carry[0], ring.Replay) else carry[0].replay)
    full = full._replace(size=full.size + size)
    carry = (full if isinstance(carry[0], ring.Replay) else carry[0]._replace(replay=full), *carry[1:])
    carry = jax.block_until_ready(run(*carry))
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        carry = jax.block_until_ready(run(*carry))
        times.append((time.perf_counter() - started) / STEPS * 1e6)
    return statistics.median(times)


def beside(name: str, width: int, rounds: int, with_sbx: bool) -> None:
    """Steps a second of all, and the ratios: their medians over the rounds."""
    sys.path.insert(0, str(FOLDER))
    from peers import REJAX, SBX, peer_python

    pythons = {"rollax": sys.executable, "rejax": peer_python("rejax", REJAX)}
    pythons |= {"sbx": peer_python("sbx", SBX)} if with_sbx else {}
    work = [name, str(width), str(WORK[name]), "3"]
    measured = [{peer: measure(peer, python, work) for peer, python in pythons.items()} for _ in range(rounds)]
    for what in ("steps_per_second", "steps_per_processor_second"):
        rates = [{peer: statistics.median(one[peer][what]) for peer in pythons} for one in measured]
        shown = [f"rollax {statistics.median(rate['rollax'] for rate in rates):,.0f}"]
        for peer in list(pythons)[1:]:
            ratio = statistics.median(rate["rollax"] / rate[peer] for rate in rates)
            shown.append(f"{peer} {statistics.median(rate[peer] for rate in rates):,.0f} (ratio {ratio:.2f})")
        print(f"{name} {width} x {width}, {what.replace('_', ' ')}: {'  '.join(shown)}", flush=True)


def measure(peer: str, python: str, work: list[str]) -> dict[str, Any]:
    done = subprocess.run([python, str(FOLDER / f"off_policy_{peer}.py"), *work], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{peer} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
