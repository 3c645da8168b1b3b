"""Comparison of archives on one device and on several, which test_devices starts as a process.

It compares single runs and populations:

XLA_FLAGS=--xla_force_host_platform_device_count=4 python -m laws.evaluating map_elites 4
"""

import json
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from laws.devices import COLLECTIVES, first_share, gathered, replays
from laws.programs import fresh, plain
from rollax import make, tree
from rollax.algorithms.registry import ALGORITHMS
from rollax.distributed.sharding import make_mesh, make_run_shardings, shard_map_over_members
from rollax.networks.solutions import PolicyConfig, make_solution
from rollax.populations import population
from rollax.training.compile.segments import segment

UPDATES = 2
SHARE = 7  # solutions that each device scores, whose policies act on single observations
GRID = 4, 8
SMALL: dict[str, dict[str, Any]] = {
    "map_elites": {},
    "cma_me": {"num_emitters": 7},
    "pga_me": {
        "critic_updates": 4,
        "policy_updates": 2,
        "samples": 4,
        "capacity": 560,
        "critic_hidden": (8,),
    },
}


def difference(one: Any, other: Any) -> float:
    """Return the largest relative difference of two trees.

    The result is infinite if their finite numbers are not in the same places.
    """
    largest = 0.0
    for a, b in zip(jax.tree.leaves(plain(one)), jax.tree.leaves(plain(other)), strict=True):
        a, b = np.asarray(a, float), np.asarray(b, float)
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return float("inf")
        a, b = a[np.isfinite(a)], b[np.isfinite(b)]
        largest = max(largest, float(np.max(np.abs(a - b) / (1 + np.abs(b)), initial=0.0)))
    return largest


def compare(name: str, devices: int) -> dict[str, Any]:
    """Compare runs on several devices with runs on one device.

    The runs are a single run and a population with as many members as `devices`.
    """
    environment = make("control/point-maze", time_limit=10)
    kind = ALGORITHMS[name]
    algorithm = kind.make(
        environment, lambda key: make_solution(environment, PolicyConfig(hidden=(8,)), key)
    )
    config = kind.config(batch_size=SHARE * devices, num_iterations=2, grid=GRID, **SMALL[name])
    state = jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0))
    run = segment(algorithm, UPDATES)
    alone = jax.jit(run)(fresh(state), jnp.int32(UPDATES))
    over = make_mesh(devices, "environments")
    shardings = make_run_shardings(state, algorithm.placement(state), over)
    with jax.set_mesh(over):
        placed = jax.device_put(fresh(state), shardings)
        compiled = (
            jax.jit(run, out_shardings=(shardings, None))
            .lower(placed, jnp.int32(UPDATES))
            .compile()
        )
        spread = compiled(placed, jnp.int32(UPDATES))

    many = population(algorithm)
    configs = jax.tree.map(lambda x: jnp.full(devices, x), tree.to_arrays(config))
    members = jax.jit(many.init)(jax.vmap(jax.random.key)(jnp.arange(devices)), configs)
    run = segment(many, UPDATES)
    together = jax.jit(run)(fresh(members), jnp.int32(UPDATES))
    apart = jax.jit(shard_map_over_members(run, make_mesh(devices, "members"), (0, None), (0, 1)))(
        fresh(members), jnp.int32(UPDATES)
    )
    text = compiled.as_text()
    return {
        "single": difference(alone, spread),
        "population": difference(together, apart),
        "elites": int(np.sum(np.isfinite(alone[0].archive.elites.fitness))),
        "scored": [
            int(size) for size in sorted(set(re.findall(r"= f32\[(\d+),1,8\]\S* dot\(", text)))
        ],
        "collectives": {
            kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in COLLECTIVES
        },
        "gathered": max(gathered(text), default=0),
        "places": first_share(spread[0].archive.elites.solution),
        "streams": [first_share(part.data) for part in replays(spread[0])],
        "devices": [len(x.archive.best.sharding.device_set) for x in (spread[0], apart[0])],
    }


if __name__ == "__main__":
    print(json.dumps(compare(sys.argv[1], int(sys.argv[2]))))
