"""MAP-Elites or CMA-MAE of rollax, measured with `timing.by_turns`.

The argument is a JSON object with the settings of a work in peers.py.
"""

import json
import sys

import jax
from quality_diversity import WORKS, compiled, named
from timing import by_turns

ITERATIONS = 2000  # minimum per turn
work = json.loads(sys.argv[1])
sizes = [
    settings
    for settings in WORKS[work["work"]]
    if settings.get("batch_size", 540) == work["batch_size"]
]
many, begun, frames, compile_seconds = compiled(*named(work["work"]), **sizes[0])
state, times = [begun], -(-ITERATIONS * work["batch_size"] // frames)


def iterate() -> None:
    for _ in range(times):
        state[0], _ = jax.block_until_ready(many(state[0]))


by_turns(iterate, times * frames, compile_seconds, jax.__version__)
