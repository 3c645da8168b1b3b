"""PPO of PureJaxRL, run from a copy of luchris429/purejaxrl in a separate virtual environment.

Arguments: path of the folder purejaxrl in the copy, settings as a JSON object, and number of seeds.

Prints one JSON object with the mean return of each seed over the episodes that ended in the last
twentieth of training, and with the steps per second including compilation. With a fourth argument,
"turns", the program takes turns for `peers.py` instead.
"""

import json
import sys
import time
from unittest.mock import MagicMock

# The wrappers import these packages for environments that are not used here.
sys.modules |= {
    name: MagicMock()
    for name in ("brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training", "navix")
}
path, settings, seeds = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, path)

import jax  # noqa: E402
import numpy as np  # noqa: E402
from ppo import make_train  # noqa: E402

train, keys = jax.jit(jax.vmap(make_train(settings))), jax.random.split(jax.random.key(0), seeds)


def scores() -> dict:
    started = time.perf_counter()
    metrics = jax.device_get(train(keys)["metrics"])
    seconds = time.perf_counter() - started
    # Arrays [seeds, updates, steps, environments].
    ended, returns = metrics["returned_episode"], metrics["returned_episode_returns"]
    late = ended.shape[1] - ended.shape[1] // 20
    means = [float(np.mean(returns[seed, late:][ended[seed, late:]])) for seed in range(seeds)]
    return {"returns": means, "steps_per_second": ended.size / seconds}


if "turns" in sys.argv[4:]:
    from timing import by_turns

    started = time.perf_counter()
    program = train.lower(keys).compile()
    compile_seconds = time.perf_counter() - started
    by_turns(
        lambda: jax.block_until_ready(program(keys)),
        settings["TOTAL_TIMESTEPS"] * seeds,
        compile_seconds,
        jax.__version__,
    )
else:
    print(json.dumps({**scores(), "jax": jax.__version__}))
