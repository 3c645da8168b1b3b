"""Comparison of a run on one, two and four devices, started by test_devices in a separate process.

It also lists the collectives of the compiled step:

XLA_FLAGS=--xla_force_host_platform_device_count=4 python -m laws.devices ppo ppo-gru
"""

import json
import math
import re
import sys
from typing import Any

import jax
import numpy as np

from laws.programs import fresh, plain
from laws.table import BY_NAME
from rollax.distributed.sharding import make_mesh, make_run_shardings
from rollax.learning.normalization import Moments
from rollax.replay.ring import ReplayState

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "reduce-scatter",
    "ragged-all-to-all",
)
UPDATES = 2
COUNTS = 2, 4


def counted(state: Any, metrics: Any) -> Any:
    """Return the state and metrics without the parts that may differ between numbers of devices.

    These are the pooled resets, which each device draws when it needs one (episodes start in the
    same states), and the compensation of rounding errors in sums, which is at most as large as the
    rounding.
    """
    starts = state.actor.reset_pool._replace(pooled_reset=None, pooled_episode=None)
    state = state._replace(actor=state.actor._replace(reset_pool=starts))

    def is_moments(part):
        return isinstance(part, Moments)

    def exact(part):
        return part._replace(compensation=None) if is_moments(part) else part

    return plain((jax.tree.map(exact, state, is_leaf=is_moments), metrics))


def compare(name: str) -> dict[int, dict[str, Any]]:
    """Compare runs on several devices with a run on one device.

    Returns:
        The result of `spread` by number of devices.
    """
    row = BY_NAME[name]
    algorithm = row.make(row.environment)
    state = jax.jit(lambda key: algorithm.init(key, row.config))(jax.random.key(0))
    alone = fresh(state)
    step = jax.jit(algorithm.step)
    for _ in range(UPDATES):
        alone, metrics = step(alone)
    return {count: spread(algorithm, state, counted(alone, metrics), count) for count in COUNTS}


def spread(algorithm: Any, state: Any, alone: Any, count: int) -> dict[str, Any]:
    """Compare updates from `state` on `count` devices with the result on one device.

    Args:
        algorithm: Algorithm of the run.
        state: State before the updates.
        alone: State and metrics after the updates on one device, as `counted` returns them.
        count: Number of devices.
    """
    over = make_mesh(count, "environments")
    shardings = make_run_shardings(state, algorithm.placement(state), over)
    state = jax.device_put(fresh(state), shardings)
    with jax.set_mesh(over):
        compiled = jax.jit(algorithm.step, out_shardings=(shardings, None)).lower(state).compile()
        for _ in range(UPDATES):
            state, metrics = compiled(state)
    pairs = zip(jax.tree.leaves(alone), jax.tree.leaves(counted(state, metrics)), strict=True)
    text = compiled.as_text()
    return {
        "difference": max(
            float(np.max(np.abs(a.astype(float) - b) / (1 + np.abs(b))))
            for a, b in pairs
            if np.isfinite(b).all()
        ),
        "collectives": [kind for kind in COLLECTIVES if re.search(rf" {kind}(-start)?\(", text)],
        "gathered": max(gathered(text), default=0),
        "devices": len(state.actor.obs.sharding.device_set),
        "share": state.actor.obs.addressable_shards[0].data.shape[0],
        "streams": [first_share(part.data) for part in replays(state)],
    }


def replays(state: Any) -> list[ReplayState]:
    """Return all replay buffers in a state."""

    def is_ring(part):
        return isinstance(part, ReplayState)

    return [part for part in jax.tree.leaves(state, is_leaf=is_ring) if is_ring(part)]


def first_share(rows: Any) -> int:
    """Return the number of rows of arrays `[N, ...]` on the first device."""
    return jax.tree.leaves(rows)[0].addressable_shards[0].data.shape[0]


def gathered(text: str) -> list[int]:
    """Return the number of elements that each all-gather of a compiled program produces."""
    found = re.findall(r"= (\S+\[[\d,]*\]|\(.*\))\S* all-gather", text)
    sizes = [re.findall(r"\[([\d,]*)\]", shapes) for shapes in found]
    return [math.prod(int(n) for n in size.split(",") if n) for each in sizes for size in each]


if __name__ == "__main__":
    print(json.dumps({name: compare(name) for name in sys.argv[1:]}))
